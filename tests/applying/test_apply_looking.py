"""`apply` with `show` and `trace`: pieces, spaces, columns and values, by recorded episodes."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from default_pieces import LEARNER_DEFAULTS

from offline_cli import apply
from offline_cli.applying.pipeline_run import PipelineView
from offline_cli.connectors import MeanStdFilter, learner_pipeline
from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.errors import BadPiece

Dataset = Callable[..., str]
Pipeline = Callable[..., str]
FILTER_AND_STACK = '[[pieces]]\nname = "mean_std_filter"\n[[pieces]]\nname = "frame_stacking"\nnum_frames = 4\n'


def view(*given: Any, **named: Any) -> PipelineView:
    found = apply(*given, **named)
    assert isinstance(found, PipelineView)
    return found


def test_pieces_are_shown_with_their_spaces_and_the_columns_that_a_batch_then_has(
    episodes: EpisodeBatch, dataset: Dataset, pipeline_file: Pipeline, tmp_path: Path
) -> None:
    extra = {"action_logp": np.zeros(40, np.float32), "state": {"h": np.zeros((40, 2))}}
    source, file = dataset(replace(episodes, extra=extra)), pipeline_file(FILTER_AND_STACK)
    found = view(source, pipeline=file, show=True)
    assert [piece["name"] for piece in found.pieces] == ["MeanStdFilter", "FrameStacking", *LEARNER_DEFAULTS]
    assert [found.pieces[1][f"{name}observation_space_text"] for name in ("input_", "")] == [
        "Box(4, float32)",
        "Box(16, float32)",
    ]
    assert [[one["name"] for one in piece["columns"]] for piece in found.pieces[:2]] == [[], ["obs"]]
    apply(source, str(tmp_path / "out"), pipeline=file)
    columns = json.loads((tmp_path / "out" / "batches.json").read_text(encoding="utf-8"))["columns"]
    assert [{key: one[key] for key in ("name", "dtype", "shape")} for one in found.pieces[-1]["columns"]] == columns
    assert {"name": "state.h", "dtype": "float32", "shape": [2]} in columns


def test_a_trace_tells_what_the_batch_holds_after_each_piece(
    episodes: EpisodeBatch, dataset: Dataset, pipeline_file: Pipeline
) -> None:
    found = view(dataset(episodes), pipeline=pipeline_file(FILTER_AND_STACK), trace=2)
    assert (found.episodes, found.steps) == (["episode-0", "episode-1"], 14)
    np.testing.assert_allclose(found.start[0]["first"], episodes.obs.reshape(-1)[:8])
    filtered, stacked, last = found.pieces[0], found.pieces[1], found.pieces[-1]
    assert filtered["columns"] == []
    assert filtered["episodes"][0]["first"] != found.start[0]["first"]  # it writes into the episodes
    assert [[one[key] for key in ("name", "held", "shape", "rows")] for one in stacked["columns"]] == [
        ["obs", "array", [16], 14]
    ]
    spaces = episodes.observation_space, episodes.action_space
    pipeline = learner_pipeline(*spaces, custom=MeanStdFilter(as_learner_connector=True))  # type: ignore[arg-type]
    wanted = pipeline(episodes=episodes.select(slice(0, 2)))["obs"][0].tolist()
    assert stacked["columns"][0]["first"] == [0.0] * 12 + wanted
    actions = next(one for one in last["columns"] if one["name"] == "actions")
    assert (actions["held"], actions["rows"], actions["first"]) == ("tensor", 14, episodes.actions[:8].tolist())


PIECES = """
import numpy as np
from offline_cli import ConnectorV2

class Files(ConnectorV2):
    def __call__(self, *, batch, episodes, **kwargs):
        for episode in self.single_agent_episode_iterator(episodes):
            for step in range(len(episode)):
                self.add_batch_item(batch, "mine", np.float64([step, 7.0]), episode)
        return batch

class Fails(ConnectorV2):
    def __call__(self, **kwargs):
        raise ValueError("no such light")
"""


@pytest.mark.parametrize("how", [{"trace": 1}, {"show": True}])
def test_items_are_shown_before_they_are_stacked_and_where_a_piece_raises_the_view_up_to_it_comes_with_the_error(
    how: dict[str, Any],
    episodes: EpisodeBatch,
    dataset: Dataset,
    pipeline_file: Pipeline,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "traced_pieces.py").write_text(PIECES, encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    file = pipeline_file('[[pieces]]\nuse = "traced_pieces:Files"\n[[pieces]]\nuse = "traced_pieces:Fails"\n')
    with pytest.raises(BadPiece, match="no such light") as caught:
        view(dataset(episodes), pipeline=file, **how)
    (piece,) = caught.value.result["pieces"]
    kind = {"held": "items", "dtype": "float64", "shape": [2], "rows": 5, "first": [0.0, 7.0]}
    assert (piece["name"], piece["columns"]) == ("Files", [{"name": "mine", **kind}])

"""`apply` with `show` and `trace`: pieces, spaces and columns, without data where that can be; values after each piece."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from default_pieces import LEARNER_DEFAULTS

from offline_cli import apply
from offline_cli.applying.showing import PipelineShown, PipelineTraced
from offline_cli.connectors import MeanStdFilter, learner_pipeline
from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.errors import BadPiece
from offline_cli.spaces import describe

Dataset = Callable[..., str]
Pipeline = Callable[..., str]
FILTER_AND_STACK = """
    [[pieces]]
    name = "mean_std_filter"

    [[pieces]]
    name = "frame_stacking"
    num_frames = 4
"""


def shown(*given: Any, **named: Any) -> PipelineShown:
    found = apply(*given, show=True, **named)
    assert isinstance(found, PipelineShown)
    return found


def traced(*given: Any, **named: Any) -> PipelineTraced:
    found = apply(*given, **named)
    assert isinstance(found, PipelineTraced)
    return found


def test_pieces_are_shown_with_spaces_and_the_columns_of_the_first_episode(
    episodes: EpisodeBatch, dataset: Dataset, pipeline_file: Pipeline
) -> None:
    extra = {"action_logp": np.zeros(40, np.float32), "state": {"h": np.zeros((40, 2))}}
    source = dataset(replace(episodes, extra=extra))
    found = shown(source, pipeline=pipeline_file(FILTER_AND_STACK))
    assert [piece.name for piece in found.pieces] == ["MeanStdFilter", "FrameStacking", *LEARNER_DEFAULTS]
    stack = found.pieces[1]
    assert (describe(stack.input_observation_space), describe(stack.observation_space)) == (
        "Box(4, float32)",
        "Box(16, float32)",
    )
    assert stack.columns_before == ()
    assert stack.columns is not None
    assert [one.name for one in stack.columns] == ["obs"]
    last = found.pieces[-1].columns
    assert last is not None
    assert {one.name: one.kind for one in last} == {
        "obs": ("tensor", "float32", (16,)),
        "actions": ("tensor", "int64", ()),
        "rewards": ("tensor", "float32", ()),
        "terminateds": ("tensor", "bool", ()),
        "truncateds": ("tensor", "bool", ()),
        "action_logp": ("tensor", "float32", ()),
        "state.h": ("tensor", "float32", (2,)),
    }
    assert found.note is None


def test_what_is_shown_is_what_a_batch_then_has(
    episodes: EpisodeBatch, dataset: Dataset, pipeline_file: Pipeline, tmp_path: Path
) -> None:
    source, file = dataset(episodes), pipeline_file(FILTER_AND_STACK)
    found = shown(source, pipeline=file)
    apply(source, str(tmp_path / "out"), pipeline=file)
    columns = json.loads((tmp_path / "out" / "batches.json").read_text(encoding="utf-8"))["columns"]
    assert found.pieces[-1].columns is not None
    assert [{"name": one.name, "dtype": one.dtype, "shape": list(one.shape)} for one in found.pieces[-1].columns] == columns


def test_a_piece_that_cannot_take_invented_episodes_is_named_and_spaces_are_shown_all_the_same(
    episodes: EpisodeBatch,
    dataset: Dataset,
    pipeline_file: Pipeline,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    code = """
    from offline_cli import ConnectorV2

    class Choosy(ConnectorV2):
        def __call__(self, *, batch, episodes, **kwargs):
            for episode in self.single_agent_episode_iterator(episodes):
                if len(episode) < 5:
                    raise ValueError("too short for me")
            return batch
    """
    (tmp_path / "choosy_pieces.py").write_text(textwrap.dedent(code), encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    file = pipeline_file('[[pieces]]\nname = "frame_stacking"\nnum_frames = 2\n[[pieces]]\nuse = "choosy_pieces:Choosy"\n')
    found = shown(dataset(episodes), pipeline=file)
    assert found.note is not None
    assert "piece Choosy fails on sample episodes (piece Choosy raised ValueError: too short for me)" in found.note
    assert found.pieces[0].columns is not None
    assert found.pieces[1].columns_before == found.pieces[0].columns
    assert [piece.columns for piece in found.pieces[1:]] == [None] * 7
    assert describe(found.pieces[-1].observation_space) == "Box(8, float32)"


def test_a_trace_tells_what_the_batch_holds_after_each_piece(
    episodes: EpisodeBatch, dataset: Dataset, pipeline_file: Pipeline
) -> None:
    found = traced(dataset(episodes), pipeline=pipeline_file(FILTER_AND_STACK), trace=2)
    assert (found.episodes, found.steps) == (("episode-0", "episode-1"), 14)
    np.testing.assert_allclose(found.start[0].first, episodes.obs.reshape(-1)[:8])
    names = [piece.name for piece in found.pieces]
    assert names == ["MeanStdFilter", "FrameStacking", *LEARNER_DEFAULTS]
    filtered, stacked, last = found.pieces[0], found.pieces[1], found.pieces[-1]
    assert filtered.columns == ()
    assert filtered.episodes[0].first != found.start[0].first  # it writes into the episodes
    assert [(one.name, one.held, one.shape, one.rows) for one in stacked.columns] == [("obs", "array", (16,), 14)]
    pipeline = learner_pipeline(
        episodes.observation_space, episodes.action_space, custom=MeanStdFilter(as_learner_connector=True)
    )
    wanted = pipeline(episodes=episodes.select(slice(0, 2)))["obs"][0].tolist()
    assert list(stacked.columns[0].first) == [0.0] * 12 + wanted
    actions = next(one for one in last.columns if one.name == "actions")
    assert (actions.held, actions.dtype, actions.rows) == ("tensor", "int64", 14)
    assert list(actions.first) == episodes.actions[:8].tolist()


def test_a_trace_of_pieces_that_file_items_shows_them_before_they_are_stacked(
    episodes: EpisodeBatch, dataset: Dataset, pipeline_file: Pipeline, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = """
    import numpy as np
    from offline_cli import ConnectorV2

    class Files(ConnectorV2):
        def __call__(self, *, batch, episodes, **kwargs):
            for episode in self.single_agent_episode_iterator(episodes):
                for step in range(len(episode)):
                    self.add_batch_item(batch, "mine", np.float64([step, 7.0]), episode)
            return batch
    """
    (tmp_path / "traced_pieces.py").write_text(textwrap.dedent(code), encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    found = traced(dataset(episodes), pipeline=pipeline_file('[[pieces]]\nuse = "traced_pieces:Files"\n'), trace=1)
    (mine,) = found.pieces[0].columns
    assert (mine.held, mine.dtype, mine.shape, mine.rows, mine.first) == ("items", "float64", (2,), 5, (0.0, 7.0))


def test_where_a_piece_raises_the_trace_up_to_it_comes_with_the_error(
    episodes: EpisodeBatch, dataset: Dataset, pipeline_file: Pipeline, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = """
    from offline_cli import ConnectorV2

    class Fails(ConnectorV2):
        def __call__(self, *, batch, episodes, **kwargs):
            raise ValueError("no such light")
    """
    (tmp_path / "failing_pieces.py").write_text(textwrap.dedent(code), encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    file = pipeline_file('[[pieces]]\nname = "frame_stacking"\n[[pieces]]\nuse = "failing_pieces:Fails"\n')
    with pytest.raises(BadPiece, match="no such light") as caught:
        traced(dataset(episodes), pipeline=file, trace=1)
    assert [piece["name"] for piece in caught.value.result["pieces"]] == ["FrameStacking"]

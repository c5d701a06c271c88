"""What `apply` refuses: each with the piece, the place and the remedy, and with nothing written."""

from __future__ import annotations

import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from default_pieces import LEARNER_DEFAULTS

from offline_cli import apply
from offline_cli.applying.apply import ApplyResult
from offline_cli.connectors.piece_makers import snake
from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.errors import BadConfig, BadPiece, NoData, OfflineCliError, OutputExists, SpaceMismatch, UsageError

Dataset = Callable[..., str]
Pipeline = Callable[..., str]
PIECES = """
    import numpy as np
    import torch
    from offline_cli import ConnectorV2

    class Trips(ConnectorV2):
        def __call__(self, *, batch, **kwargs):
            raise KeyError("no such thing")

    class Files(ConnectorV2):
        def __call__(self, *, batch, episodes, **kwargs):
            for episode in self.single_agent_episode_iterator(episodes):
                self.add_batch_item(batch, "mine", episode.get_observations(0), episode)
            return batch

    class Narrows(ConnectorV2):
        def __call__(self, *, batch, **kwargs):
            batch["obs"] = batch["obs"][:, :1]
            return batch

    class Puts(ConnectorV2):
        def __init__(self, what="", **kwargs):
            super().__init__(**kwargs)
            self.what, self.calls = what, 0
        def __call__(self, *, batch, **kwargs):
            self.calls += 1
            rows = len(batch["obs"])
            batch["mine"] = {
                "a number": 3.0,
                "a row less": torch.zeros(rows - 1),
                "a set": {1, 2},
                "bfloat16": torch.zeros(rows, dtype=torch.bfloat16),
                "no elements": torch.zeros(rows, 0),
                "text": ["a"] * rows,
                "another dtype later": torch.zeros(rows, dtype=torch.int32 if self.calls > 1 else torch.int64),
            }[self.what]
            return batch
        def get_state(self):
            return {}  # the calls are nothing learned

    class Remembers(ConnectorV2):
        def __call__(self, *, batch, **kwargs):
            return batch
        def get_state(self):
            return {"it": object()}
"""
NO_COLUMNS = ("a number", "a row less", "a set", "bfloat16", "another dtype later")


@pytest.fixture(autouse=True)
def my_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A module `refused_pieces` in the current folder."""
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "refused_pieces.py").write_text(textwrap.dedent(PIECES), encoding="utf-8")
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.syspath_prepend(str(tmp_path / "here"))


def use(name: str, options: str = "") -> str:
    """The default pieces, then that one."""
    default = "".join(f'[[pieces]]\nname = "{snake(piece)}"\n' for piece in LEARNER_DEFAULTS)
    return f'defaults = false\n{default}[[pieces]]\nuse = "refused_pieces:{name}"\n{options}'


@pytest.mark.parametrize(
    ("piece", "kind"),
    [
        (use("Trips"), BadPiece),
        (use("Files"), BadPiece),
        (use("Narrows"), BadConfig),
        (use("Remembers"), BadPiece),
        *((use("Puts", f'what = "{what}"\n'), BadPiece) for what in NO_COLUMNS),
    ],
)
def test_a_piece_that_gives_no_batch_for_files_is_named_and_nothing_is_written(
    piece: str,
    kind: type[OfflineCliError],
    episodes: EpisodeBatch,
    dataset: Dataset,
    pipeline_file: Pipeline,
    tmp_path: Path,
) -> None:
    with pytest.raises(kind) as caught:
        apply(dataset(episodes), str(tmp_path / "out"), pipeline=pipeline_file(piece), steps_per_batch=14)
    assert kind is BadConfig or any(
        name in str(caught.value) for name in (piece.split("refused_pieces:")[1].split('"')[0], "'mine'")
    )
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(("what", "format"), [("no elements", "columns"), ("text", "safetensors")])
def test_what_one_format_cannot_hold_the_other_can(
    what: str, format: Any, episodes: EpisodeBatch, dataset: Dataset, pipeline_file: Pipeline, tmp_path: Path
) -> None:
    source, file = dataset(episodes), pipeline_file(use("Puts", f'what = "{what}"\n'))
    other: Any = "safetensors" if format == "columns" else "columns"
    with pytest.raises(BadConfig, match="'mine'") as caught:
        apply(source, str(tmp_path / "out"), pipeline=file, format=format)
    assert f"--format {other}" in caught.value.fix
    assert not (tmp_path / "out").exists()
    done = apply(source, str(tmp_path / "out"), pipeline=file, format=other)
    assert isinstance(done, ApplyResult)
    assert "mine" in done.columns


def test_shapes_that_do_not_fit_are_an_error_before_a_batch_is_made(
    random_batch: Callable[..., EpisodeBatch], dataset: Dataset, pipeline_file: Pipeline, tmp_path: Path
) -> None:
    source = dataset(random_batch(gym.spaces.Discrete(3), gym.spaces.Discrete(2)))
    with pytest.raises(SpaceMismatch, match="FrameStacking") as caught:
        apply(source, str(tmp_path / "out"), pipeline=pipeline_file('[[pieces]]\nname = "frame_stacking"\n'))
    assert "pipeline.toml" in caught.value.where


def test_box_actions_of_unknown_scale_are_refused_with_the_remedy(
    random_batch: Callable[..., EpisodeBatch], dataset: Dataset, pipeline_file: Pipeline, tmp_path: Path
) -> None:
    arm = gym.spaces.Box(-2.0, 2.0, (1,), np.float32)
    source = dataset(random_batch(gym.spaces.Box(-1.0, 1.0, (4,), np.float32), arm), scale="unknown")
    with pytest.raises(BadConfig) as caught:
        apply(source, str(tmp_path / "out"), pipeline=pipeline_file())
    assert "--action-scale" in caught.value.fix
    done = apply(source, str(tmp_path / "out"), pipeline=pipeline_file(), action_scale="normalized")
    assert isinstance(done, ApplyResult)
    assert done.action_scale == "normalized"


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"show": True, "trace": 1},
        {"show": True, "out": "out"},
        {"trace": 0},
        {"out": "out", "steps_per_batch": 0},
        {"out": "SOURCE/batches"},
    ],
)
def test_options_that_make_no_sense_are_refused(
    options: dict[str, Any], episodes: EpisodeBatch, dataset: Dataset, pipeline_file: Pipeline
) -> None:
    source = dataset(episodes)
    given = {name: value.replace("SOURCE", source) if name == "out" else value for name, value in options.items()}
    with pytest.raises(UsageError):
        apply(source, **given, pipeline=pipeline_file())
    assert not Path("out").exists()


def test_no_step_is_no_data_and_a_dataset_is_never_overwritten(
    random_batch: Callable[..., EpisodeBatch], dataset: Dataset, pipeline_file: Pipeline, tmp_path: Path
) -> None:
    source = dataset(random_batch(gym.spaces.Discrete(3), gym.spaces.Discrete(2), lengths=(0, 0)))
    with pytest.raises(NoData):
        apply(source, str(tmp_path / "out"), pipeline=pipeline_file())
    before = sorted(Path(source).rglob("*"))
    with pytest.raises(OutputExists):
        apply(source, source, pipeline=pipeline_file(), overwrite=True)
    assert sorted(Path(source).rglob("*")) == before

"""What `apply` refuses: each with the piece, the place and the remedy, and with nothing written."""

from __future__ import annotations

import shutil
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from offline_cli import apply
from offline_cli.applying.apply import ApplyResult
from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.errors import (
    BadConfig,
    BadPiece,
    NoData,
    OutputExists,
    SpaceMismatch,
    UnknownPiece,
    UsageError,
)

Dataset = Callable[..., str]
Pipeline = Callable[..., str]
PIECES = """
    import numpy as np
    import torch
    from offline_cli import ConnectorV2

    class GivesNothing(ConnectorV2):
        def __call__(self, *, batch, **kwargs):
            pass

    class Trips(ConnectorV2):
        def __call__(self, *, batch, **kwargs):
            raise KeyError("no such thing")

    class Narrows(ConnectorV2):
        def __call__(self, *, batch, **kwargs):
            batch["obs"] = batch["obs"][:, :1]
            return batch

    class Loses(ConnectorV2):
        def __call__(self, *, batch, **kwargs):
            batch["rewards"] = batch["rewards"][:-1]
            return batch

    class Puts(ConnectorV2):
        def __init__(self, what="", **kwargs):
            super().__init__(**kwargs)
            self.what, self.calls = what, 0
        def __call__(self, *, batch, **kwargs):
            self.calls += 1
            rows = len(batch["obs"])
            batch["mine"] = {
                "number": 3.0,
                "short": torch.zeros(rows - 1),
                "set": {1, 2},
                "complex": np.zeros(rows, np.complex64),
                "numbers in a list": [1] * rows,
                "bfloat16": torch.zeros(rows, dtype=torch.bfloat16),
                "nothing to store": torch.zeros(rows, 0),
                "text": ["a"] * rows,
                "another dtype later": torch.zeros(rows, dtype=torch.int32 if self.calls > 1 else torch.int64),
                "same memory": batch["obs"],
            }[self.what]
            return batch
        def get_state(self, components=None, **kwargs):
            return {}  # the calls are nothing learned

    class Remembers(ConnectorV2):
        def __call__(self, *, batch, **kwargs):
            return batch
        def get_state(self, components=None, **kwargs):
            return {"it": object()}
"""
AFTER_ALL = 'after = "NumpyToTensor"\n'


@pytest.fixture(autouse=True)
def my_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A module `refused_pieces` in the current folder."""
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "refused_pieces.py").write_text(textwrap.dedent(PIECES), encoding="utf-8")
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.syspath_prepend(str(tmp_path / "here"))


def use(name: str, options: str = "") -> str:
    return f'[[pieces]]\nuse = "refused_pieces:{name}"\n{options}'


def test_a_piece_that_gives_no_batch_is_named(
    episodes: EpisodeBatch, dataset: Dataset, pipeline_file: Pipeline, tmp_path: Path
) -> None:
    with pytest.raises(BadPiece, match="piece GivesNothing gave NoneType, not the batch") as caught:
        apply(dataset(episodes), str(tmp_path / "out"), pipeline=pipeline_file(use("GivesNothing")))
    assert "from episode episode-0 of" in caught.value.where
    assert not (tmp_path / "out").exists()


def test_a_piece_that_raises_is_named_with_the_first_episode(
    episodes: EpisodeBatch, dataset: Dataset, pipeline_file: Pipeline, tmp_path: Path
) -> None:
    with pytest.raises(BadPiece, match="piece Trips raised KeyError: 'no such thing'") as caught:
        apply(dataset(episodes), str(tmp_path / "out"), pipeline=pipeline_file(use("Trips")))
    assert caught.value.where.startswith("piece Trips, train batch from episode episode-0 of")
    assert isinstance(caught.value.__cause__, KeyError)


def test_a_piece_that_loses_a_row_is_an_error(
    episodes: EpisodeBatch, dataset: Dataset, pipeline_file: Pipeline, tmp_path: Path
) -> None:
    file = pipeline_file(use("Loses", 'after = "AddColumnsFromEpisodesToBatch"\n'))
    with pytest.raises(BadPiece, match="columns of different lengths"):
        apply(dataset(episodes), str(tmp_path / "out"), pipeline=file)


@pytest.mark.parametrize(("what", "told"), [("bfloat16", "BFloat16"), ("nothing to store", r"shape \(0,\)")])
def test_what_a_table_cannot_hold_safetensors_can(
    what: str, told: str, episodes: EpisodeBatch, dataset: Dataset, pipeline_file: Pipeline, tmp_path: Path
) -> None:
    source, file = dataset(episodes), pipeline_file(use("Puts", f'{AFTER_ALL}what = "{what}"\n'))
    with pytest.raises(BadConfig, match=rf"no table has column 'mine' of piece Puts: .*{told}") as caught:
        apply(source, str(tmp_path / "out"), pipeline=file)
    assert "--format safetensors" in caught.value.fix
    assert not (tmp_path / "out").exists()
    told_of = apply(source, str(tmp_path / "out"), pipeline=file, format="safetensors")
    assert isinstance(told_of, ApplyResult)
    assert "mine" in told_of.columns


def test_items_that_nobody_stacked_are_refused(
    episodes: EpisodeBatch, dataset: Dataset, pipeline_file: Pipeline, tmp_path: Path
) -> None:
    (Path.cwd() / "filing_pieces.py").write_text(
        textwrap.dedent(
            """
            from offline_cli import ConnectorV2

            class Files(ConnectorV2):
                def __call__(self, *, batch, episodes, **kwargs):
                    for episode in self.single_agent_episode_iterator(episodes):
                        self.add_batch_item(batch, "obs", episode.get_observations(0), episode)
                    return batch
            """
        ),
        encoding="utf-8",
    )
    file = pipeline_file('[[pieces]]\nuse = "filing_pieces:Files"\n', head='kind = "learner"\ndefaults = false')
    with pytest.raises(BadPiece, match="column 'obs', which piece Files put into the batch, holds items by episode"):
        apply(dataset(episodes), str(tmp_path / "out"), pipeline=file)


def test_a_state_that_cannot_be_saved_is_known_before_anything_is_written(
    episodes: EpisodeBatch, dataset: Dataset, pipeline_file: Pipeline, tmp_path: Path
) -> None:
    with pytest.raises(BadPiece, match="the state of piece Remembers cannot be saved: a object cannot be packed"):
        apply(dataset(episodes), str(tmp_path / "out"), pipeline=pipeline_file(use("Remembers")))
    assert not (tmp_path / "out").exists()


def test_shapes_that_do_not_fit_are_an_error_before_data_is_read(
    random_batch: Callable[..., EpisodeBatch], dataset: Dataset, pipeline_file: Pipeline, tmp_path: Path
) -> None:
    source = dataset(random_batch(gym.spaces.Discrete(3), gym.spaces.Discrete(2)))
    shutil.rmtree(Path(source) / "data")
    file = pipeline_file('[[pieces]]\nname = "atari_images"\n')
    with pytest.raises(SpaceMismatch, match=r"AtariImages got observations of Discrete\(3\), and wants ") as caught:
        apply(source, str(tmp_path / "out"), pipeline=file)
    assert "pipeline.toml" in caught.value.where


def test_an_unknown_piece_is_guessed(episodes: EpisodeBatch, dataset: Dataset, pipeline_file: Pipeline, tmp_path: Path) -> None:
    with pytest.raises(BadConfig, match="frame_stacking") as caught:
        apply(dataset(episodes), str(tmp_path / "out"), pipeline=pipeline_file('[[pieces]]\nname = "frame_stackin"\n'))
    assert not isinstance(caught.value, UnknownPiece)  # one error for all mistakes of a file


def test_box_actions_of_unknown_scale_are_refused_with_the_remedy(
    random_batch: Callable[..., EpisodeBatch], dataset: Dataset, pipeline_file: Pipeline, tmp_path: Path
) -> None:
    arm = gym.spaces.Box(-2.0, 2.0, (1,), np.float32)
    source = dataset(random_batch(gym.spaces.Box(-1.0, 1.0, (4,), np.float32), arm), scale="unknown")
    with pytest.raises(BadConfig, match="Box actions of unknown scale") as caught:
        apply(source, str(tmp_path / "out"), pipeline=pipeline_file())
    assert "--action-scale" in caught.value.fix
    told = apply(source, str(tmp_path / "out"), pipeline=pipeline_file(), action_scale="normalized")
    assert isinstance(told, ApplyResult)
    assert told.action_scale == "normalized"


def test_a_source_without_a_step_is_no_data(
    random_batch: Callable[..., EpisodeBatch], dataset: Dataset, pipeline_file: Pipeline, tmp_path: Path
) -> None:
    source = dataset(random_batch(gym.spaces.Discrete(3), gym.spaces.Discrete(2), lengths=(0, 0)))
    with pytest.raises(NoData, match="no episode is in the source"):
        apply(source, str(tmp_path / "out"), pipeline=pipeline_file())
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({}, "nowhere to write to"),
        ({"show": True, "trace": 1}, "two ways to look"),
        ({"show": True, "out": "out"}, "--show writes nothing"),
        ({"trace": 1, "out": "out"}, "--trace writes nothing"),
        ({"trace": 0}, "0 is less than 1"),
        ({"out": "out", "limit": 0}, "0 is less than 1"),
        ({"out": "out", "steps_per_batch": 0}, "0 is less than 1"),
        ({"out": "out", "format": "csv"}, "--format 'csv' is not one of columns, safetensors"),
    ],
)
def test_options_that_make_no_sense_are_refused(
    options: dict[str, Any], told: str, episodes: EpisodeBatch, dataset: Dataset, pipeline_file: Pipeline
) -> None:
    with pytest.raises(UsageError, match=told):
        apply(dataset(episodes), **options, pipeline=pipeline_file())
    assert not Path("out").exists()


def test_an_output_inside_the_source_is_refused(episodes: EpisodeBatch, dataset: Dataset, pipeline_file: Pipeline) -> None:
    source = dataset(episodes)
    with pytest.raises(UsageError, match="the output lies inside the source"):
        apply(source, f"{source}/batches", pipeline=pipeline_file())


def test_a_dataset_is_never_overwritten(episodes: EpisodeBatch, dataset: Dataset, pipeline_file: Pipeline) -> None:
    source = dataset(episodes)
    before = sorted(Path(source).rglob("*"))
    with pytest.raises(OutputExists):
        apply(source, source, pipeline=pipeline_file(), overwrite=True)
    assert sorted(Path(source).rglob("*")) == before

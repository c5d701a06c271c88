"""One writer of train batches at a time: a second one is told, and what a killed one left is overwritten, never read."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from edited_json import tell, told_in
from folder_content import content

from offline_cli import apply, convert, repair
from offline_cli.applying.batch_folder import BatchFolder
from offline_cli.datasets.dataset import Dataset
from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.errors import Locked, NoData, OutputExists, Uncommitted

Apply = Callable[..., Any]


@pytest.fixture
def source(episodes: EpisodeBatch, dataset: Callable[..., str]) -> str:
    """A dataset of which `applied` makes three batches."""
    return dataset(episodes)


@pytest.fixture
def applied(source: str, pipeline_file: Callable[..., str]) -> Apply:
    """Applies a pipeline that learns to `source`."""
    file = pipeline_file('[[pieces]]\nname = "mean_std_filter"\n')
    return lambda out, **options: apply(source, str(out), pipeline=file, steps_per_batch=14, **options)


@pytest.fixture
def amid(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], object]], None]:
    """Has something done before the last of three batches is written, once."""

    def arrange(do: Callable[[], object]) -> None:
        write = BatchFolder.write

        def watched(self: BatchFolder, *given: Any, **named: Any) -> None:
            if len(self.files) == 2:
                monkeypatch.setattr(BatchFolder, "write", write)
                do()
            write(self, *given, **named)

        monkeypatch.setattr(BatchFolder, "write", watched)

    return arrange


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_second_writer_gets_exit_5_and_the_first_goes_on(
    overwrite: bool, applied: Apply, amid: Callable[..., None], tmp_path: Path
) -> None:
    told: list[Locked] = []

    def second() -> None:
        with pytest.raises(Locked) as caught:
            applied(tmp_path / "out", overwrite=overwrite)
        told.append(caught.value)

    amid(second)
    assert applied(tmp_path / "out").batches == 3
    assert [error.exit_code for error in told] == [5]
    assert len(content(tmp_path / "out")) == 6  # the folder of the batches, and three of these


@pytest.fixture
def killed(applied: Apply, amid: Callable[..., None], tmp_path: Path) -> Path:
    """What is there while the last batch is to be written: what a kill leaves at that moment."""
    amid(lambda: shutil.copytree(tmp_path / "whole", tmp_path / "killed"))
    applied(tmp_path / "whole")
    note = tmp_path / "killed" / "_writing.json"
    tell(note, {**told_in(note), "pid": 1 << 22})  # of no process
    return tmp_path / "killed"


def test_what_a_killed_writer_left_is_nobodys_data(killed: Path, source: str) -> None:
    before = content(killed)
    assert "_writing.json" in before
    assert "batches.json" not in before
    with pytest.raises(Uncommitted) as read:
        Dataset.open(str(killed))
    with pytest.raises(NoData) as repaired:
        repair(str(killed))
    with pytest.raises(OutputExists) as replaced:
        convert(source, str(killed), overwrite=True)
    assert [caught.value.exit_code for caught in (read, repaired, replaced)] == [3, 3, 2]
    assert content(killed) == before


def test_repair_refuses_train_batches_that_are_whole(applied: Apply, tmp_path: Path) -> None:
    applied(tmp_path / "out")
    before = content(tmp_path / "out")
    with pytest.raises(NoData):
        repair(str(tmp_path / "out"))
    assert content(tmp_path / "out") == before

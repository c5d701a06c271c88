"""metrics.jsonl: on the disk before the checkpoint that counts its bytes; a row that is lost costs that row alone."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch

from offline_cli.training.checkpoints import TrainState
from offline_cli.training.config import BCConfig
from offline_cli.training.run_folder import RunFolder


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    made = RunFolder(tmp_path / "run")
    made.begin(BCConfig(), {"spaces": 1})
    return made


def watched(monkeypatch: pytest.MonkeyPatch, root: Path) -> list[tuple[str, str]]:
    """What is synced, renamed and removed from now on, in order, by name below `root`."""
    seen: list[tuple[str, str]] = []
    real = {name: getattr(os, name) for name in ("fsync", "replace", "remove", "rmdir")}

    def named(path: Any) -> str:
        return os.path.relpath(os.path.realpath(path), os.path.realpath(root))

    def fsync(handle: int) -> None:
        seen.append(("fsync", named(f"/proc/self/fd/{handle}")))
        real["fsync"](handle)

    def replace(source: str, target: str) -> None:
        seen.append(("replace", named(target)))
        real["replace"](source, target)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(os, "replace", replace)
    for name in ("remove", "rmdir"):
        monkeypatch.setattr(
            os, name, lambda path, name=name, **more: (seen.append((name, named(path))), real[name](path, **more))
        )
    return seen


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="names of open files are not told here")
def test_what_a_checkpoint_needs_is_on_the_disk_before_it_counts_and_before_the_old_one_goes(
    folder: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder.save_checkpoint(TrainState(update=5), {"weights": torch.zeros(4)})
    length = folder.append_metrics({"update": 7})
    seen = watched(monkeypatch, Path(folder.url))
    folder.save_checkpoint(TrainState(update=10, metrics_bytes=length), {"weights": torch.zeros(4)})
    commit = seen.index(("replace", "checkpoints/000000010/state.json"))
    gone = seen.index(("remove", "checkpoints/000000005/state.json"))
    before = [("fsync", "metrics.jsonl"), ("fsync", "."), ("replace", "checkpoints/000000010/tensors.safetensors")]
    assert [seen.index(one) < commit for one in before] == [True] * 3
    kept = [name for what, name in seen[commit:gone] if what == "fsync"]
    assert kept == ["checkpoints/000000010", "checkpoints", "."]


def test_rows_go_on_after_half_a_row_on_a_line_of_their_own(folder: RunFolder, caplog: pytest.LogCaptureFixture) -> None:
    folder.append_metrics({"update": 1})
    length = folder.append_metrics({"update": 2})
    file = Path(folder.url) / "metrics.jsonl"
    file.write_bytes(file.read_bytes()[:-4])
    folder.go_on(BCConfig(), length)
    assert folder.append_metrics({"update": 3}) == file.stat().st_size
    assert folder.metrics() == [{"update": 1}, {"update": 3}]
    assert not caplog.records


def test_rows_that_cannot_be_read_are_counted(folder: RunFolder, caplog: pytest.LogCaptureFixture) -> None:
    folder.append_metrics({"update": 1})
    with (Path(folder.url) / "metrics.jsonl").open("ab") as file:
        file.write(b'{"upd\n')
    folder.append_metrics({"update": 2})
    assert folder.metrics() == [{"update": 1}, {"update": 2}]
    assert [record.message for record in caplog.records] == [
        f"warning: 1 rows of {folder.url}/metrics.jsonl cannot be read, and are left out"
    ]

"""Run folders: what may be written where, and that a kill at any moment leaves a checkpoint to go on from."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from offline_cli.errors import BadData, StorageError
from offline_cli.training.checkpoints import Best, TrainState
from offline_cli.training.config import BCConfig
from offline_cli.training.run_folder import RunFolder


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    made = RunFolder(tmp_path / "run")
    made.begin(BCConfig(), {"spaces": 1})
    return made


def tensors(value: float) -> dict[str, torch.Tensor]:
    return {"weights": torch.full((4,), value), "step": torch.tensor(value, dtype=torch.float64)}


def test_a_checkpoint_comes_back_as_it_was(folder: RunFolder) -> None:
    state = TrainState(update=7, loss=0.1, best=Best(3.0, 5, {"x": 1.0}), figures={"x": 2.0}, stopped_by="bound")
    folder.save_checkpoint(state, tensors(2.5))
    loaded = folder.load_checkpoint()
    assert loaded is not None
    assert loaded[0] == state
    assert all(torch.equal(loaded[1][name], tensor) for name, tensor in tensors(2.5).items())


def test_only_the_newest_checkpoint_is_kept_even_of_one_update(folder: RunFolder) -> None:
    for update, value in ((5, 1.0), (10, 2.0), (10, 3.0)):
        folder.save_checkpoint(TrainState(update=update), tensors(value))
    loaded = folder.load_checkpoint()
    assert loaded is not None
    assert loaded[1]["weights"][0] == 3.0
    assert len(list((Path(folder.url) / "checkpoints").iterdir())) == 1


class Killed(BaseException):
    """Not an Exception, so that nothing in between catches it, as nothing catches a kill."""


def _operations(monkeypatch: pytest.MonkeyPatch, allowed: int) -> None:
    """Let that many operations on files succeed, then die as a killed process would."""
    left = [allowed]

    def counted(module: Any, name: str) -> None:
        real = getattr(module, name)

        def operation(*args: Any, **kwargs: Any) -> Any:
            if left[0] == 0:
                raise Killed
            left[0] -= 1
            return real(*args, **kwargs)

        monkeypatch.setattr(module, name, operation)

    for name in ("replace", "fsync", "truncate", "remove", "mkdir"):
        counted(os, name)
    counted(shutil, "rmtree")


@pytest.mark.parametrize("allowed", range(12))
def test_dying_inside_a_save_leaves_the_checkpoint_before_or_after_it(
    folder: RunFolder, monkeypatch: pytest.MonkeyPatch, allowed: int
) -> None:
    folder.save_checkpoint(TrainState(update=5), tensors(1.0))
    with monkeypatch.context() as patched:
        _operations(patched, allowed)
        with contextlib.suppress(Killed):
            folder.save_checkpoint(TrainState(update=10), tensors(2.0))
    loaded = folder.load_checkpoint()
    assert loaded is not None
    assert (loaded[0].update, float(loaded[1]["weights"][0])) in {(5, 1.0), (10, 2.0)}
    folder.save_checkpoint(TrainState(update=15), tensors(3.0))
    assert [path.name for path in (Path(folder.url) / "checkpoints").iterdir()] == ["000000015"]


def test_metrics_are_cut_back_to_the_checkpoint(folder: RunFolder) -> None:
    length = folder.append_metrics({"update": 1})
    folder.append_metrics({"update": 2})
    folder.go_on(BCConfig(), length)
    assert folder.metrics() == [{"update": 1}]


@pytest.mark.parametrize("allowed", range(20))
def test_dying_while_a_run_is_replaced_never_leaves_an_old_checkpoint_under_a_new_config(
    folder: RunFolder, monkeypatch: pytest.MonkeyPatch, allowed: int
) -> None:
    folder.save_checkpoint(TrainState(update=5), tensors(1.0))
    folder.finish(tensors(1.0), {"loss": 1.0})
    with monkeypatch.context() as patched:
        _operations(patched, allowed)
        with contextlib.suppress(Killed):
            folder.begin(BCConfig(lr=1.0), {"spaces": 2})
    folder.claim(resume=True, overwrite=False)
    folder.claim(resume=False, overwrite=True)
    if folder.resolved_config().lr == 1.0:
        assert folder.load_checkpoint() is None
        assert not (Path(folder.url) / "policy.safetensors").exists()
    folder.begin(BCConfig(lr=1.0), {"spaces": 2})
    assert sorted(path.name for path in Path(folder.url).iterdir()) == ["checkpoints", "config.toml", "policy.json"]


def test_a_full_disk_is_a_storage_error_that_names_the_file(folder: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(StorageError, match="no space left") as caught:
        folder.save_checkpoint(TrainState(update=5), tensors(1.0))
    assert caught.value.where.startswith(str(Path(folder.url)))


def test_other_files_in_a_run_survive_overwriting(folder: RunFolder) -> None:
    (Path(folder.url) / "notes.txt").write_text("mine")
    folder.save_checkpoint(TrainState(update=5), tensors(1.0))
    folder.begin(BCConfig(lr=1.0), {})
    assert folder.load_checkpoint() is None
    assert folder.resolved_config().lr == 1.0
    assert (Path(folder.url) / "notes.txt").read_text() == "mine"


def test_a_broken_checkpoint_is_named(folder: RunFolder) -> None:
    folder.save_checkpoint(TrainState(update=5), tensors(1.0))
    (Path(folder.url) / "checkpoints" / "000000005" / "state.json").write_text("{")
    with pytest.raises(BadData, match=r"state\.json cannot be read"):
        folder.load_checkpoint()


def test_a_cut_tensor_file_is_named(folder: RunFolder) -> None:
    folder.save_checkpoint(TrainState(update=5), tensors(1.0))
    file = Path(folder.url) / "checkpoints" / "000000005" / "tensors.safetensors"
    file.write_bytes(file.read_bytes()[:20])
    with pytest.raises(BadData, match="cannot be read"):
        folder.load_checkpoint()

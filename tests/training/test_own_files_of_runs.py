"""What train-bc removes and replaces: what a trainer wrote, by name and content, and nothing else; links are never followed."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from folder_content import content

from offline_cli.errors import OutputExists
from offline_cli.training.run_folder import RunFolder
from offline_cli.training.train import train_bc

Write = Callable[..., Path]
HOW = ({"resume": True}, {"overwrite": True})


@pytest.fixture
def data(write_dataset: Write) -> Path:
    return write_dataset()


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the first test leaves its run for the others: data that is written anew is the same data."""
    return tmp_path_factory.mktemp("trained") / "run"


@pytest.fixture
def run(data: Path, trained: Path, tmp_path: Path) -> Path:
    """A finished run of 4 updates."""
    if not trained.exists():
        train_bc(data, trained, updates=4)
    return Path(shutil.copytree(trained, tmp_path / "run"))


def refused(data: Path, run: Path, how: dict[str, bool], *, match: str) -> None:
    """Training there is exit 2, and changes nothing."""
    before = content(run)
    with pytest.raises(OutputExists, match=match) as caught:
        train_bc(data, run, updates=8, **how)
    assert caught.value.exit_code == 2
    assert content(run) == before


def again(data: Path, run: Path, how: dict[str, bool]) -> None:
    assert train_bc(data, run, updates=8, **how).updates == 8


@pytest.mark.parametrize("how", HOW)
def test_anybodys_config_makes_no_run(data: Path, tmp_path: Path, how: dict[str, bool]) -> None:
    site = tmp_path / "site"
    (site / "checkpoints" / "000000100").mkdir(parents=True)
    (site / "checkpoints" / "000000100" / "model.bin").write_text("weeks of work")
    (site / "config.toml").write_text('title = "mine"\nlr = 0.1\nhidden = [8]\nbatch_size = 4\n')
    (site / "_part-1").write_text("mine")
    refused(data, site, how, match="something else")


@pytest.mark.parametrize(("how", "name"), [*zip(HOW, ("000000004-best", "_part-old"), strict=True)])
def test_copies_of_checkpoints_stay(data: Path, run: Path, how: dict[str, bool], name: str) -> None:
    copied = shutil.copytree(run / "checkpoints" / "000000004", run / "checkpoints" / name)
    before = content(copied)
    again(data, run, how)
    assert content(copied) == before
    loaded = RunFolder(run).load_checkpoint()
    assert loaded is not None
    assert loaded[0].update == 8


@pytest.mark.parametrize("how", HOW)
def test_the_users_own_files_stay_wherever_they_lie(data: Path, run: Path, how: dict[str, bool]) -> None:
    own = ["notes.txt", "_part-notes", "checkpoints/why.md", "checkpoints/000000004/why.md"]
    for name in own:
        (run / name).write_text("mine")
    again(data, run, how)
    assert [name for name in own if (run / name).read_text() != "mine"] == []
    assert not (run / "checkpoints" / "000000004" / "state.json").exists()


@pytest.mark.parametrize("how", HOW)
def test_half_written_files_of_a_killed_trainer_go(data: Path, run: Path, how: dict[str, bool]) -> None:
    parts = ["_part-0123abcd-state.json", "_part-0123abcd-policy.safetensors"]
    (run / parts[0]).write_bytes(b'{"sha2')
    (run / parts[1]).write_bytes(b"")
    again(data, run, how)
    assert [name for name in parts if (run / name).exists()] == []


@pytest.mark.parametrize(("how", "name"), [*zip(HOW, ("checkpoints", "metrics.jsonl"), strict=True)])
def test_links_under_a_runs_names_are_refused(data: Path, run: Path, how: dict[str, bool], name: str, tmp_path: Path) -> None:
    shutil.move(run / name, tmp_path / "moved")
    (run / name).symlink_to(tmp_path / "moved")
    elsewhere = content(tmp_path / "moved") if name == "checkpoints" else (tmp_path / "moved").read_bytes()
    refused(data, run, how, match="symbolic link")
    assert elsewhere == (content(tmp_path / "moved") if name == "checkpoints" else (tmp_path / "moved").read_bytes())


def test_a_run_link_that_the_user_names_is_followed(data: Path, run: Path, tmp_path: Path) -> None:
    (tmp_path / "shortcut").symlink_to(run)
    again(data, tmp_path / "shortcut", {"resume": True})
    assert (run / "checkpoints" / "000000008").is_dir()


def test_a_run_with_a_damaged_checkpoint_can_be_replaced(data: Path, run: Path) -> None:
    (run / "checkpoints" / "000000004" / "state.json").write_bytes(b"\xff" * 20)
    again(data, run, {"overwrite": True})
    assert [path.name for path in (run / "checkpoints").iterdir()] == ["000000008"]


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes here")
@pytest.mark.parametrize("name", ["policy.json", "metrics.jsonl"])
def test_a_pipe_under_a_runs_name_is_refused_and_not_replaced(data: Path, run: Path, name: str) -> None:
    (run / name).unlink()
    os.mkfifo(run / name)
    refused(data, run, {"overwrite": True}, match=name)

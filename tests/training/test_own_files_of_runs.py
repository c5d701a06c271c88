"""What train-bc removes and replaces: what a trainer wrote, by name and content, and nothing else; links are never followed."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from folder_content import content

from offline_cli.datasets.ownership import head
from offline_cli.episodes.codec.arrays import pack
from offline_cli.errors import OutputExists
from offline_cli.files.locations import open_location
from offline_cli.training.run_folder import RunFolder
from offline_cli.training.run_lock import refuse_foreign
from offline_cli.training.train import train_bc

Write = Callable[..., Path]
OLD_RUN = Path(__file__).parents[1] / "testdata" / "run_by_255"
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


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("name", ["keep-best", "000000004-best", "000000004.bak", "best", "_part-old"])
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
    own = ["notes.txt", "_part-notes", "_part-0123abcd-thesis.json", "checkpoints/why.md", "checkpoints/000000004/why.md"]
    for name in own:
        (run / name).write_text("mine")
    again(data, run, how)
    assert [name for name in own if (run / name).read_text() != "mine"] == []
    assert not (run / "checkpoints" / "000000004" / "state.json").exists()


@pytest.mark.parametrize("how", HOW)
def test_half_written_files_of_a_killed_trainer_go(data: Path, run: Path, how: dict[str, bool]) -> None:
    parts = ["_part-0123abcd-state.json", "_part-0123abcd-policy.safetensors", "_part-tensors.safetensors"]
    (run / parts[0]).write_bytes(b'{"sha2')
    (run / parts[1]).write_bytes(b"")
    (run / parts[2]).write_bytes(bytes(100))
    again(data, run, how)
    assert [name for name in parts if (run / name).exists()] == []


@pytest.mark.parametrize("how", HOW)
def test_what_has_the_name_of_a_part_and_other_content_stays(data: Path, run: Path, how: dict[str, bool]) -> None:
    (run / "_part-0123abcd-state.json").write_text("dear diary")
    (run / "elsewhere").write_text("{")
    (run / "_part-89abcdef-state.json").symlink_to(run / "elsewhere")
    again(data, run, how)
    assert (run / "_part-0123abcd-state.json").read_text() == "dear diary"
    assert (run / "_part-89abcdef-state.json").is_symlink()
    assert (run / "elsewhere").exists()


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("name", ["checkpoints", "metrics.jsonl", "policy.safetensors", "result.json", "config.toml"])
def test_links_under_a_runs_names_are_refused(data: Path, run: Path, how: dict[str, bool], name: str, tmp_path: Path) -> None:
    shutil.move(run / name, tmp_path / "moved")
    (run / name).symlink_to(tmp_path / "moved")
    elsewhere = content(tmp_path / "moved") if name == "checkpoints" else (tmp_path / "moved").read_bytes()
    refused(data, run, how, match="symbolic link")
    assert elsewhere == (content(tmp_path / "moved") if name == "checkpoints" else (tmp_path / "moved").read_bytes())


@pytest.mark.parametrize("how", HOW)
def test_a_linked_checkpoint_is_refused(data: Path, run: Path, how: dict[str, bool], tmp_path: Path) -> None:
    shutil.move(run / "checkpoints" / "000000004", tmp_path / "moved")
    (run / "checkpoints" / "000000004").symlink_to(tmp_path / "moved")
    refused(data, run, how, match="000000004")
    assert (tmp_path / "moved" / "state.json").exists()


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("name", ["result.json", "metrics.jsonl", "policy.safetensors", "curve.png"])
def test_other_content_under_a_runs_names_is_refused(data: Path, run: Path, how: dict[str, bool], name: str) -> None:
    (run / name).write_text("my measurements, of a year")
    refused(data, run, how, match=f"{name} is not of the run")


@pytest.mark.parametrize("how", HOW)
def test_a_folder_with_the_name_of_a_checkpoint_alone_is_refused(data: Path, run: Path, how: dict[str, bool]) -> None:
    (run / "checkpoints" / "000000999").mkdir()
    (run / "checkpoints" / "000000999" / "state.json").write_text("a state of the union")
    refused(data, run, how, match="000000999")


def test_a_run_link_that_the_user_names_is_followed(data: Path, run: Path, tmp_path: Path) -> None:
    (tmp_path / "shortcut").symlink_to(run)
    again(data, tmp_path / "shortcut", {"resume": True})
    assert (run / "checkpoints" / "000000008").is_dir()


def test_a_run_of_an_earlier_version_is_replaced(data: Path, tmp_path: Path) -> None:
    run = Path(shutil.copytree(OLD_RUN, tmp_path / "old"))
    again(data, run, {"overwrite": True})
    assert sorted(path.name for path in (run / "checkpoints").iterdir()) == ["000000008"]


@pytest.mark.parametrize("damaged", ["policy.json", "config.toml"])
def test_a_run_with_one_damaged_file_is_still_one(data: Path, run: Path, damaged: str) -> None:
    (run / damaged).write_bytes(b"\xff" * 20)
    again(data, run, {"overwrite": True})


def test_a_run_with_a_damaged_checkpoint_can_be_replaced(data: Path, run: Path) -> None:
    (run / "checkpoints" / "000000004" / "state.json").write_bytes(b"\xff" * 20)
    again(data, run, {"overwrite": True})
    assert [path.name for path in (run / "checkpoints").iterdir()] == ["000000008"]


@pytest.mark.parametrize("how", HOW)
def test_a_finished_run_without_seals_below_a_long_path_is_a_run(data: Path, run: Path, how: dict[str, bool]) -> None:
    told = json.loads((run / "result.json").read_text())
    del told["sha256"]
    (run / "result.json").write_text(json.dumps({**told, "run": "/" + "a" * 1000}) + "\n")
    again(data, run, how)


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize(("name", "at"), [("metrics.jsonl", 0), ("policy.safetensors", 8)])
def test_one_damaged_byte_in_front_makes_a_runs_file_nobody_elses(
    data: Path, run: Path, how: dict[str, bool], name: str, at: int
) -> None:
    damage(run / name, at)
    again(data, run, how)


@pytest.mark.parametrize("name", ["metrics.jsonl", "policy.safetensors", "curve.png", "connectors.msgpack", "result.json"])
def test_a_damaged_byte_anywhere_in_front_leaves_a_file_the_runs(run: Path, name: str) -> None:
    if name == "connectors.msgpack":
        (run / name).write_bytes(pack({"NormalizeObservations": {"mean": [0.0]}}))
    for at in range(9):
        damage(run / name, at)
        refuse_foreign(open_location(run), "_training.json")
        damage(run / name, at)  # as it was


def damage(file: Path, at: int) -> None:
    whole = bytearray(file.read_bytes())
    whole[at] ^= 0xFF
    file.write_bytes(whole)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes here")
@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("name", ["state.json", "tensors.safetensors"])
def test_a_pipe_in_a_checkpoint_is_refused_and_not_waited_for(data: Path, run: Path, how: dict[str, bool], name: str) -> None:
    (run / "checkpoints" / "000000050").mkdir()
    os.mkfifo(run / "checkpoints" / "000000050" / name)
    refused(data, run, how, match="000000050")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes here")
@pytest.mark.parametrize("name", ["policy.json", "metrics.jsonl"])
def test_a_pipe_under_a_runs_name_is_refused_and_not_replaced(data: Path, run: Path, name: str) -> None:
    (run / name).unlink()
    os.mkfifo(run / name)
    refused(data, run, {"overwrite": True}, match=name)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes here")
def test_a_pipe_has_no_first_bytes(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert head(open_location(tmp_path / "pipe")) == b""

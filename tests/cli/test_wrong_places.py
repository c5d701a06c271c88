"""What a place is called that is not what was meant: a run of train-bc in place of recordings, a link without its target."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Call = Callable[..., Any]


@pytest.fixture
def run_folder(call: Call, recording: Path, tmp_path: Path) -> Path:
    run = tmp_path / "runs" / "first"
    done = call("train-bc", recording, "--out", run, "--updates", "2", "--quiet")
    assert done.exit_code == 0, done.stderr
    return run


def test_a_run_of_train_bc_is_called_that_by_every_command_that_reads_recordings(
    call_json: Call, run_folder: Path, tmp_path: Path
) -> None:
    pipeline = tmp_path / "p.toml"
    pipeline.write_text('kind = "learner"\ndefaults = true\n', encoding="utf-8")
    commands: list[tuple[Any, ...]] = [
        ("inspect", run_folder),
        ("inspect", run_folder.parent),  # a folder of runs
        ("train-bc", run_folder, "--out", tmp_path / "R", "--updates", "2"),
        ("convert", run_folder, "--out", tmp_path / "D"),
        ("apply", run_folder, "--pipeline", pipeline, "--out", tmp_path / "B"),
    ]
    for command in commands:
        code, told = call_json(*command)
        error = told["error"]
        assert (code, error["code"], error["what"]) == (3, "no-data", "this is a run of train-bc, not recordings"), command
        assert error["where"] == str(run_folder)
        for wanted in ("evaluate", "record ENV --policy", "--resume", str(run_folder)):
            assert wanted in error["fix"]
    code, told = call_json("validate", run_folder)
    assert (code, [problem["code"] for problem in told["problems"]]) == (3, ["unreadable-source"])
    assert "this is a run of train-bc" in told["problems"][0]["what"]


LINKS: dict[str, tuple[str, list[str]]] = {
    "an entry of a folder": ("recording/z.parquet", ["inspect", "{recording}"]),
    "a mapping": ("m.toml", ["convert", "{recording}", "--out", "{tmp}/D", "--mapping", "{link}"]),
    "a run folder": ("run", ["evaluate", "{link}", "--env", "CartPole-v1"]),
    "a policy file": (
        "model.zip",
        ["record", "CartPole-v1", "--policy", "sb3:{link}", "--episodes", "1", "--out", "{tmp}/D"],
    ),
}


@pytest.mark.parametrize("place", LINKS)
def test_a_link_without_its_target_is_called_that(place: str, call_json: Call, recording: Path, tmp_path: Path) -> None:
    name, words = LINKS[place]
    link, target = tmp_path / name, tmp_path / "gone" / "target"
    link.symlink_to(target)
    code, told = call_json(*(word.format(link=link, recording=recording, tmp=tmp_path) for word in words))
    assert (code, told["error"]["code"]) == (5, "storage-not-found"), told
    assert told["error"]["what"] == f"{link} is a link, and its target {target} does not exist"
    assert told["error"]["where"] == str(link)

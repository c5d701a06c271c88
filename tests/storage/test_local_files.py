"""Pipes and devices in the place of files are refused by name, and never waited for."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from offline_cli.datasets.writer import DatasetWriter
from offline_cli.errors import BadData, StorageError, StorageNotFound
from offline_cli.storage.locations import open_location
from offline_cli.storage.staging import whole_file

REFUSED = "a pipe, not a file"
Run = Callable[..., subprocess.CompletedProcess[str]]
pytestmark = pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no named pipes")


@pytest.fixture
def dataset(tmp_path: Path, make_batch: Callable[..., Any]) -> Path:
    """Two shards of one episode each."""
    writer = DatasetWriter(
        open_location(tmp_path / "D"),
        format="columns",
        observation_space=spaces.Box(-1, 1, (4,), np.float32),
        action_space=spaces.Discrete(3),
        action_scale="env",
        max_rows_per_file=1,
    )
    with writer:
        writer.write(make_batch((1, 1)))
        writer.commit()
    return tmp_path / "D"


def instead(path: Path) -> None:
    """A named pipe in the place of a file."""
    path.unlink()
    os.mkfifo(path)


@pytest.fixture
def run(warm_commands: Path) -> Run:
    """A function that runs `offline-cli ARGS...`."""

    def run(*args: Any) -> subprocess.CompletedProcess[str]:
        command = [warm_commands / "offline-cli", *map(str, args)]
        return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60, stdin=subprocess.DEVNULL)

    return run


@pytest.mark.parametrize("way", ["open", "read_bytes", "whole"])
@pytest.mark.parametrize("kind", ["pipe", "socket", "device", "link to a device"])
def test_what_is_no_file_is_refused_by_its_kind(tmp_path: Path, kind: str, way: str) -> None:
    path = tmp_path / "x"
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "socket":
        os.chdir(tmp_path)
        socket.socket(socket.AF_UNIX).bind("x")
    elif kind == "device":
        path = Path("/dev/zero")
    else:
        path.symlink_to("/dev/zero")
    place = open_location(path)
    read = {"open": place.open, "read_bytes": place.read_bytes, "whole": lambda: whole_file(place)}[way]
    with pytest.raises(BadData, match=f"a {kind.removeprefix('link to a ')}, not a file") as caught:
        read()
    assert caught.value.where == str(path)


def test_files_folders_and_nothing_are_what_they_were(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"bytes")
    assert open_location(tmp_path / "x").read_bytes() == b"bytes"
    with open_location(tmp_path / "x").open() as file:
        assert (file.read(2), file.seek(0), file.read()) == (b"by", 0, b"bytes")
    with pytest.raises(StorageNotFound):
        open_location(tmp_path / "y").read_bytes()
    with pytest.raises(StorageError, match="it is a folder"):
        open_location(tmp_path).read_bytes()


@pytest.mark.integration
@pytest.mark.parametrize(
    ("name", "command", "told"),
    [
        ("manifest.json", "inspect", REFUSED),
        ("shard", "convert", REFUSED),
    ],
)
def test_a_pipe_in_a_dataset_folder_ends_a_command_with_exit_3(
    dataset: Path, run: Run, tmp_path: Path, name: str, command: str, told: str
) -> None:
    place = sorted((dataset / "data").iterdir())[1] if name == "shard" else dataset / name
    place.touch()
    instead(place)
    done = run(command, dataset, *(("--out", tmp_path / "out") if command in ("convert", "train-bc") else ()))
    assert (done.returncode, told in done.stderr) == (3, True), done.stderr


@pytest.mark.integration
def test_a_pipe_as_a_source_ends_a_command_with_exit_3(dataset: Path, run: Run, tmp_path: Path) -> None:
    folder = tmp_path / "recordings"
    shutil.copytree(dataset / "data", folder)
    os.mkfifo(folder / "x.parquet")
    done = run("inspect", folder)
    assert (done.returncode, REFUSED in done.stderr) == (3, True), done.stderr


@pytest.mark.integration
def test_an_output_that_is_a_pipe_is_refused(dataset: Path, run: Run, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "out")
    assert run("convert", dataset, "--out", tmp_path / "out").returncode in (2, 5)

"""Files of this machine: pipes and devices are refused, and temporary bytes come back as they were."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from offline_cli import convert
from offline_cli.errors import BadData, StorageError
from offline_cli.storage.local_files import TempFile
from offline_cli.storage.locations import open_location
from offline_cli.storage.staging import whole_file

with_pipes = pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no named pipes")


@with_pipes
@pytest.mark.parametrize("kind", ["pipe", "device", "link to a device"])
def test_what_is_no_file_is_refused(tmp_path: Path, kind: str) -> None:
    path = Path("/dev/zero") if kind == "device" else tmp_path / "x"
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "link to a device":
        path.symlink_to("/dev/zero")
    place = open_location(path)
    reads: list[Any] = [place.open, place.read_bytes, lambda: whole_file(place)]
    for read in reads:
        with pytest.raises(BadData) as caught:
            read()
        assert caught.value.where == str(path)


@with_pipes
def test_a_pipe_as_a_source_is_bad_data_and_writes_nothing(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "steps.csv")
    with pytest.raises(BadData) as caught:
        convert(str(tmp_path / "steps.csv"), str(tmp_path / "out"))
    assert str(tmp_path / "steps.csv") in caught.value.where
    assert not (tmp_path / "out").exists()


def test_bytes_and_arrays_come_back_as_they_were_in_any_order(tmp_path: Path) -> None:
    numbers, read = np.arange(6.0).reshape(2, 3), np.empty((2, 3))
    with TempFile(str(tmp_path)) as file:
        places = [file.append(b"abc"), file.append(numbers), file.append(b"")]
        assert (places, file.size) == ([0, 3, 51], 51)
        file.read_into(3, read)
        assert file.read(1, 2) == b"bc"
    assert np.array_equal(read, numbers)


def test_a_file_in_place_of_the_folder_is_an_error_with_the_option(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StorageError) as caught, TempFile(str(tmp_path / "file")):
        pass
    assert "--temp-dir" in caught.value.fix

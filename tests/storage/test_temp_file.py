"""Bytes put aside on disk come back as they were, nothing is left of them, and a disk that is full is said to be so."""

from __future__ import annotations

import errno
from pathlib import Path

import numpy as np
import pytest

from offline_cli.errors import StorageError
from offline_cli.storage.local_files import TempFile


def test_bytes_and_arrays_come_back_as_they_were_in_any_order(tmp_path: Path) -> None:
    numbers, read = np.arange(6.0).reshape(2, 3), np.empty((2, 3))
    with TempFile(str(tmp_path)) as file:
        places = [file.append(b"abc"), file.append(numbers), file.append(b"")]
        assert (places, file.size) == ([0, 3, 51], 51)
        file.read_into(3, read)
        assert file.read(1, 2) == b"bc"
    assert np.array_equal(read, numbers)


class Full:
    """A file on a disk that has no room left."""

    def seek(self, offset: int) -> None: ...

    def write(self, data: memoryview) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    def close(self) -> None: ...


def test_a_file_in_place_of_the_folder_is_an_error_with_the_option(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StorageError) as caught, TempFile(str(tmp_path / "file")):
        pass
    assert "--temp-dir" in caught.value.fix


SCRIPT = """
import sys, time
from offline_cli.storage.local_files import TempFile
with TempFile(sys.argv[1]) as file:
    file.append(bytes(100_000))
    print("written", flush=True)
    time.sleep(60)
"""

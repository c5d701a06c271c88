"""Tables put aside on disk come back as they were, and a disk that is full or closed is said to be so."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pyarrow as pa
import pytest

from offline_cli.errors import StorageError
from offline_cli.formats.tables.temp_blocks import TempBlocks

TABLE = pa.table(
    {"id": ["a", None, "b"], "v": pa.array([[1, 2], [3, 4], [5, 6]], pa.list_(pa.int64(), 2)), "raw": [b"", b"x", None]}
)


def test_tables_come_back_as_they_were_in_any_order(tmp_path: Path) -> None:
    with TempBlocks(str(tmp_path)) as blocks:
        places = [blocks.append(TABLE.slice(first)) for first in (0, 1, 2)]
        for first in (2, 0, 1):
            assert blocks.read(places[first]).equals(TABLE.slice(first))


def test_what_compresses_is_written_smaller_and_what_does_not_comes_back_too(tmp_path: Path) -> None:
    plain, noise = pa.table({"v": [0] * 10_000}), pa.table({"v": [os.urandom(80_000)]})
    with TempBlocks(str(tmp_path)) as blocks:
        places = [blocks.append(table) for table in (plain, noise, plain)]
        assert places[0].size < plain.nbytes / 10
        assert [blocks.read(place) for place in places] == [plain, noise, plain]


class Full:
    """A file on a disk that has no room left."""

    def write(self, data: memoryview) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    def close(self) -> None: ...


def test_a_full_disk_is_an_error_of_storage_with_the_option(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with TempBlocks(str(tmp_path)) as blocks:
        monkeypatch.setattr(blocks, "_file", Full())
        with pytest.raises(StorageError, match="no space left") as caught:
            blocks.append(TABLE)
    assert caught.value.where == str(tmp_path)
    assert "--temp-dir" in caught.value.fix
    assert caught.value.exit_code == 5


def test_a_file_in_place_of_the_folder_is_an_error_with_the_option(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StorageError) as caught, TempBlocks(str(tmp_path / "file")):
        pass
    assert "--temp-dir" in caught.value.fix


SCRIPT = """
import sys, time
import pyarrow as pa
from offline_cli.formats.tables.temp_blocks import TempBlocks
with TempBlocks(sys.argv[1]) as blocks:
    blocks.append(pa.table({"v": range(100_000)}))
    print("written", flush=True)
    time.sleep(60)
"""


@pytest.mark.skipif(os.name != "posix", reason="only there is an open file without a name")
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT], ids=lambda number: number.name)
def test_a_killed_process_leaves_nothing(number: signal.Signals, tmp_path: Path) -> None:
    process = subprocess.Popen([sys.executable, "-c", SCRIPT, str(tmp_path)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    assert process.stdout is not None
    assert process.stdout.readline() == b"written\n"
    process.send_signal(number)
    process.wait(timeout=30)
    process.stdout.close()
    deadline = time.monotonic() + 5
    while list(tmp_path.iterdir()) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert list(tmp_path.iterdir()) == []

"""Files of the HDF5 readers, fuzzed: each input is one file, opened by the process that reads for us, and read to the end.

`minari-metadata` is the text beside a good file. Mutations of structure change bytes where HDF5 keeps what it is made of:
signatures, sizes, offsets and types of its objects, rather than values.
"""

from __future__ import annotations

import json
import random
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any
from unittest.mock import patch

from fuzz_mutations import any_bytes
from fuzz_targets import File
from hdf5_trees import FOREIGN, d4rl, robomimic, write

from offline_cli.converting.reading import read_opened
from offline_cli.formats.d3rlpy.reader import open_d3rlpy
from offline_cli.formats.d4rl.reader import open_d4rl
from offline_cli.formats.hdf5 import files as hdf5_files
from offline_cli.formats.listing import Listing
from offline_cli.formats.minari.reader import open_minari
from offline_cli.formats.reader import OpenContext
from offline_cli.formats.robomimic.reader import open_robomimic
from offline_cli.tally import OnError

__all__ = ["MAKERS", "TARGETS", "objects_of_file"]

MARKS = (b"SNOD", b"TREE", b"HEAP", b"OHDR", b"OCHK", b"FRHP", b"GCOL", b"\x89HDF")
REACH = 256  # bytes after a mark
SECONDS = 2  # that libhdf5 may take for a question: it goes round in circles in some damaged files


class Placed(File):
    """A file with a place in a folder, which is not on this machine's disk."""

    def start(self, most: int) -> tuple[bytes, int]:
        return self.data[:most], len(self.data)

    def read_bytes(self) -> bytes:
        return self.data

    @property
    def name(self) -> str:
        return self.url.rpartition("/")[2]


def _read(opened: Callable[..., Any], *files: Placed) -> None:
    """All that `opened` makes of the files."""
    with patch.object(hdf5_files, "SECONDS", SECONDS):
        source = opened(files, OpenContext(Listing(files, "folder")))  # type: ignore[arg-type]  # files of tests
        for batch in read_opened([source], on_error=OnError.SKIP):
            _ = batch.returns


def _of_one(opened: Callable[..., Any]) -> Callable[[bytes], None]:
    return lambda data: _read(opened, Placed(data, "folder/a.hdf5", False))


def minari(data: bytes) -> None:
    metadata = (FOREIGN / "minari_hdf5/data/metadata.json").read_bytes()
    _read(open_minari, Placed(data, "folder/main_data.hdf5", False), Placed(metadata, "folder/metadata.json", False))


def minari_metadata(data: bytes) -> None:
    _read(open_minari, Placed(_minari(), "folder/main_data.hdf5", False), Placed(data, "folder/metadata.json", False))


@cache
def _minari() -> bytes:
    return (FOREIGN / "minari_hdf5/data/main_data.hdf5").read_bytes()


def _d4rl() -> list[bytes]:
    with tempfile.TemporaryDirectory() as folder:
        plain = write(Path(folder) / "a.hdf5", d4rl(30)).read_bytes()
        following = {**d4rl(30), "next_observations": d4rl(30)["observations"]}
        del following["timeouts"]
        return [plain, write(Path(folder) / "b.hdf5", following).read_bytes()]


def _robomimic() -> list[bytes]:
    with tempfile.TemporaryDirectory() as folder:
        return [robomimic(Path(folder) / "a.hdf5", (2, 3)).read_bytes()]


def objects_of_file(data: bytes, rng: random.Random) -> bytes:
    """`data` with some bytes changed soon after a signature of HDF5's, or in the headers at its beginning."""
    work = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 4))):
        mark = rng.choice(MARKS)
        places = [at for at in range(len(work)) if work.startswith(mark, at)] if rng.random() < 0.7 else []
        first = rng.choice(places) if places else rng.randrange(max(1, min(len(work), 4096)))
        at = min(len(work) - 1, first + rng.randrange(REACH)) if work else 0
        if work:
            work[at] = rng.choice((0, 1, 2, 0x7F, 0xFF, rng.randrange(256), (work[at] + 1) & 0xFF))
    return bytes(work)


def json_text(data: bytes, rng: random.Random) -> bytes:
    """Metadata with a value replaced, or bytes changed."""
    try:
        document = json.loads(data)
    except ValueError:
        return any_bytes(data, rng)
    key = rng.choice(sorted(document))
    others = ("", "{", '{"type": "Box", "shape": [1000000000]}', str(document[key])[:-1])
    document[key] = rng.choice((None, -1, 1 << 70, [], {}, *others))
    return json.dumps(document).encode()


TARGETS: dict[str, Callable[[bytes], None]] = {
    "d4rl": _of_one(open_d4rl),
    "robomimic": _of_one(open_robomimic),
    "d3rlpy": _of_one(open_d3rlpy),
    "minari": minari,
    "minari-metadata": minari_metadata,
}

MAKERS: dict[str, Callable[[], list[bytes]]] = {
    "d4rl": _d4rl,
    "robomimic": _robomimic,
    "d3rlpy": lambda: [path.read_bytes() for path in sorted(FOREIGN.glob("d3rlpy_*.h5"))],
    "minari": lambda: [_minari()],
    "minari-metadata": lambda: [(FOREIGN / "minari_hdf5/data/metadata.json").read_bytes()],
}

MUTATORS = {name: json_text if name == "minari-metadata" else objects_of_file for name in TARGETS}

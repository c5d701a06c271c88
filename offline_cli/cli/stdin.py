"""`-` among the sources: what is piped in, kept in a file of its own while the command runs; refuses a terminal, and `-` twice.

A pipe can be read once and not backwards, while readers look at the beginning to tell the format, and read again where they
infer spaces. So the bytes wait in a temporary file, which is removed at the end, however the command ends. Messages and
provenance call it `-`.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from offline_cli.cli.streams import is_terminal
from offline_cli.errors import NoData, UsageError

if TYPE_CHECKING:
    from offline_cli.storage.locations import Location

__all__ = ["STDIN", "with_stdin"]

STDIN = "-"
CHUNK = 1 << 20  # bytes


@contextmanager
def with_stdin(sources: Sequence[str]) -> Iterator[list[str | Location]]:
    """`sources` with a file in place of `-`. Raises UsageError where nothing is piped in, NoData for an empty pipe."""
    if STDIN not in sources:
        yield list(sources)
        return
    if list(sources).count(STDIN) > 1:
        raise UsageError("- is given twice", where="the sources", fix="a pipe can be read once: leave one out")
    if sys.stdin is None or is_terminal(sys.stdin):
        fix = "pipe JSON lines or CSV into the command, or name a file (./- for one that is called so)"
        raise UsageError("- stands for what is piped in, and nothing is", where="stdin", fix=fix)
    with tempfile.TemporaryDirectory(prefix="offline-cli-") as folder:
        piped = _kept(Path(folder) / "stdin")
        yield [piped if source == STDIN else source for source in sources]


def _kept(file: Path) -> Location:
    from offline_cli.storage.locations import Location, open_location

    with file.open("wb") as copy:
        shutil.copyfileobj(sys.stdin.buffer, copy, CHUNK)
    if not file.stat().st_size:
        fix = "check that the command before the pipe wrote anything"
        raise NoData("nothing came through the pipe", where="stdin", fix=fix)
    place = open_location(file)
    return Location(place.fs, place.path, STDIN)

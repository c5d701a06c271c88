"""Open files as Arrow may read them: its threads see no Python file.

Arrow's own threads, which fetch column chunks and decode them, let go of a Python file, or of the bytes that it gave, some time
after the caller has its result. One that does so while the interpreter ends is ended by force, in the middle of C++, and that
aborts the process (`terminate called without an active exception`). So a file of this machine is read by Arrow itself; any
other without Arrow's threads: one that no option keeps them from is waited for (`let_go`).
"""

from __future__ import annotations

import io
import os
import time
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Final
from weakref import ReferenceType

import pyarrow as pa

__all__ = ["arrow_file", "let_go", "threads_may_read"]

LONGEST: Final = 5.0  # seconds to wait for Arrow's threads, which have nothing left to do
PAUSE: Final = 0.0005  # seconds between two looks
SHORTEST: Final = 0.00002  # the first: mostly they are done by then, and small files come by the thousand


def arrow_file(stream: Any) -> AbstractContextManager[Any]:
    """What Arrow should read in place of `stream`, an open file: the same file, opened once more by Arrow, or `stream`."""
    raw = getattr(stream, "raw", None)
    if os.name == "posix" and isinstance(raw, io.FileIO):
        try:
            again: AbstractContextManager[Any] = pa.OSFile(f"/dev/fd/{stream.fileno()}")
        except OSError:  # no /dev here
            pass
        else:
            return again
    return nullcontext(stream)


def threads_may_read(source: Any) -> bool:
    """Whether Arrow's threads may have `source`."""
    return isinstance(source, pa.OSFile)


def let_go(file: ReferenceType[Any]) -> None:
    """Wait until Arrow has let go of a file that nothing else refers to any more."""
    until, pause = time.monotonic() + LONGEST, SHORTEST
    while file() is not None and time.monotonic() < until:
        time.sleep(pause)
        pause = min(2 * pause, PAUSE)

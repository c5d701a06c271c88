"""Whether a failure is this machine's want of memory, threads or processes; refuses to take a broken package for it.

Little of it is a MemoryError: a limit (`ulimit -v`, a container) shows where the system loads a library, starts a thread or
maps a file, and each library says so in its own words. Some go on half loaded, and fail over what they lack: under a limit that
is smaller than what they need, such failures are taken for it too.
"""

from __future__ import annotations

import errno
import re
from pathlib import Path
from typing import Final

from offline_cli.errors import causes

__all__ = ["is_shortage"]

NUMBERS: Final = (errno.ENOMEM, errno.EAGAIN)  # the latter of fork: too many processes
TIGHT: Final = 2 << 30  # bytes of address space, of which torch takes half to be loaded
SAID: Final = re.compile(
    "failed to map segment|cannot allocate memory|can't allocate memory|can't start new thread|not enough memory"
    "|out of memory|std::bad_alloc|bad allocation|unable to allocate|malloc of size .* failed|cannot map zero-fill pages"
    "|Resource temporarily unavailable",
    re.IGNORECASE,
)
"""Words of the dynamic linker, torch, Python, C++, numpy, Arrow and Linux."""


def is_shortage(error: BaseException) -> bool:
    """Whether `error` is, or came from, the system's refusal of memory, of a thread or of a process."""
    return any(_is_one(one) or _is_half_loaded(one) for one in causes(error))


def _is_half_loaded(error: BaseException) -> bool:
    """Whether code of others failed under a limit of address space that is tight."""
    if not isinstance(error, (NameError, AttributeError, SystemError, ImportError)) or not _is_tight():
        return False
    frame = error.__traceback__
    while frame is not None and frame.tb_next is not None:
        frame = frame.tb_next
    package = Path(__file__).resolve().parents[1]
    return isinstance(error, SystemError) or (
        frame is not None and not Path(frame.tb_frame.f_code.co_filename).is_relative_to(package)
    )


def _is_tight() -> bool:
    try:
        import resource
    except ImportError:  # Windows
        return False
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    return limit != resource.RLIM_INFINITY and limit < TIGHT


def _is_one(error: BaseException) -> bool:
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":  # torch's, known without loading torch
        return True
    if isinstance(error, OSError) and error.errno in NUMBERS:
        return True
    return isinstance(error, (ImportError, RuntimeError, OSError, SystemError)) and bool(SAID.search(str(error)))

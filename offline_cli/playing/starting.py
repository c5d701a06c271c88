"""Worker processes started; refuses to call it a bug of ours that the system's fork server is gone."""

from __future__ import annotations

from typing import Any

from offline_cli.engines.watchdog import guards
from offline_cli.errors import BadData

__all__ = ["started"]


def started(process: Any) -> None:
    """Start a process of multiprocessing. Raises BadData where the server that makes it does not answer, or dies over it.

    The server imports what its workers need; one that is killed meanwhile, for memory maybe, ends like a file.
    """
    try:
        process.start()
        guards(process.pid)
    except (EOFError, ConnectionError, FileNotFoundError) as err:  # the last: its socket
        said = f"{type(err).__name__}{f': {err}' if str(err) else ''}"
        what = f"the fork server, which starts worker processes, has died or does not answer ({said})"
        fix = "--num-env-runners 0 --vectorize sync needs no other process; the same command again starts a new server"
        raise BadData(what, where=str(process.name), fix=fix) from err

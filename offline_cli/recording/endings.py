"""How a recording ends before it has all that was asked for, as the error a user meets; refuses to hide what was kept."""

from __future__ import annotations

import signal
from collections.abc import Mapping
from typing import Any

from offline_cli.errors import BadData, Interrupted
from offline_cli.recording.results import RecordResult

__all__ = ["interrupted_twice", "nothing_kept", "partly_kept"]

GO_ON = "the same command with --resume goes on from there"


def partly_kept(result: RecordResult, failure: BadData | None, signal_number: int | None) -> BadData | Interrupted:
    """What is whole has been committed: `result`. `failure`: what environment or policy raised, if they did."""
    kept = f"{result.episodes} whole episodes ({result.steps} steps) are committed"
    details = {"out": result.out, "episodes": result.episodes, "steps": result.steps, "complete": False}
    if failure is None:
        what = f"{_stopped_by(signal_number)}; {kept}"
        return Interrupted(what, where=result.out, fix=GO_ON, details={**details, **_exit_code(signal_number)})
    what, fix = f"{failure.what}; {kept}", f"{failure.fix}; {GO_ON}"
    return type(failure)(what, where=failure.where, fix=fix, details={**failure.details, **details})


def nothing_kept(out: str, failure: BadData | None, signal_number: int | None) -> BadData | Interrupted:
    """No episode was whole, and nothing has been written."""
    if failure is not None:
        return failure
    what = f"{_stopped_by(signal_number)} before an episode was whole; nothing was kept"
    return Interrupted(what, where=out, fix="the same command again", details=_exit_code(signal_number))


def interrupted_twice(out: str) -> Interrupted:
    """A second signal has broken in, and nothing was committed."""
    return Interrupted("interrupted; the shards that were complete are kept", where=out, fix=GO_ON)


def _stopped_by(signal_number: int | None) -> str:
    return "stopped" if signal_number is None else f"stopped by {signal.Signals(signal_number).name}"


def _exit_code(signal_number: int | None) -> Mapping[str, Any]:
    return {} if signal_number is None else {"exit_code": 128 + signal_number}

"""How a recording ends before it has all that was asked for, as the error a user meets; refuses to hide what was kept."""

from __future__ import annotations

import signal
from collections.abc import Mapping
from typing import Any

from offline_cli.engines.overseer import exit_code_of
from offline_cli.errors import BadData, Interrupted
from offline_cli.recording.results import RecordResult

__all__ = ["broken_off", "nothing_kept", "partly_kept", "state_lost"]

GO_ON = "the same command with --resume goes on from there"
REST_ELSEWHERE = "record the rest to another --out, with --first-episode"


def partly_kept(
    result: RecordResult, failure: BadData | None, signal_number: int | None, lost: str | None, left_out: int = 0
) -> BadData | Interrupted:
    """What is whole has been committed: `result`. `failure`: what environment or policy raised, if they did. `lost`: why what
    the pieces learned is, if it is. `left_out`: large episodes that there was no time to write."""
    kept = f"{result.episodes} whole episodes ({result.steps} steps) are committed"
    kept += f"; there was no time to write at least {left_out} more" if left_out else ""
    details = {"out": result.out, "episodes": result.episodes, "steps": result.steps, "complete": False}
    go_on = GO_ON
    if lost is not None:
        kept, go_on = f"{kept}, but what the pieces had learned is lost: {lost}", REST_ELSEWHERE
    if failure is None:
        what = f"{_stopped_by(signal_number)}; {kept}"
        return Interrupted(what, where=result.out, fix=go_on, details={**details, **_exit_code(signal_number)})
    what, fix = f"{failure.what_in_one_line}; {kept}", f"{failure.fix}; {go_on}"
    return type(failure)(what, where=failure.where, fix=fix, details={**failure.details, **details})


def state_lost(result: RecordResult, lost: str) -> BadData:
    """All that was asked for has been committed, without what the pieces learned."""
    what = f"all {result.episodes} episodes are committed, but what the pieces learned is lost: {lost}"
    fix = "what a filter learns can be learned from the dataset too; for other pieces mend their get_state and merge_states"
    return BadData(what, where=result.out, fix=fix, details={"out": result.out, "episodes": result.episodes, "complete": True})


def nothing_kept(out: str, failure: BadData | None, signal_number: int | None) -> BadData | Interrupted:
    """No episode was whole, and nothing has been written."""
    if failure is not None:
        return failure
    what = f"{_stopped_by(signal_number)} before an episode was whole; nothing was kept"
    return Interrupted(what, where=out, fix="the same command again", details=_exit_code(signal_number))


def broken_off(out: str, kept: int, lost: int, signal_number: int | None) -> Interrupted:
    """One signal too many has broken in while what is whole was committed: episodes of complete shards are `kept`, for
    --resume, and whole ones that were not in one are `lost`."""
    what = f"{_stopped_by(signal_number)}, and broken off by another signal while what is whole was committed; "
    if not kept:
        what += f"nothing was kept of {lost} whole episodes"
        return Interrupted(what, where=out, fix="the same command again", details=_exit_code(signal_number))
    what += f"{kept} episodes in complete shards are kept, {lost} whole ones are lost"
    return Interrupted(what, where=out, fix=GO_ON, details=_exit_code(signal_number))


def _stopped_by(signal_number: int | None) -> str:
    return "stopped" if signal_number is None else f"stopped by {signal.Signals(signal_number).name}"


def _exit_code(signal_number: int | None) -> Mapping[str, Any]:
    return {} if signal_number is None else {"exit_code": exit_code_of(signal_number)}

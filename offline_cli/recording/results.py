"""How a recording ends before it has all that was asked for, as the error a user meets; refuses to hide what was kept.

What `record` gives back; refuses to hold anything that JSON cannot.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from offline_cli.engines.overseer import exit_code_of
from offline_cli.errors import BadData, Interrupted
from offline_cli.playing.plan import Plan
from offline_cli.policies.piped_policy import PipedPolicy
from offline_cli.policies.policy import Policy
from offline_cli.storage.manifest import Manifest

__all__ = ["RecordResult", "broken_off", "filled", "nothing_kept", "nothing_recorded", "partly_kept", "state_lost"]

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


@dataclass(frozen=True, slots=True)
class RecordResult:
    """A recording. Counts and returns are of the whole dataset, what an earlier, interrupted call had written included."""

    out: str
    episodes: int
    steps: int
    shards: int
    return_mean: float | None  # undiscounted, in the environment's units; None: nothing was recorded
    return_std: float | None  # of the population
    length_mean: float | None  # steps
    seconds: float  # of this call, from opening the environment to the commit
    steps_per_second: float  # recorded by this call
    complete: bool  # whether all that was asked for is in the dataset
    format: str  # "episodes" | "columns"
    environment: str
    policy: str
    vectorize: str  # "sync" | "async" | "vector_entry_point"
    action_scale: str  # "env" | "normalized"
    explore: bool
    seed: int
    env_to_module: list[str] | None  # names of the pieces that it was played through; None: through none
    module_to_env: list[str] | None
    dry_run: bool  # everything was checked, nothing was written
    assumptions: Mapping[str, int] = field(default_factory=dict)  # NaN and infinite values by kind: "nan-in-rewards"

    def as_dict(self) -> dict[str, Any]:
        """Plain values, by the keys of `--json`."""
        return asdict(self)


def nothing_recorded(plan: Plan, policy: Policy | PipedPolicy, *, out: str, format: str) -> RecordResult:
    """The result of a dry run, which says what would be done."""
    pieces = policy.piece_names if isinstance(policy, PipedPolicy) else {}
    return RecordResult(
        out=out,
        episodes=0,
        steps=0,
        shards=0,
        return_mean=None,
        return_std=None,
        length_mean=None,
        seconds=0.0,
        steps_per_second=0.0,
        complete=False,
        format=format,
        environment=plan.env,
        policy=plan.policy,
        vectorize=plan.vectorize,
        action_scale=policy.action_scale,
        explore=plan.explore,
        seed=plan.seed,
        env_to_module=pieces.get("env_to_module"),
        module_to_env=pieces.get("module_to_env"),
        dry_run=True,
    )


def filled(empty: RecordResult, manifest: Manifest, *, new_steps: int, started: float) -> RecordResult:
    """`empty` with what the dataset holds; `new_steps` were recorded since `started`, a time of `time.monotonic`."""
    seconds = time.monotonic() - started
    returns, lengths = manifest.statistics["return"], manifest.statistics["length"]
    return replace(
        empty,
        episodes=manifest.counts.episodes,
        steps=manifest.counts.steps,
        shards=len(manifest.shards),
        return_mean=returns["mean"],
        return_std=returns["std"],
        length_mean=lengths["mean"],
        seconds=seconds,
        steps_per_second=new_steps / seconds,
        complete=manifest.complete,
        dry_run=False,
        assumptions=dict(sorted(manifest.assumptions.items())),
    )

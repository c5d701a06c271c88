"""RecordResult, and the errors of a recording that ends early."""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np

from offline_cli.datasets.manifest import Manifest
from offline_cli.errors import BadData, ClusterLost, Interrupted
from offline_cli.playing.loop import Plan
from offline_cli.policies.module_policy import PolicyForPieces
from offline_cli.policies.policy import Policy
from offline_cli.stop_signals import exit_code_of
from offline_cli.storage.blanking import blanked_call, blanked_values


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordResult:
    """Result of a recording. Counts and returns are of the whole dataset, including episodes of earlier, interrupted calls.

    With several agents they count the agents' episodes, as `inspect` does; `evaluate` counts games.
    """

    out: str
    episodes: int = 0
    steps: int = 0
    shards: int = 0
    return_mean: float | None = None  # undiscounted, in the environment's units; None if nothing was recorded
    return_std: float | None = None  # population standard deviation
    length_mean: float | None = None  # steps
    seconds: float = 0.0  # of this call, from opening the environment to the commit
    steps_per_second: float = 0.0  # recorded by this call
    complete: bool = False  # the dataset has all requested episodes
    format: str  # "episodes" | "columns"
    environment: str
    env_kwargs: Mapping[str, Any]  # of the environment; secrets blanked out
    wrappers: Sequence[str]  # of the environment
    policy: str
    vectorize: str  # "sync" | "async"
    action_scale: str  # "env" | "normalized"
    explore: bool
    seed: int
    env_to_module: list[str] | None  # names of connector pieces; None: played without
    module_to_env: list[str] | None
    dry_run: bool = True  # checked only, nothing written
    assumptions: Mapping[str, int] = field(default_factory=dict)  # counted by kind: "info-dropped: key"
    games: int | None = None  # number of games with several agents; None: a single agent
    datasets: Sequence[str] = ()  # datasets below `out`, if agents have different spaces

    def as_dict(self) -> dict[str, Any]:
        """The values of `--json`; `games` and `datasets` only with several agents."""
        values = {**asdict(self), "datasets": list(self.datasets)}
        return {name: value for name, value in values.items() if value or name not in ("games", "datasets")}


def nothing_recorded(plan: Plan, policy: Policy, *, out: str, format: str) -> RecordResult:
    """The result of a dry run."""
    between = policy.piece_names() if isinstance(policy, PolicyForPieces) else {}
    return RecordResult(
        out=out,
        format=format,
        environment=plan.environment.id,
        env_kwargs=blanked_values(plan.environment.kwargs),
        wrappers=[*map(blanked_call, plan.environment.wrappers)],
        policy=", ".join(plan.policies),
        vectorize=plan.vectorize,
        action_scale=policy.action_scale,
        explore=plan.opening.explore,
        seed=plan.seed,
        env_to_module=between.get("env_to_module"),
        module_to_env=between.get("module_to_env"),
    )


def recorded(empty: RecordResult, manifests: Sequence[Manifest], *, new_steps: int, seconds: float) -> RecordResult:
    """`empty`, filled from the manifests; `new_steps` were recorded in `seconds`."""
    counts = [manifest.counts.episodes for manifest in manifests]

    def moments(column: str) -> tuple[float | None, float | None]:
        """Mean and standard deviation over the episodes of all datasets; None if one of them lacks it."""
        known = [dict[str, Any](manifest.statistics)[column] for manifest in manifests]
        if len(known) == 1 or any(one["mean"] is None or one["std"] is None for one in known):
            return (known[0]["mean"], known[0]["std"]) if len(known) == 1 else (None, None)
        mean = np.average([one["mean"] for one in known], weights=counts)
        square = np.average([one["std"] ** 2 + one["mean"] ** 2 for one in known], weights=counts)
        return float(mean), float(np.sqrt(max(0.0, square - mean**2)))

    return replace(
        empty,
        episodes=sum(counts),
        steps=sum(manifest.counts.steps for manifest in manifests),
        shards=sum(len(manifest.shards) for manifest in manifests),
        return_mean=moments("return")[0],
        return_std=moments("return")[1],
        length_mean=moments("length")[0],
        seconds=seconds,
        steps_per_second=new_steps / seconds,
        complete=all(manifest.complete for manifest in manifests),
        dry_run=False,
        assumptions=dict(sorted(sum((Counter(manifest.assumptions) for manifest in manifests), Counter[str]()).items())),
    )


def ended_early(
    out: str, kept: RecordResult | None, failure: BadData | ClusterLost | None, signal_number: int | None
) -> BadData | ClusterLost | Interrupted:
    """The error of a recording that ended early. `kept`: the committed result, or None; `failure`: error of environment, policy
    or workers, if any."""
    details: dict[str, Any] = {}
    state, fix = "no episode was finished, so nothing is kept", "run the same command again"
    if kept is not None:
        details = {"out": out, "episodes": kept.episodes, "steps": kept.steps, "complete": False}
        state = f"{kept.episodes} whole episodes ({kept.steps} steps) are committed"
        fix = "run the same command with --resume to continue"
    if failure is not None:
        what, details = f"{failure.what_in_one_line}; {state}", {**failure.details, **details}
        error = type(failure)(what, where=failure.where, fix=f"{failure.fix}; {fix}", details=details)
        error.__cause__ = failure.__cause__
        return error
    by = "stopped"
    if signal_number is not None:
        by, details["exit_code"] = f"stopped by {signal.Signals(signal_number).name}", exit_code_of(signal_number)
    return Interrupted(f"{by}; {state}", where=out, fix=fix, details=details)

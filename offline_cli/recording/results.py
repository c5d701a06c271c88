"""What `record` gives back; refuses to hold anything that JSON cannot."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from offline_cli.playing.plan import Plan
from offline_cli.policies.piped_policy import PipedPolicy
from offline_cli.policies.policy import Policy
from offline_cli.storage.manifest import Manifest

__all__ = ["RecordResult", "filled", "nothing_recorded"]


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

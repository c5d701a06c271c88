"""The plan, the amount and the result of a recording, and how it ends before it has all that was asked for.

* `Amount`, `is_enough`, `limited`: how much is recorded: so many episodes, or the fewest that have so many steps; never one
  more.
* `checked_plan`: a plan from what a caller asked for; all contradictions are reported at once.
* `partly_kept`, `nothing_kept`: an early end as the error that a user sees, which says what was kept.
* `RecordResult`: the result of `record`; all of it has a form in JSON.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np

from offline_cli.datasets.manifest import Manifest
from offline_cli.environments import Environment
from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.errors import BadConfig, BadData, Interrupted, SpaceMismatch, UsageError
from offline_cli.files.blanking import blanked_call, blanked_values
from offline_cli.formats.asked_environment import AskedEnvironment
from offline_cli.modules.devices import choose_device
from offline_cli.playing.own_vector_slots import resets_by
from offline_cli.playing.plan import OWN_CLASS, Plan
from offline_cli.plugins import with_network
from offline_cli.policies.piped_policy import PipedPolicy, PlaySpec
from offline_cli.policies.policy import Policy
from offline_cli.progress import Progress
from offline_cli.stop_signals import exit_code_of

__all__ = [
    "Amount",
    "RecordResult",
    "checked_plan",
    "filled",
    "is_enough",
    "limited",
    "nothing_kept",
    "nothing_recorded",
    "partly_kept",
    "progress_at",
    "resolved_plan",
    "rest_of",
]

GO_ON = "the same command with --resume continues from there"


@dataclass(frozen=True, slots=True)
class Amount:
    """Whole episodes and their steps."""

    episodes: int = 0
    steps: int = 0

    def plus(self, batch: EpisodeBatch) -> Amount:
        return Amount(self.episodes + len(batch), self.steps + batch.num_steps)


def is_enough(plan: Plan, have: Amount) -> bool:
    """Whether `have` is all that `plan` asks for."""
    return have.episodes >= plan.episodes if plan.episodes is not None else have.steps >= (plan.steps or 0)


def rest_of(plan: Plan, have: Amount) -> Plan:
    """What is left of `plan` to play; `is_enough` says whether that is nothing."""
    return replace(
        plan,
        first=plan.first + have.episodes,
        episodes=None if plan.episodes is None else max(0, plan.episodes - have.episodes),
        steps=None if plan.steps is None else max(0, plan.steps - have.steps),
    )


def limited(batches: Iterator[EpisodeBatch], plan: Plan) -> Iterator[EpisodeBatch]:
    """The first of the episodes, as many as `plan` asks for."""
    have = Amount()
    for batch in batches:
        last = int(np.searchsorted(np.cumsum(batch.lengths), (plan.steps or 0) - have.steps))  # the one that reaches them
        kept = batch.select(slice(0, last + 1 if plan.episodes is None else plan.episodes - have.episodes))
        have = have.plus(kept)
        yield kept
        if is_enough(plan, have):
            return


def progress_at(plan: Plan, have: Amount, batch: EpisodeBatch) -> Progress:
    """Where the recording is, after `batch`, whose mean return and length are reported."""
    figures = {"return": float(batch.rewards.sum()) / len(batch), "length": float(batch.lengths.mean())}
    if plan.episodes is not None:
        return Progress("recording", have.episodes, plan.episodes, "episodes", {**figures, "steps": float(have.steps)})
    steps = plan.steps or 0
    return Progress("recording", min(have.steps, steps), steps, "steps", {**figures, "episodes": float(have.episodes)})


def checked_plan(env: str, options: Mapping[str, Any]) -> Plan:
    """The plan, `vectorize` as given, without storage options. Raises UsageError, MissingDevice, BadConfig for kwargs that are
    no JSON values, and what `PlaySpec.of` raises."""
    wrong: list[str] = []
    fix = "offline-cli record --help"
    if (options["episodes"] is None) == (options["steps"] is None):
        wrong.append("give exactly one of --episodes and --steps")
        fix = "--episodes 100, or --steps 100000"
    if callable(options["policy"]):
        fix = "write the function to a file, my_policy.py, and give policy='python:my_policy:its_name'"
    wrong += _wrong_on_workers(options)
    if wrong:
        raise UsageError("; ".join(wrong), where="offline-cli record", fix=fix)
    num_env_runners, on_workers, given = options["num_env_runners"], options["engine"] != "local", options["policy"]
    policies = (given,) if isinstance(given, str) else tuple(given)
    pieces = PlaySpec.of(options["env_to_module"], options["module_to_env"], options["lookback"])
    asked = AskedEnvironment.of({**options, "env": env}, known=False)
    assert asked is not None
    if num_env_runners or on_workers:
        pieces.check_travels()
    return Plan(
        env=env,
        env_kwargs=asked.kwargs or {},
        wrappers=tuple(asked.wrappers or ()),
        policy=", ".join(policies),
        policies=policies,
        explore=options["explore"],
        seed=options["seed"],
        vectorize="sync" if on_workers and options["vectorize"] == "auto" else options["vectorize"],
        num_envs=options["num_envs"],
        runners=max(1, num_env_runners),
        device=choose_device(options["device"]).type,
        first=options["first_episode"],
        episodes=options["episodes"],
        steps=options["steps"],
        pieces=pieces,
        plugins=with_network(options["plugins"], options["network"]),
        trust_pickle=options["trust_pickle"],
    )


def _wrong_on_workers(options: Mapping[str, Any]) -> Iterator[str]:
    """What does not go with an engine's workers."""
    if options["engine"] != "local":
        if options["num_env_runners"]:
            yield "--num-env-runners are processes of --engine local; give --workers"
        if options["vectorize"] == OWN_CLASS:
            yield f"--engine {options['engine']} divides the episodes, and --vectorize {OWN_CLASS} has one generator for all"


def resolved_plan(plan: Plan, environment: Environment) -> Plan:
    """`plan` with a definite `vectorize`. Raises BadConfig for a vector class that is not there, or cannot be used,
    SpaceMismatch for one of other spaces."""
    if plan.vectorize == "auto":
        return replace(plan, vectorize=OWN_CLASS if _can_use_own_class(environment) else "sync")
    if plan.vectorize == OWN_CLASS:
        if not environment.has_vector_class:
            why = "inside wrappers" if plan.wrappers else "of its own"
            raise BadConfig(f"{plan.env} has no vector class {why}", where="--vectorize", fix="--vectorize sync, or async")
        differences = environment.vector_misfits()
        if differences:
            fix = "--vectorize sync, or async"
            raise SpaceMismatch.of(differences, where=f"--vectorize {OWN_CLASS} of {plan.env}", fix=fix)
        resets_by(environment.vector(plan.num_envs), plan.env)
    return plan


def _can_use_own_class(environment: Environment) -> bool:
    """Whether it has one that plays in the environment's spaces and says how it resets itself."""
    with suppress(BadConfig):
        return environment.vector_class_fits and bool(resets_by(environment.vector(1), environment.name))
    return False


def partly_kept(result: RecordResult, failure: BadData | None, signal_number: int | None) -> BadData | Interrupted:
    """What is whole has been committed: `result`. `failure`: what environment or policy raised, if they did."""
    kept = f"{result.episodes} whole episodes ({result.steps} steps) are committed"
    details = {"out": result.out, "episodes": result.episodes, "steps": result.steps, "complete": False}
    if failure is None:
        what = f"{_stopped_by(signal_number)}; {kept}"
        return Interrupted(what, where=result.out, fix=GO_ON, details={**details, **_exit_code(signal_number)})
    what, fix = f"{failure.what_in_one_line}; {kept}", f"{failure.fix}; {GO_ON}"
    return type(failure)(what, where=failure.where, fix=fix, details={**failure.details, **details})


def nothing_kept(out: str, failure: BadData | None, signal_number: int | None) -> BadData | Interrupted:
    """No episode was whole, and nothing has been written."""
    if failure is not None:
        return failure
    what = f"{_stopped_by(signal_number)} before an episode was whole; nothing was kept"
    return Interrupted(what, where=out, fix="the same command again", details=_exit_code(signal_number))


def _stopped_by(signal_number: int | None) -> str:
    return "stopped" if signal_number is None else f"stopped by {signal.Signals(signal_number).name}"


def _exit_code(signal_number: int | None) -> Mapping[str, Any]:
    return {} if signal_number is None else {"exit_code": exit_code_of(signal_number)}


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordResult:
    """A recording. Counts and returns are of the whole dataset, what an earlier, interrupted call had written included.

    Of several agents they are of the agents' episodes, as those of `inspect` are; those of `evaluate` are of games.
    """

    out: str
    episodes: int = 0
    steps: int = 0
    shards: int = 0
    return_mean: float | None = None  # undiscounted, in the environment's units; None: nothing was recorded
    return_std: float | None = None  # of the population
    length_mean: float | None = None  # steps
    seconds: float = 0.0  # of this call, from opening the environment to the commit
    steps_per_second: float = 0.0  # recorded by this call
    complete: bool = False  # whether all that was asked for is in the dataset
    format: str  # "episodes" | "columns"
    environment: str
    env_kwargs: Mapping[str, Any]  # it was made with; secret ones blanked out
    wrappers: Sequence[str]  # around it
    policy: str
    vectorize: str  # "sync" | "async" | "vector_entry_point"
    action_scale: str  # "env" | "normalized"
    explore: bool
    seed: int
    env_to_module: list[str] | None  # names of the pieces that it was played through; None: through none
    module_to_env: list[str] | None
    dry_run: bool = True  # everything was checked, nothing was written
    assumptions: Mapping[str, int] = field(default_factory=dict)  # NaN and infinite values by kind: "nan-in-rewards"
    games: int | None = None  # of several agents, each of which has episodes of its own; None: of one agent

    def as_dict(self) -> dict[str, Any]:
        """Plain values, by the keys of `--json`; `games` of several agents alone."""
        return {name: value for name, value in asdict(self).items() if value is not None or name != "games"}


def nothing_recorded(plan: Plan, policy: Policy | PipedPolicy, *, out: str, format: str) -> RecordResult:
    """The result of a dry run, which says what would be done."""
    sides = policy.pipelines.sides() if isinstance(policy, PipedPolicy) else {}
    pieces = {side: [name for name, _ in pipeline.named()] for side, pipeline in sides.items()}
    return RecordResult(
        out=out,
        format=format,
        environment=plan.env,
        env_kwargs=blanked_values(plan.env_kwargs),
        wrappers=[*map(blanked_call, plan.wrappers)],
        policy=plan.policy,
        vectorize=plan.vectorize,
        action_scale=policy.action_scale,
        explore=plan.explore,
        seed=plan.seed,
        env_to_module=pieces.get("env_to_module"),
        module_to_env=pieces.get("module_to_env"),
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

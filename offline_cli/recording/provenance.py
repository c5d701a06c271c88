"""What a manifest says of a recording beyond its data, and `Player`, which plays the episodes of a plan.

`finished_manifest` finds out whether a dataset is that recording already. A `Player` plays in this process or on workers, in
order; where it ends early, `failure` says why.
"""

from __future__ import annotations

import shlex
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from typing import Any

from offline_cli.datasets.file_names import MANIFEST, WRITING
from offline_cli.datasets.manifest import IDENTITY, RECORDING, WRAPPERS, Manifest
from offline_cli.engines.engine import Engine
from offline_cli.environments import Environment
from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.errors import BadData
from offline_cli.playing.plan import Plan, environment_seed
from offline_cli.playing.runner_factory import open_runner
from offline_cli.playing.runner_tasks import recorded_by_workers
from offline_cli.policies.piped_policy import PipedPolicy
from offline_cli.policies.policy import Policy
from offline_cli.recording.results import Amount, is_enough, limited
from offline_cli.recording.step_store import steps_of_plan
from offline_cli.source_code import allowed_changes, code_of, content_hash_of
from offline_cli.stop_signals import requested
from offline_cli.storage.blanking import blanked, blanked_call
from offline_cli.storage.locations import Location

__all__ = ["Player", "finished_manifest", "identity_of", "provenance"]


def identity_of(plan: Plan, fingerprint: str, environment: Environment) -> dict[str, Any]:
    """What the episodes follow from, by name: options, texts hashed, and the code of environment, policy and pieces."""
    parts = {
        name: value if isinstance(value, int) else content_hash_of(value) for name, value in plan.identity(fingerprint).items()
    }
    policies = [text.rpartition("=")[2] for text in plan.policies]  # AGENT=POLICY
    named = [plan.env, *plan.wrappers, *policies, *plan.plugins, *plan.pieces.code()]
    return {**parts, "--first-episode": plan.first, **code_of(*environment.singles(1), *named)}


def provenance(
    plan: Plan, fingerprint: str, identity: Mapping[str, Any], command: Sequence[str], spaces_of: str | None = None
) -> dict[str, Any]:
    """For `DatasetWriter`: policy, seeds, and everything that determines the episodes. `spaces_of`: the vector class whose
    spaces the dataset has, where they are not the environment's.
    """
    known: dict[str, Any] = {"policy": blanked(plan.policy), "seeds": [plan.seed], IDENTITY: identity}
    known[RECORDING] = _described(plan, fingerprint)
    if spaces_of is not None:
        known[RECORDING]["spaces_of"] = spaces_of
    if command:
        known["commands"] = [shlex.join(command)]
    return known


def _described(plan: Plan, fingerprint: str) -> dict[str, Any]:
    described: dict[str, Any] = {
        **_asked(plan),
        "policy_fingerprint": fingerprint,
        "explore": plan.explore,
        "seed": plan.seed,
        WRAPPERS: [*map(blanked_call, plan.wrappers)],
        "vectorize": plan.vectorize,
        "num_envs": plan.num_envs,
        "runners": plan.runners,
        "device": plan.device,
        **plan.pieces.described(),
    }
    if plan.own_class:
        return {**described, "vector_seeds": [plan.vector_seed(runner) for runner in range(plan.runners)]}
    # The next episode has the next seed.
    return {**described, "first_environment_seed": environment_seed(plan.seed, plan.first)}


def finished_manifest(target: Location, plan: Plan, identity: Mapping[str, Any], format: str) -> Manifest | None:
    """The manifest of a dataset that holds everything the plan asks for; None for any other.

    Raises BadConfig where what its episodes follow from is not `identity`.
    """
    if target.join(WRITING).exists() or not target.join(MANIFEST).exists():
        return None
    found = Manifest.read(target)
    told, known = found.provenance.get(RECORDING), found.provenance.get(IDENTITY)
    if not (found.complete and found.format == format and isinstance(told, dict) and isinstance(known, dict)):
        return None
    if not _asked(plan).items() <= told.items():
        return None
    fix = "there is nothing left to record here: --overwrite to record it again, or another --out"
    allowed_changes(known, identity, None, where=target.url, fix=fix)
    return found


def _asked(plan: Plan) -> dict[str, Any]:
    """How many episodes, as the manifest has it."""
    return {"first_episode": plan.first, "asked": {"episodes": plan.episodes, "steps": plan.steps}}


class Player:
    """Plays `policy` in `environment`; `failure` is what one of them raised, once `episodes` has ended for that."""

    def __init__(self, environment: Environment, policy: Policy | PipedPolicy, engine: Engine, workers: int) -> None:
        """`engine`: where it is not this process, its so many workers play."""
        self._engine, self._workers = engine, workers
        self._environment, self._policy = environment, policy
        self.failure: BadData | None = None

    def episodes(self, plan: Plan) -> Generator[EpisodeBatch, None, None]:
        """As many whole episodes as `plan` asks for, or those before a signal asked to stop, or before the `failure`."""
        if is_enough(plan, Amount()):
            return
        try:
            with self._batches(plan) as batches:
                yield from limited(batches, plan)
        except BadData as err:
            self.failure = err

    @contextmanager
    def _batches(self, plan: Plan) -> Iterator[Iterator[EpisodeBatch]]:
        if not self._engine.is_local:
            with closing(recorded_by_workers(plan, steps_of_plan, self._engine, workers=self._workers)) as batches:
                yield batches
            return
        given: dict[str, Any] = {"environment": self._environment, "policy": self._policy}
        with open_runner(plan, 0, sink=steps_of_plan, **given, stopped=lambda: requested() is not None) as runner:
            yield runner.batches()

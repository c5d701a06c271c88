"""A plan brought to life: environment, slots, policy and chance of one runner; refuses what does not fit together.

Used by this process where there are no runner processes, and by each of those.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager

from offline_cli.environments import Environment, open_environment
from offline_cli.errors import BadData
from offline_cli.recording.actor import Actor
from offline_cli.recording.async_slots import AsyncSlots
from offline_cli.recording.blocks import Blocks, block_rows
from offline_cli.recording.chance import Chance, EpisodeChance, SharedChance
from offline_cli.recording.env_runner import EnvRunner
from offline_cli.recording.own_vector_slots import OwnVectorSlots
from offline_cli.recording.piped_actor import PipedActor
from offline_cli.recording.piped_policy import PipedPolicy
from offline_cli.recording.plan import Plan, environment_seed
from offline_cli.recording.policies import open_policy
from offline_cli.recording.policy import Policy
from offline_cli.recording.slots import SlotFailure, Slots, SyncSlots
from offline_cli.spaces import Space
from offline_cli.training.devices import use_threads
from offline_cli.waiting import current

__all__ = ["open_planned", "open_runner", "policy_of"]


def open_planned(plan: Plan) -> Environment:
    """The plan's environment. Raises as `open_environment` does."""
    return open_environment(plan.env, plan.env_kwargs, plan.wrappers)


def policy_of(plan: Plan, environment: Environment) -> Policy | PipedPolicy:
    """The plan's policy for `environment`. Raises as `open_policy` does."""
    return open_policy(
        plan.policy,
        environment,
        explore=plan.explore,
        device=plan.device,
        pieces=plan.pieces,
        storage_options=plan.storage_options,
        example=lambda: environment.singles(1)[0].reset(seed=environment_seed(plan.seed, plan.first))[0],
    )


@contextmanager
def open_runner(
    plan: Plan,
    runner: int,
    *,
    environment: Environment,
    policy: Policy | PipedPolicy,
    stopped: Callable[[], bool] = lambda: False,
) -> Iterator[EnvRunner]:
    """Runner `runner`, with torch on one thread; its slots are closed at the end. Raises as `open_environment` does."""
    spaces = environment.observation_space, environment.action_space
    with use_threads(1), _words_kept():
        actor = _actor(plan, policy, spaces[0], _count(plan, runner))
        with _slots(plan, runner, environment, actor.padded) as slots:
            yield EnvRunner(
                plan,
                runner,
                slots,
                actor,
                _chance(plan, runner, len(slots.ready), policy.chance_size),
                spaces=spaces,
                fingerprint=policy.fingerprint,
                stopped=stopped,
            )


@contextmanager
def _words_kept() -> Iterator[None]:
    """Whoever says within it what is waited for is let go of at the end."""
    waiting = current()
    before = waiting.words
    try:
        yield
    finally:
        waiting.words = before


def _actor(plan: Plan, policy: Policy | PipedPolicy, observation_space: Space, slots: int) -> Actor:
    if isinstance(policy, PipedPolicy):
        return PipedActor(policy, slots, alike=not plan.own_class, ids=lambda indices: plan.ids(policy.fingerprint, indices))
    return Blocks(policy, slots, rows=None if plan.own_class else block_rows(policy, observation_space, slots))


def _count(plan: Plan, runner: int) -> int:
    """Slots: no more than there are episodes, unless their number changes the episodes."""
    share = plan.share(runner)
    return plan.num_envs if plan.own_class or share is None else max(1, min(plan.num_envs, share))


def _slots(plan: Plan, runner: int, environment: Environment, padded: int) -> AbstractContextManager[Slots]:
    count, space = _count(plan, runner), environment.observation_space
    if plan.own_class:
        try:
            return closing(OwnVectorSlots(environment.vector(count), space, plan.vector_seed(runner), plan.env))
        except SlotFailure as err:
            what = f"its vector class raised {err.cause} ({err.doing})"
            raise BadData(what, where=plan.env, fix="--vectorize sync, or mend the class") from err
    if plan.vectorize == "async":
        return closing(AsyncSlots(plan.env, plan.env_kwargs, plan.wrappers, count, space, padded))
    return closing(SyncSlots(environment.singles(count), space, padded))


def _chance(plan: Plan, runner: int, slots: int, size: int) -> Chance:
    if plan.own_class:
        return SharedChance(plan.vector_seed(runner), slots, size)
    return EpisodeChance(plan.seed, slots, size)

"""Opens one runner of a plan: environment, slots, policy, random numbers and sink.

Used by this process where there are no workers, and by each of those.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
from typing import Any, TypeVar

from offline_cli.environments import Environment, open_environment
from offline_cli.errors import BadConfig, BadData
from offline_cli.modules.devices import use_threads
from offline_cli.playing.actors import Actor, Blocks
from offline_cli.playing.async_slots import AsyncSlots
from offline_cli.playing.env_runner import EnvRunner
from offline_cli.playing.own_vector_slots import MakeSink, OwnVectorSlots, RoundSlots
from offline_cli.playing.piped_actor import PipedActor
from offline_cli.playing.plan import EpisodeChance, Plan, SharedChance
from offline_cli.playing.slots import SlotFailure, Slots, SyncSlots, unchecked
from offline_cli.policies.agents_by_name import open_agents
from offline_cli.policies.by_name import open_policy, policy_of_run
from offline_cli.policies.piped_policy import PipedPolicy
from offline_cli.policies.policy import Policy, block_rows
from offline_cli.spaces import Space

__all__ = ["open_planned", "open_runner", "policy_of"]

Taken = TypeVar("Taken")


def open_planned(plan: Plan) -> Environment:
    """The plan's environment, or its vector class where that was asked for by name. Raises as `open_environment` does."""
    environment = open_environment(plan.env, plan.env_kwargs, plan.wrappers)
    if plan.records and plan.own_class:
        try:
            environment.be_vector_class()
        except Exception:
            environment.close()
            raise
    return environment


def policy_of(plan: Plan, environment: Environment) -> Policy | PipedPolicy:
    """The plan's policy for `environment`, of several agents those of all. Raises as `open_policy` and `open_agents` do."""
    kind: dict[str, Any] = {"explore": plan.explore, "device": plan.device, "pieces": plan.pieces}
    if environment.agents is not None:
        kind |= {"storage_options": plan.storage_options, "plugins": plan.plugins, "seed": plan.example_seed}
        kind |= {"trust_pickle": plan.trust_pickle}
        kind |= {"rows": plan.block, "slots": plan.num_envs, "records": plan.records}
        return open_agents(plan.policies or (plan.policy,), environment, **kind)
    if len(plan.policies) > 1:
        what = f"{plan.env} is not an environment of several agents, and {len(plan.policies)} policies are given"
        raise BadConfig(what, where="--policy", fix="one --policy")
    if plan.files is not None:
        return policy_of_run(plan.files.loaded(), plan.policy, environment, **kind)
    return open_policy(
        plan.policy,
        environment,
        **kind,
        storage_options=plan.storage_options,
        plugins=plan.plugins,
        trust_pickle=plan.trust_pickle,
        example=lambda: environment.singles(1)[0].reset(seed=plan.example_seed)[0],
    )


@contextmanager
def open_runner(
    plan: Plan,
    runner: int,
    *,
    environment: Environment,
    policy: Policy | PipedPolicy,
    sink: MakeSink[Taken],
    stopped: Callable[[], bool] = lambda: False,
) -> Iterator[EnvRunner[Taken]]:
    """Runner `runner`, with as many threads of torch as the plan says; its slots are closed at the end.

    Raises as `open_environment` does.
    """
    spaces = environment.observation_space, environment.action_space
    with nullcontext() if plan.threads is None else use_threads(plan.threads):
        actor = _actor(plan, policy, spaces[0], plan.slots(runner))
        with _slots(plan, runner, environment, policy, actor.padded) as slots:
            count, size = len(slots.ready), policy.chance_size
            yield EnvRunner(
                plan,
                runner,
                slots,
                actor,
                SharedChance(plan, runner, count, size) if plan.own_class else EpisodeChance(plan, count, size),
                sink(plan, runner, count, spaces, policy.fingerprint),
                stopped=stopped,
            )


def _actor(plan: Plan, policy: Policy | PipedPolicy, observation_space: Space, slots: int) -> Actor:
    if isinstance(policy, PipedPolicy):
        return PipedActor(
            policy,
            slots,
            block=None if plan.own_class else plan.block,
            records=plan.records,
            ids=lambda indices: plan.ids(policy.fingerprint, indices),
        )
    return Blocks(policy, slots, rows=None if plan.own_class else block_rows(policy, observation_space, slots, plan.block))


def _slots(
    plan: Plan, runner: int, environment: Environment, policy: Policy | PipedPolicy, padded: int
) -> AbstractContextManager[Slots]:
    count, space = plan.slots(runner), environment.observation_space
    if not plan.records:
        if plan.own_class:
            return closing(RoundSlots(environment.vector(count), space, plan.env))
        return closing(
            SyncSlots(environment.singles(count), space, padded, unchecked if isinstance(policy, PipedPolicy) else None)
        )
    if plan.own_class:
        try:
            return closing(OwnVectorSlots(environment.vector(count), space, plan.vector_seed(runner), plan.env))
        except SlotFailure as err:
            what = f"its vector class raised {err.cause} ({err.doing})"
            raise BadData(what, where=plan.env, fix="--vectorize sync, or fix the class") from err
    if plan.vectorize == "async":
        return closing(AsyncSlots(plan.env, plan.env_kwargs, plan.wrappers, count, space, padded))
    return closing(SyncSlots(environment.singles(count), space, padded))

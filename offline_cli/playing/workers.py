"""Plays a plan in this process, or on an engine's workers, a block of episodes at a time.

A worker keeps the environment and the policy of the last plan that it played. Blocks are in order, and their sizes follow from
the plan alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from multiprocessing.util import Finalize
from typing import Any, Final

from offline_cli.engines.engine import Engine
from offline_cli.environments import Environment, open_environment
from offline_cli.modules.devices import use_threads
from offline_cli.playing.copies import Copies
from offline_cli.playing.loop import Loop, Sink
from offline_cli.playing.plan import Plan
from offline_cli.policies.by_name import open_policies
from offline_cli.policies.policy import Policy, PolicyOptions
from offline_cli.policies.run_policy import LoadedPolicy
from offline_cli.scopes import Reading
from offline_cli.stop_signals import check, requested

__all__ = ["MakeSink", "opened_policy", "played", "played_by_workers"]

ROUNDS: Final = 8  # episodes of a copy in one block, at most
SHARES: Final = 4  # blocks of each worker, where the number of episodes is known

MakeSink = Callable[[Plan, int, Environment, Policy], Sink[Any]]
"""From plan, slots, environment and policy to what becomes of the steps."""


def opened_policy(
    plan: Plan,
    environment: Environment,
    *,
    loaded: LoadedPolicy | None = None,
    given: Mapping[str, Policy] | None = None,
) -> Policy:
    """The plan's policy. `loaded`: of its run folder, where it has been read; `given`: by agent, those that are open already.

    Raises as `open_policies` does.
    """
    options = PolicyOptions(
        explore=plan.explore,
        device=plan.device,
        pieces=plan.pieces,
        storage_options=plan.storage_options,
        plugins=plan.plugins,
        trust_pickle=plan.trust_pickle,
        loaded=loaded,
    )
    return open_policies(plan.policies, environment, options, seed=plan.reset_seed(plan.first), given=given)


def played(
    plan: Plan, environment: Environment, policy: Policy, make: MakeSink, *, stopped: Callable[[], bool]
) -> Iterator[Any]:
    """What the sink makes of the plan's episodes, in this process. Raises as `Loop.run` does."""
    with nullcontext() if plan.threads is None else use_threads(plan.threads), Copies(environment, plan) as copies:
        yield from Loop(plan, copies, policy, make(plan, copies.count, environment, policy), stopped=stopped).run()


def played_by_workers(plan: Plan, make: MakeSink, engine: Engine, workers: int) -> Reading[Any]:
    """The same by an engine's workers, without end where the plan has steps. Raises what a worker raises, after all episodes
    that come before the failure, and StopRequested."""
    return engine.streamed(partial(_played_block, make), _blocks(plan, workers))


def _blocks(plan: Plan, workers: int) -> Iterator[Plan]:
    done, size = 0, ROUNDS * plan.num_envs
    if plan.episodes is not None:
        size = max(1, min(size, -(-plan.episodes // (SHARES * workers))))
    while plan.episodes is None or done < plan.episodes:
        count = size if plan.episodes is None else min(size, plan.episodes - done)
        yield replace(plan, first=plan.first + done, episodes=count, steps=None)
        done += count


# ---- on a worker ----

_kept: list[tuple[Plan, Environment, Policy]] = []  # the last plan, without its episodes, with its environment and policy


def _played_block(make: MakeSink, plan: Plan) -> Iterator[Any]:
    environment, policy = _opened(plan)
    yield from played(plan, environment, policy, make, stopped=lambda: requested() is not None)
    check()


def _opened(plan: Plan) -> tuple[Environment, Policy]:
    like = replace(plan, first=0, episodes=1, steps=None)
    if not (_kept and _kept[0][0] == like):
        _close()
        spec = plan.environment
        environment = open_environment(spec.id, spec.kwargs, spec.wrappers)
        try:
            _kept.append((like, environment, opened_policy(plan, environment)))
        except BaseException:
            environment.close()
            raise
        Finalize(None, _close, exitpriority=1)  # when the worker ends
    return _kept[0][1:]


def _close() -> None:
    while _kept:
        _kept.pop()[1].close()

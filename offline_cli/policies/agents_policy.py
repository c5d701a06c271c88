"""Policies of several agents as one policy of their game: `AGENT=POLICY` each, a pattern for several, one for all, or a run.

An agent's policy is asked for the observations that the agent acts on, and for no others. Recorded actions have one scale: the
policies' own where all have the same, else the environment's. Extra model outputs are recorded that all policies of agents of
the same spaces give in one form.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Callable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

import numpy as np
from numpy.typing import NDArray

from offline_cli.environments import Environment
from offline_cli.episodes.episode_spaces import zero_rows
from offline_cli.errors import BadConfig
from offline_cli.games import OBS, STATE, is_acting, rewards_in
from offline_cli.modules.rl_module import DEFAULT_MODULE_ID
from offline_cli.policies.policy import ActInput, ActOutput, Policy, State, put_state, rows_of, state_rows
from offline_cli.spaces import Space
from offline_cli.trees import Tree, flatten, map_leaves

__all__ = ["AgentsPolicy", "assigned", "open_agents"]

_log = logging.getLogger(__name__)
Spaces = tuple[Space, Space]
T = "t"  # in the state: steps of an agent so far


def assigned(texts: Sequence[str], agents: Sequence[str], *, option: str = "--policy") -> dict[str, str]:
    """What each agent is given by `AGENT=VALUE` texts, a pattern such as `archer_*=VALUE` for several, or one VALUE for all.

    A later text stands before an earlier one. Raises BadConfig for agents that are not there, and for agents without a value.
    """
    found: dict[str, str] = {}
    unknown = []
    for text in texts:
        pattern, equals, value = text.partition("=")
        chosen = [agent for agent in agents if agent == pattern] or [agent for agent in agents if fnmatchcase(agent, pattern)]
        if equals and chosen and value:
            found |= dict.fromkeys(chosen, value)
        elif len(texts) == 1:
            found = dict.fromkeys(agents, text)
        else:
            unknown.append(text)
    known = f"the agents are {', '.join(agents)}"
    if unknown:
        what = f"{' and '.join(map(repr, unknown))}: no agent is called so; {known}"
        raise BadConfig(what, where=option, fix=f"{option} AGENT=... for each agent, or 'PATTERN*=...' for several")
    missing = [agent for agent in agents if agent not in found]
    if missing:
        what = f"nothing is given for {', '.join(missing)}; {known}"
        raise BadConfig(what, where=option, fix=f"{option} {missing[0]}=..., or {option} '*=...' before the others")
    return found


def open_agents(
    texts: Sequence[str],
    environment: Environment,
    opened: Callable[[str, str, Spaces], Policy],
    given: Mapping[str, Policy],
    shown: Mapping[str, Any],
) -> AgentsPolicy:
    """The policies that `texts` name, for the agents of `environment`. `opened`: opens a text for an agent of these spaces.
    `given`: policies by agent that are open already; `shown`: what the agents are shown first in some game.

    Raises what `opened` raises, and `Policy.tried`.
    """
    assert environment.agents is not None, "an environment of several agents"
    agents, of_agents = environment.agents, dict(given)
    left = tuple(agent for agent in agents if agent not in of_agents)
    named = assigned(texts, left) if left else {}
    policies: dict[tuple[str, str], Policy] = {}  # agents of one policy and equal spaces share it
    for agent, text in named.items():
        key = text, repr(agents[agent])
        if key not in policies:
            policies[key] = opened(text, agent, agents[agent])
        of_agents[agent] = policies[key]
    outputs = {}
    for agent, spaces in agents.items():
        is_there = agent in shown and is_acting(np.asarray(shown[agent][STATE])[None])[0]
        observation = shown[agent][OBS] if is_there else rows_of(zero_rows(spaces[0], 1), 0)
        outputs[agent] = of_agents[agent].tried(observation, where=f"--policy {named.get(agent, agent)}")
    for_all = not given and len(texts) == 1 and set(named.values()) == {texts[0]}
    modules = {agent: DEFAULT_MODULE_ID if for_all else agent for agent in agents}
    return AgentsPolicy({agent: of_agents[agent] for agent in agents}, agents, modules, _common(outputs, agents))


class AgentsPolicy(Policy):
    """See Policy; observations and actions are those of a `Game`."""

    def __init__(
        self,
        policies: Mapping[str, Policy],
        spaces: Mapping[str, Spaces],
        module_of: Mapping[str, str],
        outputs: Mapping[str, dict[str, Tree]],
    ) -> None:
        """All by agent; `module_of`: the module that it is recorded as; `outputs`: a row of zeros of each that is recorded."""
        self.module_of = dict(module_of)
        told = [[agent, self.module_of[agent], policy.fingerprint] for agent, policy in policies.items()]
        self.fingerprint = hashlib.sha256(json.dumps(told).encode()).hexdigest()
        scales = {policy.action_scale for policy in policies.values()}
        self.action_scale = scales.pop() if len(scales) == 1 else "env"
        self._is_mixed = bool(scales)
        self.chance_size = sum(policy.chance_size for policy in policies.values())
        self._policies, self._spaces = dict(policies), spaces
        self._outputs = outputs

    def act(self, given: ActInput, state: State) -> ActOutput:
        """See Policy."""
        count, first = len(given.t), 0
        actions, for_env, extras = dict[str, Tree](), dict[str, Tree](), dict[str, Tree]()
        new: State = {name: array.copy() for name, array in state.items()}
        for agent in self._policies:
            new.setdefault(f"{agent}/{T}", np.zeros(count, np.int64))[given.t == 0] = 0
        for agent, policy in self._policies.items():
            last = first + policy.chance_size
            rows = np.flatnonzero(is_acting(given.obs[agent][STATE]))
            acted = self._acted(agent, given, rows, slice(first, last), new) if len(rows) else None
            first = last
            nothing = zero_rows(self._spaces[agent][1], 1)
            for_env[agent] = _spread(nothing, None if acted is None else acted.for_env, rows, count)
            scaled = None if acted is None else acted.for_env if self._is_mixed else acted.actions
            actions[agent] = _spread(nothing, scaled, rows, count)
            extras[agent] = {
                name: _spread(zero, None if acted is None else acted.extras[name], rows, count)
                for name, zero in self._outputs[agent].items()
            }
        return ActOutput(actions, for_env, extras if any(extras.values()) else {}, new)

    def _acted(self, agent: str, given: ActInput, rows: NDArray[np.int64], chance: slice, state: State) -> ActOutput:
        """The actions of the agent in the games of these rows; what it remembers is written into `state`."""
        count, prefix = len(given.t), f"{agent}/"
        own = {name.removeprefix(prefix): array for name, array in state.items() if name.startswith(prefix)}
        t = own.pop(T)
        rewards = np.where(t[rows] == 0, 0.0, rewards_in(given.obs[agent][STATE][rows]))
        acted = self._policies[agent].act(
            ActInput(
                rows_of(given.obs[agent][OBS], rows),
                given.episodes[rows],
                t[rows],
                rewards,
                None if given.infos is None else [given.infos[row].get(agent) or {} for row in rows.tolist()],
                None if given.chance is None else given.chance[rows, chance],
            ),
            state_rows(own, rows),
        )
        t[rows] += 1
        put_state(own, rows, acted.state, count)
        state |= {f"{prefix}{name}": array for name, array in own.items()}
        return acted


def _common(outputs: Mapping[str, dict[str, Tree]], spaces: Mapping[str, Spaces]) -> dict[str, dict[str, Tree]]:
    """By agent, the outputs that all agents of its spaces give in one form; a note names the others."""
    left: set[str] = set()
    found = {}
    for agent, own in outputs.items():
        alike = [other for key, other in outputs.items() if repr(spaces[key]) == repr(spaces[agent])]
        forms = [{name: _form(tree) for name, tree in other.items()} for other in alike]
        found[agent] = {name: tree for name, tree in own.items() if all(form.get(name) == _form(tree) for form in forms)}
        left |= own.keys() - found[agent].keys()
    if left:
        _log.warning("note: not recorded, as not all policies give them in one form: %s", ", ".join(sorted(left)))
    return found


def _form(tree: Tree) -> list[tuple[str, Any, Any]]:
    return [(path, leaf.dtype, leaf.shape) for path, leaf in flatten(tree)]


def _spread(zero: Tree, found: Tree | None, rows: NDArray[np.int64], count: int) -> Tree:
    """Rows (count, ...) of all games, zeros where the agent does not act."""

    def spread(leaf: NDArray[Any], new: NDArray[Any] | None = None) -> NDArray[Any]:
        whole = np.repeat(leaf, count, axis=0)
        if new is not None:
            whole[rows] = new
        return whole

    return map_leaves(spread, zero) if found is None else map_leaves(spread, zero, found)

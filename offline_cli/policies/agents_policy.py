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
from offline_cli.policies.policy import Acted, Policy, State, rows_of, with_rows
from offline_cli.policies.seeds import draw
from offline_cli.spaces import Space, same_space
from offline_cli.trees import Tree, flatten, map_leaves

__all__ = ["AgentsPolicy", "assigned", "open_agents"]

_log = logging.getLogger(__name__)
Spaces = tuple[Space, Space]


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
    missing = [agent for agent in agents if agent not in found]
    if unknown or missing:
        what = (
            f"{' and '.join(map(repr, unknown))}: no agent is called so"
            if unknown
            else f"nothing is given for {', '.join(missing)}"
        )
        fix = f"{option} AGENT=... for each agent, or 'PATTERN*=...' for several"
        raise BadConfig(f"{what}; the agents are {', '.join(agents)}", where=option, fix=fix)
    return found


def open_agents(
    texts: Sequence[str],
    environment: Environment,
    opened: Callable[[str, str, Spaces], Policy],
    given: Mapping[str, Policy],
    shown: Mapping[str, Any],
    *,
    explore: bool,
) -> AgentsPolicy:
    """The policies that `texts` name, for the agents of `environment`. `opened`: opens a text for an agent of these spaces.
    `given`: policies by agent that are open already; `shown`: what the agents are shown first in some game.

    Raises what `opened` raises, and `Policy.tried`.
    """
    assert environment.agents is not None, "an environment of several agents"
    agents = environment.agents
    named = assigned(texts, left) if (left := [agent for agent in agents if agent not in given]) else {}
    policies: dict[tuple[str, str], Policy] = {}  # agents of one policy and equal spaces share it
    for agent, text in named.items():
        key = text, repr(agents[agent])
        if key not in policies:
            policies[key] = opened(text, agent, agents[agent])
    of_agents = {agent: given.get(agent) or policies[named[agent], repr(agents[agent])] for agent in agents}
    outputs = {}
    for agent, spaces in agents.items():
        is_there = agent in shown and is_acting(np.asarray(shown[agent][STATE])[None])[0]
        observation = shown[agent][OBS] if is_there else rows_of(zero_rows(spaces[0], 1), 0)
        outputs[agent] = of_agents[agent].tried(observation, explore=explore, where=f"--policy {named.get(agent, agent)}")
    for_all = not given and len(texts) == 1 and set(named.values()) == {texts[0]}
    modules = {agent: DEFAULT_MODULE_ID if for_all else agent for agent in agents}
    return AgentsPolicy(environment, of_agents, modules, _in_one_form(outputs, agents))


class AgentsPolicy(Policy):
    """See Policy; observations and actions are those of a `Game`."""

    def __init__(
        self,
        environment: Environment,
        policies: Mapping[str, Policy],
        module_of: Mapping[str, str],
        outputs: Mapping[str, dict[str, Tree]],
    ) -> None:
        """All by agent; `module_of`: the module that it is recorded as; `outputs`: a row of zeros of each that is recorded."""
        self.module_of = dict(module_of)
        told = [[agent, self.module_of[agent], policy.fingerprint] for agent, policy in policies.items()]
        super().__init__(environment, hashlib.sha256(json.dumps(told).encode()).hexdigest())
        scales = {policy.action_scale for policy in policies.values()}
        self.action_scale = scales.pop() if len(scales) == 1 else "env"
        self._is_mixed = bool(scales)
        self.of_agents, self._outputs = dict(policies), outputs

    def act(self, observations: Tree, state: State, explore: bool) -> Acted:
        """See Policy. The memory has a part for each agent: its steps `t`, and what its policy remembers."""
        count = len(state.t)
        actions, for_env, extras = dict[str, Tree](), dict[str, Tree](), dict[str, Tree]()
        memory = dict(state.memory)
        for number, agent in enumerate(self.of_agents):
            own = memory[agent] = dict(memory.get(agent) or {"t": np.zeros(count, np.int64), "policy": {}})
            own["t"] = np.where(state.t == 0, 0, own["t"])
            rows = np.flatnonzero(is_acting(observations[agent][STATE]))
            acted = self._acted(agent, observations[agent], state, own, rows, draw(state.key, number), explore)
            nothing = zero_rows(self.of_agents[agent].spaces[1], 1)
            for_env[agent] = _spread(nothing, acted and acted.for_env, rows, count)
            actions[agent] = for_env[agent] if self._is_mixed else _spread(nothing, acted and acted.actions, rows, count)
            wanted = self._outputs[agent].items()
            extras[agent] = {name: _spread(zero, acted and acted.extras[name], rows, count) for name, zero in wanted}
        return Acted(actions, for_env, extras if any(extras.values()) else {}, memory)

    def _acted(
        self, agent: str, seen: Tree, state: State, own: dict[str, Any], rows: NDArray[np.int64], key: int, explore: bool
    ) -> Acted | None:
        """The agent's actions in the games of these rows; None: it acts in none. `own`, its part of the memory, is changed."""
        if not len(rows):
            return None
        t = own["t"][rows]
        infos = None if state.infos is None else [state.infos[row].get(agent) or {} for row in rows.tolist()]
        rewards = np.where(t == 0, 0.0, rewards_in(seen[STATE][rows]))
        mine = State(state.episodes[rows], t, rewards, key, infos, rows_of(own["policy"], rows))
        acted = self.of_agents[agent].act(rows_of(seen[OBS], rows), mine, explore)
        own["t"][rows] += 1
        own["policy"] = with_rows(own["policy"], rows, acted.memory, len(state.t))
        return acted


def _in_one_form(outputs: Mapping[str, dict[str, Tree]], spaces: Mapping[str, Spaces]) -> dict[str, dict[str, Tree]]:
    """By agent, the outputs that all agents of its spaces give in one form; a note names the others."""

    def form(agent: str, name: str) -> list[Any]:
        return [(path, leaf.dtype, leaf.shape) for path, leaf in flatten(outputs[agent].get(name, {}))]

    found = {
        agent: {
            name: zero
            for name, zero in own.items()
            if all(
                form(other, name) == form(agent, name) for other in spaces if all(map(same_space, spaces[other], spaces[agent]))
            )
        }
        for agent, own in outputs.items()
    }
    if left := {name for agent, own in outputs.items() for name in own.keys() - found[agent].keys()}:
        _log.warning("note: not recorded, as not all policies give them in one form: %s", ", ".join(sorted(left)))
    return found


def _spread(zero: Tree, found: Tree | None, rows: NDArray[np.int64], count: int) -> Tree:
    """Rows (count, ...) of all games, zeros where the agent does not act."""

    def spread(leaf: NDArray[Any], new: NDArray[Any] | None = None) -> NDArray[Any]:
        whole = np.repeat(leaf, count, axis=0)
        if new is not None:
            whole[rows] = new
        return whole

    return map_leaves(spread, zero) if found is None else map_leaves(spread, zero, found)

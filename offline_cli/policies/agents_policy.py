"""Several agents' policies combined into one: `AGENT=POLICY` for each, a pattern for several, or one policy for all.

An agent's policy is called only for observations on which the agent acts. Recorded actions have one scale: the policies' if all
agree, else the environment's.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

import numpy as np
from numpy.typing import NDArray

from offline_cli.environments import ACTS, OBS, REWARD, STATE, Environment
from offline_cli.episodes.episode_spaces import zero_rows
from offline_cli.errors import BadConfig
from offline_cli.modules.rl_module import DEFAULT_MODULE_ID
from offline_cli.policies.policy import Acted, Policy, State, draw
from offline_cli.spaces import Space, same_space
from offline_cli.trees import Tree, flatten, map_leaves, rows_of, with_rows

__all__ = ["AgentsPolicy", "open_agents"]

Spaces = tuple[Space, Space]


def open_agents(
    texts: Sequence[str],
    environment: Environment,
    opened: Callable[[str, str, Spaces], Policy],
    given: Mapping[str, Policy],
    shown: Mapping[str, Any],
    *,
    explore: bool,
) -> AgentsPolicy:
    """Open the policies named by `texts` for the agents of `environment`. `opened`: opens a text for an agent and its spaces.
    `given`: open policies by agent; `shown`: first observations of a game by agent.

    Raises like `opened` and `Policy.tried`.
    """
    assert environment.agents is not None, "not a multi-agent environment"
    agents = environment.agents
    left = [agent for agent in agents if agent not in given]
    named = _assigned(texts, left) if left else {}
    policies, shared = dict(given), dict[tuple[str, str], Policy]()  # agents with equal spaces share a policy
    for agent, text in named.items():
        key = text, repr(agents[agent])
        if key not in shared:
            shared[key] = opened(text, agent, agents[agent])
        policies[agent] = shared[key]
    outputs = dict[str, dict[str, Tree]]()
    for agent, spaces in agents.items():
        is_there = agent in shown and shown[agent][STATE][ACTS]
        observation = shown[agent][OBS] if is_there else rows_of(zero_rows(spaces[0], 1), 0)
        outputs[agent] = policies[agent].tried(observation, explore=explore, where=f"--policy {named.get(agent, agent)}")
    for_all = not given and len(texts) == 1 and set(named.values()) == {texts[0]}
    modules = {agent: DEFAULT_MODULE_ID if for_all else agent for agent in agents}
    alike = _in_one_form(outputs, agents)
    opened_all = AgentsPolicy(environment, {agent: policies[agent] for agent in agents}, modules, alike)
    opened_all.outputs_left_out = sorted({name for agent, own in outputs.items() for name in own.keys() - alike[agent].keys()})
    return opened_all


def _assigned(texts: Sequence[str], agents: Sequence[str]) -> dict[str, str]:
    """The value of each agent from `AGENT=VALUE` texts, patterns such as `archer_*=VALUE`, or one VALUE for all.

    Later texts override earlier ones. Raises BadConfig for unknown agents, and for agents without a value.
    """
    values: dict[str, str] = {}
    wrong = []
    for text in texts:
        pattern, _, value = text.partition("=")
        chosen = [pattern] if pattern in agents else [agent for agent in agents if fnmatchcase(agent, pattern)]
        if chosen and value:
            values |= dict.fromkeys(chosen, value)
        elif len(texts) == 1:
            values = dict.fromkeys(agents, text)
        else:
            wrong.append(f"{text!r}: no agent has this name")
    missing = [agent for agent in agents if agent not in values]
    if missing and not wrong:
        wrong.append(f"no policy for {', '.join(missing)}")
    if wrong:
        fix = "use --policy AGENT=... for each agent, or 'PATTERN*=...' for several"
        raise BadConfig(f"{' and '.join(wrong)}; the agents are {', '.join(agents)}", where="--policy", fix=fix)
    return values


def _in_one_form(outputs: Mapping[str, dict[str, Tree]], spaces: Mapping[str, Spaces]) -> dict[str, dict[str, Tree]]:
    """By agent, outputs whose dtypes and shapes agree for all agents of equal spaces, which share a dataset."""

    def forms(agent: str) -> set[tuple[str, str]]:
        specs = {
            name: [(path, leaf.dtype, leaf.shape) for path, leaf in flatten(tree)] for name, tree in outputs[agent].items()
        }
        return {(name, str(spec)) for name, spec in specs.items()}

    kept = dict[str, dict[str, Tree]]()
    for agent, own in outputs.items():
        shared = {
            name
            for name, _ in set.intersection(*(forms(one) for one in spaces if all(map(same_space, spaces[one], spaces[agent]))))
        }
        kept[agent] = {name: zero for name, zero in own.items() if name in shared}
    return kept


class AgentsPolicy(Policy):
    """A policy for all agents; observations and actions are those of a `Game`."""

    outputs_left_out: Sequence[str] = ()  # not recorded, because agents of equal spaces have them in different forms

    def __init__(
        self,
        environment: Environment,
        policies: Mapping[str, Policy],
        module_of: Mapping[str, str],
        outputs: Mapping[str, dict[str, Tree]],
    ) -> None:
        """By agent: policies, `module_of` (recorded module id), `outputs` (zeros (1, ...) for each recorded output)."""
        self.module_of, self.of_agents, self._outputs = dict(module_of), dict(policies), outputs
        parts = [[agent, self.module_of[agent], policy.fingerprint] for agent, policy in policies.items()]
        super().__init__(environment, hashlib.sha256(json.dumps(parts).encode()).hexdigest())
        scales = {policy.action_scale for policy in policies.values()}
        self._is_mixed = len(scales) > 1
        self.action_scale = "env" if self._is_mixed else scales.pop()

    def act(self, observations: Tree, state: State, explore: bool) -> Acted:
        """See Policy. The memory holds, by agent, its step count `t` and its policy's memory."""
        count, memory = len(state.t), dict(state.memory)
        actions, for_env, extras = dict[str, Tree](), dict[str, Tree](), dict[str, Tree]()
        for number, (agent, policy) in enumerate(self.of_agents.items()):
            seen = observations[agent]
            own = memory[agent] = dict(memory.get(agent) or {"t": np.zeros(count, np.int64), "policy": {}})
            own["t"] = np.where(state.t == 0, 0, own["t"])
            actions[agent], for_env[agent] = zero_rows(policy.spaces[1], count), zero_rows(policy.spaces[1], count)
            extras[agent] = map_leaves(lambda leaf: np.repeat(leaf, count, axis=0), self._outputs[agent])
            rows = np.flatnonzero(seen[STATE][:, ACTS])
            if not len(rows):
                continue
            t = own["t"][rows]
            infos = None if state.infos is None else [state.infos[row].get(agent) or {} for row in rows.tolist()]
            rewards = np.where(t == 0, 0.0, seen[STATE][rows, REWARD])
            held = State(state.episodes[rows], t, rewards, draw(state.key, number), infos, rows_of(own["policy"], rows))
            acted = policy.act(rows_of(seen[OBS], rows), held, explore)
            own["t"][rows] += 1
            own["policy"] = with_rows(own["policy"], rows, acted.memory, count)
            _put(for_env[agent], rows, acted.for_env)
            _put(actions[agent], rows, acted.for_env if self._is_mixed else acted.actions)
            _put(extras[agent], rows, {name: acted.extras[name] for name in extras[agent]})
        return Acted(actions, for_env, extras if any(extras.values()) else {}, memory)


def _put(whole: Tree, rows: NDArray[np.int64], new: Tree) -> None:
    """Write `new` into these rows of `whole`, leaves (count, ...)."""
    map_leaves(lambda leaf, part: leaf.__setitem__(rows, part), whole, new)

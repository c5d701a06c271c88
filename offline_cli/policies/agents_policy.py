"""Policies of several agents as one policy of their game: `AGENT=POLICY` each, a pattern for several, one for all, or a run.

An agent's policy is asked for the observations that the agent acts on, and for no others. Recorded actions have one scale: the
policies' own where all have the same, else the environment's. Extra model outputs are recorded that all policies give in one
form.
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
from offline_cli.policies.policy import RAISED, Acted, Policy, Seen, rows_of
from offline_cli.spaces import Space
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
    texts: Sequence[str], environment: Environment, opened: Callable[[str, str, Spaces, Tree | None], Policy], *, seed: int
) -> AgentsPolicy:
    """The policies that `texts` name, for the agents of `environment`. `opened`: opens a text for an agent of these spaces,
    with what it is shown in a game of this seed, None where that is nothing at first. Raises what it raises.
    """
    assert environment.agents is not None, "an environment of several agents"
    given = assigned(texts, tuple(environment.agents))
    for_all = len(texts) == 1 and set(given.values()) == {texts[0]}
    shown = _shown(environment, seed)
    policies: dict[tuple[str, str], Policy] = {}  # agents of one policy and equal spaces share it
    of_agents, outputs = {}, {}
    for agent, text in given.items():
        spaces = environment.agents[agent]
        key = text, repr(spaces)
        if key not in policies:
            policies[key] = opened(text, agent, spaces, shown.get(agent))
        of_agents[agent], outputs[agent] = policies[key], _outputs(policies[key], spaces[0], shown.get(agent))
    modules = {agent: DEFAULT_MODULE_ID if for_all else agent for agent in given}
    return AgentsPolicy(of_agents, environment.agents, modules, _common(outputs, environment.agents))


def _shown(environment: Environment, seed: int) -> dict[str, Tree]:
    """What the agents that are there first are shown in a game of this seed."""
    try:
        observations = environment.singles(1)[0].reset(seed=seed)[0]
    except Exception:  # noqa: BLE001  it is reported where it is played
        return {}
    return {agent: part[OBS] for agent, part in observations.items() if is_acting(np.asarray(part[STATE])[None])[0]}


def _outputs(policy: Policy, space: Space, example: Tree | None) -> dict[str, Tree]:
    """A row of zeros of each extra model output; none where the policy raises for what it is tried with."""
    one = zero_rows(space, 1) if example is None else map_leaves(lambda leaf: np.asarray(leaf)[None], example)
    chance = np.full((1, policy.chance_size), 0.5)
    seen = Seen(one, np.zeros(1, np.int64), np.ones(1, np.bool_), np.zeros(1), chance=chance)
    try:
        extras = policy.act(seen, None, policy.chance_size > 0).extras
    except RAISED:  # it may do so for zeros; for what it plays with it is reported
        return {}
    return {name: map_leaves(np.zeros_like, tree) for name, tree in extras.items()}


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


class AgentsPolicy:
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

    def act(self, seen: Seen, state: Any, explore: bool) -> Acted:
        """See Policy."""
        held = {agent: _Agent() for agent in self._policies} if state is None else state
        count, first = len(seen.slots), 0
        acted: dict[str, Acted | None] = {}
        rows: dict[str, NDArray[np.int64]] = {}
        for agent, policy in self._policies.items():
            last = first + policy.chance_size
            rows[agent] = np.flatnonzero(is_acting(seen.obs[agent][STATE]))
            chance = None if seen.chance is None else seen.chance[rows[agent], first:last]
            acted[agent] = held[agent].acted(policy, agent, seen, rows[agent], chance, explore) if len(rows[agent]) else None
            first = last
        actions, for_env, extras = dict[str, Tree](), dict[str, Tree](), dict[str, Tree]()
        for agent, one in acted.items():
            nothing = zero_rows(self._spaces[agent][1], 1)
            for_env[agent] = _spread(nothing, None if one is None else one.for_env, rows[agent], count)
            scaled = None if one is None else one.for_env if self._is_mixed else one.actions
            actions[agent] = _spread(nothing, scaled, rows[agent], count)
            extras[agent] = {
                name: _spread(zero, None if one is None else one.extras[name], rows[agent], count)
                for name, zero in self._outputs[agent].items()
            }
        return Acted(actions, for_env, extras if any(extras.values()) else {}, held)


class _Agent:
    """What is remembered of one agent."""

    def __init__(self) -> None:
        self.state: Any = None
        self.playing: dict[int, int] = {}  # by slot: the game that it has acted in

    def acted(self, policy: Policy, agent: str, seen: Seen, rows: NDArray[np.int64], chance: Any, explore: bool) -> Acted:
        """The actions of the agent in the games of these rows."""
        slots = seen.slots[rows]
        games = slots if seen.episodes is None else seen.episodes[rows]
        pairs = zip(slots.tolist(), games.tolist(), strict=True)
        begins = np.array([self.playing.get(slot) != game for slot, game in pairs])
        self.playing.update(zip(slots.tolist(), games.tolist(), strict=True))
        rewards = np.where(begins, 0.0, rewards_in(seen.obs[agent][STATE][rows]))
        infos = None if seen.infos is None else [seen.infos[row].get(agent) or {} for row in rows.tolist()]
        own = Seen(rows_of(seen.obs[agent][OBS], rows), slots, begins, rewards, infos, games, chance)
        acted = policy.act(own, self.state, explore)
        self.state = acted.state
        return acted


def _spread(zero: Tree, found: Tree | None, rows: NDArray[np.int64], count: int) -> Tree:
    """Rows (count, ...) of all games, zeros where the agent does not act."""

    def spread(leaf: NDArray[Any], new: NDArray[Any] | None = None) -> NDArray[Any]:
        whole = np.repeat(leaf, count, axis=0)
        if new is not None:
            whole[rows] = new
        return whole

    return map_leaves(spread, zero) if found is None else map_leaves(spread, zero, found)

"""Policies of several agents as one policy of their game: `AGENT=POLICY` each, a pattern for several, one for all, or a run.

An agent's policy is asked for the observations that the agent acts on, and for no others. Agents with the same policy and
spaces share it: their rows go through it together, in blocks of a fixed number, so that results depend on nothing that plays
beside.
Recorded actions have one scale: the policies' own where all have the same, else the environment's. Extra model outputs are
recorded that all policies give in one form.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

import numpy as np
from numpy.typing import NDArray

from offline_cli.episodes.episode_spaces import zero_rows
from offline_cli.errors import BadConfig
from offline_cli.games import OBS, STATE, is_acting
from offline_cli.policies.policy import RAISED, Acted, Policy, block_rows, rows_of
from offline_cli.spaces import Space
from offline_cli.trees import Tree, flatten, map_leaves

__all__ = ["AgentsPolicy", "Player", "assigned"]

_log = logging.getLogger(__name__)


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


@dataclass(frozen=True, slots=True, eq=False)
class Player:
    """A policy, and the agents that play by it."""

    policy: Policy
    agents: tuple[str, ...]
    spaces: tuple[Space, Space]  # of an agent's observations and actions
    module_of: Mapping[str, str]  # by agent: the module that it is recorded as
    example: Tree | None = None  # a real observation; None: none is known


class AgentsPolicy:
    """See Policy; observations and actions are those of a `Game`."""

    rows_alike = True  # the blocks are made here
    shows_numbers = False

    def __init__(
        self, players: Sequence[Player], agents: Sequence[str], *, rows: int, slots: int, records: bool = False
    ) -> None:
        """`rows`: of a block, see `block_rows`; `slots`: how many games are usually played at once; `records`: extra model
        outputs are wanted.
        """
        whose = {agent: player for player in players for agent in player.agents}
        self.module_of = {agent: whose[agent].module_of[agent] for agent in agents}
        told = [[agent, self.module_of[agent], whose[agent].policy.fingerprint] for agent in agents]
        self.fingerprint = hashlib.sha256(json.dumps(told).encode()).hexdigest()
        scales = {player.policy.action_scale for player in players}
        self.action_scale = scales.pop() if len(scales) == 1 else "env"
        self._as_played = bool(scales)
        first = 0
        places = {}
        for agent in agents:
            size = whose[agent].policy.chance_size
            places[agent] = slice(first, first + size)
            first += size
        self.chance_size = first
        self._agents = tuple(agents)
        self._players = [_Shared(player, places, rows=rows, slots=slots) for player in players]
        self._extras = _common([player.extras for player in self._players]) if records else []

    def act(self, observations: Tree, chance: NDArray[np.float64]) -> Acted:
        """See Policy."""
        count = len(chance)
        actions, for_env, extras = dict[str, Tree](), dict[str, Tree](), dict[str, Tree]()
        for player in self._players:
            for agent, acted in player.act(observations, chance, count, self._extras).items():
                for_env[agent] = acted.for_env
                actions[agent] = acted.for_env if self._as_played else acted.actions
                extras[agent] = dict(acted.extras)
        ordered = {agent: actions[agent] for agent in self._agents}
        whole = {agent: for_env[agent] for agent in self._agents}
        return Acted(ordered, whole, {agent: extras[agent] for agent in self._agents} if self._extras else {})


class _Shared:
    """One policy for the rows of all agents that play by it."""

    def __init__(self, player: Player, places: Mapping[str, slice], *, rows: int, slots: int) -> None:
        self._policy, self._agents, self._spaces = player.policy, player.agents, player.spaces
        self._places = [places[agent] for agent in player.agents]
        self._rows = (
            1 if self._policy.rows_alike else block_rows(self._policy, self._spaces[0], slots * len(self._agents), rows)
        )
        self._none = self._nothing(player.example)

    def _nothing(self, example: Tree | None) -> Acted | None:
        """A row of zeros in the form of what the policy gives; None: it raises for what it is tried with."""
        one = zero_rows(self._spaces[0], 1) if example is None else map_leaves(lambda leaf: np.asarray(leaf)[None], example)
        rows = np.zeros(self._rows, np.int64)
        try:
            acted = self._policy.act(rows_of(one, rows), np.full((self._rows, self._policy.chance_size), 0.5))
        except RAISED:  # it may do so for zeros; for what it plays with it is reported
            return None
        return _part(acted, slice(0, 1), zeros=True)

    @property
    def extras(self) -> Mapping[str, str]:
        """The form of each extra model output, by name."""
        told = {} if self._none is None else self._none.extras
        return {
            name: ", ".join(f"{path} {leaf.dtype}{leaf.shape[1:]}" for path, leaf in flatten(tree))
            for name, tree in told.items()
        }

    def act(self, observations: Tree, chance: NDArray[np.float64], count: int, extras: Sequence[str]) -> dict[str, Acted]:
        """Rows (count, ...) of each agent; zeros where it does not act. `extras`: which outputs are wanted."""
        acting = np.stack([is_acting(observations[agent][STATE]) for agent in self._agents])
        which, row = np.nonzero(acting)
        acted = None
        if len(row):
            seen = map_leaves(
                lambda *leaves: np.concatenate([leaf[mask] for leaf, mask in zip(leaves, acting, strict=True)]),
                *(observations[agent][OBS] for agent in self._agents),
            )
            drawn = np.concatenate([chance[mask, place] for place, mask in zip(self._places, acting, strict=True)])
            acted = self._in_blocks(seen, drawn)
            self._none = self._none or _part(acted, slice(0, 1), zeros=True)
        return {agent: self._spread(acted, which == number, row, count, extras) for number, agent in enumerate(self._agents)}

    def _in_blocks(self, observations: Tree, chance: NDArray[np.float64]) -> Acted:
        count, size = len(chance), self._rows if not self._policy.rows_alike else len(chance)
        order = np.concatenate([np.arange(count), np.zeros(-count % size, np.int64)])
        blocks = [order[first : first + size] for first in range(0, len(order), size)]
        parts = [self._policy.act(rows_of(observations, block), chance[block]) for block in blocks]
        if len(parts) == 1:
            return _part(parts[0], slice(0, count))

        def joined(pick: Callable[[Acted], Tree]) -> Tree:
            return map_leaves(lambda *leaves: np.concatenate(leaves)[:count], *map(pick, parts))

        return Acted(
            joined(lambda part: part.actions),
            joined(lambda part: part.for_env),
            {name: joined(lambda part, name=name: part.extras[name]) for name in parts[0].extras},  # type: ignore[misc]
        )

    def _spread(
        self, acted: Acted | None, mine: NDArray[np.bool_], row: NDArray[np.int64], count: int, extras: Sequence[str]
    ) -> Acted:
        """Rows of all games for one agent, from those in which it acts."""
        if self._none is None:
            none = zero_rows(self._spaces[1], count)
            return Acted(none, none)

        def spread(zero: Tree, found: Tree | None) -> Tree:
            if found is None:
                return map_leaves(lambda leaf: np.repeat(leaf, count, axis=0), zero)
            return map_leaves(lambda leaf, new: _placed(leaf, new[mine], row[mine], count), zero, found)

        none = self._none
        for_env = spread(none.for_env, None if acted is None else acted.for_env)
        apart = none.actions is not none.for_env
        actions = spread(none.actions, None if acted is None else acted.actions) if apart else for_env
        wanted = {name: spread(none.extras[name], None if acted is None else acted.extras[name]) for name in extras}
        return Acted(actions, for_env, wanted)


def _placed(zero: NDArray[Any], new: NDArray[Any], rows: NDArray[np.int64], count: int) -> NDArray[Any]:
    found = np.repeat(zero, count, axis=0)
    found[rows] = new
    return found


def _part(acted: Acted, rows: slice, *, zeros: bool = False) -> Acted:
    def part(tree: Tree) -> Tree:
        return map_leaves(lambda leaf: np.zeros_like(leaf[rows]) if zeros else leaf[rows], tree)

    for_env = part(acted.for_env)
    actions = for_env if acted.actions is acted.for_env else part(acted.actions)
    return Acted(actions, for_env, {name: part(tree) for name, tree in acted.extras.items()})


def _common(forms: Sequence[Mapping[str, str]]) -> list[str]:
    """The extra model outputs that all policies give in one form; a note names those left out."""
    common = [name for name, form in forms[0].items() if all(other.get(name) == form for other in forms)]
    left = sorted({name for form in forms for name in form} - set(common))
    if left:
        _log.warning("note: not recorded, as not all policies give them in one form: %s", ", ".join(left))
    return common

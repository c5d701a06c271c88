"""Whether the episodes of several agents fit each other: one of each agent in a game, and one module that an agent acts by."""

from __future__ import annotations

from collections import Counter

from offline_cli.checking.validate.findings import Findings
from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.episodes.known_episodes import KnownIds

__all__ = ["Agents"]


class Agents:
    """Of one source; looks at episodes that say their agent, and costs nothing where none does."""

    def __init__(self, findings: Findings, source: str) -> None:
        self._findings, self._source = findings, source
        self._known = KnownIds()  # of games, each with one of its agents
        self.episodes: Counter[str] = Counter()  # by agent
        self.modules: Counter[str] = Counter()  # by module
        self._module_of: dict[str, str | None] = {}

    def see(self, batch: EpisodeBatch) -> None:
        """Look at the ids of its episodes."""
        self.modules.update(name for name in batch.module_ids or () if name is not None)
        if batch.agent_ids is None:
            return
        self.episodes.update(name for name in batch.agent_ids if name is not None)
        none = (None,) * len(batch)
        modules = batch.module_ids or none
        played = list(zip(batch.multi_agent_ids or none, batch.agent_ids, strict=True))
        keys = {number: f"{game}\n{agent}" for number, (game, agent) in enumerate(played) if None not in (game, agent)}
        known, here = self._known.met(tuple(keys.values())), set[str]()
        for number, key in keys.items():
            if key in known or key in here:
                game, agent = played[number]
                place = f"{self._source}, episode {batch.ids[number]}: agent {agent} of {game}"
                self._findings.add(self._source, "agent-twice", 1, [place], episodes=[batch.ids[number]])
            here.add(key)
        self._known.add(tuple(key for key in dict.fromkeys(keys.values()) if key not in known))
        for number, (agent, module) in enumerate(zip(batch.agent_ids, modules, strict=True)):
            if agent is not None and self._module_of.setdefault(agent, module) != module:
                place = f"{self._source}, episode {batch.ids[number]}: {module}, before {self._module_of[agent]}"
                self._findings.add(self._source, "agent-of-two-modules", 1, [place], episodes=[batch.ids[number]])

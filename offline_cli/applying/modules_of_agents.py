"""Which module learns from an agent's episodes: `AGENT=MODULE`, by the `module_id` of the data, or each agent its own."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Final

import numpy as np

from offline_cli.columns import Columns
from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.errors import BadConfig, UsageError
from offline_cli.modules.rl_module import DEFAULT_MODULE_ID

__all__ = ["AgentsSeen", "ModuleOf", "OneModule"]

OPTION: Final = "--module-of"
BY_COLUMN: Final = (Columns.MODULE_ID, Columns.AGENT_ID)
Pair = tuple[str | None, str | None]  # agent and module of an episode, as the data has them


@dataclass(frozen=True, slots=True)
class ModuleOf:
    """What was given, checked."""

    texts: tuple[str, ...]  # `AGENT=MODULE`, agents may be patterns, a later one stands before; or the name of a column alone

    @classmethod
    def of(cls, texts: Sequence[str]) -> ModuleOf:
        """Raises UsageError for texts of no form."""
        alone = [text for text in texts if "=" not in text]
        wrong = [text for text in texts if "=" in text and not all(text.partition("=")[::2])]
        wrong += [text for text in alone if text not in BY_COLUMN]
        if wrong or (alone and len(texts) > 1):
            what = (
                f"{', '.join(map(repr, wrong or texts))} {'say' if len(wrong or texts) > 1 else 'says'} no module of an agent"
            )
            fix = f"{OPTION} AGENT=MODULE for each agent, {OPTION} '*=shared', or {OPTION} {' or '.join(BY_COLUMN)} alone"
            raise UsageError(what, where=OPTION, fix=fix)
        return cls(tuple(texts))

    def module(self, pair: Pair) -> str | None:
        """The module of an episode; None: nothing says it."""
        agent, module = pair
        if self.texts[0] in BY_COLUMN:
            return (module or DEFAULT_MODULE_ID) if self.texts[0] == Columns.MODULE_ID else agent
        if agent is None:
            return None
        given = [text.partition("=") for text in reversed(self.texts)]
        exact = [value for name, _, value in given if name == agent]
        return next(iter(exact or [value for name, _, value in given if fnmatchcase(agent, name)]), None)


@dataclass(frozen=True, slots=True)
class OneModule:
    """One module of several, and which episodes are its."""

    name: str
    module_of: ModuleOf

    def names(self, batch: EpisodeBatch) -> list[str]:
        """(E,) the module of each episode; those of agents without one are left to `AgentsSeen`."""
        pairs = list(pairs_of(batch))
        known = {pair: self.module_of.module(pair) or "" for pair in set(pairs)}
        return [known[pair] for pair in pairs]


def pairs_of(batch: EpisodeBatch) -> Iterable[Pair]:
    """(E,) agents and modules."""
    none = (None,) * len(batch)
    return zip(batch.agent_ids or none, batch.module_ids or none, strict=True)


@dataclass(slots=True)
class AgentsSeen:
    """Which agents and modules data has: episodes and steps of each pair."""

    episodes: Counter[Pair] = field(default_factory=Counter)
    steps: Counter[Pair] = field(default_factory=Counter)

    def see(self, batch: EpisodeBatch) -> None:
        """Count its episodes that have a step."""
        for pair, length in zip(pairs_of(batch), np.diff(batch.starts).tolist(), strict=True):
            if length:
                self.episodes[pair] += 1
                self.steps[pair] += length

    def modules(self, module_of: ModuleOf, where: str) -> dict[str, list[str]]:
        """The modules that learn, with their agents; by `module_id` an agent may have several. Raises BadConfig where an agent
        has none, and where a text is for no agent.
        """
        found: dict[str, list[str]] = {}
        problems = []
        for agent, module in self.episodes:
            name, called = (
                module_of.module((agent, module)),
                "episodes without agent_id" if agent is None else f"agent {agent!r}",
            )
            if name is None:
                problems.append(f"{called} ({self.episodes[agent, module]} episodes) has no module")
                continue
            own = found.setdefault(name, [])
            if agent is not None and agent not in own:
                own.append(agent)
        known = [agent for agent, _ in self.episodes if agent is not None]
        if module_of.texts[0] not in BY_COLUMN:
            patterns = [text.partition("=")[0] for text in module_of.texts]
            problems += [
                f"no agent is called {name!r}" for name in patterns if not any(fnmatchcase(one, name) for one in known)
            ]
        if problems:
            agents_here = ", ".join(dict.fromkeys(known)) or "none: the data has no agent_id"
            raise BadConfig.of(
                list(dict.fromkeys(problems)), where=where, fix=f"{OPTION} AGENT=MODULE; the agents are {agents_here}"
            )
        return found

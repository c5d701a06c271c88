"""Ids for the agents of one episode: each has an episode of its own, and no two episodes have one id; refuses nothing.

An agent's episode that shares its `eps_id` with another's is named `<eps_id>-<module>-<agent>`, and keeps `eps_id` as the id of
the multi-agent episode.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Final

from offline_cli.formats.step_rows import Keys

__all__ = ["SharedIds", "agent_episode_id"]

NO_MODULE: Final = "default_policy"  # RLlib's names for what a recording leaves out
NO_AGENT: Final = "default_agent"

Pair = tuple[str | None, str | None]  # agent, module


def agent_episode_id(eps_id: Any, module: str | None, agent: Any) -> str:
    """The id of one agent's episode, where several agents share `eps_id`."""
    return f"{eps_id}-{NO_MODULE if module is None else module}-{NO_AGENT if agent is None else agent}"


@dataclass(slots=True)
class SharedIds:
    """Tells the agents of one source apart, whatever part of it has been seen.

    Where the first rows have an `eps_id` of several agents, every id of the source names its agent. Where that is met only
    later, ids passed on already stay as they are, and the further agents of an `eps_id` get names.
    """

    _all: bool | None = None  # None: nothing has been seen yet
    _owners: dict[str, Pair] = field(default_factory=dict)  # whose the plain id is

    def named(self, keys: Keys) -> Keys:
        """`keys` with an id of its own for each of them."""
        pairs = list(zip(keys.agent_ids, keys.module_ids, strict=True))
        if self._all is None:
            self._all = len(set(keys.eps_ids)) < len(keys.eps_ids)
        shares = [
            self._all or self._owners.setdefault(eps_id, pair) != pair for eps_id, pair in zip(keys.eps_ids, pairs, strict=True)
        ]
        if not any(shares):
            return keys
        rows = list(zip(keys.eps_ids, pairs, shares, strict=True))
        return replace(
            keys,
            eps_ids=tuple(agent_episode_id(eps, module, agent) if shared else eps for eps, (agent, module), shared in rows),
            multi_agent_ids=tuple(eps if shared else None for eps, _, shared in rows),
        )

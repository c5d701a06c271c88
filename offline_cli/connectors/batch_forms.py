"""What form a batch is in: whose columns lie where, and who filed them; refuses to change any.

Single-agent: `batch[column]`. Multi-agent, between the pieces that map agents to modules and back: `batch[module id][column]`;
before and after those, columns filed by (episode id, agent id, module id).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from offline_cli.connectors.batch_items import Batch, Episodes
from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.errors import BadPiece
from offline_cli.modules.rl_module import module_of

__all__ = ["is_multi_agent", "keys_of", "module_parts"]


def is_multi_agent(episodes: Episodes) -> bool:
    """Whether these are episodes of several agents each."""
    return not isinstance(episodes, EpisodeBatch) and bool(episodes) and hasattr(episodes[0], "agent_episodes")


def module_parts(batch: Batch, rl_module: Any, episodes: Episodes) -> Iterator[tuple[str | None, Any, Batch]]:
    """Each (module id, module, its columns); one, with the id None, where there is a single agent."""
    if not is_multi_agent(episodes):
        yield None, rl_module, batch
        return
    for module_id, part in batch.items():
        yield module_id, None if rl_module is None else module_of(rl_module, module_id), part


def keys_of(episodes: Episodes, shared_data: Mapping[str, Any] | None, module_id: str | None) -> list[tuple[Any, ...]]:
    """The key under which each row of a stacked batch was filed, in order.

    As the piece that stacked the rows noted it in `shared_data` (RLlib's name, `memorized_map_structure`); without that note
    one row per episode. Raises BadPiece for a module that nothing was stacked for.
    """
    noted = (shared_data or {}).get("memorized_map_structure")
    if module_id is None:
        return [(id_,) for id_ in noted] if isinstance(noted, list) else [(episode.id_,) for episode in episodes]
    if not isinstance(noted, Mapping) or module_id not in noted:
        what = f"module {module_id!r} put out rows, but none were put in (those were: {list(noted or {})})"
        raise BadPiece(what, where="module-to-env pipeline", fix="call env-to-module first, with the same shared_data")
    return [(episode_id, agent_id, module_id) for episode_id, agent_id in noted[module_id]]

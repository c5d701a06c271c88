"""Copies of episodes for one call, each with a name of its own; refuses to copy arrays before somebody writes to them.

Two chunks of one episode in one call, or the same chunk twice, need two names: items are filed by name, and sequences must
not run from one chunk into another.
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from offline_cli.episodes.buffers.lookback_buffer import InfiniteLookbackBuffer
from offline_cli.episodes.single_agent_episode import SingleAgentEpisode

__all__ = ["have_names_of_their_own", "own_episodes"]


def have_names_of_their_own(episodes: Iterable[Any]) -> bool:
    """Whether no two episodes share an id, and multi-agent ones, taken apart, are told apart by theirs."""
    names = [(episode.id_, getattr(episode, "agent_id", None)) for episode in episodes]
    return len(set(names)) == len(names)


def own_episodes(episodes: Sequence[Any]) -> list[Any]:
    """A copy of each; where an id comes again, `_2`, `_3`, ... is added to it."""
    taken = {episode.id_ for episode in episodes}
    seen: Counter[Any] = Counter()
    copies = []
    for episode in episodes:
        single = isinstance(episode, SingleAgentEpisode)
        copied = _copy_of(episode) if single else _copy_of_agents(episode)
        kind = (episode.id_, episode.agent_id if single else None)
        seen[kind] += 1
        if seen[kind] > 1:
            copied.id_ = _free_name(episode.id_, taken)
            _rename_agents(copied)
        copies.append(copied)
    return copies


def _free_name(id_: str, taken: set[str]) -> str:
    number = 2
    while f"{id_}_{number}" in taken:
        number += 1
    taken.add(f"{id_}_{number}")
    return f"{id_}_{number}"


def _copy_of(episode: SingleAgentEpisode) -> SingleAgentEpisode:
    copied = copy.copy(episode)
    copied.observations = _shared(episode.observations)
    copied.actions = _shared(episode.actions)
    copied.rewards = _shared(episode.rewards)
    copied.extra_model_outputs = {name: _shared(buffer) for name, buffer in episode.extra_model_outputs.items()}
    if episode._infos is not None:
        copied._infos = _shared(episode._infos)
    return copied


def _copy_of_agents(episode: Any) -> Any:
    copied = copy.copy(episode)
    copied.agent_episodes = {agent: _copy_of(part) for agent, part in episode.agent_episodes.items()}
    return copied


def _rename_agents(episode: Any) -> None:
    """The name under which items are filed is the multi-agent episode's, where there is one."""
    if not isinstance(episode, SingleAgentEpisode):
        for part in episode.agent_episodes.values():
            part.multi_agent_episode_id = episode.id_
    elif episode.multi_agent_episode_id is not None:
        episode.multi_agent_episode_id = episode.id_


def _shared(buffer: InfiniteLookbackBuffer) -> InfiniteLookbackBuffer:
    return buffer.part(0, buffer.len_incl_lookback(), buffer.lookback, space=buffer.space)

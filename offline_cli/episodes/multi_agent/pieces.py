"""Cutting multi-agent episodes into chunks and joining them again; refuses chunks that do not continue each other.

A piece is a window on the timelines, and of each agent's episode what the window shows. Arrays are shared until one side is
written. Agents that show nothing in it, or nothing but the observation they ended with, are left out.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any, TypeVar

from offline_cli.episodes import pieces
from offline_cli.episodes.episode_data import REWARD_SPACE
from offline_cli.episodes.multi_agent.episode_data import AgentID, MultiAgentData
from offline_cli.episodes.multi_agent.timelines import SKIP, Timeline, last_seen, seen
from offline_cli.episodes.single_agent_episode import SingleAgentEpisode
from offline_cli.errors import BadEpisode

__all__ = ["append", "cut", "part"]

E = TypeVar("E", bound=MultiAgentData)


def cut(episode: E, lookback: int) -> E:
    """The successor of `episode`; see `MultiAgentEpisode.cut`."""
    if episode.is_done or lookback < 0:
        raise episode._bad(
            "a cut of an episode that is done" if episode.is_done else f"a lookback of {lookback}",
            fix="cut only episodes that go on, with a lookback of 0 or more",
        )
    end = episode.moments
    goes_on = [agent for agent, part in episode.agent_episodes.items() if not part.is_done]
    reach = max((end - 1 - last_seen(episode.env_t_to_agent_t[agent].data) for agent in goes_on), default=0)
    kept = min(max(lookback, reach), end - 1)
    successor = _window(episode, end - 1 - kept, end, kept)
    successor.env_t_started = successor.env_t = episode.env_t
    successor._custom_data = copy.deepcopy(episode._custom_data)
    for agent, chunk in successor.agent_episodes.items():
        chunk.custom_data.update(copy.deepcopy(episode.agent_episodes[agent].custom_data))
    return successor


def part(episode: E, bounds: slice, lookback: int | None) -> E:
    """The steps within `bounds`; see `MultiAgentEpisode.slice`."""
    if bounds.step not in (None, 1) or (lookback is not None and lookback < 0):
        raise episode._bad(
            f"a slice with a step of {bounds.step} and a lookback of {lookback}",
            fix="slice with a step of 1 and a lookback of 0 or more",
        )
    start, stop, _ = bounds.indices(len(episode))
    stop = max(start, stop)
    first = episode._lookback + start
    kept = min(episode._lookback if lookback is None else lookback, first)
    piece = _window(episode, first - kept, episode._lookback + stop + 1, kept)
    piece.env_t_started, piece.env_t = episode.env_t_started + start, episode.env_t_started + stop
    if stop == len(episode):
        piece.is_terminated, piece.is_truncated = episode.is_terminated, episode.is_truncated
    if start == 0:
        piece._hanging_rewards_begin = dict(episode._hanging_rewards_begin)
    return piece


def _window(episode: E, first: int, stop: int, lookback: int) -> E:
    """What the timelines show from `first` to before `stop`, the first `lookback` moments of it as lookback buffer."""
    make: Callable[..., E] = type(episode)
    piece = make(
        id_=episode.id_,
        observation_space=episode.observation_space,
        action_space=episode.action_space,
        agent_module_ids=episode._agent_to_module_mapping,
        agent_to_module_mapping_fn=episode.agent_to_module_mapping_fn,
    )
    piece._lookback = lookback
    for agent, part in episode.agent_episodes.items():
        tags = episode.env_t_to_agent_t[agent].data[first:stop]
        steps = seen(tags)
        ends = bool(steps) and steps[-1] == part.t and part.is_done
        if len(steps) > ends:
            piece.env_t_to_agent_t[agent] = Timeline(tags, lookback)
            piece.agent_episodes[agent] = _agent_piece(part, steps, min(len(seen(tags[:lookback])), len(steps) - 1), ends)
            _hang(episode, piece, agent, at_end=stop == episode.moments)
    return piece


def _agent_piece(part: SingleAgentEpisode, steps: list[int], before: int, ends: bool) -> SingleAgentEpisode:
    chunk = pieces.piece_of(part, steps[before] - part.t_started, steps[-1] - part.t_started, before)
    chunk.rewards.space = REWARD_SPACE
    if ends:
        chunk.is_terminated, chunk.is_truncated = part.is_terminated, part.is_truncated
    return chunk


def _hang(episode: MultiAgentData, piece: MultiAgentData, agent: AgentID, *, at_end: bool) -> None:
    """Let the step hang in `piece` that begins in its window and is not completed there."""
    part, tags = episode.agent_episodes[agent], piece.env_t_to_agent_t[agent].data
    at = last_seen(tags)
    t = tags[at]
    if at == len(tags) - 1 and not at_end:
        return  # the action that follows belongs to the next piece
    if t == part.t:
        for mine, theirs in _hanging(episode, piece):
            if agent in mine:
                theirs[agent] = mine[agent]
        return
    index: dict[str, Any] = {"indices": t - part.t_started, "neg_index_as_lookback": True}
    piece._hanging_actions_end[agent] = part.get_actions(**index)
    piece._hanging_rewards_end[agent] = float(part.get_rewards(**index))
    piece._hanging_extra_model_outputs_end[agent] = {
        name: part.get_extra_model_outputs(name, **index) for name in part.extra_model_outputs
    }


def _hanging(episode: MultiAgentData, other: MultiAgentData) -> list[tuple[dict[AgentID, Any], dict[AgentID, Any]]]:
    names = ("_hanging_actions_end", "_hanging_extra_model_outputs_end", "_hanging_rewards_end")
    return [(getattr(episode, name), getattr(other, name)) for name in names]


# ---- joining ----


def append(episode: MultiAgentData, other: MultiAgentData) -> None:
    """Add the steps of `other` to `episode`; see `MultiAgentEpisode.concat_episode`."""
    _check_continues(episode, other)
    goes_on = [agent for agent in other.agent_episodes if not _is_done(episode, agent)]
    both = [agent for agent in goes_on if agent in episode.agent_episodes]
    try:
        pieces.append_chunks([(episode.agent_episodes[agent], other.agent_episodes[agent]) for agent in both])
    except BadEpisode as err:
        err.where = f"multi-agent episode {episode.id_}, {err.where}"
        raise
    before = episode.moments
    for agent in goes_on:
        if agent not in episode.agent_episodes:
            episode.agent_episodes[agent] = _copy(other.agent_episodes[agent])
        episode.env_t_to_agent_t.setdefault(agent, Timeline([SKIP] * before, episode._lookback))
        _join_timelines(episode.env_t_to_agent_t[agent], other.env_t_to_agent_t[agent])
        for mine, theirs in _hanging(episode, other):
            mine.pop(agent, None)
            if agent in theirs:
                mine[agent] = theirs[agent]
    episode.env_t = other.env_t
    for timeline in episode.env_t_to_agent_t.values():
        timeline.extend([SKIP] * (episode.moments - len(timeline.data)))
    _join_the_rest(episode, other)


def _check_continues(episode: MultiAgentData, other: MultiAgentData) -> None:
    problem = ""
    if other.id_ != episode.id_:
        problem = f"a chunk of multi-agent episode {other.id_}"
    elif episode.is_done:
        problem = "a chunk after the episode was done"
    elif episode.env_t != other.env_t_started:
        problem = f"a chunk from environment timestep {other.env_t_started} on, this one ends at {episode.env_t}"
    if problem:
        raise episode._bad(problem, fix="join the chunks of one episode that `cut` made, in order, with no gaps")
    other.validate()


def _copy(part: SingleAgentEpisode) -> SingleAgentEpisode:
    """An agent's episode that can grow without `part` growing too."""
    chunk = pieces.piece_of(part, 0, len(part), None)
    chunk.rewards.space = REWARD_SPACE
    chunk.is_terminated, chunk.is_truncated = part.is_terminated, part.is_truncated
    chunk.custom_data.update(copy.deepcopy(part.custom_data))
    chunk._start_time, chunk._last_step_time = part._start_time, part._last_step_time
    return chunk


def _is_done(episode: MultiAgentData, agent: AgentID) -> bool:
    return agent in episode.agent_episodes and episode.agent_episodes[agent].is_done


def _join_timelines(mine: Timeline, theirs: Timeline) -> None:
    """The moment of the joint is in both: the chunk knows whether the agent was first seen then."""
    mine.data[-1:] = (
        theirs.data[theirs.lookback :] if mine.data[-1] == SKIP else [mine.data[-1], *theirs.data[theirs.lookback + 1 :]]
    )


def _join_the_rest(episode: MultiAgentData, other: MultiAgentData) -> None:
    for agent, reward in other._hanging_rewards_begin.items():
        episode._hanging_rewards_begin[agent] = episode._hanging_rewards_begin.get(agent, 0.0) + reward
    for agent in [agent for agent in episode._hanging_rewards_begin if _is_done(episode, agent)]:
        del episode._hanging_rewards_begin[agent]
    for agent, module in other._agent_to_module_mapping.items():
        episode._agent_to_module_mapping.setdefault(agent, module)
    episode.is_terminated, episode.is_truncated = other.is_terminated, other.is_truncated
    episode._last_step_time = other._last_step_time or episode._last_step_time
    episode._custom_data.update(other._custom_data)

"""Multi-agent episodes cut into chunks and joined again, and to and from RLlib's state layout.

* `cut`, `part`, `append`: a piece is a window on the timelines, and of each agent's episode what the window shows. Arrays are
  shared until one side is written. Agents that show nothing in it, or nothing but the observation they ended with, are left
  out. Chunks that do not continue each other raise.
* `state_of`, `episode_of`: as in RLlib, a state holds a function (agent to module), spaces, and timelines as objects: it can be
  pickled, and is not plain data. Ours can be given to RLlib 2.60 and RLlib's to us. Timelines as plain dicts of `data` and
  `lookback` are read too. States whose parts contradict each other raise. RLlib 2.60 writes timelines that are longer or
  shorter than the episode; where only skips are too many or missing, they are corrected: an agent that came late in a chunk,
  one whose last observation was repeated, one that was done early.
"""

from __future__ import annotations

import copy
from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from offline_cli.episodes import pieces
from offline_cli.episodes.episode_data import REWARD_SPACE
from offline_cli.episodes.multi_agent.episode_data import SKIP, AgentID, MultiAgentData, Timeline, first_seen, last_seen, seen
from offline_cli.episodes.single_agent_episode import SingleAgentEpisode
from offline_cli.errors import BadEpisode

__all__ = ["append", "cut", "episode_of", "part", "state_of"]

E = TypeVar("E", bound=MultiAgentData)


def cut(episode: E, lookback: int) -> E:
    """The successor of `episode`; see `MultiAgentEpisode.cut`."""
    pieces.check_cut(episode, lookback)
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
    start, stop = pieces.bounds_of(episode, bounds, lookback)
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
    """Make the step hang in `piece` that begins in its window and is not completed there."""
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
    first, *after = theirs.data[theirs.lookback :]
    mine.data[-1:] = [first if mine.data[-1] == SKIP else mine.data[-1], *after]


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


def state_of(episode: MultiAgentData) -> dict[str, Any]:
    """The state of `episode` as RLlib 2.60 lays it out; the defaults are those that RLlib's own code relies on."""
    timelines = {agent: timeline.copy() for agent, timeline in episode.env_t_to_agent_t.items()}
    return {
        "id_": episode.id_,
        "agent_to_module_mapping_fn": episode.agent_to_module_mapping_fn,
        "_agent_to_module_mapping": dict(episode._agent_to_module_mapping),
        "observation_space": episode.observation_space,
        "action_space": episode.action_space,
        "env_t_started": episode.env_t_started,
        "env_t": episode.env_t,
        "agent_t_started": defaultdict(int, episode.agent_t_started),
        "env_t_to_agent_t": defaultdict(Timeline, timelines),
        "_hanging_actions_end": dict(episode._hanging_actions_end),
        "_hanging_extra_model_outputs_end": defaultdict(dict, episode._hanging_extra_model_outputs_end),
        "_hanging_rewards_end": defaultdict(float, episode._hanging_rewards_end),
        "_hanging_rewards_begin": defaultdict(float, episode._hanging_rewards_begin),
        "is_terminated": episode.is_terminated,
        "is_truncated": episode.is_truncated,
        "agent_episodes": [(agent, part.get_state()) for agent, part in episode.agent_episodes.items()],
        "_start_time": episode._start_time,
        "_last_step_time": episode._last_step_time,
        "custom_data": episode.custom_data,
    }


def episode_of(cls: type[E], state: Mapping[str, Any]) -> E:
    """The episode of `state`, over its arrays. Raises BadEpisode for another layout, or parts that contradict each other."""
    name = state.get("id_", "(no id)") if isinstance(state, Mapping) else "(no id)"
    try:
        episode = _read(cls, state)
    except (KeyError, TypeError, ValueError, AttributeError) as err:
        raise pieces.state_error(err, "a multi-agent episode", f"state of multi-agent episode {name}", "RLlib 2.60") from err
    episode.validate()
    return episode


def _read(cls: Callable[..., E], state: Mapping[str, Any]) -> E:
    episode = cls(
        id_=str(state["id_"]),
        observation_space=state["observation_space"],
        action_space=state["action_space"],
        agent_module_ids=state["_agent_to_module_mapping"],
        agent_to_module_mapping_fn=state["agent_to_module_mapping_fn"],
    )
    episode.env_t_started, episode.env_t = int(state["env_t_started"]), int(state["env_t"])
    episode.is_terminated, episode.is_truncated = bool(state["is_terminated"]), bool(state["is_truncated"])
    for agent, part in state["agent_episodes"]:
        episode.agent_episodes[agent] = SingleAgentEpisode.from_state(part)
    _read_timelines(episode, state["env_t_to_agent_t"])
    _read_hanging(episode, state)
    episode._start_time, episode._last_step_time = state["_start_time"], state["_last_step_time"]
    episode._custom_data = dict(state.get("custom_data") or {})
    return episode


def _read_hanging(episode: MultiAgentData, state: Mapping[str, Any]) -> None:
    """What hangs, without RLlib's empty entries for agents of which nothing does."""
    episode._hanging_actions_end = dict(state["_hanging_actions_end"])
    extra = state["_hanging_extra_model_outputs_end"]
    episode._hanging_extra_model_outputs_end = {agent: dict(extra.get(agent) or {}) for agent in episode._hanging_actions_end}
    for name in ("_hanging_rewards_end", "_hanging_rewards_begin"):
        setattr(episode, name, {agent: float(reward) for agent, reward in state[name].items() if reward})
    for agent in episode._hanging_actions_end:
        episode._hanging_rewards_end.setdefault(agent, 0.0)


def _read_timelines(episode: MultiAgentData, timelines: Mapping[Any, Any]) -> None:
    parts = {agent: _parts(timeline) for agent, timeline in timelines.items()}
    episode._lookback = max((lookback for _, lookback in parts.values()), default=0)
    for agent, (tags, _) in parts.items():
        part = episode.agent_episodes.get(agent)
        _mend(tags, episode, done=part is not None and part.is_done)
        episode.env_t_to_agent_t[agent] = Timeline(tags, episode._lookback)


def _parts(timeline: Any) -> tuple[list[Any], int]:
    if isinstance(timeline, Mapping):
        return list(timeline["data"]), int(timeline["lookback"])
    return list(timeline.data), int(timeline.lookback)


def _mend(tags: list[Any], episode: MultiAgentData, *, done: bool) -> None:
    """Skips that RLlib 2.60 added or left out, in place."""
    last = last_seen(tags)
    if done and len(tags) > episode.moments and last > 0 and tags[last - 1] == SKIP:
        del tags[last - 1]
    early = len(tags) - episode.moments
    if 0 < early <= first_seen(tags):
        del tags[:early]
    tags.extend([SKIP] * (episode.moments - len(tags)))

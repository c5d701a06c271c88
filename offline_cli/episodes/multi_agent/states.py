"""Multi-agent episodes to and from RLlib's state layout; refuses states whose parts contradict each other.

As in RLlib, a state holds a function (agent to module), spaces, and timelines as objects: it can be pickled, and is no plain
data. Ours can be given to RLlib 2.60 and RLlib's to us. Read are also timelines as plain dicts of `data` and `lookback`.

RLlib 2.60 writes timelines that are longer or shorter than the episode; where only skips are too many or missing, they are
mended: an agent that came late in a chunk, one whose last observation was repeated, one that was done early.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from offline_cli.episodes.multi_agent.episode_data import MultiAgentData
from offline_cli.episodes.multi_agent.timelines import SKIP, Timeline, first_seen, last_seen
from offline_cli.episodes.single_agent_episode import SingleAgentEpisode
from offline_cli.errors import BadEpisode

__all__ = ["episode_of", "state_of"]

E = TypeVar("E", bound=MultiAgentData)


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
    where = (
        f"state of multi-agent episode {state.get('id_', '(no id)')}" if isinstance(state, Mapping) else "an episode's state"
    )
    try:
        episode = _read(cls, state)
    except (KeyError, TypeError, ValueError, AttributeError) as err:
        what = f"no {err} in it" if isinstance(err, KeyError) else str(err)
        raise BadEpisode(
            f"not the state of a multi-agent episode: {what}", where=where, fix="write it with RLlib 2.60, or with get_state"
        ) from err
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

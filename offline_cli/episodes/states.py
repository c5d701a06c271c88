"""Episodes to and from RLlib's state layout (plain dicts of plain values and arrays); refuses layouts it does not know.

Read are the layouts of RLlib 2.40 to 2.60: numpy'ized or not, numpy booleans as flags, `custom_data` or the older
`_temporary_timestep_data` or neither, `extra_model_outputs` None. Written is that of 2.60.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from offline_cli.episodes.buffers.lookback_buffer import InfiniteLookbackBuffer
from offline_cli.episodes.episode_data import EpisodeData
from offline_cli.episodes.episode_spaces import known_space_from_rllib, known_space_to_rllib
from offline_cli.errors import BadEpisode, OfflineCliError

__all__ = ["episode_of", "state_of"]

E = TypeVar("E", bound=EpisodeData)


def state_of(episode: EpisodeData) -> dict[str, Any]:
    """The state of `episode` as RLlib 2.60 lays it out."""
    extra = {name: buffer.get_state() for name, buffer in episode.extra_model_outputs.items()}
    return {
        "id_": episode.id_,
        "agent_id": episode.agent_id,
        "module_id": episode.module_id,
        "multi_agent_episode_id": episode.multi_agent_episode_id,
        "observations": episode.observations.get_state(),
        "actions": episode.actions.get_state(),
        "rewards": episode.rewards.get_state(),
        "infos": episode.infos.get_state(),
        "extra_model_outputs": extra or None,
        "is_terminated": episode.is_terminated,
        "is_truncated": episode.is_truncated,
        "t_started": episode.t_started,
        "t": episode.t,
        "_observation_space": known_space_to_rllib(episode.observation_space),
        "_action_space": known_space_to_rllib(episode.action_space),
        "_start_time": episode._start_time,
        "_last_step_time": episode._last_step_time,
        "custom_data": episode.custom_data,
    }


def episode_of(cls: type[E], state: Mapping[str, Any]) -> E:
    """The episode of `state`, over its arrays. Raises BadEpisode for another layout or lengths that disagree."""
    where = f"state of episode {state.get('id_', '(no id)')}" if isinstance(state, Mapping) else "an episode's state"
    try:
        episode = _assembled(cls, state, where)
    except (KeyError, TypeError, ValueError, AttributeError) as err:
        what = f"no {err} in it" if isinstance(err, KeyError) else str(err)
        raise BadEpisode(
            f"not the state of an episode: {what}", where=where, fix="write it with RLlib 2.40 to 2.60, or with get_state"
        ) from err
    episode.validate()
    return episode


def _assembled(cls: type[E], state: Mapping[str, Any], where: str) -> E:
    return cls.assemble(
        id_=str(state["id_"]),
        observations=_buffer(state["observations"], where, "observations"),
        actions=_buffer(state["actions"], where, "actions"),
        rewards=_buffer(state["rewards"], where, "rewards"),
        infos=_infos(state["infos"], where),
        extra_model_outputs={name: _buffer(part, where, name) for name, part in (state["extra_model_outputs"] or {}).items()},
        observation_space=known_space_from_rllib(state["_observation_space"], where=where),
        action_space=known_space_from_rllib(state["_action_space"], where=where),
        terminated=bool(state["is_terminated"]),
        truncated=bool(state["is_truncated"]),
        t_started=int(state["t_started"]),
        t=int(state["t"]),
        agent_id=state["agent_id"],
        module_id=state["module_id"],
        multi_agent_episode_id=state["multi_agent_episode_id"],
        start_time=state["_start_time"],
        last_step_time=state["_last_step_time"],
        custom_data=dict(state.get("custom_data") or state.get("_temporary_timestep_data") or {}),
    )


def _infos(state: Mapping[str, Any], where: str) -> InfiniteLookbackBuffer:
    infos = _buffer(state, where, "infos")
    if infos.data and (infos.data[0] is None or any(infos.data)):
        infos.data = [info or {} for info in infos.data]  # some writers put None where there is nothing to say
    return infos


def _buffer(state: Mapping[str, Any], where: str, name: str) -> InfiniteLookbackBuffer:
    try:
        return InfiniteLookbackBuffer.from_state(state)
    except OfflineCliError as err:
        err.where = f"{where}, {name}, {err.where}"
        raise

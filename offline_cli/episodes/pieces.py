"""Episodes cut into chunks and joined again, and to and from RLlib's state layout (plain dicts of plain values and arrays).

* `state_of`, `episode_of`: the layouts of RLlib 2.40 to 2.60 are read: numpy'ized or not, numpy booleans as flags,
  `custom_data` or the older `_temporary_timestep_data` or neither, `extra_model_outputs` None. That of 2.60 is written. An
  unknown layout raises.
* `cut`, `part`, `append_chunk`: pieces of a numpy'ized episode share its arrays until one of them is written. They keep id,
  agent and module; custom data goes into the chunk that `cut` makes and stays behind in slices, which may be many. Chunks that
  do not continue each other raise.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any, TypeVar

from offline_cli.episodes.accessors import EpisodeAccessors
from offline_cli.episodes.buffers.lookback_buffer import InfiniteLookbackBuffer
from offline_cli.episodes.episode_data import REWARD_SPACE, EpisodeData
from offline_cli.episodes.episode_spaces import known_space_from_rllib, known_space_to_rllib
from offline_cli.errors import BadEpisode, OfflineCliError, UsageError
from offline_cli.trees import Tree, leaves, map_leaves, same_leaf

__all__ = [
    "append_chunk",
    "check_cut",
    "cut",
    "episode_of",
    "gone",
    "part",
    "piece_of",
    "state_error",
    "state_of",
]

E = TypeVar("E", bound=EpisodeData)

Pair = tuple[InfiniteLookbackBuffer, InfiniteLookbackBuffer]  # the episode's and the chunk's
Piece = TypeVar("Piece", bound=EpisodeAccessors)


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
        raise state_error(err, "an episode", where, "RLlib 2.40 to 2.60") from err
    episode.validate()
    return episode


def state_error(err: Exception, kind: str, where: str, writers: str) -> BadEpisode:
    """The error for what is not the state of `kind`."""
    what = f"no {err} in it" if isinstance(err, KeyError) else str(err)
    return BadEpisode(f"not the state of {kind}: {what}", where=where, fix=f"write it with {writers}, or with get_state")


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
        infos.data = [info or {} for info in infos.data]  # some writers put None for nothing
    return infos


def _buffer(state: Mapping[str, Any], where: str, name: str) -> InfiniteLookbackBuffer:
    try:
        return InfiniteLookbackBuffer.from_state(state)
    except OfflineCliError as err:
        err.where = f"{where}, {name}, {err.where}"
        raise


def cut(episode: Piece, lookback: int) -> Piece:
    """The successor of `episode`: its last observation, with up to `lookback` steps before it. Raises BadEpisode if done."""
    check_cut(episode, lookback)
    chunk = piece_of(episode, len(episode), len(episode), lookback)
    chunk.rewards.space = REWARD_SPACE
    chunk.custom_data.update(copy.deepcopy(episode.custom_data))
    return chunk


def check_cut(episode: Any, lookback: int) -> None:
    """Raise BadEpisode unless `episode`, of one agent or several, continues in a chunk with such a lookback."""
    if episode.is_done or lookback < 0:
        what = "a cut of an episode that is done" if episode.is_done else f"a lookback of {lookback}"
        raise episode._bad(what, fix="cut only episodes that are not done, with a lookback of 0 or more")


def gone(episode: Any, *_: Any, **__: Any) -> Any:
    """A method that is gone from RLlib. Raises UsageError, naming `custom_data`."""
    raise UsageError("temporary timestep data is gone", where=f"episode {episode.id_}", fix="use episode.custom_data[key]")


def part(episode: Piece, bounds: slice, lookback: int | None) -> Piece:
    """The steps within `bounds`; see `SingleAgentEpisode.slice`."""
    if bounds.step not in (None, 1) or (lookback is not None and lookback < 0):
        what = f"a slice with a step of {bounds.step} and a lookback of {lookback}"
        raise episode._bad(what, fix="slice with a step of 1 and a lookback of 0 or more")
    start, stop, _ = bounds.indices(len(episode))
    stop = max(start, stop)
    piece = piece_of(episode, start, stop, lookback)
    if stop == len(episode):
        piece.is_terminated, piece.is_truncated = episode.is_terminated, episode.is_truncated
    return piece


def piece_of(episode: Piece, start: int, stop: int, lookback: int | None) -> Piece:
    """The steps `start` to `stop`, counted from timestep 0 of the chunk (below 0: in its lookback buffer); neither flag set."""
    infos = episode._infos
    return type(episode).assemble(
        id_=episode.id_,
        observations=_piece(episode.observations, start, stop + 1, lookback),
        actions=_piece(episode.actions, start, stop, lookback),
        # Without their space, as in RLlib: it would only decide that filled rewards are float32.
        rewards=_piece(episode.rewards, start, stop, lookback, keep_space=False),
        infos=None if infos is None else _piece(infos, start, stop + 1, lookback),
        extra_model_outputs={
            name: _piece(buffer, start, stop, lookback) for name, buffer in episode.extra_model_outputs.items()
        },
        observation_space=episode.observation_space,
        action_space=episode.action_space,
        terminated=False,
        truncated=False,
        t_started=episode.t_started + start,
        t=episode.t_started + stop,
        agent_id=episode.agent_id,
        module_id=episode.module_id,
        multi_agent_episode_id=episode.multi_agent_episode_id,
    )


def _piece(
    buffer: InfiniteLookbackBuffer, start: int, stop: int, lookback: int | None, *, keep_space: bool = True
) -> InfiniteLookbackBuffer:
    kept = min(buffer.lookback if lookback is None else lookback, buffer.lookback + start)
    first = buffer.lookback + start
    return buffer.part(first - kept, buffer.lookback + stop, kept, space=buffer.space if keep_space else None)


def append_chunk(episode: EpisodeAccessors, other: EpisodeAccessors) -> None:
    """Add to an episode the chunk in which it continues, or nothing of it: then BadEpisode is raised."""
    _check_continues(episode, other)
    acted = [(episode.actions, other.actions), (episode.rewards, other.rewards)]
    acted += [(buffer, other.extra_model_outputs[name]) for name, buffer in episode.extra_model_outputs.items()]
    _extend_all(_seen(episode, other), acted)
    episode.t = other.t
    episode.is_terminated, episode.is_truncated = other.is_terminated, other.is_truncated
    episode._last_step_time = other._last_step_time or episode._last_step_time
    episode.custom_data.update(other.custom_data)


def _seen(episode: EpisodeAccessors, other: EpisodeAccessors) -> list[Pair]:
    if episode.has_infos or other.has_infos:
        return [(episode.observations, other.observations), (episode.infos, other.infos)]
    episode._infos = None
    return [(episode.observations, other.observations)]


def _extend_all(seen: list[Pair], acted: list[Pair]) -> None:
    """All of the chunk's records or, if one kind of them does not fit, none."""
    before = [(mine, mine.data, mine.len_incl_lookback()) for mine, _ in (*seen, *acted)]
    try:
        for mine, theirs in acted:
            _extend(mine, theirs, first=0)
        for mine, theirs in seen:
            _extend(mine, theirs, first=1)
    except BadEpisode:
        for mine, data, count in before:
            mine.data = data if mine.finalized else data[:count]
        raise
    for mine, theirs in seen:  # the joint is in both, equal; as in RLlib, the chunk's stays
        if not mine.finalized:
            mine.data[-len(theirs)] = theirs.get(0)


def _extend(mine: InfiniteLookbackBuffer, theirs: InfiniteLookbackBuffer, *, first: int) -> None:
    theirs.shared()
    if len(theirs) > first:
        mine.extend(theirs.get(slice(first, None)))


def _check_continues(episode: EpisodeAccessors, other: EpisodeAccessors) -> None:
    problem = ""
    if other.id_ != episode.id_:
        problem = f"a chunk of episode {other.id_}"
    elif episode.is_done:
        problem = "a chunk after the episode was done"
    elif episode.t != other.t_started:
        problem = f"a chunk from timestep {other.t_started} on, this one ends at {episode.t}"
    elif episode.extra_model_outputs.keys() != other.extra_model_outputs.keys():
        names = [sorted(chunk.extra_model_outputs) for chunk in (other, episode)]
        problem = f"a chunk with extra model outputs {names[0]}, {names[1]} here"
    if not problem:
        episode.validate()
        other.validate()
        if not episode.is_reset or not other.is_reset:
            problem = "a chunk without a first observation"
        elif not _same(episode.get_observations(-1), other.get_observations(0)):
            problem = f"a chunk whose first observation is not the last one here, of timestep {episode.t}"
    if problem:
        raise BadEpisode(problem, where=f"episode {episode.id_}", fix="join the chunks of one episode in order, with no gaps")


def _same(left: Tree, right: Tree) -> bool:
    try:
        return all(leaves(map_leaves(same_leaf, left, right)))
    except ValueError:  # other structures
        return False

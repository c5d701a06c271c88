"""Data of several agents at environment timesteps or at their own, and a multi-agent episode as text, one row per agent.

Environment timesteps are found through the timelines: an agent that got no observation then is left out, or filled. Actions,
rewards and extra model outputs are at the timestep of the observation that they follow, also while they still hang. An index
without an answer raises, unless `fill` is given.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable
from dataclasses import dataclass
from functools import partial
from typing import Any

from offline_cli.episodes.buffers.indexing import Indices, clip, inside, position, position_range, positions
from offline_cli.episodes.buffers.lookback_buffer import FILL, GetterOptions, InfiniteLookbackBuffer
from offline_cli.episodes.multi_agent.episode_data import SKIP, AgentID, MultiAgentData
from offline_cli.errors import BadEpisode, EpisodeIndexError, EpisodeKeyError
from offline_cli.printable_text import printable

__all__ = ["Question", "answer", "answer_as_list", "table"]

SEEN = ("observations", "infos")  # there is one more of these than of the rest
EXTRA = "extra_model_outputs"
NOTHING = object()


@dataclass(frozen=True, slots=True)
class Question:
    """The request of a getter."""

    kind: str
    indices: Indices
    agents: Any  # one agent, several, or None for all
    env_steps: bool
    options: GetterOptions
    key: str | None = None  # of an extra model output; None: all of them

    @property
    def fill(self) -> Any:
        return self.options.get("fill")

    @property
    def is_single(self) -> bool:
        return not (self.indices is None or isinstance(self.indices, slice) or hasattr(self.indices, "__len__"))


@dataclass(frozen=True, slots=True)
class Records:
    """One kind of data of one agent, with the record at its end that still hangs."""

    buffer: InfiniteLookbackBuffer
    hanging: tuple[Any, ...]  # the record, or nothing

    def __len__(self) -> int:
        return self.buffer.len_incl_lookback() + len(self.hanging)

    def whole(self) -> InfiniteLookbackBuffer:
        """A buffer with what hangs at its end."""
        if not self.hanging:
            return self.buffer
        data = self.buffer.appended(self.hanging[0]) if self.buffer.finalized else [*self.buffer.data, self.hanging[0]]
        return InfiniteLookbackBuffer.over(data, self.buffer.lookback, self.buffer.space, finalized=self.buffer.finalized)

    def at(self, rows: Any, question: Question) -> Any:
        """The record at one row, or those at several; None stands for one that is missing and to be filled."""
        stored, single = self.buffer.len_incl_lookback(), not isinstance(rows, list)
        wanted = [rows] if single else rows
        buffer = self.whole() if stored in wanted else self.buffer
        at = [(len(self) if row is None else row) - buffer.lookback for row in wanted]
        in_order = at == list(range(at[0], at[0] + len(at)))  # in most cases, and then much faster as a range
        indices = at[0] if single else slice(at[0], at[-1] + 1) if in_order else at
        options: GetterOptions = {**question.options, "neg_index_as_lookback": True}
        return buffer.get(indices, **options)


def answer(episode: MultiAgentData, question: Question) -> dict[AgentID, Any]:
    """By agent, one record or several; agents without any of those asked for are left out."""
    agents = _agents(episode, question)
    if not question.env_steps:
        return _each(episode, agents, question, lambda agent, records: _by_agent_steps(records, question))
    moments = _moments(episode, question) if agents else []

    def pick(agent: AgentID, records: Records) -> Any:
        rows = _rows(episode, agent, moments, len(records))
        if question.is_single:
            return _single(records, rows[0], question)
        rows = rows if question.fill is not None else [row for row in rows if row is not None]
        return records.at(rows, question) if rows else NOTHING

    return _each(episode, agents, question, pick)


def answer_as_list(episode: MultiAgentData, question: Question) -> list[dict[AgentID, Any]]:
    """One dict by agent per environment timestep asked for. Raises BadEpisode for agents' own timesteps."""
    if not question.env_steps:
        what, where = f"{question.kind} as a list by the agents' own timesteps", f"multi-agent episode {episode.id_}"
        raise BadEpisode(what, where=where, fix="only one of env_steps=False and return_list=True")
    agents = _agents(episode, question)

    def pick(at: int, agent: AgentID, records: Records) -> Any:
        return _single(records, _rows(episode, agent, [at], len(records))[0], question)

    moments = _moments(episode, question) if agents else []
    return [_each(episode, agents, question, partial(pick, at)) for at in moments]


# ---- who ----


def _agents(episode: MultiAgentData, question: Question) -> list[AgentID]:
    asked = question.agents
    if asked is None:
        wanted: Collection[Any] = episode.agent_episodes
    elif isinstance(asked, Hashable) and (isinstance(asked, str) or asked in episode.agent_episodes):
        wanted = (asked,)
    else:
        wanted = asked if isinstance(asked, Collection) else (asked,)
    found = [agent for agent in episode.agent_episodes if agent in wanted]
    return found if question.key is None else _with_key(episode, found, question.key)


def _with_key(episode: MultiAgentData, agents: list[AgentID], key: str) -> list[AgentID]:
    names = {agent: _names(episode, agent) for agent in agents}
    found = [agent for agent in agents if key in names[agent]]
    if agents and not found:
        known = ", ".join(sorted({str(name) for some in names.values() for name in some})) or "there are none"
        where = f"multi-agent episode {episode.id_}"
        raise EpisodeKeyError(f"no extra model output {key!r}", where=where, fix=f"one of: {known}")
    return found


def _names(episode: MultiAgentData, agent: AgentID) -> list[str]:
    hanging = episode._hanging_extra_model_outputs_end.get(agent) or {}
    return list(dict.fromkeys([*episode.agent_episodes[agent].extra_model_outputs, *hanging]))


def _each(
    episode: MultiAgentData, agents: list[AgentID], question: Question, pick: Callable[[AgentID, Records], Any]
) -> dict[AgentID, Any]:
    found = {}
    for agent in agents:
        try:
            value = _of_agent(episode, agent, question, pick)
        except BadEpisode as err:
            err.where = f"multi-agent episode {episode.id_}, agent {agent!r}, {question.kind}, {err.where}"
            raise
        if value is not NOTHING:
            found[agent] = value
    return found


def _of_agent(episode: MultiAgentData, agent: AgentID, question: Question, pick: Callable[[AgentID, Records], Any]) -> Any:
    part, hangs = episode.agent_episodes[agent], agent in episode._hanging_actions_end
    if question.kind == EXTRA:
        names = _names(episode, agent) if question.key is None else [question.key]
        values = {name: pick(agent, _extra(episode, agent, name)) for name in names}
        values = {name: value for name, value in values.items() if value is not NOTHING}
        return values.get(question.key, NOTHING) if question.key is not None else values or NOTHING
    hanging: tuple[Any, ...] = ()
    if hangs and question.kind == "actions":
        hanging = (episode._hanging_actions_end[agent],)
    elif hangs and question.kind == "rewards":
        hanging = (episode._hanging_rewards_end.get(agent, 0.0),)
    return pick(agent, Records(getattr(part, question.kind), hanging))


def _extra(episode: MultiAgentData, agent: AgentID, name: str) -> Records:
    hanging = episode._hanging_extra_model_outputs_end.get(agent) or {}
    buffer = episode.agent_episodes[agent].extra_model_outputs.get(name, InfiniteLookbackBuffer())
    return Records(buffer, (hanging[name],) if name in hanging else ())


# ---- when ----


def _moments(episode: MultiAgentData, question: Question) -> list[int]:
    """Positions in the timelines, -1 for missing ones, which get `fill`. Raises EpisodeIndexError."""
    length = episode.moments - (question.kind not in SEEN)
    frame = (length, episode._lookback, question.options.get("neg_index_as_lookback", False))
    indices = slice(None) if question.indices is None else question.indices
    if isinstance(indices, slice):
        wanted = position_range(indices, *frame)
        if question.fill is None or inside(wanted, length):
            return list(range(length)[clip(wanted, length)])
        found = list(wanted)
    else:
        found = [position(indices, *frame)] if question.is_single else positions(indices, *frame).tolist()
    outside = [at for at in found if not 0 <= at < length]
    if outside and question.fill is None:
        before, where = episode._lookback, f"multi-agent episode {episode.id_}, {question.kind}"
        what = f"no environment timestep {outside[0] - before}: there are {length - before} from 0 on, {before} before"
        raise EpisodeIndexError(what, where=where, fix=FILL)
    return [at if 0 <= at < length else -1 for at in found]


def _rows(episode: MultiAgentData, agent: AgentID, moments: list[int], count: int) -> list[int | None]:
    """Where the agent's records of these environment timesteps are among its `count`; None where there are none."""
    part, tags = episode.agent_episodes[agent], episode.env_t_to_agent_t[agent].data
    first = part.t_started - part.observations.lookback
    found: list[Any] = [tags[at] if at >= 0 else SKIP for at in moments]
    return [None if tag == SKIP or tag - first >= count else tag - first for tag in found]


# ---- what ----


def _single(records: Records, row: int | None, question: Question) -> Any:
    return NOTHING if row is None and question.fill is None else records.at(row, question)


def _by_agent_steps(records: Records, question: Question) -> Any:
    values = records.whole().get(question.indices, **question.options)
    return NOTHING if not question.is_single and _is_empty(values) else values


def _is_empty(values: Any) -> bool:
    if isinstance(values, dict):
        return not values or _is_empty(next(iter(values.values())))
    if isinstance(values, tuple):
        return not values or _is_empty(values[0])
    return len(values) == 0


def table(episode: MultiAgentData) -> str:
    """Environment timesteps across, from the lookback buffer's first; an x where an agent got an observation."""
    names = [printable(str(agent)) for agent in episode.agent_episodes]
    width = max(map(len, ["ts", *names])) + 2
    times = [str(t) for t in range(-episode._lookback, len(episode) + 1)]
    rows = [("ts", times)]
    for agent, name in zip(episode.agent_episodes, names, strict=True):
        rows.append((name, ["" if tag == SKIP else "x" for tag in episode.env_t_to_agent_t[agent].data]))
    cell = max(map(len, times)) + 1
    return "\n".join((name.ljust(width) + "".join(mark.ljust(cell) for mark in marks)).rstrip() for name, marks in rows)

"""EpisodeBatch, the unit of bulk work: many episodes as arrays (`batch_arrays.py`), and as a sequence of single episodes.

Between the two: a single episode of a batch costs microseconds (views, no copies, infos made on demand); a batch of single
episodes is one concatenate or stack per leaf over all steps, numpy'ized or not. Episodes that cannot share one array per leaf
raise BadEpisode.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain, groupby
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from offline_cli.episodes.batch_arrays import BatchArrays, Infos, forms, in_words
from offline_cli.episodes.buffers.lookback_buffer import InfiniteLookbackBuffer
from offline_cli.episodes.buffers.stacking import stack
from offline_cli.episodes.episode_data import REWARD_SPACE
from offline_cli.episodes.episode_spaces import zero_rows
from offline_cli.episodes.single_agent_episode import SingleAgentEpisode
from offline_cli.errors import BadEpisode
from offline_cli.spaces import Space, same_space
from offline_cli.trees import Tree, map_leaves

__all__ = ["EpisodeBatch", "Infos"]

Pick = Callable[[SingleAgentEpisode], InfiniteLookbackBuffer]
Named = tuple[SingleAgentEpisode, Tree]  # arrays, and the (first) episode they are from
ONE_STRUCTURE: Final = "put episodes of one structure into one batch"


def _view(tree: Tree, rows: slice, space: Space | None) -> InfiniteLookbackBuffer:
    data = tree[rows] if type(tree) is np.ndarray else map_leaves(lambda leaf: leaf[rows], tree)
    return InfiniteLookbackBuffer.over(data, 0, space, finalized=True)


def _infos_view(batch: BatchArrays, first: int, stop: int) -> InfiniteLookbackBuffer | None:
    if batch.infos is None:
        return None
    return InfiniteLookbackBuffer.over(list(batch.infos[first:stop]), 0, None, finalized=False)


def _at(names: tuple[str | None, ...] | None, e: int) -> str | None:
    return None if names is None else names[e]


def _second(batch: BatchArrays, e: int, which: int) -> float | None:
    if batch.clock is None:
        return None
    seconds = float(batch.clock[e, which])
    return None if seconds != seconds else seconds  # NaN: unknown


def _check(episode: SingleAgentEpisode) -> None:
    episode.validate()
    if not episode.is_reset:
        fix = "leave it out, or add_env_reset first"
        raise BadEpisode("an episode without a first observation", where=f"episode {episode.id_}", fix=fix)


# ---- one array per leaf ----


def _joined(whole: Sequence[SingleAgentEpisode], name: str, pick: Pick, space: Space | None) -> Tree:
    """All records of one kind, lookback buffers left out: one stack per run of lists, one concatenate per leaf."""
    filled = [episode for episode in whole if len(pick(episode))]
    if not filled:
        return _empty(whole, pick, space)
    runs = groupby(filled, key=lambda episode: pick(episode).finalized)
    trees: list[Named] = []
    for finalized, run in runs:
        trees += [(episode, pick(episode).get()) for episode in run] if finalized else _stacked(list(run), name, pick, space)
    _check_alike(trees, name)
    if len(trees) == 1:
        return trees[0][1]
    return map_leaves(lambda *parts: np.concatenate(parts), *(tree for _, tree in trees))


def _stacked(run: list[SingleAgentEpisode], name: str, pick: Pick, space: Space | None) -> list[Named]:
    records = list(chain.from_iterable(pick(episode).get() for episode in run))
    if _one_kind(records):
        with suppress(BadEpisode):  # found again below, and reported with the episode's name
            return [(run[0], stack(records, space))]
    return [(episode, _stacked_alone(episode, name, pick, space)) for episode in run]


def _stacked_alone(episode: SingleAgentEpisode, name: str, pick: Pick, space: Space | None) -> Tree:
    try:
        return stack(pick(episode).get(), space)
    except BadEpisode as err:
        err.where = f"episode {episode.id_}, {name}, {err.where}"
        raise


def _one_kind(records: list[Any]) -> bool:
    """Whether stacking all records at once cannot hide that one episode's type differs from another's."""
    kinds = set(map(type, records))
    if len(kinds) > 1:
        return False
    first = records[0]
    if isinstance(first, np.ndarray):
        return [record.dtype for record in records].count(first.dtype) == len(records)
    if isinstance(first, dict):
        parts = [[record.get(key) for record in records] for key in first]
    elif isinstance(first, (tuple, list)):
        parts = [list(column) for column in zip(*records, strict=False)]
    else:
        return True
    return all(map(_one_kind, parts))


def _check_alike(trees: list[Named], name: str) -> None:
    first, expected = trees[0][0], forms(trees[0][1], name)
    for episode, tree in trees[1:]:
        found = forms(tree, name)
        if found != expected:
            path = next(key for key in {**expected, **found} if found.get(key) != expected.get(key))
            what = f"{path} is {in_words(found.get(path))}, in episode {first.id_} {in_words(expected.get(path))}"
            raise BadEpisode(what, where=f"episode {episode.id_}, {path}", fix=ONE_STRUCTURE)


def _empty(whole: Sequence[SingleAgentEpisode], pick: Pick, space: Space | None) -> Tree:
    """No records at all: leaves (0, *shape) after an episode's arrays or the space; (0,) float64 where nothing is known."""
    for episode in whole:
        if pick(episode).finalized:
            return pick(episode).get()
    return zero_rows(space, 0)


def _rewards(whole: Sequence[SingleAgentEpisode]) -> NDArray[np.float64]:
    parts = [np.asarray(episode.rewards.get(), np.float64) for episode in whole]
    for episode, part in zip(whole, parts, strict=True):
        if part.ndim != 1:
            where = f"episode {episode.id_}, rewards"
            raise BadEpisode(f"rewards of shape {part.shape}", where=where, fix="give one number per step")
    return np.concatenate([np.zeros(0), *parts])


def _extra(whole: Sequence[SingleAgentEpisode]) -> dict[str, Tree]:
    stepped = [episode for episode in whole if len(episode)]
    if not stepped:
        return {}
    names = stepped[0].extra_model_outputs.keys()
    for episode in stepped[1:]:
        if episode.extra_model_outputs.keys() != names:
            what = f"extra model outputs {sorted(episode.extra_model_outputs)}, in episode {stepped[0].id_} {sorted(names)}"
            raise BadEpisode(what, where=f"episode {episode.id_}", fix=ONE_STRUCTURE)
    return {name: _joined(stepped, name, _picker(name), None) for name in names}


def _picker(name: str) -> Pick:
    return lambda episode: episode.extra_model_outputs[name]


# ---- one value per episode ----


def _one_space(whole: Sequence[SingleAgentEpisode], name: str) -> Space | None:
    known: tuple[SingleAgentEpisode, Space] | None = None
    seen: set[int] = set()  # equal spaces are mostly one object: compare each object once
    for episode in whole:
        space = getattr(episode, name)
        if space is None or id(space) in seen:
            continue
        seen.add(id(space))
        if known is None:
            known = episode, space
        elif not same_space(space, known[1]):
            what, fix = f"{name} {space}, in {_said(known[0])} {known[1]}", "put episodes of one environment into one batch"
            if episode.agent_id is not None and episode.agent_id != known[0].agent_id:
                fix = "agents with other spaces go into other datasets: write those of each kind by themselves, "
                fix += "[episode.agent_episodes[agent] for episode in episodes for agent in agents_of_one_kind]"
            raise BadEpisode(what, where=_said(episode), fix=fix)
    return None if known is None else known[1]


def _said(episode: SingleAgentEpisode) -> str:
    agent = "" if episode.agent_id is None else f", agent {episode.agent_id}"
    return f"episode {episode.id_}{agent}"


def _infos(whole: Sequence[SingleAgentEpisode]) -> list[Any] | None:
    if not any(episode.has_infos for episode in whole):
        return None
    return list(chain.from_iterable(episode.infos.get() for episode in whole))


def _starts(whole: Sequence[SingleAgentEpisode]) -> NDArray[np.int64] | None:
    starts = np.array([episode.t_started for episode in whole], np.int64)
    return starts if starts.any() else None


def _names(whole: Sequence[SingleAgentEpisode], name: str) -> tuple[str | None, ...] | None:
    values = [getattr(episode, name) for episode in whole]
    if all(value is None for value in values):
        return None
    return tuple(None if value is None else str(value) for value in values)


def _clock(whole: Sequence[SingleAgentEpisode]) -> NDArray[np.float64] | None:
    seconds = [(episode._start_time, episode._last_step_time) for episode in whole]
    if all(pair == (None, None) for pair in seconds):
        return None
    return np.array(seconds, np.float64)  # None becomes NaN


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class EpisodeBatch(BatchArrays):
    """E episodes of T_1 ... T_E steps, N in all: one array per leaf, and numpy'ized episodes on demand, over views of these."""

    def __getitem__(self, episode: int) -> SingleAgentEpisode:
        """Episode `episode` as a numpy'ized SingleAgentEpisode over views of the batch; its setters copy before they write."""
        e = range(len(self))[episode]
        first, stop = int(self.starts[e]), int(self.starts[e + 1])
        start = 0 if self.t_started is None else int(self.t_started[e])
        return SingleAgentEpisode.assemble(
            id_=self.ids[e],
            observations=_view(self.obs, slice(first + e, stop + e + 1), self.observation_space),
            actions=_view(self.actions, slice(first, stop), self.action_space),
            rewards=_view(self.rewards, slice(first, stop), REWARD_SPACE),
            infos=_infos_view(self, first + e, stop + e + 1),
            extra_model_outputs={name: _view(tree, slice(first, stop), None) for name, tree in self.extra.items()},
            observation_space=self.observation_space,
            action_space=self.action_space,
            terminated=bool(self.terminated[e]),
            truncated=bool(self.truncated[e]),
            t_started=start,
            t=start + stop - first,
            agent_id=_at(self.agent_ids, e),
            module_id=_at(self.module_ids, e),
            multi_agent_episode_id=_at(self.multi_agent_ids, e),
            start_time=_second(self, e, 0),
            last_step_time=_second(self, e, 1),
            custom_data=None if self.custom_data is None else dict(self.custom_data[e]),
        )

    def __iter__(self) -> Iterator[SingleAgentEpisode]:
        return (self[e] for e in range(len(self)))

    @classmethod
    def from_episodes(cls, episodes: Iterable[SingleAgentEpisode]) -> EpisodeBatch:
        """The batch of `episodes`, in order, lookback buffers left out; rewards become float64.

        Episodes of no steps (a first observation only) are taken too. Raises BadEpisode, naming episode and leaf, where
        structures, shapes, dtypes or spaces differ, and for an episode without a first observation.
        """
        whole = list(episodes)
        for episode in whole:
            _check(episode)
        data = tuple(dict(episode.custom_data) for episode in whole)
        starts = np.cumsum([0, *map(len, whole)], dtype=np.int64)
        observation_space = _one_space(whole, "observation_space")
        action_space = _one_space(whole, "action_space")
        return cls(
            ids=tuple(episode.id_ for episode in whole),
            starts=starts,
            obs=_joined(whole, "observations", lambda episode: episode.observations, observation_space),
            actions=_joined(whole, "actions", lambda episode: episode.actions, action_space),
            rewards=_rewards(whole),
            terminated=np.array([episode.is_terminated for episode in whole], np.bool_),
            truncated=np.array([episode.is_truncated for episode in whole], np.bool_),
            extra=_extra(whole),
            infos=_infos(whole),
            t_started=_starts(whole),
            agent_ids=_names(whole, "agent_id"),
            module_ids=_names(whole, "module_id"),
            multi_agent_ids=_names(whole, "multi_agent_episode_id"),
            custom_data=data if any(data) else None,
            clock=_clock(whole),
            observation_space=observation_space,
            action_space=action_space,
        )

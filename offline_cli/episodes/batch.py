"""EpisodeBatch: many episodes as one contiguous array per leaf, and as a sequence of single episodes.

Layout, which every reader, writer, connector and trainer relies on:

* Observations hold T+1 rows per episode (the last is never acted on), so leaves have N+E rows and the observations of
  episode e are rows `starts[e] + e : starts[e + 1] + e + 1`. Actions, rewards and extra model outputs have N rows.
* A batch has one structure: all its episodes share keys, dtypes and shapes. Readers start a new batch where these change.
* No lookback buffers: their steps belong to an earlier chunk of the same episode (`SingleAgentEpisode` keeps them).

Indexing a single episode costs microseconds: it returns views.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, Self

import numpy as np
from numpy.typing import NDArray

from offline_cli.columns import STATE_COLUMNS, Columns
from offline_cli.episodes.episode_spaces import zero_rows
from offline_cli.episodes.lookback_buffer import InfiniteLookbackBuffer
from offline_cli.episodes.single_agent_episode import REWARD_SPACE, SingleAgentEpisode
from offline_cli.episodes.stacking import stack
from offline_cli.errors import BadEpisode
from offline_cli.spaces import Space, same_space
from offline_cli.tally import Tally
from offline_cli.trees import Tree, flatten, map_leaves, rows_of

__all__ = ["EpisodeBatch", "Form", "Infos", "forms", "in_words"]

Infos = Sequence[Mapping[str, Any]]
OF_EPISODES: Final[Mapping[str, Any]] = {
    "t_started": 0,
    "start_kind": 0,
    **dict.fromkeys(("agent_ids", "module_ids", "multi_agent_ids"), None),
    "custom_data": {},
    "clock": np.nan,
    "final_missing": False,
}
"""Optional fields (E, ...), with each episode's value where the field is None."""
Form = tuple[np.dtype[Any], tuple[int, ...]]
"""Dtype and shape of one step."""


@dataclass(frozen=True, slots=True, eq=False, repr=False)  # eq=False: arrays have no single truth value
class EpisodeBatch:
    """E episodes of T_1 ... T_E steps, N in all, as one array per leaf. Raises BadEpisode where lengths disagree."""

    ids: tuple[str, ...]  # (E,)
    starts: NDArray[np.int64]  # (E+1,): the steps of episode e are starts[e]:starts[e+1]
    obs: Tree  # leaves (N+E, *obs_shape)
    actions: Tree  # leaves (N, *action_shape), in the scale that the source recorded
    rewards: NDArray[np.float64]  # (N,) in the environment's own units, never scaled here
    terminated: NDArray[np.bool_]  # (E,) the task ended: the last observation has value 0
    truncated: NDArray[np.bool_]  # (E,) a time limit ended it: bootstrap from the last observation
    extra: Mapping[str, Tree] = field(default_factory=dict)  # extra model outputs by name: leaves (N, ...)
    infos: Infos | None = None  # (N+E,) dicts aligned with observations; None when every one is empty
    t_started: NDArray[np.int64] | None = None  # (E,) timestep of the first action; None: all 0
    start_kind: NDArray[np.uint8] | None = None  # (E,) `StartKind` of fragments; None: all start at `t_started`
    agent_ids: tuple[str | None, ...] | None = None  # (E,); None: all None
    module_ids: tuple[str | None, ...] | None = None  # (E,); None: all None
    multi_agent_ids: tuple[str | None, ...] | None = None  # (E,); None: all None
    custom_data: tuple[Mapping[str, Any], ...] | None = None  # (E,); None: all empty
    clock: NDArray[np.float64] | None = None  # (E, 2) seconds at start and last step by the recorder's clock; NaN: unknown
    final_missing: NDArray[np.bool_] | None = None  # (E,) for fragments: the last observation repeats the previous one
    observation_space: Space | None = None  # of one observation; None: unknown
    action_space: Space | None = None

    def __post_init__(self) -> None:
        n, e = self.num_steps, len(self.ids)
        self._check("starts", len(self.starts), e + 1)
        if e and int(np.diff(self.starts).min()) < 0:
            raise self._bad("starts decrease")
        for path, leaf in flatten(self.obs, "obs"):
            self._check(path, len(leaf), n + e)
        for name, tree in (("actions", self.actions), *self.extra.items()):
            for path, leaf in flatten(tree, name):
                self._check(path, len(leaf), n)
        self._check("rewards", len(self.rewards), n)
        if self.infos is not None:
            self._check("infos", len(self.infos), n + e)
        for name in ("terminated", "truncated", *OF_EPISODES):
            value = getattr(self, name)
            if value is not None:
                self._check(name, len(value), e)

    def _check(self, name: str, have: int, want: int) -> None:
        if have != want:
            raise self._bad(f"{name} has {have} rows instead of {want} for {len(self.ids)} episodes of {self.num_steps} steps")

    def _bad(self, what: str) -> BadEpisode:
        where = f"batch from episode {self.ids[0] if self.ids else '(none)'}"
        return BadEpisode(
            what,
            where=where,
            fix="give N rows of actions and rewards, N + E of obs, and E + 1 starts for E episodes of N steps",
        )

    # ---- sizes ----

    @property
    def num_steps(self) -> int:
        """N: the number of steps of all episodes."""
        return int(self.starts[-1]) if len(self.starts) else 0

    def __len__(self) -> int:
        """E: the number of episodes."""
        return len(self.ids)

    @property
    def lengths(self) -> NDArray[np.int64]:
        """(E,) steps of each episode."""
        return np.diff(self.starts)

    @property
    @np.errstate(all="ignore")
    def returns(self) -> NDArray[np.float64]:
        """(E,) undiscounted sum of rewards, in the environment's units; may be infinite or NaN."""
        found, filled = np.zeros(len(self), np.float64), self.lengths > 0
        if filled.any():
            found[filled] = np.add.reduceat(self.rewards, self.starts[:-1][filled])
        return found

    @property
    def final_obs_assumed(self) -> NDArray[np.bool_]:
        """(E,) whether the last observation was not recorded and repeats the previous one; stored in custom data."""
        marks = [data.get(Columns.FINAL_OBS_ASSUMED) for data in self.custom_data or ({},) * len(self)]
        return np.array([isinstance(mark, bool | np.bool_) and bool(mark) for mark in marks], np.bool_)

    def with_assumed_finals(self, missing: NDArray[np.bool_]) -> Self:
        """Mark the episodes in `missing` (E,), in custom data, as lacking a recorded last observation."""
        pairs = zip(self.custom_data or ({},) * len(self), missing.tolist(), strict=True)
        data = tuple({**one, Columns.FINAL_OBS_ASSUMED: True} if here else one for one, here in pairs)
        return replace(self, custom_data=data) if missing.any() else self

    @property
    def invented_ends(self) -> NDArray[np.bool_]:
        """(E,) whether bootstrapping after the last step would use an assumed observation; False for terminated episodes."""
        return self.final_obs_assumed & ~self.terminated

    @property
    def obs_starts(self) -> NDArray[np.int64]:
        """(E+1,): the observations of episode e are rows obs_starts[e]:obs_starts[e+1]."""
        return self.starts + np.arange(len(self.starts), dtype=np.int64)

    @property
    def nbytes(self) -> int:
        """Size of the arrays in bytes, without infos."""
        trees = (self.obs, self.actions, *self.extra.values())
        return int(self.rewards.nbytes) + sum(int(leaf.nbytes) for tree in trees for _, leaf in flatten(tree))

    # ---- rows ----

    def step_rows(self) -> NDArray[np.int64]:
        """(N,) row of the observation that each step acted on; the next observation is at `step_rows() + 1`."""
        acts = np.ones(self.num_steps + len(self), np.bool_)
        acts[self.obs_starts[1:] - 1] = False  # final observations
        return np.flatnonzero(acts)  # seven times faster than computing offsets per step

    def acted_obs(self, *, view: bool = False) -> Tree:
        """Leaves (N, *obs_shape): the observation each step acted on.

        `view`: the caller does not modify them, so a batch of one episode returns views.
        """
        return self._observations(0, view)

    def next_obs(self, *, view: bool = False) -> Tree:
        """Leaves (N, *obs_shape): the next observation of each step; `view`: see `acted_obs`."""
        return self._observations(1, view)

    def _observations(self, later: int, view: bool) -> Tree:
        if view and len(self) == 1:
            return rows_of(self.obs, slice(later, later + self.num_steps))
        rows = self.step_rows() + later
        return map_leaves(lambda leaf: leaf.take(rows, axis=0), self.obs)  # many times faster than leaf[rows]

    def timesteps(self) -> NDArray[np.int64]:
        """(N,) the timestep of each step within its episode, starting at `t_started`."""
        first = self.starts[:-1] if self.t_started is None else self.starts[:-1] - self.t_started
        return np.arange(self.num_steps, dtype=np.int64) - np.repeat(first, self.lengths)

    def step_flags(self) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
        """(N,) terminateds and truncateds per step; only the last step of an episode can be True."""
        flags = np.zeros((2, self.num_steps), np.bool_)
        whole = self.lengths > 0
        last = self.starts[1:][whole] - 1
        flags[0, last], flags[1, last] = self.terminated[whole], self.truncated[whole]
        return flags[0], flags[1]

    def step_columns(self) -> dict[str, Tree]:
        """Leaves (N, ...), views, by column name: actions, rewards, end flags, and extra outputs except module states."""
        terminateds, truncateds = self.step_flags()
        return {
            Columns.ACTIONS: self.actions,
            Columns.REWARDS: self.rewards,
            Columns.TERMINATEDS: terminateds,
            Columns.TRUNCATEDS: truncateds,
            **{name: tree for name, tree in self.extra.items() if name not in STATE_COLUMNS},
        }

    # ---- parts ----

    def select(self, episodes: slice | Sequence[int] | NDArray[np.integer[Any] | np.bool_]) -> Self:
        """Select episodes, in this order, by slice, indices (K,) or mask (E,).

        Arrays are views if `episodes` is a slice with step 1. Raises IndexError.
        """
        if isinstance(episodes, slice) and episodes.step in (None, 1):
            return self._select_run(*episodes.indices(len(self))[:2])
        is_index = not isinstance(episodes, slice) and np.asarray(episodes).dtype != np.bool_
        index = np.asarray(episodes, np.int64) if is_index else np.arange(len(self))[episodes]
        lengths = self.lengths[index]
        starts = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
        rows = np.arange(starts[-1]) + np.repeat(self.starts[index] - starts[:-1], lengths)
        obs_starts = starts + np.arange(len(starts))
        obs_rows = np.arange(obs_starts[-1]) + np.repeat(self.obs_starts[index] - obs_starts[:-1], lengths + 1)
        return self._part(index, starts, rows, obs_rows)

    def _select_run(self, first: int, stop: int) -> Self:
        stop = max(first, stop)
        starts = self.starts[first : stop + 1] - self.starts[first]
        rows = slice(int(self.starts[first]), int(self.starts[stop]))
        obs_starts = self.obs_starts
        return self._part(range(first, stop), starts, rows, slice(int(obs_starts[first]), int(obs_starts[stop])))

    def without_invented(self) -> Self:
        """Drop the last step of episodes with `invented_ends`, so that all end at a recorded observation."""
        cut = self.invented_ends & (self.lengths > 0)
        if not cut.any():
            return self
        rows = np.delete(np.arange(self.num_steps), self.starts[1:][cut] - 1)
        obs_rows = np.delete(np.arange(self.num_steps + len(self)), self.obs_starts[1:][cut] - 1)
        return self._part(range(len(self)), np.concatenate([[0], np.cumsum(self.lengths - cut)]), rows, obs_rows)

    def _part(self, index: Any, starts: NDArray[np.int64], rows: Any, obs_rows: Any) -> Self:
        chosen = slice(index.start, index.stop) if isinstance(index, range) else index

        def of_each(values: Sequence[Any], rows: Any = chosen) -> Iterable[Any]:
            if isinstance(rows, slice):
                return values[rows]
            return map(values.__getitem__, rows.tolist())  # indexing with numpy integers is several times slower

        known: list[tuple[str, Any]] = [(name, value) for name in OF_EPISODES if (value := getattr(self, name)) is not None]
        each: dict[str, Any] = {
            name: value[chosen] if isinstance(value, np.ndarray) else tuple(of_each(value)) for name, value in known
        }
        return type(self)(
            ids=tuple(of_each(self.ids)),
            starts=starts,
            obs=map_leaves(lambda leaf: leaf[obs_rows], self.obs),
            actions=map_leaves(lambda leaf: leaf[rows], self.actions),
            rewards=self.rewards[rows],
            terminated=self.terminated[chosen],
            truncated=self.truncated[chosen],
            extra={name: map_leaves(lambda leaf: leaf[rows], tree) for name, tree in self.extra.items()},
            infos=None if self.infos is None else list(of_each(self.infos, obs_rows)),
            observation_space=self.observation_space,
            action_space=self.action_space,
            **each,
        )

    def without_first_steps(self, episodes: NDArray[np.bool_]) -> Self:
        """Drop the first step of the masked episodes (E,), which need at least one step."""
        kept, kept_obs = np.ones(self.num_steps, np.bool_), np.ones(self.num_steps + len(self), np.bool_)
        kept[self.starts[:-1][episodes]] = kept_obs[self.obs_starts[:-1][episodes]] = False
        starts = self.starts - np.concatenate([[0], np.cumsum(episodes)])
        return self._part(np.arange(len(self)), starts, np.flatnonzero(kept), np.flatnonzero(kept_obs))

    @classmethod
    def concat(cls, batches: Sequence[Self]) -> Self:
        """Concatenate `batches`, in order. Raises BadEpisode, naming the leaf, if structures differ."""
        if not batches:
            raise ValueError("no batches to concatenate")
        if len(batches) == 1:
            return batches[0]
        first = batches[0]
        for other in batches[1:]:
            difference = first.structure_difference(other)
            if difference:
                what = f"episodes of different structures cannot share a batch: {difference}"
                fix = "put episodes of one structure into one batch or dataset; for agents of one kind:"
                fix += " [episode.agent_episodes[agent] for episode in episodes for agent in agents_of_one_kind]"
                raise BadEpisode(what, where=f"{_named(other)}, beside {_named(first)}", fix=fix)
        offsets = np.cumsum([0, *(batch.num_steps for batch in batches)])
        starts = np.concatenate([b.starts[(0 if i == 0 else 1) :] + offsets[i] for i, b in enumerate(batches)])
        names = ("obs", "actions", "rewards", "terminated", "truncated", "extra")
        trees = [{name: getattr(batch, name) for name in names} for batch in batches]
        return cls(
            ids=tuple(i for batch in batches for i in batch.ids),
            starts=starts,
            **map_leaves(lambda *parts: np.concatenate(parts), *trees),
            infos=_join_infos(batches),
            observation_space=first.observation_space,
            action_space=first.action_space,
            **{name: _joined_of_episodes(batches, name, missing) for name, missing in OF_EPISODES.items()},
        )

    def structure_difference(self, other: EpisodeBatch) -> str:
        """Describe why the two batches cannot be concatenated; empty if they can."""
        mine, theirs = self._structure(), other._structure()
        for name in {**mine, **theirs} if mine != theirs else ():
            if mine.get(name) != theirs.get(name):
                return f"{name} is {in_words(mine.get(name))} in one and {in_words(theirs.get(name))} in the other"
        if self.extra.keys() != other.extra.keys():  # `_structure` omits trees without leaves
            return f"extra model outputs are {sorted(self.extra)} in one and {sorted(other.extra)} in the other"
        for name in ("observation_space", "action_space"):
            if not same_space(getattr(self, name), getattr(other, name)):
                return f"{name} is {getattr(self, name)} in one and {getattr(other, name)} in the other"
        return ""

    def _structure(self) -> dict[str, Form]:
        trees = (("obs", self.obs), ("actions", self.actions), *((f"extra {name}", tree) for name, tree in self.extra.items()))
        return {path: form for name, tree in trees for path, form in forms(tree, name).items()}

    def __repr__(self) -> str:
        shapes = ", ".join(f"{name}: {in_words(form)}" for name, form in self._structure().items())
        return f"{type(self).__name__}({len(self)} episodes, {self.num_steps} steps, {shapes})"

    # ---- single episodes ----

    def __getitem__(self, episode: int) -> SingleAgentEpisode:
        """One episode as a numpy'ized SingleAgentEpisode over views of the batch; its setters copy on write."""
        e = range(len(self))[episode]
        first, stop = int(self.starts[e]), int(self.starts[e + 1])
        acted, seen = slice(first, stop), slice(first + e, stop + e + 1)
        start = 0 if self.t_started is None else int(self.t_started[e])
        infos = [{} for _ in range(stop - first + 1)] if self.infos is None else list(self.infos[seen])
        clock = (None, None) if self.clock is None else [None if s != s else s for s in self.clock[e].tolist()]  # NaN: unknown
        return SingleAgentEpisode.assemble(
            id_=self.ids[e],
            observations=_view(self.obs, seen, self.observation_space),
            actions=_view(self.actions, acted, self.action_space),
            rewards=_view(self.rewards, acted, REWARD_SPACE),
            infos=InfiniteLookbackBuffer.over(infos, 0, None, finalized=False),
            extra_model_outputs={name: _view(tree, acted, None) for name, tree in self.extra.items()},
            is_terminated=bool(self.terminated[e]),
            is_truncated=bool(self.truncated[e]),
            t_started=start,
            t=start + stop - first,
            agent_id=None if self.agent_ids is None else self.agent_ids[e],
            module_id=None if self.module_ids is None else self.module_ids[e],
            multi_agent_episode_id=None if self.multi_agent_ids is None else self.multi_agent_ids[e],
            _start_time=clock[0],
            _last_step_time=clock[1],
            custom_data={} if self.custom_data is None else dict(self.custom_data[e]),
        )

    def __iter__(self) -> Iterator[SingleAgentEpisode]:
        return (self[e] for e in range(len(self)))

    @classmethod
    def from_episodes(cls, episodes: Iterable[SingleAgentEpisode], *, tally: Tally | None = None) -> EpisodeBatch:
        """Build a batch from `episodes`, in order, without lookback buffers; rewards become float64.

        Episodes without steps (a first observation only) are allowed; `tally` counts leaves whose dtypes had to be widened.
        Raises BadEpisode, naming the episodes, if structures, shapes, dtypes or spaces differ, or an episode has no first
        observation.
        """
        whole = list(episodes)
        for episode in whole:
            episode.validate()
            if not episode.is_reset:
                fix = "leave it out, or add_env_reset first"
                raise BadEpisode("an episode without a first observation", where=f"episode {episode.id_}", fix=fix)
        known = [
            next((space for episode in whole if (space := getattr(episode, name)) is not None), None)
            for name in ("observation_space", "action_space")
        ]
        if not whole:
            none = {"ids": (), "starts": np.zeros(1, np.int64), "rewards": np.zeros(0), "actions": zero_rows(known[1], 0)}
            return cls(**none, obs=zero_rows(known[0], 0), terminated=np.zeros(0, np.bool_), truncated=np.zeros(0, np.bool_))
        stepped = next((episode for episode in whole if len(episode)), whole[0])
        like = cls._of_one(stepped, known, None, tally)
        return cls.concat([like if episode is stepped else cls._of_one(episode, known, like, tally) for episode in whole])

    @classmethod
    def _of_one(
        cls, episode: SingleAgentEpisode, known: Sequence[Space | None], like: EpisodeBatch | None, tally: Tally | None
    ) -> EpisodeBatch:
        """The batch of one episode; `like` provides the structure of actions and outputs for an episode without steps."""

        def arrays(name: str, buffer: InfiniteLookbackBuffer, space: Space | None) -> Tree:
            if not len(buffer) and not buffer.finalized:
                return zero_rows(space, 0)
            try:
                return buffer.get() if buffer.finalized else stack(buffer.get(), space, tally=tally)
            except BadEpisode as err:
                err.where = f"episode {episode.id_}, {name}, {err.where}"
                raise

        spaces = [
            of_all if own is None else own
            for own, of_all in zip((episode.observation_space, episode.action_space), known, strict=True)
        ]
        obs = arrays("observations", episode.observations, spaces[0])
        if like is not None and not len(episode):
            actions, extra = rows_of(like.actions, slice(0)), rows_of(dict(like.extra), slice(0))
        else:
            actions = arrays("actions", episode.actions, spaces[1])
            extra = {name: arrays(name, buffer, None) for name, buffer in episode.extra_model_outputs.items()}
        tally = None  # rewards become float64 from any dtype
        rewards = arrays("rewards", episode.rewards, None)
        if not isinstance(rewards, np.ndarray) or rewards.ndim != 1 or rewards.dtype.kind not in "biuf":
            where = f"episode {episode.id_}, rewards"
            raise BadEpisode("rewards are not one number per step", where=where, fix="give one number per step")
        names = [getattr(episode, name) for name in ("agent_id", "module_id", "multi_agent_episode_id")]
        agent, module, multi = (None if name is None else (str(name),) for name in names)
        clock = np.array([(episode._start_time, episode._last_step_time)], np.float64)  # None becomes NaN
        return cls(
            ids=(episode.id_,),
            starts=np.array([0, len(episode)], np.int64),
            obs=obs,
            actions=actions,
            rewards=rewards.astype(np.float64, copy=False),
            terminated=np.array([episode.is_terminated], np.bool_),
            truncated=np.array([episode.is_truncated], np.bool_),
            extra=extra,
            infos=episode.infos.get() if episode.has_infos else None,
            t_started=np.array([episode.t_started], np.int64) if episode.t_started else None,
            agent_ids=agent,
            module_ids=module,
            multi_agent_ids=multi,
            custom_data=(dict(episode.custom_data),) if episode.custom_data else None,
            clock=None if np.isnan(clock).all() else clock,
            observation_space=spaces[0],
            action_space=spaces[1],
        )


def forms(tree: Tree, name: str) -> dict[str, Form]:
    """Dtype and shape of one step, by leaf path."""
    if type(tree) is np.ndarray:  # the usual case
        return {name: (tree.dtype, tree.shape[1:])}
    return {path: (leaf.dtype, leaf.shape[1:]) for path, leaf in flatten(tree, name)}


def in_words(form: Form | None) -> str:
    """Format a form for messages."""
    return "absent" if form is None else f"{form[0]}{form[1]}"


def _named(batch: EpisodeBatch) -> str:
    """Name the first episode of a batch for messages."""
    agent = batch.agent_ids[0] if batch.agent_ids else None
    return f"episode {batch.ids[0]}" + ("" if agent is None else f", agent {agent}")


def _joined_of_episodes(batches: Sequence[EpisodeBatch], name: str, missing: Any) -> Any:
    """Concatenate a field of all batches; None where no batch has it."""
    parts = [getattr(batch, name) for batch in batches]
    like = next((part for part in parts if part is not None), None)
    if like is None:
        return None
    if not isinstance(like, np.ndarray):
        return tuple(value for batch, part in zip(batches, parts, strict=True) for value in part or (missing,) * len(batch))
    shape, sizes = like.shape[1:], map(len, batches)
    wanted = zip(sizes, parts, strict=True)
    return np.concatenate([np.full((size, *shape), missing, like.dtype) if part is None else part for size, part in wanted])


def _join_infos(batches: Sequence[EpisodeBatch]) -> Infos | None:
    if all(batch.infos is None for batch in batches):
        return None
    empty: Mapping[str, Any] = {}
    return [info for b in batches for info in (b.infos if b.infos is not None else [empty] * (b.num_steps + len(b)))]


def _view(tree: Tree, rows: slice, space: Space | None) -> InfiniteLookbackBuffer:
    return InfiniteLookbackBuffer.over(rows_of(tree, rows), 0, space, finalized=True)

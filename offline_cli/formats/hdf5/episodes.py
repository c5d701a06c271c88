"""Episodes of files that keep each in a group, or in datasets, of its own: the one loop over them.

A layout says where the datasets of an episode are (`EpisodeDatasets`); here they are checked and read, whole or, where they are
large, some rows at a time, and joined to `EpisodeBatch`es of one structure.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, Protocol

import numpy as np
from numpy.typing import NDArray

from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.errors import BadEpisode
from offline_cli.formats.action_shapes import choices, one_number_each
from offline_cli.formats.hdf5.safe import FRAMES, TEXT, Form, Hdf5File, Node
from offline_cli.formats.source import FileSource, Fragments, Origins
from offline_cli.formats.tables.episodes import source_hash
from offline_cli.tally import MISSING_REWARDS, Lost, Rejects, Tally
from offline_cli.trees import Tree, flatten, leaves, map_leaves

__all__ = [
    "Column",
    "EpisodeDatasets",
    "EpisodeLayout",
    "ReadEpisode",
    "batches",
    "fragments_of_files",
    "numbered",
    "read_episodes",
]

TOGETHER: Final = 16 << 20  # bytes of arrays in one batch
MOST: Final = 4096  # episodes in one batch
PART: Final = 32 << 20  # bytes of rows of an episode that is read in parts
FIX: Final = "write the episode again, or leave it out with --on-error skip"


@dataclass(frozen=True, slots=True)
class ReadEpisode:
    """One episode, or some steps of it that follow each other."""

    id: str
    number: int  # in its file, for messages
    obs: Tree  # leaves (T + 1, ...)
    actions: Tree  # leaves (T, ...)
    rewards: NDArray[np.float64]  # (T,)
    terminated: bool
    truncated: bool
    t_started: int = 0
    final_missing: bool = False
    extra: Mapping[str, Tree] = field(default_factory=dict)
    infos: Sequence[Mapping[str, Any]] | None = None  # T + 1
    custom_data: Mapping[str, Any] | None = None
    agent_id: str | None = None
    module_id: str | None = None

    @property
    def nbytes(self) -> int:
        """Of observations and actions."""
        return sum(int(leaf.nbytes) for tree in (self.obs, self.actions) for leaf in leaves(tree))

    @property
    def structure(self) -> Any:
        """Equal for episodes that can share a batch."""
        trees = (("obs", self.obs), ("actions", self.actions), *(("extra", self.extra[name]) for name in self.extra))
        forms = [(name, path, leaf.dtype, leaf.shape[1:]) for name, tree in trees for path, leaf in flatten(tree)]
        return forms, list(self.extra)


@dataclass(frozen=True, slots=True)
class Column:
    """A dataset with a row for each step."""

    node: Node
    path: str = ""  # from the node
    frame: tuple[int, ...] | None = None  # the shape of a JPEG frame, which is what it holds

    @property
    def form(self) -> Form:
        return ("|u1", (*self.node.datasets[self.path][1][:1], *self.frame)) if self.frame else self.node.datasets[self.path]

    def rows(self, first: int, stop: int) -> NDArray[Any]:
        """Rows [first, stop)."""
        if self.frame is not None:
            return self.node.frames(self.path, first, stop, self.frame)
        return self.node.rows(self.path, first, stop)

    def check(self, rows: int, where: str) -> None:
        """Raise BadEpisode for another number of rows, and for what are no numbers."""
        kind, shape = self.form
        if kind in (TEXT, FRAMES) or shape[:1] != (rows,):
            raise BadEpisode(f"{self.path or 'it'} is {kind} {list(shape)}, not {rows} rows of numbers", where=where, fix=FIX)


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeDatasets:
    """Where the values of one episode are."""

    id: str
    number: int
    where: str  # for messages
    steps: int
    obs: Tree  # of Columns
    actions: Tree  # of Columns
    rewards: Column | None
    terminated: bool
    truncated: bool
    has_final: bool = False  # observations have T + 1 rows
    next_obs: Tree = None  # of Columns, in the structure of `obs`; None: not there
    extra: Mapping[str, Tree] = field(default_factory=dict)
    infos: Sequence[Mapping[str, Any]] | None = None  # T + 1
    custom_data: Mapping[str, Any] | None = None
    agent_id: str | None = None
    module_id: str | None = None

    def parts(self, tally: Tally) -> Iterator[ReadEpisode]:
        """The episode, in parts where it is large. Raises BadEpisode before the first of them."""
        of_steps = [*leaves(self.actions), *leaves(dict(self.extra)), *([self.rewards] if self.rewards else [])]
        obs, following = leaves(self.obs), [] if self.next_obs is None else leaves(self.next_obs)
        for column in obs:
            column.check(self.steps + self.has_final, self.where)
        for column in (*of_steps, *following):
            column.check(self.steps, self.where)
        for one, other in zip(obs, following, strict=False):
            if (one.form[0], one.form[1][1:]) != (other.form[0], other.form[1][1:]):
                raise BadEpisode(f"{other.path} has another form than {one.path}", where=self.where, fix=FIX)
        if not self.steps and not self.has_final:
            raise BadEpisode("an episode without steps or observations", where=self.where, fix=FIX)
        if self.rewards is None:
            tally.assume(MISSING_REWARDS, self.steps)
        step = sum(np.dtype(column.form[0]).itemsize * math.prod(column.form[1][1:]) for column in (*obs, *of_steps))
        each = max(1, PART // max(1, step))
        for first in range(0, max(self.steps, 1), each):
            yield self._part(first, min(self.steps, first + each))

    def _part(self, first: int, stop: int) -> ReadEpisode:
        is_last = stop == self.steps

        def values(column: Column) -> NDArray[Any]:
            return column.rows(first, stop)

        def with_final(column: Column, following: Column | None) -> NDArray[Any]:
            """Rows [first, stop]; the last of all is what the last step led to, or is repeated."""
            if self.has_final or not is_last:
                return column.rows(first, stop + 1)
            rows = column.rows(first, stop)
            final = rows[-1:] if following is None or not self.steps else following.rows(self.steps - 1, self.steps)
            return np.concatenate([rows, final])

        following = map_leaves(lambda _: None, self.obs) if self.next_obs is None else self.next_obs
        rewards = np.zeros(stop - first)
        if self.rewards is not None:
            rewards = one_number_each(self.rewards.rows(first, stop), "rewards", where=self.where, fix=FIX)
        return ReadEpisode(
            id=self.id,
            number=self.number,
            obs=map_leaves(with_final, self.obs, following),
            actions=map_leaves(values, self.actions),
            rewards=rewards.astype(np.float64),
            terminated=is_last and self.terminated,
            truncated=is_last and self.truncated,
            t_started=first,
            final_missing=is_last and not self.has_final and self.next_obs is None,
            extra={name: map_leaves(values, tree) for name, tree in self.extra.items()},
            infos=None if self.infos is None else self.infos[first : stop + 1],
            custom_data=self.custom_data,
            agent_id=self.agent_id,
            module_id=self.module_id,
        )


class EpisodeLayout(Protocol):
    """One open file of a layout."""

    def names(self) -> Sequence[Any]:
        """Of its episodes, in their order. Raises BadData."""

    def episode(self, name: Any) -> EpisodeDatasets:
        """Raises BadEpisode for one that is not as the layout wants it."""


def fragments_of_files(
    source: FileSource, layout: Callable[[Hdf5File, str], EpisodeLayout], tally: Tally, rejects: Rejects
) -> Iterator[Fragments]:
    """The episodes of a source's files, in their order; bad ones go to `rejects`. `layout` is given how ids begin."""
    source.done, start = 0, source_hash(source.files)
    for number, file in enumerate(source.files):
        with source.scope.part() as held:
            opened = held.enter(Hdf5File(file))
            prefix = f"{start}-" if len(source.files) == 1 else f"{start}-{number}-"
            episodes = read_episodes(layout(opened, prefix), tally, rejects, is_declared=source.info.action_space is not None)
            for fragments in batches(episodes, file.url):
                yield fragments
                source.done += fragments.batch.nbytes
    source.done = source.size or source.done


def read_episodes(layout: EpisodeLayout, tally: Tally, rejects: Rejects, *, is_declared: bool = True) -> Iterator[ReadEpisode]:
    """The episodes of a layout, or parts of them; bad ones go to `rejects`. `is_declared`: the space of actions is known."""
    for name in layout.names():
        tally.rows_in += 1
        try:
            for part in layout.episode(name).parts(tally):
                yield part if is_declared else replace(part, actions=choices(part.actions))
        except BadEpisode as error:
            rejects.add(error)
            rejects.lose_episodes(Lost.UNREADABLE)


def batches(episodes: Iterable[ReadEpisode], url: str) -> Iterator[Fragments]:
    """Batches of episodes of one structure, in their order; `url`: of their file."""
    held, nbytes, structure = list[ReadEpisode](), 0, None
    for episode in episodes:
        other, size = episode.structure, episode.nbytes
        is_part = episode.t_started > 0 or not (episode.terminated or episode.truncated)
        if held and (is_part or other != structure or nbytes + size > TOGETHER or len(held) >= MOST):
            yield _batch(held, url)
            held, nbytes = [], 0
        if is_part:  # alone, so that episodes keep their order
            yield _batch([episode], url)
            continue
        held.append(episode)
        nbytes, structure = nbytes + size, other
    if held:
        yield _batch(held, url)


def _batch(held: Sequence[ReadEpisode], url: str) -> Fragments:
    def joined(*parts: NDArray[Any]) -> NDArray[Any]:
        return np.concatenate(parts)

    infos = None
    if any(one.infos is not None for one in held):
        empty: Mapping[str, Any] = {}
        infos = [info for one in held for info in (one.infos if one.infos is not None else [empty] * (len(one.rewards) + 1))]
    started = np.array([one.t_started for one in held], np.int64)
    missing = np.array([one.final_missing for one in held], np.bool_)
    batch = EpisodeBatch(
        ids=tuple(one.id for one in held),
        starts=np.cumsum([0, *(len(one.rewards) for one in held)], dtype=np.int64),
        obs=map_leaves(joined, *(one.obs for one in held)),
        actions=map_leaves(joined, *(one.actions for one in held)),
        rewards=np.concatenate([one.rewards for one in held]),
        terminated=np.array([one.terminated for one in held], np.bool_),
        truncated=np.array([one.truncated for one in held], np.bool_),
        extra={name: map_leaves(joined, *(one.extra[name] for one in held)) for name in held[0].extra},
        infos=infos,
        t_started=started if started.any() else None,
        final_missing=missing if missing.any() else None,
        agent_ids=_names_of_some([one.agent_id for one in held]),
        module_ids=_names_of_some([one.module_id for one in held]),
        custom_data=tuple(dict(one.custom_data or {}) for one in held) if any(one.custom_data for one in held) else None,
    )
    return Fragments(batch, Origins((url,), np.zeros(len(held), np.int64), np.array([one.number for one in held])))


def _names_of_some(names: Sequence[str | None]) -> tuple[str | None, ...] | None:
    """None where none has one."""
    return tuple(names) if any(name is not None for name in names) else None


def numbered(names: Iterable[str], prefix: str) -> list[str]:
    """Those of the names that are `prefix` and a number, by that number."""
    parts = ((name.removeprefix(prefix), name) for name in names if name.startswith(prefix))
    found = [(int(rest), name) for rest, name in parts if rest.isascii() and rest.isdecimal() and len(rest) < 18]
    return [name for _, name in sorted(found)]

"""Episodes of files that keep each in a group, or in datasets, of its own: the one loop over them.

A layout (`EpisodeLayout`) names the episodes of an open file, and reads one as an `EpisodeBatch`; here bad ones are set aside,
and those of one structure are joined.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, Protocol

import numpy as np
from numpy.typing import NDArray

from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.errors import BadData, BadEpisode
from offline_cli.formats.action_shapes import choices, one_number_each
from offline_cli.formats.hdf5.safe import Hdf5File, Values
from offline_cli.formats.left_out import why_no_column
from offline_cli.formats.source import FileSource, Fragments, Origins
from offline_cli.formats.tables.episodes import source_hash
from offline_cli.tally import MISSING_REWARDS, Lost, Rejects, Tally
from offline_cli.trees import Tree, flatten, map_leaves

__all__ = ["EpisodeLayout", "Hdf5Source", "episodes_of", "numbered", "one_episode", "why_left_out", "with_final"]

TOGETHER: Final = 16 << 20  # bytes of arrays in one batch
MOST: Final = 4096  # episodes in one batch
FIX: Final = "write the episode again, or leave it out with --on-error skip"


class EpisodeLayout(Protocol):
    """The episodes of one open file."""

    def names(self) -> Sequence[Any]:
        """Of the episodes, in their order. Raises BadData."""

    def episode(self, name: Any) -> tuple[int, EpisodeBatch]:
        """One episode, and its number for messages. Raises BadData for one that is not as the layout wants it."""


@dataclass(slots=True)
class Hdf5Source(FileSource):
    """Files of one layout, in the order given; `layout` is given an open file, and how the ids of its episodes begin."""

    layout: Callable[[Hdf5File, str, Tally], EpisodeLayout] = field(kw_only=True)

    def fragments(self, tally: Tally, rejects: Rejects) -> Iterator[Fragments]:
        """See `Source`: whole episodes, many at a time."""
        self.done, start = 0, source_hash(self.files)
        for number, file in enumerate(self.files):
            with self.scope.part() as held:
                opened = held.enter(Hdf5File(file, self.read_options.memory_limit))
                prefix = f"{start}-" if len(self.files) == 1 else f"{start}-{number}-"
                yield from episodes_of(self, self.layout(opened, prefix, tally), file.url, tally, rejects)
        self.done = self.size or self.done


def episodes_of(source: FileSource, layout: EpisodeLayout, url: str, tally: Tally, rejects: Rejects) -> Iterator[Fragments]:
    """The episodes of a layout in their order, those of one structure together; bad ones go to `rejects`."""
    held, nbytes = list[tuple[int, EpisodeBatch]](), 0
    for name in layout.names():
        tally.rows_in += 1
        try:
            number, episode = layout.episode(name)
        except BadData as error:
            rejects.add(error)
            rejects.lose_episodes(Lost.UNREADABLE)
            continue
        if source.info.action_space is None:
            episode = replace(episode, actions=choices(episode.actions))
        is_full = nbytes + episode.nbytes > TOGETHER or len(held) == MOST
        if held and (is_full or held[0][1].structure_difference(episode)):
            yield _joined(held, url)
            source.done, held, nbytes = source.done + nbytes, [], 0
        held.append((number, episode))
        nbytes += episode.nbytes
    if held:
        yield _joined(held, url)
        source.done += nbytes


def _joined(held: Sequence[tuple[int, EpisodeBatch]], url: str) -> Fragments:
    numbers = np.array([number for number, _ in held])
    batch = EpisodeBatch.concat([episode for _, episode in held])
    return Fragments(batch, Origins((url,), np.zeros(len(held), np.int64), numbers))


def one_episode(
    name: str,
    steps: int,
    *,
    where: str,
    tally: Tally,
    obs: Tree,
    actions: Tree,
    rewards: NDArray[Any] | None,
    terminated: bool,
    truncated: bool,
    extra: Mapping[str, Tree] | None = None,
    infos: Sequence[Mapping[str, Any]] | None = None,
    custom_data: Mapping[str, Any] | None = None,
    **others: Any,
) -> EpisodeBatch:
    """An episode of T steps from the arrays of its file: `obs` (T + 1, ...), others (T, ...); without rewards they are 0.

    `others`: further fields of the batch. Raises BadEpisode for arrays of other lengths.
    """
    if rewards is None:
        tally.assume(MISSING_REWARDS, steps)
        rewards = np.zeros(steps)
    trees = {"observations": obs, "actions": actions, "rewards": rewards, **(extra or {})}
    for path, leaf in flatten(trees):
        rows = steps + (path.partition(".")[0] == "observations")
        if leaf.shape[:1] != (rows,):
            raise BadEpisode(f"{path} is {leaf.dtype} {list(leaf.shape)}, not {rows} rows", where=where, fix=FIX)
    return EpisodeBatch(
        ids=(name,),
        starts=np.array([0, steps], np.int64),
        obs=obs,
        actions=actions,
        rewards=one_number_each(rewards, "rewards", where=where, fix=FIX).astype(np.float64),
        terminated=np.array([terminated]),
        truncated=np.array([truncated]),
        extra=extra or {},
        infos=infos,
        custom_data=(custom_data,) if custom_data else None,
        **others,
    )


def with_final(obs: Tree, following: Tree | None, where: str) -> Tree:
    """`obs` (T, ...) and the last of the observations that its steps led to; without these the last one is repeated.

    Raises BadEpisode where the two differ in form.
    """

    def joined(rows: NDArray[Any], after: NDArray[Any]) -> NDArray[Any]:
        if (rows.dtype, rows.shape) != (after.dtype, after.shape):
            raise ValueError(f"{after.dtype} {list(after.shape)} for {rows.dtype} {list(rows.shape)}")
        return np.concatenate([rows, after[-1:]])

    try:
        return map_leaves(joined, obs, obs if following is None else following)
    except ValueError as error:
        raise BadEpisode(f"next observations of another form: {error}", where=where, fix=FIX) from error


def why_left_out(values: Values, rows: int) -> str:
    """Why an array of a file is none of `rows` rows of numbers."""
    return (
        why_no_column("text", [len(values)], rows)
        if isinstance(values, list)
        else why_no_column(str(values.dtype), values.shape, rows)
    )


def numbered(names: Iterable[str], prefix: str) -> list[str]:
    """Those of the names that are `prefix` and a number, by that number."""
    parts = ((name.removeprefix(prefix), name) for name in names if name.startswith(prefix))
    found = [(int(rest), name) for rest, name in parts if rest.isascii() and rest.isdecimal() and len(rest) < 18]
    return [name for _, name in sorted(found)]

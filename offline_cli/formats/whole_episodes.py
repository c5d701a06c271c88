"""Read files of whole episodes: the shared loop for all foreign formats except RLlib's and tables.

A format reads one episode, or a block of flat arrays, as an `EpisodeBatch`. Batches of one structure are joined, because later
stages work on whole arrays.

Flat arrays have one row per step and hold several episodes: D4RL's in HDF5, OGBench's in NumPy archives.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, ClassVar, Final, Protocol

import numpy as np
from numpy.typing import NDArray

from offline_cli.columns import Columns
from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.errors import BadData, BadEpisode
from offline_cli.formats.sink import count_finals, named_leaves
from offline_cli.formats.source import FileSource, Fragments, Origins, source_hash
from offline_cli.formats.step_rows import choices, one_number_each
from offline_cli.scopes import Scope
from offline_cli.storage.locations import Location
from offline_cli.tally import Lost, Rejects, Tally
from offline_cli.trees import Tree, flatten, map_leaves


@dataclass(frozen=True, slots=True)
class StoredArray:
    """Name, dtype and shape of a stored array."""

    name: str  # its path, separated by `/`
    dtype: np.dtype[Any] | None  # None: not numeric, not read
    shape: tuple[int, ...]
    said: str  # its type, for messages: a dtype, or text

    @property
    def row_bytes(self) -> int:
        """Bytes per row; 0 if not numeric."""
        return 0 if self.dtype is None else math.prod(self.shape[1:]) * self.dtype.itemsize

    @property
    def nbytes(self) -> int:
        """Bytes of all rows."""
        return self.row_bytes * (self.shape[0] if self.shape else 1)

    def has_rows(self, rows: int) -> bool:
        """Whether it has a number, or a numeric array, for each of `rows` rows."""
        return self.dtype is not None and self.shape[:1] == (rows,)

    def why_no_column(self, rows: int) -> str:
        """Why it is not a column of `rows` rows: its shape, or its type."""
        if self.shape[:1] != (rows,):
            return f"shape {list(self.shape)}, not one value for each of {rows:,} rows"
        return f"{self.said} of shape {list(self.shape)}, not a number or numeric array per row"


TOGETHER: Final = 16 << 20  # bytes of arrays in one batch
MOST: Final = 4096  # episodes in one batch
EPISODES_LOST: Final = "episodes_lost"  # in an error's details: how many are lost, if known; else it counts as one
FIX: Final = "write the episode again, or skip it with --on-error skip"

Reads = Iterable[tuple[Sequence[int], Callable[[], EpisodeBatch]]]
"""Episodes of a file, one or several at a time: their numbers or first rows, and a reading function (raises BadData)."""


@dataclass(slots=True)
class EpisodeFiles(FileSource):
    """Base of a source over files of whole episodes, in the given order; formats define `episodes`."""

    rows_are_steps: ClassVar[bool] = False  # whether the numbers in `Reads` are rows of first steps instead of episode numbers
    drop: frozenset[str] = field(default=frozenset(), kw_only=True)  # see `OpenContext`

    def episodes(self, file: Location, prefix: str, held: Scope, tally: Tally) -> Reads:
        """Generate the episodes of a file. `prefix`: of their ids; `held`: owns opened files. Raises BadData."""
        raise NotImplementedError

    def fragments(self, tally: Tally, rejects: Rejects) -> Iterator[Fragments]:
        """See `Source`. Yields batches of whole episodes."""
        self.done, start = 0, source_hash(self.files)
        for number, file in enumerate(self.files):
            prefix = f"{start}-" if len(self.files) == 1 else f"{start}-{number}-"
            with self.scope.part() as held:
                yield from self.joined(self.episodes(file, prefix, held, tally), file.url, tally, rejects)
        self.done = self.size or self.done

    def joined(self, episodes: Reads, url: str, tally: Tally, rejects: Rejects) -> Iterator[Fragments]:
        """Join consecutive episodes of one structure; unreadable ones go to `rejects`."""
        held, numbers, size = list[EpisodeBatch](), list[int](), 0
        for rows, read in _until_damage(episodes, rejects):
            tally.rows_in += 0 if self.rows_are_steps else len(rows)
            try:
                one = read()
            except BadData as error:
                _reject(error, rejects)
                continue
            is_full = size + one.nbytes > TOGETHER or len(held) == MOST
            if held and (is_full or held[0].structure_difference(one)):
                yield self._together(held, numbers, url)
                held, numbers, size = [], [], 0
            held.append(one)
            numbers += rows
            size += one.nbytes
            tally.rows_in += one.num_steps if self.rows_are_steps else 0
        if held:
            yield self._together(held, numbers, url)

    def _together(self, held: list[EpisodeBatch], numbers: list[int], url: str) -> Fragments:
        batch = EpisodeBatch.concat(held)
        if self.info.action_space is None:
            batch = replace(batch, actions=choices(batch.actions))
        self.done += batch.nbytes
        in_order = np.ones(len(batch), np.bool_) if self.rows_are_steps else None
        return Fragments(batch, Origins((url,), np.zeros(len(batch), np.int64), np.array(numbers), in_order))


def _until_damage(episodes: Reads, rejects: Rejects) -> Reads:
    """Iterate over `episodes` until the file is damaged, which is rejected."""
    found = iter(episodes)
    while True:
        try:
            one = next(found, None)
        except BadData as error:
            _reject(error, rejects)
            return
        if one is None:
            return
        yield one


def _reject(error: BadData, rejects: Rejects) -> None:
    rejects.add(error)
    rejects.lose_episodes(Lost.UNREADABLE, error.details.get(EPISODES_LOST, 1))


def why_left_out(values: NDArray[Any] | list[str], rows: int) -> str:
    """Why values are not a numeric column of `rows` rows; "" if they are."""
    stored = StoredArray("", None, (len(values),), "text")
    if isinstance(values, np.ndarray):
        stored = StoredArray("", values.dtype, values.shape, str(values.dtype))
    return "" if stored.has_rows(rows) else stored.why_no_column(rows)


def whole_episode(
    name: str,
    where: str,
    *,
    obs: Tree,
    actions: Tree,
    rewards: Any,
    terminated: bool,
    truncated: bool,
    next_obs: Tree | None = None,
    extra: Mapping[str, Tree] | None = None,
    **more: Any,
) -> EpisodeBatch:
    """Build an episode of T steps from arrays (T, ...), and `obs` (T+1, ...).

    With `next_obs` (T, ...), `obs` has T rows, followed by the last row of `next_obs`; pass `obs` itself as `next_obs` if the
    last observation was not recorded. `more`: further fields of EpisodeBatch. Raises BadEpisode for a wrong number of rows,
    and for text.
    """
    columns = {Columns.OBS: obs, Columns.ACTIONS: actions, **(extra or {})}
    for path, leaf in (*flatten(columns), (Columns.REWARDS, rewards)):
        if not isinstance(leaf, np.ndarray):
            fix = f"drop it: convert ... --drop {path}" if "." in path else FIX
            raise BadEpisode(f"{path} is not a numeric array", where=where, fix=fix)
    if next_obs is not None:
        try:
            columns[Columns.OBS] = map_leaves(_followed, obs, next_obs)
        except ValueError as error:
            raise BadEpisode(f"observations and next observations differ in form: {error}", where=where, fix=FIX) from error
    numbers = one_number_each(rewards, Columns.REWARDS, where=where, fix=FIX)
    steps = len(numbers)
    for path, leaf in flatten(columns):
        wanted = steps + (path.partition(".")[0] == Columns.OBS)
        if leaf.ndim == 0 or len(leaf) != wanted:
            what = f"{path} has shape {list(leaf.shape)} for {steps} rewards: expected {wanted} rows, with the last observation"
            raise BadEpisode(what, where=where, fix=FIX)
    return EpisodeBatch(
        ids=(name,),
        starts=np.array([0, steps]),
        obs=columns[Columns.OBS],
        actions=actions,
        rewards=numbers.astype(np.float64),
        terminated=np.array([terminated]),
        truncated=np.array([truncated]),
        extra=extra or {},
        final_missing=np.ones(1, np.bool_) if next_obs is obs else None,
        **more,
    )


def _followed(acted: Any, after: Any) -> Any:
    """`acted` and the last row of `after`, (T+1, ...). Raises ValueError if they differ in form."""
    if (acted.dtype, acted.shape) != (getattr(after, "dtype", None), getattr(after, "shape", None)):
        raise ValueError(f"{getattr(after, 'dtype', 'text')} for {acted.dtype} {list(acted.shape)}")
    return np.concatenate([acted, after[-1:]])


# ---- flat arrays ----


OBS, ACTIONS, REWARDS, TERMINALS = "observations", "actions", "rewards", "terminals"
NEXT, TIMEOUTS = "next_observations", "timeouts"
BLOCK: Final = 32 << 20  # bytes of rows read at a time


class FlatArrays(Protocol):
    """The arrays of one open file."""

    starts: NDArray[np.int64]  # (E+1,) the rows of episode e are starts[e]:starts[e+1]
    row_bytes: int  # of one row of all arrays

    def episodes(self, begin: int, stop: int, ids: tuple[str, ...]) -> EpisodeBatch:
        """Read episodes [begin, stop) with these ids; blocks are requested in order. Raises BadData."""


def blocks(flat: FlatArrays, prefix: str) -> Reads:
    """The episodes of a file, in blocks of up to `BLOCK` bytes, at least one; `prefix`: of their ids.

    A bad block ends the file, because arrays are read sequentially; its error has the number of `episodes_lost`.
    """
    starts, rows, begin = flat.starts, max(1, BLOCK // max(1, flat.row_bytes)), 0
    while begin < len(starts) - 1:
        stop = max(begin + 1, int(np.searchsorted(starts, starts[begin] + rows, side="right")) - 1)
        try:
            batch = flat.episodes(begin, stop, tuple(f"{prefix}{at}" for at in range(begin, stop)))
        except BadData as error:
            error.details[EPISODES_LOST] = len(starts) - 1 - begin
            raise
        yield starts[begin:stop].tolist(), partial(EpisodeBatch.concat, [batch])
        begin = stop


# ---- writing ----


def narrow(rewards: NDArray[np.float64]) -> NDArray[np.floating[Any]]:
    """Rewards as float32, which other programs write, if that is exact."""
    with np.errstate(over="ignore"):
        cast = rewards.astype(np.float32)
    return cast if np.array_equal(cast.astype(np.float64), rewards, equal_nan=True) else rewards


class FlatSteps:
    """Converts batches to step arrays by name. `next_observations` keep each episode's final observation; write them only if
    all were recorded.
    """

    def __init__(self, tally: Tally) -> None:
        self._tally, self._finals = tally, Tally()  # the second counts recorded final observations
        self._are_known = True  # whether all were recorded

    def arrays(self, batch: EpisodeBatch, extra: Mapping[str, Tree]) -> dict[str, NDArray[Any]]:
        """The arrays of a batch; an extra output whose name is taken is dropped."""
        count_finals(batch, self._finals)
        self._are_known &= not batch.final_obs_assumed.any()
        terminateds, truncateds = batch.step_flags()
        further = {path: leaf for name, tree in extra.items() for path, leaf in named_leaves(name, tree).items()}
        return {
            **further,
            **named_leaves(OBS, batch.acted_obs(view=True)),
            **named_leaves(ACTIONS, batch.actions),
            REWARDS: batch.rewards,
            **named_leaves(NEXT, batch.next_obs(view=True)),
            TERMINALS: terminateds,
            TIMEOUTS: truncateds,
        }

    def are_finals_known(self) -> bool:
        """Whether to write `next_observations`; call it once, at the end: it counts the observations that are not kept."""
        if not self._are_known:
            self._tally.add(self._finals)
        return self._are_known

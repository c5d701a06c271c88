"""Reads a committed dataset: exactly the shards that its manifest lists, as a stream or as a sequence of episodes."""

from __future__ import annotations

import importlib
import operator
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import cache, partial
from html import escape
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Literal, Self, SupportsIndex, TypeVar, overload

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from offline_cli.datasets.file_names import MANIFEST, WRITING
from offline_cli.datasets.lock import WritingNote
from offline_cli.datasets.manifest import Manifest, Shard
from offline_cli.datasets.row_format import FIX, EpisodeRows, RowFormat, Rows
from offline_cli.datasets.step_rows import StepRows
from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.episodes.episode_spaces import zero_rows
from offline_cli.episodes.single_agent_episode import SingleAgentEpisode
from offline_cli.errors import BadData, NoData, Uncommitted, UsageError
from offline_cli.parquet.reading import MEMORY_LIMIT, OpenShard, opened
from offline_cli.printable_text import printable
from offline_cli.scopes import Reading, Scope
from offline_cli.spaces import Space, describe
from offline_cli.storage.locations import Location, open_location
from offline_cli.storage.staging import whole_file
from offline_cli.tally import Tally

if TYPE_CHECKING:
    import polars

NOT_FINISHED: Final = "a writer has not finished this dataset"
TARGET_STEPS: Final = 1 << 16
TORCH_DATASETS: Final = "offline_cli.training.torch_datasets"
KEPT: Final = 8  # cached row groups (about 8 MiB or one episode each) and episode offsets
T = TypeVar("T")


@dataclass(frozen=True, slots=True, repr=False)
class Dataset:
    """One committed dataset: E episodes, in the manifest's order.

    `len(dataset)` is E, `dataset[i]` a SingleAgentEpisode, `dataset[3:9]`, `dataset[[4, 1]]` and `dataset[mask]` are an
    EpisodeBatch, and `for episode in dataset` streams. It can be pickled.
    It holds no open files, so using it as a context manager is optional; `batches` returns a context manager of its own.
    """

    location: Location  # its folder
    manifest: Manifest
    part: Sequence[Shard] | None = None  # the shards to read; None: all
    _cache: dict[Any, Any] = field(default_factory=dict, compare=False)  # of random access

    def __repr__(self) -> str:
        known = self.manifest
        size = f"{len(self):,} episodes, {sum(shard.steps for shard in self.shards):,} steps"
        return f"<Dataset {self.location.url}: {size}, {known.environment.id if known.environment else 'no environment'}>"

    def _repr_html_(self) -> str:
        """Its head, as a notebook shows it."""
        known = self.manifest
        mean, low, high = (
            f"{one:,.4g}" if isinstance(one, int | float) else one
            for one in map(known.statistics["return"].get, ("mean", "min", "max"))
        )
        facts = {
            "environment": known.environment.id if known.environment else "not known",
            "observations": describe(known.observation_space),
            "actions": f"{describe(known.action_space)}, scale: {known.action_scale}",
            "episodes": f"{len(self):,}",
            "steps": f"{sum(shard.steps for shard in self.shards):,}",
            "return": f"mean {mean}, from {low} to {high}",
        }
        rows = "".join(f"<tr><th>{name}</th><td>{escape(printable(text))}</td></tr>" for name, text in facts.items())
        return f"<table><caption>{escape(printable(self.location.url))}</caption>{rows}</table>"

    def __dir__(self) -> list[str]:
        return [name for name in object.__dir__(self) if not name.startswith("_") or name.startswith("__")]

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.location, self.manifest, self.part)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        pass

    @staticmethod
    def open(location: str | os.PathLike[str] | Location, storage_options: Mapping[str, Any] | None = None) -> Dataset:
        """Open the dataset in a folder.

        Raises StorageNotFound if the folder does not exist, NoData if it holds no dataset, Uncommitted if its writer has not
        finished, BadData for a broken manifest.
        """
        folder = open_location(location, storage_options)
        if folder.join(WRITING).exists():
            raise _uncommitted(folder)
        if not folder.join(MANIFEST).exists():
            if not folder.exists():
                raise folder.missing()
            fix = "name the folder with manifest.json in it; offline-cli convert makes a dataset of other recordings"
            raise NoData("no dataset is here: there is no manifest.json", where=folder.url, fix=fix)
        return Dataset(folder, Manifest.read(folder))

    @property
    def observation_space(self) -> Space | None:
        """The space of one observation; None: unknown."""
        return self.manifest.observation_space

    @property
    def action_space(self) -> Space | None:
        """The space of one recorded action; None: unknown. `manifest.action_scale` has the scale of Box actions."""
        return self.manifest.action_space

    @property
    def shards(self) -> Sequence[Shard]:
        """The shards to read."""
        return self.manifest.shards if self.part is None else self.part

    # ---- as a stream ----

    def batches(
        self, columns: Sequence[str] | None = None, target_steps: int = TARGET_STEPS, *, memory_limit: int = MEMORY_LIMIT
    ) -> Reading[EpisodeBatch]:
        """Stream all episodes in the manifest's order, with about one row group in memory.

        `columns`: names of the extra model outputs to read, and "infos"; None: all. Observations, actions, rewards and flags
        are always read. A batch has at least `target_steps` steps if the shard has as many (format `columns`), or is one row
        group (`episodes`). Arrays may be read-only. Raises BadData, naming the shard, if it is missing, truncated or damaged;
        MemoryLimitExceeded if a row group needs more than `memory_limit` bytes. Close the iterator if you do not exhaust it.
        """
        reader = self._reader(keep=columns, target_steps=target_steps, memory_limit=memory_limit)
        return self._reading(reader.read, len)

    def rows(self, *, memory_limit: int = MEMORY_LIMIT) -> Reading[Rows]:
        """Stream the rows of all episodes as stored, with all columns, without decoding. Raises as `batches` does."""
        return self._reading(self._reader(memory_limit=memory_limit).read_rows, lambda rows: len(rows.starts) - 1)

    def plain(self, *, agents: bool = True, memory_limit: int = MEMORY_LIMIT) -> Reading[Any]:
        """Stream a pa.Table of PLAIN_SCHEMA for each shard, one row per episode; steps are not decoded.

        `agents`: read agent and module ids; otherwise they may be null, which is faster if they are stored per step. Raises as
        `batches` does, and BadData for a shard without these columns.
        """
        reader = self._reader(memory_limit=memory_limit)

        def read(file: OpenShard, place: Location) -> Iterator[Any]:
            yield reader.read_plain(file, place, agents=agents)

        return self._reading(read, len, ahead=False)

    def _reading(
        self, read: Callable[[OpenShard, Location], Iterator[T]], size: Callable[[T], int], *, ahead: bool = True
    ) -> Reading[T]:
        """Iterate over the items that `read` yields from each open shard; `size`: the number of episodes in an item."""

        def items(scope: Scope) -> Iterator[T]:
            for shard in self.shards:
                place, episodes = self.location.join(shard.path), 0
                with scope.part() as held:
                    file = held.enter(opened(place, size=shard.bytes, ahead=ahead))
                    self._check(shard, "rows", file.metadata.num_rows)
                    for item in read(file, place):
                        episodes += size(item)
                        yield item
                    self._check(shard, "episodes", episodes)

        return Reading(items)

    def _check(self, shard: Shard, name: str, have: int) -> None:
        if have != (listed := getattr(shard, name)):
            what = f"the shard has {have} {name}, but the manifest says {listed}"
            raise BadData(what, where=self.location.join(shard.path).url, fix=FIX)

    def _reader(self, **options: Any) -> RowFormat:
        known = self.manifest
        options["declared"] = not known.spaces_inferred
        return row_format(known.format, known.observation_space, known.action_space, **options)

    # ---- as a sequence ----

    def __len__(self) -> int:
        return sum(shard.episodes for shard in self.shards)

    def __iter__(self) -> Reading[SingleAgentEpisode]:
        """Stream single episodes; the iterator is a context manager, for loops that end early."""
        reader = self._reader(target_steps=TARGET_STEPS)

        def read(file: OpenShard, place: Location) -> Iterator[SingleAgentEpisode]:
            return (episode for batch in reader.read(file, place) for episode in batch)

        return self._reading(read, lambda _: 1)

    @overload
    def __getitem__(self, which: int | np.integer[Any]) -> SingleAgentEpisode: ...
    @overload
    def __getitem__(self, which: slice | Sequence[int] | NDArray[Any]) -> EpisodeBatch: ...
    def __getitem__(self, which: Any) -> SingleAgentEpisode | EpisodeBatch:
        """An episode by index, negative from the end; or a batch by slice, indices (K,) or mask (E,), in that order.

        Raises IndexError; BadEpisode if the episodes have different structures; BadData as `batches` does.
        """
        if isinstance(which, slice):
            return self._selected(np.arange(len(self))[which])
        if isinstance(which, SupportsIndex) and not getattr(which, "ndim", 0) and not isinstance(which, bool | np.bool_):
            return self._selected(np.array([operator.index(which)]))[0]
        indices = np.asarray(which)
        if indices.dtype == np.bool_ and indices.shape == (len(self),):
            return self._selected(np.flatnonzero(indices))
        if indices.ndim != 1 or (indices.dtype.kind not in "iu" and indices.size):
            raise TypeError(f"index episodes by a number, a slice, indices or a mask of {len(self)}, not {which!r}")
        return self._selected(indices.astype(np.int64))

    def _selected(self, indices: NDArray[np.int64]) -> EpisodeBatch:
        """The episodes at `indices`, in that order; each row group is read at most once."""
        wrong = indices[(indices < -len(self)) | (indices >= len(self))]
        if len(wrong):
            raise IndexError(f"episode {int(wrong[0])} of a dataset with {len(self)} episodes")
        if not len(indices):
            return self._selected(np.zeros(1, np.int64)).select(slice(0, 0)) if len(self) else self._empty()
        indices = indices % len(self)
        first = np.cumsum([0, *(shard.episodes for shard in self.shards)])
        of_shard = np.searchsorted(first, indices, side="right") - 1
        order = np.argsort(of_shard, kind="stable")
        numbers = np.unique(of_shard).tolist()
        parts = [self._read(self.shards[number], indices[of_shard == number] - first[number]) for number in numbers]
        whole = EpisodeBatch.concat([batch for part in parts for batch in part])
        return whole if (np.diff(order) > 0).all() else whole.select(np.argsort(order))

    def _read(self, shard: Shard, episodes: NDArray[np.int64]) -> list[EpisodeBatch]:
        """The episodes of a shard with these numbers, in that order."""
        place, reader = self.location.join(shard.path), self._reader()
        with ExitStack() as stack:
            # opened only on a cache miss
            file = cache(lambda: stack.enter_context(opened(place, size=shard.bytes, ahead=False)))
            places = self._kept(place.url, None, lambda: (reader.read_starts(file(), place), np.cumsum(file().group_rows)))
            starts, ends = places
            self._check(shard, "episodes", len(starts) - 1)
            lengths = starts[episodes + 1] - starts[episodes]
            begins = np.cumsum([0, *lengths])
            rows = np.arange(begins[-1]) + np.repeat(starts[episodes] - begins[:-1], lengths)  # row numbers in the shard
            groups, of_group = np.unique(np.searchsorted(ends, rows, side="right"), return_inverse=True)
            numbers = groups.tolist()
            tables = [
                self._kept(place.url, one, partial(lambda n: reader.read_group(file(), place, n), one)) for one in numbers
            ]
            moved = np.cumsum([table.num_rows for table in tables]) - ends[groups]  # offset from row numbers in the shard
            table = pa.concat_tables(tables).take(pa.array(rows + moved[of_group]))
            return list(reader.batches(Rows(table, begins), rows, where=place.url))

    def _kept(self, url: str, group: int | None, read: Callable[[], Any]) -> Any:
        """Read through the cache: a row group of a shard, or (None) the offsets of its episodes and row groups."""
        found = self._cache.pop((url, group), None)
        found = self._cache[url, group] = read() if found is None else found
        for oldest in list(self._cache)[:-KEPT]:
            self._cache.pop(oldest, None)
        return found

    def _empty(self) -> EpisodeBatch:
        observations, actions = self.manifest.observation_space, self.manifest.action_space
        rows = {"obs": zero_rows(observations, 0), "actions": zero_rows(actions, 0)}
        return replace(EpisodeBatch.from_episodes([]), **rows, observation_space=observations, action_space=actions)

    # ---- for other libraries ----

    def to_polars(self, *, per: Literal["step", "episode"] = "step") -> polars.DataFrame:
        """A data frame with one row per step: the columns of the format `columns`, and `multi_agent_id`; or one per episode:
        `eps_id`, `length`, `return`, `terminated`, `truncated`, `agent_id`, `module_id`, `multi_agent_id`.

        Episodes without steps have no step rows. Raises BadData if the spaces are unknown, BadEpisode if extra model outputs
        change, UsageError for another `per`, and as `batches` does.
        """
        if per not in ("step", "episode"):
            raise UsageError(f"no rows per {per!r}", where="to_polars(per)", fix="'step' or 'episode'")
        from offline_cli.datasets.frames import episode_frame, step_frame  # Polars takes time to load

        with self.batches() as batches:
            if per == "episode":
                return episode_frame(batches)
            return step_frame(batches, self.manifest.observation_space, self.manifest.action_space, where=self.location.url)

    def to_torch(self, columns: Sequence[str] | None = None) -> Any:
        """The steps as a map-style PyTorch dataset in memory. An item is a dict of tensors by column: `obs`, `actions`,
        `rewards`, `new_obs`, `terminateds`, `truncateds`, `t`, and the extra model outputs. `columns`: None: all.

        Raises BadConfig for unknown columns, and as `batches` does.
        """
        module = importlib.import_module(TORCH_DATASETS)  # by name: this layer does not import torch
        return module.StepDataset(self, columns)


def row_format(
    name: str, observation_space: Space | None, action_space: Space | None, tally: Tally | None = None, **options: Any
) -> RowFormat:
    """The row format `episodes` or `columns`; `options`: see RowFormat. Raises UsageError for another name, and for `columns`
    without both spaces.
    """
    if name == EpisodeRows.name:
        return EpisodeRows(observation_space, action_space, tally, **options)
    if name != StepRows.name:
        raise UsageError(f"unknown format {name!r}", where="format", fix="use episodes or columns")
    if observation_space is None or action_space is None:
        fix = "give observation_space and action_space, or format='episodes'"
        raise UsageError("the columns format needs both spaces", where="format='columns'", fix=fix)
    return StepRows(observation_space, action_space, tally, **options)


def open_dataset(url: str | os.PathLike[str] | Location, storage_options: Mapping[str, Any] | None = None) -> Dataset:
    """Open the dataset in folder `url`; reads only its manifest. Raises as `Dataset.open` does."""
    return Dataset.open(url, storage_options)


def holds_dataset(location: Location) -> bool:
    """Whether the folder holds one of our datasets, committed or not."""
    if location.is_in_bucket:  # one listing is cheaper than two look-ups of names that may be missing
        return not {MANIFEST, WRITING}.isdisjoint(place.name for place in location.children())
    return location.join(MANIFEST).exists() or location.join(WRITING).exists()


def _uncommitted(folder: Location) -> Uncommitted:
    place = folder.join(WRITING)
    note = WritingNote.if_any(whole_file(place), where=place.url)  # a broken note means unfinished too
    what = NOT_FINISHED if note is None else f"a writer has not finished this dataset: {note}"
    if note is None or note.is_at_work is False:
        fix = "run its command again with --resume, or keep the complete shards with offline-cli repair"
        return Uncommitted(what, where=folder.url, fix=fix)
    unknown = "" if note.is_at_work else "; if it has ended, run its command with --resume --force-unlock"
    fix = f"wait until it ends, then run this again{unknown}"
    return Uncommitted(what, where=folder.url, fix=fix, details={"holder": note.holder})

"""Reads a committed dataset: exactly the shards that its manifest lists, as a stream or as a sequence of episodes.

A folder without a manifest, or with a broken one, raises.

An index is looked up in the manifest's counts, then in the shard: in its footer (`episodes`), or among the ids of its steps
(`columns`), once. The run of row groups that holds the episode is read, and the last few are kept.
"""

from __future__ import annotations

import importlib
import operator
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import repeat
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Literal, Self, SupportsIndex, get_args, overload

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from offline_cli.datasets.episode_tables import PLAIN_SCHEMA
from offline_cli.datasets.file_names import DATA, DATASET, MANIFEST, WRITING
from offline_cli.datasets.lease_record import APPENDS_TO, WritingNote, heard_from, holder_at_work
from offline_cli.datasets.manifest import Manifest, Shard
from offline_cli.datasets.ownership import listed_paths
from offline_cli.datasets.reading import BlockCache, ShardReader
from offline_cli.datasets.row_formats import EpisodeFrames, StepFrames, lazy_frame, whole_frame
from offline_cli.datasets.row_groups import KeptRows
from offline_cli.datasets.shard_list import replaced_meanwhile, total, where_episodes_are
from offline_cli.datasets.target_folder import UNFINISHED_WRITING
from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.episodes.episode_spaces import zero_rows
from offline_cli.episodes.single_agent_episode import SingleAgentEpisode
from offline_cli.errors import BadData, MissingPackage, NoData, StorageNotFound, Uncommitted, UsageError
from offline_cli.parquet.bounds import MEMORY_LIMIT
from offline_cli.parquet.shards import opened
from offline_cli.scopes import Reading, Scope
from offline_cli.storage.locations import Location, open_location

if TYPE_CHECKING:
    import polars

    from offline_cli.training import torch_datasets

__all__ = ["NOT_FINISHED", "TARGET_STEPS", "Dataset", "holds_dataset", "open_dataset"]

NOT_FINISHED: Final = "a writer has not finished this dataset"
TARGET_STEPS = 1 << 16
TORCH_DATASETS: Final = "offline_cli.training.torch_datasets"
Per = Literal["step", "episode"]
FIX: Final = "write the dataset again from its source"
INCOMPLETE_BY: Final = frozenset({UNFINISHED_WRITING, "repaired", "broken-shard-left-out"})
"""Keys of a manifest's provenance and assumptions, one of which a dataset that is not complete has."""


@dataclass(frozen=True, slots=True)
class Dataset:
    """One committed dataset: E episodes, in the manifest's order.

    `len(dataset)` is E, `dataset[i]` a SingleAgentEpisode, `dataset[3:9]`, `dataset[[4, 1]]` and `dataset[mask]` are an
    EpisodeBatch, and `for episode in dataset` streams. It can be pickled.
    It holds nothing open, and leaving it as a context manager does nothing; `batches` is a context of its own.
    """

    location: Location  # its folder
    manifest: Manifest = field(repr=False)
    part: Sequence[Shard] | None = field(default=None, repr=False)  # of its shards, those that are read; None: all
    _cache: BlockCache = field(default_factory=BlockCache, repr=False, compare=False)
    chosen: tuple[NDArray[np.bool_], ...] | None = field(default=None, repr=False)  # (E,) of each: what is read; None: all
    kept: KeptRows | None = field(default=None, repr=False)  # gets the rows of what is read, where all columns are
    ahead: bool = field(default=False, repr=False)  # one more row group of this machine may be in memory

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        pass

    @staticmethod
    def open(location: str | os.PathLike[str] | Location, storage_options: Mapping[str, Any] | None = None) -> Dataset:
        """The dataset in a folder.

        Raises StorageNotFound where there is no folder, NoData where it holds no dataset, Uncommitted while a writer has not
        finished, BadData for a broken manifest.
        """
        folder = open_location(location, storage_options)
        place = folder.join(MANIFEST)
        if folder.join(WRITING).exists():
            raise _uncommitted(folder, has_manifest=place.exists())
        if not place.exists():
            if not folder.exists():
                raise folder.missing()
            fix = "name the folder of a dataset, the one with manifest.json in it"
            raise NoData("no dataset is here: there is no manifest.json", where=folder.url, fix=fix)
        return Dataset(folder, Manifest.read(folder))

    def batches(
        self, columns: Sequence[str] | None = None, target_steps: int = TARGET_STEPS, *, memory_limit: int = MEMORY_LIMIT
    ) -> Reading[EpisodeBatch]:
        """All episodes in the manifest's order, streamed: one row group or so is in memory; of remote shards, a few parts more.

        `columns`: names of the extra model outputs to read, and "infos"; None: all there are. Observations, actions, rewards
        and flags always come. A batch has `target_steps` or more where a shard has them (`columns`), or is a row group
        (`episodes`). Arrays may be read-only. Raises BadData, naming the shard, for one that is missing, truncated or changed,
        also where only its sha256 shows it: after its last batch, and in a bucket only where all columns are read;
        StorageError for one that went because the dataset was replaced meanwhile;
        MemoryLimitExceeded where a row group that packs as well as a bomb, in a shard that is the manifest's, takes more bytes.
        A caller that does not read to the end closes it.
        """
        return Reading(lambda scope: self._batches(columns, target_steps, memory_limit, scope))

    def _batches(
        self, columns: Sequence[str] | None, target_steps: int, memory_limit: int, scope: Scope
    ) -> Iterator[EpisodeBatch]:
        shards, reader = self.shards, self._reader(columns, target_steps)
        chosen = self.chosen or repeat(None, len(shards))
        pairs = ((shard, mine) for shard, mine in zip(shards, chosen, strict=True) if mine is None or mine.any())
        wanted = ((shard, None if mine is None or mine.all() else mine) for shard, mine in pairs)
        ends = {"terminated": 0, "truncated": 0}
        with scope.part() as held:
            for shard, mine in wanted:
                with self._told_if_replaced(shard):
                    for batch in self._episodes(shard, reader, memory_limit, held, mine):
                        ends["terminated"] += int(batch.terminated.sum())
                        ends["truncated"] += int(batch.truncated.sum())
                        yield batch
        self.check_ends(**ends)

    def check_ends(self, terminated: int, truncated: int) -> None:
        """Raise BadData where the manifest counts others, unless only some episodes are read."""
        for name, count in (("terminated", terminated), ("truncated", truncated)):
            said = getattr(self.manifest.counts, name)
            if self.part is None and self.chosen is None and count != said:
                raise self._contradiction(f"{said} episodes {name}, its shards hold {count}")

    @property
    def shards(self) -> Sequence[Shard]:
        """Those that are read."""
        return self.manifest.shards if self.part is None else self.part

    def of_shards(self, shards: Sequence[Shard]) -> Dataset:
        """The same of these shards alone."""
        return replace(self, part=tuple(shards))

    def _reader(self, columns: Sequence[str] | None = None, target_steps: int = 1) -> ShardReader:
        found = self.manifest
        spaces = found.observation_space, found.action_space
        kept = self.kept if columns is None else None
        declared = not found.spaces_inferred
        return ShardReader(found.format, *spaces, columns, target_steps, declared=declared, kept=kept, ahead=self.ahead)

    # ---- as a sequence ----

    def __len__(self) -> int:
        return total(self.shards, "episodes")

    def __iter__(self) -> Reading[SingleAgentEpisode]:
        """Each episode, streamed as `batches` does; a context manager, as that is, for loops that end early."""
        read = partial(self._batches, None, TARGET_STEPS, MEMORY_LIMIT)
        return Reading(lambda scope: (episode for batch in read(scope) for episode in batch))

    @overload
    def __getitem__(self, which: int | np.integer[Any]) -> SingleAgentEpisode: ...
    @overload
    def __getitem__(self, which: slice | Sequence[int] | NDArray[Any]) -> EpisodeBatch: ...
    def __getitem__(self, which: Any) -> SingleAgentEpisode | EpisodeBatch:
        """Episode `which`, negative from the end; or a batch of those in a slice, indices (K,), or a mask (E,), in their order.

        Raises IndexError; BadEpisode where chosen episodes have two structures; BadData as `batches` does, but for the sha256
        of a shard of which only a part is read.
        """
        if isinstance(which, slice):
            return self._selected(np.arange(len(self))[which])
        if isinstance(which, SupportsIndex) and not getattr(which, "ndim", 0) and not isinstance(which, bool | np.bool_):
            return self._selected(self._counted(np.array([operator.index(which)])))[0]
        indices = np.asarray(which)
        if indices.dtype == np.bool_ and indices.shape == (len(self),):
            return self._selected(np.flatnonzero(indices))
        if indices.ndim != 1 or (indices.dtype.kind not in "iu" and indices.size):
            raise TypeError(f"episodes are chosen by a number, a slice, indices or a mask of {len(self)}, not by {which!r}")
        return self._selected(self._counted(indices.astype(np.int64)))

    def _counted(self, indices: NDArray[np.int64]) -> NDArray[np.int64]:
        """From 0. Raises IndexError."""
        wrong = (indices < -len(self)) | (indices >= len(self))
        if wrong.any():
            raise IndexError(f"episode {int(indices[wrong][0])} of a dataset with {len(self)} episodes")
        return np.where(indices < 0, indices + len(self), indices)

    def _selected(self, indices: NDArray[np.int64]) -> EpisodeBatch:
        """The episodes of these indices, in their order; each block that holds one is read once."""
        if not len(indices):
            return self._selected(np.zeros(1, np.int64)).select(slice(0, 0)) if len(self) else self._empty()
        of_shard, inside = where_episodes_are(self.shards, indices)
        parts: list[EpisodeBatch] = []
        places: list[NDArray[np.int64]] = []
        for number in np.unique(of_shard).tolist():
            at = np.flatnonzero(of_shard == number)
            for rows, batch in self._read(self.shards[number], inside[at]):
                parts.append(batch)
                places.append(at[rows])
        order, whole = np.concatenate(places), EpisodeBatch.concat(parts)
        return whole if (np.diff(order) > 0).all() else whole.select(np.argsort(order))

    def _read(self, shard: Shard, episodes: NDArray[np.int64]) -> list[tuple[NDArray[np.int64], EpisodeBatch]]:
        """The episodes of a shard in parts, each with its places in `episodes`."""
        place = self.location.join(shard.path)
        opening = partial(opened, place, size=shard.bytes)
        with self._told_if_replaced(shard):
            return self._cache.read(place, self._reader(), opening, shard.episodes, episodes)

    def _empty(self) -> EpisodeBatch:
        observations, actions = self.manifest.observation_space, self.manifest.action_space
        rows = {"obs": zero_rows(observations, 0), "actions": zero_rows(actions, 0)}
        return replace(EpisodeBatch.from_episodes([]), **rows, observation_space=observations, action_space=actions)

    # ---- for other libraries ----

    @overload
    def to_polars(self, *, per: Per = "step", lazy: Literal[False] = False) -> polars.DataFrame: ...
    @overload
    def to_polars(self, *, per: Per = "step", lazy: Literal[True]) -> polars.LazyFrame: ...
    def to_polars(self, *, per: Per = "step", lazy: bool = False) -> Any:
        """A row for each step, with the columns of the format `columns`; or a row for each episode: `eps_id`, `length`,
        `return`, `terminated`, `truncated`, `agent_id`, `module_id`.

        Both have `multi_agent_id` where agents played together. `lazy`: a LazyFrame that reads when it is collected,
        batch by batch; `infos`, `reset_infos` and `multi_agent_id` are in it even if all are empty. Episodes without a
        step have no row of steps. Raises BadData where the spaces are not known, BadEpisode where extra model outputs
        change, UsageError for another `per`, and what `batches` raises.
        """
        if per not in get_args(Per):
            raise UsageError(f"no rows per {per!r}", where="to_polars(per)", fix=" or ".join(map(repr, get_args(Per))))
        frames = StepFrames(self.manifest.observation_space, self.manifest.action_space, where=self.location.url)
        make: Callable[..., Any] = lazy_frame if lazy else whole_frame
        return make(self.batches, frames if per == "step" else EpisodeFrames())

    @overload
    def to_torch(
        self, columns: Sequence[str] | None = None, *, streaming: Literal[False] = False
    ) -> torch_datasets.StepDataset: ...
    @overload
    def to_torch(
        self,
        columns: Sequence[str] | None = None,
        *,
        streaming: Literal[True],
        batch_size: int | None = None,
        shuffle: bool = False,
        seed: int = 0,
    ) -> torch_datasets.StepStream: ...
    def to_torch(self, columns: Sequence[str] | None = None, *, streaming: bool = False, **options: Any) -> Any:
        """The steps as a dataset of PyTorch: map-style, all in memory; `streaming`: iterable, one row group or so at a time.

        An item is a dict of tensors by column: `obs`, `actions`, `rewards`, `new_obs`, `terminateds`, `truncateds`, `t`, and
        the extra model outputs; `columns`: those wanted, None: all. For the options of streams see `StepStream`.
        Raises MissingPackage without torch, BadConfig for unknown columns, UsageError for streams' options without `streaming`,
        and what `batches` raises.
        """
        if options and not streaming:
            fix = f"to_torch(streaming=True, {next(iter(options))}=...), or a DataLoader of it"
            raise UsageError(f"{', '.join(options)}: for streams alone", where="to_torch", fix=fix)
        try:
            module = importlib.import_module(TORCH_DATASETS)  # by name: torch begins below the datasets
        except ModuleNotFoundError as err:
            if err.name != "torch":
                raise
            raise MissingPackage("the package torch is missing", where="to_torch", fix="pip install torch") from err
        return (module.StepStream if streaming else module.StepDataset)(self, columns, **options)

    def plain(self, *, returns: bool = True, agents: bool = True, memory_limit: int = MEMORY_LIMIT) -> Reading[Any]:
        """For each shard a pa.Table of PLAIN_SCHEMA, a row an episode; None in place of one that lacks the plain columns.

        `returns`, `agents`: whether returns, and ids of agents and modules, are wanted; else they may be null, which takes less
        time where they have to be found in the steps.
        Steps are not decoded. Raises as `batches` does, but that a changed shard may pass; use it in the same way.
        """
        return Reading(lambda scope: self._plain({"returns": returns, "agents": agents}, memory_limit, scope))

    def _plain(self, wanted: Mapping[str, bool], memory_limit: int, scope: Scope) -> Iterator[Any]:
        shards, reader = self.shards, self._reader()
        with scope.part() as held:
            for shard in shards:
                place = self.location.join(shard.path)
                with self._told_if_replaced(shard), opened(place, size=shard.bytes) as file, held.part() as reading:
                    tables = reader.plain(file, place, memory_limit, **wanted, scope=reading)
                    table = None if tables is None else pa.concat_tables([PLAIN_SCHEMA.empty_table(), *tables])
                    if table is not None and table.num_rows != shard.episodes:
                        what = f"the shard holds {table.num_rows} episodes, its manifest says {shard.episodes}"
                        raise BadData(what, where=place.url, fix=FIX)
                yield table

    def _episodes(
        self,
        shard: Shard,
        reader: ShardReader,
        memory_limit: int,
        scope: Scope,
        chosen: NDArray[np.bool_] | None,
    ) -> Iterator[EpisodeBatch]:
        place, episodes, steps = self.location.join(shard.path), 0, 0
        opening = opened(place, size=shard.bytes)
        how: dict[str, Any] = {"memory_limit": memory_limit, "scope": scope, "chosen": chosen}
        for batch in reader.read(place, rows=shard.rows, opening=opening, **how):
            episodes += len(batch)
            steps += batch.num_steps
            yield batch
        if chosen is not None:
            return  # its sums are not of all
        if episodes != shard.episodes:
            what = f"the shard holds {episodes} episodes, its manifest says {shard.episodes}"
            raise BadData(what, where=place.url, fix=FIX)
        if steps != shard.steps:
            raise BadData(f"the shard holds {steps} steps, its manifest says {shard.steps}", where=place.url, fix=FIX)

    @contextmanager
    def _told_if_replaced(self, shard: Shard) -> Iterator[None]:
        """Within it, a shard that cannot be read raises StorageError where another dataset is here by now."""
        try:
            yield
        except (BadData, StorageNotFound) as error:
            place, listed = self.location.join(shard.path), listed_paths(self.location)
            if not listed or shard.path in listed or place.exists():
                raise
            raise replaced_meanwhile(place) from error.__cause__

    def refuse_unexplained(self) -> None:
        """Raise BadData for `complete: false` that nothing else in the manifest explains.

        One that was committed before it was complete has the note of its writer, one that was repaired says so.
        """
        found = self.manifest
        if not (found.complete or INCOMPLETE_BY & (found.provenance.keys() | found.assumptions.keys())):
            raise self._contradiction("`complete: false`, and nothing in it says what is missing, or how that came about")

    def _contradiction(self, what: str) -> BadData:
        fix = f"{FIX}; or read its shards without it, as {self.location.join(DATA).url}"
        return BadData(f"the manifest contradicts its shards: it says {what}", where=self.location.join(MANIFEST).url, fix=fix)


def open_dataset(url: str | os.PathLike[str] | Location, storage_options: Mapping[str, Any] | None = None) -> Dataset:
    """The dataset in folder `url`, its `manifest` read and its `batches()` not yet. Raises as `Dataset.open` does."""
    return Dataset.open(url, storage_options)


def holds_dataset(location: Location) -> bool:
    """Whether a dataset of ours is here, committed or not."""
    if location.is_in_bucket:  # one listing, for the two questions and two listings of looking up names that may be missing
        return not {MANIFEST, WRITING}.isdisjoint(place.name for place in location.children())
    return location.join(MANIFEST).exists() or location.join(WRITING).exists()


def _uncommitted(folder: Location, *, has_manifest: bool) -> Uncommitted:
    try:
        note = WritingNote.read(folder)
    except BadData:  # a broken note says no less that nobody has finished
        note = None
    began = f": {note.command}, since {note.started}, process {note.pid} on {note.host}" if note else ""
    holder = holder_at_work(note, folder.join(WRITING)) if note else None
    if note is not None and holder is not None:
        heard = heard_from(holder["age"])
        what = f"a writer has not finished this {note.writes}, and is at work on it{began}{heard}"
        return Uncommitted(what, where=folder.url, fix="wait until it ends, then run this again", details={"holder": holder})
    if note is not None and note.writes != DATASET.noun:
        fix = "run the same command again with --overwrite, and read the recordings that it reads"
        return Uncommitted(f"a writer has not finished this {note.writes}{began}", where=folder.url, fix=fix)
    fix = "run the same command again with --resume, or make a dataset of what is whole with offline-cli repair"
    if has_manifest:
        done = "added to" if note is not None and APPENDS_TO in note.options else "overwritten"
        fix += f"; or offline-cli repair --keep old to go back to the dataset that was being {done}"
    return Uncommitted(f"{NOT_FINISHED}{began}", where=folder.url, fix=fix)

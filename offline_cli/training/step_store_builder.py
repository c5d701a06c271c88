"""How the episodes of a run become steps in a store: in memory as they are, or, streaming, on disk in bounded memory.

In memory all episodes go through the pipeline at once, and are there several times over while columns are put together.
Streaming, sources are read once where nothing has to be known of all episodes beforehand, and once more for each thing that
has to be:

1. which episodes are held out (their ids; with --val-fraction alone);
2. what each piece learns that learns from data: it sees all that is not held out, pieces before it as they are when they have
   learned, and learns no more. So a filter holds what it would hold in memory, to rounding.

Then the steps go through the pipeline, some episodes at a time; an episode is in memory whole. A store on disk is made anew by
every run, resumed ones included: it follows from episodes, seed and memory limit alone, all of which a resumed run has to
share. Its file has no name, so that nothing is left of it, however the process ends.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Final, Protocol

from offline_cli.applying.learner_episodes import grouped
from offline_cli.connectors.pipeline_spec import check_streamable, learns
from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.errors import NoData
from offline_cli.formats.memory import give_back
from offline_cli.training.disk_store import DiskStore, ShuffledWriter, StoreForm
from offline_cli.training.memory_bounds import InMemory, Shares
from offline_cli.training.step_records import RecordForm
from offline_cli.training.stores import MemoryStore, Store
from offline_cli.training.training_source import TrainingSource
from offline_cli.training.validation_split import ValidationSplit
from offline_cli.trees import Tree, leaves

__all__ = ["DiskStoreBuilder", "MemoryStoreBuilder", "StoreBuilder", "learn_in_parts"]

PART_BYTES: Final = 1 << 20  # of the episodes that go through the pipeline together, unless one alone is larger
TIDY: Final = 16  # parts, or batches, after which free memory is given back: else it comes to be twice of what is in use


class StoreBuilder(Protocol):
    """Reads the episodes of one run, and keeps what the pipeline makes of them."""

    in_parts: bool  # whether episodes come some at a time

    def ids(self) -> Iterator[tuple[str, ...]]:
        """Of all episodes that have a step."""

    def parts(self) -> Iterator[EpisodeBatch]:
        """All episodes, as many at a time as go through the pipeline together. Raises NoData where there is none; BadConfig."""

    def add(self, columns: Mapping[str, Tree], *, held_out: bool) -> None:
        """Take the columns of one part. Raises StorageError."""

    def finish(self) -> tuple[Store, Store | None]:
        """The stores to learn from, and to validate on where episodes are held out."""

    @property
    def layout(self) -> str:
        """How steps are stored, as far as an update depends on it."""

    def close(self) -> None:
        """Give back what the stores hold outside of memory."""


class MemoryStoreBuilder:
    """All steps in memory."""

    in_parts = False

    def __init__(self, source: TrainingSource, limit: InMemory | None) -> None:
        """`limit`: on what all episodes may take; None: they may take what there is."""
        self._source, self._limit = source, limit
        self._whole: EpisodeBatch | None = None
        self._stores: dict[bool, Store] = {}

    def ids(self) -> Iterator[tuple[str, ...]]:
        """See StoreBuilder; the episodes stay to be taken."""
        self._whole = self._read()
        yield self._whole.ids

    def parts(self) -> Iterator[EpisodeBatch]:
        """All episodes at once."""
        yield self._taken()

    def _taken(self) -> EpisodeBatch:
        whole, self._whole = self._whole or self._read(), None
        return whole

    def _read(self) -> EpisodeBatch:
        episodes = self._source.episodes()
        batches = list(episodes if self._limit is None else self._limit.checked(episodes, where=self._source.where))
        if not batches:
            raise _no_steps(self._source)
        return EpisodeBatch.concat(batches)

    def add(self, columns: Mapping[str, Tree], *, held_out: bool) -> None:
        """See StoreBuilder."""
        self._stores[held_out] = MemoryStore(columns)

    def finish(self) -> tuple[Store, Store | None]:
        """See StoreBuilder."""
        return self._stores[False], self._stores.get(True)

    @property
    def layout(self) -> str:
        """Empty: memory has no other."""
        return ""

    def close(self) -> None:
        """Nothing is outside of memory."""


class DiskStoreBuilder:
    """Steps as records on disk; those held out in a store of their own, in their order."""

    in_parts = True

    def __init__(self, source: TrainingSource, shares: Shares, *, seed: int, holds_out: bool, temp_dir: str | None) -> None:
        """`seed`: of the run; `holds_out`: whether some episodes are. Raises BadConfig for pieces that may need all episodes at
        once, and where memory is too small already.
        """
        check_streamable(source.connectors)
        shares.check_start(fetched=source.fetched)
        self._source, self._shares, self._temp_dir = source, shares, temp_dir
        self._seed, self._holds_out = seed, holds_out
        self._writer: ShuffledWriter | None = None
        self._train: DiskStore
        self._val: DiskStore | None = None
        self._stores: list[DiskStore] = []

    def ids(self) -> Iterator[tuple[str, ...]]:
        """See StoreBuilder."""
        for batch in _tidily(self._source.episodes()):
            yield batch.ids
        give_back()

    def parts(self) -> Iterator[EpisodeBatch]:
        """As many at a time as follows from the episodes alone, and not from how they are read."""
        batches = self._source.episodes()
        first = next(batches, None)
        if first is None:
            raise _no_steps(self._source)
        trees = (first.obs, first.actions, *first.extra.values())
        row = sum(leaf.nbytes // len(leaf) for tree in trees for leaf in leaves(tree))
        return _tidily(grouped(_again(first, batches), max(1, PART_BYTES // max(1, row))))

    def add(self, columns: Mapping[str, Tree], *, held_out: bool) -> None:
        """See StoreBuilder; the stores are made for the first columns."""
        if self._writer is None:
            record = RecordForm.of(columns)
            form = StoreForm.within(self._shares.window, self._shares.pool, record)
            self._train = self._store(record, form)
            self._val = self._store(record, form) if self._holds_out else None
            self._writer = ShuffledWriter(self._train, seed=self._seed)
        records = self._train.record.packed(columns)
        if held_out:
            assert self._val is not None, "nothing is held out"
            self._val.append(records)
        else:
            self._writer.add(records)

    def _store(self, record: RecordForm, form: StoreForm) -> DiskStore:
        self._stores.append(DiskStore(record, form, self._temp_dir))
        return self._stores[-1]

    def finish(self) -> tuple[Store, Store | None]:
        """See StoreBuilder."""
        assert self._writer is not None, "no parts"
        self._writer.finish()
        self._writer = None
        give_back()
        return self._train, self._val

    @property
    def layout(self) -> str:
        """Form and order of the records: another one is another run."""
        return f"{self._train.form} {self._train.record.name}"

    def close(self) -> None:
        """See StoreBuilder."""
        for store in self._stores:
            store.close()


def learn_in_parts(source: TrainingSource, parts: Callable[[], Iterator[EpisodeBatch]], split: ValidationSplit | None) -> None:
    """Have each piece that learns see all that it learns from, one after the other, and learn no more."""
    pending = [piece for piece in source.connectors if learns(piece)]
    while pending:
        for checked in map(source.checked, parts()):
            kept = checked if split is None else split.divided(checked)[0]
            if len(kept):
                source.columns(kept)
        pending.pop(0).freeze()
        for later in pending:
            later.reset_state()  # what came through while the piece before was learning was not yet what it will be
        give_back()


def _no_steps(source: TrainingSource) -> NoData:
    return NoData("no episode has any steps", where=source.where, fix="record again")


def _tidily(batches: Iterator[EpisodeBatch]) -> Iterator[EpisodeBatch]:
    for number, batch in enumerate(batches):
        if number % TIDY == TIDY - 1:
            give_back()
        yield batch


def _again(first: EpisodeBatch, rest: Iterator[EpisodeBatch]) -> Iterator[EpisodeBatch]:
    yield first
    del first
    yield from rest

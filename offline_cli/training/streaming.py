"""Episodes from sources to records on disk, train and held-out, in bounded memory; refuses pipelines that need all at once.

The sources are read once where nothing has to be known of all episodes beforehand, and once more for each thing that has to be:

1. which episodes are held out (their ids; with --val-fraction alone);
2. what each piece learns that learns from data: it sees all that is not held out, pieces before it as they are when they have
   learned, and learns no more. So a filter holds what it would hold in memory, to rounding.

Then the steps go through the pipeline, some episodes at a time, into a store (`step_store.py`); held-out ones into another, in
their order. An episode is in memory whole. A store is made anew by every run, resumed ones included: it follows from episodes,
seed and memory limit alone, all of which a resumed run has to share. Its file has no name, so that nothing is left of it,
however the process ends.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from offline_cli.applying.collecting import collected
from offline_cli.columns import Columns
from offline_cli.converting.large_episodes import EpisodeLimit
from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.errors import BadConfig, BadData, NoData
from offline_cli.formats.memory import give_back
from offline_cli.formats.tables.options import TableOptions
from offline_cli.storage.locations import Sources
from offline_cli.training.config import BCConfig
from offline_cli.training.devices import use_threads
from offline_cli.training.holding_out import HoldingOut
from offline_cli.training.learner_columns import nothing_left
from offline_cli.training.lesson import Lesson, prepare
from offline_cli.training.memory_bounds import Shares
from offline_cli.training.reward_faults import RewardFaults
from offline_cli.training.seen_data import SeenData
from offline_cli.training.step_records import RecordForm
from offline_cli.training.step_store import StepStore, StoreForm, StoreWriter
from offline_cli.training.streamable import check_streamable, learns
from offline_cli.training.training_data import TrainingData
from offline_cli.trees import Tree, flatten, leaves

__all__ = ["stream_data"]

PART_BYTES: Final = 1 << 20  # of the episodes that go through the pipeline together, unless one alone is larger
TIDY: Final = 16  # parts, or batches, after which free memory is given back: else it comes to be twice of what is in use


def stream_data(sources: Sources, config: BCConfig, *, device: str, temp_dir: str | None, **given: Any) -> TrainingData:
    """See `load_data`, whose other options are `given`."""
    shares = Shares.of(config.memory_limit, device)
    tables = TableOptions(temp_dir=temp_dir, memory_limit=shares.tables)
    with prepare(sources, config, tables=tables, episode_limit=EpisodeLimit(shares.episode), **given) as lesson:
        return _stored(lesson, config, shares, temp_dir)


def _stored(lesson: Lesson, config: BCConfig, shares: Shares, temp_dir: str | None) -> TrainingData:
    check_streamable(lesson.pipeline.pieces())
    shares.check_start(fetched=lesson.fetched)
    aside = _held_out(lesson, config)
    _learn(lesson, aside)
    trained, pieces = lesson.learned()
    with use_threads(1), ExitStack() as unfinished:  # parts are small: more threads would wait for each other
        dealing = _Dealing(lesson, aside, config.seed, shares, temp_dir, unfinished)
        dealing.deal()
        unfinished.pop_all()  # finished: whoever has the data closes it
    return TrainingData(
        train=dealing.train,
        val=dealing.val,
        observation_space=lesson.announced[0],
        action_space=lesson.announced[1],
        action_scale=lesson.action_scale,
        episodes=dealing.episodes,
        steps=dealing.steps,
        digest=dealing.digest(),
        seen=dealing.seen.figures(lesson.where, lesson.module),
        pipeline=lesson.name,
        trained=trained,
        pieces=pieces,
        rewards=dealing.rewards,
    )


def _held_out(lesson: Lesson, config: BCConfig) -> HoldingOut | None:
    """Which episodes are; None: none. Raises BadConfig where one episode is all there is."""
    if config.val_fraction is None:
        return None
    found = HoldingOut(config.val_fraction, config.seed)
    for batch in _tidily(lesson.episodes()):
        found.see(batch.ids)
    try:
        found.settle()
    except ValueError as err:
        fix = "leave out --val-fraction"
        raise BadConfig("one episode cannot be split by --val-fraction", where=lesson.where, fix=fix) from err
    give_back()
    return found


def _learn(lesson: Lesson, aside: HoldingOut | None) -> None:
    """Have each piece that learns see all that it learns from, one after the other."""
    pending = [piece for piece in lesson.pipeline.pieces() if learns(piece)]
    while pending:
        for episodes in _tidily(_parts(lesson)):
            kept, _ = _split(lesson.checked(episodes), aside)
            if len(kept):
                lesson.columns(kept, allow_empty=True)
        pending.pop(0).freeze()
        for later in pending:
            later.reset_state()  # what came through while the piece before was learning was not yet what it will be
        give_back()


def _parts(lesson: Lesson) -> Iterator[EpisodeBatch]:
    """All episodes, as many at a time as follows from them alone, and not from how they are read."""
    batches = lesson.episodes()
    first = next(batches, None)
    if first is None:
        raise NoData("episodes without a single step", where=lesson.where, fix="record again")
    row = sum(leaf.nbytes // len(leaf) for tree in (first.obs, first.actions, *first.extra.values()) for leaf in leaves(tree))
    return collected(_again(first, batches), max(1, PART_BYTES // max(1, row)))


def _tidily(batches: Iterator[EpisodeBatch]) -> Iterator[EpisodeBatch]:
    for number, batch in enumerate(batches):
        if number % TIDY == TIDY - 1:
            give_back()
        yield batch


def _again(first: EpisodeBatch, rest: Iterator[EpisodeBatch]) -> Iterator[EpisodeBatch]:
    yield first
    del first
    yield from rest


def _split(episodes: EpisodeBatch, aside: HoldingOut | None) -> tuple[EpisodeBatch, EpisodeBatch | None]:
    if aside is None:
        return episodes, None
    chosen = aside.chosen(episodes.ids)
    return episodes.select(np.flatnonzero(~chosen)), episodes.select(np.flatnonzero(chosen))


class _Dealing:
    """One reading of all episodes into stores."""

    def __init__(
        self,
        lesson: Lesson,
        aside: HoldingOut | None,
        seed: int,
        shares: Shares,
        temp_dir: str | None,
        unfinished: ExitStack,
    ) -> None:
        """Stores are closed by `unfinished`."""
        self._lesson, self._aside, self._seed = lesson, aside, seed
        self._shares, self._temp_dir, self._unfinished = shares, temp_dir, unfinished
        self._digests = _Digests(whole=not lesson.given.is_default)
        self.episodes = self.steps = 0
        self.seen = SeenData()
        self.rewards = RewardFaults()
        self.train: StepStore
        self.val: StepStore | None = None

    def deal(self) -> None:
        """Raises what reading and the pipeline raise; BadConfig where no step is left; BadData for a source that has changed;
        StorageError where the disk is full.
        """
        writer: StoreWriter | None = None
        held_out = 0
        for episodes in _tidily(_parts(self._lesson)):
            checked = self._lesson.checked(episodes)
            kept, aside = _split(checked, self._aside)
            self._digests.see(checked)
            self.seen.see(checked.ids, checked.num_steps)
            self.rewards.see(checked)
            self.episodes, self.steps = self.episodes + len(checked), self.steps + checked.num_steps
            for part in (kept, aside):
                if part is None or not len(part):
                    continue
                columns = self._lesson.columns(part, allow_empty=True)
                writer = writer or self._begun(columns)
                if part is kept:
                    writer.add(self.train.record.packed(columns))
                else:
                    assert self.val is not None
                    self.val.append(self.val.record.packed(columns))
            held_out += 0 if aside is None else len(aside)
        assert writer is not None, "no parts"
        writer.finish()
        del writer
        give_back()
        self._check(held_out)

    def _begun(self, columns: dict[str, Tree]) -> StoreWriter:
        """Make the stores, for columns like these."""
        record = RecordForm.of(columns)
        form = StoreForm.within(self._shares.window, self._shares.pool, record)
        self.train = self._store(record, form)
        self.val = None if self._aside is None else self._store(record, form)
        return StoreWriter(self.train, seed=self._seed)

    def _store(self, record: RecordForm, form: StoreForm) -> StepStore:
        store = StepStore(record, form, self._temp_dir)
        self._unfinished.callback(store.close)
        return store

    def _check(self, held_out: int) -> None:
        if self._aside is not None and (held_out, self.episodes) != (self._aside.count, self._aside.episodes):
            what = f"the source changed while it was read: {self.episodes} episodes, and {self._aside.episodes} before"
            raise BadData(what, where=self._lesson.where, fix="train on a copy of it")
        for store in (self.train, self.val):
            if store is not None and not store.steps:
                raise nothing_left()

    def digest(self) -> str:
        """Of the episodes, and of the order that they are stored in: another one would be another run."""
        return self._digests.hexdigest(f"{self.train.form} {self.train.record.name}")


@dataclass(slots=True)
class _Digests:
    """One running hash for each leaf, so that the result does not depend on the batches that episodes come in."""

    whole: bool  # of all that pieces may read, rewards for instance, and not of observations and actions alone
    _hashes: dict[str, Any] = field(default_factory=dict)

    def see(self, episodes: EpisodeBatch) -> None:
        self._add("ids", "".join(f"{id_}\n" for id_ in episodes.ids).encode("utf-8", "surrogatepass"))
        trees = {"lengths": episodes.lengths, Columns.OBS: episodes.obs, Columns.ACTIONS: episodes.actions}
        if self.whole:
            trees |= {"rewards": episodes.rewards, "terminated": episodes.terminated, "truncated": episodes.truncated}
            trees |= {"extra": dict(episodes.extra)}
        for path, leaf in flatten(trees):
            data = np.ascontiguousarray(leaf)
            self._add(f"{path} {leaf.dtype}{leaf.shape[1:]}", data.data.cast("B") if data.size else b"")

    def _add(self, name: str, data: Any) -> None:
        if name not in self._hashes:
            self._hashes[name] = hashlib.blake2b(digest_size=16)
        self._hashes[name].update(data)

    def hexdigest(self, layout: str) -> str:
        """`layout`: text that belongs to it."""
        lines = [layout, *(f"{name} {known.hexdigest()}" for name, known in sorted(self._hashes.items()))]
        return hashlib.blake2b("\n".join(lines).encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()

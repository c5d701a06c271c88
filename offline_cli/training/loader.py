"""Minibatches in true epochs from any store of steps, the order of every epoch, and which episodes are held out.

`StepLoader` gives every step exactly once per epoch. Every batch has the same shape: the last of an epoch is padded with rows
of weight 0. For policies with memory a row is a sequence of steps, of which `loss_mask` says which are learned from; a batch
has as many sequences as make up its size.

`EpochOrder`: the order of an epoch follows from the run's seed and the number of the epoch alone. So the position in the data
is the update number: nothing has to be saved to resume exactly where a run stopped, and a resumed run continues with the
batches that would have come next. Steps in memory are permuted as a whole. Steps on disk lie in units (neighbouring records):
an epoch permutes the units, takes a pool of them at a time, and permutes the steps of each pool.

`ValidationSplit`: whole episodes are held out for validation, by a hash of seed and id, the same in every run with the same
seed, whatever their order and however they are read.

`Store`, in memory or on disk, holds every step once, with all of its columns. A `StoreReader` puts the steps of one batch into
tensors (`gather`) and makes columns of these where they are none yet (`settle`). A `StoreBuilder` reads sources once where
nothing has to be known of all episodes beforehand, and once more for each thing that has to be: which episodes are held out,
and what each piece of a pipeline learns (`applying/learned_pieces.py`).

`HostFeed`: batches from data that stays in host memory, one ahead of the device. A batch takes three steps: its rows are
gathered into pinned memory, copied from there to a waiting tensor on the device by a stream of its own, and moved into the
tensors that updates read. The first two are done for the next batch while the device works on this one. Without CUDA the same
steps happen one after the other.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Final, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from offline_cli.columns import Columns as ColumnNames
from offline_cli.engines.ranks import ALONE, Ranks
from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.policies.seeds import draw
from offline_cli.training.metrics_file import RecordForm
from offline_cli.trees import Tree, map_leaves

__all__ = [
    "WEIGHTS",
    "EpochOrder",
    "Gather",
    "HostFeed",
    "PoolPlan",
    "StepLoader",
    "Store",
    "StoreBuilder",
    "StoreReader",
    "ValidationSplit",
    "of_window",
    "shuffled",
    "steps_per_row",
]

WEIGHTS: Final = "weights"  # (N,) float32 of the N steps of a batch, sequences one after the other; sum 1; 0 on padding

Columns = Mapping[str, Tree]
"""By name, trees of tensors (N, ...): one row per step."""

LOSS_MASK: Final = ColumnNames.LOSS_MASK
Gather = Callable[[int, Sequence[Tensor]], None]
"""Puts the batch of a number into tensors on the host, one for each target."""

STEPS, WINDOWS, UNITS, POOLS = 11, 12, 13, 14  # set these seeds apart from others drawn from the same run seed
PLANS: Final = 2  # that are kept: while batches come from one epoch, the first pool of the next one is read


class HostFeed:
    """Fills each target (B, ...) on `device` with what a `Gather` collects on the host."""

    def __init__(self, targets: Sequence[Tensor], device: torch.device) -> None:
        self._targets = list(targets)
        self._device = device
        self._side = torch.cuda.Stream(device) if device.type == "cuda" else None  # type: ignore[no-untyped-call]
        pinned = self._side is not None
        self._gathered = [torch.empty(part.shape, dtype=part.dtype, pin_memory=pinned) for part in self._targets]
        self._ahead = [torch.empty_like(part) for part in self._targets]
        self._number: int | None = None  # of the batch that is, or will be, in `_ahead`

    def fill(self, number: int, gather: Gather) -> None:
        """Put batch `number` into the targets, and send for the one after it."""
        if self._number != number:
            self._send(number, gather)
        if self._side is not None:
            torch.cuda.current_stream(self._device).wait_stream(self._side)
        for target, ahead in zip(self._targets, self._ahead, strict=True):
            target.copy_(ahead)
        self._send(number + 1, gather)

    def forget(self) -> None:
        """Gather again what was sent ahead: its rows have changed."""
        self._number = None

    def _send(self, number: int, gather: Gather) -> None:
        if self._side is not None:
            self._side.synchronize()  # the copy before this one has left the pinned memory
        gather(number, self._gathered)
        if self._side is None:
            self._copy()
        else:
            self._side.wait_stream(torch.cuda.current_stream(self._device))  # what was ahead has been taken
            with torch.cuda.stream(self._side):
                self._copy()
        self._number = number

    def _copy(self) -> None:
        for ahead, gathered in zip(self._ahead, self._gathered, strict=True):
            ahead.copy_(gathered, non_blocking=True)


class StepLoader:
    """Fills one batch, again and again.

    `batch` is what updates read: per column a tree of tensors (B, ...) on `device`, and `weights`. Where the steps are not on
    the device, each batch is sent ahead of its update (`HostFeed`).
    """

    def __init__(
        self,
        store: Store,
        *,
        batch_size: int,
        seed: int,
        device: torch.device,
        before: Mapping[str, Tree] | None = None,
        ranks: Ranks = ALONE,
    ) -> None:
        """`batch_size`: steps. `before`: columns, leaves (...), that every row has alike: the state before a sequence.
        `ranks`: the processes that share out each batch; `batch` holds this one's rows, with their weights in all of it.
        """
        assert store.steps > 0, "no rows"
        self.steps = store.steps
        per_row = steps_per_row(store.record.empty(1, torch.device("cpu")))
        self.batch_size = min(max(1, batch_size // per_row), self.steps)
        self.updates_per_epoch = -(-self.steps // self.batch_size)
        self._ranks, self._own = ranks, -(-self.batch_size // ranks.count)  # rows of `batch`
        self.batch: dict[str, Any] = store.record.empty(self._own, device)
        self._reader = store.reader(dict(self.batch), EpochOrder(seed), device)
        self._feed = None if self._reader.is_resident else HostFeed(self._reader.targets, device)
        self._before = {
            name: map_leaves(lambda leaf: torch.as_tensor(leaf).to(device), tree) for name, tree in (before or {}).items()
        }
        self.batch |= self._repeated(self._own)
        self.batch[WEIGHTS] = torch.empty(self._own * per_row, device=device)
        self._rows = -1

    def _repeated(self, rows: int) -> dict[str, Any]:
        return {name: map_leaves(lambda leaf: leaf.expand(rows, *leaf.shape), tree) for name, tree in self._before.items()}

    def fill(self, update: int) -> int | Tensor:
        """Put the batch of update number `update`, counted from 0, into `batch`; gives the steps in it that are learned from,
        of sequences as a tensor () on the device.
        """
        if self._feed is not None:
            self._feed.fill(update, self._gather)
        else:
            self._gather(update, self._reader.targets)
        self._reader.settle()
        rows, own = self._part(update % self.updates_per_epoch)
        if LOSS_MASK in self.batch:
            return self._weigh_steps(own.stop - own.start)
        if rows != self._rows:
            self.batch[WEIGHTS].fill_(1 / rows)[own.stop - own.start :] = 0
            self._rows = rows
        return rows

    def _weigh_steps(self, rows: int) -> Tensor:
        mask: Tensor = self.batch[LOSS_MASK]
        mask[rows:] = False
        count = self._ranks.sum_(mask.sum())
        torch.div(mask.flatten(), count, out=self.batch[WEIGHTS])
        return count

    def replace(self, columns: Mapping[str, Tree]) -> None:
        """Take other values of the same steps, of the same forms; they are in memory."""
        self._reader.replace(columns)
        if self._feed is not None:
            self._feed.forget()

    def _part(self, index: int) -> tuple[int, slice]:
        """Rows of the batch with this number in its epoch, and which of them are this rank's."""
        rows = min(self.batch_size, self.steps - index * self.batch_size)
        return rows, self._ranks.share(rows)

    def _gather(self, update: int, targets: Sequence[Tensor]) -> None:
        epoch, index = divmod(update, self.updates_per_epoch)
        rows, own = self._part(index)
        if own.start == own.stop:  # more ranks than rows: any of them, without a weight
            own = slice(0, min(rows, self._own))
        self._reader.gather(epoch, index * self.batch_size + own.start, own.stop - own.start, targets)

    def in_order(self) -> Iterator[tuple[dict[str, Any], int]]:
        """This rank's share of all steps, in the order of the store, as batches of at most B rows on the device, with their
        sizes."""
        for number, (columns, rows) in enumerate(self._reader.in_order(self.batch_size)):
            if number % self._ranks.count == self._ranks.rank:
                yield columns | self._repeated(rows), rows


def steps_per_row(columns: Columns) -> int:
    """How many steps a row of these columns has: 1, or the length of sequences."""
    return int(columns[LOSS_MASK].shape[1]) if LOSS_MASK in columns else 1


@dataclass(slots=True)
class ValidationSplit:
    """`see` the ids of all episodes, `settle`, and divide them: at least one is held out, and never all.

    Two ids with one 64-bit hash count as one.
    """

    fraction: float
    seed: int
    episodes: int = 0  # seen, once settled
    _ranks: array[int] = field(default_factory=lambda: array("Q"))
    _last: int = -1  # the highest rank that is held out

    def see(self, ids: Iterable[str]) -> None:
        """Further episodes, each seen once."""
        self._ranks.extend(_rank(id_, self.seed) for id_ in ids)

    def settle(self) -> None:
        """All episodes have been seen. Raises ValueError for fewer than two."""
        if len(self._ranks) < 2:
            raise ValueError("fewer than two episodes")
        self.episodes = len(self._ranks)
        last = self.count - 1
        self._last = int(np.partition(np.frombuffer(self._ranks, np.uint64), last)[last])
        self._ranks = array("Q")

    @property
    def count(self) -> int:
        """How many episodes are held out, once settled."""
        return min(max(1, round(self.fraction * self.episodes)), self.episodes - 1)

    def chosen(self, ids: Iterable[str]) -> NDArray[np.bool_]:
        """(E,) which of them are held out."""
        return np.array([_rank(id_, self.seed) <= self._last for id_ in ids], np.bool_)

    def divided(self, episodes: EpisodeBatch) -> tuple[EpisodeBatch, EpisodeBatch]:
        """The episodes to learn from, and those held out."""
        chosen = self.chosen(episodes.ids)
        return episodes.select(np.flatnonzero(~chosen)), episodes.select(np.flatnonzero(chosen))


def _rank(id_: str, seed: int) -> int:
    name = id_.encode("utf-8", "surrogatepass")
    return int.from_bytes(hashlib.blake2b(name, digest_size=8, key=str(seed).encode()[:64]).digest(), "big")


class StoreReader(Protocol):
    """Reads a store for one loader, whose columns (B, ...) are filled again and again."""

    targets: Sequence[Tensor]  # what `gather` fills, on the loader's device
    is_resident: bool  # `gather` reads from that device: else batches are gathered on the host, and sent ahead

    def gather(self, epoch: int, first: int, rows: int, targets: Sequence[Tensor]) -> None:
        """Put the `rows` steps from number `first` of that epoch on into `targets` (B, ...), or tensors like these on the host;
        what follows them is padding. Raises StorageError.
        """

    def settle(self) -> None:
        """Make the loader's columns of what is in `targets`."""

    def replace(self, columns: Columns) -> None:
        """Take other values of the same steps, of the same forms; only of a store in memory."""

    def in_order(self, rows: int) -> Iterator[tuple[dict[str, Any], int]]:
        """Every step once, in the store's order: columns of at most `rows` steps on the loader's device, and how many."""


class Store(Protocol):
    """Steps of one form."""

    steps: int

    @property
    def record(self) -> RecordForm:
        """How one step would be packed."""

    def reader(self, batch: Columns, order: EpochOrder, device: torch.device) -> StoreReader:
        """Fills `batch`, columns (B, ...) on `device`."""

    def first(self) -> dict[str, Any]:
        """Columns (1, ...) of its first step, on the CPU."""

    def close(self) -> None:
        """Release what it holds outside of memory."""


class StoreBuilder(Protocol):
    """Reads the episodes of one run, and keeps what the pipeline makes of them."""

    in_parts: bool  # whether episodes come some at a time
    mixed: Mapping[str, Any]  # once finished, what an epoch draws from each source (`Mixture.as_dict`); empty: every step once

    def ids(self) -> Iterator[tuple[str, ...]]:
        """Of all episodes that have a step."""

    def parts(self) -> Iterator[EpisodeBatch]:
        """All episodes, as many at a time as go through the pipeline together. Raises NoData where there is none; BadConfig."""

    def looked_at(self) -> Iterator[EpisodeBatch]:
        """All episodes, to learn something of all of them before `parts`. Raises as that does."""

    def add(self, columns: Columns, *, held_out: bool, sources: Tensor | None = None) -> None:
        """Take the columns of one part. `sources`: (N,) the number of each row's source, where these have weights. Raises
        StorageError.
        """

    def finish(self) -> tuple[Store, Store | None]:
        """The stores to learn from, and to validate on where episodes are held out."""

    @property
    def layout(self) -> str:
        """How steps are stored, as far as an update depends on it."""

    def close(self) -> None:
        """Release what the stores hold outside of memory."""


@dataclass(frozen=True, slots=True, eq=False)
class PoolPlan:
    """How an epoch goes through units on disk."""

    units: Tensor  # (units,) int64, their numbers; a pool is `units_per_pool` neighbours of these
    starts: Tensor  # (pools,) int64, the step of the epoch with which each pool begins


class EpochOrder:
    """The orders that one seed gives; may be called by two threads."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self.plan = lru_cache(PLANS)(self._plan)

    def of_steps(self, epoch: int, steps: int) -> Tensor:
        """(steps,) int64: the order of steps in memory."""
        return shuffled(self._seed, STEPS, epoch, steps)

    def _plan(self, epoch: int, steps: int, unit: int, units_per_pool: int) -> PoolPlan:
        """The plan for `steps` steps in units of so many: all are of one size but the last of the file, wherever it comes.

        Drawn once per epoch, however many pools there are.
        """
        count = -(-steps // unit)
        units = shuffled(self._seed, UNITS, epoch, count)
        starts = torch.arange(0, count, units_per_pool) * unit
        short = (units == count - 1).nonzero()[0, 0]
        starts[short // units_per_pool + 1 :] -= count * unit - steps
        return PoolPlan(units, starts)

    def of_pool(self, number: int, steps: int) -> Tensor:
        """(steps,) int64: the order of the steps of one pool, which are counted through all epochs."""
        return shuffled(self._seed, POOLS, number, steps)


def of_window(seed: int, number: int, steps: int) -> Tensor:
    """(steps,) int64: the order in which the steps of a window are written to disk."""
    return shuffled(seed, WINDOWS, number, steps)


def shuffled(seed: int, purpose: int, number: int, count: int) -> Tensor:
    """(count,) int64: a permutation that follows from the other arguments."""
    return torch.randperm(count, generator=torch.Generator().manual_seed(draw(seed, purpose, number)))

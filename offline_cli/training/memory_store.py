"""Steps in memory, one tensor per leaf, and how a memory limit is shared out in training.

All episodes go through the pipeline at once, and exist several times over while columns are put together.

An error comes before a limit is exceeded. What a run holds follows from the limit and from constants, never from what happens
to be free: a resumed run has pools of the same size, and so the same batches. What is measured only decides between continuing
and an error that says how much is needed.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor, nn

from offline_cli.applying.frame_stacks import FrameStacks, expanded
from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.errors import BadConfig
from offline_cli.formats.memory_limits import give_back
from offline_cli.formats.memory_limits import resident as _resident
from offline_cli.formats.tables.source import LEAST_MEMORY
from offline_cli.modules.devices import fits_on
from offline_cli.modules.network import checking_features
from offline_cli.modules.rl_module import evaluating
from offline_cli.spaces import Space, leaf_spaces
from offline_cli.training.learner import Learner
from offline_cli.training.loader import WEIGHTS, Columns, EpochOrder, Store, StoreReader, steps_per_row
from offline_cli.training.metrics_file import RecordForm
from offline_cli.training.mixing import MixedOrder, Mixture
from offline_cli.training.training_source import TrainingSource
from offline_cli.training.updates import unchanged
from offline_cli.trees import Tree, flatten, leaves, map_leaves

__all__ = ["InMemory", "MemoryStore", "MemoryStoreBuilder", "Shares", "check_training_fits"]

MiB: Final = 1 << 20
PROGRAM: Final = {"cpu": 352 * MiB, "cuda": 2560 * MiB}  # torch and the other libraries, on a GPU with its context
DEFAULT: Final = {"cpu": 1024 * MiB, "cuda": 4096 * MiB}  # limits for streaming
LEAST_ROOM: Final = 160 * MiB  # beside the program
READING: Final = 96 * MiB  # files that are being read, and what is made of them
LITTLE: Final = READING // 12  # what freed memory may stay without being returned
CLIENT: Final = 32 * MiB  # of an object store
WINDOW: Final = 64 * MiB  # of remote files, that has been fetched and not read
OPTION: Final = "--memory-limit"
COPIES: Final = 5  # of the steps while they are put together in memory: 515 MB of episodes were seen to take 2.3 GB
WEIGHT_COPIES: Final = 14  # weights, gradients, moments, scratch, the best policy; and all of them again in a checkpoint
PASSING: Final = 6  # numbers per row of a batch and unit of the widest layer with weights, on the way forward and back
BATCHES: Final = 4  # records and columns of a batch, of the held-out steps too
ENDING: Final = 32 * MiB  # the curve, and what draws it


@dataclass(frozen=True, slots=True)
class Shares:
    """What streaming may hold, in bytes."""

    limit: int
    window: int  # steps that are shuffled before they are written
    pool: int  # steps that are learned from; there are two
    tables: int  # the whole process, as a reader of tables counts it, whose program is smaller by torch
    episode: int  # the arrays of one episode

    @classmethod
    def of(cls, limit: int | None, device: str) -> Shares:
        """The shares of `limit`; None: the default. Raises BadConfig where it is too small for the program itself."""
        limit = DEFAULT[device] if limit is None else limit
        room = limit - PROGRAM[device]
        if room < LEAST_ROOM:
            least = PROGRAM[device] + LEAST_ROOM
            what = f"--memory-limit {_mib(limit)} is too small: torch alone needs {_mib(PROGRAM[device])} on this device"
            raise BadConfig(what, where=OPTION, fix=f"give at least {_mib(least)}")
        return cls(limit, room // 4, room * 3 // 10, LEAST_MEMORY + room // 4, room // COPIES)

    def check_start(self, *, fetched: bool) -> None:
        """Raise BadConfig where the program takes so much already that reading would break the limit. `fetched`: ahead, from an
        object store, whose client is there already.
        """
        _check(self.limit, self.window + READING + (WINDOW if fetched else 0), "reading")


def check_training_fits(limit: int | None, device: str, learner: Learner, store: Store, batch_size: int) -> None:
    """Raise BadConfig where two pools of a streaming run, and updates of `batch_size` steps, would break the limit."""
    shares = Shares.of(limit, device)
    network = _network_bytes(learner, store, batch_size) if device == "cpu" else 0
    _check(shares.limit, 2 * shares.pool + network + ENDING, "training this network")


def _network_bytes(learner: Learner, store: Store, batch_size: int) -> int:
    """Measured by sending one step, or sequence, through: the size of a layer's output does not follow from its weights alone.

    The modules and the random generators stay as they are; layers that need several rows in training mode can do with one in
    evaluation mode.
    """
    taken, made, learned = [0], [0], [0]  # numbers that layers take, that they make, and that those with weights make

    def see(layer: nn.Module, given: tuple[Any, ...], output: Any) -> None:
        taken.append(_numbers(given))
        made.append(_numbers(output))
        if next(layer.parameters(), None) is not None:
            learned.append(made[-1])

    layers = [part for part in learner.whole.modules() if not list(part.children())]
    hooks = [part.register_forward_hook(see) for part in layers]
    row = store.first()
    before = {
        name: map_leaves(lambda leaf: torch.as_tensor(leaf)[None], tree) for name, tree in learner.before_sequences().items()
    }
    row |= before | {WEIGHTS: torch.ones(steps_per_row(row))}
    rows = max(1, batch_size // steps_per_row(row))
    try:
        whole = learner.whole
        with unchanged([*learner.others().values()]), evaluating(whole), checking_features(whole), torch.random.fork_rng([]):
            for group in learner.groups:
                group.loss(row)
    finally:
        for hook in hooks:
            hook.remove()
    weights = sum(parameter.numel() for parameter in learner.whole.parameters())
    passing = max(taken) + sum(made) + PASSING * max(learned)
    return 4 * (WEIGHT_COPIES * weights + passing * rows) + BATCHES * rows * store.record.nbytes


def _numbers(tree: Any) -> int:
    return sum(leaf.numel() for leaf in leaves(tree) if isinstance(leaf, Tensor))


def _check(limit: int, more: int, doing: str) -> None:
    give_back()  # what is free, and not yet the system's again, is not taken
    taken = _resident()
    if taken is not None and taken + more > limit:
        what = f"the process takes {_mib(taken)} already, and {doing} takes {_mib(more)} more: over {_mib(limit)}"
        raise BadConfig(what, where=OPTION, fix=f"give about {_mib((taken + more) * 5 // 4)}, or a smaller network or batch")


@dataclass(frozen=True, slots=True)
class InMemory:
    """A limit on episodes that are all in memory."""

    limit: int
    device: str
    held: tuple[Space, Space]  # of what is held of each step (`TrainingSource.held`)
    fetched: bool = False  # ahead, from an object store

    def checked(self, batches: Iterable[EpisodeBatch], *, where: str) -> Iterator[EpisodeBatch]:
        """`batches`; raises BadConfig, naming --streaming, as soon as the data so far does not fit."""
        size = steps = 0
        program = PROGRAM[self.device] + (CLIENT + WINDOW if self.fetched else 0)
        learned = sum(_bytes_of(leaf) for space in self.held for leaf in leaf_spaces(space).values())
        for batch in batches:
            size, steps = size + batch.nbytes, steps + batch.num_steps
            needed = program + COPIES * max(size, steps * learned)
            if needed > self.limit:
                what = f"the first {steps:,} steps alone would take {_mib(needed)} in memory, of {_mib(self.limit)} allowed"
                raise BadConfig(what, where=where, fix=f"--streaming, which keeps them on disk; or a larger {OPTION}")
            yield batch


def _bytes_of(leaf: Any) -> int:
    return math.prod(leaf.shape or ()) * int(np.dtype(leaf.dtype or np.int64).itemsize)


def _mib(size: int) -> str:
    return f"{-(-size // MiB):,} MiB"


class MemoryStoreBuilder:
    """All steps in memory."""

    in_parts = False

    def __init__(self, source: TrainingSource, limit: InMemory | None, *, seed: int) -> None:
        """`limit`: on what all episodes may take; None: they may take what there is. `seed`: of the run."""
        self._source, self._limit, self._seed = source, limit, seed
        self._whole: EpisodeBatch | None = None
        self._stores: dict[bool, MemoryStore] = {}
        self.mixed: Mapping[str, Any] = {}
        self._sources: Tensor | None = None  # of the rows to learn from, where they have weights
        self._passed = _Passed()

    def ids(self) -> Iterator[tuple[str, ...]]:
        """See StoreBuilder."""
        for whole in self.looked_at():
            yield whole.ids

    def looked_at(self) -> Iterator[EpisodeBatch]:
        """See StoreBuilder; the episodes stay to be taken."""
        self._whole = self._whole or self._read()
        yield self._whole

    def parts(self) -> Iterator[EpisodeBatch]:
        """All episodes at once."""
        yield self._taken()

    def _taken(self) -> EpisodeBatch:
        whole, self._whole = self._whole or self._read(), None
        return whole

    def _read(self) -> EpisodeBatch:
        episodes = self._source.episodes()
        batches, self._passed = list[EpisodeBatch](), _Passed()
        for batch in episodes if self._limit is None else self._limit.checked(episodes, where=self._source.where):
            batches.append(batch)
            self._passed.add(batch.nbytes)
        if not batches:
            raise self._source.no_steps()
        return _joined(batches)

    def add(self, columns: Mapping[str, Tree], *, held_out: bool, sources: Tensor | None = None) -> None:
        """See StoreBuilder."""
        self._stores[held_out] = MemoryStore(columns)
        self._sources = self._sources if sources is None else sources

    def finish(self) -> tuple[Store, Store | None]:
        """See StoreBuilder."""
        self._passed.end()
        train, weights = self._stores[False], self._source.selection.weights
        if weights is not None and self._sources is not None and train.steps:
            rows = [(self._sources == number).nonzero()[:, 0] for number in range(len(weights.names))]
            mixture = Mixture.of(weights, [*map(len, rows)])
            train, self.mixed = MemoryStore(train.columns, MixedOrder(self._seed, mixture, rows)), mixture.as_dict()
        return train, self._stores.get(True)

    @property
    def layout(self) -> str:
        """Empty: memory has one layout."""
        return ""

    def close(self) -> None:
        """Nothing is outside of memory."""


class _Passed:
    """Returns memory to the system on the way: what reading and joining let go would stay with the process beside the episodes.

    At most a sixteenth of their size stays; returning more often would cost time, a few milliseconds each.
    """

    def __init__(self) -> None:
        self._all = self._since = 0

    def end(self) -> None:
        """Return what is free, unless little was read."""
        if self._all > LITTLE:
            give_back()

    def add(self, size: int) -> None:
        """Count bytes of episodes."""
        self._all, self._since = self._all + size, self._since + size
        if self._since > max(LITTLE, self._all // 16):
            self._since = 0
            give_back()


def _joined(batches: list[EpisodeBatch]) -> EpisodeBatch:
    """As `EpisodeBatch.concat`; `batches` becomes empty on the way: observations are in memory once, and not twice."""
    if len(batches) == 1:
        return batches.pop()
    give_back()
    first = batches[0]
    if any(first.structure_difference(other) for other in batches[1:]):
        return EpisodeBatch.concat(batches)  # which raises
    rest = EpisodeBatch.concat([replace(batch, obs=()) for batch in batches])
    rows = int(rest.obs_starts[-1])
    obs = map_leaves(lambda leaf: np.empty((rows, *leaf.shape[1:]), leaf.dtype), first.obs)
    del first
    batches.reverse()
    done, passed = 0, _Passed()
    while batches:
        batch = batches.pop()
        part = slice(done, done + int(batch.obs_starts[-1]))
        for target, leaf in zip(leaves(obs), leaves(batch.obs), strict=True):
            target[part] = leaf
        done, size = part.stop, batch.nbytes
        del batch, leaf
        passed.add(size)
    return replace(rest, obs=obs)


class MemoryStore:
    """Steps as one tensor per leaf, on the CPU."""

    def __init__(self, columns: Columns, mixed: MixedOrder | None = None) -> None:
        """`mixed`: the order of its epochs; None: the one that a reader is given."""
        self.columns, self._mixed = columns, mixed
        held = [leaf for _, leaf in flatten(dict(columns))]  # FrameStacks are one
        self.steps = len(held[0])
        assert all(len(leaf) == self.steps for leaf in held), [len(leaf) for leaf in held]

    @property
    def record(self) -> RecordForm:
        """See Store."""
        return RecordForm.of(self.first())

    def reader(self, batch: Columns, order: EpochOrder, device: torch.device) -> StoreReader:
        """See Store. The columns live on the device where they fit."""
        return _MemoryReader(self, batch, self._mixed or order, device)

    def first(self) -> dict[str, Any]:
        """See Store."""
        return expanded(self.columns, slice(0, 1))

    def close(self) -> None:
        """Nothing: memory is freed with the last reference."""


class _MemoryReader:
    """Gathers each leaf by itself, and stacks of frames of the frames."""

    def __init__(self, store: MemoryStore, batch: Columns, order: EpochOrder | MixedOrder, device: torch.device) -> None:
        frames = {id(column.frames): column.frames for column in store.columns.values() if isinstance(column, FrameStacks)}
        held = [leaf for tree in (*store.columns.values(), *frames.values()) for leaf in leaves(tree)]
        self.is_resident = fits_on(device, sum(leaf.nbytes for leaf in held))
        self._home = device if self.is_resident else torch.device("cpu")
        there = {key: map_leaves(lambda leaf: leaf.to(self._home), tree) for key, tree in frames.items()}

        def moved(leaf: Any) -> Any:
            return leaf.to(self._home, there[id(leaf.frames)]) if isinstance(leaf, FrameStacks) else leaf.to(self._home)

        self._columns = {name: map_leaves(moved, tree) for name, tree in store.columns.items()}
        self._sources = [leaf for tree in self._columns.values() for leaf in leaves(tree)]
        self.targets: Sequence[Tensor] = [leaf for name in self._columns for leaf in leaves(batch[name])]
        self._steps, self._order, self._device = store.steps, order, device
        self._epoch, self._chosen = -1, torch.empty(0, dtype=torch.int64)

    def gather(self, epoch: int, first: int, rows: int, targets: Sequence[Tensor]) -> None:
        size = len(targets[0])
        if epoch != self._epoch:
            self._epoch, self._chosen = epoch, self._padded(self._order.of_steps(epoch, self._steps), size)
        chosen = self._chosen.narrow(0, first, size)
        left = iter(targets)
        for source in self._sources:
            if isinstance(source, FrameStacks):
                source.gather(chosen, [next(left) for _ in source.shapes])
            else:
                torch.index_select(source, 0, chosen, out=next(left))

    def _padded(self, order: Tensor, size: int) -> Tensor:
        """`order`, with its own first steps behind it, so that wherever a batch of `size` begins, it is whole."""
        return torch.cat([order, order[:size]]).to(self._home)

    def settle(self) -> None:
        """Nothing: the targets are the columns."""

    def replace(self, columns: Columns) -> None:
        for name, tree in columns.items():
            for held, leaf in zip(leaves(self._columns[name]), leaves(tree), strict=True):
                held.copy_(leaf)

    def in_order(self, rows: int) -> Iterator[tuple[dict[str, Any], int]]:
        for first in range(0, self._steps, rows):
            batch = expanded(self._columns, slice(first, first + rows))
            there = {name: map_leaves(lambda leaf: leaf.to(self._device), tree) for name, tree in batch.items()}
            yield there, min(rows, self._steps - first)

"""Steps of a dataset as PyTorch takes them: map-style in memory, and iterable. `Dataset.to_torch` makes both.

It imports nothing of the trainer, which has stores and a loader of its own: this is for loops that are somebody else's. Which
columns there are is said in one place, `_columns`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any, Final, Protocol

import numpy as np
import torch
from torch.utils.data import Dataset, IterableDataset, get_worker_info

from offline_cli.columns import Columns
from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.errors import BadConfig
from offline_cli.scopes import Reading
from offline_cli.trees import Tree, flatten, leaves, map_leaves

__all__ = ["StepDataset", "StepStream"]

NUMBERS: Final = "biufc"
Step = dict[str, Any]
"""Trees of tensors by column; of B steps, leaves (B, ...)."""


class Source(Protocol):
    """What is known of a `Dataset` here."""

    @property
    def shards(self) -> Sequence[Any]:
        """Parts that can be read apart."""

    def of_shards(self, shards: Sequence[Any]) -> Source:
        """Some of them."""

    def batches(self) -> Reading[EpisodeBatch]:
        """All episodes, streamed."""

    def __getitem__(self, which: slice, /) -> EpisodeBatch: ...


class StepDataset(Dataset[Step]):
    """N steps in memory. `dataset[i]` is one step: a dict of tensors; a slice or indices (B,) give B steps: leaves (B, ...).

    Observations are kept once, though they are in `obs` and `new_obs`. For DataLoader with `shuffle`, workers, both.
    """

    def __init__(self, source: Source, columns: Sequence[str] | None = None) -> None:
        """See `Dataset.to_torch`."""
        with source.batches() as batches:
            found = list(batches)
        whole = EpisodeBatch.concat(found) if found else source[0:0]
        columns = _chosen(whole, columns)
        seen = {Columns.OBS: whole.step_rows(), Columns.NEXT_OBS: whole.step_rows() + 1}
        self._rows = {name: torch.from_numpy(rows) for name, rows in seen.items() if name in columns}
        self._seen = _tensors(whole.obs, Columns.OBS) if self._rows else None
        self._others = {name: tree for name, tree in _columns(whole, columns).items() if name not in seen}
        self._names, self._steps = columns, whole.num_steps

    def __len__(self) -> int:
        return self._steps

    def __getitem__(self, which: Any) -> Step:
        if isinstance(which, (list, tuple, np.ndarray)):
            which = torch.as_tensor(which)
        if not isinstance(which, (slice, torch.Tensor)) and not -self._steps <= which < self._steps:
            raise IndexError(f"step {which} of {self._steps}")
        return {name: self._part(name, which) for name in self._names}

    def _part(self, name: str, which: Any) -> Tree:
        if name in self._rows:
            rows = self._rows[name][which]
            return map_leaves(lambda leaf: leaf[rows], self._seen)
        return map_leaves(lambda leaf: leaf[which], self._others[name])


class StepStream(IterableDataset[Step]):
    """Steps as they are read, episode after episode. Workers of a DataLoader share them: no step comes twice.

    Give DataLoader `batch_size=None` where batches are made here, which is much faster.
    """

    def __init__(
        self,
        source: Source,
        columns: Sequence[str] | None = None,
        *,
        batch_size: int | None = None,
        shuffle: bool = False,
        seed: int = 0,
    ) -> None:
        """`batch_size`: items are that many steps, the last of a worker fewer; None: one step.

        `shuffle`: shards come in an order drawn with `seed` and the epoch, and so do the steps within what is read at once: a
        row group, or 65,536 steps. That mixes less than a shuffle of all steps does. Raises BadConfig.
        """
        if batch_size is not None and batch_size < 1:
            raise BadConfig(f"a batch_size of {batch_size}", where="to_torch", fix="1 or more, or None for single steps")
        self._source, self._wanted = source, columns
        self._batch_size, self._shuffle, self._seed = batch_size, shuffle, seed
        self._epoch = torch.zeros((), dtype=torch.int64)
        self._share()

    def _share(self) -> None:
        """Let workers that outlive an epoch (`persistent_workers`) see the next one's number, too."""
        if self._shuffle:
            self._epoch.share_memory_()  # type: ignore[no-untyped-call]

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._share()

    def set_epoch(self, epoch: int) -> None:
        """Shuffle as in epoch `epoch` from the next iteration on, in all workers; without it, all epochs have one order."""
        self._epoch.fill_(epoch)

    def __iter__(self) -> Iterator[Step]:
        info = get_worker_info()
        worker, workers = (0, 1) if info is None else (info.id, info.num_workers)
        shards, key = list(self._source.shards), [self._seed, int(self._epoch)]
        if self._shuffle:
            shards = [shards[at] for at in np.random.default_rng(key).permutation(len(shards))]
        apart = len(shards) >= workers  # else all read all shards, and take batches in turn
        mine = shards[worker::workers] if apart else shards
        chance = np.random.default_rng([*key, worker]) if self._shuffle else None
        with self._source.of_shards(mine).batches() as batches:
            taken = batches if apart else islice(batches, worker, None, workers)
            yield from self._items(taken, chance)

    def _items(self, batches: Iterator[EpisodeBatch], chance: np.random.Generator | None) -> Iterator[Step]:
        left: Step | None = None  # steps that are not a batch yet
        for batch in batches:
            steps = _columns(batch, _chosen(batch, self._wanted))
            if chance is not None:
                steps = _at(steps, torch.from_numpy(chance.permutation(batch.num_steps)))
            if self._batch_size is None:
                yield from (_at(steps, step) for step in range(batch.num_steps))
                continue
            steps = steps if left is None else _joined(left, steps)
            whole = _count(steps) // self._batch_size * self._batch_size
            yield from (_at(steps, slice(at, at + self._batch_size)) for at in range(0, whole, self._batch_size))
            left = _at(steps, slice(whole, None))
        if left is not None and _count(left):
            yield left


def _chosen(batch: EpisodeBatch, wanted: Sequence[str] | None) -> list[str]:
    """Columns of `batch`. Raises BadConfig for others, and for what is no list."""
    known = [Columns.OBS, Columns.NEXT_OBS, Columns.T, *batch.step_columns()]
    if isinstance(wanted, str):
        raise BadConfig(f"columns is a list, not {wanted!r}", where="to_torch", fix=f"to_torch([{wanted!r}])")
    unknown = [] if wanted is None else [name for name in wanted if name not in known]
    if unknown:
        fix = f"columns among {', '.join(known)}"
        raise BadConfig(f"no column {unknown[0]!r} in these episodes", where="to_torch", fix=fix)
    if wanted is not None and not wanted:
        raise BadConfig("no columns", where="to_torch", fix=f"columns among {', '.join(known)}; None: all")
    return known if wanted is None else list(wanted)


def _columns(batch: EpisodeBatch, names: Sequence[str]) -> Step:
    """Leaves (N, ...) of these columns."""
    made = {Columns.OBS: batch.acted_obs, Columns.NEXT_OBS: batch.next_obs, Columns.T: batch.timesteps}
    known = batch.step_columns()
    return {name: _tensors(made[name]() if name in made else known[name], name) for name in names}


def _tensors(tree: Tree, name: str) -> Tree:
    """Of arrays, which may be read-only. Raises BadConfig for what is not numeric."""
    for path, leaf in flatten(tree, name):
        if leaf.dtype.kind not in NUMBERS:
            fix = "to_torch(columns=...) without it"
            raise BadConfig(f"{path} is {leaf.dtype}, which no tensor holds", where="to_torch", fix=fix)
    return map_leaves(lambda leaf: torch.from_numpy(leaf if leaf.flags.writeable else leaf.copy()), tree)


def _at(steps: Step, which: Any) -> Step:
    return {name: map_leaves(lambda leaf: leaf[which], tree) for name, tree in steps.items()}


def _joined(left: Step, right: Step) -> Step:
    return {name: map_leaves(lambda *parts: torch.cat(parts), tree, right[name]) for name, tree in left.items()}


def _count(steps: Step) -> int:
    return len(leaves(next(iter(steps.values())))[0])

"""Steps of a dataset as PyTorch takes them: map-style in memory, and iterable. `Dataset.to_torch` makes both.

It imports nothing of the trainer, which has a store of its own: this is for loops that are somebody else's.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any, Final

import numpy as np
import torch
from torch.utils.data import Dataset, IterableDataset, get_worker_info

from offline_cli.columns import Columns
from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.errors import BadConfig
from offline_cli.trees import Tree, flatten, leaves, map_leaves

__all__ = ["StepDataset", "StepStream"]

NUMBERS: Final = "biufc"
Step = dict[str, Any]
"""Trees of tensors by column; of B steps, leaves (B, ...)."""


class StepDataset(Dataset[Step]):
    """N steps in memory. `dataset[i]` is one step: a dict of tensors; a slice or indices (B,) give B steps: leaves (B, ...).

    Observations are kept once, though they are in `obs` and `new_obs`. For DataLoader with `shuffle`, workers, both.
    """

    def __init__(self, source: Any, columns: Sequence[str] | None = None) -> None:
        """`source`: a `Dataset` of ours. `columns`: see `Dataset.to_torch`."""
        with source.batches() as batches:
            found = list(batches)
        whole = EpisodeBatch.concat(found) if found else source[0:0]
        self._names, self._steps = _chosen(whole, columns), whole.num_steps
        seen = {Columns.OBS: whole.step_rows(), Columns.NEXT_OBS: whole.step_rows() + 1}
        self._rows = {name: torch.from_numpy(rows) for name, rows in seen.items() if name in self._names}
        self._seen = _tensors(whole.obs, Columns.OBS) if self._rows else None
        self._others = _columns(whole, [name for name in self._names if name not in seen])

    def __len__(self) -> int:
        return self._steps

    def __getitem__(self, which: Any) -> Step:
        if isinstance(which, (list, tuple, np.ndarray)):
            which = torch.as_tensor(which)
        if not isinstance(which, (slice, torch.Tensor)) and not -self._steps <= which < self._steps:
            raise IndexError(f"step {which} of {self._steps}")
        seen = {name: map_leaves(lambda leaf, at=rows[which]: leaf[at], self._seen) for name, rows in self._rows.items()}
        found = _at(self._others, which) | seen
        return {name: found[name] for name in self._names}


class StepStream(IterableDataset[Step]):
    """Steps as they are read, episode after episode. Workers of a DataLoader share them: no step comes twice.

    Give DataLoader `batch_size=None` where batches are made here, which is much faster.
    """

    def __init__(
        self,
        source: Any,
        columns: Sequence[str] | None = None,
        *,
        batch_size: int | None = None,
        shuffle: bool = False,
        seed: int = 0,
    ) -> None:
        """`source`: a `Dataset` of ours. `batch_size`: items are that many steps, the last of a worker fewer; None: one step.

        `shuffle`: shards come in an order drawn with `seed` and the epoch, and so do the steps within what is read at once: a
        row group, or 65,536 steps. That mixes less than a shuffle of all steps does. Raises BadConfig.
        """
        if batch_size is not None and batch_size < 1:
            raise BadConfig(f"a batch_size of {batch_size}", where="to_torch", fix="1 or more, or None for single steps")
        self._source, self._wanted = source, columns
        self._batch_size, self._shuffle, self._seed = batch_size, shuffle, seed
        self._epoch = torch.zeros((), dtype=torch.int64)
        self._epoch.share_memory_()  # type: ignore[no-untyped-call]  # workers may outlive an epoch

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
            yield from self._items(batches if apart else islice(batches, worker, None, workers), chance)

    def _items(self, batches: Iterator[EpisodeBatch], chance: np.random.Generator | None) -> Iterator[Step]:
        left: Step | None = None  # steps that are not a batch yet
        for batch in batches:
            steps, count = _columns(batch, _chosen(batch, self._wanted)), batch.num_steps
            if chance is not None:
                steps = _at(steps, torch.from_numpy(chance.permutation(count)))
            if self._batch_size is None:
                yield from (_at(steps, step) for step in range(count))
                continue
            if left is not None:
                steps = {name: map_leaves(lambda *parts: torch.cat(parts), tree, steps[name]) for name, tree in left.items()}
            count = len(leaves(next(iter(steps.values())))[0])
            whole = count // self._batch_size * self._batch_size
            yield from (_at(steps, slice(at, at + self._batch_size)) for at in range(0, whole, self._batch_size))
            left = _at(steps, slice(whole, None)) if whole < count else None
        if left is not None:
            yield left


def _chosen(batch: EpisodeBatch, wanted: Sequence[str] | None) -> list[str]:
    """Columns of `batch`. Raises BadConfig for others, and for what is no list."""
    known = [Columns.OBS, Columns.NEXT_OBS, Columns.T, *batch.step_columns()]
    if wanted is None:
        return known
    if isinstance(wanted, str) or not wanted or not set(wanted).issubset(known):
        fix = f"a list of columns among {', '.join(known)}; None: all"
        raise BadConfig(f"no such columns in these episodes: {wanted!r}", where="to_torch", fix=fix)
    return list(wanted)


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

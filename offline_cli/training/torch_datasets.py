"""Steps of a dataset as PyTorch takes them: map-style in memory, and iterable. `Dataset.to_torch` makes both.

It imports nothing of the trainer, which has a store of its own: this is for loops that are somebody else's.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset, IterableDataset, get_worker_info

from offline_cli.columns import Columns
from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.errors import BadConfig
from offline_cli.trees import flatten, leaves, map_leaves

__all__ = ["StepDataset", "StepStream"]

Step = dict[str, Any]
"""Trees of tensors by column; of B steps, leaves (B, ...)."""


class StepDataset(Dataset[Step]):
    """N steps in memory. `dataset[i]` is one step: a dict of tensors; a slice or indices (B,) give B steps: leaves (B, ...)."""

    def __init__(self, source: Any, columns: Sequence[str] | None = None) -> None:
        """`source`: a `Dataset` of ours. `columns`: see `Dataset.to_torch`."""
        with source.batches() as batches:
            found = list(batches)
        self._columns = _columns(EpisodeBatch.concat(found) if found else source[0:0], columns)

    def __len__(self) -> int:
        return _count(self._columns)

    def __getitem__(self, which: Any) -> Step:
        if isinstance(which, (list, tuple, np.ndarray)):
            which = torch.as_tensor(which)
        if not isinstance(which, (slice, torch.Tensor)) and not -len(self) <= which < len(self):
            raise IndexError(f"step {which} of {len(self)}")
        return _at(self._columns, which)


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
        chance, left = np.random.default_rng([*key, worker]), None
        apart = len(shards) >= workers  # else all read all shards, and take batches in turn
        with self._source.of_shards(shards[worker::workers] if apart else shards).batches() as batches:
            for batch in batches if apart else islice(batches, worker, None, workers):
                steps = _columns(batch, self._wanted)
                if self._shuffle:
                    steps = _at(steps, torch.from_numpy(chance.permutation(batch.num_steps)))
                if self._batch_size is None:
                    yield from (_at(steps, step) for step in range(batch.num_steps))
                    continue
                if left is not None:  # steps that were not a batch yet
                    steps = {name: map_leaves(lambda *parts: torch.cat(parts), one, steps[name]) for name, one in left.items()}
                whole = _count(steps) // self._batch_size * self._batch_size
                yield from (_at(steps, slice(at, at + self._batch_size)) for at in range(0, whole, self._batch_size))
                left = _at(steps, slice(whole, None))
        if left is not None and _count(left):
            yield left


def _columns(batch: EpisodeBatch, wanted: Sequence[str] | None) -> Step:
    """Tensors (N, ...) of the columns that are wanted, None: of all. Raises BadConfig for others, and for texts."""
    made = {Columns.OBS: batch.acted_obs, Columns.NEXT_OBS: batch.next_obs, Columns.T: batch.timesteps}
    known = {**made, **batch.step_columns()}
    if wanted is not None and (isinstance(wanted, str) or not wanted or not set(wanted).issubset(known)):
        fix = f"a list of columns among {', '.join(known)}; None: all"
        raise BadConfig(f"no such columns in these episodes: {wanted!r}", where="to_torch", fix=fix)
    found = {name: made[name]() if name in made else known[name] for name in (known if wanted is None else wanted)}
    if text := [f"{path} is {leaf.dtype}" for path, leaf in flatten(found) if leaf.dtype.kind not in "biufc"]:
        raise BadConfig(f"{', '.join(text)}, which no tensor holds", where="to_torch", fix="to_torch(columns=...) without it")
    return {
        name: map_leaves(lambda leaf: torch.from_numpy(np.require(leaf, requirements="W")), one) for name, one in found.items()
    }


def _count(steps: Step) -> int:
    return len(leaves(next(iter(steps.values())))[0])


def _at(steps: Step, which: Any) -> Step:
    return {name: map_leaves(lambda leaf: leaf[which], tree) for name, tree in steps.items()}

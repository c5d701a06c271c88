"""Which episodes are held out for validation: whole ones, by a hash of seed and id, the same in every run with the same seed,
whatever their order and however they are read.

Steps to learn from, in memory or on disk: what a store offers to the loader, and what fills it.

A store holds every step once, with all of its columns. A reader of it puts the steps of one batch into tensors (`gather`) and
makes columns of these where they are none yet (`settle`); which steps a batch has, `EpochOrder` says.

A builder reads sources once where nothing has to be known of all episodes beforehand, and once more for each thing that has to
be: which episodes are held out, and, in parts, what each piece of a pipeline learns (`disk_store.learn_in_parts`).
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.training.epoch_order import EpochOrder
from offline_cli.training.metrics_file import RecordForm
from offline_cli.trees import Tree

__all__ = ["Store", "StoreBuilder", "StoreReader", "ValidationSplit"]


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


Columns = Mapping[str, Tree]
"""By name, trees of tensors (N, ...): one row per step."""


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
        """Give back what it holds outside of memory."""


class StoreBuilder(Protocol):
    """Reads the episodes of one run, and keeps what the pipeline makes of them."""

    in_parts: bool  # whether episodes come some at a time

    def ids(self) -> Iterator[tuple[str, ...]]:
        """Of all episodes that have a step."""

    def parts(self) -> Iterator[EpisodeBatch]:
        """All episodes, as many at a time as go through the pipeline together. Raises NoData where there is none; BadConfig."""

    def add(self, columns: Columns, *, held_out: bool) -> None:
        """Take the columns of one part. Raises StorageError."""

    def finish(self) -> tuple[Store, Store | None]:
        """The stores to learn from, and to validate on where episodes are held out."""

    @property
    def layout(self) -> str:
        """How steps are stored, as far as an update depends on it."""

    def close(self) -> None:
        """Give back what the stores hold outside of memory."""

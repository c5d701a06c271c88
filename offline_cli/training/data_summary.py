"""What a run has learned from: its digest, figures small enough for a checkpoint, and faults that are counted.

The digest decides whether a resumed run has the same data; the figures say in words what differs where it has not.
"""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from offline_cli.columns import Columns
from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.trees import Tree, flatten

__all__ = ["DataSummary", "RewardFaults", "data_difference", "place_of_first"]

MASK: Final = (1 << 64) - 1


@dataclass(slots=True)
class RewardFaults:
    """NaN and infinite rewards, held-out episodes included: counted and named."""

    nan: int = 0
    infinite: int = 0
    first: str = ""  # episode and step

    def see(self, episodes: EpisodeBatch) -> None:
        """Look at the rewards of `episodes`, each once."""
        finite = np.isfinite(episodes.rewards)
        if finite.all():
            return
        nan = int(np.count_nonzero(np.isnan(episodes.rewards)))
        self.nan += nan
        self.infinite += int(np.count_nonzero(~finite)) - nan
        self.first = self.first or place_of_first(episodes, ~finite)

    def counts(self) -> dict[str, int]:
        """By kind, as `validate` calls them; what there is none of has no key."""
        found = {"nan-in-rewards": self.nan, "infinite-in-rewards": self.infinite}
        return {kind: count for kind, count in found.items() if count}

    def notes(self, unused_by: str | None) -> list[str]:
        """In words; empty: there are none. `unused_by`: the algorithm, where it does not learn from rewards."""
        named = ", ".join(f"{kind} {count:,}" for kind, count in self.counts().items())
        why = "" if unused_by is None else f"; {unused_by} does not use them"
        return [f"rewards that are no finite numbers, first in {self.first}: {named}{why}"] if named else []


@dataclass(slots=True)
class DataSummary:
    """Collected batch by batch, over all episodes, held-out ones included."""

    every_leaf: bool  # the digest is of all that pieces may read, rewards for instance, and not of obs and actions alone
    in_parts: bool  # else all episodes come at once
    episodes: int = 0
    steps: int = 0
    rewards: RewardFaults = field(default_factory=RewardFaults)
    _ids: Any = field(default_factory=lambda: hashlib.blake2b(digest_size=8))
    _ids_in_any_order: int = 0
    _leaves: dict[str, Any] = field(default_factory=dict)  # a running hash of each, whatever parts episodes come in
    _whole: str = ""  # the digest of all at once, as checkpoints of runs in memory have always held it

    def see(self, episodes: EpisodeBatch) -> None:
        """Take more episodes into account, each once."""
        encoded = [id_.encode("utf-8", "surrogatepass") + b"\n" for id_ in episodes.ids]
        self._ids.update(b"".join(encoded))
        self._ids_in_any_order = (self._ids_in_any_order + sum(map(zlib.crc32, encoded))) & MASK
        self.episodes, self.steps = self.episodes + len(episodes), self.steps + episodes.num_steps
        self.rewards.see(episodes)
        if self.in_parts:
            self._hash("ids", b"".join(encoded))
            for path, leaf in [("lengths", episodes.lengths), *self._read(episodes)]:
                self._hash(f"{path} {leaf.dtype}{leaf.shape[1:]}", _bytes(leaf))
        else:
            self._whole = self._digest_of(episodes)

    def _hash(self, name: str, data: Any) -> None:
        if name not in self._leaves:
            self._leaves[name] = hashlib.blake2b(digest_size=16)
        self._leaves[name].update(data)

    def _read(self, episodes: EpisodeBatch) -> list[tuple[str, NDArray[Any]]]:
        """The leaves that may be learned from, by path."""
        trees: dict[str, Tree] = {Columns.OBS: episodes.obs, Columns.ACTIONS: episodes.actions}
        if self.every_leaf:
            trees |= {"rewards": episodes.rewards, "terminated": episodes.terminated, "truncated": episodes.truncated}
            trees |= {"extra": dict(episodes.extra)}
        return list(flatten(trees))

    def _digest_of(self, episodes: EpisodeBatch) -> str:
        digest = hashlib.blake2b(digest_size=16)
        digest.update("\n".join(episodes.ids).encode("utf-8", "surrogatepass"))
        for _, leaf in [("starts", episodes.starts), *self._read(episodes)]:
            digest.update(f"{leaf.dtype}{leaf.shape}".encode())
            digest.update(_bytes(leaf))
        return digest.hexdigest()

    def digest(self, layout: str) -> str:
        """Hex; the same for the same episodes in the same order, and the same `layout`: how parts of them are stored."""
        if not self.in_parts:
            return self._whole
        lines = [layout, *(f"{name} {known.hexdigest()}" for name, known in sorted(self._leaves.items()))]
        return hashlib.blake2b("\n".join(lines).encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()

    def figures(self, where: str, module: str | None) -> dict[str, Any]:
        """Plain values; `where`: the sources, `module`: the one that is learned, where that is known."""
        return {
            "sources": where,
            "module": module,
            "episodes": self.episodes,
            "steps": self.steps,
            "ids": self._ids.hexdigest(),
            "ids_in_any_order": f"{self._ids_in_any_order:016x}",
        }


def data_difference(stored: Mapping[str, Any], wanted: Mapping[str, Any], *, same_pipeline: bool) -> str | None:
    """What differs of two data whose digests do, in words; None where the other pipeline alone may be the reason.

    Empty figures are those of a run that did not keep any.
    """
    if not stored or not wanted:
        return "other episodes, other values, or another order" if same_pipeline else None
    if stored["module"] != wanted["module"]:
        return f"the run learns module {stored['module']}, this call {wanted['module']}"
    if stored["ids"] == wanted["ids"] and stored["steps"] == wanted["steps"]:
        return "the episodes are the same ones, and their values are not" if same_pipeline else None
    counts = [f"{one['episodes']:,} episodes with {one['steps']:,} steps" for one in (stored, wanted)]
    if stored["ids_in_any_order"] == wanted["ids_in_any_order"] and counts[0] == counts[1]:
        return f"the same episodes in another order: the run has {stored['sources']}, this call {wanted['sources']}"
    return f"the run has {counts[0]} of {stored['sources']}, this call {counts[1]} of {wanted['sources']}"


def place_of_first(episodes: EpisodeBatch, wrong: NDArray[np.bool_]) -> str:
    """Where the first of the steps (N, ...) that are `wrong` is."""
    step = int(np.argmax(wrong.reshape(len(wrong), -1).any(1)))
    episode = int(np.searchsorted(episodes.starts, step, side="right")) - 1
    return f"episode {episodes.ids[episode]}, step {step - int(episodes.starts[episode])}"


def _bytes(leaf: NDArray[Any]) -> Any:
    return np.ascontiguousarray(leaf).data.cast("B") if leaf.size else b""

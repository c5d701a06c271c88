"""Facts about the data of a run: counts, faults of rewards, notes, and the digest by which a resumed run knows its data again.

Beside the digest a checkpoint keeps figures that say in words what differs where the digest does.
"""

from __future__ import annotations

import hashlib
import json
import math
import zlib
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from offline_cli.applying.checked_values import place_of_first
from offline_cli.columns import Columns
from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.trees import Tree, flatten

__all__ = ["DataFacts", "data_difference"]

MASK: Final = (1 << 64) - 1
FAR: Final = 100.0  # times what advantages are divided by


@dataclass(slots=True, eq=False)
class DataFacts:
    """Collected batch by batch over all episodes that are learned from, held-out ones included."""

    every_leaf: bool = False  # the digest is of all that pieces may read, rewards for instance, not of obs and actions alone
    episodes: int = 0
    steps: int = 0
    invented: int = 0  # episodes that do not end at an observation that was recorded
    nan_rewards: int = 0
    infinite_rewards: int = 0
    all_zero: bool = True  # all rewards
    returns: tuple[float, float] = (math.inf, -math.inf)  # the lowest and the highest that is finite
    sources: str = ""  # where the episodes are from
    module: str | None = None  # whose episodes they are
    chosen: Mapping[str, Any] = field(default_factory=dict)  # by --top-fraction: episodes, of how many, and their least return
    weights: Mapping[str, Any] = field(default_factory=dict)  # by source: weight, steps, and steps of it in an epoch
    notes: list[str] = field(default_factory=list)
    _first_fault: str = ""  # episode and step of the first reward that is not finite
    _agents: Counter[str] = field(default_factory=Counter)  # episodes of each
    _ids: Any = field(default_factory=lambda: hashlib.blake2b(digest_size=8))
    _ids_in_any_order: int = 0
    _leaves: dict[str, Any] = field(default_factory=dict)  # a running hash of each, whatever parts episodes come in

    def see(self, episodes: EpisodeBatch) -> None:
        """Take more episodes into account, each once."""
        encoded = [id_.encode("utf-8", "surrogatepass") + b"\n" for id_ in episodes.ids]
        self._ids.update(b"".join(encoded))
        self._ids_in_any_order = (self._ids_in_any_order + sum(map(zlib.crc32, encoded))) & MASK
        self.episodes, self.steps = self.episodes + len(episodes), self.steps + episodes.num_steps
        self.invented += int(np.count_nonzero(episodes.invented_ends))
        self._agents.update(filter(None, episodes.agent_ids or ()))
        self._see_rewards(episodes)
        trees: dict[str, Tree] = {"lengths": episodes.lengths, Columns.OBS: episodes.obs, Columns.ACTIONS: episodes.actions}
        if self.every_leaf:
            trees |= {"rewards": episodes.rewards, "terminated": episodes.terminated, "truncated": episodes.truncated}
            trees |= {"extra": dict(episodes.extra)}
        for path, leaf in flatten(trees):
            self._hash(f"{path} {leaf.dtype}{leaf.shape[1:]}", _bytes(leaf))

    def _see_rewards(self, episodes: EpisodeBatch) -> None:
        self.all_zero = self.all_zero and not episodes.rewards.any()
        finite, returns = np.isfinite(episodes.rewards), episodes.returns
        known = returns[np.isfinite(returns)]
        if len(known):
            self.returns = min(self.returns[0], float(known.min())), max(self.returns[1], float(known.max()))
        if not finite.all():
            nan = int(np.count_nonzero(np.isnan(episodes.rewards)))
            self.nan_rewards += nan
            self.infinite_rewards += int(np.count_nonzero(~finite)) - nan
            self._first_fault = self._first_fault or place_of_first(episodes, ~finite)

    def _hash(self, name: str, data: Any) -> None:
        if name not in self._leaves:
            self._leaves[name] = hashlib.blake2b(digest_size=16)
        self._leaves[name].update(data)

    @property
    def digest(self) -> str:
        """Hex; the same for the same episodes in the same order, drawn in the same shares."""
        lines = [f"ids {self._ids.hexdigest()}", *(f"{name} {one.hexdigest()}" for name, one in sorted(self._leaves.items()))]
        lines += [json.dumps(self.weights)] if self.weights else []
        return hashlib.blake2b("\n".join(lines).encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()

    def figures(self) -> dict[str, Any]:
        """What a checkpoint keeps, by which a difference can be said in words: JSON values."""
        ids = {"ids": self._ids.hexdigest(), "ids_in_any_order": f"{self._ids_in_any_order:016x}"}
        told = {"sources": self.sources, "module": self.module, "episodes": self.episodes, "steps": self.steps, **ids}
        return told | ({"weights": self.weights} if self.weights else {})

    @property
    def faults(self) -> dict[str, int]:
        """Rewards that are not finite, by kind as `validate` calls it; kinds that do not occur have no key."""
        found = {"nan-in-rewards": self.nan_rewards, "infinite-in-rewards": self.infinite_rewards}
        return {kind: count for kind, count in found.items() if count}

    def note_on_agents(self) -> list[str]:
        """Where several agents share the module that learns."""
        if len(self._agents) < 2:
            return []
        named = ", ".join(f"{name} ({count:,} episodes)" for name, count in self._agents.most_common(8))
        return [f"one policy learns from the episodes of {len(self._agents):,} agents, as their module is the same: {named}"]

    def notes_on_rewards(self, *, unused_by: str | None, scaled_by: tuple[str, float] | None) -> list[str]:
        """`unused_by`: the algorithm, where it does not learn from rewards. `scaled_by`: its option, with the value, whose root
        divides advantages before they become exponents."""
        notes = []
        if self.faults:
            named = ", ".join(f"{kind} {count:,}" for kind, count in self.faults.items())
            why = "" if unused_by is None else f"; {unused_by} does not use them"
            notes.append(f"rewards that are not finite, first in {self._first_fault}: {named}{why}")
        if unused_by is None and self.all_zero:
            notes.append("all rewards are 0: by them no action is better than another")
        spread = self.returns[1] - self.returns[0]
        if unused_by is None and scaled_by is not None and spread > FAR * math.sqrt(scaled_by[1]):
            option, value = scaled_by
            small = (
                f"returns spread over {spread:.3g}, and {option} = {value:g} is for advantages of some {math.sqrt(value):.3g}"
            )
            notes.append(f"{small}: try {option} = {spread**2:.0e}, or rewards of a smaller scale")
        return notes


def data_difference(stored: Mapping[str, Any], wanted: Mapping[str, Any], *, same_pipeline: bool) -> str | None:
    """What differs between data with different digests, by their `figures`; None where the other pipeline alone may be the
    reason."""
    if not stored:
        return "the checkpoint does not say what data the run learns from"
    if stored["module"] != wanted["module"]:
        return f"the run learns module {stored['module']}, this call {wanted['module']}"
    if stored.get("weights") != wanted.get("weights"):
        one, other = (_weights(told.get("weights")) for told in (stored, wanted))
        return f"the run draws {one}, this call {other}"
    if stored["ids"] == wanted["ids"] and stored["steps"] == wanted["steps"]:
        return "the episodes are the same ones, and their values are not" if same_pipeline else None
    counts = [f"{one['episodes']:,} episodes with {one['steps']:,} steps" for one in (stored, wanted)]
    if stored["ids_in_any_order"] == wanted["ids_in_any_order"] and counts[0] == counts[1]:
        return f"the same episodes in another order: the run has {stored['sources']}, this call {wanted['sources']}"
    return f"the run has {counts[0]} of {stored['sources']}, this call {counts[1]} of {wanted['sources']}"


def _weights(told: Mapping[str, Any] | None) -> str:
    if not told:
        return "every step once an epoch"
    return ", ".join(f"{one['per_epoch']:,} of {one['steps']:,} steps of {name}" for name, one in told.items())


def _bytes(leaf: NDArray[Any]) -> Any:
    return np.ascontiguousarray(leaf).data.cast("B") if leaf.size else b""

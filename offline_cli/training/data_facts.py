"""Facts about the data of a run: counts, faults of rewards, notes, and the digest by which a resumed run knows its data again.

Beside the digest a checkpoint keeps figures that say in words what differs where the digest does.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from offline_cli.applying.checked_values import place_of_first
from offline_cli.columns import Columns
from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.trees import Tree, flatten

__all__ = ["DataFacts", "data_difference"]


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
    sources: str = ""  # where the episodes are from
    module: str | None = None  # whose episodes they are
    chosen: Mapping[str, Any] = field(default_factory=dict)  # by --top-fraction: episodes, of how many, and their least return
    weights: Mapping[str, Any] = field(default_factory=dict)  # by source: weight, steps, and steps of it in an epoch
    notes: list[str] = field(default_factory=list)
    _first_fault: str = ""  # episode and step of the first reward that is not finite
    _agents: Counter[str] = field(default_factory=Counter)  # episodes of each
    _hashes: dict[str, Any] = field(default_factory=dict)  # a running hash of ids and each leaf, whatever parts they come in

    def see(self, episodes: EpisodeBatch) -> None:
        """Take more episodes into account, each once."""
        self.episodes, self.steps = self.episodes + len(episodes), self.steps + episodes.num_steps
        self.invented += int(np.count_nonzero(episodes.invented_ends))
        self._agents.update(filter(None, episodes.agent_ids or ()))
        self._see_rewards(episodes)
        self._hash("ids", "".join(f"{id_}\n" for id_ in episodes.ids).encode("utf-8", "surrogatepass"))
        trees: dict[str, Tree] = {"lengths": episodes.lengths, Columns.OBS: episodes.obs, Columns.ACTIONS: episodes.actions}
        if self.every_leaf:
            trees |= {"rewards": episodes.rewards, "terminated": episodes.terminated, "truncated": episodes.truncated}
            trees |= {"extra": dict(episodes.extra)}
        for path, leaf in flatten(trees):
            self._hash(f"{path} {leaf.dtype}{leaf.shape[1:]}", np.ascontiguousarray(leaf).data.cast("B") if leaf.size else b"")

    def _see_rewards(self, episodes: EpisodeBatch) -> None:
        self.all_zero = self.all_zero and not episodes.rewards.any()
        finite = np.isfinite(episodes.rewards)
        if not finite.all():
            nan = int(np.count_nonzero(np.isnan(episodes.rewards)))
            self.nan_rewards += nan
            self.infinite_rewards += int(np.count_nonzero(~finite)) - nan
            self._first_fault = self._first_fault or place_of_first(episodes, ~finite)

    def _hash(self, name: str, data: Any) -> None:
        self._hashes.setdefault(name, hashlib.blake2b(digest_size=16)).update(data)

    @property
    def digest(self) -> str:
        """Hex; the same for the same episodes in the same order, drawn in the same shares."""
        lines = [f"{name} {one.hexdigest()}" for name, one in sorted(self._hashes.items())]
        lines += [json.dumps(self.weights)] if self.weights else []
        return hashlib.blake2b("\n".join(lines).encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()

    def figures(self) -> dict[str, Any]:
        """What a checkpoint keeps, by which a difference can be said in words: JSON values."""
        told = {"sources": self.sources, "module": self.module, "episodes": self.episodes, "steps": self.steps}
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

    def notes_on_rewards(self, *, unused_by: str | None) -> list[str]:
        """`unused_by`: the algorithm, where it does not learn from rewards."""
        notes = []
        if self.faults:
            named = ", ".join(f"{kind} {count:,}" for kind, count in self.faults.items())
            why = "" if unused_by is None else f"; {unused_by} does not use them"
            notes.append(f"rewards that are not finite, first in {self._first_fault}: {named}{why}")
        if unused_by is None and self.all_zero:
            notes.append("all rewards are 0: by them no action is better than another")
        return notes


def data_difference(stored: Mapping[str, Any], wanted: Mapping[str, Any]) -> str:
    """What differs between data with different digests, by their `figures`."""
    both = [{**one, "weights": _shares(one.get("weights"))} for one in (stored, wanted)]
    names = [name for name in both[1] if both[0].get(name) != both[1][name]]
    told = [f"{name}: the run has {both[0].get(name)}, this call {both[1][name]}" for name in names]
    return "; ".join(told) or "the same counts, and other episodes, values or another order"


def _shares(told: Mapping[str, Any] | None) -> str:
    if not told:
        return "every step once an epoch"
    return ", ".join(f"{one['per_epoch']:,} of {one['steps']:,} steps of {name}" for name, one in told.items())

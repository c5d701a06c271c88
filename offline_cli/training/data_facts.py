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

from offline_cli.applying.learner_batches import place_of_first
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
    faults: Counter[str] = field(default_factory=Counter)  # rewards that are not finite, by kind as `validate` calls it
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
        self.all_zero = self.all_zero and not episodes.rewards.any()
        for kind, wrong in (("nan", np.isnan(episodes.rewards)), ("infinite", np.isinf(episodes.rewards))):
            if wrong.any():
                self.faults[f"{kind}-in-rewards"] += int(np.count_nonzero(wrong))
                self._first_fault = self._first_fault or place_of_first(episodes, ~np.isfinite(episodes.rewards))
        self._hash("ids", "".join(f"{id_}\n" for id_ in episodes.ids).encode("utf-8", "surrogatepass"))
        trees: dict[str, Tree] = {"lengths": episodes.lengths, Columns.OBS: episodes.obs, Columns.ACTIONS: episodes.actions}
        if self.every_leaf:
            trees |= {"rewards": episodes.rewards, "terminated": episodes.terminated, "truncated": episodes.truncated}
            trees |= {"extra": dict(episodes.extra)}
        for path, leaf in flatten(trees):
            self._hash(f"{path} {leaf.dtype}{leaf.shape[1:]}", np.ascontiguousarray(leaf).data.cast("B") if leaf.size else b"")

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
        each = [f"{one['per_epoch']:,} of {one['steps']:,} steps of {name}" for name, one in self.weights.items()]
        told = {"sources": self.sources, "module": self.module, "episodes": self.episodes, "steps": self.steps}
        return {**told, "weights": ", ".join(each) or "every step once an epoch"}

    def own_notes(self, algorithm: str, *, uses_rewards: bool) -> list[str]:
        """On rewards, and on agents that share the module that learns."""
        notes = []
        if len(self._agents) > 1:
            named = ", ".join(f"{name} ({count:,} episodes)" for name, count in self._agents.most_common(8))
            notes.append(
                f"one policy learns from the episodes of {len(self._agents):,} agents, as their module is the same: {named}"
            )
        if self.faults:
            named = ", ".join(f"{kind} {count:,}" for kind, count in self.faults.items())
            why = "" if uses_rewards else f"; {algorithm} does not use them"
            notes.append(f"rewards that are not finite, first in {self._first_fault}: {named}{why}")
        if uses_rewards and self.all_zero:
            notes.append("all rewards are 0: by them no action is better than another")
        return notes


def data_difference(stored: Mapping[str, Any], wanted: Mapping[str, Any]) -> str:
    """What differs between data with different digests, by their `figures`."""
    told = [
        f"{name}: the run has {stored.get(name)}, this call {one}" for name, one in wanted.items() if stored.get(name) != one
    ]
    return "; ".join(told) or "the same counts, and other episodes, values or another order"

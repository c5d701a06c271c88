"""How well discrete actions are guessed: the recall of each, beside what always playing the most frequent one would score.

Accuracy alone says little where one action is nearly all of the data. Both figures are of held-out steps; the most frequent
action is that of the training steps, each counted once whatever the weight of its source. An action of several elements
(MultiDiscrete, MultiBinary, parts of Dict and Tuple) has for each the most frequent choice, and is right where all are.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any, Final

import torch
from gymnasium import spaces
from torch import Tensor

from offline_cli.columns import Columns
from offline_cli.meanings import Meanings
from offline_cli.modules.distributions import rows
from offline_cli.policies.action_names import discrete_elements
from offline_cli.spaces import Space, leaf_spaces
from offline_cli.training.steps import Steps
from offline_cli.trees import leaves

__all__ = ["MAJORITY", "RECALL", "ActionRecall"]

MAJORITY: Final = "accuracy_majority"
RECALL: Final = "recall"


class ActionRecall:
    """Counts of the K choices of E discrete elements, numbered through; E may be 0."""

    def __init__(self, action_space: Space, meanings: Meanings, learned: Steps) -> None:
        """`learned`: the training steps, whose most frequent actions are counted here."""
        self._is_bare = isinstance(action_space, spaces.Discrete)
        self._elements = [one for each in discrete_elements(action_space, meanings).values() for one in each]
        self._is_discrete = [not isinstance(leaf, spaces.Box) for leaf in leaf_spaces(action_space).values()]
        ends = list(itertools.accumulate(one.count for one in self._elements))
        self._parts = [slice(end - one.count, end) for one, end in zip(self._elements, ends, strict=True)]
        self._shifts = torch.tensor([part.start - one.start for one, part in zip(self._elements, self._parts, strict=True)])
        self.count = ends[-1] if ends else 0
        seen = torch.zeros(self.count, dtype=torch.long)
        for part in learned.parts((Columns.ACTIONS, Columns.LOSS_MASK)) if self._elements else ():
            if Columns.ACTIONS in part:
                seen += self._choices(part).flatten().bincount(minlength=self.count)
        self._most_frequent = torch.tensor([part.start + int(seen[part].argmax()) for part in self._parts])

    def _choices(self, batch: Mapping[str, Any]) -> Tensor:
        """(N, E) int64: the recorded choices of the steps that are learned from, numbered from 0 to K - 1."""
        mask = batch.get(Columns.LOSS_MASK)  # only sequences have one
        parts = [leaf for leaf, wanted in zip(leaves(batch[Columns.ACTIONS]), self._is_discrete, strict=True) if wanted]
        chosen = torch.cat([rows(leaf if mask is None else leaf[mask]).long() for leaf in parts], -1)
        return chosen + self._shifts.to(chosen.device)

    def compared(self, batch: Mapping[str, Any], hits: Tensor) -> tuple[Tensor, Tensor]:
        """Of held-out steps, whose greedy guesses are right where `hits` (N, E) says: (N,) whether the most frequent action is
        the recorded one, and (2, K) how often each choice was guessed where it was recorded, and how often it was recorded."""
        chosen = self._choices(batch)
        counts = torch.stack([found.flatten().bincount(minlength=self.count) for found in (chosen[hits], chosen)])
        return (chosen == self._most_frequent.to(chosen.device)).all(-1).float(), counts

    def recall(self, guessed: Sequence[float], recorded: Sequence[float]) -> dict[str, Any]:
        """Of each choice the share that was guessed, by category or number; None for one that no held-out step has.

        Of an action of several elements by the name of the element. `guessed`, `recorded`: K sums of `compared`.
        """
        shares = [right / seen if seen else None for right, seen in zip(guessed, recorded, strict=True)]
        each = [dict(zip(one.labels, shares[part], strict=True)) for one, part in zip(self._elements, self._parts, strict=True)]
        if self._is_bare:
            return each[0]
        names = [one.name for one in self._elements]
        places = [one.place for one in self._elements]
        return dict(zip(names if len(set(names)) == len(names) else places, each, strict=True))

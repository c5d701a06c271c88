"""Torch forms of env-to-module pieces for exported policies: the same arithmetic and precision, for B environments.

`to_torch()` of a piece returns a module from observations, leaves (B, ...), to observations, including the piece's learned
state. A piece that uses earlier steps returns a `RememberingForm`.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from numpy.typing import NDArray
from torch import Tensor, nn

from offline_cli.episodes.episode_spaces import space_tree
from offline_cli.modules.encoders import OneHotEncoder
from offline_cli.spaces import Space, leaf_spaces
from offline_cli.trees import Tree, flatten, leaves, unflatten_like

__all__ = ["Flat", "Previous", "RememberingForm", "Stack", "Standardized", "State"]

State = dict[str, Tensor]


class RememberingForm(nn.Module):
    """Torch form of a piece that uses earlier steps: it takes and returns a state by name."""

    wants_rewards = False  # takes the rewards of the last actions, (B,)

    def states(self) -> dict[str, tuple[tuple[int, ...], Any]]:
        """Shape and dtype of the state of one environment, by name; all zeros at the start of an episode."""
        raise NotImplementedError

    def forward(self, observations: Tree, state: State, rewards: Tensor | None, after: State) -> Tree:
        """The transformed observations; writes the next state into `after`."""
        raise NotImplementedError

    def chose(self, actions: Tree, state: State, after: State) -> None:
        """Add the chosen actions, in network units, to the state."""


class Standardized(nn.Module):
    """MeanStdFilter: (leaf - mean) / divisor, clipped, in float64, then cast to the leaf's dtype."""

    def __init__(
        self,
        parts: Sequence[tuple[NDArray[Any] | float, NDArray[Any] | float, torch.dtype | None]],
        limit: float,
    ) -> None:
        """`parts`: mean, divisor and dtype of each leaf; dtype None: the leaf stays unchanged."""
        super().__init__()
        self._limit, self._dtypes = limit, [dtype for _, _, dtype in parts]
        for index, (mean, divisor, _) in enumerate(parts):
            self.register_buffer(f"mean_{index}", torch.as_tensor(mean, dtype=torch.float64))
            self.register_buffer(f"divisor_{index}", torch.as_tensor(divisor, dtype=torch.float64))

    def forward(self, observations: Tree) -> Tree:
        return unflatten_like(observations, [self._of(leaf, index) for index, leaf in enumerate(leaves(observations))])

    def _of(self, leaf: Tensor, index: int) -> Tensor:
        dtype = self._dtypes[index]
        if dtype is None:
            return leaf
        values: Tensor = (leaf.double() - getattr(self, f"mean_{index}")) / getattr(self, f"divisor_{index}")
        return values.clamp(-self._limit, self._limit).to(dtype)


class _Row(nn.Module):
    """A leaf (B, *shape) as one row of numbers."""

    def forward(self, leaf: Tensor) -> Tensor:
        return leaf.reshape(leaf.shape[0], -1).float()


class Flat(nn.Module):
    """FlattenObservations and OneHot: (B, size) float32, Dict leaves by sorted key."""

    def __init__(self, space: Space, removed: Collection[str] = ()) -> None:
        super().__init__()
        self._removed = removed
        parts = leaves(self._kept(space_tree(space)))
        counted = (spaces.Discrete, spaces.MultiDiscrete)
        self.hot = nn.ModuleList(OneHotEncoder(part) if isinstance(part, counted) else _Row() for part in parts)

    def _kept(self, tree: Tree) -> Tree:
        return _sorted({key: tree[key] for key in tree if key not in self._removed} if self._removed else tree)

    def forward(self, tree: Tree) -> Tensor:
        return torch.cat([hot(leaf) for hot, leaf in zip(self.hot, leaves(self._kept(tree)), strict=True)], 1)


def _sorted(tree: Tree) -> Tree:
    if isinstance(tree, dict):
        return {key: _sorted(tree[key]) for key in sorted(tree)}
    return tuple(map(_sorted, tree)) if isinstance(tree, tuple) else tree


class Stack(RememberingForm):
    """FrameStacking: the state holds the N - 1 observations before the latest one, oldest first."""

    def __init__(self, space: Space, num_frames: int) -> None:
        super().__init__()
        self._before, self._parts = num_frames - 1, leaf_spaces(space, "frames")

    def states(self) -> dict[str, tuple[tuple[int, ...], Any]]:
        parts = self._parts.items() if self._before else ()
        return {path: ((self._before, *(space.shape or ())), space.dtype) for path, space in parts}

    def forward(self, observations: Tree, state: State, rewards: Tensor | None, after: State) -> Tree:
        if not self._before:
            return observations
        stacked = []
        for path, leaf in flatten(observations, "frames"):
            frames = torch.cat([state[path], leaf[:, None]], 1)
            after[path] = frames[:, 1:]
            # (B, N, ..., C) to (B, ..., N * C)
            stacked.append(frames.movedim(1, -2).flatten(-2) if leaf.dim() > 1 else frames)
        return unflatten_like(observations, stacked)


class Previous(RememberingForm):
    """PrevActionsPrevRewards: the state holds the last actions, flattened, and the rewards before the latest one."""

    def __init__(self, actions: Space, size: int, n_actions: int, n_rewards: int, keys: tuple[str, str, str]) -> None:
        """`size`: numbers of a flattened action; `keys`: of observations, actions and rewards in the result."""
        super().__init__()
        self._actions, self._rewards, self._size, self._keys = n_actions, n_rewards, size, keys
        self.wants_rewards = n_rewards > 0
        self.flat = Flat(actions)

    def states(self) -> dict[str, tuple[tuple[int, ...], Any]]:
        found = {"prev_actions": ((self._actions, self._size), np.float32)} if self._actions else {}
        return found | ({"prev_rewards": ((self._rewards - 1,), np.float32)} if self._rewards > 1 else {})

    def forward(self, observations: Tree, state: State, rewards: Tensor | None, after: State) -> Tree:
        joined = {self._keys[0]: observations}
        if self._actions:
            joined[self._keys[1]] = state["prev_actions"].flatten(1)
        if rewards is not None:
            recent = rewards[:, None]
            if self._rewards > 1:
                recent = torch.cat([state["prev_rewards"], recent], 1)
                after["prev_rewards"] = recent[:, 1:]
            joined[self._keys[2]] = recent
        return joined

    def chose(self, actions: Tree, state: State, after: State) -> None:
        if self._actions:
            after["prev_actions"] = torch.cat([state["prev_actions"][:, 1:], self.flat(actions)[:, None]], 1)

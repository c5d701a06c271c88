"""Env-to-module pieces as torch modules: the same arithmetic, in the same precision, on leaves (B, ...) of B environments.

What a piece remembers of earlier steps is explicit (`Step.states`): arrays by name, zeros where an episode begins. `STEPS` has
every piece that has such a form.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor, nn

from offline_cli.columns import Columns
from offline_cli.connectors.common.flattening import FlattenObservations, PrevActionsPrevRewards, flat_size
from offline_cli.connectors.common.frame_stacking import FrameStacking
from offline_cli.connectors.common.mean_std_filter import SMALL, MeanStdFilter
from offline_cli.connectors.connector_v2 import ConnectorV2
from offline_cli.connectors.env_to_module.observation_preprocessor import AtariRam, OneHot
from offline_cli.episodes.episode_spaces import choice_counts, space_tree
from offline_cli.spaces import Space, leaf_spaces
from offline_cli.trees import Tree, flatten, leaves, unflatten_like

__all__ = ["DTYPES", "OWN_STATES", "STEPS", "State", "Step", "step_of"]

OBS: Final = Columns.OBS
FRAMES, LAST_ACTIONS, LAST_REWARDS = "frames", "prev_actions", "prev_rewards"
OWN_STATES: Final = frozenset((FRAMES, LAST_ACTIONS, LAST_REWARDS))  # names, or what they begin with

DTYPES: Final = {
    name: getattr(torch, name) for name in ("bool", "int8", "int16", "int32", "int64", "uint8", "float16", "float32", "float64")
}
State = dict[str, Tensor]


class Step(nn.Module):
    """What one piece does to observations, leaves (B, ...)."""

    wants_rewards = False

    def states(self) -> dict[str, tuple[tuple[int, ...], Any]]:
        """Shape and dtype of each thing that it remembers of a row."""
        return {}

    def changed(self, observations: Tree, state: State, rewards: Tensor | None, after: State) -> Tree:
        """The observations that it gives; what it remembers next goes into `after`."""
        raise NotImplementedError

    def chose(self, actions: Tree, state: State, after: State) -> None:
        """These actions, in the units of networks, follow."""


class _Filter(Step):
    """MeanStdFilter: in float64, then in the dtype of the leaf."""

    def __init__(self, piece: MeanStdFilter) -> None:
        super().__init__()
        self._each: list[Callable[[Tensor], Tensor]] = []
        known = piece.moments()
        for index, (path, space) in enumerate(leaf_spaces(piece.space_before(None), OBS).items()):
            if not isinstance(space, spaces.Box):
                self._each.append(lambda leaf: leaf)
                continue
            dtype = DTYPES[str(space.dtype)] if np.dtype(space.dtype).kind == "f" else torch.float32
            if path not in known:
                self._each.append(lambda leaf, dtype=dtype: leaf.to(dtype))  # type: ignore[misc]
                continue
            self.register_buffer(f"mean_{index}", torch.from_numpy(known[path].mean))
            self.register_buffer(f"std_{index}", torch.from_numpy(known[path].std + SMALL))
            self._each.append(lambda leaf, at=index, dtype=dtype: self._filtered(leaf, at).to(dtype))  # type: ignore[misc]
        self._demean, self._destd, self._clip = piece.de_mean_to_zero, piece.de_std_to_one, piece.clip_by_value

    def _filtered(self, leaf: Tensor, index: int) -> Tensor:
        values = leaf.double()
        values = values - getattr(self, f"mean_{index}") if self._demean else values
        values = values / getattr(self, f"std_{index}") if self._destd else values
        return values.clamp(-self._clip, self._clip) if self._clip else values

    def changed(self, observations: Tree, state: State, rewards: Tensor | None, after: State) -> Tree:
        """See Step."""
        parts = zip(self._each, leaves(observations), strict=True)
        return unflatten_like(observations, [change(leaf) for change, leaf in parts])


class _Hot(nn.Module):
    """A leaf (B, *shape) as numbers (B, n): choices one-hot, everything else as it is."""

    def __init__(self, space: Space) -> None:
        super().__init__()
        self._counts: list[int] = []
        self.values: Tensor
        self.owner: Tensor
        if isinstance(space, (spaces.Discrete, spaces.MultiDiscrete)):
            counts, starts = (part.tolist() for part in choice_counts(space))
            self._counts = counts
            values = [start + i for count, start in zip(counts, starts, strict=True) for i in range(count)]
            owner = [index for index, count in enumerate(counts) for _ in range(count)]
            self.register_buffer("values", torch.tensor(values))
            self.register_buffer("owner", torch.tensor(owner))

    def forward(self, leaf: Tensor) -> Tensor:
        flat = leaf.reshape(leaf.shape[0], -1)
        return (flat.index_select(1, self.owner) == self.values).float() if self._counts else flat.float()


class _Flat(Step):
    """FlattenObservations and OneHot: (B, size) float32, Dict leaves by sorted key."""

    def __init__(self, piece: FlattenObservations | OneHot) -> None:
        super().__init__()
        self._removed = piece.keys_to_remove if isinstance(piece, FlattenObservations) else ()
        kept = self._kept(space_tree(piece.space_before(None)))
        self.hot = nn.ModuleList(_Hot(space) for space in leaves(kept))

    def _kept(self, tree: Tree) -> Tree:
        return _sorted({key: tree[key] for key in tree if key not in self._removed} if self._removed else tree)

    def changed(self, observations: Tree, state: State, rewards: Tensor | None, after: State) -> Tree:
        """See Step."""
        parts = [hot(leaf) for hot, leaf in zip(self.hot, leaves(self._kept(observations)), strict=True)]
        return torch.cat(parts, 1) if len(parts) > 1 else parts[0]


def _sorted(tree: Tree) -> Tree:
    """Dict parts by sorted key."""
    if isinstance(tree, dict):
        return {key: _sorted(tree[key]) for key in sorted(tree)}
    return tuple(map(_sorted, tree)) if isinstance(tree, tuple) else tree


class _Ram(Step):
    """AtariRam."""

    def __init__(self, piece: AtariRam) -> None:
        super().__init__()

    def changed(self, observations: Tree, state: State, rewards: Tensor | None, after: State) -> Tree:
        """See Step."""
        return (observations.float() - 128.0) / 128.0


class _Stack(Step):
    """FrameStacking: remembers the N - 1 observations before the latest one, the oldest first."""

    def __init__(self, piece: FrameStacking) -> None:
        super().__init__()
        self._before = piece.num_frames - 1
        self._parts = leaf_spaces(piece.input_observation_space, "")  # type: ignore[arg-type]  # it is in a pipeline

    def states(self) -> dict[str, tuple[tuple[int, ...], Any]]:
        """See Step."""
        parts = self._parts.items() if self._before else ()
        return {_named(path): ((self._before, *(space.shape or ())), space.dtype) for path, space in parts}

    def changed(self, observations: Tree, state: State, rewards: Tensor | None, after: State) -> Tree:
        """See Step."""
        if not self._before:
            return observations
        stacked = []
        for path, leaf in flatten(observations):
            frames = torch.cat([state[_named(path)], leaf[:, None]], 1)
            after[_named(path)] = frames[:, 1:]
            if leaf.dim() > 1:  # (B, N, ..., C) to (B, ..., N * C)
                frames = frames.movedim(1, -2).flatten(-2)
            stacked.append(frames)
        return unflatten_like(observations, stacked)


def _named(path: str) -> str:
    return f"{FRAMES}.{path}" if path else FRAMES


class _Previous(Step):
    """PrevActionsPrevRewards: remembers last actions as rows of numbers, and the rewards before the one that is given."""

    def __init__(self, piece: PrevActionsPrevRewards, actions: Space) -> None:
        super().__init__()
        self._actions, self._rewards = piece.n_prev_actions, piece.n_prev_rewards
        self.wants_rewards = self._rewards > 0
        self._size = flat_size(actions)
        self.hot = nn.ModuleList(_Hot(space) for space in leaves(_sorted(space_tree(actions))))

    def states(self) -> dict[str, tuple[tuple[int, ...], Any]]:
        """See Step."""
        found = {LAST_ACTIONS: ((self._actions, self._size), np.float32)} if self._actions else {}
        return found | ({LAST_REWARDS: ((self._rewards - 1,), np.float32)} if self._rewards > 1 else {})

    def changed(self, observations: Tree, state: State, rewards: Tensor | None, after: State) -> Tree:
        """See Step."""
        joined = {PrevActionsPrevRewards.ORIG_OBS_KEY: observations}
        if self._actions:
            joined[PrevActionsPrevRewards.PREV_ACTIONS_KEY] = state[LAST_ACTIONS].flatten(1)
        if rewards is not None:
            recent = torch.cat([state[LAST_REWARDS], rewards[:, None]], 1) if self._rewards > 1 else rewards[:, None]
            joined[PrevActionsPrevRewards.PREV_REWARDS_KEY] = recent
            if self._rewards > 1:
                after[LAST_REWARDS] = recent[:, 1:]
        return joined

    def chose(self, actions: Tree, state: State, after: State) -> None:
        """See Step."""
        if self._actions:
            parts = [hot(leaf) for hot, leaf in zip(self.hot, leaves(_sorted(actions)), strict=True)]
            after[LAST_ACTIONS] = torch.cat([state[LAST_ACTIONS][:, 1:], torch.cat(parts, 1)[:, None]], 1)


STEPS: Final[dict[type[ConnectorV2], Callable[[Any], Step]]] = {
    MeanStdFilter: _Filter,
    FlattenObservations: _Flat,
    OneHot: _Flat,
    AtariRam: _Ram,
    FrameStacking: _Stack,
    PrevActionsPrevRewards: lambda piece: _Previous(piece, piece.input_action_space),
}


def step_of(piece: ConnectorV2) -> Step | None:
    made = STEPS.get(type(piece))
    return None if made is None else made(piece)

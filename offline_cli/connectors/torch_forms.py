"""Torch forms of env-to-module pieces, for exported policies: the same arithmetic, in the same precision, on B environments.

A piece of one's own has a form where it has a method `to_torch()`, which gives a module from observations, leaves (B, ...), to
observations; a piece that looks at earlier steps gives a `RememberingForm`. What the piece learned has to be in the module.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor, nn

from offline_cli.columns import Columns
from offline_cli.connectors.common.flattening import FlattenObservations, PrevActionsPrevRewards, flat_size
from offline_cli.connectors.common.frame_stacking import FrameStacking
from offline_cli.connectors.common.mean_std_filter import SMALL, MeanStdFilter
from offline_cli.connectors.connector_pipeline_v2 import ConnectorPipelineV2
from offline_cli.connectors.connector_v2 import ConnectorV2
from offline_cli.connectors.env_to_module.default_pipeline import default_pieces
from offline_cli.connectors.env_to_module.observation_preprocessor import AtariRam, OneHot
from offline_cli.connectors.pipeline_spec import PipelineSpec, Setting
from offline_cli.episodes.episode_spaces import choice_counts, space_tree
from offline_cli.errors import OfflineCliError
from offline_cli.spaces import Space, leaf_spaces
from offline_cli.trees import Tree, flatten, leaves, unflatten_like

__all__ = ["RememberingForm", "State", "added_pieces", "notes_on_export", "torch_form", "without_torch_form"]

FRAMES, LAST_ACTIONS, LAST_REWARDS = "frames", "prev_actions", "prev_rewards"
State = dict[str, Tensor]


class RememberingForm(nn.Module):
    """The form of a piece that looks at earlier steps: what it remembers of them goes in and comes out by name."""

    wants_rewards = False  # what the last actions were answered with, (B,)

    def states(self) -> dict[str, tuple[tuple[int, ...], Any]]:
        """Shape and dtype of what it remembers of one environment, by name; zeros where an episode begins."""
        raise NotImplementedError

    def forward(self, observations: Tree, state: State, rewards: Tensor | None, after: State) -> Tree:
        """The observations that it gives; what it remembers next goes into `after`."""
        raise NotImplementedError

    def chose(self, actions: Tree, state: State, after: State) -> None:
        """These actions, in the units of networks, follow."""


class _Filter(nn.Module):
    """MeanStdFilter: in float64, then in the dtype of the leaf."""

    def __init__(self, piece: MeanStdFilter) -> None:
        super().__init__()
        self._dtypes: list[torch.dtype | None] = []  # None: the leaf is no Box, and stays
        for index, (path, space) in enumerate(leaf_spaces(piece.space_before(None), Columns.OBS).items()):
            is_float = isinstance(space, spaces.Box) and np.dtype(space.dtype).kind == "f"
            wanted = getattr(torch, str(space.dtype)) if is_float else torch.float32
            self._dtypes.append(wanted if isinstance(space, spaces.Box) else None)
            moments = piece.moments().get(path)
            self.register_buffer(f"mean_{index}", None if moments is None else torch.from_numpy(moments.mean))
            self.register_buffer(f"std_{index}", None if moments is None else torch.from_numpy(moments.std + SMALL))
        self._demean, self._destd, self._clip = piece.de_mean_to_zero, piece.de_std_to_one, piece.clip_by_value

    def forward(self, observations: Tree) -> Tree:
        return unflatten_like(observations, [self._filtered(leaf, at) for at, leaf in enumerate(leaves(observations))])

    def _filtered(self, leaf: Tensor, index: int) -> Tensor:
        dtype, mean = self._dtypes[index], getattr(self, f"mean_{index}")
        if dtype is None or mean is None:
            return leaf if dtype is None else leaf.to(dtype)
        values = leaf.double() - mean if self._demean else leaf.double()
        values = values / getattr(self, f"std_{index}") if self._destd else values
        return (values.clamp(-self._clip, self._clip) if self._clip else values).to(dtype)


class _Hot(nn.Module):
    """A leaf (B, *shape) as numbers (B, n): choices one-hot, everything else as it is."""

    values: Tensor | None
    owner: Tensor

    def __init__(self, space: Space) -> None:
        super().__init__()
        values = owner = None
        if isinstance(space, (spaces.Discrete, spaces.MultiDiscrete)):
            counts, starts = (part.tolist() for part in choice_counts(space))
            values = torch.tensor([start + i for count, start in zip(counts, starts, strict=True) for i in range(count)])
            owner = torch.arange(len(counts)).repeat_interleave(torch.tensor(counts))
        self.register_buffer("values", values)
        self.register_buffer("owner", owner)

    def forward(self, leaf: Tensor) -> Tensor:
        flat = leaf.reshape(leaf.shape[0], -1)
        return flat.float() if self.values is None else (flat.index_select(1, self.owner) == self.values).float()


class _Flat(nn.Module):
    """FlattenObservations and OneHot: (B, size) float32, Dict leaves by sorted key."""

    def __init__(self, space: Space, removed: Iterable[str] = ()) -> None:
        super().__init__()
        self._removed = frozenset(removed)
        self.hot = nn.ModuleList(map(_Hot, leaves(self._kept(space_tree(space)))))

    def _kept(self, tree: Tree) -> Tree:
        return _sorted({key: tree[key] for key in tree if key not in self._removed} if self._removed else tree)

    def forward(self, tree: Tree) -> Tensor:
        return torch.cat([hot(leaf) for hot, leaf in zip(self.hot, leaves(self._kept(tree)), strict=True)], 1)


def _sorted(tree: Tree) -> Tree:
    """Dict parts by sorted key."""
    if isinstance(tree, dict):
        return {key: _sorted(tree[key]) for key in sorted(tree)}
    return tuple(map(_sorted, tree)) if isinstance(tree, tuple) else tree


class _Ram(nn.Module):
    """AtariRam."""

    def forward(self, observations: Tensor) -> Tensor:
        return (observations.float() - 128.0) / 128.0


class _Stack(RememberingForm):
    """FrameStacking: remembers the N - 1 observations before the latest one, the oldest first."""

    def __init__(self, piece: FrameStacking) -> None:
        super().__init__()
        self._before = piece.num_frames - 1
        assert piece.input_observation_space is not None, "it is in a pipeline"
        self._parts = leaf_spaces(piece.input_observation_space, FRAMES)

    def states(self) -> dict[str, tuple[tuple[int, ...], Any]]:
        """See RememberingForm."""
        parts = self._parts.items() if self._before else ()
        return {path: ((self._before, *(space.shape or ())), space.dtype) for path, space in parts}

    def forward(self, observations: Tree, state: State, rewards: Tensor | None, after: State) -> Tree:
        """See RememberingForm."""
        if not self._before:
            return observations
        stacked = []
        for path, leaf in flatten(observations, FRAMES):
            frames = torch.cat([state[path], leaf[:, None]], 1)
            after[path] = frames[:, 1:]
            # (B, N, ..., C) to (B, ..., N * C)
            stacked.append(frames.movedim(1, -2).flatten(-2) if leaf.dim() > 1 else frames)
        return unflatten_like(observations, stacked)


class _Previous(RememberingForm):
    """PrevActionsPrevRewards: remembers last actions as rows of numbers, and the rewards before the one that is given."""

    def __init__(self, piece: PrevActionsPrevRewards, actions: Space) -> None:
        super().__init__()
        self._actions, self._rewards, self._size = piece.n_prev_actions, piece.n_prev_rewards, flat_size(actions)
        self.wants_rewards = self._rewards > 0
        self.flat = _Flat(actions)

    def states(self) -> dict[str, tuple[tuple[int, ...], Any]]:
        """See RememberingForm."""
        found = {LAST_ACTIONS: ((self._actions, self._size), np.float32)} if self._actions else {}
        return found | ({LAST_REWARDS: ((self._rewards - 1,), np.float32)} if self._rewards > 1 else {})

    def forward(self, observations: Tree, state: State, rewards: Tensor | None, after: State) -> Tree:
        """See RememberingForm."""
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
        """See RememberingForm."""
        if self._actions:
            after[LAST_ACTIONS] = torch.cat([state[LAST_ACTIONS][:, 1:], self.flat(actions)[:, None]], 1)


def _previous(piece: PrevActionsPrevRewards) -> nn.Module | None:
    actions = piece.input_action_space
    assert actions is not None, "it is in a pipeline"
    whole = [
        leaf for leaf in leaf_spaces(actions).values() if isinstance(leaf, spaces.Box) and np.dtype(leaf.dtype).kind in "iu"
    ]
    return None if whole and piece.n_prev_actions else _Previous(piece, actions)  # networks have other units for these


FORMS: Final[dict[type[ConnectorV2], Callable[[Any], nn.Module | None]]] = {
    MeanStdFilter: _Filter,
    FlattenObservations: lambda piece: _Flat(piece.space_before(None), piece.keys_to_remove or ()),
    OneHot: lambda piece: _Flat(piece.space_before(None)),
    AtariRam: lambda piece: _Ram(),
    FrameStacking: _Stack,
    PrevActionsPrevRewards: _previous,
}


def torch_form(piece: ConnectorV2) -> nn.Module | None:
    """The form of a piece that is in a pipeline; None: it has none. Raises whatever its own `to_torch` raises."""
    own = getattr(piece, "to_torch", None)
    if own is not None:
        made: nn.Module | None = own()
        return made
    return FORMS[type(piece)](piece) if type(piece) in FORMS else None


def added_pieces(pipeline: ConnectorPipelineV2) -> list[tuple[str, ConnectorV2]]:
    """The pieces of an env-to-module pipeline that are not default ones, by name."""
    default = {type(piece) for piece in default_pieces(None, None)}
    return [(name, piece) for name, piece in pipeline.named() if type(piece) not in default]


def without_torch_form(pipeline: ConnectorPipelineV2) -> list[str]:
    """The names of those pieces of an env-to-module pipeline that have no torch form."""
    return [name for name, piece in added_pieces(pipeline) if torch_form(piece) is None]


def notes_on_export(trained_through: PipelineSpec, setting: Setting) -> list[str]:
    """For a run's notes, before it is trained: why its policy cannot be exported; empty: nothing speaks against it."""
    if trained_through.document is None:  # Python objects, which `export` gets again, or refuses
        return []
    try:
        lacking = without_torch_form(trained_through.beside_environment().build(setting))
    except OfflineCliError:  # told where the policy plays
        return []
    return [f"the policy cannot be exported to ONNX: piece {name} has no `to_torch`" for name in lacking]

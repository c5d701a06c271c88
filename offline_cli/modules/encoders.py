"""Encoders: from an observation of any space that can be stored to one row of features.

Each leaf is encoded by its kind, and the results are concatenated: Discrete and MultiDiscrete one-hot, uint8 scaled from the
bounds of its space to [0, 1], other numbers as float32, images through a network of their own (`images.py` says which leaves
are some).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor, nn

from offline_cli.episodes.episode_spaces import choice_counts
from offline_cli.modules.images import BY_SHAPE, CHW, HW, Axes, ImageForm, encoder_kind
from offline_cli.spaces import Space, check_supported, leaf_spaces
from offline_cli.trees import Tree, leaves

__all__ = ["ACTIVATIONS", "ImageEncoder", "ObservationEncoder", "OneHotEncoder", "after_layer", "columns_of", "mlp"]

ACTIVATIONS: dict[str, type[nn.Module]] = {
    "relu": nn.ReLU,
    "tanh": nn.Tanh,
    "silu": nn.SiLU,
    "gelu": nn.GELU,
    "linear": nn.Identity,  # RLlib's name for none
}


def mlp(sizes: Sequence[int], activation: str, *, dropout: float = 0.0, layer_norm: bool = False) -> nn.Sequential:
    """Linear layers of these widths with what `after_layer` makes between them, nothing after the last."""
    layers: list[nn.Module] = []
    for i, (wide, next_wide) in enumerate(itertools.pairwise(sizes)):
        layers += [after_layer(wide, activation, dropout=dropout, layer_norm=layer_norm)] if i else []
        layers.append(nn.Linear(wide, next_wide))
    return nn.Sequential(*layers)


def after_layer(width: int, activation: str, *, dropout: float = 0.0, layer_norm: bool = False) -> nn.Module:
    """What follows a hidden layer, as one module: activation, layer norm (Ba et al. 2016), dropout (Srivastava et al. 2014).

    The order is that of ReBRAC (Tarasov et al. 2023) and d3rlpy. Dropout has no weights, nor any part in their names.
    """
    active = ACTIVATIONS[activation]()
    norm = [nn.LayerNorm(width)] if layer_norm else []
    dropped = [TrainingDropout(dropout)] if dropout else []
    return nn.Sequential(active, *norm, *dropped) if norm or dropped else active


class TrainingDropout(nn.Dropout):
    """Dropout in passes that a gradient is computed of, and nowhere else: targets and checks are those of the whole network."""

    def forward(self, input: Tensor) -> Tensor:
        """Of any shape."""
        return super().forward(input) if torch.is_grad_enabled() else input


class ObservationEncoder(nn.Module):
    """Trees of leaves (B, *shape) to features (B, size). Raises UnsupportedSpace."""

    def __init__(self, space: Space, *, images: ImageForm = BY_SHAPE) -> None:
        """`images`: which leaves are some."""
        super().__init__()
        check_supported(space, where="observation space")
        self.images = images
        parts = [_leaf_encoder(leaf, images) for leaf in leaf_spaces(space).values()]
        self.parts = nn.ModuleList(parts)
        self.size = sum(part.size for part in parts)

    def forward(self, observations: Tree) -> Tensor:
        """(B, size) float32."""
        features: list[Tensor] = [part(leaf) for part, leaf in zip(self.parts, leaves(observations), strict=True)]
        return features[0] if len(features) == 1 else torch.cat(features, -1)


class _LeafEncoder(nn.Module):
    """One leaf (B, *shape) to features (B, size); uint8 values of a Box as float32 in [0, 1] between their bounds."""

    size: int
    low: Tensor | None
    factor: Tensor

    def __init__(self, space: Space) -> None:
        super().__init__()
        self.size = columns_of(space)
        self.register_buffer("low", None, persistent=False)
        if isinstance(space, spaces.Box) and space.dtype == np.uint8:
            low, high = space.low.astype(np.float32), space.high.astype(np.float32)
            self.register_buffer("low", torch.as_tensor(low), persistent=False)
            self.register_buffer("factor", torch.as_tensor(1 / np.maximum(high - low, 1)), persistent=False)  # one value: 0

    def numbers(self, leaf: Tensor) -> Tensor:
        """(B, *shape) float32."""
        return leaf.float() if self.low is None else (leaf.float() - self.low) * self.factor

    def forward(self, leaf: Tensor) -> Tensor:
        """(B, size): the numbers in one row."""
        return self.numbers(leaf).reshape(leaf.shape[0], self.size)


class OneHotEncoder(_LeafEncoder):
    """Counted choices as ones and zeros. (`functional.one_hot` looks at the values, which waits for a GPU.)"""

    values: Tensor  # (size,) the choice of each column
    owner: Tensor  # (size,) which component it is of

    def __init__(self, space: spaces.Discrete[Any] | spaces.MultiDiscrete) -> None:
        super().__init__(space)
        counts, starts = choice_counts(space)
        owner = np.repeat(np.arange(len(counts)), counts)
        values = np.arange(len(owner)) - (np.cumsum(counts) - counts - starts)[owner]
        self.register_buffer("values", torch.from_numpy(values), persistent=False)
        self.register_buffer("owner", torch.from_numpy(owner), persistent=False)

    def forward(self, leaf: Tensor) -> Tensor:
        """(B, size)."""
        return (leaf.reshape(leaf.shape[0], -1).index_select(1, self.owner) == self.values).float()


def columns_of(space: Space) -> int:
    """Features of a leaf that is no image: one for each choice, or each number."""
    is_counted = isinstance(space, (spaces.Discrete, spaces.MultiDiscrete))
    return int(choice_counts(space)[0].sum()) if is_counted else math.prod(space.shape or ())  # type: ignore[arg-type]


class ImageEncoder(_LeafEncoder):
    """Images (B, *shape) through the network of their form; floats are taken as they are."""

    def __init__(self, space: spaces.Box, axes: Axes, encoder: str) -> None:
        super().__init__(space)
        self.layout = axes.layout
        self.network = encoder_kind(encoder)(axes.channels, axes.height, axes.width)
        self.size = self.network.size

    def forward(self, leaf: Tensor) -> Tensor:
        """(B, size)."""
        images = self.numbers(leaf)
        if self.layout != CHW:
            images = images[:, None] if self.layout == HW else images.permute(0, 3, 1, 2)
        features: Tensor = self.network(images)
        return features.flatten(1)


def _leaf_encoder(space: Space, images: ImageForm) -> _LeafEncoder:
    if isinstance(space, (spaces.Discrete, spaces.MultiDiscrete)):
        return OneHotEncoder(space)
    axes = images.axes(space)
    return _LeafEncoder(space) if axes is None else ImageEncoder(space, axes, images.encoder)  # type: ignore[arg-type]

"""Encoders: any storable observation to one row of features; refuses spaces that cannot be stored.

Leaves are encoded each in its way and put side by side: Discrete and MultiDiscrete one-hot, whole-range uint8 divided by 255,
other numbers as float32, images (uint8, three axes, both sides of at least 36) through a small convolutional net.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor, nn

from offline_cli.spaces import Space, check_supported, leaf_spaces
from offline_cli.trees import Tree, leaves

__all__ = ["ACTIVATIONS", "ImageEncoder", "ObservationEncoder", "is_image", "mlp"]

ACTIVATIONS: dict[str, type[nn.Module]] = {"relu": nn.ReLU, "tanh": nn.Tanh, "silu": nn.SiLU, "gelu": nn.GELU}
MIN_IMAGE_SIDE = 36  # the smallest that three convolutions with strides 4, 2, 1 leave something of


def mlp(sizes: Sequence[int], activation: str) -> nn.Sequential:
    """Linear layers of these widths with `activation` between them, none after the last."""
    layers: list[nn.Module] = []
    for i, (wide, next_wide) in enumerate(itertools.pairwise(sizes)):
        layers += [ACTIVATIONS[activation]()] if i else []
        layers.append(nn.Linear(wide, next_wide))
    return nn.Sequential(*layers)


class ObservationEncoder(nn.Module):
    """Trees of leaves (B, *shape) to features (B, size). Raises UnsupportedSpace."""

    def __init__(self, space: Space) -> None:
        super().__init__()
        check_supported(space, where="observation space")
        parts = [_leaf_encoder(leaf) for leaf in leaf_spaces(space).values()]
        self.parts = nn.ModuleList(parts)
        self.size = sum(part.size for part in parts)

    def forward(self, observations: Tree) -> Tensor:
        """(B, size) float32."""
        features: list[Tensor] = [part(leaf) for part, leaf in zip(self.parts, leaves(observations), strict=True)]
        return features[0] if len(features) == 1 else torch.cat(features, -1)


class _LeafEncoder(nn.Module):
    """One leaf (B, *shape) to features (B, size)."""

    size: int


class _Numbers(_LeafEncoder):
    """Numbers as they are, or divided by 255, in one row."""

    def __init__(self, shape: tuple[int, ...], scale: float) -> None:
        super().__init__()
        self.size, self.scale = math.prod(shape), scale

    def forward(self, leaf: Tensor) -> Tensor:
        flat = leaf.reshape(leaf.shape[0], self.size).float()
        return flat if self.scale == 1.0 else flat * self.scale


class _OneHot(_LeafEncoder):
    """Counted choices as ones and zeros. (`functional.one_hot` looks at the values, which a CUDA graph cannot.)"""

    def __init__(self, counts: Sequence[int], starts: Sequence[int]) -> None:
        super().__init__()
        self.size, self.components = sum(counts), len(counts)
        values = [start + i for count, start in zip(counts, starts, strict=True) for i in range(count)]
        owner = [index for index, count in enumerate(counts) for _ in range(count)]
        self.values: Tensor
        self.owner: Tensor
        self.register_buffer("values", torch.tensor(values), persistent=False)
        self.register_buffer("owner", torch.tensor(owner), persistent=False)

    def forward(self, leaf: Tensor) -> Tensor:
        flat = leaf.reshape(leaf.shape[0], self.components)
        return (flat.index_select(1, self.owner) == self.values).float()


class ImageEncoder(_LeafEncoder):
    """Three convolutions over uint8 images (B, H, W, C) or (B, C, H, W); C is the axis with the fewest entries.

    Source: Mnih et al. 2015, Methods (network of the deep Q-learning agent).
    """

    def __init__(self, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.channels_last = shape[-1] <= shape[0]
        channels, height, width = (shape[-1], *shape[:-1]) if self.channels_last else shape
        self.convolutions = nn.Sequential(
            nn.Conv2d(channels, 32, 8, 4), nn.ReLU(), nn.Conv2d(32, 64, 4, 2), nn.ReLU(), nn.Conv2d(64, 64, 3), nn.ReLU()
        )
        with torch.no_grad():
            self.size = self.convolutions(torch.zeros(1, channels, height, width)).numel()

    def forward(self, leaf: Tensor) -> Tensor:
        """(B, size)."""
        images = leaf.permute(0, 3, 1, 2) if self.channels_last else leaf
        features: Tensor = self.convolutions(images.float() / 255)
        return features.flatten(1)


def _leaf_encoder(space: Space) -> _LeafEncoder:
    match space:
        case spaces.Discrete():
            return _OneHot([int(space.n)], [int(space.start)])
        case spaces.MultiDiscrete():
            return _OneHot(space.nvec.ravel().tolist(), space.start.ravel().tolist())
        case spaces.Box() if is_image(space):
            return ImageEncoder(space.shape)
    return _Numbers(tuple(space.shape or ()), 1 / 255 if space.dtype == np.uint8 else 1.0)


def is_image(space: Space) -> bool:
    """Whether values of a leaf space go through the convolutional net."""
    if not isinstance(space, spaces.Box):
        return False
    return space.dtype == np.uint8 and len(space.shape) == 3 and sorted(space.shape)[1] >= MIN_IMAGE_SIDE

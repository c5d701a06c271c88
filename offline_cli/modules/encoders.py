"""Encoders: turn observations of any storable space into one row of features.

Each leaf is encoded by its type, and the results are concatenated: Discrete and MultiDiscrete one-hot, uint8 scaled from the
bounds of its space to [0, 1], other numbers as float32, images through a convolutional network.

An image is a uint8 Box (height, width), (height, width, channels), or (channels, height, width) as in gymnasium's frame stacks,
whose sides are as long as the encoder needs; the shorter one of the outer axes is that of the channels.
"""

from __future__ import annotations

import itertools
import math
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from typing import Any, ClassVar, Final

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor, nn

from offline_cli.episodes.episode_spaces import choice_counts
from offline_cli.plugins import ENCODERS, package_of, registered_class
from offline_cli.spaces import Space, check_supported, describe, leaf_spaces
from offline_cli.trees import Tree, leaves

__all__ = ["ACTIVATIONS", "ImageEncoder", "ObservationEncoder", "OneHotEncoder", "after_layer", "columns_of", "mlp"]


NATURE: Final = "nature"


class ImageNetwork(nn.Module, ABC):
    """Images (B, channels, height, width), float32, to features (B, `size`). Constructed as `cls(channels, height, width)`."""

    schema: ClassVar[Mapping[str, Any]] = {"properties": {}}
    least_side: ClassVar[int] = 8  # minimum height and width
    size: int

    @abstractmethod
    def forward(self, images: Tensor) -> Tensor: ...


class Nature(ImageNetwork):
    """Three convolutions. Source: Mnih et al. 2015, Methods (network of the deep Q-learning agent)."""

    least_side = 36  # smallest input for three convolutions with strides 4, 2, 1

    def __init__(self, channels: int, height: int, width: int) -> None:
        super().__init__()
        self.convolutions = nn.Sequential(
            nn.Conv2d(channels, 32, 8, 4), nn.ReLU(), nn.Conv2d(32, 64, 4, 2), nn.ReLU(), nn.Conv2d(64, 64, 3), nn.ReLU()
        )
        sides = [((side - 8) // 4 + 1 - 4) // 2 + 1 - 2 for side in (height, width)]
        self.size = 64 * math.prod(sides)

    def forward(self, images: Tensor) -> Tensor:
        """(B, size)."""
        return self.convolutions(images).flatten(1)  # type: ignore[no-any-return]


OURS: Final[dict[str, type[ImageNetwork]]] = {NATURE: Nature}


def encoder_kind(name: str, *, named: Collection[str] | None = None) -> type[ImageNetwork]:
    """The encoder class called `name`. `named` and errors: see `registered_class`."""
    if name in OURS:
        return OURS[name]
    return registered_class(ENCODERS, name, ImageNetwork, ours=OURS, named=named)  # type: ignore[type-abstract]


def image_sizes(space: Space, encoder: str) -> tuple[int, int, int] | None:
    """Channels, height and width of a leaf space that is an image; None for other leaves."""
    if not isinstance(space, spaces.Box) or space.dtype != np.uint8 or len(space.shape) not in (2, 3):
        return None
    height, width, channels = (*space.shape[1:], space.shape[0]) if _is_channels_first(space) else (*space.shape, 1)[:3]
    return (channels, height, width) if min(height, width) >= encoder_kind(encoder).least_side else None


def _is_channels_first(space: Space) -> bool:
    shape = space.shape or ()
    return len(shape) == 3 and shape[0] < shape[2]


def flattened_images(space: Space, name: str, encoder: str) -> list[str]:
    """One sentence for each leaf with two or more axes that is no image. `name`: the space's name."""
    least = encoder_kind(encoder).least_side
    return [
        f"{path}, {describe(leaf)}, is flattened to {math.prod(leaf.shape or ())} numbers for the MLP: "
        f'the encoder "{encoder}" takes uint8 images with two or three axes and sides of at least {least}; '
        "resize them before recording, or use a network of your own (--network FILE.py:NAME)"
        for path, leaf in leaf_spaces(space, name).items()
        if isinstance(leaf, (spaces.Box, spaces.MultiBinary)) and len(leaf.shape or ()) > 1 and not image_sizes(leaf, encoder)
    ]


def encoder_package(name: str) -> str | None:
    """The package that registered the encoder; None for built-in and unknown encoders."""
    return None if name in OURS else package_of(ENCODERS, name)


ACTIVATIONS: dict[str, type[nn.Module]] = {
    "relu": nn.ReLU,
    "tanh": nn.Tanh,
    "silu": nn.SiLU,
    "gelu": nn.GELU,
    "linear": nn.Identity,  # RLlib's name for no activation
}


def mlp(sizes: Sequence[int], activation: str, *, dropout: float = 0.0, layer_norm: bool = False) -> nn.Sequential:
    """Linear layers of these widths with `after_layer` between them, and nothing after the last."""
    layers: list[nn.Module] = []
    for i, (wide, next_wide) in enumerate(itertools.pairwise(sizes)):
        layers += [after_layer(wide, activation, dropout=dropout, layer_norm=layer_norm)] if i else []
        layers.append(nn.Linear(wide, next_wide))
    return nn.Sequential(*layers)


def after_layer(width: int, activation: str, *, dropout: float = 0.0, layer_norm: bool = False) -> nn.Module:
    """Activation, layer norm (Ba et al. 2016) and dropout (Srivastava et al. 2014) after a hidden layer, as one module.

    The order is that of ReBRAC (Tarasov et al. 2023) and d3rlpy. Dropout changes no parameter names.
    """
    active = ACTIVATIONS[activation]()
    norm = [nn.LayerNorm(width)] if layer_norm else []
    dropped = [TrainingDropout(dropout)] if dropout else []
    return nn.Sequential(active, *norm, *dropped) if norm or dropped else active


class TrainingDropout(nn.Dropout):
    """Dropout in passes with gradients only: targets and checks use the whole network."""

    def forward(self, input: Tensor) -> Tensor:
        """Any shape."""
        return super().forward(input) if torch.is_grad_enabled() else input


class ObservationEncoder(nn.Module):
    """Trees of leaves (B, *shape) to features (B, size). Raises UnsupportedSpace."""

    def __init__(self, space: Space, *, encoder: str = NATURE) -> None:
        """`encoder`: name of the image encoder."""
        super().__init__()
        check_supported(space, where="observation space")
        parts = [_leaf_encoder(leaf, encoder) for leaf in leaf_spaces(space).values()]
        self.parts = nn.ModuleList(parts)
        self.size = sum(part.size for part in parts)

    def forward(self, observations: Tree) -> Tensor:
        """(B, size) float32."""
        features: list[Tensor] = [part(leaf) for part, leaf in zip(self.parts, leaves(observations), strict=True)]
        return features[0] if len(features) == 1 else torch.cat(features, -1)


class _LeafEncoder(nn.Module):
    """One leaf (B, *shape) to features (B, size), float32; a uint8 Box is scaled from its bounds to [0, 1]."""

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
            self.register_buffer(
                "factor", torch.as_tensor(1 / np.maximum(high - low, 1)), persistent=False
            )  # low == high gives 0

    def numbers(self, leaf: Tensor) -> Tensor:
        """(B, *shape) float32."""
        return leaf.float() if self.low is None else (leaf.float() - self.low) * self.factor

    def forward(self, leaf: Tensor) -> Tensor:
        """(B, size)."""
        return self.numbers(leaf).reshape(leaf.shape[0], self.size)


class OneHotEncoder(_LeafEncoder):
    """One-hot choices. (`functional.one_hot` reads the values, which synchronizes with the GPU.)"""

    values: Tensor  # (size,) choice of each column
    owner: Tensor  # (size,) component of each column

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
    """Feature count of a leaf that is no image: one for each choice, or each number."""
    is_counted = isinstance(space, (spaces.Discrete, spaces.MultiDiscrete))
    return int(choice_counts(space)[0].sum()) if is_counted else math.prod(space.shape or ())  # type: ignore[arg-type]


class ImageEncoder(_LeafEncoder):
    """Images (B, height, width[, channels]) or (B, channels, height, width) through an image network."""

    def __init__(self, space: Space, network: ImageNetwork) -> None:
        super().__init__(space)
        self.network = network
        self.size, self._is_channels_first = network.size, _is_channels_first(space)

    def forward(self, leaf: Tensor) -> Tensor:
        """(B, size)."""
        images = self.numbers(leaf)
        if images.dim() == 3:
            images = images[:, None]
        elif not self._is_channels_first:
            images = images.permute(0, 3, 1, 2)
        features: Tensor = self.network(images)
        return features.flatten(1)


def _leaf_encoder(space: Space, encoder: str) -> _LeafEncoder:
    if isinstance(space, (spaces.Discrete, spaces.MultiDiscrete)):
        return OneHotEncoder(space)
    sizes = image_sizes(space, encoder)
    return _LeafEncoder(space) if sizes is None else ImageEncoder(space, encoder_kind(encoder)(*sizes))

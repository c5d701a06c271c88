"""Encoders: turn observations of any storable space into one row of features.

Each leaf is encoded by its type, and the results are concatenated: Discrete and MultiDiscrete one-hot, uint8 scaled from the
bounds of its space to [0, 1], other numbers as float32, images through a convolutional network.

`ImageForm` decides which leaves are images. With layout AUTO an image is a uint8 Box of two axes (height, width), or of three,
where the shorter of the first and last axis is the channels (the last if they are equal), and whose sides are as long as the
encoder needs. If the shorter axis is more than half as long as the other, the layout is ambiguous: `image_notes` reports it,
and an explicit layout (HW, HWC, CHW) resolves it. With an explicit layout every Box of that many axes is an image, floats
included; with NONE no leaf is.
"""

from __future__ import annotations

import itertools
import math
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
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


AUTO, HW, HWC, CHW, NONE = "auto", "hw", "hwc", "chw", "none"
NATURE: Final = "nature"
CHANNELS: Final = "channels"
AXES: Final = {HW: ("height", "width"), HWC: ("height", "width", CHANNELS), CHW: (CHANNELS, "height", "width")}


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


class _Residual(nn.Module):
    """Residual block of two convolutions."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(channels, channels, 3, padding=1)
        self.second = nn.Conv2d(channels, channels, 3, padding=1)

    def forward(self, images: Tensor) -> Tensor:
        inner: Tensor = self.second(nn.functional.relu(self.first(nn.functional.relu(images))))
        return images + inner


class Impala(ImageNetwork):
    """Three stages: convolution, pooling, two residual blocks. Source: Espeholt et al. 2018, figure 3, the large network."""

    def __init__(self, channels: int, height: int, width: int) -> None:
        super().__init__()
        stages: list[nn.Module] = []
        for made in (16, 32, 32):
            stages += [nn.Conv2d(channels, made, 3, padding=1), nn.MaxPool2d(3, 2, padding=1), _Residual(made), _Residual(made)]
            channels, height, width = made, -(-height // 2), -(-width // 2)
        self.stages = nn.Sequential(*stages, nn.ReLU())
        self.size = channels * height * width

    def forward(self, images: Tensor) -> Tensor:
        """(B, size)."""
        return self.stages(images).flatten(1)  # type: ignore[no-any-return]


OURS: Final[dict[str, type[ImageNetwork]]] = {NATURE: Nature, "impala": Impala}


def encoder_kind(name: str, *, named: Collection[str] | None = None) -> type[ImageNetwork]:
    """The encoder class called `name`. `named` and errors: see `registered_class`."""
    if name in OURS:
        return OURS[name]
    return registered_class(ENCODERS, name, ImageNetwork, ours=OURS, named=named)  # type: ignore[type-abstract]


@dataclass(frozen=True, slots=True)
class Axes:
    """Layout and sizes of an image."""

    layout: str  # HW, HWC or CHW
    channels: int
    height: int
    width: int
    is_clear: bool = True  # the layout is explicit, or unambiguous from the shape


@dataclass(frozen=True, slots=True)
class ImageForm:
    """Which leaves a network treats as images, and which encoder it uses."""

    layout: str = AUTO  # AUTO, HW, HWC, CHW or NONE
    encoder: str = NATURE

    def axes(self, space: Space) -> Axes | None:
        """The image layout of a leaf space; None if it is no image."""
        if not isinstance(space, spaces.Box) or self.layout == NONE:
            return None
        shape, layout, is_clear = space.shape, self.layout, True
        if layout == AUTO:
            if space.dtype != np.uint8:
                return None
            layout = HW if len(shape) == 2 else HWC if shape[-1:] <= shape[:1] else CHW
            is_clear = len(shape) != 3 or 2 * min(shape[0], shape[-1]) <= max(shape[0], shape[-1])
        if len(shape) != len(AXES[layout]) or np.dtype(space.dtype).kind not in "uif":
            return None
        sizes = dict(zip(AXES[layout], shape, strict=True))
        axes = Axes(layout, sizes.get(CHANNELS, 1), sizes["height"], sizes["width"], is_clear)
        return axes if min(axes.height, axes.width) >= encoder_kind(self.encoder).least_side else None


BY_SHAPE: Final = ImageForm()


def flattened_images(space: Space, name: str, form: ImageForm = BY_SHAPE) -> list[str]:
    """One sentence for each leaf with two or more axes that is no image; none with layout NONE. `name`: the space's name."""
    least = encoder_kind(form.encoder).least_side
    leaves = leaf_spaces(space, name).items() if form.layout != NONE else ()
    return [
        f"{path}, {describe(leaf)}, is flattened to {math.prod(leaf.shape or ())} numbers for the MLP: "
        f'the encoder "{form.encoder}" takes uint8 images with two or three axes, height and width at least {least}; '
        "resize them before recording, or use a network of your own (--network FILE.py:NAME)"
        for path, leaf in leaves
        if isinstance(leaf, (spaces.Box, spaces.MultiBinary)) and len(leaf.shape or ()) > 1 and form.axes(leaf) is None
    ]


def image_notes(space: Space, name: str, form: ImageForm) -> list[str]:
    """One sentence for each image whose layout is a guess. `name`: the space's name."""
    notes = []
    for path, leaf in leaf_spaces(space, name).items():
        axes = form.axes(leaf)
        if axes is not None and (not axes.is_clear or (axes.layout == HW and form.layout == AUTO)):
            read = f"({', '.join(AXES[axes.layout])}), {axes.channels} channel{'s' * (axes.channels > 1)}"
            notes.append(f"{path}, {describe(leaf)}, is read as images {read}: [network] images sets another layout")
    return notes


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

    def __init__(self, space: Space, *, images: ImageForm = BY_SHAPE) -> None:
        """`images`: which leaves are images."""
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
    """Images (B, *shape) through an image network; float images are not scaled."""

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

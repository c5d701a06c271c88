"""Which observations are images, which of their axes is which, and the networks that encode them by name.

`ImageForm` is the rule of one network. With the layout AUTO a leaf is an image that is a Box of uint8, of two axes (height,
width), or of three, of which the last or the first is the channels', whichever has fewer entries (the last where both have as
many), with both sides as long as the encoder needs. It is not clear which axis is the channels' where the one with fewer
entries has more than half as many as the other: `image_notes` says so, and a layout that is given (HW, HWC, CHW) decides it.
With such a layout every Box of as many axes is an image, of floats too; with NONE none is.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Final

import numpy as np
from gymnasium import spaces
from torch import Tensor, nn

from offline_cli.plugins import ENCODERS, package_of, registered_class
from offline_cli.spaces import Space, describe, leaf_spaces

AUTO, HW, HWC, CHW, NONE = "auto", "hw", "hwc", "chw", "none"
NATURE: Final = "nature"
CHANNELS: Final = "channels"
AXES: Final = {HW: ("height", "width"), HWC: ("height", "width", CHANNELS), CHW: (CHANNELS, "height", "width")}


class ImageNetwork(nn.Module, ABC):
    """Images (B, channels, height, width), float32, to features (B, `size`). Made with the three sizes, in this order."""

    schema: ClassVar[Mapping[str, Any]] = {"properties": {}}
    least_side: ClassVar[int] = 8  # of height and width
    size: int

    @abstractmethod
    def forward(self, images: Tensor) -> Tensor: ...


class Nature(ImageNetwork):
    """Three convolutions. Source: Mnih et al. 2015, Methods (network of the deep Q-learning agent)."""

    least_side = 36  # the smallest that three convolutions with strides 4, 2, 1 leave something of

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
    """Two convolutions around which the input goes as well."""

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
    """The encoder of that name. `named`, and what is raised: see `registered_class`."""
    if name in OURS:
        return OURS[name]
    return registered_class(ENCODERS, name, ImageNetwork, ours=OURS, named=named)  # type: ignore[type-abstract]


@dataclass(frozen=True, slots=True)
class Axes:
    """How an image's axes are read."""

    layout: str  # HW, HWC or CHW
    channels: int
    height: int
    width: int
    is_clear: bool = True  # whether the shape alone says so, or the layout was given


@dataclass(frozen=True, slots=True)
class ImageForm:
    """Which leaves are images for a network, and what encodes them."""

    layout: str = AUTO  # AUTO, HW, HWC, CHW or NONE
    encoder: str = NATURE

    def axes(self, space: Space) -> Axes | None:
        """How values of a leaf space are read as images; None: they are none."""
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
        found = Axes(layout, sizes.get(CHANNELS, 1), sizes["height"], sizes["width"], is_clear)
        return found if min(found.height, found.width) >= encoder_kind(self.encoder).least_side else None


BY_SHAPE: Final = ImageForm()


def flattened_images(space: Space, name: str, form: ImageForm = BY_SHAPE) -> list[str]:
    """One sentence for each leaf with two or more axes that is no image, unless none was asked for. `name`: of `space`."""
    least = encoder_kind(form.encoder).least_side
    leaves = leaf_spaces(space, name).items() if form.layout != NONE else ()
    return [
        f"{path}, {describe(leaf)}, are flattened to {math.prod(leaf.shape or ())} numbers for the MLP, without their layout: "
        f'the encoder "{form.encoder}" takes uint8 images with two or three axes, height and width at least {least}'
        for path, leaf in leaves
        if isinstance(leaf, (spaces.Box, spaces.MultiBinary)) and len(leaf.shape or ()) > 1 and form.axes(leaf) is None
    ]


def image_notes(space: Space, name: str, form: ImageForm) -> list[str]:
    """One sentence for each image whose reading was assumed. `name`: of `space`."""
    found = []
    for path, leaf in leaf_spaces(space, name).items():
        axes = form.axes(leaf)
        if axes is not None and (not axes.is_clear or (axes.layout == HW and form.layout == AUTO)):
            read = f"({', '.join(AXES[axes.layout])}), {axes.channels} channel{'s' * (axes.channels > 1)}"
            found.append(f"{path}, {describe(leaf)}, are taken for images {read}: [network] images says another layout")
    return found


def encoder_package(name: str) -> str | None:
    """The package that registered the encoder; None: it is ours, or unknown."""
    return None if name in OURS else package_of(ENCODERS, name)

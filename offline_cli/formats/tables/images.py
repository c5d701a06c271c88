"""PNG and JPEG bytes in cells as pixels, whole columns at a time; `[images]` of a mapping says which columns, and as what.

The form of an image, its size and its channels are read from its own header before anything is decoded, so that a few bytes
cannot unfold to more than `MOST_BYTES`, and chunks of rows are cut by the bytes that their images declare. Only these two forms
are decoded, and PNG of 8 bits a channel or fewer. A cell that is none of them, is damaged, or has another size than the others
is a bad row.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from offline_cli.errors import MissingPackage

__all__ = ["GRAY", "RGB", "cut_by_images", "header_of", "image_counts", "images_in", "why_no_image"]

GRAY, RGB = ("gray", "rgb")  # (height, width), and (height, width, 3)
CHANNELS: Final = {GRAY: 1, RGB: 3}
MOST_BYTES: Final = 64 << 20  # of one image, decoded: 4,700 by 4,700 in colours
PNG: Final = b"\x89PNG\r\n\x1a\n"
JPEG: Final = b"\xff\xd8\xff"
WITH_ALPHA: Final = (4, 6)  # colour types of PNG
WITHOUT_COLOUR: Final = (0, 4)
NO_SIZE: Final = (0xC4, 0xC8, 0xCC)  # markers of JPEG among those of frames that begin none
BARE: Final = (0x01, *range(0xD0, 0xD8))  # markers without a length


@dataclass(frozen=True, slots=True)
class Header:
    """What an image says of itself."""

    is_jpeg: bool
    height: int
    width: int
    bits: int  # of a channel
    has_alpha: bool = False
    is_gray: bool = False


def header_of(cell: bytes) -> Header | None:
    """None: the bytes begin neither a PNG nor a JPEG of some size."""
    if cell[:8] == PNG and cell[12:16] == b"IHDR" and len(cell) > 26:
        width, height = int.from_bytes(cell[16:20], "big"), int.from_bytes(cell[20:24], "big")
        alpha, gray = cell[25] in WITH_ALPHA, cell[25] in WITHOUT_COLOUR
        return Header(False, height, width, cell[24], alpha, gray) if width and height else None
    return _header_of_jpeg(cell) if cell[:3] == JPEG else None


def _header_of_jpeg(cell: bytes) -> Header | None:
    at = 2
    while at + 9 < len(cell) and cell[at] == 0xFF:
        marker = cell[at + 1]
        if marker == 0xFF or marker in BARE:
            at += 1 if marker == 0xFF else 2
        elif 0xC0 <= marker <= 0xCF and marker not in NO_SIZE:
            height, width = int.from_bytes(cell[at + 5 : at + 7], "big"), int.from_bytes(cell[at + 7 : at + 9], "big")
            return Header(True, height, width, cell[at + 4], is_gray=cell[at + 9] == 1) if width and height else None
        else:
            at += 2 + int.from_bytes(cell[at + 2 : at + 4], "big")
    return None


def why_no_image(cell: bytes, kind: str, shape: tuple[int, ...] | None) -> str:
    """What keeps `cell` from being one of the images of `shape`, as text; empty: nothing, as far as its header says."""
    found = header_of(cell)
    if found is None:
        return "bytes that are neither PNG nor JPEG"
    size = f"{found.height:,} x {found.width:,}"
    if found.bits > 8:
        return f"an image of {found.bits} bits a channel, and at most 8 are read"
    if found.height * found.width * CHANNELS[kind] > MOST_BYTES:
        return f"an image that declares {size} pixels, more than the {MOST_BYTES >> 20} MiB that one may unfold to"
    if shape is not None and shape[:2] != (found.height, found.width):
        return f"an image of {size} pixels, and others have {shape[0]:,} x {shape[1]:,}"
    return ""


def images_in(column: pa.Array, kind: str, shape: tuple[int, ...] | None) -> tuple[NDArray[np.uint8], NDArray[np.bool_] | None]:
    """(N, *shape) pixels with 0 in rows that have none, and (N,) these rows, None where there is none.

    `shape`: of one image; None: that of the first that can be decoded. Raises MissingPackage.
    """
    values, bad = None, np.ones(len(column), np.bool_)
    for row, cell in enumerate(column.to_pylist()):
        if not isinstance(cell, bytes) or why_no_image(cell, kind, shape):
            continue
        pixels = _decoded(cell, kind)
        if pixels is None or (shape is not None and pixels.shape != shape):
            continue
        if values is None:
            shape = pixels.shape
            values = np.zeros((len(column), *shape), np.uint8)
        values[row], bad[row] = pixels, False
    if values is None:
        values = np.zeros((len(column), *(shape or (0,) * (2 if kind == GRAY else 3))), np.uint8)
    return values, bad if bad.any() else None


def _decoded(cell: bytes, kind: str) -> NDArray[np.uint8] | None:
    try:
        import cv2
    except ImportError as err:
        fix = "pip install 'offline-cli[images]'"
        raise MissingPackage(f"decoding images needs a package: {err}", where="[images] of the mapping", fix=fix) from err
    how = cv2.IMREAD_GRAYSCALE if kind == GRAY else cv2.IMREAD_COLOR_RGB
    try:
        found = cv2.imdecode(np.frombuffer(cell, np.uint8), how | cv2.IMREAD_IGNORE_ORIENTATION)
    except cv2.error:
        return None
    return None if found is None else np.asarray(found, np.uint8)


def image_counts(column: pa.Array, name: str) -> dict[str, int]:
    """What decoding the column loses, by kind of assumption: JPEG has lost pixels already, and alpha channels are left out."""
    headers = [header_of(cell) for cell in column.to_pylist() if isinstance(cell, bytes)]
    lossy = sum(header is not None and header.is_jpeg for header in headers)
    alpha = sum(header is not None and header.has_alpha for header in headers)
    return {f"lossy-jpeg:{name}": lossy, f"alpha-left-out:{name}": alpha}


def cut_by_images(batches: Iterable[pa.RecordBatch], names: Collection[str], most: int) -> Iterator[pa.RecordBatch]:
    """Batches cut so that their images take about `most` bytes, or are one row; `names`: of columns of images."""
    for batch in batches:
        size = sum(max(map(_size, batch.column(name).to_pylist()), default=0) for name in names)
        rows = max(1, most // size) if size else max(1, batch.num_rows)
        yield from (batch.slice(first, rows) for first in range(0, batch.num_rows, rows))


def _size(cell: object) -> int:
    found = header_of(cell) if isinstance(cell, bytes) else None
    size = 0 if found is None else found.height * found.width * CHANNELS[RGB]
    return 0 if size > MOST_BYTES else size  # those are not decoded

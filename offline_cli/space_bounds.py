"""Bounds of spaces as RLlib writes them: base64 of zlib of a .npy file, both ways, safe for hostile bytes.

Pickles, decompression bombs and false sizes raise UnsafeData. numpy's own `load` evaluates the header, allocates whatever it
promises, and opens zip archives. Here the header must be the one line that numpy writes, its dtype one of plain numbers, and
its shape must account for every byte that follows.
"""

from __future__ import annotations

import base64
import binascii
import io
import math
import re
import zlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

from offline_cli.errors import UnsafeData

__all__ = ["MAX_BOUND_BYTES", "BoundReader", "bound_to_text"]

MAX_BOUND_BYTES = 64 << 20  # the bounds of one space, all parts together; more is a bomb, not a space
MAGIC = b"\x93NUMPY"
HEADER = re.compile(
    r"\{'descr': '(?P<dtype>[<>=|]?[biuf]\d{1,2})', 'fortran_order': (?P<order>True|False), "
    r"'shape': \((?P<shape>|\d{1,18},|\d{1,18}(?:, \d{1,18}){1,31}),?\), ?\} *\n?"
)


def bound_to_text(array: NDArray[Any]) -> str:
    """`array` as RLlib's reader takes it."""
    buffer = io.BytesIO()
    np.save(buffer, array, allow_pickle=False)
    return base64.b64encode(zlib.compress(buffer.getvalue())).decode("ascii")


class BoundReader:
    """Reads the bounds of one space; together they may have MAX_BOUND_BYTES. Raises UnsafeData, naming `where`."""

    def __init__(self, where: str) -> None:
        self.where = where
        self._room = MAX_BOUND_BYTES

    def read(self, text: Any) -> NDArray[Any]:
        """The array in `text`, read-only."""
        try:
            raw = self._inflated(base64.b64decode(text, validate=True))
        except (ValueError, TypeError, zlib.error, binascii.Error) as err:
            raise self._unsafe(f"a space bound that is not a plain array: {err}") from err
        return self._array(raw)

    def _inflated(self, packed: bytes) -> bytes:
        inflater = zlib.decompressobj()
        raw = inflater.decompress(packed, self._room + 1)
        self._room -= len(raw)
        if self._room < 0:
            raise self._unsafe(f"space bounds over {MAX_BOUND_BYTES >> 20} MiB")
        return raw

    def _array(self, raw: bytes) -> NDArray[Any]:
        width = {1: 2, 2: 4, 3: 4}.get(raw[6] if len(raw) > 6 else 0)
        if not raw.startswith(MAGIC) or width is None:
            raise self._unsafe("a space bound that is not a .npy file")
        start = 8 + width
        stop = start + int.from_bytes(raw[8:start], "little")
        header = HEADER.fullmatch(raw[start:stop].decode("latin-1"))
        if header is None:
            raise self._unsafe("a space bound that is not a plain array of numbers")
        shape = tuple(int(size) for size in header["shape"].split(",") if size.strip())
        try:
            dtype = np.dtype(header["dtype"])
            if math.prod(shape) * dtype.itemsize != len(raw) - stop:
                raise ValueError(f"{len(raw) - stop} bytes for {dtype}{shape}")
            array: NDArray[Any] = np.frombuffer(raw, dtype, offset=stop)
            return array.reshape(shape, order="F" if header["order"] == "True" else "C")
        except (TypeError, ValueError) as err:
            raise self._unsafe(f"a space bound whose shape and bytes disagree: {err}") from err

    def _unsafe(self, what: str) -> UnsafeData:
        return UnsafeData(what, where=self.where, fix="write the file again from its source")

"""The text of a packed cell to the pickle in it: base64, then one lz4 frame; refuses frames that unfold beyond reason.

What a frame says of its size is checked against what lz4 can reach from its bytes before any memory is taken, and a frame
that says nothing is decompressed up to the same limit.
"""

from __future__ import annotations

import base64
import binascii
from typing import Any, Final

import lz4.frame

from offline_cli.errors import BadEpisode, UnsafeData

__all__ = ["FIX", "FRAME_MAGIC", "MAX_RATIO", "SMALL_BYTES", "decompress", "looks_packed"]

MAX_BYTES: Final = 1 << 30  # of one unpacked value; RLlib's largest are columns of images of a few hundred steps
MAX_RATIO: Final = 256  # lz4 reaches at most 255 bytes from one
SMALL_BYTES: Final = 24 << 20  # what a frame may unfold to however small it is
USUAL_RATIO: Final = 24  # of larger ones: that of images that hardly change
FRAME_MAGIC: Final = b"\x04\x22\x4d\x18"
PICKLE_MAGIC: Final = b"\x80"  # of protocol 2 and later
FIX: Final = "write the file again from its source, or set the row aside with --on-error"


def looks_packed(value: Any) -> bool:
    """Whether `value` is a text that RLlib would unpack: base64 of an lz4 frame, or such a frame itself."""
    return isinstance(value, (str, bytes)) and value[:4] in ("BCJN", b"BCJN", FRAME_MAGIC)


def decompress(text: str | bytes, *, where: str) -> bytes:
    """The pickle's bytes behind `text`: base64 of an lz4 frame; a bare frame, or base64 of a bare pickle, is taken too.

    Raises BadEpisode for text that is cut or invalid, UnsafeData for frames that unfold beyond reason.
    """
    raw = text if isinstance(text, bytes) and text[:4] == FRAME_MAGIC else _from_base64(text, where)
    if raw[:1] == PICKLE_MAGIC:
        return raw
    if raw[:4] != FRAME_MAGIC:
        raise BadEpisode("a packed cell that holds no lz4 frame", where=where, fix=FIX)
    return _from_frame(raw, where)


def _from_base64(text: str | bytes, where: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as err:
        raise BadEpisode(f"a packed cell that is not base64: {err}", where=where, fix=FIX) from err


def _from_frame(raw: bytes, where: str) -> bytes:
    limit = min(MAX_BYTES, MAX_RATIO * len(raw), max(SMALL_BYTES, USUAL_RATIO * len(raw)))
    try:
        declared = int(lz4.frame.get_frame_info(raw)["content_size"])
        if declared > limit:
            raise _bomb(f"declares {declared} bytes in a frame of {len(raw)}", where)
        data, used = lz4.frame.decompress(raw, return_bytes_read=True) if declared else _streamed(raw, limit, where)
    except (RuntimeError, ValueError, MemoryError) as err:
        raise BadEpisode(f"a packed cell with a broken lz4 frame: {err}", where=where, fix=FIX) from err
    if used != len(raw):
        raise BadEpisode("a packed cell with bytes after its lz4 frame", where=where, fix=FIX)
    return bytes(data)


def _streamed(raw: bytes, limit: int, where: str) -> tuple[bytes, int]:
    """The content of a frame that does not say its size, and the bytes read."""
    decompressor = lz4.frame.LZ4FrameDecompressor()
    data: bytes = decompressor.decompress(raw, max_length=limit)
    if not decompressor.eof:
        if len(data) >= limit:
            raise _bomb(f"unfolds to more than {limit} bytes", where)
        raise BadEpisode("a packed cell that was cut", where=where, fix=FIX)
    return data, len(raw) - len(decompressor.unused_data or b"")


def _bomb(what: str, where: str) -> UnsafeData:
    return UnsafeData(f"a packed cell that {what}", where=where, fix=FIX)

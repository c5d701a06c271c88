"""Extension types that packages register with Arrow (Ray its tensors) and that break at a file's word; refuses such a file.

Arrow gives a registered type the metadata that a file's columns carry, as soon as the schema is read, and lets through whatever
the type makes of them: a TypeError of Ray's, for one. To the reader that is a broken file, as any other is.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import pyarrow as pa

__all__ = ["extension_failures"]

MAKER: Final = "__arrow_ext_deserialize__"  # what Arrow calls to make a type of metadata


@contextmanager
def extension_failures() -> Iterator[None]:
    """Within it, what a registered type raises of the metadata in a file becomes pa.ArrowInvalid."""
    try:
        yield
    except Exception as error:
        if not _is_of_a_type(error):
            raise
        raise pa.ArrowInvalid(f"the metadata of a column's type: {type(error).__name__}: {error}") from error


def _is_of_a_type(error: Exception) -> bool:
    frame = error.__traceback__
    while frame is not None:
        if frame.tb_frame.f_code.co_name == MAKER:
            return True
        frame = frame.tb_next
    return False

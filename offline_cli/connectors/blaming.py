"""Exceptions of connector pieces as errors that name the piece; refuses to hide an exception that no piece raised.

Pipelines note on every exception which piece it came from, and let it pass as it is, for debuggers. A command is to end with
an error of its own instead: pieces may be anybody's code.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from offline_cli.errors import BadData, OfflineCliError

__all__ = ["NOTE", "blaming_pieces", "piece_of"]

NOTE: Final = "in connector piece "


def piece_of(err: BaseException) -> str | None:
    """The unique name of the piece that raised, those of pipelines around it before it with dots; None: no piece did."""
    notes = [note.removeprefix(NOTE) for note in getattr(err, "__notes__", ()) if note.startswith(NOTE)]
    return ".".join(reversed(notes)) or None


@contextmanager
def blaming_pieces(place: Callable[[], str]) -> Iterator[None]:
    """Raise BadData, naming the piece and `place()`, for what a piece raises inside; our own errors get the place as well.

    What no piece raised passes, and so do a lack of memory and a missing package: they have errors of their own.
    """
    try:
        yield
    except OfflineCliError as err:
        err.where = f"{place()}: {err.where}"
        raise
    except (MemoryError, ImportError):
        raise
    except Exception as err:
        piece = piece_of(err)
        if piece is None:
            raise
        fix = "mend the piece; --debug shows the line that raised"
        raise BadData(f"connector piece {piece} raised {err!r}", where=place(), fix=fix) from err

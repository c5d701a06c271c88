"""What an exception says about its cause, in one line; refuses to make anything up.

An assertion without words says least, and yet its own condition is the best answer to "what did it want".

Exceptions of connector pieces as errors that name the piece; refuses to hide an exception that no piece raised.

Pipelines note on every exception which piece it came from, and let it pass as it is, for debuggers. A command is to end with
an error of its own instead: pieces may be anybody's code.
"""

from __future__ import annotations

import ast
import linecache
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from offline_cli.errors import BadData, OfflineCliError

__all__ = ["NOTE", "blaming_pieces", "piece_of", "what_it_wants"]

MAX_SHOWN = 300  # letters


def what_it_wants(err: BaseException) -> str:
    """`ValueError: words`; for an assertion without words its condition: `AssertionError: len(space.shape) == 1`."""
    name, words = type(err).__name__, " ".join(str(err).split())
    if not words and isinstance(err, AssertionError):
        words = _condition(err)
    return f"{name}: {words}"[:MAX_SHOWN] if words else name


def _condition(err: BaseException) -> str:
    """The condition of the assertion that raised, on one line; empty where its source is not to be had."""
    frames = traceback.extract_tb(err.__traceback__)
    if not frames:
        return ""
    line, source = frames[-1].lineno or 0, "".join(linecache.getlines(frames[-1].filename))
    try:
        nodes = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Assert)]
    except SyntaxError:
        return ""
    around = [node.test for node in nodes if node.lineno <= line <= (node.end_lineno or node.lineno)]
    return ast.unparse(around[-1]) if around else ""


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

"""What an exception says about its cause, in one line; refuses to make anything up.

An assertion without words says least, and yet its own condition is the best answer to "what did it want".
"""

from __future__ import annotations

import ast
import linecache
import traceback

__all__ = ["what_it_wants"]

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

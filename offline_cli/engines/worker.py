"""What a worker process does: it reads a function, then items, writes what the function makes of each, and ends with its input.

Messages are pickles of its parent's, through pipes that nobody else holds. So it also ends when the parent is killed.
"""

from __future__ import annotations

import os
import pickle
import sys
from typing import Any, BinaryIO

__all__ = ["main"]


def main() -> None:
    """Answer on standard output, which nothing else may print to from here on."""
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    try:
        _answer(sys.stdin.buffer, answers)
    except (EOFError, BrokenPipeError):  # the parent has all it wants, or is gone
        os._exit(0)  # at once: there is nothing to flush, and nobody to tell


def _answer(questions: BinaryIO, answers: BinaryIO) -> None:
    function = pickle.load(questions)  # noqa: S301  the parent's own, as all that follows
    outcome: tuple[bool, Any] = True, None
    while True:
        pickle.dump(outcome, answers, protocol=pickle.HIGHEST_PROTOCOL)
        answers.flush()
        outcome = _outcome(function, pickle.load(questions))  # noqa: S301


def _outcome(function: Any, item: Any) -> tuple[bool, Any]:
    try:
        return True, function(item)
    except Exception as error:  # noqa: BLE001  raised again by the parent
        return False, error

"""Which code of the user's a playing thread waits for, and how the wait is ended.

Whoever calls such code says so in the thread's `Waiting`, by plain attributes, because it is done at every step; no clock is
read here. `engines/overseer.py` looks at them from time to time, and may have `Overdue` raised out of that code.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

__all__ = ["CLOSING", "WORKERS", "Ending", "Mirrored", "Overdue", "Waiting", "current", "use"]

CLOSING: Final = "close"
WORKERS: Final = "workers"  # our own wait for processes that play, which has limits of its own
_OWN: Final = threading.local()


class Ending:
    """How a process ends that has left code of a user's behind."""

    is_ours = False  # whether it is a command's, or a worker's, and may end at any place; else a program's that calls us
    has_left = False  # whether it has: such code may keep the interpreter from ending, too
    tell: Callable[[Exception], int] | None = None  # shows a user the last error, and gives the exit code; None: a plain one


class Overdue(KeyboardInterrupt):
    """Raised in the thread that plays, out of code that it waits for no longer."""

    def __init__(self, exit_code: int | None = None) -> None:
        """`exit_code`: of the signal that asked for it; None: no signal, a step took longer than it may."""
        super().__init__()
        self.exit_code = exit_code or 130
        self.timed_out = exit_code is None


class Waiting:
    """What one thread is in. `words` says it for people."""

    __slots__ = ("at_once", "calls", "doing", "entered", "hurried", "overseen", "slot", "words")

    def __init__(self) -> None:
        self.doing = ""  # "reset", "step", ...; "": no code of a user's
        self.calls = 0  # into that code, so that one call can be distinguished from the next
        self.entered = 0  # how often `doing` began
        self.slot: int | None = None  # the copy that is called, where it is one of several
        self.hurried = False  # whether what ends is to end soon: a stop was asked for, or something was overdue
        self.at_once = False  # whether nothing is to be waited for any more
        self.overseen = False  # whether an overseer looks at this already
        self.words: Callable[[], str] | None = None

    def enter(self, doing: str) -> None:
        """From now on it is in this; `leave` ends it."""
        self.calls += 1
        self.entered += 1
        self.doing = doing

    def leave(self) -> None:
        """It is back in our own code."""
        self.doing = ""
        self.slot = None

    @contextmanager
    def within(self, doing: str, words: str) -> Iterator[None]:
        """It is in this until the block ends; for what is not done at every step."""
        with self.words_kept():
            self.words = lambda: words
            self.enter(doing)
            try:
                yield
            finally:
                self.leave()

    @contextmanager
    def words_kept(self) -> Iterator[None]:
        """What is registered within it as waited for is unregistered at the end."""
        before = self.words
        try:
            yield
        finally:
            self.words = before

    @property
    def is_elsewhere(self) -> bool:
        """Whether it is in code of a user's, in this process."""
        return self.doing not in ("", WORKERS)

    def told(self) -> str:
        """As text, as far as is known; called from other threads."""
        words = self.words
        return words() if words is not None else "code that is not ours"


class Mirrored(Waiting):
    """One whose slot is visible to another process at once, also while this one's interpreter is held."""

    __slots__ = ("_mirror", "_slot")

    def __init__(self, mirror: Callable[[int | None], None]) -> None:
        self._mirror = mirror
        super().__init__()

    @property
    def slot(self) -> int | None:
        """See Waiting."""
        return self._slot

    @slot.setter
    def slot(self, value: int | None) -> None:
        self._slot = value
        self._mirror(value)


def current() -> Waiting:
    """That of the thread that asks."""
    found: Waiting | None = getattr(_OWN, "waiting", None)
    if found is None:
        found = _OWN.waiting = Waiting()
    return found


def use(waiting: Waiting) -> None:
    """This thread's is `waiting` from now on; before anything takes hold of the one it had."""
    _OWN.waiting = waiting

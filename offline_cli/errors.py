"""The error classes that users see; bugs of this program stay ordinary exceptions.

An error says what happened, where, and what to try. Its class sets the exit code and, in kebab case, the `code` under `--json`.
`fix` spells options as on the command line, in Python too.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar, Final, Self

PROBLEM: Final = "problem"
"""Key in an error's details: the problem code that `validate` reports (docs/reference/checks.md)."""


ITEM: Final = "  - "  # prefix of each listed mistake
MAX_LETTERS: Final = 2000  # characters of a place or a mistake
MAX_PROBLEMS: Final = 50  # mistakes listed in one error


def short_place(place: str) -> str:
    """`place` truncated for a message: ids may have any length."""
    return place if len(place) <= MAX_LETTERS else f"{place[:MAX_LETTERS]}..."


class OfflineCliError(Exception):
    """Base of all errors for users: what happened, where, and what to try."""

    exit_code: ClassVar[int] = 1
    code: ClassVar[str] = "offline-cli-error"

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        cls.code = re.sub(r"(?<!^)(?=[A-Z])", "-", cls.__name__).lower()

    def __init__(
        self,
        what: str,
        *,
        where: str,
        fix: str,
        details: Mapping[str, Any] | None = None,
        result: Mapping[str, Any] | None = None,
    ) -> None:
        """`details`: more facts, by name. `result`: the command's result in spite of the error; `--json` reports it too."""
        super().__init__(what)
        self.what = what
        self.where = short_place(where)
        self.fix = fix
        self.details = dict(details or {})
        self.result = dict(result or {})

    @classmethod
    def of(cls, problems: Sequence[str], *, where: str, fix: str) -> Self:
        """One error that lists all `problems`."""
        listed = [*map(short_place, problems[:MAX_PROBLEMS])]
        if len(problems) > MAX_PROBLEMS:
            listed.append(f"... and {len(problems) - MAX_PROBLEMS} more")
        what = listed[0] if len(listed) == 1 else "\n".join((f"{len(problems)} mistakes:", *(f"{ITEM}{one}" for one in listed)))
        return cls(what, where=where, fix=fix, details={"problems": listed})

    @property
    def what_lines(self) -> tuple[str, ...]:
        """`what` as lines, one for each listed mistake; a line break inside a mistake stays part of its text."""
        mistakes = [f"{ITEM}{one}" for one in self.details.get("problems", ()) if isinstance(one, str)]
        listed = "".join(f"\n{line}" for line in mistakes)
        return (self.what.removesuffix(listed), *mistakes) if listed and self.what.endswith(listed) else (self.what,)

    @property
    def what_in_one_line(self) -> str:
        """`what` in one line, its listed mistakes separated by semicolons."""
        head, *mistakes = self.what_lines
        return " ".join((head, "; ".join(line.removeprefix(ITEM) for line in mistakes))) if mistakes else head

    def __str__(self) -> str:
        return f"{self.what}\n  at:  {self.where}\n  try: {self.fix}"

    def __reduce__(self) -> tuple[Any, ...]:  # Exception's own pickling drops keyword-only arguments
        return partial(type(self), self.what, where=self.where, fix=self.fix, details=self.details, result=self.result), ()

    def as_dict(self) -> dict[str, Any]:
        """The `error` object of `--json`: code, what, where, fix, then details by name."""
        return {"code": self.code, "what": self.what, "where": self.where, "fix": self.fix, **self.details}


class UsageError(OfflineCliError):
    """Invalid or contradictory options."""

    exit_code = 2


class OutputExists(UsageError):
    """The output already exists, and `--overwrite` was not given."""


class BadData(OfflineCliError):
    """Data that does not follow its format."""

    exit_code = 3


class BadEpisode(BadData):
    """A cell or array of an episode without a usable value, or arrays that disagree in length, shape or dtype."""


class EpisodeIndexError(BadEpisode, IndexError):
    """A timestep outside the episode; also an IndexError, which callers of RLlib's getters catch."""


class EpisodeKeyError(BadEpisode, KeyError):
    """An extra model output that the episode lacks; also a KeyError, which callers of RLlib's getters catch."""


class UnsafeData(BadData):
    """Bytes that would build objects, or claim absurdly much memory."""


class InvalidData(BadData):
    """Readable data with problems, all listed in `result["problems"]`."""


class NoData(BadData):
    """An existing location without data in a known format."""


class Uncommitted(BadData):
    """A dataset folder whose writer has not finished."""


class BadConfig(OfflineCliError):
    """A config, mapping or pipeline with mistakes, all listed in `problems`."""

    exit_code = 4


class BadMapping(BadConfig):
    """A mapping that is incomplete or does not fit the table's columns."""


class SpaceMismatch(BadConfig):
    """Incompatible spaces of data, policy or environment."""


class UnknownPiece(BadConfig, ValueError):
    """No connector piece of that name; also a ValueError, which callers of RLlib's pipelines catch."""


class BadPiece(BadConfig, TypeError):
    """A connector piece, or a builder of pieces, with an invalid argument or return value."""


class UnsupportedSpace(BadConfig):
    """A gymnasium space whose values episodes cannot store."""


class UnknownEnvironment(BadConfig):
    """An environment id that gymnasium does not know."""


class StorageError(OfflineCliError):
    """Storage that is denied, unreachable or full."""

    exit_code = 5


class StorageNotFound(StorageError):
    """A path or bucket that does not exist."""


class ClusterLost(OfflineCliError):
    """Lost or unresponsive workers, or their cluster."""

    exit_code = 5


class WorkerDied(ClusterLost):
    """A local worker process that died, often for lack of memory."""

    exit_code = 3


class Locked(StorageError):
    """A dataset that another process is writing."""


class TakenOver(StorageError):
    """A dataset that another writer has taken over."""


class MissingPackage(OfflineCliError):
    """A package that is not installed, or cannot be imported."""

    exit_code = 6


class MissingDevice(OfflineCliError):
    """A device that this machine does not have."""

    exit_code = 6


class MemoryLimitExceeded(OfflineCliError):
    """Data that needs more memory than `--memory-limit` allows."""

    exit_code = 6


class TargetNotMet(OfflineCliError):
    """A missed target or gate."""

    exit_code = 7


class TrainingDiverged(OfflineCliError):
    """A training run whose loss or weights are no longer finite."""

    exit_code = 7


class Interrupted(OfflineCliError):
    """Stopped by a signal; `details["exit_code"]` is 130 (SIGINT) or 143 (SIGTERM, SIGHUP)."""

    exit_code = 130


def as_convert_would(fix: str) -> str:
    """Reword a reader's hint for a command without the option `--on-error`."""
    return re.sub(r"(?<!convert with )(?<!convert )--on-error", "convert --on-error", fix)


def causes(error: BaseException) -> Iterator[BaseException]:
    """`error` and its chain of causes."""
    seen: list[BaseException] = []
    cause: BaseException | None = error
    while cause is not None and cause not in seen:
        yield cause
        seen.append(cause)
        cause = cause.__cause__ or cause.__context__

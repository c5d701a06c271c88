"""Every error a user can cause or see, as one tree; our own bugs stay ordinary exceptions.

An error says what happened, where, and what to try. Its class decides the exit code (README, "Exit codes") and, in
kebab case, the `code` that programs read under `--json`. `fix` names options as the command line spells them, in Python too.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar, Final, Self

PROBLEM: Final = "problem"
"""Among the details of an error: the code by which `validate` reports it (docs/validate.md)."""


ITEM: Final = "  - "  # before each mistake of a list
MAX_LETTERS: Final = 2000  # of a place, or of one mistake
MAX_PROBLEMS: Final = 50  # that one error lists


def short_place(place: str) -> str:
    """`place` for a message, shortened: ids may have any length."""
    return place if len(place) <= MAX_LETTERS else f"{place[:MAX_LETTERS]}..."


class OfflineCliError(Exception):
    """Base of all errors a user can cause or see: what happened, where, and what to try."""

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
        """`details`: more about the error, by name. `result`: what a command found all the same; `--json` reports it too."""
        super().__init__(what)
        self.what = what
        self.where = short_place(where)
        self.fix = fix
        self.details = dict(details or {})
        self.result = dict(result or {})

    @classmethod
    def of(cls, problems: Sequence[str], *, where: str, fix: str) -> Self:
        """One error for all `problems`, so that one run shows every mistake."""
        listed = [*map(short_place, problems[:MAX_PROBLEMS])]
        if len(problems) > MAX_PROBLEMS:
            listed.append(f"... and {len(problems) - MAX_PROBLEMS} more")
        what = listed[0] if len(listed) == 1 else "\n".join((f"{len(problems)} mistakes:", *(f"{ITEM}{one}" for one in listed)))
        return cls(what, where=where, fix=fix, details={"problems": listed})

    @property
    def what_lines(self) -> tuple[str, ...]:
        """`what`, with each of the mistakes that it lists in a line of its own; a line break within one is part of its text."""
        mistakes = [f"{ITEM}{one}" for one in self.details.get("problems", ()) if isinstance(one, str)]
        listed = "".join(f"\n{line}" for line in mistakes)
        return (self.what.removesuffix(listed), *mistakes) if listed and self.what.endswith(listed) else (self.what,)

    @property
    def what_in_one_line(self) -> str:
        """`what`, for a sentence that continues: mistakes that it lists are set apart by semicolons."""
        head, *mistakes = self.what_lines
        return " ".join((head, "; ".join(line.removeprefix(ITEM) for line in mistakes))) if mistakes else head

    def __str__(self) -> str:
        return f"{self.what}\n  at:  {self.where}\n  try: {self.fix}"

    def __reduce__(self) -> tuple[Any, ...]:  # keyword-only arguments would not survive a trip between processes
        return partial(type(self), self.what, where=self.where, fix=self.fix, details=self.details, result=self.result), ()

    def as_dict(self) -> dict[str, Any]:
        """The `error` object of `--json`: code, what, where, fix, then details by name."""
        return {"code": self.code, "what": self.what, "where": self.where, "fix": self.fix, **self.details}


class UsageError(OfflineCliError):
    """The command line asks for something that makes no sense."""

    exit_code = 2


class OutputExists(UsageError):
    """The output is already there, and nothing existing is touched unasked."""


class BadData(OfflineCliError):
    """Data that cannot be read as what it claims to be."""

    exit_code = 3


class BadEpisode(BadData):
    """Arrays of one episode disagree in length, shape or dtype."""


class EpisodeIndexError(BadEpisode, IndexError):
    """A timestep that an episode does not hold; an IndexError too, because callers of RLlib's getters catch that."""


class EpisodeKeyError(BadEpisode, KeyError):
    """An extra model output that an episode does not hold; a KeyError too, because callers of RLlib's getters catch that."""


class UnsafeData(BadData):
    """Bytes that would build objects, or need far more memory than they have a right to."""


class InvalidData(BadData):
    """Data that can be read and has problems, all of them listed in `result["problems"]`."""


class NoData(BadData):
    """A place that exists but holds nothing that any reader knows."""


class Uncommitted(BadData):
    """A dataset folder whose writer has not finished."""


class BadConfig(OfflineCliError):
    """A config, mapping or pipeline with mistakes, all of them listed in `problems`."""

    exit_code = 4


class BadMapping(BadConfig):
    """A mapping that does not say what the columns of a table mean, or does not fit them."""


class Diverged(BadConfig):
    """Training whose loss or weights are not finite any more."""


class TrainingDiverged(Diverged):
    """The same of another algorithm than `bc`, as a run that did not get where it should; `bc` keeps its exit code."""

    exit_code = 7


class SpaceMismatch(BadConfig):
    """Spaces of data, policy and environment that do not fit each other."""


class UnknownPiece(BadConfig, ValueError):
    """A name that no connector piece has; a ValueError too, because callers of RLlib's pipelines catch that."""


class BadPiece(BadConfig, TypeError):
    """A connector piece, or a builder of pieces, that gives or is given something it should not."""


class UnsupportedSpace(BadConfig):
    """A gymnasium space that episodes cannot be stored in."""


class UnknownEnvironment(BadConfig):
    """An environment id that gymnasium does not know."""


class StorageError(OfflineCliError):
    """Storage that is denied, unreachable or full."""

    exit_code = 5


class StorageNotFound(StorageError):
    """A path or bucket that does not exist."""


class ClusterLost(OfflineCliError):
    """Workers, or the cluster that they belong to, that are lost or do not answer."""

    exit_code = 5


class Locked(StorageError):
    """A dataset that another process is writing."""


class TakenOver(StorageError):
    """A dataset that another writer has taken over, because this writer sent no beat for too long."""


class MissingPackage(OfflineCliError):
    """A package that an extra would install."""

    exit_code = 6


class MissingDevice(OfflineCliError):
    """A device that this machine does not have."""

    exit_code = 6


class MemoryLimitExceeded(OfflineCliError):
    """Data that take more memory than `--memory-limit` allows."""

    exit_code = 6


class TargetNotMet(OfflineCliError):
    """A target or gate that was not reached."""

    exit_code = 7


class Interrupted(OfflineCliError):
    """Stopped by a signal; `details["exit_code"]` is 130 (SIGINT) or 143 (SIGTERM, SIGHUP)."""

    exit_code = 130


def as_convert_would(fix: str) -> str:
    """A reader's hint, for a command that has no option `--on-error` itself."""
    return re.sub(r"(?<!convert with )--on-error", "convert with --on-error", fix)


def causes(error: BaseException) -> Iterator[BaseException]:
    """`error`, what caused it, and so on."""
    found: list[BaseException] = []
    one: BaseException | None = error
    while one is not None and one not in found:
        yield one
        found.append(one)
        one = one.__cause__ or one.__context__

"""What one call of the command line was given; refuses to repeat secrets.

The flags that decide how a failure is shown are read from the arguments themselves, because a failure may come before
they could be parsed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

__all__ = ["Invocation"]

_PROGRAM = "offline-cli"
_SECRET_OPTION = "--storage-option"  # noqa: S105  the option's name, no secret
_URL_PASSWORD = re.compile(r"://[^/@:\s]*:[^/@\s]*@")


@dataclass(frozen=True, slots=True)
class Invocation:
    """The arguments after the program's name."""

    args: tuple[str, ...]

    @property
    def as_json(self) -> bool:
        """Whether the outcome, a failure too, is one JSON object on stdout."""
        return "--json" in self._options()

    @property
    def debug(self) -> bool:
        """Whether a failure shows its traceback."""
        return "--debug" in self._options()

    @property
    def command(self) -> str:
        """`offline-cli COMMAND`, for messages."""
        first = self.args[0] if self.args and not self.args[0].startswith("-") else ""
        return f"{_PROGRAM} {first}".rstrip()

    def recorded(self) -> tuple[str, ...]:
        """The whole command line for a dataset's provenance, with storage options and passwords in URLs blanked out."""
        return (_PROGRAM, *(_URL_PASSWORD.sub("://***@", arg) for arg in _without_secrets(self.args)))

    def _options(self) -> Sequence[str]:
        return self.args[: self.args.index("--")] if "--" in self.args else self.args


def _without_secrets(args: Sequence[str]) -> Iterator[str]:
    secret_follows = False
    for arg in args:
        if secret_follows:
            yield _blanked(arg)
        elif arg.startswith(_SECRET_OPTION + "="):
            yield f"{_SECRET_OPTION}={_blanked(arg[len(_SECRET_OPTION) + 1 :])}"
        else:
            yield arg
        secret_follows = arg == _SECRET_OPTION


def _blanked(pair: str) -> str:
    return pair.partition("=")[0] + "=***"

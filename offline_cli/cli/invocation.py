"""The arguments of one call of the command line, repeated without secrets.

The flags that decide how a failure is shown are read from the arguments themselves, because a failure may come before
they could be parsed.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from offline_cli.errors import UsageError
from offline_cli.storage.blanking import BLANK, blanked, blanked_args, secrets_among

__all__ = ["Invocation"]

_PROGRAM = "offline-cli"
_MEMORY = "memory://"


@dataclass(frozen=True, slots=True)
class Invocation:
    """The arguments after the program's name."""

    args: tuple[str, ...]
    began: float = field(default_factory=time.time, compare=False)  # by the clock that files' times come from

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

    def value_of(self, *names: str) -> str | None:
        """The value of an option that has these names; None where it is not given."""
        options = self._options()
        for arg, following in zip(options, [*options[1:], None], strict=True):
            name, is_joined, value = arg.partition("=")
            if name in names:
                return value if is_joined else following
        return None

    def recorded(self) -> tuple[str, ...]:
        """The whole command line for a dataset's provenance, with storage options and passwords blanked out."""
        return (_PROGRAM, *blanked_args(self.args))

    def without_secrets(self, text: str) -> str:
        """`text`, such as that of an error, without the secrets among the arguments, or in URLs."""
        for secret in secrets_among(self.args):
            text = text.replace(secret, BLANK)
        return blanked(text)

    def refuse_memory(self) -> None:
        """Raise UsageError where an argument names a place in the memory of a process: of this one, which is about to end."""
        for arg in self.args:
            if arg.startswith(_MEMORY) or f"={_MEMORY}" in arg or f"::{_MEMORY}" in arg:
                what = "memory:// exists only within one process: no other program can write or read it"
                raise UsageError(
                    what, where=arg, fix="a local folder or a bucket; memory:// is for programs that import offline_cli"
                )

    def _options(self) -> Sequence[str]:
        return self.args[: self.args.index("--")] if "--" in self.args else self.args

"""The arguments of one call of the command line, repeated without secrets.

The flags that decide how a failure is shown are read from the arguments themselves, because a failure may come before
they could be parsed.
"""

from __future__ import annotations

from dataclasses import dataclass

from offline_cli.errors import UsageError
from offline_cli.storage.blanking import BLANK, blanked, blanked_args, secrets_among

__all__ = ["Invocation"]

_PROGRAM = "offline-cli"
_MEMORY = "memory://"


@dataclass(frozen=True, slots=True)
class Invocation:
    """The arguments after the program's name."""

    args: tuple[str, ...]

    def has(self, option: str) -> bool:
        """Whether `option` is among them, before a `--`."""
        return option in (self.args[: self.args.index("--")] if "--" in self.args else self.args)

    @property
    def as_json(self) -> bool:
        """Whether the outcome, a failure too, is one JSON object on stdout."""
        return self.has("--json")

    @property
    def command(self) -> str:
        """`offline-cli COMMAND`, for messages."""
        first = self.args[0] if self.args and not self.args[0].startswith("-") else ""
        return f"{_PROGRAM} {first}".rstrip()

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
                raise UsageError(what, where=arg, fix="a local folder or a bucket; memory:// is for programs in Python")

"""The arguments of one command line, and their form without secrets.

Flags that affect the display of a failure are read from the raw arguments, because parsing may fail.
"""

from __future__ import annotations

from dataclasses import dataclass

from offline_cli.storage.blanking import BLANK, blanked, blanked_args, secrets_among

__all__ = ["Invocation"]

_PROGRAM = "offline-cli"


@dataclass(frozen=True, slots=True)
class Invocation:
    """The arguments after the program's name."""

    args: tuple[str, ...]

    def has(self, option: str) -> bool:
        """Whether `option` is among the arguments before `--`."""
        return option in (self.args[: self.args.index("--")] if "--" in self.args else self.args)

    @property
    def as_json(self) -> bool:
        """Whether the result or failure is one JSON object on stdout."""
        return self.has("--json")

    @property
    def command(self) -> str:
        """`offline-cli COMMAND`, for messages."""
        first = self.args[0] if self.args and not self.args[0].startswith("-") else ""
        return f"{_PROGRAM} {first}".rstrip()

    def recorded(self) -> tuple[str, ...]:
        """The command line for provenance, with storage options and passwords blanked out."""
        return (_PROGRAM, *blanked_args(self.args))

    def without_secrets(self, text: str) -> str:
        """`text` with secrets of the arguments and in URLs blanked out."""
        for secret in secrets_among(self.args):
            text = text.replace(secret, BLANK)
        return blanked(text)

"""What `--from` and `--to` take: `convert --list-formats`. Imports no plug-in: what is not imported shows its name alone."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Final

from offline_cli.converting import sinks
from offline_cli.formats import readers
from offline_cli.plugins import READERS, SINKS, plugins

__all__ = ["Format", "FormatList", "known_formats"]

PACKAGE: Final = "offline-cli"


@dataclass(frozen=True, slots=True)
class Format:
    """One name."""

    name: str
    words: str  # empty of a plug-in
    package: str  # the distribution that has it


@dataclass(frozen=True, slots=True)
class FormatList:
    """All names, ours first."""

    readers: tuple[Format, ...]
    sinks: tuple[Format, ...]

    def as_dict(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self)


def known_formats() -> FormatList:
    """Those of this package, and of all that are installed."""
    ours = [Format(one.name, one.words, PACKAGE) for one in readers.OURS.values()]
    written = [Format(one.name, one.words, PACKAGE) for one in sinks.OURS.values()]
    return FormatList(
        (*ours, *(Format(one.name, "", one.package) for one in plugins(READERS))),
        (*written, *(Format(one.name, "", one.package) for one in plugins(SINKS))),
    )

"""What every source that is a list of files has in common; refuses to know what is in them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from offline_cli.formats.source import BYTES, UNKNOWN_SCALE, Places
from offline_cli.scopes import Scope
from offline_cli.spaces import Space
from offline_cli.storage.trust import Trust

__all__ = ["FileSource", "Openable"]

ASKED: Final = 64  # files elsewhere whose size is asked for, one request each


class Openable(Protocol):
    """What is needed of a storage location."""

    @property
    def url(self) -> str:
        """Path or URL, for messages."""

    @property
    def is_local(self) -> bool:
        """Whether asking for the size costs nothing."""

    def size(self) -> int:
        """Bytes, as they are stored."""

    def open(self) -> Any:
        """The bytes, as a seekable file that is a context manager."""


@dataclass(slots=True)
class FileSource:
    """Files in the order given, as a `Source` lacks only its `fragments`."""

    files: Sequence[Any]  # Location or any Openable
    location: str
    format: str = ""
    observation_space: Space | None = None
    action_space: Space | None = None
    action_scale: str = UNKNOWN_SCALE
    environment_id: str | None = None
    trusted: Mapping[str, Trust] = field(default_factory=dict)  # by path: what a manifest says of files, if one does
    unit: str = field(default=BYTES, init=False)
    done: int = field(default=0, init=False)
    places: Places | None = field(default=None, init=False)
    scope: Scope = field(default_factory=Scope, init=False, repr=False, compare=False)  # owns what its readings hold open

    def close(self) -> None:
        """See `Source`."""
        self.scope.close()

    @property
    def size(self) -> int | None:
        """Bytes of all files; None where it would take many requests to find out."""
        if len(self.files) > ASKED and not self.files[0].is_local:
            return None
        total: int = sum(file.size() for file in self.files)
        return total

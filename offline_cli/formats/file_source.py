"""What all sources that are lists of files have in common."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import InitVar, dataclass, field, replace
from typing import Any, ClassVar, Final, Protocol, Self

from offline_cli.formats.source import BYTES, ReadOptions, SourceInfo
from offline_cli.progress import no_progress
from offline_cli.scopes import Scope
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

    format: ClassVar[str]

    files: Sequence[Any]  # Location or any Openable
    location: InitVar[str]
    declared: InitVar[SourceInfo | None] = None  # None: nothing is known but format and location
    trusted: Mapping[str, Trust] = field(default_factory=dict)  # by path: what a manifest says of files, if one does
    info: SourceInfo = field(init=False)
    read_options: ReadOptions = field(default=ReadOptions(), init=False)
    unit: str = field(default=BYTES, init=False)
    done: int = field(default=0, init=False)
    scope: Scope = field(default_factory=Scope, init=False, repr=False, compare=False)  # owns what its readings hold open

    def __post_init__(self, location: str, declared: SourceInfo | None) -> None:
        self.info = declared or SourceInfo(format=self.format, location=location)

    def prepare(self, options: ReadOptions) -> None:
        """See `Source`."""
        self.read_options = options

    def partitions(self, count: int) -> Sequence[Self]:
        """See `Source`."""
        return [self]

    def over(self, files: Sequence[Any]) -> Self:
        """The same source with other files, which can be pickled."""
        other = type(self)(files, self.info.location, self.info, self.trusted)
        other.read_options = replace(self.read_options, on_progress=no_progress)
        return other

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

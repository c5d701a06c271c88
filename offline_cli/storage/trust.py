"""What a manifest says of a shard's bytes, and whether it is true; refuses a shard that is not the one that was written.

Two shards of the same size that changed places, or a shard that another writing put there, look whole in every other way.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import BinaryIO, Final

from offline_cli.errors import PROBLEM, BadData
from offline_cli.storage.hashing import Hashing, fingerprint
from offline_cli.storage.locations import Location
from offline_cli.storage.parquet_bombs import MEMORY_LIMIT

__all__ = ["OTHER_SHARD", "Trust"]

OTHER_SHARD: Final = "shard-hash"  # the code of the problem
FIX: Final = (
    "offline-cli validate, which names every shard that differs; then restore them from a copy, or make a dataset "
    "of the others with offline-cli repair --drop-broken"
)


class Trust:
    """What a manifest says of one shard: where it is true, the shard is the writer's own, however little it is packed to."""

    def __init__(self, sha256: str, memory_limit: int = MEMORY_LIMIT, *, found: str | None = None) -> None:
        """`sha256`: hex. `memory_limit`: bytes that reading a row group may take all the same: a manifest can be hostile too.

        `found`: the sha256 that the shard has, if that is known.
        """
        self.sha256 = sha256
        self.memory_limit = memory_limit
        self._is_true = None if found is None else found == sha256
        self._beside: Hashing | None = None

    @property
    def is_known(self) -> bool:
        """Whether it has been compared."""
        return self._is_true is not None

    def beside(self, stream: BinaryIO, location: Location) -> AbstractContextManager[object]:
        """A context manager within which the shard, opened as `stream`, is hashed while it is read."""
        if self._is_true is not None:
            return nullcontext()
        self._beside = Hashing(stream, location)
        return self._beside

    def is_true_of(self, location: Location) -> bool:
        """Whether the shard there is the one that is trusted; its bytes are read the first time alone. Raises StorageError."""
        if self._is_true is None:
            hashing = self._beside
            digest = hashing.digest() if hashing is not None and hashing.is_begun else fingerprint(location)[1]
            self._is_true = digest == self.sha256
        return self._is_true

    def check(self, location: Location) -> None:
        """Raise BadData unless the shard there, which has been read to its end, is the one that is trusted; StorageError."""
        if self._is_true is None and self._beside is not None:
            self._is_true = self._beside.digest() == self.sha256
        if not self.is_true_of(location):
            what = "the shard has other content than its manifest says: its sha256 is another one"
            raise BadData(what, where=location.url, fix=FIX, details={PROBLEM: OTHER_SHARD})

"""Remote shards in their order, opened before their turn; what is wrong with one is reported when its turn comes.

While a shard is read, the footers of the next ones are fetched, and then the row groups that will be read of them: one `Ahead`
bounds the bytes fetched of all.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from types import TracebackType
from typing import BinaryIO, Final, Self

from offline_cli.errors import OfflineCliError
from offline_cli.files.locations import Location
from offline_cli.files.prefetch import Ahead
from offline_cli.files.remote_files import fetch_end
from offline_cli.parquet.shards import OpenShard, expect_row_groups, opened_stream, parsed

__all__ = ["ShardsAhead"]

SHARDS: Final = 8  # opened before their turn

ColumnsOf = Callable[[OpenShard], "Sequence[str] | None"]


class ShardsAhead:
    """Shards to be read one after the other; a context manager, at whose end nothing more is fetched."""

    def __init__(self, places: Sequence[tuple[Location, int]], columns_of: ColumnsOf) -> None:
        """`places`: each shard, and the bytes that it must have. `columns_of`: the columns of an opened one that are read."""
        self._places = deque(places)
        self._columns_of = columns_of
        self._ahead = Ahead()
        self._coming: deque[_Coming] = deque()

    def turn(self) -> AbstractContextManager[OpenShard]:
        """The next shard. Entering it raises what `opened` raises."""
        return self._coming.popleft() if self._coming else _Coming(*self._places.popleft(), self._ahead)

    def advance(self) -> None:
        """Advance those whose turn has not come; to be called now and then. Does not block."""
        while self._places and len(self._coming) < SHARDS:
            self._coming.append(_Coming(*self._places.popleft(), self._ahead))
        for shard in self._coming:
            if not shard.advance(self._columns_of):
                return  # in their order: what is prefetched is wanted first to last

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for shard in self._coming:
            shard.give_up()


class _Coming:
    """A remote shard that is being opened, in a thread that does not keep the process alive."""

    def __init__(self, place: Location, size: int, ahead: Ahead) -> None:
        self._place, self._size, self._ahead = place, size, ahead
        self._lock = threading.Lock()
        self._is_here = threading.Event()
        self._given_up = False
        self._stream: BinaryIO | None = None
        self._error: Exception | None = None
        self._file: OpenShard | None = None
        threading.Thread(target=self._open, name="offline-cli-opening", daemon=True).start()

    def _open(self) -> None:
        stream = None
        try:
            stream = opened_stream(self._place, size=self._size, ahead=self._ahead)
            fetch_end(stream)
        except Exception as error:  # noqa: BLE001  raised when its turn comes
            self._error = error
        with self._lock:
            self._stream = stream
            self._is_here.set()
            if self._given_up:
                self._close()

    def advance(self, columns_of: ColumnsOf) -> bool:
        """Prefetch its row groups, once its footer is here; False before that."""
        if not self._is_here.is_set():
            return False
        if self._file is None and self._error is None and self._stream is not None:
            try:
                self._file = parsed(self._stream, self._place)
                expect_row_groups(self._file, self._place, columns_of(self._file))
            except OfflineCliError as error:
                self._error = error
        return True

    def __enter__(self) -> OpenShard:
        """The shard. Raises why it could not be opened."""
        try:
            self._is_here.wait()
            if self._error is not None:
                raise self._error
            assert self._stream is not None, "there is a stream or an error"
            return self._file or parsed(self._stream, self._place)
        except BaseException:
            self.give_up()
            raise

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.give_up()

    def give_up(self) -> None:
        """Nobody will read it, or continue reading."""
        with self._lock:
            self._given_up = True
            if self._is_here.is_set():
                self._close()

    def _close(self) -> None:
        if self._stream is not None:
            self._stream.close()

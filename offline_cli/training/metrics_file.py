"""metrics.jsonl of a run, one row a line; refuses to keep training waiting for storage at each row.

A local file is appended to. What cannot be appended to is written anew, whole, by `flush`: before each checkpoint and at the
end, and in between at most every `EVERY` seconds, and so seldom that it takes no more than a twentieth of the time. Rows that
are not written yet when a process is killed are newer than its last checkpoint: a run that goes on makes them again. `flush` is
what a checkpoint needs that counts these bytes: after it they survive a power cut.

Rows are told about and drawn; nothing that is learned depends on them. So a row that cannot be read costs that row alone.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Mapping
from typing import Any, Final

from offline_cli.json_documents import from_json
from offline_cli.policies.run_files import METRICS
from offline_cli.storage.locations import Location
from offline_cli.storage.moving import keep_bytes, keep_names
from offline_cli.storage.staging import whole_file, write_whole
from offline_cli.training.pace import Pace

__all__ = ["MetricsFile"]

EVERY: Final = 10.0  # seconds

_log = logging.getLogger(__name__)


class MetricsFile:
    """The rows of the run in `folder`. Every method raises StorageError."""

    def __init__(self, folder: Location) -> None:
        self._folder, self._place = folder, folder.join(METRICS)
        self._content: bytearray | None = None  # what the file is to be, where it cannot be appended to; None: not read yet
        self._is_stored = True
        self._pace = Pace(EVERY)

    def rows(self) -> list[dict[str, Any]]:
        """All rows that can be read, oldest first; a warning says how many cannot."""
        content = whole_file(self._place) or b"" if self._place.is_local else bytes(self._known())
        lines = content.split(b"\n")
        found = [row for line in lines if (row := _row(line)) is not None]
        lost = sum(1 for line in lines if line.strip()) - len(found)
        if lost:
            _log.warning("warning: %d rows of %s cannot be read, and are left out", lost, self._place.url)
        return found

    def append(self, row: Mapping[str, Any]) -> int:
        """Add one row; gives the length of all of them in bytes."""
        line = (json.dumps(row) + "\n").encode()
        if self._place.is_local:
            self._is_stored = False
            return self._place.ask("writing", lambda: _append(self._place.path, line))
        content = self._known()
        content += line
        self._is_stored = False
        return len(content)

    @property
    def flush_is_due(self) -> bool:
        """Whether rows have waited for long enough."""
        return not (self._is_stored or self._place.is_local) and self._pace.is_due

    def flush(self) -> None:
        """See to it that every row is in the file, and stays there whatever happens to the machine."""
        if self._is_stored:
            return
        if self._place.is_local:
            keep_bytes(self._place)
            keep_names(self._folder)
        else:
            with self._pace.timed():
                write_whole(self._place, bytes(self._known()), folder=self._folder)
        self._is_stored = True

    def cut(self, length: int) -> None:
        """Keep the whole rows of the first `length` bytes; there may be fewer bytes, and half a row, after a power cut."""
        content = whole_file(self._place) or b"" if self._place.is_local else bytes(self._known())
        kept = content[:length].rfind(b"\n") + 1
        if kept == len(content):
            return
        self._is_stored = False
        if self._place.is_local:
            self._place.ask("writing", lambda: os.truncate(self._place.path, kept))
        else:
            del self._known()[kept:]
        self.flush()

    def begin(self) -> None:
        """Know that there is no file."""
        self._content, self._is_stored = bytearray(), True

    def _known(self) -> bytearray:
        if self._content is None:
            self._content = bytearray(whole_file(self._place) or b"")
        return self._content


def _row(line: bytes) -> dict[str, Any] | None:
    """The row in a line; None where there is none: numbers by name, an `update` among them."""
    try:
        row = from_json(line)
    except ValueError:
        return None
    if not isinstance(row, dict) or not isinstance(row.get("update"), (int, float)):
        return None
    return row if all(value is None or isinstance(value, (int, float)) for value in row.values()) else None


def _append(path: str, line: bytes) -> int:
    with open(path, "ab") as file:
        file.write(line)
        return file.tell()

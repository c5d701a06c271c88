"""metrics.jsonl of a run, one row a line; refuses to keep training waiting for storage at each row.

A local file is appended to. What cannot be appended to is written anew, whole, by `flush`: before each checkpoint and at the
end, and in between at most every `EVERY` seconds, and so seldom that it takes no more than a twentieth of the time. Rows that
are not written yet when a process is killed are newer than its last checkpoint: a run that goes on makes them again.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Any, Final

from offline_cli.errors import BadData
from offline_cli.json_text import from_json
from offline_cli.storage.create_only import whole_file
from offline_cli.storage.locations import Location
from offline_cli.storage.staging import write_whole
from offline_cli.training.pace import Pace

__all__ = ["MetricsFile"]

EVERY: Final = 10.0  # seconds


class MetricsFile:
    """The rows of one run at `place`. Every method raises StorageError."""

    def __init__(self, place: Location) -> None:
        self._place = place
        self._content: bytearray | None = None  # what the file is to be, where it cannot be appended to; None: not read yet
        self._is_stored = True
        self._pace = Pace(EVERY)

    def rows(self) -> list[dict[str, Any]]:
        """All rows, oldest first. Raises BadData."""
        content = whole_file(self._place) or b"" if self._place.is_local else bytes(self._known())
        try:
            return [from_json(line) for line in content.splitlines()]
        except ValueError as err:
            fix = "train again with --overwrite"
            raise BadData(f"{self._place.name} cannot be read: {err}", where=self._place.url, fix=fix) from err

    def append(self, row: Mapping[str, Any]) -> int:
        """Add one row; gives the length of all of them in bytes."""
        line = (json.dumps(row) + "\n").encode()
        if self._place.is_local:
            return self._place.ask("writing", lambda: _append(self._place.path, line))
        content = self._known()
        content += line
        self._is_stored = False
        return len(content)

    @property
    def flush_is_due(self) -> bool:
        """Whether rows have waited for long enough."""
        return not self._is_stored and self._pace.is_due

    def flush(self) -> None:
        """See to it that every row is in the file."""
        if not self._is_stored:
            with self._pace.timed():
                write_whole(self._place, bytes(self._known()), folder=self._place)
            self._is_stored = True

    def cut(self, length: int) -> None:
        """Keep the first `length` bytes."""
        if self._place.is_local:
            if self._place.is_file() and self._place.size() > length:
                self._place.ask("writing", lambda: os.truncate(self._place.path, length))
            return
        content = self._known()
        if len(content) > length:
            del content[length:]
            self._is_stored = False
            self.flush()

    def begin(self) -> None:
        """Know that there is no file."""
        self._content, self._is_stored = bytearray(), True

    def _known(self) -> bytearray:
        if self._content is None:
            self._content = bytearray(whole_file(self._place) or b"")
        return self._content


def _append(path: str, line: bytes) -> int:
    with open(path, "ab") as file:
        file.write(line)
        return file.tell()

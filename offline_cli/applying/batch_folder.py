"""The folder that train batches are written into, committed by `batches.json`; nothing of an interrupted write stays.

    D/batches.json                 the commit, written last (schemas/batches.v1.json)
    D/data/batch-000000.parquet    or .safetensors; complete files only
    D/connectors.msgpack           what the pieces learned, if any did
    D/_writing.json                a writer is, or was, at work; it is the lock that keeps a second one out

An error, or a Ctrl-C, removes all that was written: a write cannot be resumed in the middle. What a killed process leaves has
no new `batches.json`; `--overwrite` begins again. Over older batches the new ones stand beside them, with `-1` in their names,
until the new `batches.json` is there. Files get and lose their names only while the lock is held.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Final

from offline_cli.applying.train_batches import SUFFIXES, TrainBatch
from offline_cli.datasets.file_names import BATCHES, TRAIN_BATCHES, batch_name, connector_state_name
from offline_cli.datasets.ownership import is_regular
from offline_cli.datasets.target_folder import TargetFolder
from offline_cli.errors import Interrupted, StorageError, StorageNotFound
from offline_cli.storage.locations import Location
from offline_cli.storage.staging import write_whole

__all__ = ["BatchFolder"]

STATE: Final = re.compile(r"connectors(-[0-9]{1,12})?\.msgpack", re.ASCII)


class BatchFolder:
    """One write, within a `with`: the note comes first; without `commit` everything is removed at the end.

    Raises StorageError throughout, TakenOver where another writer has taken over, Interrupted for a signal.
    """

    def __init__(self, location: Location, *, options: Mapping[str, Any], overwrite: bool, command: str) -> None:
        """`options`, `command`: for the note; plain JSON values with the `format`, and what writes, without secrets."""
        self._location, self._options, self._overwrite = location, options, overwrite
        self._target = TargetFolder(location, command, TRAIN_BATCHES)
        self._batches: list[dict[str, Any]] = []
        self._files: list[Location] = []  # of this write
        self._committed = False

    def __enter__(self) -> BatchFolder:
        """Write the note. Raises OutputExists, Locked where another writer is at work."""
        self._target.begin(self._options, overwrite=self._overwrite, resume=False)
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        try:
            if self._target.is_held and not self._committed:
                with self._target.guard():
                    for file in self._files:
                        with suppress(StorageNotFound):
                            file.remove()
                    self._target.leave_no_trace()
        except StorageError as failed:
            if error is None:
                raise
            error.add_note(f"cleaning up failed too: {failed}")
        finally:
            self._target.leave()
        if isinstance(error, KeyboardInterrupt) and not self._committed:
            left = "; what was there before is untouched" if self._overwrite else ""
            what = f"interrupted; no train batch was kept{left}"
            raise Interrupted(what, where=self._location.url, fix="run the command again") from error

    def write(self, batch: TrainBatch) -> dict[str, Any]:
        """Write a batch; gives its path below the folder, rows, episodes, steps, bytes and sha256."""
        path = batch_name(self._target.generation, len(self._batches), SUFFIXES[self._options["format"]])
        kept = self._kept(path, batch.content)
        self._batches.append({"path": path, **batch.counts, **kept})
        return self._batches[-1]

    def commit(self, document: Mapping[str, Any], *, state: bytes) -> str | None:
        """Write what the pieces learned (`state`; empty: nothing) and `batches.json`, and remove what they replace.

        `document`: all of `batches.json` but batches and state. Gives the path of the state.
        """
        path = connector_state_name(self._target.generation) if state else None
        kept = path and self._kept(path, state)
        whole = json.dumps({**document, "batches": self._batches, "state": kept}, default=str)  # TOML has dates
        text = json.dumps(json.loads(whole, parse_constant=str), indent=1, ensure_ascii=False)  # and infinity
        with self._target.guard():
            self._committed = True  # whatever comes now, the files that the commit lists stay
            write_whole(self._location.join(BATCHES), text.encode() + b"\n", folder=self._location)
        names = [file.name for file in self._files]
        others = [child for child in self._location.children() if child.name not in names and STATE.fullmatch(child.name)]
        replaced = [state for state in others if is_regular(state)]  # a link is nobody's of ours
        with self._target.guard():
            for file in replaced:
                file.remove()
            self._target.finish()
        return path

    def _kept(self, path: str, content: bytes) -> dict[str, Any]:
        """Write a file, and give what `batches.json` says of it."""
        self._files.append(self._location.join(path))
        with self._target.guard():
            write_whole(self._files[-1], content, folder=self._location)
        return {"path": path, "bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}

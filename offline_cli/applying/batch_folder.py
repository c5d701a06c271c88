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
from collections.abc import Iterable, Mapping
from typing import Any, Final

from offline_cli.applying.train_batches import SUFFIXES, TrainBatch
from offline_cli.datasets.file_names import BATCHES, TRAIN_BATCHES, batch_name, connector_state_name
from offline_cli.datasets.ownership import is_regular
from offline_cli.datasets.target_folder import TargetFolder
from offline_cli.errors import Interrupted, StorageError
from offline_cli.storage.locations import Location
from offline_cli.storage.staging import write_whole

__all__ = ["BatchFolder"]

STATE: Final = re.compile(r"connectors(-[0-9]{1,12})?\.msgpack", re.ASCII)


class BatchFolder:
    """One write, within a `with`: the note comes first; without `commit` everything is removed at the end.

    Raises StorageError throughout, TakenOver where another writer has taken over, Interrupted for a signal.
    """

    def __init__(self, location: Location, *, format: str, options: Mapping[str, Any], overwrite: bool, command: str) -> None:
        """`options`, `command`: for the note; plain JSON values, and what writes, without secrets."""
        self._location, self._suffix, self._options, self._overwrite = location, SUFFIXES[format], options, overwrite
        self._target = TargetFolder(location, command, TRAIN_BATCHES)
        self._files: list[dict[str, Any]] = []
        self._state: Location | None = None
        self._committed = False

    def __enter__(self) -> BatchFolder:
        """Write the note. Raises OutputExists, Locked where another writer is at work."""
        self._target.begin(self._options, overwrite=self._overwrite, resume=False)
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        try:
            if self._target.is_held and not self._committed:
                mine = [*self._target.own_files(), *([] if self._state is None else [self._state])]
                with self._target.guard():  # asks after the listing: none of these is another writer's
                    for file in mine:
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

    def write(self, batches: Iterable[TrainBatch]) -> list[dict[str, Any]]:
        """Write all; of each file its path below the folder, rows, episodes, steps, bytes and sha256."""
        for batch in batches:
            path = batch_name(self._target.generation, len(self._files), self._suffix)
            with self._target.guard():
                write_whole(self._location.join(path), batch.content, folder=self._location)
            digest = hashlib.sha256(batch.content).hexdigest()
            self._files.append({"path": path, **batch.counts, "bytes": len(batch.content), "sha256": digest})
        return self._files

    def commit(self, document: Mapping[str, Any], *, state: bytes) -> str | None:
        """Write what the pieces learned (`state`; empty: nothing) and `batches.json`, and remove what they replace.

        `document`: all of `batches.json` but batches and state. Gives the path of the state.
        """
        path = connector_state_name(self._target.generation) if state else None
        if path is not None:
            self._state = self._location.join(path)
            with self._target.guard():
                write_whole(self._state, state, folder=self._location)
        kept = path and {"path": path, "bytes": len(state), "sha256": hashlib.sha256(state).hexdigest()}
        whole = json.dumps({**document, "batches": self._files, "state": kept}, default=str)  # TOML has dates
        text = json.dumps(json.loads(whole, parse_constant=str), indent=1, ensure_ascii=False)  # and infinity
        with self._target.guard():
            self._committed = True  # whatever comes now, the files that the commit lists stay
            write_whole(self._location.join(BATCHES), text.encode() + b"\n", folder=self._location)
        replaced = [child for child in self._location.children() if self._is_old_state(child)]
        with self._target.guard():
            for file in replaced:
                file.remove()
            self._target.finish()
        return path

    def _is_old_state(self, place: Location) -> bool:
        """Whether a state of ours is here that is not this write's: its name says so, and it is not a link."""
        is_own = self._state is not None and place.name == self._state.name
        return not is_own and STATE.fullmatch(place.name) is not None and is_regular(place)

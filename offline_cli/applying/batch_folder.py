"""The folder that train batches are written into, committed by `batches.json`; nothing of an interrupted write stays.

    D/batches.json                 the commit, written last (schemas/batches.v1.json)
    D/data/batch-000000.parquet    or .safetensors; complete files only
    D/connectors.msgpack           what the pieces learned, if any did
    D/_writing.json                a writer is, or was, at work; it is the lock that keeps a second one out

An error, or a Ctrl-C, removes all that was written: with a state that grows from batch to batch a write cannot be resumed in
the middle. What a killed process leaves has no new `batches.json`; `--overwrite` begins again. Over older batches the new ones
stand beside them, with `-1` in their names, until the new `batches.json` is there. Files get and lose their names only while
the lock is held: a writer that another one has taken over from touches nothing more, not even what it wrote itself.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from types import TracebackType
from typing import Any, Self

from offline_cli.applying.batch_formats import BatchFormat, TrainBatch, TrainBatches, TrainColumns
from offline_cli.applying.recordings import Ready
from offline_cli.applying.showing import space_as_json
from offline_cli.connectors.connector_v2 import state_to_bytes
from offline_cli.connectors.pipeline_spec import PipelineSpec
from offline_cli.datasets.file_names import BATCHES, TRAIN_BATCHES, batch_name, connector_state_name
from offline_cli.datasets.manifest import now, with_defaults
from offline_cli.datasets.ownership import is_regular
from offline_cli.datasets.target_folder import TargetFolder
from offline_cli.errors import Interrupted, StorageError
from offline_cli.json_documents import mistakes
from offline_cli.spaces import space_to_json
from offline_cli.stop_signals import check
from offline_cli.storage.blanking import this_command
from offline_cli.storage.locations import Location
from offline_cli.storage.staging import write_whole

__all__ = ["Asked", "BatchFolder", "write_batches"]

SCHEMA = "batches.v1.json"
FORMAT, VERSION = "train-batches", 1
STATE = re.compile(r"connectors(-[0-9]{1,12})?\.msgpack", re.ASCII)


@dataclass(frozen=True, slots=True)
class BatchFile:
    """One train batch."""

    path: str  # below the folder
    rows: int
    episodes: int
    steps: int
    bytes: int
    sha256: str  # hex


class BatchFolder:
    """One write, within a `with`: the note comes first; without `commit` everything is removed at the end.

    Raises StorageError throughout, and TakenOver where another writer has taken over.
    """

    def __init__(
        self, location: Location, format: BatchFormat, *, options: Mapping[str, Any], overwrite: bool, command: str = ""
    ) -> None:
        """`options`, `command`: for the note; plain JSON values, and what writes, without secrets."""
        self._location, self._format = location, format
        self._options, self._overwrite = options, overwrite
        self._target = TargetFolder(location, command or this_command(), TRAIN_BATCHES)
        self._files: list[BatchFile] = []
        self._state: Location | None = None
        self._begun = self.committed = False
        self._commit = b""  # batches.json, from when on it may stand

    def __enter__(self) -> Self:
        """Write the note. Raises OutputExists, Locked where another writer is at work."""
        self._target.begin(self._options, overwrite=self._overwrite, resume=False)
        self._begun = True
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if not self._begun:
            return
        try:
            self._end()
        except StorageError as failed:
            if error is None:
                raise
            error.add_note(f"cleaning up failed too: {failed}")

    def _end(self) -> None:
        """End an interrupted write: whatever its outcome, no other writer has to wait afterwards."""
        try:
            if not self._target.is_held or self.committed:
                return
            place = self._location.join(BATCHES)
            if self._commit and place.exists() and place.read_bytes() == self._commit:  # a signal right after
                self._finish()
            else:
                self._take_back()
        finally:
            self._target.leave()

    @property
    def url(self) -> str:
        """The folder, for messages."""
        return self._location.url

    @property
    def files(self) -> tuple[BatchFile, ...]:
        """The batches so far."""
        return tuple(self._files)

    def write(self, prepared: Any, batch: TrainColumns, *, episodes: int, steps: int) -> None:
        """Add one batch; `prepared` is what the format made of it."""
        self._target.check()
        path = batch_name(self._target.generation, len(self._files), self._format.suffix)
        place = self._location.join(path)
        size, digest = self._format.store(prepared, place, folder=self._location, guard=self._target.guard)
        self._files.append(BatchFile(path, batch.rows, episodes, steps, size, digest))

    def commit(self, document: Mapping[str, Any], *, state: bytes) -> str | None:
        """Write what the pieces learned (`state`; empty: nothing) and `batches.json`, and remove what they replace.

        `document`: all of `batches.json` but format, version, batches and state. Gives the path of the state.
        """
        path = connector_state_name(self._target.generation) if state else None
        kept = path and {"path": path, "bytes": len(state), "sha256": hashlib.sha256(state).hexdigest()}
        whole = {"format": FORMAT, "version": VERSION, **document, "batches": list(map(asdict, self._files)), "state": kept}
        told = _bytes(whole)
        if path is not None:
            self._state = self._location.join(path)
            with self._target.guard():
                write_whole(self._state, state, folder=self._location)
        with self._target.guard():
            self._commit = told
            write_whole(self._location.join(BATCHES), told, folder=self._location)
            self._finish()
        return path

    def _finish(self) -> None:
        """Remove what the new batches have replaced, and then the note."""
        self.committed = True
        own = None if self._state is None else self._state.name
        states = [child for child in self._location.children() if child.name != own and _is_state(child)]
        with self._target.guard():  # asks after the listing: none of these is another writer's
            for state in states:
                state.remove()
            self._target.finish()

    def _take_back(self) -> None:
        """Remove what this write has written, and then the note."""
        mine = [*self._target.own_files(), *([] if self._state is None else [self._state])]
        with self._target.guard():  # asks after the listing too
            for file in mine:
                file.remove()
            self._target.leave_no_trace()


def _is_state(place: Location) -> bool:
    """Whether a state of ours is here: its name says so, and it is not a link."""
    return STATE.fullmatch(place.name) is not None and is_regular(place)


def _plain(value: Any) -> Any:
    """`value` in JSON's own types: what TOML has beyond them, dates and infinities, becomes text."""
    if isinstance(value, Mapping):
        return {str(key): _plain(part) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(part) for part in value]
    if value is None or isinstance(value, (bool, int, str)) or (isinstance(value, float) and math.isfinite(value)):
        return value
    return str(value)


def _bytes(document: Mapping[str, Any]) -> bytes:
    """The file's bytes. Raises ValueError where its own schema refuses it: our bug."""
    text = json.dumps(_plain(document), indent=1, allow_nan=False, ensure_ascii=False)
    wrong = mistakes(json.loads(text), SCHEMA)
    if wrong:
        raise ValueError(f"an unreadable batches.json: {wrong}")
    return text.encode() + b"\n"


@dataclass(frozen=True, slots=True)
class Asked:
    """What the caller wants written, for the note and for `batches.json`."""

    file: PipelineSpec
    format: str
    steps_per_batch: int
    limit: int | None
    sources: tuple[str, ...]  # URLs
    command: tuple[str, ...]

    def options(self) -> dict[str, Any]:
        """For the note beside a write, which people may read."""
        names = ("format", "steps_per_batch", "limit")
        return {**{name: getattr(self, name) for name in names}, "pipeline": self.file.where, "sources": list(self.sources)}

    def provenance(
        self, commands: Sequence[str], mappings: Sequence[Mapping[str, Any]], started: str, policy: Mapping[str, str]
    ) -> dict[str, Any]:
        """`commands`: those that made the sources; `mappings`: by which tables among them were read; `policy`: pieces' own."""
        known: dict[str, Any] = {"sources": list(self.sources), "pipeline_file": self.file.where}
        if policy:
            known["policy"] = policy
        if mappings:
            known["mappings"] = list(mappings)
        if self.command:
            known["commands"] = [*commands, shlex.join(self.command)]
        return with_defaults(known, started=started)


def write_batches(
    target: Location,
    stored_as: BatchFormat,
    every: Iterable[TrainBatch],
    batches: TrainBatches,
    ready: Ready,
    asked: Asked,
    *,
    overwrite: bool,
) -> tuple[int, str | None]:
    """Write all: those of `every`, which draws from `batches`. Gives the bytes of the files in data/, and the path, below the
    folder, of what the pieces learned. Raises Interrupted: nothing was kept then."""
    command, started = shlex.join(asked.command), now()
    folder = BatchFolder(target, stored_as, options=asked.options(), overwrite=overwrite, command=command)
    try:
        with folder:
            for made in every:
                check()
                folder.write(made.prepared, made.columns, episodes=made.episodes, steps=made.steps)
            learned = ready.pipeline.get_state()
            state = state_to_bytes(learned, where=asked.file.where) if learned else b""
            path = folder.commit(_document(batches, ready, asked, started), state=state)
    except KeyboardInterrupt as interrupt:
        raise _interrupted(folder, overwrite=overwrite) from interrupt
    return sum(file.bytes for file in folder.files), path


def _interrupted(folder: BatchFolder, *, overwrite: bool) -> Interrupted:
    if folder.committed:
        fix = "nothing: the train batches are complete"
        return Interrupted("interrupted after everything was written", where=folder.url, fix=fix)
    left = "; what was there before is untouched" if overwrite else ""
    return Interrupted(f"interrupted; no train batch was kept{left}", where=folder.url, fix="run the command again")


def _document(batches: TrainBatches, ready: Ready, asked: Asked, started: str) -> Mapping[str, Any]:
    """batches.json, as schemas/batches.v1.json describes it, but for what the folder knows itself."""
    stream = ready.stream
    return {
        "stored_as": asked.format,
        "pipeline": asked.file.document,
        "steps_per_batch": asked.steps_per_batch,
        "columns": [asdict(kind) for kind in batches.kinds],
        "input_observation_space": space_to_json(ready.observation_space),
        "input_action_space": space_to_json(ready.action_space),
        "observation_space": space_as_json(ready.pipeline.observation_space),
        "action_space": space_as_json(ready.pipeline.action_space),
        "spaces_inferred": stream.spaces_inferred,
        "action_scale": stream.action_scale,
        "counts": batches.counts(),
        "assumptions": dict(sorted(stream.tally.assumptions.items())),
        "provenance": asked.provenance(stream.commands, stream.mapping_documents, started, ready.network.told()),
    }

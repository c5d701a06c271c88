"""Train batches into their folder, with `batches.json` to say what they are."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from offline_cli.applying.batch_folder import BatchFolder
from offline_cli.applying.batch_formats import BatchFormat
from offline_cli.applying.recordings import Ready
from offline_cli.applying.showing import space_as_json
from offline_cli.applying.train_batches import TrainBatch, TrainBatches
from offline_cli.connectors.connector_v2 import state_to_bytes
from offline_cli.connectors.pipeline_files import PipelineFile
from offline_cli.errors import Interrupted
from offline_cli.spaces import space_to_json
from offline_cli.storage.locations import Location
from offline_cli.storage.manifest import now, with_defaults

__all__ = ["Asked", "Written", "write_batches"]


@dataclass(frozen=True, slots=True)
class Asked:
    """What the caller wants written, for the note and for `batches.json`."""

    file: PipelineFile
    format: str
    steps_per_batch: int
    limit: int | None
    sources: tuple[str, ...]  # URLs
    command: tuple[str, ...]

    def options(self) -> dict[str, Any]:
        """For the note beside a writing, which people may read."""
        names = ("format", "steps_per_batch", "limit")
        return {**{name: getattr(self, name) for name in names}, "pipeline": self.file.where, "sources": list(self.sources)}

    def provenance(self, commands: Sequence[str], started: str) -> dict[str, Any]:
        """`commands`: those that made the sources."""
        known: dict[str, Any] = {"sources": list(self.sources), "pipeline_file": self.file.where}
        if self.command:
            known["commands"] = [*commands, shlex.join(self.command)]
        return with_defaults(known, started=started)


@dataclass(frozen=True, slots=True)
class Written:
    """What is on disk."""

    bytes: int  # of the files in data/
    state: str | None  # path, below the folder, of what the pieces learned


def write_batches(
    target: Location,
    stored_as: BatchFormat,
    every: Iterable[TrainBatch],
    batches: TrainBatches,
    ready: Ready,
    asked: Asked,
    *,
    overwrite: bool,
) -> Written:
    """Write all: those of `every`, which draws from `batches`. Raises Interrupted: nothing was kept then."""
    command, started = shlex.join(asked.command), now()
    folder = BatchFolder(target, stored_as, options=asked.options(), overwrite=overwrite, command=command)
    try:
        with folder:
            for made in every:
                folder.write(made.prepared, made.columns, episodes=made.episodes, steps=made.steps)
            learned = ready.pipeline.get_state()
            state = state_to_bytes(learned, where=asked.file.where) if learned else b""
            path = folder.commit(_document(batches, ready, asked, started), state=state)
    except KeyboardInterrupt as interrupt:
        raise _interrupted(folder, overwrite=overwrite) from interrupt
    return Written(sum(file.bytes for file in folder.files), path)


def _interrupted(folder: BatchFolder, *, overwrite: bool) -> Interrupted:
    if folder.committed:
        return Interrupted("interrupted when all was written", where=folder.url, fix="nothing: the train batches are complete")
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
        "provenance": asked.provenance(stream.commands, started),
    }

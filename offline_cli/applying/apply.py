"""Apply a learner pipeline to any source and write its train batches to disk, all or none.

Batches are written one by one, so memory is bounded by one batch and the reader's needs. `show` and `trace` follow the first
episodes through the same pipeline, and write nothing.
"""

from __future__ import annotations

import logging
import os
import shlex
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from functools import partial
from itertools import chain
from typing import Any

from offline_cli.applying.pipeline_run import PipelineRun, PipelineView, followed, space_as_json
from offline_cli.applying.train_batches import batch_folder, check_batch_folder, train_batches
from offline_cli.checked_keywords import checked
from offline_cli.choices import STEPS_PER_BATCH, TABLE_MEMORY_LIMIT, ActionScale, BatchFormat, Count, EngineName, EpisodeEnds
from offline_cli.connectors.connector_v2 import state_to_bytes
from offline_cli.connectors.pipeline_spec import PipelineSpec
from offline_cli.converting.reading import EpisodeStream, read_episodes
from offline_cli.datasets.manifest import now, with_defaults
from offline_cli.datasets.target_folder import check_apart
from offline_cli.engines.engine import EngineSpec
from offline_cli.errors import NoData, UsageError
from offline_cli.formats.asked_environment import AskedEnvironment
from offline_cli.formats.memory_limits import EpisodeLimit
from offline_cli.formats.tables import TableOptions
from offline_cli.progress import OnProgress, no_progress
from offline_cli.scopes import Scope
from offline_cli.storage.locations import Location, Sources, expand, open_location

__all__ = ["ApplyResult", "apply"]

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ApplyResult:
    """The written batches, or, for a dry run, those that would be written."""

    out: str
    batches: int
    rows: int  # in all batches: steps, unless a piece adds or removes some
    columns: tuple[str, ...]  # names, in the order of the batch
    format: str  # "columns" | "safetensors"
    episodes: int  # without empty ones
    steps: int
    steps_per_batch: int
    bytes: int  # of all batch files; 0 for a dry run
    steps_left_out: int  # last steps without a recorded next observation
    notes: list[str]  # on the sources
    state: str | None  # file of the pieces' learned state, below `out`; None without
    action_scale: str  # of the source
    spaces_inferred: bool
    assumptions: Mapping[str, int]  # of reading, by kind
    dry_run: bool  # nothing was written
    seconds: float

    def as_dict(self) -> dict[str, Any]:
        """The values of `--json`."""
        return {**asdict(self), "columns": list(self.columns), "assumptions": dict(sorted(self.assumptions.items()))}


@checked
def apply(
    sources: Sources,
    out: str | None = None,
    *,
    pipeline: str | os.PathLike[str],
    from_: str = "auto",
    mapping: str | os.PathLike[str] | Mapping[str, Any] | None = None,
    rows_as_episodes: bool = False,
    episode_ends: EpisodeEnds | None = None,
    env: str | None = None,
    action_scale: ActionScale | None = None,
    keep_invented: bool = False,
    env_kwargs: Mapping[str, Any] | None = None,
    wrappers: Sequence[str] | None = None,
    limit: Count | None = None,
    show: bool = False,
    trace: Count | None = None,
    temp_dir: str | os.PathLike[str] | None = None,
    memory_limit: int | str = TABLE_MEMORY_LIMIT,
    engine: EngineName = "local",
    engine_address: str | None = None,
    workers: Count = 4,
    storage_options: Mapping[str, Any] | None = None,
    overwrite: bool = False,
    dry_run: bool = False,
    format: BatchFormat = "columns",
    steps_per_batch: Count = STEPS_PER_BATCH,
    on_progress: OnProgress = no_progress,
    command: Sequence[str] = (),
) -> ApplyResult | PipelineView:
    """Run the learner pipeline file `pipeline` over the episodes of `sources`, and write its batches to the folder `out`.

    `show` follows the first episode through the pipeline instead, `trace` the first N; both exclude `out`; see "Put pieces
    between data and policy" in the documentation. `command`: for provenance.

    Raises UsageError, OutputExists; StorageNotFound and BadConfig for the file; SpaceMismatch, naming the piece, before the
    first batch; BadPiece for pieces that raise or return no batch; as `read_episodes` does; Interrupted.
    """
    options = dict(locals())
    began = time.monotonic()
    if [out is not None, show, trace is not None].count(True) != 1:
        raise UsageError("--out, --show and --trace are mutually exclusive", where="--out", fix="give exactly one of them")
    file, tables = PipelineSpec.from_file(pipeline, "learner"), TableOptions.of(options)
    asked, spec = AskedEnvironment.of(options), EngineSpec.of(options)
    target = None if out is None else open_location(out, storage_options)
    if target is not None:
        check_batch_folder(target, overwrite=overwrite)
    places = expand(sources, storage_options)
    if target is not None:
        check_apart(places, target)
    if not places:
        raise UsageError("no sources are given", where="the arguments", fix="name recordings")
    read = partial(
        read_episodes,
        places,
        from_=from_,
        env=asked,
        action_scale=action_scale,
        limit=1 if show else trace or limit,
        tables=tables,
        episode_limit=EpisodeLimit.within(tables.memory_limit),
        engine=spec,
        storage_options=storage_options,
        on_progress=on_progress,
    )
    with read() as stream:
        run = PipelineRun(file, asked, stream, keep_invented=keep_invented)
        if target is None:
            return followed(run, stream)
        with Scope() as scope:
            run.learn(lambda: run.prepared(scope.enter(read())))
        provenance: dict[str, Any] = {"sources": [place.url for place in places], "pipeline_file": file.where}
        return _written(run, stream, target, provenance, options, began)


def _written(
    run: PipelineRun,
    stream: EpisodeStream,
    target: Location,
    provenance: dict[str, Any],
    options: Mapping[str, Any],
    began: float,
) -> ApplyResult:
    """Make the batches, and write them unless it is a dry run. Raises NoData if no episode has steps."""
    kind: dict[str, Any] = {"format": options["format"], "steps_per_batch": options["steps_per_batch"]}
    suffix = "parquet" if options["format"] == "columns" else "safetensors"
    batches = train_batches(run, run.prepared(stream), tally=stream.tally, **kind)
    first = next(batches, None)  # fails before the folder is touched if no file can hold it
    if first is None:
        raise NoData("no episode has any steps", where=run.where, fix="record again")
    state, started, counts = None, now(), Counter[str](bytes=0)
    with nullcontext() if options["dry_run"] else batch_folder(target, overwrite=options["overwrite"]) as folder:
        for batch in chain([first], batches):
            counts.update(batches=1, bytes=0 if folder is None else folder.write(batch, suffix), **batch.counts)
        if folder is not None:
            learned = run.pipeline.get_state()
            if stream.mapping_documents:
                provenance["mappings"] = list(stream.mapping_documents)
            if options["command"]:
                provenance["commands"] = [*stream.commands, shlex.join(options["command"])]
            document = {
                "format": "train-batches",
                "version": 1,
                "stored_as": options["format"],
                "steps_per_batch": options["steps_per_batch"],
                "columns": first.kinds,
                "pipeline": run.file.document,
                "input_observation_space": space_as_json(run.spaces[0]),
                "input_action_space": space_as_json(run.spaces[1]),
                "observation_space": space_as_json(run.pipeline.observation_space),
                "action_space": space_as_json(run.pipeline.action_space),
                "action_scale": run.action_scale,
                "spaces_inferred": stream.spaces_inferred,
                "counts": {name: count for name, count in counts.items() if name != "bytes"},
                "assumptions": dict(sorted(stream.tally.assumptions.items())),
                "provenance": with_defaults(provenance, started=started),
            }
            state = folder.commit(document, state=state_to_bytes(learned, where=run.file.where) if learned else b"")
    notes = stream.incomplete
    if run.steps_left_out:
        ends = f"{run.steps_left_out:,} truncated episodes have no recorded last observation"
        notes.append(f"{ends}: their last steps are left out; --keep-invented keeps them")
    for note in notes:
        _log.warning("note: %s", note)
    figures: dict[str, Any] = dict(counts)
    return ApplyResult(
        out=target.url,
        **figures,
        **kind,
        steps_left_out=run.steps_left_out,
        notes=notes,
        columns=first.names,
        state=state,
        action_scale=stream.action_scale,
        spaces_inferred=stream.spaces_inferred,
        assumptions=dict(stream.tally.assumptions),
        dry_run=options["dry_run"],
        seconds=time.monotonic() - began,
    )

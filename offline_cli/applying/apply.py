"""Applies a learner pipeline to any source and writes its train batches to disk: all of them, or nothing is kept.

Decisions:

* A train batch is one call of the pipeline on whole episodes: consecutive ones, until `steps_per_batch` is reached.
* Episodes come to the pipeline as `train-bc` gives them to it: Box actions in the units of networks; episodes without steps,
  and extra outputs that are text, left out; the spaces of `env` where it is given. Values are not checked (NaN passes through,
  and `validate` finds it), and rows that `loss_mask` marks as False, which `train-bc` leaves out, stay.
* Pieces get the network of `policy`, a run folder, in evaluation mode, without gradients; without one those for stateful
  modules do nothing.
* Pieces that learn (a mean-std filter) see all episodes before the first batch is made, as in training: the sources are read
  once more for each. Those that `policy` was trained through keep what they had learned there.
* Columns have one kind in all batches, that of the first.
* Batches are written as they come, so memory is bounded by one batch and what reading takes.
"""

from __future__ import annotations

import importlib
import logging
import os
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, Final

from offline_cli.applying.batch_folder import Asked, write_batches
from offline_cli.applying.batch_formats import TrainBatch, TrainBatches, batch_format
from offline_cli.applying.recordings import Network, Said
from offline_cli.applying.showing import PipelineShown, PipelineTraced, show_pipeline, trace_pipeline
from offline_cli.checked_keywords import checked
from offline_cli.choices import STEPS_PER_BATCH, TABLE_MEMORY_LIMIT, ActionScale, BatchFormat, Count, EngineName, EpisodeEnds
from offline_cli.connectors.learner.added_columns import AddNextObservationsFromEpisodesToTrainBatch
from offline_cli.connectors.learner.returns import GeneralAdvantageEstimation, NStepReturns
from offline_cli.connectors.pipeline_spec import PipelineSpec
from offline_cli.datasets.file_names import TRAIN_BATCHES
from offline_cli.datasets.target_folder import check_apart, check_target
from offline_cli.engines.engine import EngineSpec
from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.errors import NoData, UsageError
from offline_cli.formats.asked_environment import AskedEnvironment
from offline_cli.formats.tables import TableOptions
from offline_cli.progress import OnProgress, no_progress
from offline_cli.scopes import Scope
from offline_cli.storage.locations import Location, Sources, open_location

__all__ = ["ApplyResult", "apply"]

OF_NEXT: Final = (AddNextObservationsFromEpisodesToTrainBatch, GeneralAdvantageEstimation, NStepReturns)
"""Pieces that take next observations, or their values: they get none that nobody recorded."""
RUN_MODULES: Final = "offline_cli.training.run_modules"
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ApplyResult:
    """What was written, or, of a dry run, would be."""

    out: str
    batches: int
    rows: int  # of all batches: steps, unless a piece adds or takes away some
    columns: tuple[str, ...]  # names, in the order of the batch
    format: str  # "columns" | "safetensors"
    episodes: int  # those without steps are left out
    steps: int
    steps_per_batch: int
    bytes: int  # of all files with batches; 0 of a dry run
    steps_left_out: int  # last ones, whose next observation was not recorded
    notes: list[str]  # on the sources
    state: str | None  # what the pieces learned, below `out`; None: nothing
    action_scale: str  # of the source
    spaces_inferred: bool
    assumptions: Mapping[str, int]  # of reading, by kind
    dry_run: bool  # nothing was written
    seconds: float

    def as_dict(self) -> dict[str, Any]:
        """Plain values, by the keys of `--json`."""
        plain = {name: getattr(self, name) for name in self.__slots__}
        return {**plain, "columns": list(self.columns), "assumptions": dict(sorted(self.assumptions.items()))}


@checked
def apply(
    sources: Sources = (),
    out: str | None = None,
    *,
    pipeline: str | os.PathLike[str],
    from_: str = "auto",
    mapping: str | os.PathLike[str] | Mapping[str, Any] | None = None,
    rows_as_episodes: bool = False,
    episode_ends: EpisodeEnds | None = None,
    env: str | None = None,
    action_scale: ActionScale | None = None,
    plugins: Sequence[str] = (),
    network: str | None = None,
    keep_invented: bool = False,
    policy: str | os.PathLike[str] | None = None,
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
) -> ApplyResult | PipelineShown | PipelineTraced:
    """Run the learner pipeline of file `pipeline` over the episodes of `sources`, and write its batches to folder `out`.

    `show` gives pieces with spaces and columns instead, without reading data; `env` alone may stand for the sources. `trace`
    gives what the batch of the first so many episodes holds after each piece. Both take no `out`. `command`: for provenance.
    `policy`: the run folder whose network pieces get, with the values of its algorithm; see docs/apply.md.

    Raises UsageError, OutputExists; StorageNotFound and BadConfig for the file; SpaceMismatch, naming the piece, before data is
    read where the spaces are known without; BadPiece for pieces that raise, or give what no batch can be; what `read_episodes`
    raises, and `load_policy` for the run; SpaceMismatch where its network is of other spaces; Interrupted.
    """
    options = dict(locals())
    _check_usage(out, options)
    sources = sources if isinstance(sources, (str, os.PathLike, Location)) else list(sources)
    tables = TableOptions.of(options)
    file = PipelineSpec.from_file(options["pipeline"], "learner")
    asked_env = AskedEnvironment.of(options)
    others = [str(place) for place in (out, options["policy"]) if place is not None]
    run, spec = _network(options, beside=[*_listed(sources), *others]), EngineSpec.of(options)
    said = Said(sources, from_, asked_env, action_scale, tables, storage_options, others, spec, on_progress, run)
    if show:
        return show_pipeline(file, said)
    if trace is not None:
        return trace_pipeline(file, said, episodes=trace)
    assert out is not None
    asked = Asked(file, options["format"], options["steps_per_batch"], options["limit"], (), tuple(command))
    target = open_location(out, storage_options, beside=[*_listed(sources), *others])
    return _applied(asked, said, target, options)


def _listed(sources: Sources) -> list[Any]:
    return [sources] if isinstance(sources, (str, os.PathLike, Location)) else list(sources)


def _network(options: Mapping[str, Any], *, beside: Sources) -> Network:
    """What pieces get. Raises what `load_policy` raises, and UsageError for code without a run that it is of."""
    run, storage_options = options["policy"], options["storage_options"]
    code = {"plugins": options["plugins"], "network": options["network"]}
    if run is None:
        if code["network"] is not None:
            raise UsageError("--network is the code of a run's network", where="--network", fix="--policy RUN beside it")
        return Network()
    from offline_cli.policies.by_name import is_named  # torch with it

    if is_named(os.fspath(run)):
        fix = "the folder that train or train-bc made; without --policy, pieces get no network"
        raise UsageError(f"{run} is no run folder, and pieces get the network of one", where="--policy", fix=fix)
    place = open_location(run, storage_options, beside=beside)
    module = importlib.import_module(RUN_MODULES)  # by name: training begins below
    return Network(place.url, module.policy_with_values(place, storage_options, **code))


def _check_usage(out: str | None, options: Mapping[str, Any]) -> None:
    looking = [f"--{name}" for name in ("show", "trace") if options.get(name)]
    if len(looking) > 1:
        raise UsageError("--show and --trace are two ways to look", where="--trace", fix="give one of them")
    if looking and out is not None:
        raise UsageError(f"{looking[0]} writes nothing", where="--out", fix=f"leave out --out, or {looking[0]}")
    if not looking and out is None:
        raise UsageError("nowhere to write to", where="--out", fix="--out FOLDER, or --show or --trace 1 to look only")


def _applied(asked: Asked, said: Said, target: Location, options: Mapping[str, Any]) -> ApplyResult:
    began, overwrite, dry_run = time.monotonic(), options["overwrite"], options["dry_run"]
    check_target(target, overwrite=overwrite, kind=TRAIN_BATCHES)
    recordings = said.open()
    check_apart(recordings.places, target)
    asked = replace(asked, sources=tuple(place.url for place in recordings.places))
    ready = recordings.ready(asked.file, limit=asked.limit)
    bootstraps = any(isinstance(piece, OF_NEXT) for piece in ready.pipeline.pieces())
    ready = replace(ready, observed_ends=bootstraps and not options["keep_invented"])
    with ready.stream, Scope() as held:

        def again() -> Iterator[EpisodeBatch]:
            with held.part() as part:
                stream = part.enter(said.open().stream(limit=asked.limit))
                yield from replace(ready, stream=stream).episodes()

        ready.learn(again)
        stored_as = batch_format(asked.format, ready.spaces_of_columns() if ready.network.axes == 1 else {})
        batches = TrainBatches(ready, stored_as, steps_per_batch=asked.steps_per_batch)
        every = _begun(iter(batches), ready.where)
        nbytes, state = 0, None
        if dry_run:
            deque(every, maxlen=0)
        else:
            nbytes, state = write_batches(target, stored_as, every, batches, ready, asked, overwrite=overwrite)
    notes = ready.stream.incomplete
    if batches.steps_left_out:
        ends = f"{batches.steps_left_out:,} truncated episodes have no recorded last observation"
        notes.append(f"{ends}: the last step of each is left out; --keep-invented takes them")
    for note in notes:
        _log.warning("note: %s", note)
    return ApplyResult(
        out=target.url,
        **batches.counts(),
        steps_left_out=batches.steps_left_out,
        notes=notes,
        columns=batches.names,
        format=asked.format,
        steps_per_batch=asked.steps_per_batch,
        bytes=nbytes,
        state=state,
        action_scale=ready.stream.action_scale,
        spaces_inferred=ready.stream.spaces_inferred,
        assumptions=dict(ready.stream.tally.assumptions),
        dry_run=dry_run,
        seconds=time.monotonic() - began,
    )


def _begun(batches: Iterator[TrainBatch], where: str) -> Iterator[TrainBatch]:
    """`batches`, with the first one already made: what no file can hold is refused before the folder is touched."""
    first = next(batches, None)
    if first is None:
        raise NoData("no episode has any steps", where=where, fix="record again")
    return chain([first], batches)

"""`filter`, `sample` and `split`: episodes of any sources, in the order of the sources, as one dataset or several."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from offline_cli.checked_keywords import checked
from offline_cli.choices import (
    MAX_BYTES_PER_FILE,
    TABLE_MEMORY_LIMIT,
    ActionScale,
    Compression,
    Count,
    EngineName,
    EpisodeEnds,
    OnBadRow,
    RowFormat,
    Share,
    Whole,
)
from offline_cli.columns import Columns
from offline_cli.converting.operations import Operation, OperationResult
from offline_cli.converting.operations.choosing import Parts, drawn, listed_ids, problem_ids, share_of, top
from offline_cli.converting.operations.conditions import Condition
from offline_cli.converting.operations.survey import NOWHERE, Survey, surveyed
from offline_cli.datasets.dataset import holds_dataset
from offline_cli.datasets.file_names import MANIFEST, WRITING
from offline_cli.datasets.manifest import Manifest
from offline_cli.errors import NoData, OutputExists, UsageError
from offline_cli.progress import OnProgress, no_progress
from offline_cli.source_code import content_hash_of
from offline_cli.storage.locations import Location, Sources, open_location

__all__ = ["FilterResult", "SampleResult", "SplitResult", "filter", "sample", "split"]

SHOWN: Final = 5  # ids that a message lists


@dataclass(frozen=True, slots=True)
class FilterResult(OperationResult):
    """What `filter` read and wrote."""

    undecided: int  # episodes for which the condition is null: not chosen
    chosen_by: Mapping[str, Any]  # what was asked for


@dataclass(frozen=True, slots=True)
class SampleResult(OperationResult):
    """What `sample` read and wrote."""

    chosen_by: Mapping[str, Any]  # what was asked for, and the seed


@dataclass(frozen=True, slots=True)
class SplitResult(OperationResult):
    """What `split` read and wrote, in sums over the parts."""

    parts: Mapping[str, Mapping[str, Any]]  # by name: out, episodes, steps
    chosen_by: Mapping[str, Any]  # what was asked for, and the seed


@checked
def filter(
    sources: Sources,
    out: str | os.PathLike[str] | Location,
    *,
    from_: str = "auto",
    mapping: str | os.PathLike[str] | Mapping[str, Any] | None = None,
    rows_as_episodes: bool = False,
    episode_ends: EpisodeEnds | None = None,
    action_scale: ActionScale | None = None,
    env: str | None = None,
    on_error: OnBadRow = "fail",
    where: str | None = None,
    top_fraction: Share | None = None,
    ids_file: str | os.PathLike[str] | None = None,
    drop_problems: str | os.PathLike[str] | None = None,
    env_kwargs: Mapping[str, Any] | None = None,
    wrappers: Sequence[str] | None = None,
    temp_dir: str | os.PathLike[str] | None = None,
    memory_limit: int | str = TABLE_MEMORY_LIMIT,
    engine: EngineName = "local",
    engine_address: str | None = None,
    workers: Count = 4,
    storage_options: Mapping[str, Any] | None = None,
    resume: bool = False,
    force_unlock: bool = False,
    overwrite: bool = False,
    dry_run: bool = False,
    format: RowFormat | None = None,
    compression: Compression | None = None,
    max_rows_per_file: Count | None = None,
    max_bytes_per_file: Count = MAX_BYTES_PER_FILE,
    on_progress: OnProgress = no_progress,
    command: Sequence[str] = (),
) -> FilterResult:
    """Write some of the episodes of `sources` as dataset `out`.

    They are those that each of `where`, `top_fraction`, `ids_file` and `drop_problems` chooses, as far as these are given.
    An episode for which the condition is null, as where it divides by zero or asks for a return that is NaN, is not chosen, and
    counted as `undecided`. `command`: for provenance.

    Raises UsageError for a condition that is none, NoData where no episode is chosen or an id is in no source, and what
    `convert` raises.
    """
    options = dict(locals())
    fraction = options["top_fraction"]
    condition = None if options["where"] is None else Condition.parsed(options["where"])
    ids, bad = (
        None if file is None else read(open_location(file, options["storage_options"]))
        for file, read in ((options["ids_file"], listed_ids), (options["drop_problems"], problem_ids))
    )
    by = {
        "where": options["where"],
        "top_fraction": fraction,
        "ids_file": None if ids is None else os.fspath(options["ids_file"] or ""),
        "ids_sha256": None if ids is None else _digest(ids),
        "drop_problems": None if bad is None else os.fspath(options["drop_problems"] or ""),
        "problems_sha256": None if bad is None else _digest(bad),
    }
    by = {name: value for name, value in by.items() if value is not None}
    if not by:
        fix = "give --where, --top-fraction, --ids-file or --drop-problems"
        raise UsageError("nothing says which episodes to keep", where="offline-cli filter", fix=fix)
    operation = Operation.begun("filter", sources, out, options=options, command=command, on_progress=on_progress)
    operation.check_target()
    columns = frozenset[str]() if condition is None else condition.columns
    survey = surveyed(operation, columns if fraction is None else {*columns, Columns.RETURN})
    chosen, undecided = np.ones(len(survey), np.bool_), 0
    if condition is not None:
        chosen, undecided = condition.holds(survey.table)
    if fraction is not None:
        chosen &= top(survey.column(Columns.RETURN), fraction)
    if ids is not None:
        chosen &= _listed(survey, ids)
    if bad is not None:
        chosen &= ~_with_problems(survey, bad)
    return FilterResult(**_written(survey, chosen, by, undecided), undecided=undecided, chosen_by=by)


def _digest(ids: Sequence[str]) -> str:
    return hashlib.sha256("\n".join(ids).encode("utf-8", "surrogatepass")).hexdigest()


def _with_problems(survey: Survey, ids: Sequence[str]) -> NDArray[np.bool_]:
    """(E,) episodes with one of these ids. Raises NoData where there are ids, and none is in a source."""
    found: NDArray[np.bool_] = pc.is_in(survey.table.column(Columns.EPS_ID), pa.array(ids, pa.string())).to_numpy()
    if ids and not found.any():
        what = f"none of the {len(ids):,} episodes with problems is in the sources"
        raise NoData(what, where=survey.operation.where, fix="give the result of validate for these sources")
    return found


def _listed(survey: Survey, ids: Sequence[str]) -> NDArray[np.bool_]:
    """(E,) episodes with one of these ids. Raises NoData where one of them is in no source."""
    have, wanted = survey.table.column(Columns.EPS_ID), pa.array(ids, pa.string())
    known = pc.is_in(wanted, have.combine_chunks()).to_pylist()
    missing = [name for name, is_known in zip(ids, known, strict=True) if not is_known]
    if missing:
        more = f" and {len(missing) - SHOWN:,} more" if len(missing) > SHOWN else ""
        what = f"{len(missing):,} of {len(ids):,} ids are in no source: {', '.join(missing[:SHOWN])}{more}"
        raise NoData(what, where=survey.operation.where, fix="take them out of the file, or name the source that they are in")
    found: NDArray[np.bool_] = pc.is_in(have, wanted).to_numpy()
    return found


@checked
def sample(
    sources: Sources,
    out: str | os.PathLike[str] | Location,
    *,
    from_: str = "auto",
    mapping: str | os.PathLike[str] | Mapping[str, Any] | None = None,
    rows_as_episodes: bool = False,
    episode_ends: EpisodeEnds | None = None,
    action_scale: ActionScale | None = None,
    env: str | None = None,
    on_error: OnBadRow = "fail",
    env_kwargs: Mapping[str, Any] | None = None,
    wrappers: Sequence[str] | None = None,
    episodes: Count | None = None,
    steps: Count | None = None,
    fraction: Share | None = None,
    seed: Whole = 0,
    temp_dir: str | os.PathLike[str] | None = None,
    memory_limit: int | str = TABLE_MEMORY_LIMIT,
    engine: EngineName = "local",
    engine_address: str | None = None,
    workers: Count = 4,
    storage_options: Mapping[str, Any] | None = None,
    resume: bool = False,
    force_unlock: bool = False,
    overwrite: bool = False,
    dry_run: bool = False,
    format: RowFormat | None = None,
    compression: Compression | None = None,
    max_rows_per_file: Count | None = None,
    max_bytes_per_file: Count = MAX_BYTES_PER_FILE,
    on_progress: OnProgress = no_progress,
    command: Sequence[str] = (),
) -> SampleResult:
    """Write episodes of `sources` drawn at random, without replacement, as dataset `out`; they keep their order.

    Exactly one of `episodes`, `steps` and `fraction` says how many; `steps`: the fewest, in the order drawn, that reach so
    many. `command`: for provenance.

    Raises UsageError, NoData where the sources hold fewer, and what `convert` raises.
    """
    options = dict(locals())
    amounts = {name: options[name] for name in ("episodes", "steps", "fraction") if options[name] is not None}
    if len(amounts) != 1:
        fix = "offline-cli sample SRC --out D --episodes 100"
        raise UsageError("give exactly one of --episodes, --steps and --fraction", where="offline-cli sample", fix=fix)
    operation = Operation.begun("sample", sources, out, options=options, command=command, on_progress=on_progress)
    operation.check_target()
    survey = surveyed(operation)
    order = drawn(len(survey), options["seed"])
    chosen = np.zeros(len(survey), np.bool_)
    chosen[order[: _count(survey, order, options)]] = True
    by = {**amounts, "seed": options["seed"]}
    return SampleResult(**_written(survey, chosen, by), chosen_by=by)


def _count(survey: Survey, order: NDArray[np.int64], options: Mapping[str, Any]) -> int:
    """How many of the episodes in `order` are drawn. Raises NoData where there are too few."""
    episodes, steps, fraction = options["episodes"], options["steps"], options["fraction"]
    if fraction is not None:
        return share_of(len(survey), fraction)
    reached = np.cumsum(survey.column(Columns.LENGTH)[order])
    have, unit = (len(survey), "episodes") if steps is None else (int(reached[-1]), "steps")
    wanted = episodes if steps is None else steps
    assert wanted is not None, "one of the three is given"
    if wanted > have:
        what = f"{wanted:,} {unit} are wanted, and the sources have {have:,}"
        raise NoData(what, where=survey.operation.where, fix="ask for fewer: an episode is drawn once")
    return wanted if steps is None else int(np.searchsorted(reached, steps)) + 1


@checked
def split(
    sources: Sources,
    out: str | os.PathLike[str] | Location,
    *,
    from_: str = "auto",
    mapping: str | os.PathLike[str] | Mapping[str, Any] | None = None,
    rows_as_episodes: bool = False,
    episode_ends: EpisodeEnds | None = None,
    action_scale: ActionScale | None = None,
    env: str | None = None,
    on_error: OnBadRow = "fail",
    fractions: Mapping[str, float] | str | None = None,
    counts: Mapping[str, int] | str | None = None,
    by: str | None = None,
    seed: Whole = 0,
    env_kwargs: Mapping[str, Any] | None = None,
    wrappers: Sequence[str] | None = None,
    temp_dir: str | os.PathLike[str] | None = None,
    memory_limit: int | str = TABLE_MEMORY_LIMIT,
    engine: EngineName = "local",
    engine_address: str | None = None,
    workers: Count = 4,
    storage_options: Mapping[str, Any] | None = None,
    resume: bool = False,
    force_unlock: bool = False,
    overwrite: bool = False,
    dry_run: bool = False,
    format: RowFormat | None = None,
    compression: Compression | None = None,
    max_rows_per_file: Count | None = None,
    max_bytes_per_file: Count = MAX_BYTES_PER_FILE,
    on_progress: OnProgress = no_progress,
    command: Sequence[str] = (),
) -> SplitResult:
    """Write the episodes of `sources` as several datasets in folder `out`, one for each part, in the order of the sources.

    Exactly one of `fractions`, `counts` and `by` says what the parts are. Those of the first two are drawn with `seed`, and
    have exactly the episodes they should, by the largest remainder. Each part is committed by itself, in their order; `resume`
    leaves those alone that are complete. `command`: for provenance.

    Raises UsageError, NoData where a part would have no episode, and what `convert` raises.
    """
    options = dict(locals())
    wanted = Parts.of(options["fractions"], options["counts"], options["by"])
    operation = Operation.begun("split", sources, out, options=options, command=command, on_progress=on_progress)
    if holds_dataset(operation.target):
        fix = "give another --out: parts are folders in it"
        raise OutputExists("a dataset is here", where=operation.target.url, fix=fix)
    if wanted.by is None:  # before anything is read
        for name in wanted.amounts:
            _done(operation, name, wanted.asked(options["seed"]))
    survey = surveyed(operation, () if wanted.by is None else (wanted.by,))
    names, part_of = wanted.drawn(survey, options["seed"])
    return _split(survey, names, part_of, wanted.asked(options["seed"]))


def _split(survey: Survey, names: Sequence[str], part_of: NDArray[np.int64], by: Mapping[str, Any]) -> SplitResult:
    """Write part number `part_of` (E,) of each episode under its name."""
    operation, lengths = survey.operation, survey.column(Columns.LENGTH)
    done = {name: manifest for name in names if (manifest := _done(operation, name, by)) is not None}
    if len(done) == len(names):
        operation.check_target(operation.target.join(names[0]))  # which says that it is complete
    left, dry_run = [name for name in names if name not in done], operation.options["dry_run"]
    number_of = np.full(len(names) + 1, NOWHERE)  # the last: of episodes in no part
    number_of[[names.index(name) for name in left]] = np.arange(len(left))
    if dry_run:
        stream, written = operation.stream(), list[Manifest]()
        stream.close()
    else:
        stream, written = survey.write([_target(operation, name, by) for name in left], number_of[part_of])
    done |= dict(zip(left, written, strict=False))
    parts: dict[str, dict[str, Any]] = {}
    for number, name in enumerate(names):
        counts = None if dry_run else done[name].counts
        mine = part_of == number
        episodes, steps = (int(mine.sum()), int(lengths[mine].sum())) if counts is None else (counts.episodes, counts.steps)
        parts[name] = {"out": operation.target.join(name).url, "episodes": episodes, "steps": steps}
    counted = {key: sum(part[key] for part in parts.values()) for key in ("episodes", "steps")}
    counted |= {"dropped": int((part_of == NOWHERE).sum()), "duplicates_dropped": survey.duplicates_dropped}
    counted["shards"] = sum(len(manifest.shards) for manifest in done.values())
    return SplitResult(**operation.figures(stream, written, **counted), parts=parts, chosen_by=by)


def _target(operation: Operation, name: str, by: Mapping[str, Any]) -> tuple[Location, dict[str, str], dict[str, Any]]:
    identity = operation.identity(**by, part=name)
    told = {"operation": {"name": operation.name, "part": name, **by, "identity": _identity(operation, identity)}}
    return operation.target.join(name), identity, told


def _identity(operation: Operation, identity: Mapping[str, str]) -> str:
    """Of what a part is and how its files are written, as its manifest has it."""
    limits = (operation.options["max_rows_per_file"], operation.options["max_bytes_per_file"])
    return content_hash_of(json.dumps([identity, operation.format, operation.compression, *limits]))


def _done(operation: Operation, name: str, by: Mapping[str, Any]) -> Manifest | None:
    """The manifest of a part that `resume` finds complete; None where it is to be written. Raises as `check_target` does."""
    place, options = operation.target.join(name), operation.options
    if options["resume"] and not options["overwrite"] and place.join(MANIFEST).exists() and not place.join(WRITING).exists():
        found = Manifest.read(place)
        said = found.provenance.get("operation")
        identity = _identity(operation, operation.identity(**by, part=name))
        if found.complete and isinstance(said, dict) and said.get("identity") == identity:
            return found
    operation.check_target(place)
    return None


# ---- one target ----


def _written(survey: Survey, chosen: NDArray[np.bool_], by: Mapping[str, Any], undecided: int = 0) -> dict[str, Any]:
    """Write the chosen episodes to the operation's target; the fields of `OperationResult`. Raises NoData where none is.

    `undecided`: for how many of all episodes the condition is null.
    """
    operation, count = survey.operation, int(np.count_nonzero(chosen))
    if not count:
        fix = "offline-cli inspect shows between which values returns and lengths are"
        if undecided:
            fix = f"the condition is null for {undecided:,} of them; `is null` and `is not null` ask for that"
        raise NoData(f"none of the {len(survey):,} episodes is chosen; nothing was written", where=operation.where, fix=fix)
    dropped, duplicates = len(survey) - count, survey.duplicates_dropped
    if operation.options["dry_run"]:
        stream, steps = operation.stream(), int(survey.column(Columns.LENGTH)[chosen].sum())
        stream.close()
        return operation.figures(stream, [], episodes=count, steps=steps, dropped=dropped, duplicates_dropped=duplicates)
    told = {"operation": {"name": operation.name, **by}}
    target = operation.target, operation.identity(**by), told
    stream, written = survey.write([target], np.where(chosen, 0, NOWHERE))
    return operation.figures(stream, written, dropped=dropped, duplicates_dropped=duplicates)

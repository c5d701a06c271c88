"""`filter` and `sample`: some of the episodes of any sources, in the order of the sources, as a dataset."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Unpack

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from offline_cli.columns import Columns
from offline_cli.converting.operations import Operation, OperationResult
from offline_cli.converting.operations.choosing import NOWHERE, Survey, drawn, listed_ids, share_of, surveyed, top
from offline_cli.converting.operations.conditions import Condition
from offline_cli.datasets.target_folder import check_target
from offline_cli.errors import NoData, UsageError
from offline_cli.files.locations import Location, Sources, open_location
from offline_cli.options.keywords import takes
from offline_cli.options.operations import FilterOptions, SampleOptions
from offline_cli.progress import OnProgress, no_progress

__all__ = ["FilterResult", "SampleResult", "filter", "sample"]

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


@takes(FilterOptions)
def filter(
    sources: Sources,
    out: str | os.PathLike[str] | Location,
    *,
    on_progress: OnProgress = no_progress,
    command: Sequence[str] = (),
    **options: Unpack[FilterOptions],
) -> FilterResult:
    """Write the episodes of `sources` that each of `where`, `top_fraction` and `ids_file` chooses, as dataset `out`.

    An episode for which the condition is null, as where it divides by zero or asks for a return that is NaN, is not chosen, and
    counted as `undecided`. `command`: for provenance.

    Raises UsageError for a condition that is none, NoData where no episode is chosen or an id is in no source, and what
    `convert` raises.
    """
    fraction = _checked_share(options["top_fraction"], "--top-fraction", "filter")
    condition = None if options["where"] is None else Condition.parsed(options["where"])
    ids = None if options["ids_file"] is None else listed_ids(open_location(options["ids_file"], options["storage_options"]))
    by = {
        "where": options["where"],
        "top_fraction": fraction,
        "ids_file": None if ids is None else os.fspath(options["ids_file"] or ""),
        "ids_sha256": None if ids is None else hashlib.sha256("\n".join(ids).encode()).hexdigest(),
    }
    by = {name: value for name, value in by.items() if value is not None}
    if not by:
        fix = "give --where, --top-fraction or --ids-file"
        raise UsageError("nothing says which episodes to keep", where="offline-cli filter", fix=fix)
    operation = Operation.begun(
        "filter", sources, out, kind=FilterOptions, options=options, command=command, on_progress=on_progress
    )
    check_target(operation.target, overwrite=options["overwrite"], resume=options["resume"])
    survey = surveyed(operation, () if condition is None else condition.columns)
    chosen, undecided = np.ones(len(survey), np.bool_), 0
    if condition is not None:
        chosen, undecided = condition.holds(survey.table)
    if fraction is not None:
        chosen &= top(survey.column(Columns.RETURN), fraction)
    if ids is not None:
        chosen &= _listed(survey, ids)
    return FilterResult(**_written(survey, chosen, by), undecided=undecided, chosen_by=by)


def _listed(survey: Survey, ids: Sequence[str]) -> NDArray[np.bool_]:
    """(E,) episodes with one of these ids. Raises NoData where one of them is in no source."""
    have, wanted = survey.table.column(Columns.EPS_ID), pa.array(ids, pa.string())
    known = pc.is_in(wanted, have.combine_chunks()).to_pylist()
    missing = [name for name, is_known in zip(ids, known, strict=True) if not is_known]
    if missing:
        more = f" and {len(missing) - SHOWN:,} more" if len(missing) > SHOWN else ""
        what = f"{len(missing):,} of {len(ids):,} ids are in no source: {', '.join(missing[:SHOWN])}{more}"
        where = ", ".join(place.url for place in survey.operation.places)
        raise NoData(what, where=where, fix="take them out of the file, or name the source that they are in")
    found: NDArray[np.bool_] = pc.is_in(have, wanted).to_numpy()
    return found


@takes(SampleOptions)
def sample(
    sources: Sources,
    out: str | os.PathLike[str] | Location,
    *,
    on_progress: OnProgress = no_progress,
    command: Sequence[str] = (),
    **options: Unpack[SampleOptions],
) -> SampleResult:
    """Write episodes of `sources` drawn at random, without replacement, as dataset `out`; they keep their order.

    Exactly one of `episodes`, `steps` and `fraction` says how many; `steps`: the fewest, in the order drawn, that reach so
    many. `command`: for provenance.

    Raises UsageError, NoData where the sources hold fewer, and what `convert` raises.
    """
    amounts = {name: options[name] for name in ("episodes", "steps", "fraction") if options[name] is not None}
    if len(amounts) != 1:
        fix = "offline-cli sample SRC --out D --episodes 100"
        raise UsageError("give exactly one of --episodes, --steps and --fraction", where="offline-cli sample", fix=fix)
    _checked_share(options["fraction"], "--fraction", "sample")
    operation = Operation.begun(
        "sample", sources, out, kind=SampleOptions, options=options, command=command, on_progress=on_progress
    )
    check_target(operation.target, overwrite=options["overwrite"], resume=options["resume"])
    survey = surveyed(operation)
    order = drawn(len(survey), options["seed"])
    chosen = np.zeros(len(survey), np.bool_)
    chosen[order[: _count(survey, order, options)]] = True
    by = {**amounts, "seed": options["seed"]}
    return SampleResult(**_written(survey, chosen, by), chosen_by=by)


def _count(survey: Survey, order: NDArray[np.int64], options: SampleOptions) -> int:
    """How many of the episodes in `order` are drawn. Raises NoData where there are too few."""
    episodes, steps, fraction = options["episodes"], options["steps"], options["fraction"]
    if fraction is not None:
        return share_of(len(survey), fraction)
    reached = np.cumsum(survey.column(Columns.LENGTH)[order])
    have, unit = (len(survey), "episodes") if steps is None else (int(reached[-1]), "steps")
    wanted = episodes if steps is None else steps
    assert wanted is not None, "one of the three is given"
    if wanted > have:
        where = ", ".join(place.url for place in survey.operation.places)
        what = f"{wanted:,} {unit} are wanted, and the sources have {have:,}"
        raise NoData(what, where=where, fix="ask for fewer: an episode is drawn once")
    return wanted if steps is None else int(np.searchsorted(reached, steps)) + 1


def _checked_share(fraction: float | None, option: str, command: str) -> float | None:
    if fraction is not None and fraction > 1:
        raise UsageError(f"{option} {fraction:g} is above 1", where=f"offline-cli {command}", fix=f"{option} 0.1, for a tenth")
    return fraction


# ---- one target ----


def _written(survey: Survey, chosen: NDArray[np.bool_], by: Mapping[str, Any]) -> dict[str, Any]:
    """Write the chosen episodes to the operation's target; the fields of `OperationResult`. Raises NoData where none is."""
    operation, count = survey.operation, int(np.count_nonzero(chosen))
    if not count:
        where = ", ".join(place.url for place in operation.places)
        fix = "offline-cli inspect shows between which values returns and lengths are"
        raise NoData(f"none of the {len(survey):,} episodes is chosen; nothing was written", where=where, fix=fix)
    stream, share = survey.stream(np.where(chosen, 0, NOWHERE))
    figures: dict[str, Any] = {"out": operation.target.url, "format": operation.format, "action_scale": stream.action_scale}
    figures |= {"dropped": len(survey) - count, "dry_run": operation.options["dry_run"]}
    if operation.options["dry_run"]:
        with stream:
            lost = stream.episodes_lost
        steps = int(survey.column(Columns.LENGTH)[chosen].sum())
        figures |= {"episodes": count, "steps": steps, "shards": 0, "assumptions": {}, "episodes_lost": lost}
        figures |= {"duplicates_dropped": survey.duplicates_dropped}
    else:
        identity = operation.identity(**by)
        provenance = {"operation": {"name": operation.name, **by}}
        copied = operation.copy(
            stream, [operation.writer(stream, operation.target, identity=identity, provenance=provenance)], share
        )
        counts, shards = copied.manifests[0].counts, copied.manifests[0].shards
        figures |= {"episodes": counts.episodes, "steps": counts.steps, "shards": len(shards)}
        figures |= {"assumptions": copied.assumptions, "episodes_lost": copied.episodes_lost}
        figures |= {"duplicates_dropped": copied.duplicates_dropped}
    return {**figures, "seconds": time.monotonic() - operation.started}

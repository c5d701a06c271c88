"""`filter`, `sample` and `split`: episodes of any sources, in the order of the sources, as one dataset or several."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Unpack

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from offline_cli.choices import Count, Share, Whole
from offline_cli.columns import Columns
from offline_cli.converting.operations.choosing import Parts, drawn, listed_ids, problem_ids, share_of, top
from offline_cli.converting.operations.conditions import Condition
from offline_cli.converting.operations.operation import (
    NOWHERE,
    Operation,
    OperationOptions,
    OperationResult,
    Survey,
    Target,
    with_options,
)
from offline_cli.datasets.dataset import holds_dataset
from offline_cli.datasets.file_names import MANIFEST, WRITING
from offline_cli.datasets.manifest import Manifest
from offline_cli.errors import NoData, OutputExists, UsageError
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


@with_options
def filter(
    sources: Sources,
    out: str | os.PathLike[str] | Location,
    *,
    where: str | None = None,
    top_fraction: Share | None = None,
    ids_file: str | os.PathLike[str] | None = None,
    drop_problems: str | os.PathLike[str] | None = None,
    **options: Unpack[OperationOptions],
) -> FilterResult:
    """Write some of the episodes of `sources` as dataset `out`.

    They are those that each of `where`, `top_fraction`, `ids_file` and `drop_problems` chooses, as far as these are given.
    An episode for which the condition is null, as where it asks for a return that is NaN, is not chosen, and counted as
    `undecided`.

    Raises UsageError for a condition that is none, NoData where no episode is chosen or an id is in no source, and what
    `convert` raises.
    """
    condition, by = None if where is None else Condition.parsed(where), dict[str, Any]()
    if condition is not None:
        by["where"] = where
    if top_fraction is not None:
        by["top_fraction"] = top_fraction
    ids, bad = list[str](), list[str]()
    if ids_file is not None:
        ids = listed_ids(open_location(ids_file, options["storage_options"]))
        by |= {"ids_file": os.fspath(ids_file), "ids_sha256": _digest(ids)}
    if drop_problems is not None:
        bad = problem_ids(open_location(drop_problems, options["storage_options"]))
        by |= {"drop_problems": os.fspath(drop_problems), "problems_sha256": _digest(bad)}
    if not by:
        fix = "give --where, --top-fraction, --ids-file or --drop-problems"
        raise UsageError("nothing says which episodes to keep", where="offline-cli filter", fix=fix)
    operation = Operation.begun("filter", sources, out, options)
    operation.check_target()
    columns = frozenset[str]() if condition is None else condition.columns
    survey = operation.survey(columns if top_fraction is None else {*columns, Columns.RETURN})
    chosen, undecided = (np.ones(len(survey), np.bool_), 0) if condition is None else condition.holds(survey.table)
    if top_fraction is not None:
        chosen = chosen & top(survey.column(Columns.RETURN), top_fraction)
    if ids:
        chosen = chosen & _listed(survey, ids, operation.where)
    if bad:
        chosen = chosen & ~_with_ids(survey, bad)
    if not chosen.any():
        fix = "offline-cli inspect shows between which values returns and lengths are"
        if undecided:
            fix = f"the condition is null for {undecided:,} of them; `is null` and `is not null` ask for that"
        raise NoData(f"none of the {len(survey):,} episodes is chosen; nothing was written", where=operation.where, fix=fix)
    return FilterResult(**operation.write_chosen(survey, chosen, by), undecided=undecided, chosen_by=by)


def _digest(ids: Sequence[str]) -> str:
    return hashlib.sha256("\n".join(ids).encode("utf-8", "surrogatepass")).hexdigest()


def _with_ids(survey: Survey, ids: Sequence[str]) -> NDArray[np.bool_]:
    """(E,) episodes with one of these ids."""
    found: NDArray[np.bool_] = pc.is_in(survey.table.column(Columns.EPS_ID), pa.array(ids, pa.string())).to_numpy()
    return found


def _listed(survey: Survey, ids: Sequence[str], where: str) -> NDArray[np.bool_]:
    """(E,) episodes with one of these ids. Raises NoData where one of them is in no source."""
    if missing := list(set(ids).difference(survey.table.column(Columns.EPS_ID).to_pylist())):
        shown, more = sorted(missing)[:SHOWN], f" and {len(missing) - SHOWN:,} more" if len(missing) > SHOWN else ""
        what = f"{len(missing):,} of {len(ids):,} ids are in no source: {', '.join(shown)}{more}"
        raise NoData(what, where=where, fix="take them out of the file, or name the source that they are in")
    return _with_ids(survey, ids)


@with_options
def sample(
    sources: Sources,
    out: str | os.PathLike[str] | Location,
    *,
    episodes: Count | None = None,
    steps: Count | None = None,
    fraction: Share | None = None,
    seed: Whole = 0,
    **options: Unpack[OperationOptions],
) -> SampleResult:
    """Write episodes of `sources` drawn at random, without replacement, as dataset `out`; they keep their order.

    Exactly one of `episodes`, `steps` and `fraction` says how many; `steps`: the fewest, in the order drawn, that reach so
    many.

    Raises UsageError, NoData where the sources hold fewer, and what `convert` raises.
    """
    amounts = {"episodes": episodes, "steps": steps, "fraction": fraction}
    by = {name: amount for name, amount in amounts.items() if amount is not None}
    if len(by) != 1:
        fix = "offline-cli sample SRC --out D --episodes 100"
        raise UsageError("give exactly one of --episodes, --steps and --fraction", where="offline-cli sample", fix=fix)
    operation = Operation.begun("sample", sources, out, options)
    operation.check_target()
    survey = operation.survey()
    order = drawn(len(survey), seed)
    reached = np.cumsum(survey.column(Columns.LENGTH)[order])
    have, unit = (len(survey), "episodes") if steps is None else (int(reached[-1]), "steps")
    if (wanted := episodes or steps or 0) > have:
        what = f"{wanted:,} {unit} are wanted, and the sources have {have:,}"
        raise NoData(what, where=operation.where, fix="ask for fewer: an episode is drawn once")
    count = episodes if episodes is not None else share_of(len(survey), fraction or 0)
    if steps is not None:
        count = int(np.searchsorted(reached, steps)) + 1
    chosen = np.zeros(len(survey), np.bool_)
    chosen[order[:count]] = True
    by["seed"] = seed
    return SampleResult(**operation.write_chosen(survey, chosen, by), chosen_by=by)


@with_options
def split(
    sources: Sources,
    out: str | os.PathLike[str] | Location,
    *,
    fractions: Mapping[str, float] | str | None = None,
    counts: Mapping[str, int] | str | None = None,
    by: str | None = None,
    seed: Whole = 0,
    **options: Unpack[OperationOptions],
) -> SplitResult:
    """Write the episodes of `sources` as several datasets in folder `out`, one for each part, in the order of the sources.

    Exactly one of `fractions`, `counts` and `by` says what the parts are. Those of the first two are drawn with `seed`, and
    have exactly the episodes they should, by the largest remainder. Each part is committed by itself, in their order; `resume`
    leaves those alone that are complete.

    Raises UsageError, NoData where a part would have no episode, and what `convert` raises.
    """
    wanted = Parts.of(fractions, counts, by)
    asked = wanted.asked(seed)
    operation = Operation.begun("split", sources, out, options)
    if holds_dataset(operation.out):
        fix = "give another --out: parts are folders in it"
        raise OutputExists("a dataset is here", where=operation.out.url, fix=fix)
    for name in wanted.amounts:  # before anything is read
        _done(operation, _target(operation, name, asked))
    survey = operation.survey(() if by is None else (by,))
    names, part_of = wanted.drawn(survey, seed, operation.where)
    targets = [_target(operation, name, asked) for name in names]
    complete = [_done(operation, target) for target in targets]
    left = [number for number, manifest in enumerate(complete) if manifest is None]
    if not left:
        operation.check_target(targets[0].place)  # which says that it is complete
    goes_to = np.full(len(names) + 1, NOWHERE)  # the last: of episodes in no part
    goes_to[left] = np.arange(len(left))
    to_write = [] if options["dry_run"] else [targets[number] for number in left]
    stream, written = operation.write(to_write, survey, goes_to[part_of])
    parts, lengths = dict[str, dict[str, Any]](), survey.column(Columns.LENGTH)
    for number, (name, target) in enumerate(zip(names, targets, strict=True)):
        mine = part_of == number
        parts[name] = {"out": target.place.url, "episodes": int(mine.sum()), "steps": int(lengths[mine].sum())}
    counted: dict[str, Any] = {key: sum(part[key] for part in parts.values()) for key in ("episodes", "steps")}
    counted |= {"dropped": int((part_of == NOWHERE).sum()), "duplicates_dropped": survey.duplicates_dropped}
    counted["shards"] = sum(len(manifest.shards) for manifest in (*complete, *written) if manifest is not None)
    return SplitResult(**operation.figures(stream, written, **counted), parts=parts, chosen_by=asked)


def _target(operation: Operation, name: str, asked: Mapping[str, Any]) -> Target:
    return Target(operation.out.join(name), {**asked, "part": name})


def _done(operation: Operation, target: Target) -> Manifest | None:
    """The manifest of a part that `resume` finds complete; None where it is to be written. Raises as `check_target` does."""
    place, options = target.place, operation.options
    if options["resume"] and not options["overwrite"] and place.join(MANIFEST).exists() and not place.join(WRITING).exists():
        found = Manifest.read(place)
        said = found.provenance.get("operation")
        if found.complete and isinstance(said, dict) and said.get("identity") == operation.identity_hash(target.by):
            return found
    operation.check_target(place)
    return None

"""`split`: write the episodes of any sources, in source order, as several datasets in one folder."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Any, Final, Unpack
from urllib.parse import quote

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from offline_cli.choices import Whole
from offline_cli.columns import Columns
from offline_cli.converting.operations.operation import (
    NOWHERE,
    Operation,
    OperationOptions,
    OperationResult,
    Target,
    with_options,
)
from offline_cli.converting.operations.selecting import drawn
from offline_cli.datasets.dataset import holds_dataset
from offline_cli.datasets.file_names import MANIFEST, WRITING
from offline_cli.datasets.manifest import Manifest
from offline_cli.datasets.row_format import PLAIN_SCHEMA
from offline_cli.errors import NoData, OutputExists, UsageError
from offline_cli.storage.locations import Location, Sources

TOLERANCE: Final = 1e-9  # for the sum of fractions: 0.7 + 0.2 + 0.1 is not 1
MOST_PARTS: Final = 64
PART_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._=-]{0,99}(?<![.])", re.ASCII)
EXAMPLES: Final = {"--fractions": "train=0.9,val=0.1", "--counts": "train=100,val=20"}


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
) -> OperationResult:
    """Write the episodes of `sources` as several datasets in folder `out`, one for each part, in source order.

    Exactly one of `fractions`, `counts` and `by` (a column, or a field of custom data) defines the parts. With the first two,
    episodes are drawn with `seed`, and sizes are exact, by the largest remainder method. Parts are committed one by one, in
    order; `resume` skips complete ones.

    Raises UsageError, NoData if a part would be empty, and as `convert` does.
    """
    if sum(option is not None for option in (fractions, counts, by)) != 1:
        fix = "offline-cli split SRC --out F --fractions train=0.9,val=0.1"
        raise UsageError("give exactly one of --fractions, --counts and --by", where="offline-cli split", fix=fix)
    amounts = _amounts(fractions, counts)
    asked: dict[str, Any] = {"by": by}
    if by is None:
        asked = {"fractions" if counts is None else "counts": amounts, "seed": seed}
    operation = Operation.begun("split", sources, out, options)
    if holds_dataset(operation.out):
        fix = "give another --out, in which the parts become folders"
        raise OutputExists("the output folder is a dataset", where=operation.out.url, fix=fix)
    for name in amounts:  # before anything is read
        _complete_part(operation, _target(operation, name, asked))
    survey = operation.survey(() if by is None else (by,))
    if by is None:
        names, part_of = list(amounts), _parts_by_chance(amounts, counts is not None, len(survey), seed, operation.where)
    else:
        names, part_of = _parts_by_value(survey.table.column(by), by)
    targets = [_target(operation, name, asked) for name in names]
    complete = [_complete_part(operation, target) for target in targets]
    left = [number for number, manifest in enumerate(complete) if manifest is None]
    if not left:
        operation.check_target(targets[0].place)  # raises, because it is complete
    goes_to = np.full(len(names) + 1, NOWHERE)  # the last entry is for episodes in no part
    goes_to[left] = np.arange(len(left))
    stream, written = operation.write([targets[number] for number in left], survey, goes_to[part_of])
    lengths = survey.column(Columns.LENGTH)
    parts = {
        name: {"out": target.place.url, "episodes": int((part_of == n).sum()), "steps": int(lengths[part_of == n].sum())}
        for n, (name, target) in enumerate(zip(names, targets, strict=True))
    }
    counted: dict[str, Any] = {key: sum(part[key] for part in parts.values()) for key in ("episodes", "steps")}
    counted |= {"dropped": int((part_of == NOWHERE).sum()), "duplicates_dropped": survey.duplicates_dropped}
    counted["shards"] = sum(len(manifest.shards) for manifest in (*complete, *written) if manifest is not None)
    return operation.result(stream, written, **counted, parts=parts, chosen_by=asked)


def _target(operation: Operation, name: str, asked: Mapping[str, Any]) -> Target:
    return Target(operation.out.join(name), {**asked, "part": name})


def _complete_part(operation: Operation, target: Target) -> Manifest | None:
    """The manifest of a complete part under `resume`; None if it must be written. Raises as `check_target` does."""
    place, options = target.place, operation.options
    if options["resume"] and not options["overwrite"] and place.join(MANIFEST).exists() and not place.join(WRITING).exists():
        found = Manifest.read(place)
        said = found.provenance.get("operation")
        if found.complete and isinstance(said, dict) and said.get("identity") == operation.identity_hash(target.by):
            return found
    operation.check_target(place)
    return None


# ---- parts of a split ----


def _amounts(fractions: Mapping[str, float] | str | None, counts: Mapping[str, int] | str | None) -> dict[str, float]:
    """The fraction or count of each part, by name; empty if neither is given. Raises UsageError, naming all mistakes."""
    option, given = ("--counts", counts) if fractions is None else ("--fractions", fractions)
    pairs = [part.rpartition("=")[::2] for part in given.split(",")] if isinstance(given, str) else (given or {}).items()
    amounts, wrong = dict[str, float](), list[str]()
    for name, text in ((name.strip(), str(text).strip()) for name, text in pairs):
        try:
            amount = int(text) if fractions is None else float(text)
        except ValueError:
            amount = 0
        if not 0 < amount <= (1 << 60 if fractions is None else 1):
            wrong.append(
                f"{name}={text}: expected {'an integer above 0' if fractions is None else 'a number above 0, up to 1'}"
            )
        if not PART_NAME.fullmatch(name):
            wrong.append(f"invalid part name {name!r}: use letters, digits, - _ . and =, starting with a letter or digit")
        elif name.casefold() in map(str.casefold, amounts):
            wrong.append(f"{name!r} is given twice, or differs only in case")
        amounts[name] = amount
    if fractions is not None and not wrong and sum(amounts.values()) > 1 + TOLERANCE:
        wrong.append(f"the fractions sum to {sum(amounts.values()):g}, more than 1")
    if wrong:
        raise UsageError.of(wrong, where=option, fix=f"{option} {EXAMPLES[option]}")
    return amounts


def _parts_by_chance(amounts: Mapping[str, float], are_counts: bool, have: int, seed: int, where: str) -> NDArray[np.int64]:
    """(E,) the part number of each episode, or NOWHERE; sizes are exact, by the largest remainder method.

    Raises NoData if the `have` episodes of the sources `where` are too few.
    """
    quotas = np.array(list(amounts.values())) * (1 if are_counts else have)
    sizes = np.floor(quotas + TOLERANCE).astype(np.int64)
    left = round(float(quotas.sum())) - int(sizes.sum())
    sizes[np.argsort(sizes - quotas, kind="stable")[: max(0, left)]] += 1
    if sizes.sum() > have:
        what = f"{sizes.sum():,} episodes requested, but the sources have {have:,}"
        raise NoData(what, where=where, fix="request fewer: each episode goes to one part")
    if empty := [name for name, size in zip(amounts, sizes.tolist(), strict=True) if not size]:
        what = f"of {have:,} episodes none is left for {', '.join(empty)}; nothing was written"
        raise NoData(what, where=where, fix="give larger fractions, or --counts")
    part_of = np.full(have, NOWHERE)
    part_of[drawn(have, seed)[: sizes.sum()]] = np.repeat(np.arange(len(sizes)), sizes)
    return part_of


def _parts_by_value(column: Any, name: str) -> tuple[list[str], NDArray[np.int64]]:
    """Part names, one for each value of a pa.ChunkedArray, sorted, null last; and (E,) the part number of each episode.

    Raises UsageError for a column that no episode has, for too many values, and for values that differ only in case.
    """
    if name not in PLAIN_SCHEMA.names and column.null_count == len(column):
        fix = f"use one of {', '.join(PLAIN_SCHEMA.names)}, or a field of the episodes' custom data"
        raise UsageError(f"no column of episodes is called {name!r}", where="--by", fix=fix)
    values = pc.unique(column).sort() if column.null_count < len(column) else pc.unique(column)
    names = [_folder_name(value) for value in values.to_pylist()]
    if len(names) > MOST_PARTS or len({name.casefold() for name in names}) < len(names):
        what = f"column {name!r} has {len(names):,} values; at most {MOST_PARTS}, different apart from case, can be parts"
        raise UsageError(what, where="--by", fix="use filter --where with your own conditions")
    return names, pc.index_in(column, pa.array(values)).to_numpy().astype(np.int64)


def _folder_name(value: Any) -> str:
    """A value as a percent-encoded folder name."""
    text = "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
    safe = quote(text, safe="", errors="replace")[:100] or "empty"
    return safe if safe[0].isalnum() or safe[0] == "%" else f"%{ord(safe[0]):02X}{safe[1:]}"

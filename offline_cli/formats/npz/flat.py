"""Flat arrays of an archive, a row a step as D4RL has them: a table, which names or a mapping explain; and back.

Arrays without a row a step are no columns, and are left out by name.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Final

from numpy.typing import NDArray

from offline_cli.columns import Columns
from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.errors import BadData, BadMapping
from offline_cli.formats.dropped_leaves import LEFT_OUT
from offline_cli.formats.flat_steps import NEXT, FlatSteps
from offline_cli.formats.npz.archive import NpzArchive
from offline_cli.formats.npz.columns import ALIASES, TREES, column_names
from offline_cli.formats.npz.writing import ArchiveSink, check_npz
from offline_cli.formats.reader import OpenContext
from offline_cli.formats.sink import SinkContext, SinkKind
from offline_cli.formats.source import Fragments, Source
from offline_cli.formats.tables import TableSource
from offline_cli.scopes import Scope
from offline_cli.storage.locations import Location
from offline_cli.tally import Rejects, Tally

__all__ = ["NPZ_SINK", "NpzSource", "open_npz"]

HOW: Final = (
    "--mapping FILE, where FILE says what the arrays mean (docs/tables.md), or write observations, actions, rewards, terminals"
    " and timeouts (docs/formats.md#numpy-archives)"
)


def open_npz(files: Sequence[Location], context: OpenContext) -> Source:
    """Raises BadMapping where no mapping is given and the names say nothing; BadData."""
    tables, left_out = context.tables, dict[str, str]()
    for file in files:
        with Scope() as scope:
            archive = NpzArchive(file, scope, memory_limit=tables.memory_limit)
            names, rows = column_names(archive)
        left_out |= {name: one.why_no_column(rows) for name, one in archive.arrays.items() if name not in names}
        if tables.mapping is None:
            columns = _columns_of(names)
            if not {Columns.OBS, Columns.ACTIONS} <= {name.partition(".")[0] for name in columns}:
                known = next((name for name in left_out if name in (*ALIASES[Columns.OBS], *ALIASES[Columns.ACTIONS])), None)
                if known is not None:
                    what = f"the array {known!r} is {left_out[known]}"
                    raise BadData(what, where=file.url, fix="write it with a row a step")
                raise BadMapping(f"arrays whose names say nothing: {', '.join(archive.arrays)[:500]}", where=file.url, fix=HOW)
            left_out |= dict.fromkeys(context.drop.intersection(columns), LEFT_OUT)
            columns = {ours: theirs for ours, theirs in columns.items() if ours not in context.drop}
            tables = replace(tables, mapping={"description": "Arrays by the names that this field uses.", "columns": columns})
    try:
        source = NpzSource(files, context.location, options=tables, storage_options=context.storage_options, kind="npz")
    except BadMapping as error:
        if not left_out:
            raise
        what = f"{error.what}; no columns are {'; '.join(f'{name} ({why})' for name, why in left_out.items())}"
        raise BadMapping(what[:2000], where=error.where, fix=error.fix) from error
    source.left_out = left_out
    return source


def _columns_of(names: Collection[str]) -> dict[str, str]:
    """Theirs by ours, as a mapping has them."""
    columns: dict[str, str] = {}
    for ours, aliases in ALIASES.items():
        for theirs in aliases:
            below = [name for name in names if name.startswith(f"{theirs}/")] if ours in TREES else []
            parts = {f"{ours}.{name[len(theirs) + 1 :].replace('/', '.')}": name for name in below}
            if theirs in names or parts:
                columns |= {ours: theirs} if theirs in names else parts
                break
    return columns


@dataclass(slots=True)
class NpzSource(TableSource):
    """Archives of one table, in the order given."""

    format: ClassVar = "npz"
    left_out: Mapping[str, str] | None = None  # arrays that are no columns, and why

    def fragments(self, tally: Tally, rejects: Rejects) -> Iterator[Fragments]:
        """As of a table."""
        for name, why in (self.left_out or {}).items():
            tally.drop_column(name, why)
        yield from TableSource.fragments(self, tally, rejects)


class _FlatSink(ArchiveSink):
    """See the module."""

    def __init__(self, target: Location, context: SinkContext) -> None:
        super().__init__(target, context, "npz")
        self._steps = FlatSteps(context.tally)

    def arrays_of(self, batch: EpisodeBatch) -> dict[str, NDArray[Any]]:
        """See `ArchiveSink`."""
        return self._steps.arrays(batch, batch.extra)

    def unwanted(self) -> set[str]:
        """See `ArchiveSink`."""
        return set() if self._steps.are_finals_known() else {NEXT}


NPZ_SINK: Final = SinkKind(
    "npz",
    "a NumPy archive of flat arrays, a row a step, as D4RL's",
    _FlatSink,
    check_npz,
    {"overwrite"},
    "steps, last observations, extra outputs; not ids, spaces, infos, custom data, clocks",
)

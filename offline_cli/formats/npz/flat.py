"""Flat arrays of an archive, a row a step as D4RL has them: a table, which names or a mapping explain.

Arrays without a row a step are no columns, and are left out by name.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Final

from offline_cli.columns import Columns
from offline_cli.errors import BadMapping
from offline_cli.formats.dropped_leaves import LEFT_OUT
from offline_cli.formats.npz.archive import NpzArchive
from offline_cli.formats.npz.columns import ALIASES, TREES, column_names
from offline_cli.formats.reader import OpenContext
from offline_cli.formats.source import Fragments, Source
from offline_cli.formats.tables import TableSource
from offline_cli.scopes import Scope
from offline_cli.storage.locations import Location
from offline_cli.tally import Rejects, Tally

HOW: Final = (
    "--mapping FILE, where FILE says what the arrays mean (docs/howto/tables.md), or write observations, actions, rewards,"
    " terminals and timeouts (docs/howto/formats.md#numpy-arrays)"
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
                what = f"no arrays of observations and actions, by their names: {', '.join(names)[:500]}{_and(left_out)}"
                raise BadMapping(what, where=file.url, fix=HOW)
            left_out |= dict.fromkeys(context.drop.intersection(columns), LEFT_OUT)
            columns = {ours: theirs for ours, theirs in columns.items() if ours not in context.drop}
            tables = replace(tables, mapping={"description": "Arrays by the names that this field uses.", "columns": columns})
    try:
        source = NpzSource(files, context.location, options=tables, storage_options=context.storage_options, kind="npz")
    except BadMapping as error:
        raise BadMapping(f"{error.what}{_and(left_out)}", where=error.where, fix=error.fix) from error
    source.left_out = left_out
    return source


def _and(left_out: Mapping[str, str]) -> str:
    """The arrays that are no columns, for the end of a message."""
    return f"; no columns are {'; '.join(f'{name} ({why})' for name, why in left_out.items())}"[:2000] if left_out else ""


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

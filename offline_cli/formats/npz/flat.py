"""Opens archives of flat arrays as tables: by a mapping, or by the names that this field uses; and which archives look so."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from offline_cli.errors import BadData, BadMapping
from offline_cli.formats.left_out import why_no_column
from offline_cli.formats.listing import Listing
from offline_cli.formats.memory_limits import MEMORY_LIMIT
from offline_cli.formats.npz.archive import NpzArchive
from offline_cli.formats.npz.columns import NO_COLUMN, mapping_for, rows_of
from offline_cli.formats.npz.ogbench import OGBENCH_ARRAYS, OGBENCH_NAME, OGBENCH_OWN
from offline_cli.formats.reader import LIKELY, NO, SURE, OpenContext
from offline_cli.formats.source import Fragments, Source, SourceInfo
from offline_cli.formats.tables import TableSource
from offline_cli.scopes import Scope
from offline_cli.storage.locations import Location
from offline_cli.tally import Rejects, Tally

__all__ = ["NpzSource", "open_npz", "sniff_npz", "sniff_ogbench"]


@dataclass(slots=True)
class NpzSource(TableSource):
    """Archives of one table, in the order given."""

    format: ClassVar = "npz"

    def __post_init__(self, location: str, declared: SourceInfo | None) -> None:
        """Raises BadData where an array that the mapping names has no value a row."""
        TableSource.__post_init__(self, location, declared)
        for part in self.mapping.parts:
            for url, types in self._types.items():
                bad = next((name for name in part.columns if types.get(name) == NO_COLUMN), None)
                if bad is not None:
                    what = f"the array {bad[:80]!r} ({part.said_as}) does not have a number in each row"
                    fix = "write numbers, as many rows as the other arrays have; or name another one with --mapping"
                    raise BadData(what, where=url, fix=fix)

    def fragments(self, tally: Tally, rejects: Rejects) -> Iterator[Fragments]:
        """As of a table, which knows by its type alone that an array is no column: what that is of is said before."""
        for file in self.files:
            if odd := [name for name, kind in self._types.get(file.url, {}).items() if kind == NO_COLUMN]:
                with Scope() as scope:
                    archive = NpzArchive(file, scope, memory_limit=self.options.memory_limit)
                    for info in map(archive.arrays.__getitem__, odd):
                        tally.drop_column(info.name, why_no_column(info.said, info.shape, rows_of(archive)))
        yield from TableSource.fragments(self, tally, rejects)


def open_npz(files: Sequence[Location], context: OpenContext) -> Source:
    """Raises BadMapping where no mapping is given and the names say nothing; BadData."""
    tables = context.tables
    if tables.mapping is None:
        names = _names(files[0], tables.memory_limit)
        mapping = mapping_for(names)
        if mapping is None:
            what = f"arrays whose names say nothing: {', '.join(names)[:500]}"
            fix = (
                "--mapping FILE, where FILE says what the arrays mean (docs/tables.md), or write observations, actions, rewards"
            )
            raise BadMapping(what, where=files[0].url, fix=f"{fix}, terminals and timeouts (docs/formats.md#numpy-archives)")
        tables = replace(tables, mapping=mapping)
    return NpzSource(files, context.location, options=tables, storage_options=context.storage_options, kind="npz")


def sniff_npz(listing: Listing) -> float:
    """Any archive of arrays, which may need a mapping."""
    return LIKELY if listing.kind == "npz" else NO


def sniff_ogbench(listing: Listing) -> float:
    """Observations, actions and `terminals`, no `timeouts`, and something that only OGBench has: an array of its own, or a file
    named as it names them. Without that, an archive without rewards is a flat one: nothing of it may be taken for a last row.
    """
    if listing.kind != "npz":
        return NO
    try:
        names = set(_names(listing.data[0], MEMORY_LIMIT))
    except BadData:  # whichever reader opens it says so
        return NO
    flat = names & {"timeouts", "next_observations"} or ("rewards" in names and "masks" not in names)
    known = names & OGBENCH_OWN or OGBENCH_NAME.search(listing.data[0].name)
    return SURE if names.issuperset(OGBENCH_ARRAYS) and known and not flat else NO


def _names(file: Location, memory_limit: int) -> list[str]:
    with Scope() as scope:
        return list(NpzArchive(file, scope, memory_limit=memory_limit).arrays)

"""Raw chunks of files as tables of our own columns: numbers as numbers, vectors as fixed-size lists; bad rows by place.

Everything that can be wrong with a row is found here, where its file and number are at hand; later stages cannot fail for a
value. The tables of one source have one schema: keys, `t`, a column for each leaf of the layout, `infos`, `__file` and `__row`.
Cells that are missing are filled here, but for those that take the value before them in their episode: these are marked
(`mark_of`), as are the rows at which episodes are split (`GAP`), for `rows.py`.

A source may be read several times (`grouped` reads the keys first): only the first full reading counts and rejects.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from offline_cli.columns import Columns
from offline_cli.errors import BadData, BadEpisode
from offline_cli.formats.arrow_leaves import is_text
from offline_cli.formats.source import ReadOptions
from offline_cli.formats.step_rows import END_FLAGS
from offline_cli.formats.tables.claims import (
    MOST,
    REST_OF_FILE,
    UNKNOWN_EPISODE,
    Claims,
    Losses,
    key_columns,
    position_of,
)
from offline_cli.formats.tables.column_layout import Layout, Leaf
from offline_cli.formats.tables.files import RawChunk, TableFile
from offline_cli.formats.tables.ids import keys_of
from offline_cli.formats.tables.images import cut_by_images, image_counts
from offline_cli.formats.tables.joined_files import raw_chunks
from offline_cli.formats.tables.key_runs import KeyRuns, joined
from offline_cli.formats.tables.mapping import EXTRA, FILLED_ROLES, PREVIOUS, CsvForm
from offline_cli.formats.tables.numeric import Shape, fixed_lists
from offline_cli.formats.tables.values import (
    GAP,
    TIMES,
    check_shape,
    filled,
    lost_in,
    mark_of,
    marks_of,
    missing_in,
    shape_in,
    values_of,
    why_bad,
)
from offline_cli.scopes import Scope
from offline_cli.tally import OnError, Rejects, Tally

__all__ = ["FILE", "ROW", "ChunkReader"]

FILE: Final = "__file"
ROW: Final = "__row"
OTHER_TEXTS: Final = (*TIMES, "category")  # that are no numbers written as text
FIX: Final = "correct the value, leave the column out of the mapping, or --on-error skip to leave out the episode"
UNNAMED: Final = "delete the row if it is empty, or give it its id; --on-error skip leaves out each episode that it may be of"
MISSING: Final = "[fill] or split_at_gaps in the mapping (docs/tables.md), or --on-error skip to leave out the episode"


@dataclass(slots=True)
class ChunkReader:
    """The rows of `files` under one layout."""

    files: Sequence[TableFile]
    layout: Layout
    form: CsvForm
    tally: Tally
    rejects: Rejects
    key_of: Callable[[pa.Table, int], tuple[Any, ...]]  # of one row, for losses; () where there are no ids
    on_bytes: Callable[[int], None]  # bytes of a file that have been read more
    chunk_bytes: int
    temp_dir: str | None
    options: ReadOptions = field(default_factory=ReadOptions)
    scope: Scope = field(default_factory=Scope)  # owns what is open while chunks are read
    by: Sequence[str] = ()  # the columns of such a key
    losses: Losses = field(default_factory=Losses)
    means: Mapping[str, NDArray[Any]] = field(default_factory=dict)  # by column of theirs: what missing cells become
    _claims: Claims = field(default_factory=Claims)  # of lost rows whose key no column shows
    _finders: dict[int, Callable[[bytes], dict[str, str] | None]] = field(default_factory=dict)  # by file: `cells_finder`
    _keys_named: dict[tuple[Any, ...], tuple[Any, ...]] = field(default_factory=dict)  # by file and cells
    _shapes: dict[str, Shape] = field(default_factory=dict)  # by leaf and column: of one value
    _counted: int = 0  # chunks of the full reading that have been counted
    _last: tuple[Any, ...] = ()  # key of the last row that was counted
    _lost_before: str = ""  # where rows of unknown episode were lost, with no row read since
    _in_gap: bool = False  # whether no row has been read since such a row

    def chunks(self, columns: Collection[str] | None = None) -> Iterator[pa.Table]:
        """The tables, from the first file on; `columns`: only these of ours, beside `__file` and `__row`."""
        number = 0
        for file, raw in self._raw(self.layout.reads(columns), self.layout.infos, self.scope):
            if isinstance(raw, BadData):
                if columns is None:
                    self._file_lost(raw, file)
                continue
            number += 1
            counts = columns is None and number > self._counted
            if counts:
                self._counted = number
                self.on_bytes(raw.nbytes)
            table = _Preparing(self, file, raw, columns, counts=counts).table()
            del raw
            if table is not None:
                yield table
        if columns is None:
            self._settle_losses()

    def _file_lost(self, error: BadData, file: Any) -> None:
        self.rejects.add(error)
        self.losses.count += 1
        self.lost_by_nobody(error.where, file, REST_OF_FILE)

    def lost_by_nobody(self, place: str, file: int, row: int, raw: bytes = b"") -> None:
        """A row whose episode is not known was lost: of the one that its text names, of the one before, or of the one after."""
        if not self._in_gap:
            self.losses.add(file, row)
        self._in_gap = True
        named = self._named(file, raw)
        self._claims.add(named, self._last, place)
        if named:
            return
        if self._last:
            self.losses.keys.setdefault(self._last, place)
        self._lost_before = place

    def read_next(self, key: tuple[Any, ...], last: tuple[Any, ...]) -> None:
        """Rows were read after the last loss: the first has `key`, the last one `last`, () where it ended its episode."""
        self._in_gap = False
        self._claims.close(key)
        if key and self._lost_before:
            self.losses.keys.setdefault(key, self._lost_before)
            self._lost_before = ""
        self._last = last

    def _named(self, file: int, raw: bytes) -> tuple[Any, ...]:
        """The key that the text of a row names, () where it names none."""
        if not self.by or not raw:
            return ()
        keys = self.layout.keys
        if file not in self._finders:
            self._finders[file] = self.files[file].cells_finder([theirs for theirs, _ in keys.values()], self.form)
        cells = self._finders[file](raw)
        if cells is None:
            return ()
        said = (file, *cells.values())
        if said not in self._keys_named:
            if len(self._keys_named) >= MOST:
                self._keys_named.clear()
            columns = key_columns(cells, keys, self.form.nulls)
            row = None if columns is None else pa.table({**columns, FILE: pa.array([file], pa.int32())})
            self._keys_named[said] = () if row is None else self.key_of(row, 0)
        return self._keys_named[said]

    def _settle_losses(self) -> None:
        """Find whose the lost rows were, which takes another pass over the keys of all rows."""
        self._claims.close(())
        if not self.by or not self._claims:
            return
        claims, self._claims = self._claims, Claims()
        runs, wanted, known = KeyRuns(self.by, None), claims.named, set[tuple[Any, ...]]()
        for rows in runs.numbered(self.chunks(columns=self.by)):
            heads = rows.table.select(self.by).group_by(self.by).aggregate([]).to_pylist() if wanted else []
            known.update(wanted.intersection(tuple(head[name] for name in self.by) for head in heads))
        lost, unknown = claims.settled(known, together=runs.in_order)
        for key, place in lost.items():
            self.losses.keys.setdefault(key, place)
        self.tally.assume(UNKNOWN_EPISODE, unknown)

    def _raw(self, columns: Collection[str], whole: str | None, scope: Scope) -> Iterator[tuple[Any, RawChunk | BadData]]:
        more: dict[str, Any] = {"chunk_bytes": self.chunk_bytes, "temp_dir": self.temp_dir, "options": self.options}
        chunks = raw_chunks(self.files, columns, self.form, **more, whole=whole, scope=scope)
        return cut_by_images(chunks, self.layout.images, self.chunk_bytes) if self.layout.images else chunks

    def tables_of(self, columns: Collection[str]) -> Generator[pa.Table, None, None]:
        """The rows of these columns of theirs as they are, for a first look; what is wrong with a file ends its rows."""
        with self.scope.part() as held:
            yield from (raw.table for _, raw in self._raw(columns, None, held) if isinstance(raw, RawChunk))

    def shape(self, leaf: Leaf, column: str) -> Shape | None:
        """Of one value of the column, once one has been read."""
        return self._shapes.get(f"{leaf.name} {column}")

    def settle(self, leaf: Leaf, column: str, shape: Shape) -> None:
        """Later values have this shape too."""
        self._shapes[f"{leaf.name} {column}"] = shape


class _Preparing:
    """One raw chunk on its way to a table of ours."""

    def __init__(
        self,
        reader: ChunkReader,
        file: int | NDArray[np.int64],
        raw: RawChunk,
        columns: Collection[str] | None,
        *,
        counts: bool,
    ) -> None:
        """`file`: its number, or that of each row's (N,), where no row is bad by itself."""
        self.reader, self.file, self.raw, self.counts = reader, file, raw, counts
        self.files = np.broadcast_to(file, raw.table.num_rows)  # (N,)
        self.wanted = None if columns is None else set(columns)
        self.numbers = {name: number for number, name in enumerate(raw.table.column_names)}
        self.tally = reader.tally if counts else Tally()
        self.reasons: dict[int, Callable[[], str]] = {}  # by bad row of the chunk
        self.fillable: set[int] = set()  # those whose value is missing
        self.marks = marks_of(reader.layout, raw.table.num_rows)

    def table(self) -> pa.Table | None:
        """The good rows, None where there is none; the others go to the rejects."""
        count, layout = self.raw.table.num_rows, self.reader.layout
        if not count:  # whose shapes would be meaningless
            self._count_rows({FILE: pa.nulls(0)}, np.zeros(0, np.bool_))
            return None
        columns = {ours: self._key(ours, *said) for ours, said in layout.keys.items() if self._wants(ours)}
        leaves = {leaf.name: self._leaf(leaf) for leaf in layout.leaves if self._wants(leaf.name)}
        columns[FILE] = pa.array(self.files.astype(np.int32))
        columns[ROW] = pa.array(self.raw.rows.astype(np.int64, copy=False))
        flags = [leaves[name] for name in END_FLAGS if name in leaves]
        self._count_rows(columns, np.logical_or.reduce([np.zeros(count, np.bool_), *flags]))
        if len(self.reasons) == count:
            return None
        made = leaves if self.wanted is not None else leaves | self.marks
        columns |= {name: fixed_lists(values) for name, values in made.items()}
        if layout.infos is not None and self._wants(Columns.INFOS):
            columns[Columns.INFOS] = joined(self._column(layout.infos)).cast(pa.large_string())
        table = pa.table(columns)
        if not self.reasons:
            return table
        good = np.ones(count, np.bool_)
        good[list(self.reasons)] = False
        return table.filter(pa.array(good))

    def _place(self, row: int) -> str:
        return self._place_at(position_of(int(self.files[row]), int(self.raw.rows[row])))

    def _place_at(self, position: int) -> str:
        file, number = divmod(position, REST_OF_FILE + 1)
        return f"{self.reader.files[file].url} row {number}"

    def _wants(self, ours: str) -> bool:
        return self.wanted is None or ours in self.wanted

    def _column(self, theirs: str) -> pa.ChunkedArray:
        """A column that this part of a file lacks has no value in any row."""
        table, number = self.raw.table, self.numbers.get(theirs)
        return pa.chunked_array([pa.nulls(table.num_rows)]) if number is None else table.column(number)

    def _key(self, ours: str, theirs: str, kind: pa.DataType) -> pa.Array:
        column, is_text = joined(self._column(theirs)), self.reader.files[0].is_text
        try:
            keys, odd = keys_of(column, kind, untyped=is_text, needed=ours == Columns.EPS_ID)
        except pa.ArrowException as error:
            fix = "name a column of text or numbers in the mapping"
            raise BadData(f"column {theirs} holds {column.type}, and no ids: {error}", where=self._place(0), fix=fix) from error
        self.reasons |= {row: partial(str, f"column {theirs} {what}") for row, what in odd.items()}
        return keys

    # ---- values ----

    def _leaf(self, leaf: Leaf) -> NDArray[Any]:
        """(N, *shape); bad rows are recorded, and hold anything."""
        parts = [self._part(leaf, number) for number in range(len(leaf.columns))]
        if leaf.role in END_FLAGS:
            return parts[0].astype(np.bool_, copy=False)
        if not leaf.stacked:
            return parts[0].astype(leaf.dtype, copy=False)
        widths = [part.shape[1] if part.ndim > 1 else 1 for part in parts]
        stacked = np.empty((len(parts[0]), sum(widths)), leaf.dtype)
        for part, width, stop in zip(parts, widths, np.cumsum(widths).tolist(), strict=True):
            stacked[:, stop - width : stop] = part.reshape(len(part), width)
        return stacked

    def _part(self, leaf: Leaf, number: int) -> NDArray[Any]:
        plan, reader = leaf.columns[number], self.reader
        column = self._column(plan.column)
        scalar = leaf.role not in (Columns.OBS, Columns.ACTIONS, Columns.NEXT_OBS, EXTRA)
        shape = reader.shape(leaf, plan.column)
        try:
            values, bad = values_of(column, plan, shape, decimal=reader.form.decimal, flags=leaf.role in END_FLAGS)
        except pa.ArrowInvalid as error:
            fix = "correct the values, or write the column as numbers"
            raise BadData(f"column {plan.column} cannot be read: {error}", where=self._place(0), fix=fix) from error
        for kind, count in image_counts(column, plan.column).items() if plan.image else ():
            self.tally.assume(kind, count)
        if is_text(column.type) and plan.cells not in OTHER_TEXTS and reader.files[0].kind != "csv":
            self.tally.assume(f"numbers-as-text:{plan.column}", len(column) - column.null_count)
        if bad is not None and shape is None and bad.all() and (plan.fill is not None or reader.layout.splits_at(leaf)):
            tables = reader.tables_of([plan.column])
            known = shape_in(tables, plan, reader.form.decimal, where=self._place(0))
            values = np.zeros((len(values), *known), plan.dtype)
        elif plan.fill is not None or (leaf.role != EXTRA and reader.layout.splits_at(leaf)):
            bad = missing_in(column, values) | (False if bad is None else bad)
        if shape is None and (bad is None or not bad.all() or plan.fill is not None or reader.layout.splits_at(leaf)):
            check_shape(leaf, plan, values.shape[1:], scalar=scalar, where=self._place(0))
            reader.settle(leaf, plan.column, values.shape[1:])
        if scalar and values.ndim > 1:
            values = values.reshape(len(values))  # lists of one
        if leaf.role == Columns.T and values.dtype.kind == "f":
            bad = np.isnan(values) | (False if bad is None else bad)
        if leaf.role in END_FLAGS and values.dtype.kind == "f":
            nan = np.isnan(values)
            self.tally.assume("null-as-false", int(nan.sum()))
            values = np.where(nan, 0, values)
        if leaf.role in END_FLAGS and values.dtype.kind != "b":
            bad = ((values != 0) & (values != 1)) | (False if bad is None else bad)  # as in text: 2 may be a code, -1 missing
        if bad is not None and bad.any():
            values = self._note(leaf, number, column, values, bad)
        for row in () if leaf.role in END_FLAGS else lost_in(values, leaf.dtype):
            said = "" if leaf.role == Columns.T else " of [dtypes]"
            what = f"column {plan.column} holds {values[row]}, which {leaf.dtype}{said} cannot hold"
            self.reasons.setdefault(row, partial(str, what))
        return values

    def _note(
        self, leaf: Leaf, number: int, column: pa.ChunkedArray, values: NDArray[Any], bad: NDArray[np.bool_]
    ) -> NDArray[Any]:
        """Rows without a value: of flags false, of extra outputs NaN, all others as the mapping says, each counted; or bad."""
        rows, plan = np.flatnonzero(bad), leaf.columns[number]
        missing = missing_in(column, values)[rows]
        single = values.ndim == 1 and not plan.vectors  # a chunk of nulls alone does not show it
        if plan.fill is not None:
            values = self._filled(leaf, number, values, rows[missing])
        elif leaf.role in END_FLAGS:
            self.tally.assume("null-as-false", int(missing.sum()))
        elif leaf.role == EXTRA and single and leaf.dtype.kind == "f":
            self.tally.assume("null-as-nan", int(missing.sum()))
            values = values.astype(leaf.dtype)
            values[rows[missing]] = np.nan
        elif self.reader.layout.splits_at(leaf):
            self.marks[GAP][rows[missing]] = True
        else:
            missing[:] = False
        if leaf.role in FILLED_ROLES:
            self.fillable.update(rows[missing_in(column, values)[rows]].tolist())
        for row in rows[~missing].tolist():
            self.reasons.setdefault(row, partial(why_bad, column, row, plan, values.shape[1:]))
        return values

    def _filled(self, leaf: Leaf, number: int, values: NDArray[Any], rows: NDArray[np.int64]) -> NDArray[Any]:
        """`values` with what the mapping says in `rows`; what only whole episodes show is marked."""
        plan = leaf.columns[number]
        if plan.fill != PREVIOUS:
            how = plan.fill if isinstance(plan.fill, str) else "number"
            self.tally.assume(f"filled-{how}:{plan.column}", len(rows))
        else:
            self.marks[mark_of(leaf, number)][rows] = True
        return filled(values, rows, plan.fill, self.reader.means.get(plan.column))

    # ---- rejects ----

    def _count_rows(self, columns: Mapping[str, pa.Array], ended: NDArray[np.bool_]) -> None:
        if self.counts:
            self.tally.rows_in += self.raw.table.num_rows + len(self.raw.bad)
            self._report(pa.table(dict(columns)), ended)

    def _report(self, table: pa.Table, ended: NDArray[np.bool_]) -> None:
        """Pass bad rows to the rejects in their order, and record whose they were."""
        reader, positions = self.reader, position_of(self.files, self.raw.rows)
        anonymous = {position_of(self.file, bad.row): bad for bad in self.raw.bad}
        ids = table.column(Columns.EPS_ID).is_valid().to_numpy() if Columns.EPS_ID in table.column_names else None
        bad_rows = {int(positions[i]): i for i in self.reasons}
        reader.losses.count += len({*anonymous, *bad_rows})
        done = 0
        for position in sorted({*anonymous, *bad_rows}):
            (file, number), place = divmod(position, REST_OF_FILE + 1), self._place_at(position)
            upto = int(np.searchsorted(positions, position))
            self._read(table, ended, done, upto)
            done = upto
            if position in anonymous:
                reader.rejects.add(anonymous[position].error, raw=anonymous[position].raw)
                reader.lost_by_nobody(place, file, number, anonymous[position].raw)
                continue
            row = bad_rows[position]
            nobodys = ids is None or not ids[row]
            fix = UNNAMED if nobodys and ids is not None else MISSING if row in self.fillable else FIX
            reader.rejects.add(BadEpisode(self.reasons[row](), where=place, fix=fix), raw=self._quoted(row))
            if nobodys:
                reader.lost_by_nobody(place, file, number)
            else:
                reader.losses.keys.setdefault(reader.key_of(table, row), place)
            done = upto + 1
        self._read(table, ended, done, len(positions))

    def _read(self, table: pa.Table, ended: NDArray[np.bool_], first: int, stop: int) -> None:
        """Rows `first` to `stop` - 1 are good: they separate losses."""
        if first < stop:
            last = () if ended[stop - 1] else self.reader.key_of(table, stop - 1)
            self.reader.read_next(self.reader.key_of(table, first), last)

    def _quoted(self, row: int) -> bytes:
        if self.reader.rejects.on_error is not OnError.QUARANTINE:
            return b""
        return json.dumps(self.raw.table.slice(row, 1).to_pylist()[0], default=str).encode()

"""Tables of steps as a source of whole episodes, and the options for reading them.

Files -> columns (mapping, layout, SQL of values) -> one query, sorted by key and `t` if the rows are not -> episodes.
Required columns without a mapping are errors, and so are rows that nothing divides into episodes.
"""

# ruff: noqa: S608  only our own names become SQL; values are bound

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Final, get_args

import pyarrow as pa

from offline_cli.choices import EpisodeEnds, byte_size
from offline_cli.columns import Columns
from offline_cli.environments import EnvironmentSpec
from offline_cli.errors import BadData, BadMapping, MissingPackage, NoData, UsageError
from offline_cli.formats.memory_limits import MEMORY_LIMIT, room_for_data
from offline_cli.formats.source import UNKNOWN_SCALE, FileSource, Fragments, ReadOptions, SourceInfo, source_hash
from offline_cli.formats.step_rows import END_FLAGS
from offline_cli.formats.tables.columns import (
    Layout,
    Leaf,
    category_space,
    columns_of,
    expanded,
    lay_out,
    match,
    meanings_of,
    value_sql,
)
from offline_cli.formats.tables.episodes import ROW_ID, Assembler, Division, Naming
from offline_cli.formats.tables.files import BATCH_ROWS, POS, ROW_BITS, TableFiles, is_list, plain_type
from offline_cli.formats.tables.mapping import (
    EXTRA,
    FILE_ID,
    FOLDER_ID,
    KEYS,
    TREES,
    CsvForm,
    GivenMapping,
    TableMapping,
    given_mapping,
    load_mapping,
    mapping_text,
)
from offline_cli.formats.tables.proposals import default_mapping
from offline_cli.formats.tables.values import BETWEEN, NOTHING, ValueReader
from offline_cli.storage.local_files import checked_folder
from offline_cli.tally import Rejects, Tally

EPISODE_ENDS: Final[tuple[str, ...]] = get_args(EpisodeEnds)
LEAST_MEMORY: Final = 256 << 20  # the program itself uses half of it
IMAGES_AT_ONCE: Final = 16  # rows with images decoded at a time
WHOLE_FLOAT: Final = r"^(0|-?[1-9][0-9]*)\.0+$"
RECORDED: Final = {
    *(Columns.EPS_ID, Columns.AGENT_ID, Columns.MODULE_ID, Columns.OBS, Columns.ACTIONS, Columns.REWARDS),
    *(Columns.NEXT_OBS, Columns.TERMINATEDS, Columns.TRUNCATEDS),
}
"""The columns that RLlib's recorder writes for each step."""
NO_EPISODES: Final = (
    "in the mapping, name the column of ids (eps_id), end flags (terminateds, truncateds, dones) or start flags (starts); or"
    ' set eps_id = "@file" if each file is an episode, rows = "episodes" if each row is one, or a gap or period of t; or'
    " divide rows in file order with --episode-ends t (where t decreases), --episode-ends chain (where new_obs is not the next"
    " obs) or --rows-as-episodes"
)


@dataclass(frozen=True, slots=True)
class TableOptions:
    """How to read tables. Raises UsageError for options that contradict each other."""

    mapping: GivenMapping | None = None  # None: `rllib`, if its columns exist
    rows_as_episodes: bool = False  # each row is an episode of one step
    episode_ends: str | None = None  # flags | t | chain; None: as in the mapping
    temp_dir: str | None = None  # folder for rows that do not fit in memory; None: the system's
    memory_limit: int = MEMORY_LIMIT  # of the whole conversion, in bytes

    def __post_init__(self) -> None:
        if self.episode_ends is not None and self.episode_ends not in EPISODE_ENDS:
            fix = f"use {', '.join(EPISODE_ENDS[:-1])} or {EPISODE_ENDS[-1]}"
            raise UsageError(f"unknown end of episodes {self.episode_ends!r}", where="--episode-ends", fix=fix)
        if self.rows_as_episodes and self.episode_ends is not None:
            what = "--episode-ends cannot be combined with --rows-as-episodes"
            raise UsageError(what, where="--episode-ends", fix="give only one of the two")
        if self.memory_limit < LEAST_MEMORY:
            what = f"{self.memory_limit} bytes are too few to read a table"
            raise UsageError(what, where="--memory-limit", fix=f"give at least {LEAST_MEMORY >> 20} MiB")

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> TableOptions:
        """From keyword arguments of a function. Raises UsageError; StorageError if `temp_dir` is not writable."""
        return cls(
            None if options["mapping"] is None else given_mapping(options["mapping"]),
            options["rows_as_episodes"],
            options["episode_ends"],
            checked_folder(options["temp_dir"]),
            byte_size(options.get("memory_limit", MEMORY_LIMIT), option="--memory-limit", minimum=1),
        )

    def identity(self, storage_options: Mapping[str, Any] | None = None) -> list[Any]:
        """Plain values that identify these options. Raises StorageNotFound if the mapping file is missing."""
        text = None if self.mapping is None else mapping_text(self.mapping, storage_options)
        digest = None if text is None else hashlib.sha256(text).hexdigest()
        return [digest, self.rows_as_episodes, self.episode_ends]


PLAIN_TABLES: Final = TableOptions()


@dataclass(slots=True)
class TableSource(FileSource):
    """Files of one table, in the order given. Declared spaces give the dtype of decimals in text files."""

    format: ClassVar = "table"
    options: TableOptions = field(default_factory=TableOptions)
    storage_options: Mapping[str, Any] | None = None
    kind: str = "parquet"  # of all files: parquet | arrow | csv | json | npz
    rows: TableFiles = field(init=False)
    mapping: TableMapping = field(init=False)  # without optional columns that are missing
    _spare: tuple[str, ...] = field(default=(), init=False)  # unmapped columns that may become extra outputs
    _dropped: dict[str, str] = field(default_factory=dict, init=False)  # columns dropped unread, and why
    _division: Division = field(init=False)
    _laid_out: Layout | None = field(default=None, init=False)

    def __post_init__(self, location: str, declared: SourceInfo | None) -> None:
        """Read the columns of the files, and match them with the mapping. Raises BadMapping, BadData."""
        said = self.options.mapping
        mapping = None if said is None else load_mapping(said, self.storage_options)
        self.info = SourceInfo(format=self.format, location=location)
        form, infos = (CsvForm(), Columns.INFOS) if mapping is None else (mapping.said.csv, mapping.infos)
        self.rows = TableFiles(self.files, self.kind, form, self.options.memory_limit, self.options.temp_dir, infos)
        try:
            self.rows.open()
            mapping = mapping or default_mapping(self.rows, self._tried)
            self.mapping, self._spare, self._dropped = match(mapping, self.rows.columns)
            self._find_steps()
            self._division = self._divided()
        except BaseException:
            self.rows.close()
            raise
        self.info = declared or self._info(location)

    def _info(self, location: str) -> SourceInfo:
        mapping, said = self.mapping, self.mapping.said
        return SourceInfo(
            format=self.format,
            location=location,
            observation_space=mapping.spaces[0] or category_space(mapping, Columns.OBS),
            action_space=mapping.spaces[1] or category_space(mapping, Columns.ACTIONS),
            action_scale=said.action_scale or UNKNOWN_SCALE,
            meanings=meanings_of(mapping),
            environment=None if said.environment is None else EnvironmentSpec(said.environment),
            said_by=f"the mapping {mapping.name}",
            columns={part.name: ", ".join(part.columns) for part in mapping.parts},
            mappings=(mapping.document,),
        )

    def _tried(self, mapping: TableMapping, rows: int) -> BadData | BadMapping | None:
        """Try a mapping on the first rows. Returns the error; None if it works."""
        options = replace(self.options, mapping=mapping.document)
        try:
            with closing(TableSource(self.files, self.info.location, options=options, kind=self.kind)) as source:
                source.rows.first = rows
                next(source.fragments(Tally(), Rejects()), None)
        except (BadData, BadMapping) as error:
            return error
        except (MissingPackage, NoData):
            return None
        return None

    def prepare(self, options: ReadOptions) -> None:
        """See `Source`. Default spaces supply tuples and dtypes, which text lacks, unless the mapping has spaces."""
        self.read_options = options
        self.info = self.info.with_default_spaces(options.spaces)

    def close(self) -> None:
        """See `Source`."""
        FileSource.close(self)
        self.rows.close()

    # ---- what divides the rows ----

    @property
    def _place(self) -> str:
        return f"mapping {self.mapping.name} for {self.info.location}"

    def _find_steps(self) -> None:
        """If a row is an episode, find the columns with lists of its steps. Raises BadMapping for columns without lists."""
        mapping, kinds = self.mapping, self.rows.kinds
        ends = [kinds[name] for name in mapping.names(Columns.REWARDS, *END_FLAGS) if name in kinds]
        lists = [kind for kind in ends if is_list(kind) and not (pa.types.is_fixed_size_list(kind) and kind.list_size == 1)]
        if mapping.said.rows == "steps" or not (lists or mapping.said.rows):
            return
        self.rows.steps_in = mapping.names(*{part.role for part in mapping.parts}.difference((*KEYS, Columns.INFOS)))
        for name in self.rows.steps_in:
            if not is_list(kinds.get(name, pa.null())):
                what = f"column {name} holds {kinds.get(name, 'a struct')}, not a list with one value per step"
                fix = 'remove it from the mapping, or set rows = "steps" if each row is a step'
                raise BadMapping(what, where=self._place, fix=fix)
        self._dropped |= dict.fromkeys(self._spare, "not mapped, and rows are episodes")
        self._spare = ()

    def _divided(self) -> Division:
        """How rows are divided into episodes. Raises BadMapping if they are not, or a required column is missing."""
        mapping, each_row, has_flags = self.mapping, self.options.rows_as_episodes, bool(self.mapping.names(*END_FLAGS))
        ends = self.options.episode_ends or mapping.said.episode_ends
        keys = [(part.role, theirs) for role in KEYS for part in mapping.of(role) for theirs in part.columns]
        keys = [(Columns.EPS_ID, ROW_ID)] if self.rows.steps_in else keys
        if not (keys or ends or each_row or has_flags or mapping.divides_keys):
            if len(self.files) == 1:
                what = "no column gives the id of an episode, or where it ends"
                raise BadMapping(what, where=self._place, fix=NO_EPISODES)
            keys = [(Columns.EPS_ID, FILE_ID)]
        ends = None if each_row else ends or ("flags" if has_flags and not keys else None)
        needs = {"flags": END_FLAGS, "t": (Columns.T,), "chain": (Columns.NEXT_OBS,)}.get(ends or "", ())
        if needs and not mapping.names(*needs):
            what = f"episodes end by {ends}, but no column is mapped to {' or '.join(needs)}"
            raise BadMapping(what, where=self._place, fix="name it in the mapping")
        if mapping.said.ids_per_file and keys and (Columns.EPS_ID, FILE_ID) not in keys:
            keys.append(("", FILE_ID))
        keyed = bool(keys or mapping.said.gap or mapping.said.period) and not each_row
        return Division(tuple(keys), keyed, ends, each_row, ends is not None or mapping.divides_keys)

    # ---- reading ----

    def fragments(self, tally: Tally, rejects: Rejects) -> Iterator[Fragments]:
        """See `Source`: whole episodes. Those without an end flag are truncated, and counted."""
        self.done = 0
        layout, division = self._layout(), self._division
        for name, reason in layout.dropped.items():
            tally.drop_column(name, reason)
        heads = [{name.partition(".")[0] for name in columns} for columns in self.rows.columns.values()]
        is_recorder = self.options.mapping is None and all(head >= RECORDED for head in heads)
        prefix = "" if is_recorder and division.keyed else f"{source_hash(self.files)}-"  # ids of RLlib's recorder are unique
        if (
            self.rows.steps_in
        ):  # a row with some shorter lists has missing cells; a row without any values is an episode without steps
            sizes = ", ".join(f"len({self.rows.column(name)})" for name in self.rows.steps_in)
            relation = self.rows.relation(self.rows.steps_in, as_steps=False)
            sql = f"SELECT count(*) FROM {relation} WHERE coalesce(greatest({sizes}), 0) = 0"
            tally.assume("zero-length-episode", self.rows.one(sql)[0])
        in_order = self.rows.steps_in or not division.keyed or self._in_order(layout)
        maker = Assembler(
            self.rows,
            ValueReader(self.rows, layout, [theirs for _, theirs in division.keys], tally),
            division,
            self.mapping,
            Naming(division, prefix, tally),
            tally,
            rejects,
            room=room_for_data(self.options.memory_limit),
            in_order=bool(in_order),
            declares_actions=self.info.action_space is not None,
        )
        yield from maker.episodes(self._counted(self._batches(layout, in_order=bool(in_order))))

    def _counted(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            self.done = min(self.size or 0, self.rows.read)
            yield batch
        self.done = self.size or 0

    def _layout(self) -> Layout:
        """The layout. The first call reads all text columns. Raises BadMapping."""
        if self._laid_out is None:
            mapping, rows = self.mapping, self.rows
            named = [name for theirs in mapping.names(*TREES, EXTRA, Columns.T) for name in expanded(theirs, rows.kinds)]
            extras = [*self._spare, *(name for theirs in mapping.names(EXTRA) for name in expanded(theirs, rows.kinds))]
            wanted = list(dict.fromkeys([*named, *self._spare]))
            whole = [name for name in extras if pa.types.is_integer(rows.kind_of(name))]
            columns = columns_of(rows, wanted, decimal=mapping.said.csv.decimal, nulls=whole)
            if columns and not any(column.cells for column in columns.values()):
                if rows.bad:
                    raise rows.bad[0].error
                fix = "check that the program that wrote the table wrote rows"
                raise NoData("the table has no rows", where=self.info.location, fix=fix)
            self._laid_out = lay_out((mapping, self._spare, self._dropped), rows, columns, self.info.spaces)
        return self._laid_out

    # ---- SQL ----

    def _key_sql(self, theirs: str) -> tuple[str, list[Any]]:
        """SQL for a part of the key, as text; integer-valued floats without decimals."""
        if theirs == ROW_ID:
            return f"CAST({POS} AS VARCHAR)", []
        if theirs == FILE_ID:
            return f"CAST({POS} >> {ROW_BITS} AS VARCHAR)", []
        if theirs == FOLDER_ID:
            folders = [file.url.rpartition("/")[0].rpartition("/")[2] for file in self.files]
            return f"list_extract(?, ({POS} >> {ROW_BITS}) + 1)", [folders]
        text = f"CAST({self.rows.column(theirs)} AS VARCHAR)"
        kind = plain_type(self.rows.kinds[theirs])
        if is_list(kind) or pa.types.is_struct(kind):
            what = f"column {theirs} holds {self.rows.kinds[theirs]}, which cannot be an id"
            raise BadMapping(what, where=self.info.location, fix="name a column of text or numbers as eps_id")
        if pa.types.is_floating(kind):
            text = f"nullif({text}, 'nan')"
        is_soft = self.rows.is_text or pa.types.is_floating(kind)
        return (f"regexp_replace({text}, '{WHOLE_FLOAT}', '\\1')" if is_soft else text), []

    def _inner(self, leaves: Sequence[Leaf], infos: Collection[str] = ()) -> tuple[str, list[Any]]:
        """A subquery with the columns read, `key` (NULL if the id is missing) and values `v<i>`; and the values to bind."""
        decimal, columns = self.mapping.said.csv.decimal, [(leaf, column) for leaf in leaves for column in leaf.columns]
        keys = [self._key_sql(theirs) for _, theirs in self._division.keys]
        texts = [
            sql if role == Columns.EPS_ID and not self._division.each_row else f"coalesce({sql}, '{NOTHING}')"
            for (role, _), (sql, _) in zip(self._division.keys, keys, strict=True)
        ]
        values = [value_sql(self.rows, leaf.role, column, decimal) for leaf, column in columns]
        key = f" || '{BETWEEN}' || ".join(texts) or "''"
        chosen = ["*", f"{key} AS key", *(f"{sql} AS v{i}" for i, (sql, _) in enumerate(values))]
        ids = [theirs for _, theirs in self._division.keys if theirs not in (FILE_ID, FOLDER_ID, ROW_ID)]
        relation = self.rows.relation([*(column.name for _, column in columns), *infos, *ids])
        return f"(SELECT {', '.join(chosen)} FROM {relation})", [value for _, bound in (*keys, *values) for value in bound]

    def _batches(self, layout: Layout, *, in_order: bool) -> Iterator[pa.RecordBatch]:
        """All rows, grouped by key and sorted by `t`: key, values, and `r<i>`, the texts of invalid cells."""
        names = [POS, "key", *(f"v{i}" for i in range(len(layout.columns)))]
        for i, (_, column) in enumerate(layout.columns):
            if self.rows.holds_text(column.name) or column.cells == "category":
                names.append(f"CASE WHEN v{i} IS NULL THEN CAST({self.rows.column(column.name)} AS VARCHAR) END AS r{i}")
        if layout.infos is not None:
            names.append(f"CAST({self.rows.column(layout.infos)} AS VARCHAR) AS {Columns.INFOS}")
        by_t = [f"v{i}" for i, (leaf, _) in enumerate(layout.columns) if leaf.role == Columns.T and self._division.ends != "t"]
        if not in_order:  # sort episodes by their first rows; rows without an id come first
            keys, bound = self._inner([])
            firsts = f"SELECT key AS id, min({POS}) AS begin FROM {keys} GROUP BY key"
            list(self.rows.query(f"CREATE OR REPLACE TABLE firsts AS {firsts}", bound))
        inner, values = self._inner(layout.leaves, [] if layout.infos is None else [layout.infos])
        if not in_order:
            order = ", ".join(f"{name} NULLS FIRST" for name in ("begin", *by_t, POS))
            inner = f"{inner} LEFT JOIN firsts ON key = id ORDER BY {order}"
        at_once = IMAGES_AT_ONCE if any(column.image for _, column in layout.columns) else BATCH_ROWS
        for batch in self.rows.query(f"SELECT {', '.join(names)} FROM {inner}", values):
            yield from (batch.slice(first, at_once) for first in range(0, batch.num_rows, at_once))

    def _in_order(self, layout: Layout) -> bool:
        """Whether the rows of each key stand together, and none falls back in `t`. The first rows mostly show where not."""
        t = [leaf for leaf in layout.of(Columns.T) if self._division.ends != "t"]
        return self._stand_together(t, f" LIMIT {BATCH_ROWS}") and self._stand_together(t)

    def _stand_together(self, t: Sequence[Leaf], limit: str = "") -> bool:
        import polars as pl

        inner, values = self._inner(t)
        known, before = pl.Series(dtype=pl.UInt64), pl.DataFrame()  # hashes of the keys of all runs; the last row
        sql = f"SELECT hash(key) AS key, {'v0' if t else 'NULL'} AS t FROM {inner} WHERE key IS NOT NULL{limit}"
        for batch in self.rows.query(sql, values):
            rows = pl.concat([before, pl.DataFrame(batch)])
            begins = (rows["key"] != rows["key"].shift()).fill_null(before.is_empty())
            falls, runs = rows["t"] < rows["t"].shift(), rows["key"].filter(begins)
            if (falls & ~begins).any() or runs.n_unique() < len(runs):
                return False
            known.extend(runs)
            before = rows.tail(1)
        return known.n_unique() == len(known)

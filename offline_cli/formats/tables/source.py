"""Tables of steps as a source of whole episodes, and the options that a caller may give before they are opened.

files -> columns (mapping, layout, SQL of values) -> one query, ordered by key and `t` where rows are not -> episodes.
A column that no mapping explains, and rows that nothing divides into episodes, raise.
"""

# ruff: noqa: S608  names of our own alone become SQL, values are bound

from __future__ import annotations

import hashlib
from collections.abc import Collection, Generator, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Final, get_args

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from offline_cli.byte_sizes import byte_size
from offline_cli.choices import EpisodeEnds
from offline_cli.columns import Columns
from offline_cli.environments import EnvironmentSpec
from offline_cli.errors import BadData, BadEpisode, BadMapping, MissingPackage, NoData, UsageError
from offline_cli.formats.memory_limits import MEMORY_LIMIT, room_for_data
from offline_cli.formats.source import FileSource, Fragments, ReadOptions, SourceInfo
from offline_cli.formats.step_rows import END_FLAGS
from offline_cli.formats.tables.columns import (
    Layout,
    Matched,
    category_space,
    expanded,
    facts_of,
    lay_out,
    match,
    meanings_of,
    texts_of,
    value_sql,
)
from offline_cli.formats.tables.episodes import Assembler, Divided, ValueReader
from offline_cli.formats.tables.files import FILE, NO_LETTER, POS, TableFiles, is_list, likely_encoding
from offline_cli.formats.tables.ids import are_rllibs, source_hash
from offline_cli.formats.tables.images import cut_by_images
from offline_cli.formats.tables.mapping import (
    AS_USUAL,
    EXTRA,
    FILE_ID,
    FOLDER_ID,
    KEYS,
    MEAN,
    STARTS,
    TREES,
    CsvForm,
    GivenMapping,
    TableMapping,
    given_mapping,
    load_mapping,
    mapping_text,
)
from offline_cli.formats.tables.proposals import default_mapping, looks_like_ids
from offline_cli.storage.temp_files import checked_folder
from offline_cli.tally import Lost, OnError, Rejects, Tally
from offline_cli.trees import Tree

__all__ = ["EPISODE_ENDS", "LEAST_MEMORY", "MEMORY_LIMIT", "PLAIN_TABLES", "TableOptions", "TableSource"]

EPISODE_ENDS: Final[tuple[str, ...]] = get_args(EpisodeEnds)
LEAST_MEMORY: Final = 256 << 20  # the program itself takes half of that
IMAGE_BYTES: Final = 16 << 20  # of decoded images at a time
WHOLE_FLOAT: Final = r"^(0|-?[1-9][0-9]*)\.0+$"
ROW_ID: Final = "@row"  # the id of a row that is an episode


@dataclass(frozen=True, slots=True)
class TableOptions:
    """How to read tables. Raises UsageError for options that contradict each other."""

    mapping: GivenMapping | None = None  # None: `rllib`, where its columns exist
    rows_as_episodes: bool = False  # each row is an episode of one step
    episode_ends: str | None = None  # flags | t | chain; None: by the mapping
    temp_dir: str | None = None  # where rows go that do not fit into memory; None: the system's
    memory_limit: int = MEMORY_LIMIT  # bytes that the whole conversion may take

    def __post_init__(self) -> None:
        if self.episode_ends is not None and self.episode_ends not in EPISODE_ENDS:
            fix = f"use {', '.join(EPISODE_ENDS[:-1])} or {EPISODE_ENDS[-1]}"
            raise UsageError(f"episodes cannot end by {self.episode_ends!r}", where="--episode-ends", fix=fix)
        if self.rows_as_episodes and self.episode_ends is not None:
            raise UsageError(
                "where each row is an episode, nothing else ends one", where="--episode-ends", fix="give one of the two"
            )
        if self.memory_limit < LEAST_MEMORY:
            what = f"{self.memory_limit} bytes are too few to read a table in"
            raise UsageError(what, where="--memory-limit", fix=f"give at least {LEAST_MEMORY >> 20} MiB")

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> TableOptions:
        """From the keywords of a function. Raises UsageError, StorageError where `temp_dir` cannot be written to."""
        return cls(
            None if options["mapping"] is None else given_mapping(options["mapping"]),
            options["rows_as_episodes"],
            options["episode_ends"],
            checked_folder(options["temp_dir"]),
            byte_size(options.get("memory_limit", MEMORY_LIMIT), option="--memory-limit", minimum=1),
        )

    def identity(self, storage_options: Mapping[str, Any] | None = None) -> list[Any]:
        """Plain values that are equal for equal readings. Raises StorageNotFound where there is no such mapping."""
        text = None if self.mapping is None else mapping_text(self.mapping, storage_options)
        digest = None if text is None else hashlib.sha256(text).hexdigest()
        return [digest, self.rows_as_episodes, self.episode_ends]


PLAIN_TABLES: Final = TableOptions()


@dataclass(slots=True)
class TableSource(FileSource):
    """Files of one table, in the order given; spaces set by the caller give decimals that are text their dtype."""

    format: ClassVar = "table"
    options: TableOptions = field(default_factory=TableOptions)
    storage_options: Mapping[str, Any] | None = None
    kind: str = "parquet"  # of all files: parquet | arrow | csv | json | npz
    rows: TableFiles = field(init=False)
    info_location: str = field(default="", init=False)
    _matched: Matched | None = field(default=None, init=False)
    _laid_out: Layout | None = field(default=None, init=False)

    def __post_init__(self, location: str, declared: SourceInfo | None) -> None:
        """Opens the files as far as their columns, and checks the mapping against these. Raises BadMapping, BadData."""
        self.info_location, said = location, self.options.mapping
        mapping = None if said is None else load_mapping(said, self.storage_options)
        self.rows = self._opened(AS_USUAL if mapping is None else mapping.csv, mapping)
        try:
            self._match(mapping, declared)
        except BaseException:
            self.rows.close()
            raise

    def _match(self, mapping: TableMapping | None, declared: SourceInfo | None) -> None:
        """Find what the columns mean. Raises BadMapping."""
        location = self.info_location
        if mapping is None:
            self._in_likely_encoding()
            mapping = default_mapping(self)
            infos = mapping.infos
            if infos is not None and any(name.startswith(f"{infos}.") for name in self.rows.names):  # taken apart
                self.rows.close()
                self.rows = self._opened(self.rows.form, mapping)
        self._matched = matched = match(mapping, self.rows.types)
        mapping = matched.mapping
        if any(
            is_list(self.rows.kind_of(name))
            for role in (Columns.REWARDS, *END_FLAGS)
            for part in mapping.of(role)
            for name in part.columns
        ):
            fixed = [self.rows.kind_of(name) for part in mapping.of(Columns.REWARDS) for name in part.columns]
            is_one = any(pa.types.is_fixed_size_list(kind) and kind.list_size == 1 for kind in fixed)
            if not is_one and "rows" not in mapping.document:
                mapping = replace(mapping, row_is_episode=True)
        self._matched = replace(matched, mapping=mapping)
        if mapping.row_is_episode:
            self._unnest(mapping)
        self.info = declared or SourceInfo(
            format=self.format,
            location=location,
            observation_space=mapping.observation_space or category_space(mapping, Columns.OBS),
            action_space=mapping.action_space or category_space(mapping, Columns.ACTIONS),
            action_scale=mapping.action_scale,
            meanings=meanings_of(mapping),
            environment=None if mapping.environment is None else EnvironmentSpec(mapping.environment),
            said_by=f"the mapping {mapping.name}",
            columns=mapping.as_text(),
            mappings=(mapping.document,),
        )
        self._check_ends(mapping)

    def tried(self, mapping: TableMapping, rows: int) -> BadData | BadMapping | None:
        """What is wrong with a mapping, by the first rows; None: nothing."""
        try:
            source = TableSource(
                self.files, self.info_location, options=replace(self.options, mapping=mapping.document), kind=self.kind
            )
            source.rows.first = rows
            with closing(source):
                next(source.fragments(Tally(), Rejects()), None)
        except (BadData, BadMapping, MissingPackage, NoData) as error:
            return error if isinstance(error, BadData | BadMapping) else None
        return None

    def _opened(self, form: CsvForm, mapping: TableMapping | None = None) -> TableFiles:
        infos = None if mapping is None else mapping.infos
        found = TableFiles(self.files, self.kind, form, self.options.memory_limit, self.options.temp_dir, whole=infos)
        try:
            found.open()
        except BaseException:
            found.close()
            raise
        return found

    def _in_likely_encoding(self) -> None:
        """Read CSV in the encoding that all files seem to have, where names are not UTF-8."""
        if self.kind == "csv" and any(NO_LETTER in name for name in self.rows.names):
            encodings = {likely_encoding(file) for file in self.files}
            if len(encodings) == 1 and all(encodings):
                self.rows.close()
                self.rows = self._opened(CsvForm(encoding=encodings.pop()))

    def _unnest(self, mapping: TableMapping) -> None:
        """Columns of lists become rows of a step each."""
        names = [theirs for part in mapping.parts if part.role not in (*KEYS, Columns.INFOS) for theirs in part.columns]
        self.rows.steps_in = [
            name for name in dict.fromkeys(names) if name in self.rows.names and is_list(self.rows.kind_of(name))
        ]
        lacking = [name for name in dict.fromkeys(names) if name not in self.rows.steps_in]
        if lacking:
            held = self.rows.kind_of(lacking[0]) if lacking[0] in self.rows.names else "a struct"
            what = f"column {lacking[0]} holds {held}, not a list of a value a step"
            raise BadMapping(
                what,
                where=f"mapping {mapping.name}",
                fix='leave it out of the mapping, or rows = "steps" where each row is a step',
            )

    def prepare(self, options: ReadOptions) -> None:
        """See `Source`. Text has neither tuples nor dtypes: they are those of the spaces, where the mapping has none."""
        self.read_options = options
        self.info = self.info.with_default_spaces(options.spaces)

    def close(self) -> None:
        """See `Source`."""
        FileSource.close(self)
        self.rows.close()

    @property
    def mapping(self) -> TableMapping:
        """The mapping, without optional columns that are missing."""
        assert self._matched is not None  # set when made
        return self._matched.mapping

    # ---- what divides the rows ----

    def _check_ends(self, mapping: TableMapping) -> None:
        """Raise BadMapping where nothing divides rows into episodes."""
        ends, where = self._ends(mapping), f"mapping {mapping.name} for {self.info.location}"
        if self.options.rows_as_episodes or mapping.row_is_episode:
            return
        if ends is None and not (self._keys(mapping) or mapping.of(STARTS) or mapping.gap or mapping.period):
            raise BadMapping(
                "no column says which episode a row belongs to, and none where an episode ends",
                where=where,
                fix="name in the mapping the column of ids (eps_id), of end flags (terminateds, truncateds, dones) or of start"
                ' flags (starts); eps_id = "@file" where each file is an episode, rows = "episodes" where each row is one; gap'
                " or period of t; or say how rows in file order are divided: --episode-ends t (where t falls back),"
                " --episode-ends chain (where new_obs is not the next obs), --rows-as-episodes",
            )
        if not (
            self._keys(mapping)
            or self.options.episode_ends
            or mapping.episode_ends
            or mapping.of(STARTS)
            or mapping.gap
            or mapping.period
        ):
            named = {theirs for part in mapping.parts for theirs in part.columns}
            ids = next((name for name in self.rows.names if name not in named and looks_like_ids(name)), None)
            if ids is not None:
                raise BadMapping(
                    f"column {ids} looks like ids of episodes, and the mapping does not name it",
                    where=where,
                    fix=f'eps_id = "{ids}" in the mapping; or --episode-ends flags, where the flags alone divide the rows',
                )
        needs: dict[str, Any] = {"flags": mapping.has_flags, "t": mapping.of(Columns.T), "chain": mapping.of(Columns.NEXT_OBS)}
        if ends is not None and not needs[ends]:
            names = {"flags": "terminateds, truncateds or dones", "t": "t", "chain": "new_obs"}
            raise BadMapping(
                f"episodes end by {ends}, and no column is {names[ends]}", where=where, fix="name it in the mapping"
            )

    def _keys(self, mapping: TableMapping) -> list[tuple[str, str]]:
        """Role and column of the key: the file, where there are several and nothing else is said."""
        if mapping.row_is_episode:
            return [(Columns.EPS_ID, ROW_ID)]
        found = [(part.role, theirs) for role in KEYS for part in mapping.of(role) for theirs in part.columns]
        is_said = (
            mapping.has_flags
            or self.options.episode_ends
            or mapping.episode_ends
            or mapping.of(STARTS)
            or mapping.gap
            or mapping.period
        )
        if not found and not is_said and not self.options.rows_as_episodes and len(self.files) > 1:
            return [(Columns.EPS_ID, FILE_ID)]
        return found

    def _ends(self, mapping: TableMapping) -> str | None:
        """How rows of no id, or of one id, are divided; None: not at all."""
        said = self.options.episode_ends or mapping.episode_ends
        if said is None and not self._keys(mapping) and mapping.has_flags:
            return "flags"
        return said

    def _divided(self) -> Divided:
        mapping, keys = self.mapping, self._keys(self.mapping)
        return Divided(
            keyed=bool(keys or mapping.gap or mapping.period) and not self.options.rows_as_episodes,
            ends=None if self.options.rows_as_episodes else self._ends(mapping),
            each_row=self.options.rows_as_episodes,
            per_file=mapping.ids_per_file and not any(theirs == FILE_ID for _, theirs in keys),
            has_agents=any(role == Columns.AGENT_ID for role, _ in keys),
            ids=sum(role == Columns.EPS_ID for role, _ in keys),
            by_file=any(theirs in (FILE_ID, ROW_ID) for _, theirs in keys),
        )

    # ---- reading ----

    def fragments(self, tally: Tally, rejects: Rejects) -> Iterator[Fragments]:
        """Whole episodes; those without an end are truncated, and counted."""
        self.done = 0
        layout, divided, mapping = self._layout(), self._divided(), self.mapping
        for name, reason in layout.dropped.items():
            tally.drop_column(name, reason)
        prefix = f"{source_hash(self.files)}-"
        is_recorder = self.options.mapping is None and all(are_rllibs(columns) for columns in self.rows.types.values())
        if is_recorder and divided.keyed:
            prefix = ""  # RLlib's recorder gives ids that no other recording has
        reader = ValueReader(self.rows, layout, tally, self._means(layout))
        maker = Assembler(
            self.rows,
            reader,
            divided,
            mapping,
            prefix,
            tally,
            rejects,
            room_for_data(self.options.memory_limit),
            self.info.action_space is not None,
        )
        if mapping.row_is_episode:
            self._refuse_unequal(tally, rejects)
        order, where = "", ""
        if divided.keyed and not mapping.row_is_episode:
            order, where = self._order(layout, divided, maker)
        sql, values = self._sql(layout, divided, order=order, where=where)
        batches = cut_by_images(self.rows.query(sql, values), self._images(layout), IMAGE_BYTES)
        yield from maker.episodes(self._counted(batches))

    def _counted(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Progress: of what was read, the share that has come out."""
        size, rows = self.size or 0, 0
        for batch in batches:
            rows += batch.num_rows
            self.done = min(size, self.rows.read or size * rows // max(1, self.rows.rows))
            yield batch
        self.done = size

    def _images(self, layout: Layout) -> dict[str, str]:
        plans = [plan for leaf in layout.leaves for plan in leaf.columns]
        return {f"v{number}": plan.image for number, plan in enumerate(plans) if plan.image}

    def values(self) -> Generator[tuple[Tree, Tree], None, None]:
        """See `Scannable`."""
        layout = self._layout()
        leaves = tuple(leaf for role in TREES for leaf in layout.of(role))
        part = replace(layout, leaves=leaves, keys=(), infos=None)
        reader = ValueReader(self.rows, part, Tally(), self._means(layout))
        sql, values = self._sql(part, Divided(False, None))
        maker = Assembler(
            self.rows,
            reader,
            Divided(False, None),
            self.mapping,
            "",
            Tally(),
            Rejects(OnError.SKIP),
            1 << 62,
            self.info.action_space is not None,
        )
        for batch in cut_by_images(self.rows.query(sql, values), self._images(part), IMAGE_BYTES):
            rows = reader.rows(batch)
            good = ~rows["__bad"] & ~rows.get("__gap", rows["__bad"])
            if good.any():
                yield from maker.trees({name: array[good] for name, array in rows.items()})

    def extra_dtypes(self) -> Mapping[str, np.dtype[Any]]:
        """See `Scannable`."""
        return {".".join(leaf.path): leaf.dtype for leaf in self._layout().of(EXTRA)}

    def _layout(self) -> Layout:
        """Scans every cell of columns whose numbers are text. Raises BadMapping."""
        if self._laid_out is None:
            assert self._matched is not None
            mapping, rows, matched = self.mapping, self.rows, self._matched
            if mapping.row_is_episode:
                matched = replace(
                    matched,
                    spare=(),
                    dropped={**matched.dropped, **dict.fromkeys(matched.spare, "not named, where rows are episodes")},
                )
            wanted, extras = list[str](), set(matched.spare)
            for part in mapping.parts:
                if part.role in (*TREES, EXTRA, Columns.T):
                    names = [name for theirs in part.columns for name in expanded(theirs, rows.names)]
                    wanted += names
                    extras |= set(names) if part.role == EXTRA else set()
            wanted = list(dict.fromkeys([*wanted, *matched.spare]))
            whole = {name for name in extras if all(_is_integer(types[name]) for types in rows.types.values() if name in types)}
            times = [name for name in wanted if name not in mapping.categories]
            facts = facts_of(rows, wanted, decimal=mapping.csv.decimal, times=times, nulls=whole)
            if facts and all(one.is_empty for one in facts.values()):
                if rows.bad:
                    raise rows.bad[0].error
                fix = "check that the program that wrote it wrote any rows"
                raise NoData("the table has no rows", where=self.info.location, fix=fix)
            self._laid_out = lay_out(matched, rows, facts, self.info.spaces, lambda names: texts_of(rows, names))
        return self._laid_out

    # ---- SQL ----

    def _key_sql(self, theirs: str) -> tuple[str, list[Any]]:
        if theirs == ROW_ID:
            return POS, []
        if theirs == FILE_ID:
            return FILE, []
        if theirs == FOLDER_ID:
            folders = [file.url.rpartition("/")[0] for file in self.files]
            return f"list_extract(?, {FILE} + 1)", [[folder.rpartition("/")[2] for folder in folders]]
        column = self.rows.column(theirs, as_id=True)
        text = f"CAST({column} AS VARCHAR)"
        return (f"regexp_replace({text}, '{WHOLE_FLOAT}', '\\1')" if self.rows.is_text else text), []

    def _inner(self, layout: Layout, divided: Divided, keys: Sequence[tuple[str, str]]) -> tuple[str, list[Any]]:
        """A subquery with `e<i>` for keys, `v<i>` for values, and the columns that they are made of."""
        names, values = list[str](), list[Any]()
        for number, (_, theirs) in enumerate(keys):
            sql, bound = self._key_sql(theirs)
            names.append(f"{sql} AS e{number}")
            values += bound
        if divided.per_file and keys:
            names.append(f"{FILE} AS e{len(keys)}")
        plans = [(leaf, plan) for leaf in layout.leaves for plan in leaf.columns]
        for number, (leaf, plan) in enumerate(plans):
            sql, bound = value_sql(self.rows, leaf, plan, self.mapping.csv.decimal)
            names.append(f"{sql} AS v{number}")
            values += bound
        ids = [theirs for _, theirs in keys if theirs[:1] != "@" or theirs in self.rows.names]
        return f"(SELECT *, {', '.join(names or ['1'])} FROM {self.rows.relation(layout.columns, ids)})", values

    def _sql(self, layout: Layout, divided: Divided, *, order: str = "", where: str = "") -> tuple[str, list[Any]]:
        keys = self._keys(self.mapping) if divided.keyed or divided.each_row else []
        inner, values = self._inner(layout, divided, keys)
        names = [POS, *(f"s.e{number}" for number in range(len(keys) + (divided.per_file and bool(keys))))]
        plans = [(leaf, plan) for leaf in layout.leaves for plan in leaf.columns]
        for number, (_, plan) in enumerate(plans):
            names.append(f"v{number}")
            if self.rows.holds_text(plan.column) or (plan.cells == "category" and not plan.image):
                names.append(
                    f"CASE WHEN v{number} IS NULL THEN CAST({self.rows.column(plan.column)} AS VARCHAR) END AS r{number}"
                )
        if layout.infos is not None:
            names.append(f"CAST({self.rows.column(layout.infos)} AS VARCHAR) AS {Columns.INFOS}")
        return f"SELECT {', '.join(names)} FROM {inner} AS s {_with_where(order, where) if where else order}", values

    def _order(self, layout: Layout, divided: Divided, maker: Assembler) -> tuple[str, str]:
        """The joins and order of rows that are not together by key, or fall back in `t`; and which rows have an id."""
        keys = self._keys(self.mapping)
        t = layout.of(Columns.T) if divided.ends != "t" else ()
        part = replace(layout, leaves=t, infos=None)
        inner, values = self._inner(part, divided, keys)
        count = len(keys) + (divided.per_file and bool(keys))
        names = [*(f"e{number}" for number in range(count)), *(["v0"] if t else [])]
        lost, in_order = _scan_order(
            self.rows.query(f"SELECT {', '.join([POS, *names])} FROM {inner}", values),
            count,
            bool(t),
            [number for number, (role, _) in enumerate(keys) if role == Columns.EPS_ID],
        )
        where = ""
        if len(lost):
            maker.lost_keys = lost
            for pos in lost.tolist():
                column = next(theirs for role, theirs in keys if role == Columns.EPS_ID)
                fix = "delete the row if it is empty, or give it its id; --on-error skip leaves out the episodes beside it"
                maker.rejects.add(
                    BadEpisode(f"column {column} has no value", where=self.rows.place(pos), fix=fix), raw=maker.raw_of(pos)
                )
                maker.tally.rows_in += 1
            where = " AND ".join(f"s.e{number} IS NOT NULL" for number, (role, _) in enumerate(keys) if role == Columns.EPS_ID)
        if in_order:
            return "", where
        maker.in_order = False
        by_t = [f"v{self._t_number(layout)} NULLS FIRST"] if t else []
        if not keys:
            return f"ORDER BY {', '.join([*by_t, POS])}", where
        inner, values = self._inner(replace(layout, leaves=(), infos=None), divided, keys)
        every = [f"e{number}" for number in range(count)]
        self.rows.run(
            f"CREATE OR REPLACE TABLE firsts AS SELECT {', '.join(every)}, min({POS}) AS first FROM {inner} GROUP BY ALL",
            values,
        )
        on = " AND ".join(f"s.{name} IS NOT DISTINCT FROM f.{name}" for name in every)
        return f"JOIN firsts AS f ON {on} ORDER BY f.first, {', '.join([*by_t, POS])}", where

    def _t_number(self, layout: Layout) -> int:
        plans = [leaf for leaf in layout.leaves for _ in leaf.columns]
        return next(number for number, leaf in enumerate(plans) if leaf.role == Columns.T)

    def _means(self, layout: Layout) -> Mapping[str, NDArray[Any]]:
        """Of columns that [fill] asks for them: over all finite numbers. Raises BadMapping where there is none."""
        found: dict[str, NDArray[Any]] = {}
        problems = []
        for leaf in layout.leaves:
            for plan in leaf.columns:
                if plan.fill != MEAN or plan.column in found:
                    continue
                one = replace(layout, leaves=(replace(leaf, columns=(plan,)),), infos=None)
                sql, values = self._inner(one, Divided(False, None), ())
                parts = ["v0"]
                if plan.vectors:
                    width = self.rows.one(f"SELECT mode(len(v0)) FROM {sql}", values)[0] or 0
                    parts = [f"v0[{i + 1}]" for i in range(width)]
                    sql, values = self._inner(one, Divided(False, None), ())
                asked = ", ".join(f"avg({part}) FILTER (WHERE isfinite(CAST({part} AS DOUBLE)))" for part in parts)
                means = self.rows.one(f"SELECT {asked or 'NULL'} FROM {sql}", values)
                if any(mean is None for mean in means):
                    problems.append(f"fill: no row has a number in column '{plan.column}', so that there is no mean")
                else:
                    found[plan.column] = np.array(means if plan.vectors else means[0], np.float64)
        if problems:
            where = f"mapping {self.mapping.name} for {self.info.location}"
            raise BadMapping.of(sorted(problems), where=where, fix="fill it with a number, or leave it out")
        return found

    def _refuse_unequal(self, tally: Tally, rejects: Rejects) -> None:
        """Set aside rows whose lists have different lengths: each is an episode."""
        for pos, lengths in self.rows.unequal_rows():
            told = ", ".join(
                f"{name} {'none' if size is None else size}" for name, size in zip(self.rows.steps_in, lengths, strict=True)
            )
            fix = "write a value a step in each list, or --on-error skip to leave out the episode"
            rejects.add(BadEpisode(f"lists of different lengths in one row: {told}", where=self.rows.place(pos), fix=fix))
            rejects.lose_episodes(Lost.BAD_ROW)
            tally.rows_in += 1


def _with_where(order: str, where: str) -> str:
    join, _, by = order.partition("ORDER BY")
    return f"{join} WHERE {where}{f' ORDER BY {by}' if by else ''}"


def _is_integer(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind))


def _scan_order(
    batches: Iterator[pa.RecordBatch], keys: int, has_t: bool, needed: Collection[int]
) -> tuple[NDArray[np.int64], bool]:
    """Positions of rows without an id, and whether rows of a key are together and none falls back in `t`."""
    lost, seen, in_order = list[NDArray[np.int64]](), set[Any](), True
    last: tuple[Any, ...] | None = None
    last_t: Any = None
    for batch in batches:
        if not batch.num_rows:
            continue
        columns = [batch.column(f"e{number}") for number in range(keys)]
        for number in needed:
            if columns[number].null_count:
                null = columns[number].is_null().to_numpy(zero_copy_only=False)
                lost.append(batch.column(POS).to_numpy()[null])
        if not in_order:
            continue
        same = np.ones(batch.num_rows, np.bool_)
        for column in columns:
            if column.null_count:
                column = column.dictionary_encode(null_encoding="encode").indices
            same[1:] &= pc.equal(column[1:], column[:-1]).to_numpy(zero_copy_only=False)
        same[0] = last == tuple(column[0].as_py() for column in columns)
        last = tuple(column[batch.num_rows - 1].as_py() for column in columns)
        begins = np.flatnonzero(~same)
        heads = (
            list(zip(*(column.take(pa.array(begins)).to_pylist() for column in columns), strict=True))
            if columns
            else [()] * len(begins)
        )
        before = len(seen)
        seen.update(map(hash, heads))
        in_order = len(seen) - before == len(heads)
        if has_t and in_order:
            t = batch.column("v0")
            least = np.iinfo(t.type.to_pandas_dtype()).min if pa.types.is_integer(t.type) else -np.inf
            values = t.fill_null(least).to_numpy(zero_copy_only=False)
            falls = values[1:] < values[:-1]
            in_order = not (falls & same[1:] & t.is_valid().to_numpy(zero_copy_only=False)[1:]).any()
            in_order = in_order and not (same[0] and last_t is not None and values[0] < last_t)
            last_t = values[-1]
    return np.sort(np.concatenate([np.zeros(0, np.int64), *lost])), in_order

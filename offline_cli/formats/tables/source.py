"""Tables of steps as a source of whole episodes, and the options that a caller may give before they are opened.

files -> columns (mapping, layout, SQL of values) -> one query, ordered by key and `t` where rows are not -> episodes.
A column that no mapping explains, and rows that nothing divides into episodes, raise.
"""

# ruff: noqa: S608  names of our own alone become SQL, values are bound

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Final, get_args

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from offline_cli.byte_sizes import byte_size
from offline_cli.choices import EpisodeEnds
from offline_cli.columns import Columns
from offline_cli.environments import EnvironmentSpec
from offline_cli.errors import BadData, BadEpisode, BadMapping, MissingPackage, NoData, UsageError
from offline_cli.formats.memory_limits import MEMORY_LIMIT, room_for_data
from offline_cli.formats.source import FileSource, Fragments, ReadOptions, SourceInfo
from offline_cli.formats.step_rows import END_FLAGS
from offline_cli.formats.tables.arrow_types import is_list
from offline_cli.formats.tables.columns import Matched, category_space, expanded, facts_of, match, meanings_of
from offline_cli.formats.tables.csv_files import NO_LETTER, likely_encoding
from offline_cli.formats.tables.episodes import Assembler
from offline_cli.formats.tables.files import FILE, POS, TableFiles
from offline_cli.formats.tables.ids import Divided, Naming, are_rllibs, same_keys, source_hash
from offline_cli.formats.tables.images import cut_by_images
from offline_cli.formats.tables.layout import Layout, lay_out, value_sql
from offline_cli.formats.tables.mapping import (
    EXTRA,
    FILE_ID,
    FOLDER_ID,
    KEYS,
    MEAN,
    TREES,
    CsvForm,
    GivenMapping,
    TableMapping,
    given_mapping,
    load_mapping,
    mapping_text,
)
from offline_cli.formats.tables.proposals import default_mapping
from offline_cli.formats.tables.values import ValueReader
from offline_cli.storage.temp_files import checked_folder
from offline_cli.tally import Lost, Rejects, Tally

__all__ = ["EPISODE_ENDS", "LEAST_MEMORY", "MEMORY_LIMIT", "PLAIN_TABLES", "TableOptions", "TableSource"]

EPISODE_ENDS: Final[tuple[str, ...]] = get_args(EpisodeEnds)
LEAST_MEMORY: Final = 256 << 20  # the program itself takes half of that
IMAGE_BYTES: Final = 16 << 20  # of decoded images at a time
WHOLE_FLOAT: Final = r"^(0|-?[1-9][0-9]*)\.0+$"
ROW_ID: Final = "@row"  # the id of a row that is an episode
NO_EPISODES: Final = (
    "name in the mapping the column of ids (eps_id), of end flags (terminateds, truncateds, dones) or of start flags (starts);"
    ' eps_id = "@file" where each file is an episode, rows = "episodes" where each row is one; gap or period of t; or say how'
    " rows in file order are divided: --episode-ends t (where t falls back), --episode-ends chain (where new_obs is not the"
    " next obs), --rows-as-episodes"
)


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
            what = "where each row is an episode, nothing else ends one"
            raise UsageError(what, where="--episode-ends", fix="give one of the two")
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
    _matched: Matched = field(init=False)
    _laid_out: Layout | None = field(default=None, init=False)

    def __post_init__(self, location: str, declared: SourceInfo | None) -> None:
        """Opens the files as far as their columns, and checks the mapping against these. Raises BadMapping, BadData."""
        said = self.options.mapping
        mapping = None if said is None else load_mapping(said, self.storage_options)
        self.info = SourceInfo(format=self.format, location=location)
        self.rows = self._opened(CsvForm() if mapping is None else mapping.said.csv, None if mapping is None else mapping.infos)
        try:
            if mapping is None:
                self._read_in_likely_encoding()
                mapping = default_mapping(self.rows, self._tried)
                if mapping.infos not in self.rows.kinds:
                    self.rows.keep_whole(mapping.infos)
            self._matched = match(mapping, self.rows.types)
            self._find_steps()
            self._check_ends()
        except BaseException:
            self.rows.close()
            raise
        self.info = declared or self._info(location)

    def _opened(self, form: CsvForm, infos: str | None = None) -> TableFiles:
        found = TableFiles(self.files, self.kind, form, self.options.memory_limit, self.options.temp_dir, infos)
        try:
            found.open()
        except BaseException:
            found.close()
            raise
        return found

    def _read_in_likely_encoding(self) -> None:
        """Read CSV in the encoding that all files seem to have, where names are not UTF-8."""
        if self.kind == "csv" and any(NO_LETTER in name for name in self.rows.names):
            encodings = {likely_encoding(file) for file in self.files}
            if len(encodings) == 1 and all(encodings):
                self.rows.close()
                self.rows = self._opened(CsvForm(encoding=encodings.pop()))

    def _info(self, location: str) -> SourceInfo:
        mapping, said = self.mapping, self.mapping.said
        return SourceInfo(
            format=self.format,
            location=location,
            observation_space=mapping.spaces[0] or category_space(mapping, Columns.OBS),
            action_space=mapping.spaces[1] or category_space(mapping, Columns.ACTIONS),
            action_scale=mapping.action_scale,
            meanings=meanings_of(mapping),
            environment=None if said.environment is None else EnvironmentSpec(said.environment),
            said_by=f"the mapping {mapping.name}",
            columns=mapping.as_text(),
            mappings=(mapping.document,),
        )

    def _tried(self, mapping: TableMapping, rows: int) -> BadData | BadMapping | None:
        """What is wrong with a mapping, by the first rows; None: nothing."""
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
        return self._matched.mapping

    # ---- what divides the rows ----

    def _find_steps(self) -> None:
        """Where a row is an episode, which columns hold lists of its steps. Raises BadMapping for others."""
        mapping, kinds = self.mapping, self.rows.kinds
        flags = [kinds[name] for name in mapping.names(Columns.REWARDS, *END_FLAGS) if name in kinds]
        lists = [kind for kind in flags if is_list(kind) and not (pa.types.is_fixed_size_list(kind) and kind.list_size == 1)]
        if lists and mapping.said.rows is None:
            mapping = replace(mapping, row_is_episode=True)
        if not mapping.row_is_episode:
            return
        roles = {part.role for part in mapping.parts}.difference((*KEYS, Columns.INFOS))
        for name in mapping.names(*roles):
            if not is_list(kinds.get(name, pa.null())):
                held = kinds.get(name, "a struct")
                what, fix = (
                    f"column {name} holds {held}, not a list of a value a step",
                    'or rows = "steps" where each row is a step',
                )
                raise BadMapping(what, where=f"mapping {mapping.name}", fix=f"leave it out of the mapping, {fix}")
        self.rows.steps_in = mapping.names(*roles)
        why = dict.fromkeys(self._matched.spare, "not named, where rows are episodes")
        self._matched = Matched(mapping, (), {**self._matched.dropped, **why})

    @property
    def _is_divided(self) -> bool:
        """Whether anything but an id is said to divide the rows."""
        mapping, options = self.mapping, self.options
        by_options = options.rows_as_episodes or options.episode_ends
        return bool(by_options or mapping.said.episode_ends or mapping.has_flags or mapping.divides_more)

    @property
    def _keys(self) -> list[tuple[str, str]]:
        """Role and column of the key: the file, where there are several and nothing else is said."""
        if self.mapping.row_is_episode:
            return [(Columns.EPS_ID, ROW_ID)]
        found = [(part.role, theirs) for role in KEYS for part in self.mapping.of(role) for theirs in part.columns]
        return found or ([(Columns.EPS_ID, FILE_ID)] if len(self.files) > 1 and not self._is_divided else [])

    @property
    def _ends(self) -> str | None:
        """How rows of no id, or of one id, are divided; None: not at all."""
        said = self.options.episode_ends or self.mapping.said.episode_ends
        return "flags" if said is None and self.mapping.has_flags and not self._keys else said

    def _check_ends(self) -> None:
        """Raise BadMapping where nothing divides rows into episodes, or what does has no column."""
        mapping, where = self.mapping, f"mapping {self.mapping.name} for {self.info.location}"
        if not (self._keys or self._is_divided):
            what = "no column says which episode a row belongs to, and none where an episode ends"
            raise BadMapping(what, where=where, fix=NO_EPISODES)
        needs = {"flags": END_FLAGS, "t": (Columns.T,), "chain": (Columns.NEXT_OBS,)}.get(self._ends or "", ())
        if needs and not any(mapping.of(role) for role in needs) and not self.options.rows_as_episodes:
            what = f"episodes end by {self._ends}, and no column is {' or '.join(needs)}"
            raise BadMapping(what, where=where, fix="name it in the mapping")

    def _divided(self) -> Divided:
        said, keys, each_row = self.mapping.said, self._keys, self.options.rows_as_episodes
        by_file = any(theirs in (FILE_ID, ROW_ID) for _, theirs in keys)
        return Divided(
            roles=tuple(role for role, _ in keys),
            keyed=bool(keys or said.gap or said.period) and not each_row,
            ends=None if each_row else self._ends,
            each_row=each_row,
            per_file=said.ids_per_file and bool(keys) and not any(theirs == FILE_ID for _, theirs in keys),
            by_file=by_file,
        )

    # ---- reading ----

    def fragments(self, tally: Tally, rejects: Rejects) -> Iterator[Fragments]:
        """Whole episodes; those without an end are truncated, and counted."""
        self.done = 0
        layout, divided = self._layout(), self._divided()
        for name, reason in layout.dropped.items():
            tally.drop_column(name, reason)
        maker = self._assembler(layout, divided, tally, rejects)
        if self.mapping.row_is_episode:
            self._refuse_unequal(tally, rejects)
        order = self._order(layout, divided, maker) if divided.keyed and not self.mapping.row_is_episode else ""
        sql, values = self._sql(layout, divided, order)
        yield from maker.episodes(self._counted(self._cut(self.rows.query(sql, values), layout)))

    def _assembler(self, layout: Layout, divided: Divided, tally: Tally, rejects: Rejects) -> Assembler:
        prefix = f"{source_hash(self.files)}-"
        is_recorder = self.options.mapping is None and all(are_rllibs(columns) for columns in self.rows.types.values())
        if is_recorder and divided.keyed:
            prefix = ""  # RLlib's recorder gives ids that no other recording has
        reader = ValueReader(self.rows, layout, self.mapping.said.split_at_gaps, tally, self._means(layout))
        room, declares = room_for_data(self.options.memory_limit), self.info.action_space is not None
        naming = Naming(divided, prefix, divided.ends is not None or self.mapping.divides_more, tally)
        return Assembler(self.rows, reader, divided, self.mapping, naming, tally, rejects, room, declares)

    def _counted(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Progress: of what was read, the share that has come out."""
        size, rows = self.size or 0, 0
        for batch in batches:
            rows += batch.num_rows
            self.done = min(size, self.rows.read or size * rows // max(1, self.rows.rows))
            yield batch
        self.done = size

    def _cut(self, batches: Iterator[pa.RecordBatch], layout: Layout) -> Iterator[pa.RecordBatch]:
        images = [f"v{number}" for number, (_, plan) in enumerate(layout.plans) if plan.image]
        return cut_by_images(batches, images, IMAGE_BYTES) if images else batches

    def _layout(self) -> Layout:
        """Scans every cell of columns whose numbers are text. Raises BadMapping."""
        if self._laid_out is None:
            mapping, rows, spare = self.mapping, self.rows, self._matched.spare
            wanted = [name for theirs in mapping.names(*TREES, EXTRA, Columns.T) for name in expanded(theirs, rows.kinds)]
            wanted = list(dict.fromkeys([*wanted, *spare]))
            extras = {*spare, *(name for theirs in mapping.names(EXTRA) for name in expanded(theirs, rows.kinds))}
            whole = {name for name in extras if pa.types.is_integer(rows.kind_of(name))}
            times = [name for name in wanted if name not in mapping.said.categories]
            facts = facts_of(rows, wanted, decimal=mapping.said.csv.decimal, times=times, nulls=whole)
            if facts and not any(one.kind for one in facts.values()):
                if rows.bad:
                    raise rows.bad[0].error
                fix = "check that the program that wrote it wrote any rows"
                raise NoData("the table has no rows", where=self.info.location, fix=fix)
            self._laid_out = lay_out(self._matched, rows, facts, self.info.spaces)
        return self._laid_out

    def _refuse_unequal(self, tally: Tally, rejects: Rejects) -> None:
        """Set aside rows whose lists have different lengths: each is an episode."""
        for pos, lengths in self.rows.unequal_rows():
            sizes = zip(self.rows.steps_in, lengths, strict=True)
            told = ", ".join(f"{name} {'none' if size is None else size}" for name, size in sizes)
            fix = "write a value a step in each list, or --on-error skip to leave out the episode"
            rejects.add(BadEpisode(f"lists of different lengths in one row: {told}", where=self.rows.place(pos), fix=fix))
            rejects.lose_episodes(Lost.BAD_ROW)
            tally.rows_in += 1

    # ---- SQL ----

    def _key_sql(self, theirs: str) -> tuple[str, list[Any]]:
        if theirs == ROW_ID:
            return POS, []
        if theirs == FILE_ID:
            return FILE, []
        if theirs == FOLDER_ID:
            folders = [file.url.rpartition("/")[0].rpartition("/")[2] for file in self.files]
            return f"list_extract(?, {FILE} + 1)", [folders]
        text = f"CAST({self.rows.column(theirs, as_id=True)} AS VARCHAR)"
        return (f"regexp_replace({text}, '{WHOLE_FLOAT}', '\\1')" if self.rows.is_text else text), []

    def _inner(self, layout: Layout, divided: Divided) -> tuple[str, list[Any], list[str]]:
        """A subquery with `e<i>` for keys, `v<i>` for values, and their columns; what is bound; the names of the keys."""
        keys = self._keys if divided.roles else []
        found = [self._key_sql(theirs) for _, theirs in keys] + [(FILE, [])] * divided.per_file
        names = [f"e{number}" for number in range(len(found))]
        found += [value_sql(self.rows, leaf, plan, self.mapping.said.csv.decimal) for leaf, plan in layout.plans]
        chosen = [f"{sql} AS {name}" for (sql, _), name in zip(found, [*names, *_numbered("v", layout)], strict=True)]
        ids = [theirs for _, theirs in keys if theirs not in (FILE_ID, FOLDER_ID, ROW_ID)]
        inner = f"(SELECT {', '.join(['*', *chosen])} FROM {self.rows.relation(layout.columns, ids)})"
        return inner, [value for _, bound in found for value in bound], names

    def _sql(self, layout: Layout, divided: Divided, order: str = "") -> tuple[str, list[Any]]:
        """The query of all rows: keys, values, and as `r<i>` the texts of cells that give none."""
        inner, values, keys = self._inner(layout, divided)
        names = [POS, *(f"s.{key}" for key in keys), *_numbered("v", layout)]
        for number, (_, plan) in enumerate(layout.plans):
            if self.rows.holds_text(plan.column) or plan.cells == "category":
                text = f"CAST({self.rows.column(plan.column)} AS VARCHAR)"
                names.append(f"CASE WHEN v{number} IS NULL THEN {text} END AS r{number}")
        if layout.infos is not None:
            names.append(f"CAST({self.rows.column(layout.infos)} AS VARCHAR) AS {Columns.INFOS}")
        return f"SELECT {', '.join(names)} FROM {inner} AS s {order}", values

    def _order(self, layout: Layout, divided: Divided, maker: Assembler) -> str:
        """The end of the query: joins and order of rows that are not in order; without those that have no id."""
        t = None if divided.ends == "t" else layout.t
        keys_alone = replace(layout, leaves=(), infos=None)
        inner, values, keys = self._inner(replace(keys_alone, leaves=() if t is None else (t,)), divided)
        ids = [f"e{number}" for number, (role, _) in enumerate(self._keys) if role == Columns.EPS_ID]
        asked = ", ".join([POS, *keys, *(["v0"] if t is not None else [])])
        lost, in_order = _scan_order(self.rows.query(f"SELECT {asked} FROM {inner}", values), keys, ids)
        where = ""
        if len(lost):
            maker.lose_keys(lost, next(theirs for role, theirs in self._keys if role == Columns.EPS_ID))
            where = f"WHERE {' AND '.join(f's.{name} IS NOT NULL' for name in ids)}"
        if in_order:
            return where
        maker.in_order = False
        number = next((number for number, (leaf, _) in enumerate(layout.plans) if leaf is t), None)
        by_t = [] if number is None else [f"v{number} NULLS FIRST"]
        if not keys:
            return f"{where} ORDER BY {', '.join([*by_t, POS])}"
        inner, values, _ = self._inner(keys_alone, divided)
        first = f"SELECT {', '.join(keys)}, min({POS}) AS first FROM {inner} GROUP BY ALL"
        list(self.rows.query(f"CREATE OR REPLACE TABLE firsts AS {first}", values))
        on = " AND ".join(f"s.{name} IS NOT DISTINCT FROM f.{name}" for name in keys)
        return f"JOIN firsts AS f ON {on} {where} ORDER BY f.first, {', '.join([*by_t, POS])}"

    def _means(self, layout: Layout) -> Mapping[str, NDArray[Any]]:
        """Of columns that [fill] asks for them: over all finite numbers. Raises BadMapping where there is none."""
        found: dict[str, NDArray[Any]] = {}
        problems = []
        for leaf, plan in layout.plans:
            if plan.fill != MEAN or plan.column in found:
                continue
            one = replace(layout, leaves=(replace(leaf, columns=(plan,)),), infos=None)
            parts = ["v0"]
            if plan.vectors:
                inner, values, _ = self._inner(one, Divided())
                width = self.rows.one(f"SELECT mode(len(v0)) FROM {inner}", values)[0] or 0
                parts = [f"v0[{i + 1}]" for i in range(width)]
            inner, values, _ = self._inner(one, Divided())
            asked = ", ".join(f"avg({part}) FILTER (WHERE isfinite(CAST({part} AS DOUBLE)))" for part in parts)
            means = self.rows.one(f"SELECT {asked or 'NULL'} FROM {inner}", values)
            if any(mean is None for mean in means):
                problems.append(f"fill: no row has a number in column '{plan.column}', so that there is no mean")
            found[plan.column] = np.array(means if plan.vectors else means[0], np.float64)
        if problems:
            where = f"mapping {self.mapping.name} for {self.info.location}"
            raise BadMapping.of(sorted(problems), where=where, fix="fill it with a number, or leave it out")
        return found


def _numbered(letter: str, layout: Layout) -> list[str]:
    return [f"{letter}{number}" for number in range(len(layout.plans))]


def _scan_order(batches: Iterator[pa.RecordBatch], keys: list[str], ids: list[str]) -> tuple[NDArray[np.int64], bool]:
    """Positions of rows without an id, and whether rows of a key are together and none falls back in `t` (`v0`)."""
    lost, seen, in_order = [np.zeros(0, np.int64)], set[Any](), True
    last: tuple[Any, ...] | None = None
    last_t: Any = None
    for batch in batches:
        if not batch.num_rows:
            continue
        nulls = [batch.column(name).is_null().to_numpy(zero_copy_only=False) for name in ids if batch.column(name).null_count]
        lost += [batch.column(POS).to_numpy()[null] for null in nulls]
        if not in_order:
            continue
        columns = [batch.column(name) for name in keys]
        same = np.ones(batch.num_rows, np.bool_)
        if columns:
            same, heads = same_keys(columns, last)
            last = tuple(column[batch.num_rows - 1].as_py() for column in columns)
            before = len(seen)
            seen.update(map(hash, heads))
            in_order = len(seen) - before == len(heads)
        if "v0" in batch.schema.names and in_order:
            t = batch.column("v0")
            least = np.iinfo(t.type.to_pandas_dtype()).min if pa.types.is_integer(t.type) else -np.inf
            values = t.fill_null(least).to_numpy(zero_copy_only=False)
            falls = (values[1:] < values[:-1]) & same[1:] & t.is_valid().to_numpy(zero_copy_only=False)[1:]
            in_order = not falls.any() and not (same[0] and last_t is not None and values[0] < last_t)
            last_t = values[-1]
    return np.unique(np.concatenate(lost)), in_order

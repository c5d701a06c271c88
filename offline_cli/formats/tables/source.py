"""Tables of steps as a source of whole episodes, and the options that a caller may give before they are opened.

* `files`, `csv_files`, `json_files`, `arrow_messages`, `packing`: bytes to raw chunks of rows;
* `mapping`, `matching`: what the columns mean;
* `column_facts`, `column_layout`: what they hold, and what becomes of them;
* `cells`, `numeric`, `values`, `reading`: raw chunks to tables of our own columns;
* `grouping` and what it needs: rows of one key together, in bounded memory;
* `rows`, `in_order`, `episodes`, `ids`: tables to batches of episodes.

A column that no mapping explains, and rows that nothing divides into episodes, raise.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Final, get_args

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from offline_cli.byte_sizes import byte_size
from offline_cli.choices import EpisodeEnds
from offline_cli.columns import Columns
from offline_cli.environments import EnvironmentSpec
from offline_cli.errors import BadEpisode, BadMapping, NoData, UsageError
from offline_cli.files.local_files import checked_folder
from offline_cli.formats.memory_limits import MEMORY_LIMIT, give_back, room_for_data
from offline_cli.formats.source import FileSource, Fragments, ReadOptions, SourceInfo
from offline_cli.formats.tables.column_facts import MOST_SEEN, columns_of, gather, in_likely_form, seen_rows
from offline_cli.formats.tables.column_layout import VALUES, Layout, Leaf, lay_out, looked_at
from offline_cli.formats.tables.column_looks import Seen
from offline_cli.formats.tables.episodes import EpisodeMaker
from offline_cli.formats.tables.files import TableFile
from offline_cli.formats.tables.grouping import grouped
from offline_cli.formats.tables.ids import are_rllibs, source_hash
from offline_cli.formats.tables.in_order import FLAGS, EpisodesInOrder, Footprint, KeyedEpisodes
from offline_cli.formats.tables.key_runs import LARGE
from offline_cli.formats.tables.mapping import (
    AS_USUAL,
    EXTRA,
    MEAN,
    CsvForm,
    GivenMapping,
    TableMapping,
    given_mapping,
    load_mapping,
    mapping_text,
)
from offline_cli.formats.tables.matching import Matched, category_space, default_mapping, match, meanings_of
from offline_cli.formats.tables.numeric import Shape
from offline_cli.formats.tables.proposals import looks_like_ids
from offline_cli.formats.tables.reading import ChunkReader
from offline_cli.formats.tables.rows import Rows
from offline_cli.formats.tables.values import Means
from offline_cli.tally import OnError, Rejects, Tally
from offline_cli.trees import Tree

__all__ = ["EPISODE_ENDS", "MEMORY_LIMIT", "PLAIN_TABLES", "TableOptions", "TableSource"]

EPISODE_ENDS: Final[tuple[str, ...]] = get_args(EpisodeEnds)
LEAST_MEMORY: Final = 256 << 20  # the program itself takes half of that

CHUNK_SHARE: Final = 32  # one in so many bytes of the room for data is a raw chunk
MAX_CHUNK_BYTES: Final = 16 << 20


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
            fix = "give one of the two"
            raise UsageError("where each row is an episode, nothing else ends one", where="--episode-ends", fix=fix)
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
    _read: int = field(default=0, init=False)  # bytes of the files
    _tables: list[TableFile] = field(default_factory=list, init=False)
    _types: dict[str, dict[str, pa.DataType]] = field(default_factory=dict, init=False)
    _matched: Matched | None = field(default=None, init=False)
    _laid_out: Layout | None = field(default=None, init=False)
    _means: Mapping[str, NDArray[Any]] = field(default_factory=dict, init=False)  # by column of theirs, as [fill] asks for them

    def __post_init__(self, location: str, declared: SourceInfo | None) -> None:
        """Opens the files as far as their columns, and checks the mapping against these. Raises BadMapping, BadData."""
        said = self.options.mapping
        mapping = None if said is None else load_mapping(said, self.storage_options)
        self._tables = [TableFile(file, self.kind, self.options.memory_limit) for file in self.files]
        form = AS_USUAL if mapping is None else mapping.csv
        self._types = columns_of(self._tables, form, self.options.temp_dir)
        if mapping is None:
            types, form = in_likely_form(self._tables, self._types, self.options.temp_dir)
            mapping = default_mapping(types, lambda names, form: self._seen(names, form=form), form)
        self._matched = match(mapping, self._types)
        self.info = declared or SourceInfo(
            format=self.format,
            location=location,
            observation_space=mapping.observation_space or category_space(mapping, Columns.OBS),
            action_space=mapping.action_space or category_space(mapping, Columns.ACTIONS),
            action_scale=mapping.action_scale,
            meanings=meanings_of(self.mapping),
            environment=None if mapping.environment is None else EnvironmentSpec(mapping.environment),
            said_by=f"the mapping {mapping.name}",
            columns=self.mapping.as_text(),
            mappings=(self.mapping.document,),
        )
        self._check_ends(self.mapping)

    def prepare(self, options: ReadOptions) -> None:
        """See `Source`. Text has neither tuples nor dtypes: they are those of the spaces, where the mapping has none."""
        self.read_options = options
        self.info = self.info.with_default_spaces(options.spaces)

    @property
    def mapping(self) -> TableMapping:
        """The mapping, without optional columns that are missing."""
        assert self._matched is not None  # set when made
        return self._matched.mapping

    def _check_ends(self, mapping: TableMapping) -> None:
        """Raise BadMapping where nothing divides rows into episodes."""
        ends = self._ends(mapping)
        if self.options.rows_as_episodes:
            return
        where = f"mapping {mapping.name} for {self.info.location}"
        if ends is None and not mapping.of(Columns.EPS_ID):
            raise BadMapping(
                "no column says which episode a row belongs to, and none where an episode ends",
                where=where,
                fix="name the column of ids (eps_id) or of end flags (terminateds, truncateds, dones) in the mapping; or say"
                " how rows in file order are divided: --episode-ends t (where t falls back), --episode-ends chain (where"
                " new_obs is not the next obs), --rows-as-episodes",
            )
        self._check_ids(mapping, where)
        needs = {"flags": mapping.has_flags, "t": mapping.of(Columns.T), "chain": mapping.of(Columns.NEXT_OBS)}
        if ends is not None and not needs[ends]:
            names = {"flags": "terminateds, truncateds or dones", "t": "t", "chain": "new_obs"}
            raise BadMapping(
                f"episodes end by {ends}, and no column is {names[ends]}", where=where, fix="name it in the mapping"
            )

    def _check_ids(self, mapping: TableMapping, where: str) -> None:
        """Raise BadMapping where flags divide the rows only because the column of ids is not named."""
        if mapping.of(Columns.EPS_ID) or self.options.episode_ends or mapping.episode_ends:
            return
        named = {theirs for part in mapping.parts for theirs in part.columns}
        columns = [name for types in self._types.values() for name in types]
        ids = next((name for name in columns if name not in named and looks_like_ids(name)), None)
        if ids is not None:
            raise BadMapping(
                f"column {ids} looks like ids of episodes, and the mapping does not name it",
                where=where,
                fix=f'eps_id = "{ids}" in the mapping; or --episode-ends flags, where the flags alone divide the rows',
            )

    def _ends(self, mapping: TableMapping) -> str | None:
        """How rows of no id, or of one id, are divided; None: not at all."""
        said = self.options.episode_ends or mapping.episode_ends
        if said is None and not mapping.of(Columns.EPS_ID) and mapping.has_flags:
            return FLAGS
        return said

    # ---- reading ----

    def fragments(self, tally: Tally, rejects: Rejects) -> Iterator[Fragments]:
        """Whole episodes; those without an end are truncated, and counted."""
        self.done = self._read = 0
        layout = self._layout()
        for name, reason in layout.dropped.items():
            tally.drop_column(name, reason)
        mapping, options, prefix = self.mapping, self.options, f"{source_hash(self.files)}-"
        reader = self._reader(layout, tally, rejects, self._count)
        maker = EpisodeMaker(tuple(table.url for table in self._tables), tally, rejects)
        shape_of = _Shapes(reader)
        ends = self._ends(mapping)
        if options.rows_as_episodes or not layout.keys:
            ends = None if options.rows_as_episodes else ends
            footprint = Footprint(room_for_data(options.memory_limit), layout.kept)
            in_order = EpisodesInOrder(maker, layout, shape_of, reader.losses, prefix, ends, footprint)
            yield from in_order.episodes(reader.chunks())
            return
        prefix = "" if self._has_rllibs_ids else prefix
        keyed = KeyedEpisodes(maker, layout, shape_of, reader.losses, prefix, mapping.ids_per_file, ends)
        reader.key_of, reader.by, reader.on_bytes = keyed.key_of, keyed.by, self._count_read
        tables = grouped(
            reader.chunks,
            by=keyed.by,
            order=keyed.order,
            memory_limit=options.memory_limit,
            kept=layout.kept,
            temp_dir=options.temp_dir,
            reread=all(table.rereads_cheaply for table in self._tables),
            on_progress=self.read_options.on_progress,
            scope=self.scope,
        )
        rows = 0
        for table in tables:
            rows, is_large = rows + table.num_rows, table.nbytes > LARGE
            self.done = self._read * rows // max(rows, tally.rows_in)
            made = keyed.episodes(table)
            del table  # a long episode is most of what may be held, and its rows are no longer needed
            if is_large:
                give_back()
            if made is not None:
                yield made
                del made
        keyed.finish()

    def values(self) -> Generator[tuple[Tree, Tree], None, None]:
        """See `Scannable`."""
        layout = self._layout()
        leaves = tuple(leaf for role in (Columns.OBS, Columns.NEXT_OBS, Columns.ACTIONS) for leaf in layout.of(role))
        reader = self._reader(layout, Tally(), Rejects(OnError.SKIP), lambda _: None)
        shape_of = _Shapes(reader)
        for table in reader.chunks([leaf.name for leaf in leaves]):
            rows = Rows(table, replace(layout, leaves=leaves), shape_of)
            actions = rows.tree(Columns.ACTIONS)
            for obs in (rows.obs, rows.next_obs):
                if obs is not None and len(rows):
                    yield obs, actions

    def extra_dtypes(self) -> Mapping[str, np.dtype[Any]]:
        """See `Scannable`."""
        return {".".join(leaf.path): leaf.dtype for leaf in self._layout().of(EXTRA)}

    def _reader(self, layout: Layout, tally: Tally, rejects: Rejects, on_bytes: Callable[[int], None]) -> ChunkReader:
        return ChunkReader(
            files=self._tables,
            layout=layout,
            form=self.mapping.csv,
            tally=tally,
            rejects=rejects,
            key_of=lambda table, row: (),
            on_bytes=on_bytes,
            chunk_bytes=self._chunk_bytes,
            temp_dir=self.options.temp_dir,
            options=self.read_options,
            scope=self.scope,
            means=self._means,
        )

    @property
    def _has_rllibs_ids(self) -> bool:
        """Whether the rows are RLlib's recorder's, whose ids no other recording has; a mapping says otherwise."""
        return self.options.mapping is None and all(are_rllibs(columns) for columns in self._types.values())

    def _count(self, nbytes: int) -> None:
        self.done += nbytes

    def _count_read(self, nbytes: int) -> None:
        """Rows that are to be sorted are done when they come out."""
        self._read += nbytes

    @property
    def _chunk_bytes(self) -> int:
        return min(MAX_CHUNK_BYTES, room_for_data(self.options.memory_limit) // CHUNK_SHARE)

    def _layout(self) -> Layout:
        """Scans every cell of columns whose numbers are text. Raises BadMapping."""
        if self._laid_out is None:
            self._laid_out = self._lay_out()
            self._means = self._found_means(self._laid_out)
        return self._laid_out

    def _lay_out(self) -> Layout:
        assert self._matched is not None
        facts = gather(
            self._tables,
            self._types,
            looked_at(self._matched, next(iter(self._types.values()))),
            self.mapping.csv,
            chunk_bytes=self._chunk_bytes,
            temp_dir=self.options.temp_dir,
            options=replace(self.read_options, limit=None),
        )
        if facts and all(column.is_empty for column in facts.values()):
            self._refuse_damaged()
            raise NoData(
                "the table has no rows", where=self.info.location, fix="check that the program that wrote it wrote any rows"
            )
        known = self.info.spaces
        untyped = [table.url for table in self._tables if table.is_text]
        return lay_out(
            self._matched, self._types, facts, known, untyped=untyped, texts_of=lambda names: self._seen(names, None).texts
        )

    def _seen(self, columns: Sequence[str], most_rows: int | None = MOST_SEEN, form: CsvForm | None = None) -> Seen:
        """Rows for proposals, read from the beginning; `form`: another one than that of the mapping."""
        tables = self._tables if form is None else [replace(table) for table in self._tables]  # which know no columns yet
        limits: dict[str, Any] = {"chunk_bytes": self._chunk_bytes, "temp_dir": self.options.temp_dir}
        return seen_rows(tables, columns, form or self.mapping.csv, **limits, most_rows=most_rows)

    def _found_means(self, layout: Layout) -> Mapping[str, NDArray[Any]]:
        """Those that [fill] asks for, by another reading of these columns. Raises BadMapping where no row has a number."""
        plans = {plan.column: plan for leaf in layout.leaves for plan in leaf.columns if plan.fill == MEAN}
        if not plans:
            return {}
        means = Means(plans.values(), self.mapping.csv.decimal)
        for table in self._reader(layout, Tally(), Rejects(OnError.SKIP), lambda _: None).tables_of(list(plans)):
            means.see(table)
        found = means.found()
        problems = [
            f"fill: no row has a number in column '{column}', so that there is no mean" for column in plans.keys() - found
        ]
        if problems:
            where = f"mapping {self.mapping.name} for {self.info.location}"
            raise BadMapping.of(sorted(problems), where=where, fix="fill it with a number, or leave it out")
        return found

    def _refuse_damaged(self) -> None:
        """Raise BadData where a file breaks off before its first row."""
        for table in self._tables:
            with self.scope.part() as held:
                options: dict[str, Any] = {"chunk_bytes": self._chunk_bytes, "temp_dir": self.options.temp_dir, "scope": held}
                next(table.chunks(None, self.mapping.csv, **options), None)


class _Shapes:
    """The shape of each leaf, as the first chunk has settled it. Raises BadEpisode where obs and new_obs differ."""

    def __init__(self, reader: ChunkReader) -> None:
        self._reader = reader

    def __call__(self, leaf: Leaf) -> Shape:
        shape = self._of(leaf)
        if leaf.role == Columns.NEXT_OBS:
            self._check_twin(leaf, shape)
        return shape

    def _of(self, leaf: Leaf) -> Shape:
        if leaf.role not in VALUES:
            return ()
        return (sum(self.widths(leaf)),) if leaf.stacked else self._reader.shape(leaf, leaf.columns[0].column) or ()

    def widths(self, leaf: Leaf) -> list[int]:
        """See `ShapeOf`."""
        shapes = [self._reader.shape(leaf, plan.column) for plan in leaf.columns]
        return [shape[0] if shape else 1 for shape in shapes]

    def _check_twin(self, leaf: Leaf, shape: Shape) -> None:
        path = ".".join(leaf.path)
        twins: Sequence[Leaf] = [twin for twin in self._reader.layout.of(Columns.OBS) if twin.path == leaf.path]
        theirs = self._of(twins[0]) if twins else None
        if theirs != shape:
            name = f" part {path}" if path else ""
            have = "nothing" if theirs is None else f"shape {list(theirs)}"
            raise BadEpisode(
                f"new_obs{name} has shape {list(shape)}, and obs has {have}",
                where=self._reader.files[0].url,
                fix="name the same columns, one step later, for new_obs as for obs",
            )

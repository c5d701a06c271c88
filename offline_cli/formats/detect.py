"""Which reader a place needs, by its content and never by its name; refuses mixed folders and formats without a reader.

Files are told by their first bytes, within gzip and zstd too; Parquet by its columns, JSON lines by their first line, CSV by
its first two lines. Hidden files, names with a leading underscore (`_SUCCESS`) and checksums (`.crc`) are no data; texts and
pictures beside the data are passed over.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, groupby
from typing import Any, Final

import pyarrow as pa

from offline_cli.columns import Columns
from offline_cli.errors import BadData, NoData, UsageError
from offline_cli.formats.end_flags import END_FLAGS
from offline_cli.formats.own import OwnSource
from offline_cli.formats.parquet_files import schema_of
from offline_cli.formats.rllib_columns import NEEDED, RllibColumnsSource
from offline_cli.formats.rllib_episodes import RllibEpisodesSource
from offline_cli.formats.sample_batch import SampleBatchSource
from offline_cli.formats.sample_batch.files import Line, lines_of
from offline_cli.formats.sample_batch.records import is_batch
from offline_cli.formats.source import Source
from offline_cli.formats.tables import TableOptions, TableSource
from offline_cli.formats.tables.packing import packing_of, unpacked_head
from offline_cli.formats.tables.text_heads import is_named_csv, looks_like_csv
from offline_cli.json_documents import from_json
from offline_cli.options.shared import SOURCE_FORMAT
from offline_cli.scopes import Scope
from offline_cli.storage.dataset import holds_dataset
from offline_cli.storage.layout import BATCHES, RUN_CONFIG, RUN_POLICY
from offline_cli.storage.locations import Location, Sources, expand
from offline_cli.storage.reading_pool import reading_pool
from offline_cli.tally import Rejects

__all__ = ["READERS", "open_source", "open_sources"]

TABLE: Final = "table"
READERS: Final[dict[str, Callable[[Sequence[Location], str], Source]]] = {
    "episodes": RllibEpisodesSource,
    "columns": RllibColumnsSource,
    "sample-batch": SampleBatchSource,
    TABLE: TableSource,
}
"""By the names that `--from` takes, beside `auto`."""

KINDS: Final = {
    "episodes": "RLlib episodes in Parquet",
    "columns": "RLlib columns in Parquet",
    "sample-batch": "SampleBatch JSON lines",
    TABLE: "tables in Parquet, Arrow, CSV or JSON lines",
    "parquet-table": "Parquet tables without RLlib's columns",
    "json": "JSON objects that are no SampleBatch",
    "json-array": "JSON that is not an object a line",
    "csv": "CSV files",
    "zip": "zip archives without SampleBatch JSON",
    "hdf5": "HDF5 files",
    "arrow": "Arrow files",
    "minari": "a Minari dataset",
    "lerobot": "a LeRobot dataset",
}
TABLES: Final = {"columns": "parquet", "parquet-table": "parquet", "arrow": "arrow", "csv": "csv", "json": "json"}
"""The kinds that can be read as tables, by what `TableSource` calls their files."""
MAGIC: Final = {
    b"PAR1": "parquet",
    b"\x89HDF": "hdf5",
    b"ARRO": "arrow",
    b"\xff\xff\xff\xff": "arrow",
    b"PK\x03\x04": "lines",
    b"PK\x05\x06": "lines",
}
UNSAID: Final = TableOptions()
ONE_PER_STEP: Final = (Columns.EPS_ID, Columns.T, Columns.REWARDS, *END_FLAGS)
SETTINGS: Final = (".toml", ".ini", ".cfg")
HEAD_BYTES: Final = 1 << 16
BOM: Final = b"\xef\xbb\xbf"
LOOKED_AT: Final = 512  # remote files whose first bytes are read; of more, evenly spread ones
LINES_LOOKED_AT: Final = 16  # files whose first line is read, where it is not a batch
THREADS: Final = 8
BUNCH: Final = 16  # local files that a thread looks at, one after the other, for one call


@dataclass(frozen=True, slots=True)
class _Asked:
    """What the caller said about how to read."""

    from_: str
    tables: TableOptions
    storage_options: Mapping[str, Any] | None

    @property
    def is_mapped(self) -> bool:
        """Whether a mapping says that the sources are tables."""
        return self.tables.mapping is not None or self.tables.rows_as_episodes


def open_sources(
    sources: Sources,
    *,
    from_: str = SOURCE_FORMAT.default,
    tables: TableOptions | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> list[Source]:
    """A source for each folder, and one for each group of files that follow each other, in the order given.

    `tables`: how to read those that are tables. Raises StorageNotFound for missing places, NoData where nothing is found or no
    reader knows it, Uncommitted for a dataset whose writer has not finished, BadData for mixed or damaged files, UsageError for
    an unknown `from_`, BadMapping for a table that no mapping explains.
    """
    if from_ != "auto" and from_ not in READERS:
        raise UsageError(f"no reader is called {from_!r}", where="--from", fix=f"use auto, {', '.join(READERS)}")
    asked = _Asked(from_, tables or UNSAID, storage_options)
    found: list[Source] = []
    for is_folder, group in groupby(expand(sources, storage_options), key=Location.is_dir):
        if is_folder:
            found += [_of_folder(location, asked) for location in group]
        else:
            files = list(group)
            more = f" and {len(files) - 1} more" if len(files) > 1 else ""
            found.append(_of_files(files, files[0].url + more, asked))
    if not found:
        raise NoData("no source was given", where="the sources", fix="name a folder, a file or a URL")
    return found


def open_source(url: str, *, from_: str = SOURCE_FORMAT.default, storage_options: Mapping[str, Any] | None = None) -> Source:
    """The one source at `url`. Raises as `open_sources` does, and UsageError where `url` is a glob over several folders."""
    found = open_sources(url, from_=from_, storage_options=storage_options)
    if len(found) > 1:
        raise UsageError(f"{len(found)} sources where one is wanted", where=url, fix="name one folder or file")
    return found[0]


def _of_folder(location: Location, asked: _Asked) -> Source:
    if holds_dataset(location):
        own = OwnSource.open(location, memory_limit=asked.tables.memory_limit)
        if asked.from_ not in ("auto", own.format):
            raise UsageError(f"--from {asked.from_} for a dataset of {own.format}", where=location.url, fix="leave out --from")
        _refuse_mapping(asked, own.format, location.url)
        return own
    files = [file for file in location.files() if _is_data(file, location)]
    if not files:
        fix = "give a folder of Parquet, CSV or JSON recordings, or a dataset that convert wrote"
        raise NoData("the folder holds no data files", where=location.url, fix=fix)
    if any(file.path == location.join(BATCHES).path for file in files):
        fix = "name the recordings that they were made from (provenance in batches.json)"
        raise NoData("train batches are here, not recordings", where=location.url, fix=fix)
    _refuse_runs(files)
    return _of_files(files, location.url, asked)


def _refuse_runs(files: Sequence[Location]) -> None:
    """Raise NoData where all files are those of training runs, whose metrics would pass for a table."""
    paths = {file.path: file for file in files}
    runs = [path.removesuffix(RUN_POLICY) for path in paths if path.endswith(f"/{RUN_POLICY}")]
    runs = [run for run in runs if f"{run}{RUN_CONFIG}" in paths]
    if runs and all(path.startswith(tuple(runs)) for path in paths):
        run = paths[f"{runs[0]}{RUN_POLICY}"].url.removesuffix(f"/{RUN_POLICY}")
        run = shlex.quote(run)
        fix = (
            f"play it with offline-cli evaluate {run} --env ENV, record with it: offline-cli record ENV --policy {run} --out D,"
            f" or train on: offline-cli train-bc D --out {run} --resume"
        )
        raise NoData("this is a run of train-bc, not recordings", where=run, fix=fix)


def _is_data(file: Location, folder: Location) -> bool:
    below = file.path.removeprefix(folder.path.rstrip("/")).strip("/")
    return not any(part.startswith((".", "_")) for part in below.split("/")) and not below.endswith(".crc")


def _of_files(files: Sequence[Location], location: str, asked: _Asked) -> Source:
    if asked.from_ == "sample-batch":
        _refuse_parquet(files[0])
    if asked.from_ not in ("auto", TABLE):
        _refuse_mapping(asked, asked.from_, location)
        return READERS[asked.from_](files, location)
    kinds = _kinds(files)
    known = {kind: file for kind, file in kinds if kind != "other"}
    if len(known) > 1 and "csv" in known and not is_named_csv(known["csv"].name):  # notes with commas, beside the data
        kinds = [("other" if kind == "csv" else kind, file) for kind, file in kinds]
        del known["csv"]
    kind = _layout(known) if len(known) > 1 else next(iter(known), None)
    if kind is None:
        raise _no_reader(f"no data in {len(files)} files", location)
    if kind == "parquet":
        kind = _parquet_kind(files, [file for other, file in kinds if other == "parquet"], asked)
    elif kind == "lines":
        kind = _lines_kind([file for other, file in kinds if other == "lines"])
    passed_over = {file.path for other, file in kinds if other == "other"}
    chosen = [file for file in files if file.path not in passed_over]
    if kind in TABLES and (kind not in READERS or asked.from_ == TABLE or asked.is_mapped):
        return TableSource(chosen, location, options=asked.tables, storage_options=asked.storage_options, kind=TABLES[kind])
    if asked.from_ == TABLE or kind not in READERS:
        raise _no_reader(f"found {KINDS[kind]}", location)
    _refuse_mapping(asked, kind, location)
    return READERS[kind](chosen, location)


def _refuse_mapping(asked: _Asked, kind: str, location: str) -> None:
    if asked.is_mapped:
        option = "--mapping" if asked.tables.mapping is not None else "--rows-as-episodes"
        fix = f"leave out {option}"
        raise UsageError(f"{option} is for tables, and this is {KINDS.get(kind, kind)}", where=location, fix=fix)


def _refuse_parquet(file: Location) -> None:
    """Lines of a Parquet file would be noise, each with an error of its own."""
    if _kind(file) == "parquet":
        fix = "--from auto tells the format by the file's content"
        raise BadData("this is a Parquet file, not JSON lines", where=file.url, fix=fix)


def _no_reader(what: str, location: str) -> NoData:
    readers = ", ".join(f"{KINDS[name]} (--from {name})" for name in READERS)
    return NoData(
        f"{what}; there are readers for {readers}, and for our own datasets",
        where=location,
        fix="record in one of these, or write a table: a row a step, as Parquet, CSV or JSON lines (docs/tables.md)",
    )


# ---- by first bytes ----


def _kinds(files: Sequence[Location]) -> list[tuple[str, Location]]:
    """(kind, file) of those looked at: parquet, lines, hdf5, arrow, minari, lerobot, other."""
    step = 1 if files[0].is_local else max(1, len(files) // LOOKED_AT)
    chosen = files[::step]
    size = BUNCH if files[0].is_local else 1
    bunches = [chosen[first : first + size] for first in range(0, len(chosen), size)]
    with reading_pool(min(THREADS, len(chosen))) as pool:
        return list(zip(chain.from_iterable(pool.map(_kinds_of, bunches)), chosen, strict=True))


def _kinds_of(files: Sequence[Location]) -> list[str]:
    return [_kind(file) for file in files]


def _kind(file: Location) -> str:
    head, _ = file.start(HEAD_BYTES)
    packing = packing_of(head)
    if packing:
        head = unpacked_head(file, packing)
        if not head.strip():  # damaged, or nothing in it: the reader says which
            return "csv" if is_named_csv(file.name) else "lines"
    if head[:4] in MAGIC:
        return MAGIC[head[:4]]
    if file.name.lower().endswith(SETTINGS):  # a section of TOML begins as a list of JSON does
        return "other"
    if head.removeprefix(BOM).lstrip()[:1] in (b"{", b"["):
        return _json_kind(file, head)
    return "csv" if looks_like_csv(head, file.name) else "other"


def _json_kind(file: Location, head: bytes) -> str:
    if file.name == "metadata.json" and b'"data_format"' in head:
        return "minari"
    if file.name == "info.json" and b'"codebase_version"' in head:
        return "lerobot"
    return "lines"


def _layout(known: Mapping[str, Location]) -> str:
    """The one layout that has files of several kinds, or BadData naming two of them."""
    for layout in ("minari", "lerobot"):
        if layout in known:
            return layout
    (first, one), (second, other), *_ = known.items()
    raise BadData(
        f"two formats in one folder: {_word(first)} and {_word(second)}",
        where=f"{one.url} and {other.url}",
        fix="give the files of one format, as a glob or with --from, and convert the others by themselves",
    )


def _word(kind: str) -> str:
    return {"parquet": "Parquet", "lines": "JSON lines"}.get(kind) or KINDS[kind]


# ---- by columns, by the first line ----


def _parquet_kind(files: Sequence[Location], parquet: Sequence[Location], asked: _Asked) -> str:
    """By the first file, and by the last, because a folder may have been written to twice."""
    if asked.from_ == TABLE or asked.is_mapped or _is_packed(parquet[0]):  # a table is read by its own reader, packed or not
        return "parquet-table"
    first = _columns_kind(schema_of(parquet[0]))
    last = _columns_kind(schema_of(parquet[-1])) if len(parquet) > 1 else first
    if first != last:
        raise BadData(
            f"two formats in one folder: {KINDS[first]} and {KINDS[last]}",
            where=f"{parquet[0].url} and {parquet[-1].url}",
            fix="give the files of one format, as a glob, and convert the others by themselves",
        )
    return first


def _is_packed(file: Location) -> bool:
    with file.open() as stream:
        return bool(packing_of(stream.read(4)))


def _columns_kind(schema: pa.Schema) -> str:
    names = set(schema.names)
    if Columns.ITEM in names and _is_bytes(schema.field(Columns.ITEM).type):
        return "episodes"
    return "columns" if names.issuperset(NEEDED) else "parquet-table"


def _is_bytes(kind: pa.DataType) -> bool:
    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind))


def _lines_kind(files: Sequence[Location]) -> str:
    """By the first line of the first file that begins with a batch: notes may lie beside recordings, or a file be empty.

    Raises BadData where there is none, and a file that is damaged.
    """
    damaged: BadData | None = None
    starts = set[bytes]()
    for file in files[:LINES_LOOKED_AT]:
        try:
            with Scope() as scope:
                line = next(lines_of(file, Rejects(), scope), None)
        except BadData as error:
            damaged = damaged or error
        else:
            if line is not None and is_batch(line) and not _is_one_step(line):
                return "sample-batch"
            starts |= {_first_letter(file)}
    if damaged is not None:
        raise damaged
    return "json" if b"{" in starts else "zip" if b"P" in starts else "json-array"


def _is_one_step(line: Line) -> bool:
    """Whether a line with RLlib's names is a row of a table: a batch has a list, or packed text, in every column."""
    try:
        record = from_json(line.data)
    except ValueError:
        return False
    typed = not isinstance(record, dict) or record.get("type") is not None or "policy_batches" in record
    return not typed and any(isinstance(record.get(name), (int, float)) for name in ONE_PER_STEP)


def _first_letter(file: Location) -> bytes:
    with file.open() as stream:
        head = stream.read(HEAD_BYTES)
    packing = packing_of(head)
    return (unpacked_head(file, packing) if packing else head).removeprefix(BOM).lstrip()[:1]

"""Which reader a place needs, by its content and never by its name; refuses mixed folders and formats without a reader.

Files are told by their first bytes, Parquet by its columns, JSON lines by their first line. Hidden files, names with a leading
underscore (`_SUCCESS`) and checksums (`.crc`) are no data; texts and pictures beside the data are passed over.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import groupby
from typing import Any, Final

import pyarrow as pa

from offline_cli.columns import Columns
from offline_cli.errors import BadData, NoData, UsageError
from offline_cli.formats.own import OwnSource
from offline_cli.formats.parquet_files import schema_of
from offline_cli.formats.rllib_columns import NEEDED, RllibColumnsSource
from offline_cli.formats.rllib_episodes import RllibEpisodesSource
from offline_cli.formats.sample_batch import SampleBatchSource
from offline_cli.formats.sample_batch.files import lines_of
from offline_cli.formats.sample_batch.records import is_batch
from offline_cli.formats.source import Source
from offline_cli.storage.layout import holds_dataset
from offline_cli.storage.locations import Location, Sources, expand
from offline_cli.tally import Rejects

__all__ = ["READERS", "open_source", "open_sources"]

READERS: Final[dict[str, Callable[[Sequence[Location], str], Source]]] = {
    "episodes": RllibEpisodesSource,
    "columns": RllibColumnsSource,
    "sample-batch": SampleBatchSource,
}
"""By the names that `--from` takes, beside `auto`."""

KINDS: Final = {
    "episodes": "RLlib episodes in Parquet",
    "columns": "RLlib columns in Parquet",
    "sample-batch": "SampleBatch JSON lines",
    "parquet-table": "Parquet tables without RLlib's columns",
    "json": "JSON that holds no SampleBatch",
    "hdf5": "HDF5 files",
    "arrow": "Arrow files",
    "minari": "a Minari dataset",
    "lerobot": "a LeRobot dataset",
}
MAGIC: Final = {b"PAR1": "parquet", b"\x89HDF": "hdf5", b"ARRO": "arrow", b"PK\x03\x04": "lines", b"PK\x05\x06": "lines"}
LOOKED_AT: Final = 512  # remote files whose first bytes are read; of more, evenly spread ones
LINES_LOOKED_AT: Final = 16  # files whose first line is read, where it is not a batch
THREADS: Final = 8


def open_sources(sources: Sources, *, from_: str = "auto", storage_options: Mapping[str, Any] | None = None) -> list[Source]:
    """A source for each folder, and one for each group of files that follow each other, in the order given.

    Raises StorageNotFound for missing places, NoData where nothing is found or no reader knows it, Uncommitted for a dataset
    whose writer has not finished, BadData for mixed or damaged files, UsageError for an unknown `from_`.
    """
    if from_ != "auto" and from_ not in READERS:
        raise UsageError(f"no reader is called {from_!r}", where="--from", fix=f"use auto, {', '.join(READERS)}")
    found: list[Source] = []
    for is_folder, group in groupby(expand(sources, storage_options), key=Location.is_dir):
        if is_folder:
            found += [_of_folder(location, from_) for location in group]
        else:
            files = list(group)
            more = f" and {len(files) - 1} more" if len(files) > 1 else ""
            found.append(_of_files(files, files[0].url + more, from_))
    if not found:
        raise NoData("no source was given", where="the sources", fix="name a folder, a file or a URL")
    return found


def open_source(url: str, *, from_: str = "auto", storage_options: Mapping[str, Any] | None = None) -> Source:
    """The one source at `url`. Raises as `open_sources` does, and UsageError where `url` is a glob over several folders."""
    found = open_sources(url, from_=from_, storage_options=storage_options)
    if len(found) > 1:
        raise UsageError(f"{len(found)} sources where one is wanted", where=url, fix="name one folder or file")
    return found[0]


def _of_folder(location: Location, from_: str) -> Source:
    if holds_dataset(location):
        own = OwnSource.open(location)
        if from_ not in ("auto", own.format):
            raise UsageError(f"--from {from_} for a dataset of {own.format}", where=location.url, fix="leave out --from")
        return own
    files = [file for file in location.files() if _is_data(file, location)]
    if not files:
        fix = "give a folder of RLlib's Parquet or JSON recordings, or a dataset that convert wrote"
        raise NoData("the folder holds no data files", where=location.url, fix=fix)
    return _of_files(files, location.url, from_)


def _is_data(file: Location, folder: Location) -> bool:
    below = file.path.removeprefix(folder.path.rstrip("/")).strip("/")
    return not any(part.startswith((".", "_")) for part in below.split("/")) and not below.endswith(".crc")


def _of_files(files: Sequence[Location], location: str, from_: str) -> Source:
    if from_ == "sample-batch":
        _refuse_parquet(files[0])
    if from_ != "auto":
        return READERS[from_](files, location)
    kinds = _kinds(files)
    known = {kind: file for kind, file in kinds if kind != "other"}
    kind = _layout(known) if len(known) > 1 else next(iter(known), None)
    if kind is None:
        raise _no_reader(f"no data in {len(files)} files", location)
    if kind == "parquet":
        kind = _parquet_kind(files, [file for other, file in kinds if other == "parquet"])
    elif kind == "lines":
        kind = _lines_kind([file for other, file in kinds if other == "lines"])
    if kind not in READERS:
        raise _no_reader(f"found {KINDS[kind]}", location)
    passed_over = {file.path for other, file in kinds if other == "other"}
    return READERS[kind]([file for file in files if file.path not in passed_over], location)


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
        fix="record in one of these, or write Parquet files with the columns " + ", ".join(NEEDED),
    )


# ---- by first bytes ----


def _kinds(files: Sequence[Location]) -> list[tuple[str, Location]]:
    """(kind, file) of those looked at: parquet, lines, hdf5, arrow, minari, lerobot, other."""
    step = 1 if files[0].is_local else max(1, len(files) // LOOKED_AT)
    chosen = files[::step]
    with ThreadPoolExecutor(min(THREADS, len(chosen))) as pool:
        return list(zip(pool.map(_kind, chosen), chosen, strict=True))


def _kind(file: Location) -> str:
    with file.open() as stream:
        head = stream.read(4096)
    if head[:4] in MAGIC:
        return MAGIC[head[:4]]
    if head[:2] == b"\x1f\x8b" or head.lstrip()[:1] in (b"{", b"["):
        return _json_kind(file, head)
    return "other"


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


def _parquet_kind(files: Sequence[Location], parquet: Sequence[Location]) -> str:
    """By the first file, and by the last, because a folder may have been written to twice."""
    first = _columns_kind(schema_of(parquet[0]))
    last = _columns_kind(schema_of(parquet[-1])) if len(parquet) > 1 else first
    if first != last:
        raise BadData(
            f"two formats in one folder: {KINDS[first]} and {KINDS[last]}",
            where=f"{parquet[0].url} and {parquet[-1].url}",
            fix="give the files of one format, as a glob, and convert the others by themselves",
        )
    return first


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
    for file in files[:LINES_LOOKED_AT]:
        try:
            line = next(lines_of(file, Rejects()), None)
        except BadData as error:
            damaged = damaged or error
        else:
            if line is not None and is_batch(line):
                return "sample-batch"
    if damaged is not None:
        raise damaged
    return "json"

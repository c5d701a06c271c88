"""The readers that are fuzzed, each as a function of bytes; refuses to forgive any exception but our own named errors.

A target reads its bytes as a user's file or cell would be read and does with the result what the next layer does first. Every
OfflineCliError of exit code 3 or 4 (bad data, bad config) is a good answer, all else is a crash: ordinary exceptions, a missing
storage that nobody asked for, an error without a place or of a megabyte.
"""

from __future__ import annotations

import io
import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import fsspec
import msgpack
import orjson
import pyarrow as pa

from offline_cli.cli.render import to_json
from offline_cli.converting.reading import read_opened
from offline_cli.datasets.lease_record import WritingNote
from offline_cli.datasets.manifest import Manifest
from offline_cli.datasets.step_tables import info_from_text
from offline_cli.episodes.codec import decode, decode_batch
from offline_cli.errors import BadData, BadMapping, OfflineCliError, UnsupportedSpace
from offline_cli.formats.opening import open_sources
from offline_cli.formats.packed import unpack, unpack_cells, unpickle_cells
from offline_cli.formats.packed.pickles import unpickle
from offline_cli.formats.sample_batch import SampleBatchSource
from offline_cli.formats.tables import TableOptions, TableSource
from offline_cli.formats.tables.files import TableFile
from offline_cli.formats.tables.mapping import CsvForm, mapping_of
from offline_cli.spaces import describe, space_from_json, space_from_rllib, space_to_json, space_to_rllib
from offline_cli.tally import OnError, Rejects, Tally

__all__ = ["HDF5", "PLACE", "TARGETS", "File", "Wrong", "answer", "check"]

PLACE = "input"
MAX_MESSAGE = 20_000  # letters of one error
QUOTED = re.compile(r"'[^']*'|[0-9]+|b\".*?\"")


class Wrong(Exception):
    """A reader answered with something else than data or a named error of the data."""


@dataclass(frozen=True)
class File:
    """Bytes as readers of files take them."""

    data: bytes
    url: str = PLACE
    is_local: bool = True

    @property
    def name(self) -> str:
        return self.url

    def size(self) -> int:
        return len(self.data)

    def open(self) -> io.BytesIO:
        return io.BytesIO(self.data)


def check(target: Callable[[bytes], None], data: bytes) -> str:
    """The code of the error that `data` ends in, "" for data that could be read. Raises whatever is no named error."""
    try:
        target(data)
    except (BadData, BadMapping, UnsupportedSpace) as error:
        _check_error(error)
        return error.code
    except OfflineCliError as error:
        if error.exit_code not in (3, 4):
            raise Wrong(f"exit code {error.exit_code} for bytes: {error!r:.500}") from error
        _check_error(error)
        return error.code
    return ""


def answer(target: Callable[[bytes], None], data: bytes) -> str:
    """What `data` ends in, in words without their figures: inputs of one answer are one to look at."""
    try:
        target(data)
    except OfflineCliError as error:
        return f"{error.code}: {re.sub(QUOTED, '_', error.what)}"[:120]
    return ""


def _check_error(error: OfflineCliError) -> None:
    if not error.where or not error.what or not error.fix:
        raise Wrong(f"an error without a place or a remedy: {error!r}")
    if len(to_json(error.as_dict())) > MAX_MESSAGE:
        raise Wrong(f"an error of {len(to_json(error.as_dict()))} letters: {str(error)[:300]}")


# ---- episodes ----


def episode(data: bytes) -> None:
    """One packed episode, alone."""
    found = decode(data, where=PLACE)
    found.to_numpy()
    found.get_return()


def episodes(data: bytes) -> None:
    """A packed episode among others of a layout that is known by then."""
    good = _known_item()
    rejects = Rejects(OnError.QUARANTINE)
    batches = list(decode_batch([good, data, good], where=lambda i: f"{PLACE} {i}", rejects=rejects, tally=Tally()))
    ids = [name for batch in batches for name in batch.ids]
    if len(ids) + rejects.count != 3:
        raise Wrong(f"{len(ids)} episodes and {rejects.count} rejects of three items")
    for batch in batches:
        _ = batch.returns, batch.digest(0), batch.acted_obs()


def _known_item() -> bytes:
    global _item
    if _item is None:
        from fuzz_seeds import small_items

        _item = small_items()[0]
    return _item


_item: bytes | None = None


# ---- packed cells ----


def cell(data: bytes) -> None:
    """The text of one packed cell, then a column of it."""
    unpack(data, where=PLACE, object_lists=True)
    unpack_cells([data] * 40, where=lambda row: f"{PLACE} {row}")


def cells(data: bytes) -> None:
    """A column of cells, one a line, read alike and one by one to the same values."""
    lines = data.split(b"\n")[:64]
    unpack_cells(lines * (1 + 40 // len(lines)), where=lambda row: f"{PLACE} {row}")


def pickled(data: bytes) -> None:
    """What a cell holds, unpacked."""
    unpickle(data, where=PLACE, object_lists=len(data) % 2 == 0)


def objects(data: bytes) -> None:
    """A column of what Ray pickled, read alike and one by one."""
    unpickle_cells(pa.array([data] * 40, pa.large_binary()), where=lambda row: f"{PLACE} {row}")


# ---- SampleBatch ----


def sample_batch(data: bytes) -> None:
    """A file of SampleBatch lines, all the way to whole episodes."""
    stream = read_opened([SampleBatchSource([File(data)], PLACE)], on_error=OnError.QUARANTINE)
    for batch in stream:
        _ = batch.returns


# ---- spaces ----


def space_json(data: bytes) -> None:
    """A space as manifests and mappings hold it."""
    node = _json(data)
    space = space_from_json(node, where=PLACE)
    describe(space)
    to_json(space_to_json(space))


def space_rllib(data: bytes) -> None:
    """A space as RLlib's episodes hold it."""
    node = _msgpack(data)
    space = space_from_rllib(node, where=PLACE)
    describe(space)
    space_to_rllib(space)


def _json(data: bytes) -> Any:
    try:
        return orjson.loads(data)
    except ValueError as error:
        raise BadData("no JSON", where=PLACE, fix="none") from error


def _msgpack(data: bytes) -> Any:
    try:
        return msgpack.unpackb(data, strict_map_key=False)
    except (ValueError, TypeError, msgpack.exceptions.UnpackException) as error:
        raise BadData("no msgpack", where=PLACE, fix="none") from error


# ---- documents ----


def manifest(data: bytes) -> None:
    """manifest.json."""
    found = Manifest.from_bytes(data, where=PLACE)
    if any(".." in shard.path or shard.path.startswith("/") for shard in found.shards):
        raise Wrong("a shard outside the folder")
    try:
        found.to_bytes()
    except ValueError as error:
        if "nobody could read" in str(error):
            raise
        raise Wrong(f"a manifest that cannot be written again: {error}") from error


def note(data: bytes) -> None:
    """_writing.json."""
    WritingNote.of_document(_json(data), where=PLACE)


def info(data: bytes) -> None:
    """The JSON text of an info."""
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return
    json.dumps(info_from_text(text, where=PLACE))


def mapping(data: bytes) -> None:
    """The TOML of a mapping."""
    mapping_of(data, PLACE).as_text()


# ---- pieces and policies ----


def _of_policies(name: str) -> Callable[[bytes], None]:
    """A target of `fuzz_policies`, imported when it is first asked for: torch's memory is not counted as other readers'."""

    def target(data: bytes) -> None:
        import fuzz_policies

        getattr(fuzz_policies, name)(data)

    return target


# ---- tables ----


def csv(data: bytes) -> None:
    """A CSV file as raw columns."""
    _raw(data, "csv")


def csv_table(data: bytes) -> None:
    """A CSV file, all the way to whole episodes."""
    _table(data, "csv")


def json_lines(data: bytes) -> None:
    """A file of JSON lines as raw columns."""
    _raw(data, "json")


def json_table(data: bytes) -> None:
    """A file of JSON lines, all the way to whole episodes."""
    _table(data, "json")


def _raw(data: bytes, kind: str) -> None:
    table = TableFile(File(data), kind)
    table.types(CsvForm(), None)
    for chunk in table.chunks(None, CsvForm(), chunk_bytes=1 << 12, temp_dir=None):
        if chunk.table.num_rows != len(chunk.rows):
            raise Wrong(f"{chunk.table.num_rows} rows with {len(chunk.rows)} numbers")
        _ = [bad.error.where for bad in chunk.bad]


def _table(data: bytes, kind: str) -> None:
    """By the names that RLlib gives to columns."""
    source = TableSource([File(data)], PLACE, options=TableOptions(), kind=kind)
    for batch in read_opened([source], on_error=OnError.QUARANTINE):
        _ = batch.returns


# ---- HDF5 ----


def _of_hdf5(name: str) -> Callable[[bytes], None]:
    """A target of `fuzz_hdf5.py`, which needs h5py."""

    def target(data: bytes) -> None:
        from fuzz_hdf5 import TARGETS as OF_HDF5

        OF_HDF5[name](data)

    return target


HDF5 = ("d4rl", "robomimic", "d3rlpy", "minari", "minari-metadata")


# ---- formats of several files, and archives ----


def dataset_files(data: bytes, reader: str = "auto") -> None:
    """Files by path below one folder, as msgpack, to whole episodes by the reader that recognises them."""
    files = _msgpack(data)
    if not isinstance(files, dict) or not all(isinstance(one, bytes) and isinstance(name, str) for name, one in files.items()):
        raise BadData("no files", where=PLACE, fix="none")
    folder = fsspec.filesystem("memory")
    folder.store.clear()
    for name, one in files.items():
        folder.pipe(f"/{PLACE}/{name}", one)
    if not folder.exists(f"/{PLACE}"):
        raise BadData("no files", where=PLACE, fix="none")
    _read_folder(f"memory://{PLACE}", reader)


def npz(data: bytes) -> None:
    """A NumPy archive of either layout."""
    folder = fsspec.filesystem("memory")
    folder.store.clear()
    folder.pipe(f"/{PLACE}/log.npz", data)
    _read_folder(f"memory://{PLACE}/log.npz", "auto")


def _read_folder(url: str, reader: str) -> None:
    for batch in read_opened(open_sources(url, from_=reader), on_error=OnError.QUARANTINE):
        _ = batch.returns


TARGETS: dict[str, Callable[[bytes], None]] = {
    "episode": episode,
    "episodes": episodes,
    "cell": cell,
    "cells": cells,
    "pickle": pickled,
    "objects": objects,
    "sample-batch": sample_batch,
    "space-json": space_json,
    "space-rllib": space_rllib,
    "manifest": manifest,
    "note": note,
    "npz": npz,
    "lerobot": partial(dataset_files, reader="lerobot"),
    "imitation": partial(dataset_files, reader="imitation"),
    "info": info,
    "mapping": mapping,
    "pipeline": _of_policies("pipeline"),
    "pieces-state": _of_policies("pieces_state"),
    "policy": _of_policies("policy"),
    "tensors": _of_policies("tensors"),
    "csv": csv,
    "csv-table": csv_table,
    "json-lines": json_lines,
    "json-table": json_table,
    **{name: _of_hdf5(name) for name in HDF5},
}

"""The readers that are fuzzed, each as a function of bytes; refuses to forgive any exception but our own named errors.

A target reads its bytes as a user's file or cell would be read and does with the result what the next layer does first. Every
OfflineCliError of exit code 3 or 4 (bad data, bad config) is a good answer, all else is a crash: ordinary exceptions, a missing
storage that nobody asked for, an error without a place or of a megabyte.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any

import msgpack
import numpy as np
import orjson
import pyarrow as pa
from gymnasium import spaces

from offline_cli.cli.render import to_json
from offline_cli.converting.reading import read_episodes
from offline_cli.datasets.manifest import Manifest
from offline_cli.episodes.codec import decode, decode_batch
from offline_cli.episodes.known_episodes import fingerprints
from offline_cli.errors import BadData, BadMapping, OfflineCliError, SpaceMismatch, UnsupportedSpace
from offline_cli.formats.rllib.packed import unpack, unpack_cells
from offline_cli.formats.rllib.sample_batch import SampleBatchSource
from offline_cli.formats.tables import TableOptions, TableSource
from offline_cli.formats.tables.mapping import mapping_of
from offline_cli.spaces import describe, space_from_json, space_from_rllib, space_to_json, space_to_rllib
from offline_cli.tally import OnError, Rejects, Tally

__all__ = ["PLACE", "TARGETS", "File", "Wrong", "check"]

PLACE = "input"
MAX_MESSAGE = 20_000  # letters of one error


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
        _ = batch.returns, fingerprints(batch)[0], batch.acted_obs()


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


def objects(data: bytes) -> None:
    """A column of what Ray pickled, read alike and one by one."""
    unpack_cells(pa.array([data] * 40, pa.large_binary()), where=lambda row: f"{PLACE} {row}")


# ---- SampleBatch ----


def sample_batch(data: bytes) -> None:
    """A file of SampleBatch lines, all the way to whole episodes."""
    stream = read_episodes(opened=[SampleBatchSource([File(data)], PLACE)], on_error=OnError.QUARANTINE)
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


def mapping(data: bytes) -> None:
    """The TOML of a mapping."""
    mapping_of(data, PLACE)


def pipeline(data: bytes) -> None:
    """A pipeline file, with the pieces for observations that are numbers and for ones that are choices."""
    from offline_cli.connectors.pipeline_spec import PipelineSpec, Setting

    with NamedTemporaryFile(suffix=".toml") as named:
        Path(named.name).write_bytes(data)
        file = PipelineSpec.from_file(named.name, plugins=())
    for observations in (spaces.Box(-1, 1, (3,), np.float32), spaces.Discrete(3)):
        with suppress(SpaceMismatch):
            file.build(Setting(observations, spaces.Discrete(3)))
    file.beside_environment()


# ---- tables ----


def csv_table(data: bytes) -> None:
    """A CSV file, all the way to whole episodes."""
    _table(data, "csv")


def json_table(data: bytes) -> None:
    """A file of JSON lines, all the way to whole episodes."""
    _table(data, "json")


def _table(data: bytes, kind: str) -> None:
    """By the names that RLlib gives to columns."""
    source = TableSource([File(data)], PLACE, options=TableOptions(), kind=kind)
    for batch in read_episodes(opened=[source], on_error=OnError.QUARANTINE):
        _ = batch.returns


TARGETS: dict[str, Callable[[bytes], None]] = {
    "episode": episode,
    "episodes": episodes,
    "cell": cell,
    "objects": objects,
    "sample-batch": sample_batch,
    "space-json": space_json,
    "space-rllib": space_rllib,
    "manifest": manifest,
    "mapping": mapping,
    "pipeline": pipeline,
    "csv-table": csv_table,
    "json-table": json_table,
}

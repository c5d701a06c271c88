"""Detect the format of files by content: `Listing.kind`, which `--from auto` uses.

Files are recognised by their first bytes, also within gzip and zstd; Parquet by its columns, JSON lines by the first line, CSV
by the first two lines, HDF5 and NumPy archives by the names in them. Text and images beside the data are ignored. Of many files
only a sample is inspected. Results are cached.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from typing import Final

import pyarrow as pa

from offline_cli.columns import Columns
from offline_cli.datasets.file_names import MANIFEST
from offline_cli.errors import BadData
from offline_cli.formats.arrow_leaves import arrow_schema_of
from offline_cli.formats.hdf5.safe import Hdf5File
from offline_cli.formats.npz.archive import NpzArchive
from offline_cli.formats.parquet_files import schema_of
from offline_cli.formats.rllib.batch_lines import is_batch
from offline_cli.formats.rllib.columns import NEEDED
from offline_cli.formats.rllib.json_lines import lines_of
from offline_cli.formats.tables.text_files import is_named_csv, looks_like_csv, packing_of, unpacked_head
from offline_cli.scopes import Scope
from offline_cli.storage.locations import Location

NO_DATA: Final = "none"
KINDS: Final = {
    "episodes": "RLlib episodes in Parquet",
    "columns": "RLlib columns in Parquet",
    "sample-batch": "SampleBatch JSON lines",
    "table": "tables in Parquet, Arrow, CSV or JSON lines",
    "parquet-table": "Parquet tables without RLlib's columns",
    "json": "JSON objects that are not SampleBatches",
    "json-array": "JSON that is not an object a line",
    "csv": "CSV files",
    "zip": "zip archives without SampleBatch JSON",
    "hdf5": "HDF5 files of an unknown layout",
    "d4rl": "HDF5 files of D4RL's layout",
    "robomimic": "HDF5 files of robomimic's layout",
    "d3rlpy": "HDF5 files of d3rlpy's layout",
    "arrow": "Arrow files",
    "minari": "a Minari dataset",
    "lerobot": "a LeRobot dataset",
    "npz": "NumPy archives",
    "ogbench": "OGBench's NumPy archives",
    "imitation": "imitation's trajectories, a Hugging Face dataset on disk",
    "npy": "NumPy arrays",
    "rlds": "an RLDS dataset in TFRecord files",
    "hf-arrow": "a Hugging Face dataset on disk",
}
"""Values of `Listing.kind`, with descriptions."""
LAYOUTS: Final = {  # folders with several kinds of files: the JSON file that identifies them, and a word in it
    "minari": ("metadata.json", b'"data_format"'),
    "lerobot": ("info.json", b'"codebase_version"'),
    "rlds": ("features.json", b'"pythonClassName"'),
    "hf-arrow": ("state.json", b'"_data_files"'),
}
HDF5_LAYOUTS: Final = {  # top-level names in a file
    "d3rlpy": {"columns", "num_episodes", "version"},
    "robomimic": {"data"},
    "d4rl": {"observations", "actions", "rewards", "terminals"},
}
OGBENCH_ARRAYS: Final = frozenset(("observations", "actions", "terminals"))
OGBENCH_OWN: Final = frozenset(("masks", "qpos", "qvel", "button_states"))  # arrays that only OGBench has
OGBENCH_NAME: Final = re.compile(r"-v\d+(-val)?\.npz$")  # such as cube-single-play-v0-val.npz
MAGIC: Final = {
    b"PAR1": "parquet",
    b"\x89HDF": "hdf5",
    b"\x93NUM": "npy",
    b"ARRO": "arrow",
    b"\xff\xff\xff\xff": "arrow",
    b"PK\x03\x04": "lines",
    b"PK\x05\x06": "lines",
}
SETTINGS: Final = (".toml", ".ini", ".cfg")
HEAD_BYTES: Final = 1 << 16
BOM: Final = b"\xef\xbb\xbf"
LINES_LOOKED_AT: Final = 16  # files whose first line is read until one is a batch
THREADS: Final = 8


class Listing:
    """The files of one source, and their kind."""

    def __init__(self, files: Sequence[Location], location: str, *, as_tables: bool = False) -> None:
        """`as_tables`: read Parquet with any columns as a table."""
        self.files, self.location, self.as_tables = files, location, as_tables

    @cached_property
    def kind(self) -> str:
        """One of `KINDS`, or NO_DATA. Raises BadData for files of several formats, and for damaged ones."""
        known = {kind: file for kind, file in self._kinds if kind != "other"}
        kind = _layout(known) if len(known) > 1 else next(iter(known), NO_DATA)
        files = [file for other, file in self._kinds if other == ("arrow" if kind == "hf-arrow" else kind)]
        if self.as_tables and kind in ("parquet", "arrow", "hf-arrow"):
            return "parquet-table" if kind == "parquet" else "arrow"
        if kind == "hf-arrow":
            return _arrow_kind(files, other="hf-arrow", damaged="imitation")
        return CLOSER[kind](files) if kind in CLOSER else kind

    @cached_property
    def data(self) -> Sequence[Location]:
        """The files without those that are not data; for a Hugging Face dataset read as a table, its Arrow files."""
        if self.as_tables and any(kind == "hf-arrow" for kind, _ in self._kinds):
            return [file for kind, file in self._kinds if kind == "arrow"]
        passed_over = {file.path for kind, file in self._kinds if kind == "other"}
        return [file for file in self.files if file.path not in passed_over]

    @cached_property
    def _kinds(self) -> list[tuple[str, Location]]:
        """The kinds of the files: a value of MAGIC, a key of LAYOUTS, npz, csv, or other."""
        with ThreadPoolExecutor(THREADS) as pool:
            kinds = list(zip(pool.map(_kind, self.files), self.files, strict=True))
        known = {kind: file for kind, file in kinds if kind != "other"}
        if len(known) > 1 and "csv" in known and not is_named_csv(known["csv"].name):  # notes with commas beside the data
            return [("other" if kind == "csv" else kind, file) for kind, file in kinds]
        return kinds


# ---- by first bytes ----


def _kind(file: Location) -> str:
    head, _ = file.start(HEAD_BYTES)
    if _is_npz(head):
        return "npz"
    if packing_of(head):
        head = unpacked_head(file)
        if not head.strip():  # damaged or empty: the reader reports which
            return "csv" if is_named_csv(file.name) else "lines"
    if head[:4] in MAGIC:
        return MAGIC[head[:4]]
    if file.name.lower().endswith(SETTINGS):  # a TOML section starts like a JSON list
        return "other"
    if head.removeprefix(BOM).lstrip()[:1] in (b"{", b"["):
        return next((kind for kind, (name, word) in LAYOUTS.items() if file.name == name and word in head), "lines")
    return "csv" if looks_like_csv(head, file.name) else "other"


def _is_npz(head: bytes) -> bool:
    """Whether the first member of a zip archive is a .npy file."""
    length = int.from_bytes(head[26:28], "little")
    return head[:4] == b"PK\x03\x04" and head[30 : 30 + length].endswith(b".npy")


def _layout(known: Mapping[str, Location]) -> str:
    """The layout of a folder with several kinds of files. Raises BadData, naming two kinds, if it is none."""
    for layout in LAYOUTS:
        if layout in known:
            return layout
    manifest = next((file for file in known.values() if file.name == MANIFEST), None)
    if manifest is not None:  # for example, the output of `split`
        below = manifest.url.removesuffix(f"/{MANIFEST}")
        folder = below.rpartition("/")[0]
        fix = f"name one of them, such as {below}, or all: '{folder}/*'"
        raise BadData("not a dataset, but a folder that contains datasets", where=folder, fix=fix)
    return _only(known)


# ---- by columns, first lines, or names in HDF5 files and archives ----


def _only(found: Mapping[str, Location]) -> str:
    """The only kind. Raises BadData for several: two programs may have written into the folder."""
    if len(found) > 1:
        (first, one), (second, other), *_ = found.items()
        words = {"parquet": "Parquet", "lines": "JSON lines", **KINDS}
        raise BadData(
            f"two formats in one folder: {words[first]} and {words[second]}",
            where=f"{one.url} and {other.url}",
            fix="give the files of one format, as a glob or with --from, and convert the others separately",
        )
    return next(iter(found))


def _parquet_kind(files: Sequence[Location]) -> str:
    """The kind by the first and last file; compressed files are read as tables."""
    if packing_of(files[0].start(4)[0]):
        return "parquet-table"
    return _only({_columns_kind(schema_of(file)): file for file in dict.fromkeys((files[0], files[-1]))})


def _columns_kind(schema: pa.Schema) -> str:
    names = set(schema.names)
    if Columns.ITEM in names:
        kind = schema.field(Columns.ITEM).type
        if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
            return "episodes"
    return "columns" if names.issuperset(NEEDED) else "parquet-table"


def _lines_kind(files: Sequence[Location]) -> str:
    """The kind by the first lines: "sample-batch" if one of the first files starts with a batch: notes may precede it.

    Raises BadData if none does and a file is damaged.
    """
    damaged: BadData | None = None
    starts = set[bytes]()
    for file in files[:LINES_LOOKED_AT]:
        with Scope() as scope:
            line = next(lines_of(file, scope), None)
        if isinstance(line, BadData):
            damaged = damaged or line
            continue
        if line is not None and is_batch(line):
            return "sample-batch"
        starts.add(unpacked_head(file).removeprefix(BOM).lstrip()[:1])
    if damaged is not None:
        raise damaged
    return "json" if b"{" in starts else "zip" if b"P" in starts else "json-array"


def _hdf5_kind(files: Sequence[Location]) -> str:
    """The kind by the first and the last two files. Raises MissingPackage without h5py."""
    found: dict[str, Location] = {}
    for file in dict.fromkeys((files[0], *files[-2:])):
        with Hdf5File(file) as opened:
            names = set(opened.members())
        kind = next((kind for kind, needed in HDF5_LAYOUTS.items() if needed <= names), "hdf5")
        found["minari" if kind == "hdf5" and any(name.startswith("episode_") for name in names) else kind] = file
    return _only(found)


def _npz_kind(files: Sequence[Location]) -> str:
    """ "ogbench" for an archive with observations, actions and `terminals`, no `timeouts`, and either an array or a file name
    that only OGBench uses. Other archives are flat ("npz"), without OGBench's rule for the last row.
    """
    try:
        with Scope() as scope:
            names = set(NpzArchive(files[0], scope).arrays)
    except BadData:  # the reader will report it
        return "npz"
    flat = names & {"timeouts", "next_observations"} or ("rewards" in names and "masks" not in names)
    known = names & OGBENCH_OWN or OGBENCH_NAME.search(files[0].name)
    return "ogbench" if names >= OGBENCH_ARRAYS and known and not flat else "npz"


def _arrow_kind(files: Sequence[Location], *, other: str = "arrow", damaged: str = "arrow") -> str:
    """ "imitation" for list columns of trajectories, else `other` for tables; `damaged` if it is unreadable."""
    try:
        schema = arrow_schema_of(files[0])
        obs, acts, terminal = (schema.field(name).type for name in ("obs", "acts", "terminal"))
    except (BadData, IndexError):
        return damaged
    except KeyError:
        return other
    are_lists = all(pa.types.is_list(kind) or pa.types.is_large_list(kind) for kind in (obs, acts))
    return "imitation" if are_lists and pa.types.is_boolean(terminal) else other


CLOSER: Final[Mapping[str, Callable[[Sequence[Location]], str]]] = {
    "parquet": _parquet_kind,
    "lines": _lines_kind,
    "hdf5": _hdf5_kind,
    "npz": _npz_kind,
    "arrow": _arrow_kind,
}

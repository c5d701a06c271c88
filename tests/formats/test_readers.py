"""Readers by name: ours, those of installed packages, those of one's own file; and how `auto` chooses among them."""

from __future__ import annotations

import json
import struct
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from installed_packages import Install

from offline_cli.converting.convert import convert
from offline_cli.errors import BadData, NoData
from offline_cli.formats.opening import open_sources
from offline_cli.formats.registry import OURS

Call = Callable[..., tuple[int, dict[str, Any]]]
FIRST_RECORD = struct.pack("<Q", 5) + bytes.fromhex("eab2043e") + bytes(20)  # of a TFRecord file, for which there is no reader
CSV = "eps_id,t,obs,actions,rewards,terminateds\na,0,0.5,1,1.0,0\na,1,1.5,0,1.0,1\n"
NOTED = """
import numpy as np
from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.formats.source import FileSource
from offline_cli.formats.reader import LIKELY, NO, SURE, Reader
from offline_cli.formats.source import Fragments
class Notes(FileSource):
    format = "notes"
    def fragments(self, tally, rejects):
        one, flag = np.ones(2), np.array([True])
        yield Fragments(EpisodeBatch(("a",), np.array([0, 2]), np.arange(3.0), np.arange(2), one, flag, ~flag))
def reader(name="notes", score=SURE, opened=lambda files, context: Notes(files, context.location)):
    return Reader(name, "notes", opened, lambda listing: score)
def failing(listing):
    raise RuntimeError("no licence")
def damaged(listing):
    from offline_cli.errors import BadData
    raise BadData("half a note", where=listing.location, fix="write it again")
SURELY, EQUALLY, NEVER, NAN = reader(), reader(score=LIKELY), reader(score=NO), reader(score=float("nan"))
RAISING, DAMAGED = Reader("notes", "notes", SURELY.open, failing), Reader("notes", "notes", SURELY.open, damaged)
OPENS_NOTHING = reader(opened=lambda files, context: None)
def _raise(files, context):
    raise RuntimeError("boom")
RAISES = reader(opened=_raise)
"""


@pytest.fixture
def notes(install: Install) -> Callable[[str], None]:
    """Installs the package `note-books`, whose reader `notes` is one of those in NOTED."""
    return lambda which: install("note-books", {"readers": {"notes": f"noted:{which}"}}, noted=NOTED)


@pytest.fixture
def table(tmp_path: Path) -> str:
    """A CSV file with RLlib's names."""
    (tmp_path / "steps.csv").write_text(CSV)
    return str(tmp_path / "steps.csv")


@pytest.fixture
def dataset(table: str, tmp_path: Path) -> Path:
    """One of ours."""
    convert(table, tmp_path / "D")
    return tmp_path / "D"


def written(path: Path, content: Any) -> Path:
    if isinstance(content, dict):
        pq.write_table(pa.table(content), path)
    else:
        path.write_bytes(content)
    return path


def test_a_plugin_reads_what_none_of_ours_knows(notes: Callable[[str], None], tmp_path: Path) -> None:
    notes("EQUALLY")
    assert open_sources(str(written(tmp_path / "a.book", b"some words\n")))[0].info.format == "notes"


# ---- plug-ins that fail ----


# ---- names ----


def test_a_name_in_a_manifest_selects_no_plugin(install: Install, dataset: Path) -> None:
    install("spying", {"readers": {"spied": "spying:x"}}, spying="raise AssertionError('imported')")
    manifest = json.loads((dataset / "manifest.json").read_text())
    manifest["format"] = "spied"
    manifest["provenance"]["source_formats"] = ["spied"]
    (dataset / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(BadData):
        open_sources(str(dataset))[0]
    assert "spying" not in sys.modules


# ---- one's own file ----


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A module `own_notes` in the current folder."""
    (tmp_path / "own_notes.py").write_text(NOTED)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "own_notes", raising=False)
    return tmp_path


@pytest.mark.usefixtures("own")
def test_a_reader_of_ones_own_file_reads(table: str) -> None:
    assert open_sources(table, from_="python:own_notes:SURELY")[0].info.format == "notes"


def test_files_that_nobody_knows_are_no_data_and_all_readers_of_ours_are_named(tmp_path: Path) -> None:
    with pytest.raises(NoData) as caught:
        open_sources(str(written(tmp_path / "a.record", FIRST_RECORD)))[0]
    assert all(f"--from {name}" in caught.value.what for name in OURS)

"""Listings of folders, and patterns in the last part of a path, are those of fsspec; others are left to it."""

from __future__ import annotations

from pathlib import Path

import pytest
from fsspec.implementations.local import LocalFileSystem
from offline_cli.files.local_files import files_below, matching_names
from offline_cli.files.locations import expand, open_location

NAMES = ("a.parquet", "b.parquet", ".c.parquet", "d.PARQUET", "e[1].parquet", "f", "ab.parquet", "line\nbreak.parquet")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in NAMES:
        (tmp_path / name).write_bytes(b"x")
    (tmp_path / "g.parquet").mkdir()
    (tmp_path / "h.parquet").symlink_to(tmp_path / "nowhere")
    return tmp_path


@pytest.mark.parametrize("pattern", ["*.parquet", "*", "?.parquet", "[ab]*", "[!a]*", "a*b*", "e[[]1].parquet", "*.csv", "[]x"])
def test_names_match_as_they_do_in_fsspec(folder: Path, pattern: str) -> None:
    assert matching_names(f"{folder}/{pattern}") == LocalFileSystem().glob(f"{folder}/{pattern}")


def test_places_that_match_are_those_of_the_listing(folder: Path) -> None:
    found = expand(f"{folder}/*.parquet")
    assert [one.path for one in found] == [one.path for one in open_location(str(folder)).children() if ".parquet" in one.name]
    assert [one.url for one in found] == [one.path for one in found]
    assert [one.path for one in found if one.is_dir()] == [f"{folder}/g.parquet"]


def test_files_below_a_folder_are_those_that_fsspec_finds(folder: Path) -> None:
    (folder / "g.parquet" / "deep").mkdir()
    (folder / "g.parquet" / "deep" / "%25.parquet").write_bytes(b"x")
    (folder / "link").symlink_to(folder / "g.parquet")
    found = files_below(str(folder))
    assert found is not None
    assert sorted(found) == LocalFileSystem().find(str(folder))
    assert [one.url for one in open_location(str(folder)).files()] == sorted(found)
    assert [one.url for one in open_location(f"file://{folder}").files()][-1] == f"file://{folder}/link"
    assert f"file://{folder}/g.parquet/deep/%2525.parquet" in [one.url for one in open_location(f"file://{folder}").files()]

"""URLs to places: names, listings, globs, and failures in one language."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import pytest

from offline_cli.errors import MissingPackage, StorageError, StorageNotFound, UsageError
from offline_cli.storage.failures import storage_failures
from offline_cli.storage.locations import Location, expand, open_location


def put(location: Location, data: bytes = b"x") -> Location:
    location.fs.makedirs(location.path.rpartition("/")[0], exist_ok=True)
    location.fs.pipe_file(location.path, data)
    return location


class TestPlaces:
    """What holds on disk and in memory alike."""

    def test_files_are_listed_however_deep_and_sorted_by_path(self, place: Location) -> None:
        for name in ("b/2", "a", "b/1/x"):
            put(place.join(name))
        assert [file.url.removeprefix(place.url) for file in place.files()] == ["/a", "/b/1/x", "/b/2"]

    def test_reading_a_missing_file_names_it(self, place: Location) -> None:
        for read in (place.join("a").open, place.join("a").read_bytes, place.join("a").size):
            with pytest.raises(StorageNotFound) as caught:
                read()
            assert caught.value.where == place.join("a").url

    def test_only_empty_folders_are_removed_as_empty(self, place: Location) -> None:
        put(place.join("full/a"))
        place.join("empty").make_folder()
        for name in ("full", "empty", "missing"):
            place.join(name).remove_empty_folder()
        assert place.join("full/a").exists()
        assert not place.join("empty").exists()

    def test_a_glob_is_expanded_in_sorted_order(self, place: Location) -> None:
        for name in ("c.json", "a.json", "b.txt", "d/e.json"):
            put(place.join(name))
        assert [found.name for found in expand(f"{place.url}/*.json")] == ["a.json", "c.json"]
        assert [found.name for found in expand(f"{place.url}/**/*.json")] == ["a.json", "c.json", "e.json"]

    def test_a_name_with_brackets_that_exists_is_no_glob(self, place: Location) -> None:
        put(place.join("run[1]"))
        put(place.join("run1"))
        assert [found.name for found in expand(f"{place.url}/run[1]")] == ["run[1]"]

    @pytest.mark.parametrize("name", ["missing", "*.json"])
    def test_a_source_that_names_nothing_is_an_error_that_names_it(self, place: Location, name: str) -> None:
        with pytest.raises(StorageNotFound) as caught:
            expand([f"{place.url}/{name}"])
        assert caught.value.where == f"{place.url}/{name}"


def test_a_relative_path_is_shown_as_the_user_wrote_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    put(open_location("D/data/a"))
    assert [file.url for file in open_location("D").files()] == ["D/data/a"]


@pytest.mark.parametrize("name", ["x y", "50%", "a%20b", "ü#?&=", "a*[b]"])
def test_a_file_url_is_decoded_and_what_is_shown_leads_back(name: str, tmp_path: Path) -> None:
    there = put(open_location((tmp_path / name).as_uri()).join("50%20", "f x"))
    assert (tmp_path / name / "50%20" / "f x").is_file()
    for url in (there.url, there.path, (tmp_path / name / "50%20" / "f x").as_uri(), *(file.url for file in there.files())):
        assert open_location(url).path == there.path, url
    assert [found.path for found in expand((tmp_path / name).as_uri())] == [str(tmp_path / name)]


def test_an_unknown_scheme_is_a_usage_error() -> None:
    with pytest.raises(UsageError, match="nosuch://"):
        open_location("nosuch://bucket/a")


def test_a_missing_client_is_named_with_the_line_that_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> Any:
        raise ImportError("Install adlfs to access Azure")

    monkeypatch.setattr("offline_cli.storage.filesystems.url_to_fs", refuse)
    with pytest.raises(MissingPackage) as caught:
        open_location("az://bucket/a")
    assert caught.value.fix == "pip install 'offline-cli[azure]'"


@pytest.mark.parametrize(
    "error",
    [
        PermissionError(errno.EACCES, "denied"),
        OSError(errno.ENOSPC, "full"),
        ConnectionResetError("reset"),
        NotADirectoryError(errno.ENOTDIR, "a file"),
    ],
    ids=repr,
)
def test_failures_of_storage_name_the_url_and_the_cause(error: Exception) -> None:
    with pytest.raises(StorageError) as caught, storage_failures("s3://bucket/a", "writing"):
        raise error
    assert caught.value.where == "s3://bucket/a"
    assert caught.value.__cause__ is error

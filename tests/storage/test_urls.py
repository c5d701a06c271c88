"""URLs that cannot be meant are refused before a client is made, and what may be a password in them is not repeated."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from offline_cli.errors import UsageError
from offline_cli.storage import filesystems
from offline_cli.storage.filesystems import check_url
from offline_cli.storage.locations import open_location


@pytest.mark.parametrize(
    "url",
    [
        "s3://AKIDX:hunter2@bucket/x",
        "s3://AKIDX:hun/ter2@bucket/x",
        "s3://hunter2@bucket/x",
        "gs://me:hunter2@bucket/x",
        "az://me:hunter2@container/x",
        "filecache::s3://AKIDX:hunter2@bucket/x",
        "abfs://me:hunter2@account.dfs.core.windows.net/x",
    ],
)
def test_a_password_in_the_url_of_a_bucket_is_refused_and_not_repeated(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def asked(*_: Any, **__: Any) -> Any:
        raise AssertionError("a client was made")

    monkeypatch.setattr(filesystems, "url_to_fs", asked)
    with pytest.raises(UsageError) as caught:
        open_location(url)
    assert "hun" not in str(caught.value)
    assert "set A" in caught.value.fix or "set GOOGLE" in caught.value.fix


@pytest.mark.parametrize(
    "url",
    [
        "s3://bucket/a@b:c",
        "s3://arn:aws:s3:eu-west-1:123456789012:accesspoint/name/key",
        "abfs://container@account.dfs.core.windows.net/x",
        "https://me:pa55@host/x",
        "folder/s3:/x",
        "./s3:/x",
    ],
)
def test_what_can_be_meant_is_not_refused(url: str) -> None:
    check_url(url)


@pytest.mark.parametrize("url", ["s3:/x", "hf:/datasets/x", "http:/host/x", "file://other/tmp/x"])
def test_a_url_that_would_name_a_local_folder_is_refused(url: str) -> None:
    with pytest.raises(UsageError) as caught:
        open_location(url)
    assert caught.value.where == url


def test_this_machine_may_be_named_in_a_file_url(tmp_path: Path) -> None:
    assert open_location(f"file://localhost{tmp_path}").path == str(tmp_path)


@pytest.mark.parametrize(("url", "noun"), [("s3://", "bucket"), ("gs:///x", "bucket"), ("az://", "container")])
def test_a_url_without_a_bucket_is_a_usage_error(url: str, noun: str) -> None:
    with pytest.raises(UsageError, match=noun):
        open_location(url)


def test_a_cache_of_fsspec_in_front_of_a_place_is_a_source(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a/b.txt").write_bytes(b"one")
    options = {"cache_storage": str(tmp_path / "cache"), "check_files": True}
    for data in (b"one", b"another"):
        (tmp_path / "a/b.txt").write_bytes(data)
        (found,) = open_location(f"filecache::file://{tmp_path}/a", options).files()
        assert (found.read_bytes(), found.url) == (data, f"filecache::file://{tmp_path}/a/b.txt")
    assert list((tmp_path / "cache").iterdir())

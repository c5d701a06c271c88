"""Clients of storages are made once for the same options, and never without a time limit."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest
from cloud_servers import forget_clients
from offline_cli.files import clients
from offline_cli.files.locations import open_location

from offline_cli.errors import StorageError


def test_places_with_the_same_options_share_a_client_whatever_thread_opens_them() -> None:
    found: list[Any] = [open_location("s3://bucket/a", {"key": "x"}).fs]
    thread = threading.Thread(target=lambda: found.append(open_location("s3://other/b", {"key": "x"}).fs))
    thread.start()
    thread.join()
    assert found[0] is found[1]
    assert open_location("s3://bucket/a", {"key": "y"}).fs is not found[0]


def test_a_client_that_cannot_be_made_in_time_is_an_error_and_the_next_is_made_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    real = clients.url_to_fs
    monkeypatch.setattr(clients, "url_to_fs", lambda url, **options: threading.Event().wait())
    with pytest.raises(StorageError, match=r"opening the storage failed.*timed out after 1 s") as caught:
        open_location("s3://bucket/a", {"time_limit": 1})
    assert caught.value.where == "s3://bucket/a"
    monkeypatch.setattr(clients, "url_to_fs", real)
    assert open_location("s3://bucket/a", {"time_limit": 20}).path == "bucket/a"


@pytest.fixture(autouse=True)
def no_client_left() -> Iterator[None]:
    """Clients of these tests are of no use to others."""
    yield
    forget_clients()

"""A request that is never answered ends, and its error says how to wait longer."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import pytest

from offline_cli.errors import StorageError, UsageError
from offline_cli.storage import failures
from offline_cli.storage.failures import ReadingPool, wait_for
from offline_cli.storage.locations import open_location


def never(*_: Any, **__: Any) -> Any:
    threading.Event().wait()


def test_a_request_that_is_never_answered_is_a_storage_error_that_says_how_to_wait_longer() -> None:
    place, began = open_location("s3://bucket/a", {"anon": True, "time_limit": 0.2}), time.monotonic()
    with pytest.raises(StorageError, match=r"0\.2 s") as caught:
        place.ask("writing", never)
    assert time.monotonic() - began < 5
    assert caught.value.where == "s3://bucket/a"
    assert "time_limit=" in caught.value.fix


def test_a_pool_that_is_left_waits_for_no_storage() -> None:
    began = time.monotonic()
    with ReadingPool(1) as pool:
        pool.submit(wait_for, never, "s3://bucket/a", 60)
        waiting = pool.submit(wait_for, never, "s3://bucket/b", 60)
    assert time.monotonic() - began < 5
    assert waiting.cancelled()


def test_a_wait_is_noted(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(failures, "REPORTED", 0.02)
    with pytest.raises(TimeoutError):
        wait_for(never, "s3://bucket/a", 0.3)
    assert ["s3://bucket/a" in text for text in caplog.messages] == [True]


def test_the_time_limit_is_an_option_of_every_storage(tmp_path: Path) -> None:
    assert open_location(tmp_path, {"time_limit": 7}).time_limit == 7
    assert open_location("s3://bucket/a", {"time_limit": 7, "anon": True}).join("b").time_limit == 7
    assert open_location("s3://bucket/a").time_limit == failures.SECONDS


@pytest.mark.parametrize("limit", [0, -1, "soon", True, float("inf"), float("nan")])
def test_a_time_limit_that_is_none_is_refused(limit: Any) -> None:
    with pytest.raises(UsageError):
        open_location("s3://bucket/a", {"time_limit": limit})

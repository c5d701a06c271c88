"""The watchdog: requests that are never answered end, and the ones after them sooner."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest
from offline_cli.files import timeouts
from offline_cli.files.failures import storage_failures
from offline_cli.files.locations import open_location
from offline_cli.files.timeouts import NoAnswer, Patience

from offline_cli.errors import StorageError, UsageError

pytestmark = pytest.mark.nightly


def never() -> None:
    threading.Event().wait()


def seconds_of(request: Any) -> float:
    began = time.monotonic()
    with pytest.raises(NoAnswer):
        request()
    return time.monotonic() - began


def test_an_answer_comes_through_and_so_does_an_error() -> None:
    patient = Patience(5)
    assert patient.wait_for(lambda: 7, "s3://bucket/a") == 7
    with pytest.raises(KeyError, match="theirs"):
        patient.wait_for(lambda: {}["theirs"], "s3://bucket/a")


def test_a_request_that_is_never_answered_ends_after_the_limit() -> None:
    assert 1.5 <= seconds_of(lambda: Patience(1.5).wait_for(never, "s3://bucket/a")) < 6


def test_the_error_names_url_time_and_how_to_wait_longer() -> None:
    with (
        pytest.raises(StorageError, match=r"timed out after 0\.1 s") as caught,
        storage_failures("s3://bucket/a", "writing"),
    ):
        raise NoAnswer(0.1)
    assert caught.value.where == "s3://bucket/a"
    assert "time_limit=" in caught.value.fix


def test_the_time_limit_is_an_option_of_every_storage(tmp_path: Any) -> None:
    assert open_location(tmp_path, {"time_limit": 7}).patience.seconds == 7
    assert open_location("s3://bucket/a", {"time_limit": 7, "anon": True}).join("b").patience.seconds == 7
    assert open_location("s3://bucket/a").patience.seconds == timeouts.SECONDS


@pytest.mark.parametrize("limit", [0, -1, "soon", True, float("inf"), float("nan")])
def test_a_time_limit_that_is_none_is_refused(limit: Any) -> None:
    with pytest.raises(UsageError, match="not a time limit"):
        open_location("s3://bucket/a", {"time_limit": limit})

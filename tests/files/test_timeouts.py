"""The watchdog: requests that are never answered end, and the ones after them sooner."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from typing import Any

import pytest

from offline_cli.errors import StorageError, UsageError
from offline_cli.files import timeouts
from offline_cli.files.failures import storage_failures
from offline_cli.files.locations import open_location
from offline_cli.files.timeouts import NoAnswer, Patience, waits_told_to

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


@pytest.mark.integration
def test_after_a_failure_requests_get_a_tenth_until_one_is_answered() -> None:
    patient = Patience(40)
    with pytest.raises(ConnectionError):
        patient.wait_for(lambda: (_ for _ in ()).throw(ConnectionError()), "s3://bucket/a")
    assert 4 <= seconds_of(lambda: patient.wait_for(never, "s3://bucket/a")) < 15
    patient.wait_for(lambda: None, "s3://bucket/a")
    assert patient._failed < 0
    waiting = threading.Thread(target=lambda: seconds_of(lambda: patient.wait_for(never, "s3://bucket/a")), daemon=True)
    waiting.start()
    waiting.join(6)
    assert waiting.is_alive(), "the whole limit again"


def test_a_no_is_an_answer() -> None:
    patient = Patience(40)
    for answer in (FileNotFoundError, PermissionError, FileExistsError):
        with pytest.raises(answer):
            patient.wait_for(lambda kind=answer: (_ for _ in ()).throw(kind()), "s3://bucket/a")
        assert patient._failed < 0


def test_the_error_names_url_time_and_how_to_wait_longer() -> None:
    with (
        pytest.raises(StorageError, match=r"timed out after 0\.1 s") as caught,
        storage_failures("s3://bucket/a", "writing"),
    ):
        raise NoAnswer(0.1)
    assert caught.value.where == "s3://bucket/a"
    assert "time_limit=" in caught.value.fix


def test_waits_are_told_of(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timeouts, "FIRST_WORD", 0.05)
    told: list[tuple[str, float, float]] = []
    with waits_told_to(lambda *words: told.append(words)), pytest.raises(NoAnswer):
        Patience(1).wait_for(never, "s3://bucket/a")
    assert told
    assert all(url == "s3://bucket/a" and 0 < waited <= 1.5 and limit == 1 for url, waited, limit in told)


def test_a_request_that_was_given_up_does_not_keep_the_process_alive() -> None:
    script = (
        "import threading\n"
        "from offline_cli.files.timeouts import NoAnswer, Patience\n"
        "try: Patience(1).wait_for(threading.Event().wait, 's3://bucket/a')\n"
        "except NoAnswer: print('ended')\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout == "ended\n"


def test_the_time_limit_is_an_option_of_every_storage(tmp_path: Any) -> None:
    assert open_location(tmp_path, {"time_limit": 7}).patience.seconds == 7
    assert open_location("s3://bucket/a", {"time_limit": 7, "anon": True}).join("b").patience.seconds == 7
    assert open_location("s3://bucket/a").patience.seconds == timeouts.SECONDS


@pytest.mark.parametrize("limit", [0, -1, "soon", True, float("inf"), float("nan")])
def test_a_time_limit_that_is_none_is_refused(limit: Any) -> None:
    with pytest.raises(UsageError, match="not a time limit"):
        open_location("s3://bucket/a", {"time_limit": limit})


def test_a_call_in_a_daemon_thread_gives_its_result_or_its_error() -> None:
    assert timeouts.in_daemon_thread("adds", sum, [1, 2]).result() == 3
    with pytest.raises(KeyError, match="theirs"):
        timeouts.in_daemon_thread("fails", {}.__getitem__, "theirs").result()


def test_a_call_in_a_daemon_thread_keeps_no_process_alive() -> None:
    code = "import time; from offline_cli.files.timeouts import in_daemon_thread as run; run('sleeps', time.sleep, 1000)"
    assert subprocess.run([sys.executable, "-c", code], timeout=60, check=False).returncode == 0

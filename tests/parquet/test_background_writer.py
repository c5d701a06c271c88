"""Calls made by a thread while the caller prepares the next: one at a time, in order, and what fails is told."""

from __future__ import annotations

import threading
from functools import partial

import pytest

from offline_cli.files.timeouts import Patience
from offline_cli.parquet.shard_writing import BackgroundWriter


def test_calls_are_made_in_their_order_and_all_are_done_at_the_end() -> None:
    behind, done = BackgroundWriter(), list[int]()
    for number in range(50):
        behind.begin(done.append, number)
    behind.finish()
    assert done == list(range(50))


def test_the_caller_goes_on_while_a_call_is_made() -> None:
    behind, caller_went_on = BackgroundWriter(), threading.Event()
    heard: list[bool] = []
    behind.begin(lambda: heard.append(caller_went_on.wait(30)))
    caller_went_on.set()
    behind.finish()
    assert heard == [True]


def test_no_more_than_one_call_waits() -> None:
    behind, go_on = BackgroundWriter(), threading.Event()
    behind.begin(partial(_wait, go_on))
    second = threading.Thread(target=behind.begin, args=(lambda: None,))
    second.start()
    second.join(0.2)
    held = second.is_alive()
    go_on.set()
    second.join(30)
    behind.finish()
    assert held
    assert not second.is_alive()


@pytest.mark.parametrize("then", ["begin", "finish"])
def test_what_a_call_raises_is_raised_once_by_the_next(then: str) -> None:
    behind = BackgroundWriter()
    behind.begin(_fail)
    with pytest.raises(ZeroDivisionError):
        behind.begin(_fail) if then == "begin" else behind.finish()
    behind.give_up()


def test_giving_up_waits_for_no_storage_and_leaves_no_call_being_made() -> None:
    behind, ended, never = BackgroundWriter(), threading.Event(), threading.Event()

    def write() -> None:
        try:
            Patience(60.0).wait_for(lambda: never.wait(60), "s3://bucket/data")
        finally:
            ended.set()

    behind.begin(write)
    behind.give_up()
    assert ended.is_set()
    never.set()


def test_what_was_never_begun_can_be_finished() -> None:
    BackgroundWriter().finish()


def _wait(event: threading.Event) -> None:
    assert event.wait(30)


def _fail() -> None:
    raise ZeroDivisionError

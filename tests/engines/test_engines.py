"""Engines give what a function yields for each item, in the order of the items, whatever becomes of their workers."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import engine_tasks as tasks
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from offline_cli.engines.engine import Engine, EngineSpec
from offline_cli.engines.messages import DONE, FAILED, RESULT, outcomes, packed, unpacked
from offline_cli.errors import ClusterLost, MissingPackage, StorageError, UsageError

pytestmark = pytest.mark.integration


@pytest.fixture
def processes() -> Iterator[Engine]:
    with EngineSpec("processes", 2).engine() as engine:
        yield engine


@pytest.mark.parametrize("spec", [EngineSpec(), *(EngineSpec("processes", workers) for workers in (1, 3))], ids=str)
def test_results_come_in_the_order_of_the_items(spec: EngineSpec) -> None:
    with spec.engine() as engine:
        found = list(engine.streamed(tasks.counted, range(50)))
    assert found == [(number, part) for number in range(50) for part in range(number % 4)]


def test_arrays_come_back_as_they_were_made_and_may_be_changed(processes: Engine) -> None:
    found = list(processes.streamed(tasks.arrays, range(4)))
    for number in range(4):
        for part in range(3):
            array = found[3 * number + part]["values"]
            np.testing.assert_array_equal(array, np.arange(number * 1000 + part))
            assert array.flags.writeable
            assert array.flags.aligned


def test_an_error_is_raised_in_its_turn_as_the_function_raised_it(processes: Engine) -> None:
    results = processes.streamed(tasks.inverses, [4, 2, 0, 1])
    assert [next(results) for _ in range(5)] == [4, 0.25, 2, 0.5, 0]
    with pytest.raises(ZeroDivisionError):
        next(results)


def test_a_worker_that_is_killed_costs_its_item_and_nothing_is_given_twice(
    processes: Engine, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    found = list(processes.streamed(partial(tasks.dies_once, str(tmp_path)), range(5)))
    assert found == [10 * number + part for number in range(5) for part in range(3)]
    assert "died (signal SIGKILL); part 2 is done again (2 of 6)" in caplog.text


def test_an_item_that_kills_its_workers_again_and_again_ends_the_work_with_their_names(processes: Engine) -> None:
    with pytest.raises(ClusterLost, match="part 1 of the work ended 6 workers") as raised:
        list(processes.streamed(tasks.dies, range(3)))
    assert raised.value.what.count("(signal SIGKILL)") == 6
    assert raised.value.exit_code == 5


def test_what_is_ahead_of_its_turn_is_bounded(processes: Engine) -> None:
    results = processes.streamed(tasks.large, range(2))
    next(results)
    time.sleep(1)
    assert sum(len(array) for array in results) == 79 << 20
    results.close()


def test_two_streams_of_an_engine_do_not_disturb_each_other(processes: Engine) -> None:
    first = processes.streamed(tasks.counted, range(20))
    assert next(first) == (1, 0)
    assert len(list(processes.streamed(tasks.counted, range(5)))) == 6
    assert next(first) == (2, 0)
    first.close()


def test_no_worker_is_left_when_the_caller_has_seen_enough(processes: Engine) -> None:
    results = processes.streamed(tasks.pid_after, [0.01] * 20)
    pids = {next(results) for _ in range(4)}
    results.close()
    assert os.getpid() not in pids
    assert not [pid for pid in pids if Path(f"/proc/{pid}").exists()]


def test_stopping_ends_the_results_within_seconds(processes: Engine) -> None:
    asked = []
    results = processes.streamed(tasks.pid_after, [0, 600, 600], stopped=lambda: bool(asked))
    next(results)
    asked.append(True)
    assert list(results) == []


def test_an_error_that_cannot_travel_arrives_as_text(processes: Engine) -> None:
    results = processes.streamed(tasks.strange, [1])
    assert next(results) == 1
    with pytest.raises(RuntimeError, match="Strange: as nobody knows it"):
        next(results)


def test_a_module_that_a_worker_lacks_is_named_with_the_worker() -> None:
    def work() -> tuple[object, object]:
        raise ModuleNotFoundError("No module named 'lab.tools'", name="lab.tools")

    ((kind, payload),) = outcomes(work, "worker 7 on node n1")  # type: ignore[arg-type]
    error = unpacked(payload)
    assert kind == FAILED
    assert isinstance(error, MissingPackage)
    assert (error.exit_code, error.where, error.fix) == (6, "worker 7 on node n1", "install it there: pip install lab")


def test_a_place_that_a_worker_does_not_find_is_told_with_the_worker() -> None:
    def fails(item: int) -> Iterator[int]:
        yield item
        raise StorageError("it is not here", where="/data/a", fix="look elsewhere")

    kinds = [(kind, unpacked(payload)) for kind, payload in outcomes(lambda: (fails, 5), "worker 7 on node n1")]
    assert kinds[0] == (RESULT, 5)
    assert str(kinds[1][1].where) == "/data/a (worker 7 on node n1)"


def test_the_last_outcome_says_that_it_is_the_last() -> None:
    assert [kind for kind, _ in outcomes(lambda: (tasks.counted, 3), "here")] == [RESULT] * 3 + [DONE]


@settings(deadline=None, max_examples=50)
@given(shapes=st.lists(st.lists(st.integers(0, 5), max_size=3), max_size=4), text=st.text())
def test_what_is_packed_is_unpacked(shapes: list[list[int]], text: str) -> None:
    arrays = [np.arange(np.prod(shape, dtype=int)).reshape(shape) for shape in shapes]
    found, name = unpacked(packed((arrays, text)))
    assert name == text
    for array, other in zip(arrays, found, strict=True):
        np.testing.assert_array_equal(array, other)


@pytest.mark.parametrize("name", ["local", "processes"])
def test_only_ray_has_an_address(name: str) -> None:
    with pytest.raises(UsageError, match=f"--engine {name} has no address"):
        EngineSpec.of({"engine": name, "workers": 2, "engine_address": "127.0.0.1:6379"})


def test_without_ray_its_extra_is_named_before_anything_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(MissingPackage, match="the package ray is missing") as raised:
        EngineSpec.of({"engine": "ray", "workers": 2, "engine_address": None})
    assert raised.value.fix == "pip install 'offline-cli[ray]'"


def test_an_address_of_ray_client_is_refused_with_another_way(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match="Ray Client") as raised:
        EngineSpec.of({"engine": "ray", "workers": 2, "engine_address": "ray://head:10001"})
    assert "--engine-address auto" in raised.value.fix

"""Functions run by worker processes: the same results in the same order as without them, whatever becomes of the workers."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import worker_tasks as tasks

from offline_cli.engines.processes import mapped, processors

pytestmark = pytest.mark.integration

ROOT = Path(__file__).resolve().parents[2]
PATH = [str(ROOT), str(ROOT / "tests" / "support")]


@pytest.mark.parametrize("workers", [0, 1, 3])
def test_results_come_in_the_order_of_the_items(workers: int) -> None:
    assert list(mapped(tasks.squared, range(200), workers=workers)) == [number**2 for number in range(200)]


def test_workers_and_the_caller_share_the_work() -> None:
    pids = set(mapped(tasks.process_after_a_while, [0.05] * 60, workers=1))
    assert os.getpid() in pids
    assert len(pids) == 2


def test_arrays_come_back_as_they_were_made() -> None:
    (array,) = mapped(tasks.counted_up, [300_000], workers=1)
    np.testing.assert_array_equal(array, np.arange(300_000))


@pytest.mark.parametrize("workers", [0, 2])
def test_an_error_is_raised_in_its_turn_as_the_function_raised_it(workers: int) -> None:
    results = mapped(tasks.inverse, [4, 2, 0, 1], workers=workers)
    assert [next(results), next(results)] == [0.25, 0.5]
    with pytest.raises(ZeroDivisionError):
        next(results)


@pytest.mark.parametrize("workers", [0, 2])
def test_what_the_items_raise_comes_after_the_results_before_it(workers: int) -> None:
    def items() -> Iterator[int]:
        yield from range(3)
        raise OSError("the disk is gone")

    results = mapped(tasks.squared, items(), workers=workers)
    assert [next(results) for _ in range(3)] == [0, 1, 4]
    with pytest.raises(OSError, match="the disk is gone"):
        next(results)


def test_items_are_taken_a_few_at_a_time() -> None:
    taken: list[int] = []

    def items() -> Iterator[int]:
        for number in range(1000):
            taken.append(number)
            yield number

    results = mapped(tasks.squared, items(), workers=2)
    assert next(results) == 0
    assert len(taken) < 20
    results.close()


def test_what_a_dead_worker_had_begun_is_done_by_the_caller() -> None:
    with pytest.warns(RuntimeWarning, match="a worker process has died"):
        results = list(mapped(partial(tasks.dies_elsewhere, os.getpid()), range(20), workers=2))
    assert results == list(range(20))


def test_no_worker_is_left_when_the_caller_has_seen_enough() -> None:
    results = mapped(tasks.process_after_a_while, [0.05] * 100, workers=2)
    pids = {next(results) for _ in range(40)} - {os.getpid()}
    results.close()
    assert pids
    assert not [pid for pid in pids if _runs(pid)]


def test_workers_end_when_the_caller_is_killed(tmp_path: Path) -> None:
    script = f"""
        import os, sys
        sys.path[:0] = {PATH!r}
        from offline_cli.engines.processes import mapped
        import worker_tasks as tasks
        for pid in mapped(tasks.process_after_a_while, [0.05] * 10_000, workers=1):
            if pid != os.getpid():
                print(pid, flush=True)
    """
    process = subprocess.Popen([sys.executable, "-c", textwrap.dedent(script)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    pid = int(process.stdout.readline())
    assert _runs(pid)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    process.stdout.close()
    until = time.monotonic() + 20
    while _runs(pid) and time.monotonic() < until:
        time.sleep(0.05)
    assert not _runs(pid)


def test_a_script_without_a_main_guard_is_not_run_again(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        textwrap.dedent(f"""
            import sys
            sys.path[:0] = {PATH!r}
            print("once")
            from offline_cli.engines.processes import mapped
            import worker_tasks as tasks
            pids = set(mapped(tasks.process_after_a_while, [0.05] * 60, workers=1))
            print(len(pids))
        """),
        encoding="utf-8",
    )
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.split() == ["once", "2"]


def test_files_of_the_folder_one_stands_in_are_not_taken_for_modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("json", "pickle", "numpy"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit(3)", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry])
    assert len(set(mapped(tasks.process_after_a_while, [0.05] * 60, workers=1))) == 2


def test_the_current_folder_comes_last_for_workers_even_where_it_comes_first_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("json", "pickle", "numpy"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit(3)", encoding="utf-8")
    (tmp_path / "found_last.py").write_text("VALUE = 5", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", ["", *filter(None, sys.path)])
    told = [value for pid, value in mapped(tasks.imported_after_a_while, ["found_last"] * 60, workers=1) if pid != os.getpid()]
    assert told
    assert set(told) == {5}


def test_workers_heed_the_variables_that_the_caller_heeds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONHASHSEED", "77")
    told = {flags for pid, flags in mapped(tasks.flags_after_a_while, range(60), workers=1) if pid != os.getpid()}
    assert told == {(True, False, False)}  # -P alone


def test_what_a_function_prints_does_not_get_among_the_answers() -> None:
    assert list(mapped(tasks.says_and_squares, range(30), workers=1)) == [number**2 for number in range(30)]


def test_processors_are_those_that_this_process_may_use() -> None:
    assert 1 <= processors() <= (os.cpu_count() or 1)


def _runs(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace").rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in "ZX"


def test_a_function_that_cannot_be_sent_is_called_here() -> None:
    assert list(mapped(lambda number: number + 1, range(5), workers=2)) == [1, 2, 3, 4, 5]


def test_an_item_that_cannot_be_sent_is_done_here() -> None:
    items = [lambda: 1, lambda: 2]
    with pytest.warns(RuntimeWarning, match="a worker process has died"):
        results = list(mapped(tasks.called, items * 20, workers=1))
    assert results == [1, 2] * 20


def test_large_items_wait_one_at_a_time() -> None:
    taken: list[int] = []

    def items() -> Iterator[int]:
        for number in range(1000):
            taken.append(number)
            yield number

    results = mapped(tasks.squared, items(), workers=2, size=lambda _: 1 << 30)
    assert next(results) == 0
    assert len(taken) == 1
    results.close()


def test_entries_of_the_path_may_be_of_any_type(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path, ROOT])
    assert list(mapped(tasks.squared, range(20), workers=1)) == [number**2 for number in range(20)]

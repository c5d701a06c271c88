"""Environments that hang: a stop ends in time with all that is whole, a step has its limit, and no process is left behind."""

from __future__ import annotations

import gc
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import hanging_envs
import pytest

from offline_cli.cli.app import app
from offline_cli.datasets.dataset import open_dataset
from offline_cli.errors import BadData
from offline_cli.playing import runner_processes
from offline_cli.playing.env_runner import EnvRunner
from offline_cli.playing.plan import Plan, environment_seed
from offline_cli.recording.record import record
from offline_cli.waiting import current

ENV = "hanging_envs:Hangs-v0"
pytestmark = pytest.mark.nightly
HANGING = environment_seed(0, 11)  # slot 3 of 8


@dataclass
class Run:
    """A recording that has begun to hang."""

    process: subprocess.Popen[str]
    out: Path

    def send(self, number: int) -> None:
        self.process.send_signal(number)

    def ended(self, seconds: float = 10.0) -> tuple[int, dict[str, Any], str]:
        """Exit code, JSON and stderr; fails where it takes longer."""
        began = time.monotonic()
        stdout, stderr = self.process.communicate(timeout=60)
        took = time.monotonic() - began
        assert took < seconds, f"{took:.1f} s: {stderr}"
        assert "Traceback" not in stderr
        return self.process.returncode, json.loads(stdout or "{}"), stderr

    def kept(self) -> int:
        """Episodes in the dataset."""
        return open_dataset(str(self.out)).manifest.counts.episodes


Begin = Callable[..., Run]


@pytest.fixture
def begun(tmp_path: Path, child_env: dict[str, str]) -> Iterator[Begin]:
    """Starts a recording of 40 episodes in 8 slots, and gives it once the environment hangs."""
    runs: list[Run] = []

    def begin(*more: str, first: Callable[[], None] | None = None, **kwargs: Any) -> Run:
        out, mark = tmp_path / f"D{len(runs)}", tmp_path / f"mark{len(runs)}"
        given = {"seed": HANGING, "mark": str(mark), **kwargs}
        words = ["record", ENV, "--out", str(out), "--policy", "random", "--device", "cpu"]
        words += ["--json", "--quiet", "--env-kwargs", json.dumps(given), *more]
        for option, value in (("--episodes", "40"), ("--num-envs", "8"), ("--vectorize", "sync")):
            words += [] if option in more else [option, value]
        process = subprocess.Popen(
            [sys.executable, "-m", "offline_cli", *words],
            env=child_env,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            preexec_fn=first or (lambda: signal.signal(signal.SIGINT, signal.default_int_handler)),
            start_new_session=True,
        )
        runs.append(Run(process, out))
        until = time.monotonic() + 90
        while not mark.exists() and process.poll() is None and time.monotonic() < until:
            time.sleep(0.02)
        assert mark.exists(), process.communicate()[1] if process.poll() is not None else "it does not hang"
        time.sleep(0.2)
        return runs[-1]

    yield begin
    for run in runs:
        run.process.kill()
        run.process.communicate()


# ---- a stop ----


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize("how", ["sleep", "loop", "swallow", "left"])
def test_a_stop_says_what_is_waited_for_and_commits_what_is_whole_within_10_s(begun: Begin, how: str, number: int) -> None:
    if number != signal.SIGTERM and how not in ("sleep", "left"):
        pytest.skip("the signals differ in one place")
    run = begun(how=how)
    run.send(number)
    code, told, stderr = run.ended()
    expected = 130 if number == signal.SIGINT else 143
    assert (code, told["exit_code"], told["error"]["code"]) == (expected, expected, "interrupted"), stderr
    assert f"waiting for slot 3: {ENV}, episode 11, step 2 (step)" in stderr
    assert (run.kept(), told["error"]["episodes"]) == (8, 8)


@pytest.mark.parametrize(
    ("more", "kept"),
    [(("--num-env-runners", "2"), 1), (("--vectorize", "async"), 8), (("--num-env-runners", "1", "--vectorize", "async"), 8)],
)
def test_so_it_does_where_the_environment_hangs_in_another_process(begun: Begin, more: tuple[str, ...], kept: int) -> None:
    run = begun(*more, "--num-envs", "8")
    run.send(signal.SIGTERM)
    code, _, stderr = run.ended()
    assert (code, run.kept()) == (143, kept), stderr
    assert "episode 11, step 2" in stderr
    assert _left(run.process.pid) == []


def test_one_that_holds_the_interpreter_of_a_runner_is_ended_in_time(begun: Begin) -> None:
    run = begun("--num-env-runners", "2", how="held", pace=0.2)
    run.send(signal.SIGTERM)
    code, _, stderr = run.ended()
    assert code == 143, stderr
    assert _left(run.process.pid) == []


def test_one_that_holds_the_interpreter_here_is_killed_in_time_and_resume_goes_on(
    begun: Begin, child_env: dict[str, str]
) -> None:
    run = begun("--max-rows-per-file", "4", how="held", pace=0.2)
    run.send(signal.SIGTERM)
    code, _, stderr = run.ended()
    assert code == -signal.SIGKILL, stderr
    assert "which holds the interpreter" in stderr
    assert list(run.out.glob("data/*.parquet"))
    assert _left(run.process.pid) == []


@pytest.mark.parametrize("more", [(), ("--num-env-runners", "2")])
@pytest.mark.parametrize("at", ["reset", "close"])
def test_a_hung_reset_or_close_keeps_no_stop_from_ending(begun: Begin, at: str, more: tuple[str, ...]) -> None:
    run = begun(*more, at=at)
    run.send(signal.SIGINT)
    code, _, stderr = run.ended()
    kept = {"close": 40, "reset": 1 if more else 8}[at]
    assert (code, run.kept()) == (0 if at == "close" else 130, kept), stderr


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_second_signal_waits_no_longer_and_keeps_what_is_whole(begun: Begin, number: int) -> None:
    run = begun()
    run.send(number)
    time.sleep(0.2)
    run.send(signal.SIGINT)
    code, told, stderr = run.ended(3.0)
    assert (code, run.kept(), told["error"]["episodes"]) == (130 if number == signal.SIGINT else 143, 8, 8), stderr


def test_so_it_does_with_runners(begun: Begin) -> None:
    run = begun("--num-env-runners", "2")
    run.send(signal.SIGTERM)
    time.sleep(0.5)
    run.send(signal.SIGTERM)
    code, _, stderr = run.ended(6.0)
    assert (code, run.kept()) == (143, 1), stderr


@pytest.mark.parametrize("more", [(), ("--num-env-runners", "2")])
def test_infos_of_16_mb_a_step_do_not_delay_a_stop(begun: Begin, more: tuple[str, ...]) -> None:
    run = begun("--episodes", "400", "--num-envs", "2", *more, nbytes=16 << 20, at="never", how="sleep", marks=True)
    time.sleep(5.0)
    run.send(signal.SIGTERM)
    code, _, stderr = run.ended()
    assert code == 143, stderr


def test_sighup_is_ignored_under_nohup(begun: Begin) -> None:
    def nohup() -> None:
        signal.signal(signal.SIGHUP, signal.SIG_IGN)

    run = begun(first=nohup)
    run.send(signal.SIGHUP)
    time.sleep(0.5)
    assert run.process.poll() is None
    run.send(signal.SIGTERM)
    time.sleep(0.2)
    run.send(signal.SIGTERM)
    assert run.ended()[0] == 143


# ---- a step that takes too long ----


@pytest.mark.parametrize("how", ["sleep", "loop"])
@pytest.mark.parametrize("at", ["step", "reset"])
def test_a_step_beyond_its_limit_is_exit_3_and_named(tmp_path: Path, at: str, how: str) -> None:
    kwargs = {"seed": HANGING, "at": at, "how": how}
    options: dict[str, Any] = {"policy": "random", "episodes": 40, "num_envs": 8, "vectorize": "sync", "device": "cpu"}
    with pytest.raises(BadData, match=r"takes longer than --step-timeout 0\.4 s") as failed:
        record(ENV, tmp_path / "D", env_kwargs=kwargs, step_timeout=0.4, **options)
    step = 2 if at == "step" else 0
    assert failed.value.exit_code == 3
    assert failed.value.where == f"slot 3: {ENV}, episode 11, step {step} ({at})"
    assert str(HANGING) in failed.value.fix
    assert (failed.value.details["episodes"], failed.value.details["complete"]) == (8, False)
    assert open_dataset(str(tmp_path / "D")).manifest.counts.episodes == 8


@pytest.mark.parametrize(
    ("more", "how", "kept"),
    [
        ((), "left", 8),
        (("--num-env-runners", "2"), "sleep", 1),
        (("--num-env-runners", "2"), "left", 1),
        (("--num-env-runners", "1"), "held", 0),
        (("--vectorize", "async"), "held", 8),
    ],
)
def test_so_it_is_wherever_and_however_it_hangs(begun: Begin, more: tuple[str, ...], how: str, kept: int) -> None:
    run = begun(*more, "--step-timeout", "1", how=how)
    code, told, stderr = run.ended(20.0)
    assert (code, told["exit_code"]) == (3, 3), stderr
    assert "--step-timeout 1 s" in told["error"]["what"]
    assert "episode 11" in told["error"]["where"]
    assert "slot " in told["error"]["where"]
    assert ("runner" in told["error"]["where"]) == ("--num-env-runners" in more)
    assert (run.kept() if kept else 0) == kept
    assert _left(run.process.pid) == []


def test_one_that_holds_the_interpreter_here_is_killed_and_told_of(begun: Begin) -> None:
    run = begun("--step-timeout", "1", how="held")
    code, _, stderr = run.ended(20.0)
    assert code == -signal.SIGKILL
    assert ENV in stderr
    assert "takes longer than --step-timeout and holds the interpreter" in stderr


@pytest.mark.parametrize("runners", [0, 1])
@pytest.mark.parametrize("how", ["sleep", "loop"])
def test_so_it_is_in_the_first_reset_of_an_own_vector_class(tmp_path: Path, how: str, runners: int) -> None:
    options: dict[str, Any] = {"policy": "random", "episodes": 4, "num_envs": 2, "device": "cpu", "env_kwargs": {"how": how}}
    own = {"vectorize": "vector_entry_point", "num_env_runners": runners, "step_timeout": 0.4}
    with pytest.raises(BadData, match=r"takes longer than --step-timeout 0\.4 s \(reset\)") as failed:
        record("hanging_envs:OwnHangs-v0", tmp_path / "D", **own, **options)
    assert failed.value.exit_code == 3
    assert "OwnHangs-v0" in (failed.value.where or "")


@pytest.mark.parametrize("runners", [0, 1])
def test_nothing_of_a_recording_stays_in_memory(tmp_path: Path, runners: int) -> None:
    def there() -> int:
        gc.collect()
        return sum(type(it) in (EnvRunner, hanging_envs.Hangs, Plan) for it in gc.get_objects())

    before, words = there(), current().words
    record(
        ENV, tmp_path / "D", policy="random", episodes=2, num_envs=2, vectorize="sync", device="cpu", num_env_runners=runners
    )
    assert there() <= before
    assert current().words is words


def test_steps_within_the_limit_are_recorded_as_without_one(tmp_path: Path) -> None:
    options: dict[str, Any] = {"policy": "random", "episodes": 4, "num_envs": 2, "vectorize": "sync", "device": "cpu"}
    for out, limit in (("with", 0.5), ("without", None)):
        record(ENV, tmp_path / out, env_kwargs={"pace": 0.01}, step_timeout=limit, **options)
    files = [sorted((tmp_path / out / "data").iterdir()) for out in ("with", "without")]
    assert [file.read_bytes() for file in files[0]] == [file.read_bytes() for file in files[1]]


@pytest.mark.parametrize("seconds", ["0", "-1", "nan"])
def test_a_limit_that_is_none_is_refused(seconds: str, tmp_path: Path) -> None:
    from typer.testing import CliRunner

    words = ["record", ENV, "--policy", "random", "-n", "1", "--out", str(tmp_path / "D"), "--step-timeout", seconds]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 2
    assert "--step-timeout" in done.stderr


# ---- processes ----


@pytest.mark.parametrize("how", ["sleep", "held"])
@pytest.mark.parametrize(
    "more",
    [
        (),
        ("--num-env-runners", "2"),
        ("--vectorize", "async"),
        ("--num-env-runners", "2", "--vectorize", "async", "--num-envs", "2"),
    ],
    ids=["here", "runners", "async", "both"],
)
def test_a_killed_recording_leaves_no_process_behind(begun: Begin, more: tuple[str, ...], how: str) -> None:
    if not more and how == "held":
        pytest.skip("there is one process, and it is killed")
    run = begun(*more, how=how)
    beside = _descendants(run.process.pid)
    run.process.kill()
    run.process.wait()
    until = time.monotonic() + 15
    while (left := [pid for pid in {*beside, *_members(run.process.pid)} if _runs(pid)]) and time.monotonic() < until:
        time.sleep(0.1)
    assert left == []


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def _left(session: int) -> list[int]:
    """Processes of a session that has ended, if they do not end in a moment: the fork server waits for its last process."""
    until = time.monotonic() + 5
    while (found := _members(session)) and time.monotonic() < until:
        time.sleep(0.05)
    return found


def _members(session: int) -> list[int]:
    """Processes of a session, from /proc."""
    return [pid for pid, fields in _processes().items() if int(fields[3]) == session and fields[0] != "Z"]


def _descendants(root: int) -> list[int]:
    parents = {pid: int(fields[1]) for pid, fields in _processes().items()}
    found, new = [], [root]
    while new:
        found += new
        new = [pid for pid, parent in parents.items() if parent in new]
    return found[1:]


def _processes() -> dict[int, list[str]]:
    found = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            found[int(stat.parent.name)] = stat.read_text().rpartition(")")[2].split()
        except OSError:  # ended meanwhile
            continue
    return found


def test_a_process_that_an_environment_forks_can_be_told_to_end(tmp_path: Path, child_env: dict[str, str]) -> None:
    words = ["record", "hanging_envs:Forks-v0", "--out", str(tmp_path / "D"), "--policy", "random", "--episodes", "2"]
    done = subprocess.run(
        [sys.executable, "-m", "offline_cli", *words, "--vectorize", "sync", "--device", "cpu"],
        env={**child_env, "PYTHONWARNINGS": "ignore"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert f"ended with {-signal.SIGTERM}" in done.stderr
    assert os.listdir(tmp_path / "D")


def test_a_runner_that_was_stopped_with_its_parent_has_time_to_come_to_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner_processes, "HELD", 0.0)
    plan = SimpleNamespace(step_timeout=0.3, env=ENV)
    sight = runner_processes._Sight(plan, 0, [time.monotonic() - 10, 0.0, 0.0, 0.0])  # type: ignore[arg-type]
    assert not sight.is_held()
    until = time.monotonic() + 5
    while not sight.is_held() and time.monotonic() < until:
        time.sleep(0.05)
    assert sight.is_held()

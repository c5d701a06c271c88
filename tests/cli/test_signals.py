"""Ctrl-C and SIGTERM: each long command is stopped once by a real signal, and resumed to the result of one that was not."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import slow_reader
import torch
from gymnasium import spaces
from operated import data_files

from offline_cli import record, train
from offline_cli.columns import Columns
from offline_cli.converting.convert import convert
from offline_cli.stop_signals import StopRequested, check, requested, signals_noted
from offline_cli.training.algorithms import fqe

Call = Callable[..., tuple[int, dict[str, Any]]]

SUPPORT = Path(__file__).resolve().parents[1] / "support"
SAMPLE = Path(__file__).resolve().parents[2] / "sample_data" / "rllib_cartpole_expert"
LIMIT = 120  # seconds for one command
SLOW = """import pathlib, time, gymnasium

class Slow(gymnasium.Wrapper):
    def step(self, action):
        pathlib.Path({mark!r}).touch()
        time.sleep({pause})
        return super().step(action)

def make():
    return Slow(gymnasium.make("CartPole-v1"))
"""


@pytest.fixture(autouse=True)
def usual_handlers() -> Iterator[None]:
    """As in a shell: what runs in the background, or under nohup, ignores signals, and so do its children."""
    usual = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: signal.SIG_DFL, signal.SIGHUP: signal.SIG_DFL}
    before = {number: signal.signal(number, handler) for number, handler in usual.items()}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def send(number: int) -> None:
    os.kill(os.getpid(), number)


# ---- the handler ----


@pytest.mark.parametrize(("number", "exit_code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 143)])
def test_the_first_signal_is_noted_and_raised_where_it_is_asked_for(number: int, exit_code: int) -> None:
    with signals_noted(), signals_noted():
        check()
        send(number)
        send(number)  # at once: that is the same stop
        assert requested() == number
        with pytest.raises(StopRequested) as raised:
            check()
    assert raised.value.exit_code == exit_code
    assert requested() is None


def test_handlers_of_a_program_around_us_stay_and_ours_go() -> None:
    before = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        with signals_noted():
            assert signal.getsignal(signal.SIGTERM) is signal.SIG_IGN
            assert signal.getsignal(signal.SIGINT) is not signal.default_int_handler
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGTERM, before)


# ---- commands ----


class Stopped:
    """Starts a command, and sends it a signal once something is there."""

    def __init__(self, folder: Path, env: dict[str, str]) -> None:
        self.folder = folder
        self.env = {**env, "PYTHONPATH": os.pathsep.join([env["PYTHONPATH"], str(SUPPORT)])}

    def __call__(self, number: int, pattern: str, *words: object, twice: bool = False) -> tuple[int, dict[str, Any], str]:
        line = [sys.executable, "-m", "offline_cli", *map(str, words), "--json"]
        how: dict[str, Any] = {"cwd": self.folder, "env": self.env, "text": True, "stdout": -1, "stderr": -1}
        process = subprocess.Popen(line, **how, preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler))
        until = time.monotonic() + LIMIT
        while not any(self.folder.glob(pattern)):
            assert process.poll() is None, process.communicate()
            assert time.monotonic() < until
            time.sleep(0.02)
        process.send_signal(number)
        if twice:
            time.sleep(0.7)
            process.send_signal(number)
        out, said = process.communicate(timeout=LIMIT)
        return process.returncode, json.loads(out or "{}"), said


@pytest.fixture
def stopped(tmp_path: Path, child_env: dict[str, str]) -> Stopped:
    return Stopped(tmp_path, child_env)


@pytest.mark.integration
@pytest.mark.parametrize(("runners", "episodes"), [(0, 60), (2, 240)])  # so many that not all blocks of runners are in flight
def test_record_commits_what_is_whole_and_goes_on(runners: int, episodes: int, stopped: Stopped, tmp_path: Path) -> None:
    kind: dict[str, Any] = {"policy": "random", "num_envs": 2, "max_rows_per_file": 5, "vectorize": "sync"}
    kind["episodes"] = episodes
    words = [word for name, value in kind.items() for word in (f"--{name.replace('_', '-')}", value)]
    words += ["--num-env-runners", runners]
    code, told, _ = stopped(signal.SIGINT, "D/data/*.parquet", "record", "recording_envs:Slow-v0", "--out", "D", *words)
    assert (code, told["error"]["code"], told["error"]["complete"]) == (130, "interrupted", False)
    assert 5 <= told["error"]["episodes"] < episodes
    for out, resume in (("D", True), ("whole", False)):
        assert record("recording_envs:Slow-v0", tmp_path / out, **kind, resume=resume).complete
    ids = [record_ids(tmp_path / out) for out in ("D", "whole")]
    assert ids[0] == ids[1]


@pytest.mark.integration
def test_copies_of_runners_end_without_tracebacks(stopped: Stopped) -> None:
    line = "record recording_envs:Slow-v0 --policy random --episodes 240 --num-envs 2 --max-rows-per-file 5 --out D"
    words = f"{line} --vectorize async --num-env-runners 2".split()
    code, told, said = stopped(signal.SIGINT, "D/data/*.parquet", *words)
    assert (code, told["error"]["code"]) == (130, "interrupted")
    assert "Traceback" not in said
    assert "leaked" not in said


def record_ids(out: Path) -> list[tuple[str, int, float]]:
    import polars as pl

    return pl.read_parquet(out / "data" / "*.parquet").select("eps_id", "length", "return").rows()


@pytest.mark.integration
@pytest.mark.parametrize("engine", ["local", "processes"])
def test_convert_keeps_complete_shards_and_goes_on(
    engine: str, stopped: Stopped, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow_reader.written(tmp_path / "source", 80)
    line = "convert source --from python:slow_reader:SLOW --max-rows-per-file 8 --env CartPole-v1 --out D"
    words = line.split()
    code, told, _ = stopped(signal.SIGTERM, "D/data/*.parquet", *words, "--engine", engine, "--workers", 2)
    assert (code, told["error"]["code"]) == (143, "interrupted")
    assert "--resume" in told["error"]["fix"]
    monkeypatch.setattr(slow_reader, "PAUSE", 0.0)
    monkeypatch.chdir(tmp_path)
    for out, resume in (("D", True), ("whole", False)):
        convert("source", out, from_="python:slow_reader:SLOW", env="CartPole-v1", max_rows_per_file=8, resume=resume)
    assert data_files(tmp_path / "D") == data_files(tmp_path / "whole")


@pytest.mark.integration
def test_training_saves_its_last_update_and_goes_on_to_the_same_policy(stopped: Stopped, tmp_path: Path) -> None:
    words = ["train-bc", SAMPLE, "--batch-size", 64, "--device", "cpu", "--checkpoint-every", 20, "--out", "run"]
    code, told, _ = stopped(signal.SIGINT, "run/state.json", *words, "--updates", 1_000_000)
    assert (code, told["error"]["code"]) == (130, "interrupted")
    bound = told["error"]["updates"] + 10
    for out, resume in (("run", True), ("whole", False)):
        kind: dict[str, Any] = {"batch_size": 64, "device": "cpu", "updates": bound, "resume": resume}
        train(str(SAMPLE), tmp_path / out, algorithm="bc", **kind)
    policies = [(tmp_path / out / "policy.safetensors").read_bytes() for out in ("run", "whole")]
    assert policies[0] == policies[1]


@pytest.mark.integration
def test_evaluate_and_apply_end_between_two_steps_and_begin_again(
    stopped: Stopped, call_json: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "slow.py").write_text(SLOW.format(mark=str(tmp_path / "mark"), pause=0.01))
    words = ["evaluate", "random", "--env", "python:slow.py:make", "--episodes", 30]
    code, told, _ = stopped(signal.SIGTERM, "mark", *words)
    assert (code, told["error"]["code"], "--resume" in told["error"]["fix"]) == (143, "interrupted", False)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "slow.py").write_text(SLOW.format(mark=str(tmp_path / "mark"), pause=0))
    (_, again), (_, whole) = (call_json(*words) for _ in range(2))
    assert again["return_mean"] == whole["return_mean"]
    (tmp_path / "pieces.toml").write_text('kind = "learner"\n[[pieces]]\nname = "frame_stacking"\nnum_frames = 2\n')
    slow_reader.written(tmp_path / "source", 150)
    line = "apply source --from python:slow_reader:SLOW --pipeline pieces.toml --env CartPole-v1 --steps-per-batch 64 --out"
    code, told, _ = stopped(signal.SIGINT, "batches/*", *line.split(), "batches")
    assert (code, told["error"]["code"]) == (130, "interrupted")
    assert not [*tmp_path.glob("batches/data/*.parquet")]
    monkeypatch.setattr(slow_reader, "PAUSE", 0.0)
    assert [call_json(*line.split(), out)[0] for out in ("batches", "whole")] == [0, 0]
    assert data_files(tmp_path / "batches") == data_files(tmp_path / "whole")


@pytest.mark.integration
@pytest.mark.parametrize("line", ["repack source", "filter source --where length>0"])
def test_operations_keep_complete_shards_and_go_on(
    line: str, stopped: Stopped, call_json: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow_reader.written(tmp_path / "source", 40)
    words = f"{line} --from python:slow_reader:SLOW --max-rows-per-file 8 --env CartPole-v1 --out".split()
    code, told, _ = stopped(signal.SIGTERM, "D/data/*.parquet", *words, "D")
    kept = [*tmp_path.glob("D/data/*.parquet")]
    assert (code, told["error"]["code"]) == (143, "interrupted")
    assert [told["error"][name] for name in ("shards", "episodes")] == [len(kept), 8 * len(kept)]
    monkeypatch.setattr(slow_reader, "PAUSE", 0.0)
    monkeypatch.chdir(tmp_path)
    assert [call_json(*words, *more)[0] for more in (("D", "--resume"), ("whole",))] == [0, 0]
    assert data_files(tmp_path / "D") == data_files(tmp_path / "whole")


@pytest.mark.integration
def test_a_stopped_publication_to_a_folder_goes_on(
    stopped: Stopped, call_json: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slow_reader, "PAUSE", 0.0)
    monkeypatch.chdir(tmp_path)
    convert(slow_reader.written(tmp_path / "source", 150), "whole", from_="python:slow_reader:SLOW", max_rows_per_file=1)
    code, told, _ = stopped(signal.SIGINT, "D/**/*.parquet", "publish", "whole", "--to", "D")
    assert (code, told["error"]["code"]) == (130, "interrupted")
    assert not (tmp_path / "D" / "manifest.json").exists()
    assert "--resume" in told["error"]["fix"]
    assert call_json("publish", "whole", "--to", "D", "--resume")[0] == 0
    assert data_files(tmp_path / "D") == data_files(tmp_path / "whole")


@pytest.mark.integration
def test_a_second_signal_ends_code_that_never_returns(stopped: Stopped, tmp_path: Path) -> None:
    (tmp_path / "slow.py").write_text(SLOW.format(mark=str(tmp_path / "mark"), pause=600))
    words = ["record", "python:slow.py:make", "--policy", "random", "--episodes", 3, "--out", "D"]
    code, _, said = stopped(signal.SIGINT, "mark", *words, twice=True)
    assert (code, "Traceback" in said) == (130, False)


def test_a_stop_is_one_json_object_with_the_exit_code_of_its_signal(
    call_json: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In process: the signal comes while the command looks at its source."""
    import offline_cli.converting.convert as place

    real = place.expand

    def signalled(*args: Any, **options: Any) -> Any:
        send(signal.SIGTERM)
        return real(*args, **options)

    monkeypatch.setattr(place, "expand", signalled)
    code, told = call_json("convert", SAMPLE, "--out", tmp_path / "D")
    assert (code, told["exit_code"], told["error"]["code"]) == (143, 143, "interrupted")
    assert not [*tmp_path.glob("D/data/*.parquet")]


@pytest.mark.parametrize("words", [("--behaviour", "fit"), ("--behaviour", "uniform", "--estimators", "dm")])
def test_fitting_to_recordings_ends_at_a_signal(
    words: Sequence[str], call_json: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import offline_cli.estimating.fitting as place

    train(str(SAMPLE), tmp_path / "run", algorithm="bc", updates=1, device="cpu")
    updates = list[int]()

    def signalled(number: int, **options: Any) -> float:
        updates.append(number)
        send(signal.SIGINT)
        return 1.0

    monkeypatch.setattr(place, "rate_factor", signalled)
    code, told = call_json("evaluate", tmp_path / "run", "--offline", SAMPLE, "--explore", *words)
    assert (code, told["error"]["code"], updates) == (130, "interrupted", [0])
    assert "--resume" not in told["error"]["fix"]


def test_a_table_of_q_values_ends_at_a_signal() -> None:
    choices = fqe.Choices.of(spaces.Discrete(2))
    assert choices is not None
    zeros = torch.zeros(4, dtype=torch.int64)
    columns = {
        **dict.fromkeys((Columns.OBS, Columns.ACTIONS, Columns.NEXT_OBS), zeros),
        Columns.REWARDS: torch.ones(4),
        Columns.TERMINATEDS: torch.zeros(4, dtype=torch.bool),
        fqe.FOLD: zeros,
        fqe.NEXT_POLICY: torch.full((4, 2), 0.5),
    }
    with signals_noted():
        send(signal.SIGINT)
        with pytest.raises(StopRequested):
            fqe.tables(spaces.Discrete(1), choices, columns, 0.5, 3)


@pytest.mark.parametrize("kind", ["parquet", "csv"])
def test_a_table_ends_at_a_signal_while_its_rows_are_read(
    kind: str, call_json: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from offline_cli.formats.tables.files import TableFiles

    frame = pl.DataFrame({"e": ["a", "a"], "x": [0.5, 1.5], "a": [0, 1]})
    getattr(frame, f"write_{kind}")(tmp_path / f"t.{kind}")
    (tmp_path / "m.toml").write_text('[columns]\neps_id = "e"\nobs = ["x"]\nactions = "a"\n')
    query, queries = TableFiles.query, list[str]()

    def signalled(self: Any, *args: Any) -> Any:
        queries.append(args[0])
        send(signal.SIGTERM)
        return query(self, *args)

    monkeypatch.setattr(TableFiles, "query", signalled)
    code, told = call_json("convert", tmp_path / f"t.{kind}", "--mapping", tmp_path / "m.toml", "--out", tmp_path / "D")
    assert (code, told["error"]["code"], len(queries)) == (143, "interrupted", 1)

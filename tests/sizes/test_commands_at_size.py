"""Every command on many short episodes, on long ones, and on several sources at once: counts are the sum of the parts."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from growth import assert_grows_in_proportion
from made_recordings import Written, made, write

Write = Callable[..., Written]
Told = Callable[..., dict[str, Any]]
Memory = Callable[..., tuple[dict[str, Any], int]]
SIZES = {"twenty thousand episodes": (20_000, 2), "one long episode": (1, 100_000)}
PIPELINE = 'kind = "learner"\n[[pieces]]\nname = "mean_std_filter"\n'
TRAINING = ("--updates", 20, "--batch-size", 256, "--device", "cpu")


@pytest.fixture
def pipeline(tmp_path: Path) -> Path:
    """A learner pipeline that learns means of observations."""
    (tmp_path / "pipeline.toml").write_text(PIPELINE, encoding="utf-8")
    return tmp_path / "pipeline.toml"


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("kind", ["episodes", "columns"])
def test_every_command_that_reads_a_dataset_takes_it(
    kind: str, size: str, written: Write, told: Told, pipeline: Path, tmp_path: Path
) -> None:
    episodes, length = SIZES[size]
    counted = {"episodes": episodes, "steps": episodes * length}
    data = Path(shutil.copytree(written(kind, episodes, length).path, tmp_path / "data"))
    assert told("inspect", data).items() >= counted.items()
    assert told("validate", data, "--deep").items() >= {"passed": True, "warnings": 0, **counted}.items()
    assert told("convert", data, "--out", tmp_path / "other", "--to", "columns").items() >= counted.items()
    assert told("apply", data, "--pipeline", pipeline, "--out", tmp_path / "batches").items() >= counted.items()
    assert told("train-bc", data, "--out", tmp_path / "run", *TRAINING).items() >= counted.items()
    (data / "manifest.json").rename(data / "_writing.json")
    assert told("repair", data).items() >= counted.items()
    assert told("inspect", data).items() >= counted.items()


@pytest.mark.parametrize("kind", ["csv", "arrow", "rllib-packed", "rllib-episodes", "sample-batch"])
def test_every_command_that_reads_recordings_takes_twenty_thousand_episodes(
    kind: str, written: Write, told: Told, pipeline: Path, tmp_path: Path
) -> None:
    source, counted = written(kind, 20_000), {"episodes": 20_000, "steps": 40_000}
    assert told("inspect", source.path).items() >= counted.items()
    assert told("validate", source.path).items() >= {"passed": True, **counted}.items()
    assert told("apply", source.path, "--pipeline", pipeline, "--out", tmp_path / "batches").items() >= counted.items()
    if kind in ("rllib-packed", "sample-batch"):
        assert told("train-bc", source.path, "--out", tmp_path / "run", *TRAINING).items() >= counted.items()


COMMANDS: dict[str, tuple[Any, ...]] = {
    "inspect": ("inspect", "SOURCE"),
    "validate": ("validate", "DATA", "--deep"),
    "convert": ("convert", "SOURCE", "--out", "OUT", "--overwrite"),
    "apply": ("apply", "DATA", "--pipeline", "PIPELINE", "--out", "OUT", "--overwrite"),
    "train-bc": ("train-bc", "DATA", "--out", "OUT", "--overwrite", "--updates", 1, "--device", "cpu"),
    "repair": ("repair", "LEFT"),
    "record": ("record", "sizes_env:SizedLong-v0", "--policy", "random", "--episodes", 1, "--out", "OUT", "--overwrite"),
}


@pytest.mark.nightly
@pytest.mark.usefixtures("sized_envs")
@pytest.mark.parametrize("command", COMMANDS)
def test_twice_as_many_episodes_take_a_command_twice_as_long(
    command: str, written: Write, told: Told, pipeline: Path, tmp_path: Path
) -> None:
    def work(name: str, episodes: int) -> Callable[[], object]:
        source, data = (written(kind, episodes) for kind in ("rllib-columns", "episodes"))
        left = Path(shutil.copytree(data.path, tmp_path / name))
        manifest = (left / "manifest.json").read_bytes()
        words = {"SOURCE": source.path, "DATA": data.path, "OUT": tmp_path / f"{name}-out", "PIPELINE": pipeline, "LEFT": left}
        arguments = [words.get(str(word), word) for word in COMMANDS[command]]
        if command == "record" and name == "full":
            arguments[1] = "sizes_env:SizedLonger-v0"

        def run() -> None:
            if command == "repair":
                (left / "manifest.json").unlink(missing_ok=True)
                (left / "_writing.json").write_bytes(manifest)
            told(*arguments)

        return run

    half, full = work("half", 20_000), work("full", 40_000)
    half()
    assert_grows_in_proportion(half, full)


@pytest.mark.nightly
@pytest.mark.usefixtures("sized_envs")
def test_twice_as_many_episodes_take_evaluate_twice_as_long_and_no_more_memory(
    written: Write, told: Told, memory_of: Memory, tmp_path: Path
) -> None:
    told("train-bc", written("episodes", 50, 4).path, "--out", tmp_path / "run", "--updates", 1, "--device", "cpu")

    def words(episodes: int) -> tuple[Any, ...]:
        return "evaluate", tmp_path / "run", "--env", "sizes_env:SizedShort-v0", "--episodes", episodes

    told(*words(2000))
    assert_grows_in_proportion(lambda: told(*words(2000)), lambda: told(*words(4000)))
    (_, few), (result, many) = memory_of(*words(100)), memory_of(*words(20_000))
    assert result["episodes"] == 20_000
    assert many <= few + (32 << 20), [few, many]


# ---- several sources ----


@pytest.mark.parametrize("kinds", [("csv", "sample-batch"), ("rllib-columns", "episodes", "jsonl")], ids="+".join)
def test_every_command_takes_several_sources_of_different_formats(
    kinds: tuple[str, ...], written: Write, told: Told, pipeline: Path, tmp_path: Path
) -> None:
    sources = [written(kind, 50, 4, first=1000 * number).path for number, kind in enumerate(kinds)]
    counted = {"episodes": 50 * len(kinds), "steps": 200 * len(kinds)}
    assert told("inspect", *sources).items() >= counted.items()
    assert told("validate", *sources).items() >= {"passed": True, **counted}.items()
    assert told("convert", *sources, "--out", tmp_path / "out").items() >= counted.items()
    assert told("apply", *sources, "--pipeline", pipeline, "--out", tmp_path / "batches").items() >= counted.items()
    assert told("train-bc", *sources, "--out", tmp_path / "run", *TRAINING).items() >= counted.items()


@pytest.mark.parametrize("streaming", [(), ("--streaming", "--memory-limit", "16GiB")], ids=["in memory", "streaming"])
def test_sources_with_other_extra_outputs_are_trained_on_together(
    streaming: tuple[str, ...], written: Write, told: Told, tmp_path: Path
) -> None:
    sources = [written("episodes", 50, 4, extra=("action_logp",)).path, written("rllib-columns", 50, 4, first=1000).path]
    for order in (sources, sources[::-1]):
        result = told("train-bc", *order, "--out", tmp_path / "run", "--overwrite", *TRAINING, *streaming)
        assert (result["episodes"], result["steps"]) == (100, 400)


def test_several_policies_of_two_sources_are_told_apart_before_training(
    call: Callable[..., tuple[int, dict[str, Any]]], told: Told, tmp_path: Path
) -> None:
    from dataclasses import replace

    sources = []
    for number, module in enumerate(("attacker", "defender")):
        batch = replace(made(50, 4, first=1000 * number), module_ids=(module,) * 50, agent_ids=(f"{module}-0",) * 50)
        sources.append(write("episodes", tmp_path / module, batch).path)
    code, found = call("train-bc", *sources, "--out", tmp_path / "run", *TRAINING)
    assert code == 4
    assert "--module-id" in found["error"]["fix"]
    result = told("train-bc", *sources, "--out", tmp_path / "run", *TRAINING, "--module-id", "attacker")
    assert (result["episodes"], result["steps"]) == (50, 200)


# ---- lost episodes ----


@pytest.mark.parametrize("kinds", [("arrow",), ("arrow", "rllib-columns")], ids="+".join)
def test_the_episodes_that_bad_rows_cost_are_counted_in_result_and_manifest_and_found_by_validate(
    kinds: tuple[str, ...],
    written: Write,
    call: Callable[..., tuple[int, dict[str, Any]]],
    told: Told,
    tmp_path: Path,
) -> None:
    from spoiling import spoil_cells

    sources = []
    for number, kind in enumerate(kinds):
        whole = written(kind, 60, 5, first=1000 * number)
        sources.append(shutil.copytree(whole.path, tmp_path / kind))
        spoil_cells(next(Path(sources[-1]).iterdir()), range(0, 100, 5))
    result = told("convert", *sources, "--out", tmp_path / "out", "--on-error", "skip")
    assert (result["episodes"], result["episodes_lost"]) == (40 * len(kinds), 20 * len(kinds))
    code, found = call("validate", tmp_path / "out", "--strict")
    assert code == 3, found
    assert told("validate", tmp_path / "out", "--strict", "--allow-lost")["passed"] is True


# ---- environments ----


@pytest.mark.usefixtures("sized_envs")
def test_twenty_thousand_episodes_are_recorded_and_a_long_one(told: Told, tmp_path: Path) -> None:
    result = told("record", "sizes_env:SizedShort-v0", "--policy", "random", "--episodes", 20_000, "--out", tmp_path / "a")
    assert (result["episodes"], result["steps"]) == (20_000, 40_000)
    result = told("record", "sizes_env:SizedLonger-v0", "--policy", "random", "--episodes", 1, "--out", tmp_path / "b")
    assert (result["episodes"], result["steps"]) == (1, 40_000)
    for name, counts in (("a", (20_000, 40_000)), ("b", (1, 40_000))):
        found = told("validate", tmp_path / name, "--deep")
        assert (found["passed"], found["episodes"], found["steps"]) == (True, *counts)


@pytest.mark.usefixtures("sized_envs")
def test_a_policy_is_evaluated_on_a_thousand_short_episodes_and_on_a_long_one(
    written: Write, told: Told, tmp_path: Path
) -> None:
    told("train-bc", written("episodes", 50, 4).path, "--out", tmp_path / "run", *TRAINING)
    many = told("evaluate", tmp_path / "run", "--env", "sizes_env:SizedShort-v0", "--episodes", 1000)
    assert (many["episodes"], many["length_mean"]) == (1000, 2.0)
    long = told("evaluate", tmp_path / "run", "--env", "sizes_env:SizedLong-v0", "--episodes", 1)
    assert (long["episodes"], long["length_mean"]) == (1, 20_000.0)

"""Every command on many short episodes, on long ones, and on several sources at once: counts are the sum of the parts."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from made_recordings import Written

Write = Callable[..., Written]
Told = Callable[..., dict[str, Any]]
SIZES = {"many episodes": (1_000, 2), "one long episode": (1, 20_000)}
PIPELINE = 'kind = "learner"\n[[pieces]]\nname = "mean_std_filter"\n'
TRAINING = ("--updates", 20, "--batch-size", 256, "--device", "cpu")


@pytest.fixture
def pipeline(tmp_path: Path) -> Path:
    """A learner pipeline that learns means of observations."""
    (tmp_path / "pipeline.toml").write_text(PIPELINE, encoding="utf-8")
    return tmp_path / "pipeline.toml"


@pytest.mark.parametrize(("size", "kind"), [("many episodes", "episodes"), ("one long episode", "columns")])
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
    assert told("repair", data).items() >= counted.items()


# ---- several sources ----


@pytest.mark.parametrize("kinds", [("csv", "sample-batch", "episodes")], ids="+".join)
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

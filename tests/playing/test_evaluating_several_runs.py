"""`evaluate` of several policies: the same episodes, and paired differences."""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from edited_json import tell, told_in
from typer.testing import CliRunner

from offline_cli import evaluate
from offline_cli.cli.app import app
from offline_cli.errors import BadConfig, TargetNotMet, UsageError

PLAY: dict[str, Any] = {"env": "CartPole-v1", "episodes": 6, "seed": 3}


@pytest.fixture
def right(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A policy that always pushes to the right."""
    (tmp_path / "pushes_right.py").write_text("def policy(observation):\n    return 1\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    return "python:pushes_right:policy"


def test_differences_are_those_of_the_same_episodes(right: str) -> None:
    found = evaluate(["random", right], **PLAY)
    alone = {name: evaluate(name, **PLAY) for name in ("random", right)}
    assert found.runs == {name: one.as_dict() for name, one in alone.items()}
    assert found.return_mean == alone["random"].return_mean
    told = found.differences[right]
    assert told["value"] == pytest.approx(alone[right].return_mean - alone["random"].return_mean)
    singles = [evaluate(["random", right], **{**PLAY, "episodes": count}).differences[right] for count in (1, 2)]
    assert (singles[0]["low"], singles[0]["high"]) == (None, None)  # one difference has no spread
    first, both = singles[0]["value"], singles[1]["value"]
    pair = np.array([first, 2 * both - first])
    half = 12.706204736174698 * pair.std(ddof=1) / math.sqrt(2)  # Student's t of one degree of freedom
    assert singles[1]["high"] - both == pytest.approx(half)


def test_a_policy_beside_its_like_makes_no_difference(tmp_path: Path, right: str) -> None:
    with pytest.raises(UsageError):
        evaluate([right, right], **PLAY)
    (tmp_path / "also_right.py").write_text("def policy(observation):\n    return 1\n")
    found = evaluate([right, "python:also_right:policy"], **PLAY)
    assert found.differences["python:also_right:policy"] == {"value": 0.0, "low": 0.0, "high": 0.0, "share_higher": 0.0}


def test_runs_in_other_environments_are_refused(run_folder: Callable[..., Path], tmp_path: Path) -> None:
    run, other = run_folder("CartPole-v1"), tmp_path / "other"
    shutil.copytree(run, other)
    described = told_in(run / "policy.json")
    (known,) = described["environments"]
    tell(other / "policy.json", {**described, "environments": [{**known, "kwargs": {"max_episode_steps": 9}}]})
    with pytest.raises(BadConfig) as caught:
        evaluate([str(other), str(run)], **PLAY)
    assert """--env CartPole-v1 --env-kwargs '{"max_episode_steps": 9}'""" in caught.value.fix
    assert caught.value.where == "RUN"


def test_a_gate_is_for_each_run(right: str) -> None:
    with pytest.raises(TargetNotMet) as caught:
        evaluate(["random", right], **PLAY, min_return=12)
    assert right in caught.value.what
    assert set(caught.value.details["runs"]) == {"random", right}


def test_films_of_several_runs_are_refused(right: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError) as caught:
        evaluate(["random", right], **PLAY, video=str(tmp_path / "films"))
    assert caught.value.where == "--video"


def test_the_command_shows_a_row_for_each(right: str, call: Callable[..., tuple[int, dict[str, Any]]]) -> None:
    line = ["evaluate", "random", right, "--env", "CartPole-v1", "--episodes", "3"]
    code, found = call(*line)
    assert code == 0
    assert list(found["differences"]) == [right]
    shown = CliRunner().invoke(app, [*line, "--quiet"]).stdout.splitlines()
    assert [row.split()[0] for row in shown[2:]] == ["random", right]

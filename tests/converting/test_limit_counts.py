"""Under a limit no episode, line or file after the last episode taken is counted."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from offline_cli.converting.convert import ConvertResult, convert

LENGTH, EPISODES = 4, 12
MAPPING = """
action_scale = "env"
[columns]
eps_id = "id"
t = "t"
obs = "x"
actions = "a"
rewards = "r"
terminateds = "end"
"""
OF_EPISODES = ("lost-episode-bad-row", "lost-episode-unreadable", "missing-final-observation")
Cell = tuple[int, int]  # episode and step


def rows_of(bad: set[Cell], short: set[Cell], episodes: int = EPISODES) -> list[str]:
    def row(episode: int, step: int) -> str:
        if (episode, step) in short:
            return f"{episode},{step},0.5"
        x = "oops" if (episode, step) in bad else "0.5"
        return f"{episode},{step},{x},{step % 2},1,{int(step == LENGTH - 1)}"

    return [row(episode, step) for episode in range(episodes) for step in range(LENGTH)]


def counted(folder: Path, rows: list[str], out: str, **options: Any) -> ConvertResult:
    (folder / "mapping.toml").write_text(MAPPING, encoding="utf-8")
    (folder / "log.csv").write_text("\n".join(["id,t,x,a,r,end", *rows]) + "\n", encoding="utf-8")
    return convert(folder / "log.csv", folder / out, mapping=str(folder / "mapping.toml"), **options)


def figures(result: ConvertResult) -> dict[str, Any]:
    return {
        "episodes": result.episodes,
        "steps": result.steps,
        "rows_quarantined": result.rows_quarantined,
        "episodes_lost": result.episodes_lost,
        "assumptions": {kind: result.assumptions.get(kind, 0) for kind in OF_EPISODES},
    }


def line(episode: int, *, ends: bool = True) -> str:
    columns = {"obs": [[0.5]] * 2, "actions": [0, 1], "rewards": [1.0, 1.0], "dones": [False, ends]}
    return json.dumps({"type": "SampleBatch", "eps_id": [episode] * 2, **columns})


@pytest.mark.parametrize(("limit", "last"), [(2, 4)])
def test_episodes_that_bad_lines_of_json_cost_beyond_the_limit_are_not_counted(limit: int, last: int, tmp_path: Path) -> None:
    lines = [line(0), "{broken", line(1), line(2), "{broken", "{broken", line(3), "{broken"]
    results = []
    for name, some, options in (("limited", lines, {"limit": limit}), ("cut", lines[:last], {})):
        (tmp_path / "log.json").write_text("\n".join(some) + "\n", encoding="utf-8")
        found = figures(convert(tmp_path / "log.json", tmp_path / name, on_error="skip", **options))
        results.append({key: value for key, value in found.items() if key != "rows_quarantined"})  # of the block that was read
    assert results[0] == results[1]


def test_a_bad_file_after_the_limit_is_not_counted_and_one_before_it_is(tmp_path: Path) -> None:
    for name, bad in (("a", set[Cell]()), ("b", {(0, 0), (1, 1)})):
        (tmp_path / name).mkdir()
        (tmp_path / name / "log.csv").write_text("\n".join(["id,t,x,a,r,end", *rows_of(bad, set())]), encoding="utf-8")
    (tmp_path / "mapping.toml").write_text(MAPPING, encoding="utf-8")
    options: dict[str, Any] = {"mapping": str(tmp_path / "mapping.toml"), "on_error": "skip", "limit": EPISODES}
    good_first = convert([tmp_path / "a", tmp_path / "b"], tmp_path / "D", **options)
    assert (good_first.episodes, good_first.episodes_lost, good_first.rows_quarantined) == (EPISODES, 0, 0)
    bad_first = convert([tmp_path / "b", tmp_path / "a"], tmp_path / "E", **options)
    assert (bad_first.episodes, bad_first.episodes_lost, bad_first.rows_quarantined) == (EPISODES, 2, 2 * LENGTH)

"""A value that does not fit its space: the message names the episode, its place, and who says the space."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from offline_cli.converting.convert import convert
from offline_cli.errors import SpaceMismatch

MAPPING = """
action_scale = "env"
[columns]
eps_id = "ride"
t = "step"
obs = "x"
actions = "a"
rewards = "r"
terminateds = "end"
[spaces]
action = { type = "Discrete", n = 3 }
"""


def table(folder: Path, *, action: str) -> str:
    """Three episodes of two steps; the last step of the second has this action."""
    rows = [f"{ride},{t},0.5,{action if (ride, t) == ('b', 1) else 1},1,{t}" for ride in "abc" for t in range(2)]
    (folder / "steps.csv").write_text("\n".join(["ride,step,x,a,r,end", *rows]) + "\n", encoding="utf-8")
    return str(folder / "steps.csv")


def mapping(folder: Path, text: str = MAPPING) -> str:
    (folder / "robot.toml").write_text(text, encoding="utf-8")
    return str(folder / "robot.toml")


def test_a_category_that_does_not_exist_is_blamed_on_its_own_episode_and_row_and_not_on_the_first(tmp_path: Path) -> None:
    with pytest.raises(SpaceMismatch, match=r"actions.*7") as caught:
        convert(table(tmp_path, action="7"), tmp_path / "out", mapping=mapping(tmp_path))
    assert caught.value.where.endswith("-b, step 1")
    assert "steps.csv line 5" in caught.value.where


def test_a_value_outside_the_environment_s_choices_is_blamed_on_its_own_episode(tmp_path: Path) -> None:
    steps = pa.table(
        {
            "eps_id": list("aabbcc"),
            "t": [0, 1] * 3,
            "obs": pa.array([[0.1] * 4] * 6, pa.list_(pa.float32())),
            "actions": [1, 1, 1, 0, 1, 2],
            "rewards": [1.0] * 6,
            "terminateds": [False, True] * 3,
        }
    )
    pq.write_table(steps, tmp_path / "steps.parquet")
    with pytest.raises(SpaceMismatch, match="--env CartPole-v1") as caught:
        convert(tmp_path / "steps.parquet", tmp_path / "out", env="CartPole-v1")
    assert caught.value.where.endswith("episode c, step 1")

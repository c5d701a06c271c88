"""Mappings beyond `convert`: every command that reads tables, dicts in Python, and the names of elements."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import offline_cli
from offline_cli.errors import BadMapping, UsageError

Call = Callable[..., Any]

MAPPING: dict[str, Any] = {
    "action_scale": "env",
    "columns": {"eps_id": "run", "t": "k", "obs": ("joint_a", "joint_b"), "actions": ["turn"], "rewards": "r"},
}
TOML = """action_scale = "env"
[columns]
eps_id = "run"
t = "k"
obs = ["joint_a", "joint_b"]
actions = ["turn"]
rewards = "r"
"""


@pytest.fixture
def robot(tmp_path: Path) -> Path:
    """A table of four episodes."""
    rows = [f"{e},{t},{t / 10},{e + t / 20},{t / 30 - 0.1},1" for e in range(4) for t in range(5)]
    (tmp_path / "robot.csv").write_text("run,k,joint_a,joint_b,turn,r\n" + "\n".join(rows) + "\n", encoding="utf-8")
    (tmp_path / "robot.toml").write_text(TOML, encoding="utf-8")
    return tmp_path / "robot.csv"


def test_train_bc_takes_a_table_with_its_mapping_and_resumes_with_it(call_json: Call, robot: Path, tmp_path: Path) -> None:
    mapping = ("--mapping", tmp_path / "robot.toml")
    command = ("train-bc", robot, "--out", tmp_path / "run", "--batch-size", "4")
    code, told = call_json(*command, *mapping, "--updates", "2")
    assert (code, told["episodes"], told["steps"]) == (0, 4, 20)
    code, told = call_json(*command, *mapping, "--updates", "3", "--resume")
    assert (code, told["updates"]) == (0, 3)
    (tmp_path / "robot.toml").write_text(TOML.replace('["joint_a", "joint_b"]', '["joint_b", "joint_a"]'), encoding="utf-8")
    code, told = call_json(*command, *mapping, "--updates", "4", "--resume")
    assert code == 4, told
    code, told = call_json(*command, "--updates", "4", "--resume")
    assert (code, told["error"]["code"]) == (4, "bad-mapping")


def test_a_dict_is_a_mapping_wherever_one_is_taken(robot: Path, tmp_path: Path) -> None:
    (tmp_path / "p.toml").write_text('kind = "learner"\n', encoding="utf-8")
    assert offline_cli.convert(robot, tmp_path / "A", mapping=MAPPING).episodes == 4
    assert offline_cli.inspect(robot, mapping=MAPPING).episodes == 4
    assert offline_cli.validate(robot, mapping=MAPPING).passed
    assert offline_cli.train_bc(robot, tmp_path / "run", mapping=MAPPING, updates=1).steps == 20
    applied = offline_cli.apply(robot, str(tmp_path / "B"), pipeline=tmp_path / "p.toml", mapping=MAPPING)
    assert applied.as_dict()["rows"] == 20
    assert offline_cli.convert(robot, tmp_path / "C", mapping=tmp_path / "robot.toml").episodes == 4
    manifests = [json.loads((tmp_path / name / "manifest.json").read_text(encoding="utf-8")) for name in "AC"]
    assert manifests[0]["shards"] == manifests[1]["shards"]
    assert manifests[0]["provenance"]["mappings"] == manifests[1]["provenance"]["mappings"]


def test_a_dict_is_checked_as_a_file_is(robot: Path, tmp_path: Path) -> None:
    wrong = {"columns": {"obs": ["joint_a"], "acton": "turn"}, "unmaped": "drop", "fill": {"joint_a": [1]}}
    with pytest.raises(BadMapping) as caught:
        offline_cli.convert(robot, tmp_path / "A", mapping=wrong)
    told = "\n".join(caught.value.details["problems"])
    assert all(key in told for key in ("'acton'", "'unmaped'", "fill.joint_a"))
    with pytest.raises(BadMapping):
        offline_cli.convert(robot, tmp_path / "A", mapping={"columns": {3: "x"}})
    with pytest.raises(UsageError, match="--mapping"):
        offline_cli.convert(robot, tmp_path / "A", mapping=["joint_a"])  # type: ignore[arg-type]


# ---- names of elements ----


def test_messages_about_elements_say_the_columns_of_a_table(call_json: Call, robot: Path, tmp_path: Path) -> None:
    lines = robot.read_text(encoding="utf-8").splitlines()
    cells = lines[3].split(",")
    lines[3] = ",".join([*cells[:3], "nan", *cells[4:]])
    robot.write_text("\n".join(lines) + "\n", encoding="utf-8")
    space = '[spaces]\naction = {type = "Box", shape = [1], dtype = "float64", low = -0.1, high = 0.0}\n'
    (tmp_path / "robot.toml").write_text(TOML + space, encoding="utf-8")
    mapping = ("--mapping", tmp_path / "robot.toml")
    assert call_json("convert", robot, "--out", tmp_path / "D", *mapping)[0] == 0
    for source in ((robot, *mapping), (tmp_path / "D",)):
        problems = call_json("validate", *source)[1]["problems"]
        found = {problem["code"]: problem["details"]["places"] for problem in problems}
        assert found["nan-in-observations"][0].endswith("step 2: joint_b is nan")
        assert ": turn is 0." in found["action-outside-space"][0]
        code, told = call_json("train-bc", *source, "--out", tmp_path / "run", "--updates", "1")
        assert code == 3
        assert told["error"]["what"].endswith("step 2, column joint_b")
        meanings = call_json("inspect", *source)[1]["meanings"]
        assert meanings == {"obs": [{"name": "joint_a"}, {"name": "joint_b"}], "actions": [{"name": "turn"}]}


# ---- dates ----


def test_dates_in_the_usual_forms_order_rows_and_are_observations_in_microseconds(tmp_path: Path) -> None:
    stamps = ["2024-03-01", "2024-03-01 12:00:00", "2024-03-01T12:30Z", "2024-03-01 13:00:00 UTC", "2024/03/01 15:00:00+01:30"]
    source = tmp_path / "log.csv"
    rows = [f"A,{stamp},{i},1" for i, stamp in enumerate(stamps)]
    source.write_text("e,when,x,a\n" + "\n".join(reversed(rows)) + "\n", encoding="utf-8")
    columns = {"eps_id": "e", "t": "when", "obs": {"x": "x", "when": "when"}, "actions": "a"}
    offline_cli.convert(source, tmp_path / "D", mapping={"columns": columns, "extra": {"stamp": "when"}})
    (batch,) = _batches(tmp_path / "D")
    assert batch.obs["x"][:5].tolist() == [0, 1, 2, 3, 4]
    day = 1_709_251_200_000_000
    hours = [0, 12, 12.5, 13, 13.5]
    assert batch.extra["stamp"].tolist() == [day + int(hour * 3.6e9) for hour in hours]
    assert batch.obs["when"][:5].tolist() == batch.extra["stamp"].tolist()


def _batches(folder: Path) -> list[Any]:
    from offline_cli.datasets.dataset import Dataset

    return list(Dataset.open(str(folder)).batches())


@pytest.mark.parametrize("role", ["t", "obs"])
def test_a_date_that_may_begin_with_the_day_or_the_month_is_refused(role: str, call_json: Call, tmp_path: Path) -> None:
    source = tmp_path / "log.csv"
    source.write_text("e,when,x,a\nA,01/03/2024,1,1\nA,02/03/2024,2,1\n", encoding="utf-8")
    columns = '[columns]\neps_id = "e"\nactions = "a"\n' + ('t = "when"\nobs = "x"\n' if role == "t" else 'obs = "when"\n')
    (tmp_path / "m.toml").write_text(columns, encoding="utf-8")
    code, told = call_json("convert", source, "--out", tmp_path / "D", "--mapping", tmp_path / "m.toml")
    assert code == 4
    assert "such as 2024-03-01" in told["error"]["what"] or "'01/03/2024'" in told["error"]["what"]


def test_a_category_that_does_not_exist_is_named_by_its_column(call_json: Call, robot: Path, tmp_path: Path) -> None:
    robot.write_text("run,k,joint_a,joint_b,turn,lift,r\nA,0,1,1,0,1,1\nA,1,1,1,1,5,1\n", encoding="utf-8")
    space = '[spaces]\naction = {type = "MultiDiscrete", nvec = [2, 2]}\n'
    (tmp_path / "robot.toml").write_text(TOML.replace('["turn"]', '["turn", "lift"]') + space, encoding="utf-8")
    code, told = call_json("convert", robot, "--out", tmp_path / "D", "--mapping", tmp_path / "robot.toml")
    assert code == 4
    assert "actions holds 5, which is not a category, column lift;" in told["error"]["what"]


@pytest.mark.parametrize("command", ["merge", "train-bc"])
def test_a_mapping_is_for_the_tables_among_the_sources(call_json: Call, robot: Path, tmp_path: Path, command: str) -> None:
    rows = "".join(f"{e},{t},{t},{e},0.5,1\n" for e in range(7, 9) for t in range(3))
    (tmp_path / "later.csv").write_text("run,k,joint_a,joint_b,turn,r\n" + rows, encoding="utf-8")
    assert offline_cli.convert(robot, tmp_path / "D", mapping=MAPPING).episodes == 4
    mapping = ("--mapping", tmp_path / "robot.toml")
    more = {"train-bc": ["--updates", "1"]}.get(command, [])
    code, told = call_json(command, tmp_path / "D", tmp_path / "later.csv", "--out", tmp_path / "out", *mapping, *more)
    assert (code, told.get("episodes")) == (0, 6), told
    code, told = call_json(command, tmp_path / "D", "--out", tmp_path / "other", *mapping, *more)
    assert (code, told["error"]["what"]) == (2, "--mapping is for tables, but there is none")

"""What validate says of clean data, of real recordings and of several sources, and how it says it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from offline_cli.checking.validate import CODES, Validation, validate
from offline_cli.converting.convert import convert
from offline_cli.errors import NoData, StorageNotFound, UnknownEnvironment, UsageError

Make = Any  # the fixture's class, which lives in conftest.py


def codes(found: Validation) -> list[str]:
    return [problem.code for problem in found.problems]


def severities(found: Validation) -> dict[str, str]:
    return {problem.code: problem.severity for problem in found.problems}


# ---- clean data ----


@pytest.mark.parametrize("format", ["episodes", "columns"])
def test_a_clean_dataset_has_no_problem_at_all(format: str, make: Make) -> None:
    found = validate(make.dataset(format=format), deep=True, strict=True)
    assert found.problems == ()
    assert (found.passed, found.formats, found.episodes, found.steps) == (True, (format,), 3, 12)


# ---- severities ----


def test_a_box_action_outside_its_space_is_an_error_at_the_scale_of_the_environment_only(make: Make) -> None:
    actions = np.linspace(-2.5, 2.5, 12, dtype=np.float32)[:, None]
    items = make.items(make.packed(make.batch(boxes=True, actions=actions)))
    assert severities(validate(items))["action-outside-space"] == "warning"
    assert severities(validate(items, action_scale="env"))["action-outside-space"] == "error"
    assert severities(validate(make.dataset(make.batch(boxes=True, actions=actions))))["action-outside-space"] == "error"


def test_normalized_actions_are_held_against_one_and_not_against_the_environments_bounds(make: Make) -> None:
    actions = np.linspace(-1.5, 1.5, 12, dtype=np.float32)[:, None]
    items = make.items(make.packed(make.batch(boxes=True, actions=actions)))
    assert "action-outside-space" not in codes(validate(items))
    problem = validate(items, action_scale="normalized").problems[0]
    assert (problem.code, problem.severity, problem.count) == ("action-outside-space", "warning", 4)


def test_what_reading_assumed_of_a_source_is_a_warning_of_its_dataset_too(make: Make, tmp_path: Path) -> None:
    source = make.rows({name: values for name, values in make.columns().items() if name != "new_obs"})
    convert(source, tmp_path / "D", action_scale="env")
    of_source, of_dataset = validate(source, strict=True), validate(tmp_path / "D", strict=True)
    assert (severities(of_source)["missing-final-observation"], of_source.passed) == ("warning", False)
    assert (severities(of_dataset)["missing-final-observation"], of_dataset.passed) == ("warning", False)
    assert of_dataset.problems[0].details["inherited"] == of_source.problems[0].count


# ---- what is told ----


def test_a_problem_says_where_it_is_how_often_and_what_to_do(make: Make) -> None:
    rewards = np.zeros(12)
    rewards[[5, 9]] = np.nan
    folder = make.dataset(make.batch(rewards=rewards))
    problem = next(p for p in validate(folder).problems if p.code == "nan-in-rewards")
    assert problem.where == f"{folder}, episode e1, step 1: rewards is nan"
    assert problem.fix == CODES["nan-in-rewards"].fix
    assert problem.details["places"][1] == f"{folder}, episode e2, step 2: rewards is nan"


def test_the_result_is_plain_json(make: Make) -> None:
    told = validate(make.items(make.packed(make.batch(ids=("e0", "e1", "e0"))))).as_dict()
    assert json.loads(json.dumps(told, allow_nan=False)) == told
    assert {"code", "severity", "where", "what", "fix", "count"} <= told["problems"][0].keys()
    assert (told["errors"], told["warnings"], told["notes"], told["passed"]) == (1, 0, 0, False)


# ---- several sources ----


def test_a_source_that_cannot_be_opened_does_not_keep_others_from_being_looked_at(make: Make) -> None:
    empty = make.path()
    empty.mkdir()
    found = validate([empty, make.dataset()])
    assert ([p.code for p in found.problems], found.episodes) == (["unreadable-source"], 3)


# ---- refusals ----


def test_wrong_usage_is_refused_and_not_reported(make: Make, tmp_path: Path) -> None:
    for call, error in (
        (lambda: validate(tmp_path / "nowhere"), StorageNotFound),
        (lambda: validate([]), NoData),
        (lambda: validate(make.dataset(), from_="columns"), UsageError),
        (lambda: validate(make.dataset(), env="Nothing-v0"), UnknownEnvironment),
        (lambda: validate(make.dataset(), action_scale="big"), UsageError),
        (lambda: validate(make.dataset(make.batch(boxes=True)), action_scale="normalized"), UsageError),
    ):
        with pytest.raises(error):
            call()


def test_the_remedy_for_a_lost_shard_names_the_dataset(make: Make) -> None:
    folder = make.dataset()
    next((folder / "data").iterdir()).unlink()
    assert f"repair {folder} --drop-broken" in validate(folder).problems[0].fix


# ---- hostile folders ----


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("no JSON", "{"),
        ("deep", "[" * 5000),
        ("another version", '{"version": 99}'),
        ("no text", "\udcff"),
    ],
)
def test_a_hostile_manifest_is_reported_by_name(name: str, text: str, make: Make) -> None:
    folder = make.dataset()
    (folder / "manifest.json").write_bytes(text.encode("utf-8", "surrogateescape"))
    assert codes(validate(folder)) == ["broken-manifest"]


# ---- tables ----


def table(make: Make, *, drop: tuple[int, ...] = (), **changes: Any) -> dict[str, Any]:
    """A CSV file with a mapping, as the arguments of `validate`: rows left out, cells changed by column and row."""
    columns = make.columns(make.batch((4, 3)))
    cells = {"ride": columns["eps_id"], "step": columns["t"], "a": columns["actions"], "r": columns["rewards"]}
    cells |= {f"{name}{i}": columns[name][:, i] for name in ("obs", "new_obs") for i in range(3)}
    cells |= {"d": columns["terminateds"].astype(int)}
    rows = [list(map(str, row)) for row in zip(*cells.values(), strict=True)]
    for name, (row, value) in changes.items():
        rows[row][list(cells).index(name)] = value
    file, mapping = make.path(".csv"), make.path(".toml")
    lines = [",".join(cells), *(",".join(row) for number, row in enumerate(rows) if number not in drop)]
    file.write_text("\n".join(lines) + "\n", encoding="utf-8")
    vectors = "".join(f'{name} = ["{name}0", "{name}1", "{name}2"]\n' for name in ("obs", "new_obs"))
    names = 'eps_id = "ride"\nt = "step"\nactions = "a"\nrewards = "r"\nterminateds = "d"\n'
    mapping.write_text(f"[columns]\n{names}{vectors}", encoding="utf-8")
    return {"sources": file, "mapping": str(mapping)}


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, {}),
        ({"obs1": (2, "east")}, {"unreadable-row": "error"}),
        ({"r": (2, "nan")}, {"nan-in-rewards": "error"}),
        ({"d": (1, "1")}, {"steps-after-end": "error"}),
        ({"d": (6, "0")}, {"unfinished-episode": "warning"}),
        ({"new_obs0": (0, "0.25")}, {"broken-chain": "warning"}),
        ({"step": (1, "0")}, {"conflicting-episode": "error"}),
        ({"drop": (1,)}, {"gap-in-episode": "warning", "broken-chain": "warning"}),
    ],
)
def test_a_table_has_exactly_the_problems_that_it_was_made_with(
    changes: dict[str, Any], expected: dict[str, str], make: Make
) -> None:
    told = severities(validate(**table(make, **changes)))
    assert {code: severity for code, severity in told.items() if severity != "note"} == expected


@pytest.mark.parametrize(
    "changes",
    [
        {"d": (6, "0")},
        {"new_obs0": (0, "0.25")},
        {"drop": (1,)},
    ],
    ids=str,
)
@pytest.mark.parametrize("to", ["columns"])
def test_a_dataset_made_of_a_table_has_the_warnings_of_the_table(
    changes: dict[str, Any], to: str, make: Make, tmp_path: Path
) -> None:
    def warnings(**given: Any) -> dict[str, tuple[str, int]]:
        found = validate(**given, strict=True)
        assert not found.passed
        return {one.code: (one.severity, one.count) for one in found.problems if one.severity != "note"}

    given = table(make, **changes)
    convert(**given, out=tmp_path / "D", to=to)
    assert warnings(sources=tmp_path / "D", deep=True) == warnings(**given)

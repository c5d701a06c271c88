"""What validate says of clean data, of real recordings and of several sources, and how it says it."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from offline_cli.checking.validate import CODES, Validation, validate
from offline_cli.converting.convert import convert
from offline_cli.datasets.dataset import Dataset
from offline_cli.datasets.writer import DatasetWriter
from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.episodes.single_agent_episode import SingleAgentEpisode
from offline_cli.errors import InvalidData, NoData, StorageNotFound, UnknownEnvironment, UsageError
from offline_cli.files.locations import open_location
from offline_cli.progress import Progress

Make = Any  # the fixture's class, which lives in conftest.py

REAL = {
    "rllib_columns_cartpole_expert": {"duplicate-episode": (25, "warning")},
    "rllib_episodes_pendulum": {"action-outside-space": (172, "warning")},
    "sample_batch_cartpole_lz4": {"unfinished-episode": (1, "warning")},
    "rllib_columns_cartpole_plain": {},
    "rllib_columns_dict_flattened": {},
    "rllib_columns_pendulum_plain": {},
    "rllib_episodes_cartpole_expert": {},
    "rllib_episodes_cartpole_lstm": {},
    "rllib_episodes_dict_flattened": {},
    "rllib_episodes_frozenlake": {},
    "sample_batch_cartpole_plain": {},
    "sample_batch_pendulum_lz4": {},
    "sample_batch_pendulum_trunc": {},
}
"""Errors and warnings, by code."""


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


def test_clean_packed_episodes_have_no_problem_at_all(make: Make) -> None:
    assert validate(make.items(make.packed())).problems == ()


def test_clean_rows_of_steps_only_lack_spaces(make: Make) -> None:
    assert codes(validate(make.rows(make.columns()))) == ["spaces-inferred"]
    assert codes(validate(make.rows(make.columns(t=False)))) == ["spaces-inferred"]


def test_clean_lines_only_lack_spaces_and_dtypes(make: Make) -> None:
    assert codes(validate(make.lines(make.columns()))) == ["spaces-inferred", "assumption"]


@pytest.mark.parametrize("folder", REAL)
def test_a_recording_by_rllib_has_exactly_its_known_problems(folder: str, real_data: Path) -> None:
    found = validate(real_data / folder)
    told = {p.code: (p.count, p.severity) for p in found.problems if p.severity != "note"}
    assert told == REAL[folder]
    assert found.passed


@pytest.mark.parametrize("folder", REAL)
@pytest.mark.parametrize("to", ["episodes", "columns"])
def test_what_convert_makes_of_a_recording_is_valid(folder: str, to: str, real_data: Path, tmp_path: Path) -> None:
    convert(str(real_data / folder), str(tmp_path / "D"), to=to)
    told = {p.code: (p.count, p.severity) for p in validate(tmp_path / "D", deep=True).problems if p.severity != "note"}
    assert told == {code: found for code, found in REAL[folder].items() if code != "duplicate-episode"}


def test_the_steps_that_are_counted_are_those_of_whole_episodes(real_data: Path) -> None:
    found = validate(real_data / "rllib_columns_cartpole_expert")
    assert (found.episodes, found.rows) == (50, 35817)


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


def test_a_hint_about_actions_outside_their_space_never_says_what_is_so_already(make: Make) -> None:
    actions = np.linspace(-2.5, 2.5, 12, dtype=np.float32)[:, None]
    items = make.items(make.packed(make.batch(boxes=True, actions=actions)))
    dataset = make.dataset(make.batch(boxes=True, actions=actions))

    def hint(source: Path, **options: str) -> str:
        (problem,) = [one for one in validate(source, **options).problems if one.code == "action-outside-space"]  # type: ignore[arg-type]
        return problem.fix

    assert "--action-scale normalized" in hint(items)
    assert "--action-scale env in place of normalized" in hint(items, action_scale="normalized")
    assert "--action-scale normalized in place of env" in hint(items, action_scale="env")
    assert "--action-scale" not in hint(dataset)  # its manifest says env, which no option can change


def test_a_hint_about_the_space_knows_of_the_environment_that_was_named(make: Make) -> None:
    items = make.items(make.packed(make.batch(obs=np.full((15, 4), 9.0, np.float32), actions=np.arange(12) % 2)))
    wide = make.items(make.packed(make.batch(boxes=True)))
    outside = validate(items, env="CartPole-v1")
    (problem,) = [one for one in outside.problems if one.code == "observation-outside-space"]
    assert problem.fix == "correct the values, or name the environment that they are from in place of --env CartPole-v1"
    (mismatch,) = [one for one in validate(wide, env="CartPole-v1").problems if one.code == "space-mismatch"]
    assert mismatch.fix == "name the environment that was recorded in place of --env CartPole-v1"


@pytest.mark.parametrize(("fields", "code"), [("actions", "action-outside-space"), ("obs", "observation-outside-space")])
def test_a_category_that_does_not_exist_is_an_error(fields: str, code: str, make: Make) -> None:
    from gymnasium import spaces

    values = {"actions": np.arange(12) % 4, "obs": np.arange(15) % 4}
    batch = make.batch(observation_space=spaces.Discrete(3) if fields == "obs" else None, **{fields: values[fields]})
    assert severities(validate(make.items(make.packed(batch))))[code] == "error"


def test_floats_in_place_of_categories_are_a_warning_and_narrower_integers_a_note(make: Make) -> None:
    floats = make.items(make.packed(make.batch(actions=np.arange(12) % 3.0)))
    narrow = make.items(make.packed(make.batch(actions=(np.arange(12) % 3).astype(np.int8))))
    assert severities(validate(floats)) == {"dtype-differs": "warning"}
    assert severities(validate(narrow)) == {"dtype-differs": "note"}


def test_strict_fails_on_warnings_and_not_on_notes(make: Make, real_data: Path) -> None:
    warned = real_data / "sample_batch_cartpole_lz4"
    assert validate(warned).passed
    assert not validate(warned, strict=True).passed
    assert validate(make.rows(make.columns()), strict=True).passed


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
    assert problem.what == "2 of 12 rewards: NaN"
    assert problem.fix == CODES["nan-in-rewards"].fix
    assert problem.details["places"][1] == f"{folder}, episode e2, step 2: rewards is nan"


def test_the_first_ten_places_are_kept_and_all_are_counted(make: Make) -> None:
    problem = validate(make.dataset(make.batch(rewards=np.full(12, np.inf)))).problems[0]
    assert (problem.count, len(problem.details["places"])) == (12, 10)


def test_the_element_of_a_nested_observation_is_named(make: Make) -> None:
    from gymnasium import spaces

    space = spaces.Dict(cam=spaces.Box(0, 255, (2, 2), np.uint8), arm=spaces.Box(-1, 1, (2,), np.float32))
    rng = np.random.default_rng(0)
    obs = {"cam": rng.integers(0, 255, (15, 2, 2)).astype(np.uint8), "arm": rng.uniform(-1, 1, (15, 2)).astype(np.float32)}
    obs["arm"][6, 1] = 3
    problem = validate(make.dataset(make.batch(obs=obs, observation_space=space))).problems[0]
    assert problem.where.endswith("episode e1, step 1: obs.arm[1] is 3.0")


def test_rows_that_cannot_be_read_are_counted_with_what_is_wrong_with_the_first(make: Make) -> None:
    items = make.packed()
    folder = make.items([items[0], b"\xc1", items[1]], [b"text", items[2]])
    problem = validate(folder).problems[0]
    assert (problem.code, problem.count) == ("unreadable-row", 2)
    assert problem.where == f"{folder}/part-0.parquet row 1"
    assert problem.details["places"][1] == f"{folder}/part-1.parquet row 0"


def test_the_result_is_plain_json(make: Make) -> None:
    told = validate(make.items(make.packed(make.batch(ids=("e0", "e1", "e0"))))).as_dict()
    assert json.loads(json.dumps(told, allow_nan=False)) == told
    assert {"code", "severity", "where", "what", "fix", "count"} <= told["problems"][0].keys()
    assert (told["errors"], told["warnings"], told["notes"], told["passed"]) == (1, 0, 0, False)


def test_check_raises_with_the_worst_problem_and_carries_all_of_them(make: Make) -> None:
    items = make.packed(make.batch(ids=("e0", "e1", "e0"), truncated=np.array([False, True, False])))
    with pytest.raises(InvalidData, match="conflicting-episode: 1 episode") as caught:
        validate(make.items(items)).check()
    assert [p["code"] for p in caught.value.result["problems"]] == ["conflicting-episode", "both-flags"]
    validate(make.dataset()).check()


def test_hashes_that_were_not_compared_are_counted(make: Make) -> None:
    folder = make.dataset()
    assert (validate(folder).hashes_unchecked, validate(folder, deep=True).hashes_unchecked) == (0, 0)
    (shard,) = (folder / "data").iterdir()
    shard.write_bytes(shard.read_bytes() + b"more")
    assert (validate(folder).hashes_unchecked, validate(folder, deep=True).hashes_unchecked) == (1, 1)


def test_progress_is_reported(make: Make) -> None:
    seen: list[Progress] = []
    validate(make.dataset(), deep=True, on_progress=seen.append)
    assert {report.stage for report in seen} == {"hashing", "reading"}


# ---- several sources ----


def test_each_source_has_its_own_entry_of_a_problem(make: Make) -> None:
    both = np.array([True, False, False])
    one, clean = make.dataset(make.batch(truncated=both)), make.dataset(make.batch(ids=("a", "b", "c")))
    other = make.dataset(make.batch(ids=("f", "g", "h"), truncated=both))
    found = validate([one, clean, other])
    assert [(p.source, p.code, p.count) for p in found.problems] == [(str(one), "both-flags", 1), (str(other), "both-flags", 1)]
    assert (found.sources, found.episodes) == ((str(one), str(clean), str(other)), 9)


def test_an_episode_may_lie_across_sources(make: Make) -> None:
    columns = {name: np.array(values) for name, values in make.columns(make.batch((4,))).items()}
    parts = [make.rows({name: values[rows] for name, values in columns.items()}) for rows in (slice(2), slice(2, None))]
    assert codes(validate(parts)) == ["spaces-inferred"]
    assert codes(validate(parts[0])) == ["unfinished-episode", "spaces-inferred"]


def test_an_unfinished_episode_is_told_of_the_source_that_it_began_in(make: Make) -> None:
    open_end = make.items(make.packed(make.batch((2,), ids=("open",), terminated=np.array([False]))))
    found = validate([open_end, make.dataset()])
    assert [(p.source, p.code) for p in found.problems] == [(str(open_end), "unfinished-episode")]


def test_two_datasets_with_unfinished_episodes_are_each_held_against_their_own_manifest(make: Make) -> None:
    ends = np.array([True, True, False])
    folders = [make.dataset(make.batch(ids=names, terminated=ends)) for names in (("a", "b", "c"), ("d", "e", "f"))]
    assert [p.code for p in validate(folders).problems] == ["unfinished-episode"] * 2


def test_a_source_that_cannot_be_opened_does_not_keep_others_from_being_looked_at(make: Make) -> None:
    empty = make.path()
    empty.mkdir()
    found = validate([empty, make.dataset()])
    assert ([p.code for p in found.problems], found.episodes) == (["unreadable-source"], 3)


def test_a_dataset_behind_a_url_is_validated_too(make: Make) -> None:
    folder = make.dataset(format="columns")
    place = open_location(f"memory://{folder.name}-of-validate")
    for file in folder.rglob("*"):
        if file.is_file():
            place.fs.pipe_file(f"{place.path}/{file.relative_to(folder).as_posix()}", file.read_bytes())
    try:
        assert validate(place, deep=True).problems == ()
        place.fs.pipe_file(f"{place.path}/data/more.parquet", b"PAR1")
        assert codes(validate(place)) == ["unlisted-file"]
    finally:
        place.fs.rm(place.path, recursive=True)


def test_many_conflicts_are_all_counted(make: Make) -> None:
    batch = make.batch((1,) * 300)
    names = [f"e{i % 150}" for i in range(300)]
    problem = validate(make.items(make.packed(replace(batch, ids=tuple(names))))).problems[0]
    assert (problem.code, problem.count, len(problem.details["places"])) == ("conflicting-episode", 150, 10)


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


def test_nothing_is_written(make: Make) -> None:
    folder = make.dataset()
    before = {file: file.read_bytes() for file in folder.rglob("*") if file.is_file()}
    validate(folder, deep=True)
    assert {file: file.read_bytes() for file in folder.rglob("*") if file.is_file()} == before


# ---- hostile folders ----


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("no JSON", "{"),
        ("deep", "[" * 5000),
        ("a list", "[]"),
        ("another version", '{"version": 99}'),
        ("NaN", '{"format": NaN}'),
        ("no text", "\udcff"),
    ],
)
def test_a_hostile_manifest_is_reported_by_name(name: str, text: str, make: Make) -> None:
    folder = make.dataset()
    (folder / "manifest.json").write_bytes(text.encode("utf-8", "surrogateescape"))
    assert codes(validate(folder)) == ["broken-manifest"]


@pytest.mark.parametrize("figures", [{"mean": "x"}, {"mean": [[1], 2]}, {"min": {"a": 1}}, {}])
def test_figures_of_any_form_in_a_manifest_are_no_crash(figures: dict[str, Any], make: Make) -> None:
    def change(found: dict[str, Any]) -> None:
        found["statistics"]["columns"]["rewards"].update(figures)
        found["statistics"]["columns"].pop("actions")

    found = validate(make.edit_manifest(make.dataset(), change))
    assert codes(found) in (["statistics-mismatch"], ["broken-manifest"])


def test_every_byte_of_a_shard_may_change_and_deep_sees_it(make: Make) -> None:
    folder = make.dataset()
    shard = next((folder / "data").iterdir())
    whole = shard.read_bytes()
    for at in range(0, len(whole), 97):
        shard.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        assert codes(validate(folder, deep=True)) == ["shard-hash"]
        _ends_with(lambda: validate(folder))


def test_a_damaged_shard_of_a_dataset_is_to_be_left_out_by_repair(make: Make) -> None:
    """Not by `convert --on-error skip`, which reads no dataset that its manifest contradicts; nor by `validate` once more."""
    folder = make.dataset()
    shard = next((folder / "data").iterdir())
    content = bytearray(shard.read_bytes())
    content[len(content) // 3] ^= 1
    shard.write_bytes(content)
    (found,) = (problem for problem in validate(folder).problems if problem.severity == "error")
    assert found.code == "shard-hash"
    assert "repair" in found.fix
    assert "--drop-broken" in found.fix
    assert "--on-error" not in found.fix
    assert "validate names" not in found.fix


def _ends_with(call: Callable[[], Validation]) -> None:
    """Whatever bytes a shard has, validate gives a result."""
    assert isinstance(call(), Validation)


def test_a_dataset_is_read_as_its_own_reader_reads_it(make: Make) -> None:
    folder = make.dataset(format="columns")
    assert validate(folder).steps == sum(batch.num_steps for batch in Dataset.open(folder).batches())


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
        {"d": (3, "0"), "drop": (6,)},
        {"new_obs0": (0, "0.25")},
        {"drop": (1,)},
        {"step": (3, "9")},
    ],
    ids=str,
)
@pytest.mark.parametrize("to", ["episodes", "columns"])
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


def test_warnings_that_a_dataset_inherited_leave_its_figures_to_be_compared(make: Make, tmp_path: Path) -> None:
    convert(**table(make, d=(6, "0")), out=tmp_path / "D")
    file = tmp_path / "D" / "manifest.json"
    document = json.loads(file.read_text(encoding="utf-8"))
    document["counts"]["terminated"] += 1
    file.write_text(json.dumps(document), encoding="utf-8")
    assert {"count-mismatch", "unfinished-episode"} <= set(codes(validate(tmp_path / "D")))


def test_a_problem_of_a_table_names_the_row_that_has_it(make: Make) -> None:
    given = table(make, drop=(1,), d=(6, "0"))
    told = {problem.code: problem for problem in validate(**given).problems}
    assert told["gap-in-episode"].where.startswith(f"{given['sources']} row 1, episode ")
    assert told["unfinished-episode"].where.startswith(f"{given['sources']} row 5, episode ")
    assert [len(told[code].details["episodes"]) for code in ("gap-in-episode", "unfinished-episode")] == [1, 1]


def test_a_problem_of_a_table_names_its_file(make: Make) -> None:
    given = table(make, new_obs0=(0, "0.25"), d=(6, "0"))
    for problem in validate(**given).problems:
        assert problem.where.startswith(str(given["sources"]))


def test_an_agent_twice_in_one_game_and_an_agent_of_two_modules_are_found(tmp_path: Path) -> None:
    def episode(number: int, agent: str, module: str, game: str) -> SingleAgentEpisode:
        ids = {"id_": f"episode-{number}", "agent_id": agent, "module_id": module, "multi_agent_episode_id": game}
        return SingleAgentEpisode(
            len_lookback_buffer=0, observations=[0, 1], actions=[0], rewards=[1.0], terminated=True, **ids
        )

    told = [("a", "m", "g"), ("b", "m", "g"), ("a", "m", "g"), ("a", "n", "h")]
    with DatasetWriter(tmp_path / "D", observation_space=None, action_space=None) as writer:
        writer.write(EpisodeBatch.from_episodes([episode(number, *ids) for number, ids in enumerate(told)]))
        writer.commit()
    found = validate(tmp_path / "D")
    counts = {problem.code: (problem.severity, problem.count) for problem in found.problems}
    assert counts.get("agent-twice") == ("warning", 1)
    assert counts.get("agent-of-two-modules") == ("note", 1)
    assert found.as_dict()["agents"] == {"a": 3, "b": 1}
    assert found.as_dict()["modules"] == {"m": 3, "n": 1}

"""Hints recommend what the command at hand has, and lists say what they leave out."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Call = Callable[..., Any]
MAPPING = '[columns]\neps_id = "e"\nobs = "x"\nactions = "a"\nrewards = "r"\nterminateds = "end"\n'


def table(folder: Path, *broken: str) -> list[str]:
    """Twelve good episodes of two steps, and these rows after the first row; what a command needs to read them."""
    good = [f"{episode},0.5,{step},1,{step}" for episode in range(12) for step in range(2)]
    (folder / "log.csv").write_text("\n".join(["e,x,a,r,end", good[0], *broken, *good[1:]]) + "\n", encoding="utf-8")
    (folder / "robot.toml").write_text(MAPPING, encoding="utf-8")
    return [str(folder / "log.csv"), "--mapping", str(folder / "robot.toml")]


def test_validate_has_no_on_error_and_sends_to_convert(call: Call, tmp_path: Path) -> None:
    done = call("validate", *table(tmp_path, "0,oops,0,1,0"))
    assert done.exit_code == 3
    for told in (done.stdout, done.stderr):
        assert "or convert with --on-error skip" in told
        assert told.count("--on-error") == told.count("convert with --on-error")


def test_train_bc_has_no_on_error_and_sends_to_convert(call: Call, tmp_path: Path) -> None:
    rows = "eps_id,obs,actions,rewards,terminateds\na,0.5,0,1,0\na,oops,1,1,1\n"
    (tmp_path / "log.csv").write_text(rows, encoding="utf-8")
    done = call("train-bc", tmp_path / "log.csv", "--out", tmp_path / "run")
    assert done.exit_code == 3
    assert "convert with --on-error skip" in done.stderr


@pytest.mark.parametrize("command", ["convert", "inspect"])
def test_a_command_that_has_it_recommends_its_own_on_error(command: str, call: Call, tmp_path: Path) -> None:
    out = ["--out", tmp_path / "out"] if command == "convert" else []
    done = call(command, *table(tmp_path, "0,oops,0,1,0"), *out)
    assert "or --on-error skip" in done.stderr


@pytest.mark.parametrize(("row", "hint"), [("0,0.5", "fill in the cells that are missing"), ("0,0.5,1,1,0,7", "quote cells")])
def test_the_hint_for_a_row_of_another_length_depends_on_which_way_it_is(
    row: str, hint: str, call: Call, tmp_path: Path
) -> None:
    done = call("convert", *table(tmp_path, row), "--out", tmp_path / "out")
    assert done.exit_code == 3
    assert f"try: {hint}" in done.stderr
    assert "quarantine" in done.stderr


def test_a_list_of_rejected_rows_says_how_many_it_leaves_out(call: Call, tmp_path: Path) -> None:
    source = table(tmp_path, *(f"{number},0.5" for number in range(100, 115)))
    done = call("convert", *source, "--out", tmp_path / "skipped", "--on-error", "skip")
    assert "rejected 10" in done.stdout
    assert "and 5 more; --on-error quarantine keeps them all" in done.stdout  # 15 rows
    done = call("convert", *source, "--out", tmp_path / "kept", "--on-error", "quarantine")
    assert "and 5 more; all are in quarantine/" in done.stdout


def test_a_list_of_all_rejected_rows_leaves_out_none(call: Call, tmp_path: Path) -> None:
    done = call("convert", *table(tmp_path, "0,0.5"), "--out", tmp_path / "out", "--on-error", "skip")
    assert "rejected 1" in done.stdout
    assert "more" not in done.stdout


def test_a_table_that_is_given_twice_shows_its_duplicate_rows_and_calls_the_other_count_episodes(
    call: Call, tmp_path: Path
) -> None:
    path, *mapping = table(tmp_path)
    text = Path(path).read_text(encoding="utf-8").splitlines()
    with_t = [",".join([line, "t" if number == 0 else line.split(",")[2]]) for number, line in enumerate(text)]
    Path(path).write_text("\n".join(with_t) + "\n", encoding="utf-8")
    (tmp_path / "robot.toml").write_text(MAPPING + 't = "t"\n', encoding="utf-8")
    (tmp_path / "again.csv").write_bytes(Path(path).read_bytes())
    shown = call("convert", path, tmp_path / "again.csv", *mapping, "--out", tmp_path / "out").stdout.splitlines()
    words = [line.split() for line in shown]
    assert ["duplicate", "episodes", "dropped", "0"] in words
    assert ["duplicate", "rows", "dropped", "24"] in words


def test_inspect_shows_the_modules_of_a_recording(call: Call, tmp_path: Path) -> None:
    rows = [f"{e},{'attacker' if e % 3 else 'defender'},0.5,{step},1,{step}" for e in range(6) for step in range(2)]
    text = "\n".join(["eps_id,module_id,obs,actions,rewards,terminateds", *rows]) + "\n"
    (tmp_path / "teams.csv").write_text(text, encoding="utf-8")
    assert json.loads(call("inspect", tmp_path / "teams.csv", "--json").stdout)["modules"] == {"defender": 2, "attacker": 4}
    shown = [line.split() for line in call("inspect", tmp_path / "teams.csv").stdout.splitlines()]
    assert ["episodes", "by", "module", "defender", "2,", "attacker", "4"] in shown


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (("convert", "x", "--bogus"), "error: No such option: --bogus\n"),
        (("inspect", "x", "--episods"), "error: No such option: --episods (Possible options: --episode)\n"),
        (
            ("record", "CartPole-v1", "--episodes", "abc"),
            "error: Invalid value for '--episodes' / '-n': 'abc' is not an integer\n",
        ),
        (("train", "x", "--lr=abc"), "error: Invalid value for '--lr': 'abc' is not a number\n"),
        (("train-bc", "x", "--learning-rate", "1"), "error: No such option: --learning-rate (Possible options: --lr)\n"),
        (("inspect", "x", "--learning-rate", "1"), "error: No such option: --learning-rate\n"),
    ],
)
def test_a_mistaken_option_is_quoted_and_others_are_offered_where_they_are_near(
    args: tuple[str, ...], said: str, call: Call
) -> None:
    done = call(*args)
    assert (done.exit_code, done.stderr.startswith(said)) == (2, True), done.stderr


def test_an_option_of_another_command_names_it(call: Call) -> None:
    done = call("train-bc", "x", "--algorithm", "iql")
    assert done.exit_code == 2
    assert "try: offline-cli train, which learns by other algorithms as well" in done.stderr


def test_an_unknown_algorithm_is_told_all_that_there_are(call: Call, tmp_path: Path) -> None:
    done = call("train", "x", "--algorithm", "cql", "--out", tmp_path / "run")
    assert done.exit_code == 4
    assert "did you mean 'iql'? There are bc, marwil, iql, td3-bc" in done.stderr

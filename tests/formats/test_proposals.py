"""Mappings that are proposed for tables without one: by names and by values, as text to copy."""

from __future__ import annotations

import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from offline_cli.errors import BadMapping
from offline_cli.formats.opening import open_sources

Read = Callable[..., Any]
Write = Callable[..., Path]


def proposed(path: Path | str) -> str:
    """The mapping that is proposed for a table."""
    with pytest.raises(BadMapping) as caught:
        open_sources(str(path))
    text = caught.value.details["starting_mapping"]
    assert text in caught.value.fix
    return str(text)


def csv_of(write_lines: Write, header: str, *rows: Any) -> Path:
    return write_lines("log.csv", header, *(",".join(map(str, row)) for row in rows))


def test_an_id_without_a_telling_name_is_found_by_rows_that_stand_together(write_lines: Write, read_table: Read) -> None:
    rows = [(e, k, 0.3 * k * (-1) ** k, k % 2, 1.0) for e in (7, 8, 9) for k in range(6)]
    path = csv_of(write_lines, "sortie,step,temp,cmd,reward", *rows)
    text = proposed(path)
    columns = {"eps_id": "sortie", "t": "step", "obs": "temp", "actions": "cmd", "rewards": "reward"}
    assert tomllib.loads(text)["columns"] == columns
    assert read_table(path, text)[1].num_steps == 18


def test_what_looks_like_a_second_id_time_or_reward_is_left_out_with_a_comment(write_lines: Write) -> None:
    header = "run,step,user_id,wall_time,temp,cmd,reward,shaped_reward,empty"
    rows = [("A", k, "u7", f"2024-03-01 12:00:0{k}", k * 0.1, 1, 1.0, 0.5, "") for k in range(6)]
    text = proposed(csv_of(write_lines, header, *rows))
    assert tomllib.loads(text)["columns"]["obs"] == "temp"
    assert '# left out: "user_id": looks like an id' in text
    assert '# left out: "wall_time": looks like a time too' in text
    assert '# left out: "shaped_reward": looks like a reward too' in text
    assert '# left out: "empty": no value in any row' in text


def test_offered_categories_are_all_texts_of_the_table(write_lines: Write, read_table: Read) -> None:
    count = 30_000
    rows = [(i // 10, i % 10, "rare" if i == count - 1 else f"c{i % 40:02}", 1) for i in range(count)]
    path = csv_of(write_lines, "run,step,event,cmd", *rows)
    every = [*(f"c{i:02}" for i in range(40)), "rare"]
    assert tomllib.loads(proposed(path))["categories"]["event"] == every
    mapping = '[columns]\neps_id = "run"\nt = "step"\nobs = "event"\nactions = "cmd"\n'
    with pytest.raises(BadMapping) as caught:
        read_table(path, mapping)
    line = caught.value.what.partition("number them in the mapping: ")[2]
    offered = line.replace("[categories] ", "[categories]\n")
    assert tomllib.loads(offered)["categories"]["event"] == every
    assert read_table(path, mapping + offered)[1].num_steps == count


def test_of_a_file_with_another_delimiter_the_values_are_looked_at_too(write_lines: Write, read_table: Read) -> None:
    rows = [f"{run};{n};{n},5;{mode};{n % 2}" for run in "ab" for n, mode in enumerate(("auto", "hand", "auto", "auto"))]
    path = write_lines("log.csv", "sortie;zeit;pos;modus;cmd", *rows)
    text = proposed(path)
    found = tomllib.loads(text)
    assert found["csv"] == {"delimiter": ";", "decimal": ","}
    assert found["categories"] == {"modus": ["auto", "hand"]}
    assert found["columns"] == {"eps_id": "sortie", "obs": ["zeit", "pos", "modus"], "actions": "cmd"}
    _, batch = read_table(path, text)
    assert batch.obs[:2].tolist() == [[0, 0.5, 0], [1, 1.5, 1]]


@pytest.mark.parametrize(
    ("column", "agents"), [("agent", ("red", "blue")), ("player_id", (0, 1)), ("agent_name", ("yes", "no"))]
)
def test_a_column_of_agents_is_proposed_as_such(
    column: str, agents: tuple[Any, Any], write_lines: Write, read_table: Read
) -> None:
    rows = [(e, k, agent, 0.3 * k, k % 2, int(k == 4), 1.0) for e in (7, 8) for k in range(5) for agent in agents]
    path = csv_of(write_lines, f"episode,step,{column},x,action,done,reward", *rows)
    text = proposed(path)
    assert tomllib.loads(text)["columns"]["agent_id"] == column
    assert tomllib.loads(text)["columns"]["obs"] == "x"
    _, batch = read_table(path, text)
    assert sorted(set(batch.agent_ids)) == sorted(map(str, agents))
    assert batch.num_steps == 20


@pytest.mark.parametrize(("name", "number"), [("logged", "odometer"), ("date", "travel_time")])
def test_a_date_orders_the_rows_and_a_number_that_grows_does_not(name: str, number: str, write_lines: Write) -> None:
    rows = [(e, 10 * e + k, f"2024-03-0{e} 12:00:0{k}", 0.3 * k, k % 2) for e in (7, 8) for k in range(6)]
    columns = tomllib.loads(proposed(csv_of(write_lines, f"run,{number},{name},x,action", *rows)))["columns"]
    assert columns["t"] == name
    assert columns["obs"] == (["odometer", "x"] if number == "odometer" else "x")


def test_cells_without_a_value_are_offered_to_be_filled_and_the_lines_work(write_lines: Write, read_table: Read) -> None:
    rows = [("A", k, "" if k == 3 else 0.1 * k, 0.5 * k, 1.0 if k else "") for k in range(6)]
    path = csv_of(write_lines, "run,step,temp,cmd,reward", *rows)
    text = proposed(path)
    assert "fill" not in tomllib.loads(text)  # nobody has chosen yet
    assert '# temp = "previous"  # 1 of the cells seen are empty' in text
    assert "# cmd" not in text
    filled = text.replace("# [fill]", "[fill]").replace("# temp =", "temp =").replace('# reward = "previous"', "reward = 0")
    assert read_table(path, filled)[1].num_steps == 6


def test_a_column_with_empty_cells_of_one_long_episode_stays_an_observation(write_lines: Write) -> None:
    rows = [("m1", f"2024-03-01 12:00:{k:02}", "" if k == 0 else k * 0.1, k * 0.5, k % 2, 1.0) for k in range(30)]
    text = proposed(csv_of(write_lines, "machine_id,timestamp,heat,fan,action,cost", *rows))
    assert tomllib.loads(text)["columns"]["obs"] == ["heat", "fan"]
    assert '# heat = "previous"  # 1 of the cells seen are empty' in text

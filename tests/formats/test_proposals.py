"""Mappings that are proposed for tables without one: by names and by values, as text to copy."""

from __future__ import annotations

import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from offline_cli.errors import BadEpisode, BadMapping
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


def test_ids_times_and_ends_without_a_telling_name_are_found_by_their_values(write_lines: Write, read_table: Read) -> None:
    rows = [(e, k, 0.3 * k * (-1) ** k, k % 2, int(k == 5), 1.0) for e in (7, 8, 9) for k in range(6)]
    path = csv_of(write_lines, "sortie,k,temp,cmd,stop,reward", *rows)
    text = proposed(path)
    assert tomllib.loads(text)["columns"] == {
        "eps_id": "sortie",
        "t": "k",
        "obs": "temp",
        "actions": "cmd",
        "rewards": "reward",
        "dones": "stop",
    }
    assert 'eps_id = "sortie"  # changes where "k" falls back' in text
    assert 'dones = "stop"  # true in last rows of "sortie" alone' in text
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


def test_a_name_that_the_values_contradict_is_an_observation(write_lines: Write) -> None:
    text = proposed(csv_of(write_lines, "run,d,time,a", *(("A", 0.5 * k, f"lap {k % 2}", 1) for k in range(6))))
    columns = tomllib.loads(text)["columns"]
    assert "dones" not in columns
    assert columns["obs"] == "time"
    assert columns["t"] == "d"  # which grows, as the comment says
    assert tomllib.loads(text)["categories"] == {"time": ["lap 0", "lap 1"]}


def test_values_of_parquet_are_looked_at_too(tmp_path: Path) -> None:
    flags = [False, False, True] * 2
    table = pa.table({"ep": [1, 1, 1, 2, 2, 2], "n": [0, 1, 2] * 2, "v": [[0.5, 1.0]] * 6, "act": [0] * 6, "over": flags})
    pq.write_table(table, tmp_path / "log.parquet")
    columns = tomllib.loads(proposed(tmp_path / "log.parquet"))["columns"]
    assert columns == {"eps_id": "ep", "t": "n", "obs": "v", "actions": "act", "dones": "over"}


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


def test_more_texts_than_categories_may_be_are_said(write_lines: Write, read_table: Read) -> None:
    path = csv_of(write_lines, "run,note,cmd", *((i // 100, f"n{i}", 1) for i in range(400)))
    with pytest.raises(BadMapping, match="more than 256 different ones, which are too many for categories"):
        read_table(path, '[columns]\neps_id = "run"\nobs = "note"\nactions = "cmd"\n')
    assert '# left out: "note": text, with many different values' in proposed(path)


def test_categories_with_blanks_around_them_are_offered_as_they_are(write_lines: Write, read_table: Read) -> None:
    path = csv_of(write_lines, "run,event,cmd", ("A", " view", 1), ("A", "3", 1), ("A", "buy", 1))
    mapping = '[columns]\neps_id = "run"\nobs = "event"\nactions = "cmd"\n'
    with pytest.raises(BadMapping) as caught:
        read_table(path, mapping)
    offered = caught.value.what.partition("number them in the mapping: ")[2].replace("[categories] ", "[categories]\n")
    assert read_table(path, mapping + offered)[1].acted_obs().tolist() == [0, 1, 2]


@pytest.mark.parametrize(
    "cell", ["", "nan", "1e400", "[1, 2", "[1]", "\u00e9", "2024-03-01", "01/03/2024", "-", "0x10", "true"]
)
def test_odd_cells_never_keep_a_proposal_from_being_made(cell: str, write_lines: Write) -> None:
    names = "run,step,stop,reward,x,thing_id,a"
    text = proposed(csv_of(write_lines, names, *((cell,) * 7, ("A", 1, 0, 1.0, 0.5, 3, 1), (cell,) * 7)))
    assert tomllib.loads(text)["columns"]


def test_files_that_cannot_be_one_table_are_proposed_for_by_their_names(tmp_path: Path) -> None:
    for name, values in (("a", [1, 2]), ("b", ["x", "y"])):
        pq.write_table(pa.table({"run": [1, 1], "temp": values, "cmd": [0, 1]}), tmp_path / f"{name}.parquet")
    assert tomllib.loads(proposed(tmp_path / "*.parquet"))["columns"]["eps_id"] == "run"


def test_decimal_commas_are_proposed_as_such_and_not_as_categories(write_lines: Write, read_table: Read) -> None:
    header, rows = "run;step;x;temp;cmd", [f"A;{n};{n},5;{n},25;1" for n in range(80)]
    path = write_lines("log.csv", header, *rows)
    mapping = '[columns]\neps_id = "run"\nt = "step"\nobs = "x"\nactions = "cmd"\n[csv]\ndelimiter = ";"\n'
    with pytest.raises(BadMapping) as caught:
        read_table(path, mapping)
    assert "'0,5' looks like a decimal comma: say [csv] decimal = \",\" in the mapping" in caught.value.what
    assert "categories" not in caught.value.what
    stream, batch = read_table(path, mapping + 'decimal = ","\n')
    assert batch.obs[:3].tolist() == [0.5, 1.5, 2.5]
    assert not stream.tally.dropped_columns
    stream, _ = read_table(path, mapping.replace('obs = "x"', 'obs = "step"').replace('"x"', '"step"'))
    assert "looks like a decimal comma" in stream.tally.dropped_columns["temp"]


def test_a_cell_with_a_decimal_comma_among_whole_numbers_is_refused_with_the_remedy(
    write_lines: Write, read_table: Read
) -> None:
    path = write_lines("log.csv", "run;step;x;cmd;score", *(f"A;{n};{n};1;{'1' if n else '0,5'}" for n in range(5)))
    mapping = '[columns]\neps_id = "run"\nt = "step"\nobs = "x"\nactions = "cmd"\nrewards = "score"\n[csv]\ndelimiter = ";"\n'
    with pytest.raises(BadEpisode, match="'0,5' looks like a decimal comma: say \\[csv\\] decimal"):
        read_table(path, mapping)


def test_the_mapping_to_start_from_reads_decimal_commas(write_lines: Write, read_table: Read) -> None:
    path = write_lines("log.csv", "run,step,x,cmd", *(f'A,{n},"{n},5",1' for n in range(6)))
    text = proposed(path)
    assert tomllib.loads(text)["columns"]["obs"] == "x"
    assert tomllib.loads(text)["csv"] == {"decimal": ","}
    assert read_table(path, text)[1].obs[:2].tolist() == [0.5, 1.5]


def test_ids_and_rewards_that_are_only_likely_are_offered_as_lines_to_uncomment(write_lines: Write, read_table: Read) -> None:
    path = csv_of(write_lines, "trip_id,x,click,finished,act", *((n % 2, 0.5 * n, n % 3, int(n > 3), 1) for n in range(6)))
    text = proposed(path)
    assert tomllib.loads(text)["columns"] == {"obs": "x", "actions": "act", "dones": "finished"}
    assert '# eps_id = "trip_id"  # looks like an id' in text
    assert '# rewards = "click"  # may be a reward' in text
    assert read_table(path, text.replace("# eps_id", "eps_id").replace("# rewards", "rewards"))[1].lengths.tolist() == [3, 3]


@pytest.mark.parametrize(
    ("time", "wanted"),
    [
        ("01.03.2024 12:05", "2024-03-01 12:05:00"),
        ("01/03/2024 12:05:30.5", "2024-03-01 12:05:30.500"),
        ("1.3.24", "2024-03-01"),
    ],
)
def test_the_line_for_dates_of_two_meanings_rewrites_them_where_some_rows_have_them(
    time: str, wanted: str, write_lines: Write, read_table: Read
) -> None:
    times = ["2024-03-01 12:00:00", time, *(f"2024-03-02 12:0{n}:00" for n in range(4))]
    path = csv_of(write_lines, "run,stamp,x,act", *(("A", when, 0.5, 1) for when in times))
    with pytest.raises(BadEpisode) as caught:
        read_table(path, '[columns]\neps_id = "run"\nt = "stamp"\nobs = "x"\nactions = "act"\n')
    line = caught.value.what.partition("in polars: ")[2].partition(", or '%m")[0]
    made = eval(line, {"df": pl.read_csv(path), "pl": pl})
    assert made["stamp"][1].startswith(wanted)
    assert made["stamp"][0] == times[0]


@pytest.mark.parametrize(("time", "form"), [("01.03.2024 12:05", "%d.%m.%Y %H:%M"), ("01/03/2024 12:05", "%d/%m/%Y %H:%M")])
def test_dates_of_two_meanings_in_all_rows_are_refused_with_the_line_that_reads_them(
    time: str, form: str, write_lines: Write, read_table: Read
) -> None:
    path = csv_of(write_lines, "run,stamp,x,act", ("A", time, 0.5, 1), ("A", time.replace("01", "02"), 0.5, 1))
    with pytest.raises(BadMapping) as caught:
        read_table(path, '[columns]\neps_id = "run"\nt = "stamp"\nobs = "x"\nactions = "act"\n')
    assert f"pd.to_datetime(df['stamp'], format='{form}')" in caught.value.what


def test_of_a_file_with_another_delimiter_the_values_are_looked_at_too(write_lines: Write, read_table: Read) -> None:
    rows = [f"{run};{n};{n},5;{mode};{n % 2}" for run in "ab" for n, mode in enumerate(("auto", "hand", "auto", "auto"))]
    path = write_lines("log.csv", "sortie;zeit;pos;modus;cmd", *rows)
    text = proposed(path)
    found = tomllib.loads(text)
    assert found["csv"] == {"delimiter": ";", "decimal": ","}
    assert found["categories"] == {"modus": ["auto", "hand"]}
    assert found["columns"] == {"eps_id": "sortie", "t": "zeit", "obs": ["pos", "modus"], "actions": "cmd"}
    _, batch = read_table(path, 'episode_ends = "t"\n' + text)
    assert batch.obs[:2].tolist() == [[0.5, 0.0], [1.5, 1.0]]


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


def test_texts_whose_rows_follow_each_other_are_offered_as_ids(write_lines: Write) -> None:
    rows = [
        (f"2024-03-0{e} 10:0{k}:00", f"essai {e}", ("on", "off", "wait")[k // 2], (-1) ** k * (5 * e + k), k % 2)
        for e in range(1, 7)
        for k in range(5)
    ]
    text = proposed(csv_of(write_lines, "stamp,essai,mode,x,cmd", *rows))
    assert '# eps_id = "essai"  # may be an id: rows of one value follow each other' in text
    assert tomllib.loads(text)["columns"]["obs"] == ["mode", "x"]


def test_few_texts_are_modes_though_their_rows_follow_each_other(write_lines: Write) -> None:
    rows = [(k, ("on", "off", "wait")[k // 10], 0.3 * k, k % 2) for k in range(30)]
    text = proposed(csv_of(write_lines, "k,mode,x,cmd", *rows))
    assert "eps_id" not in text
    assert "mode" in tomllib.loads(text)["columns"]["obs"]


def test_how_many_players_there_are_is_an_observation(write_lines: Write) -> None:
    rows = [(e, k, 4 - k // 2, 0.3 * k, k % 2, int(k == 4), 1.0) for e in (7, 8) for k in range(5)]
    found = tomllib.loads(proposed(csv_of(write_lines, "episode,step,players,x,action,done,reward", *rows)))["columns"]
    assert (found["obs"], "agent_id" in found) == (["players", "x"], False)


def test_rows_of_several_agents_without_a_column_for_them_are_refused_with_that_remedy(
    write_lines: Write, read_table: Read
) -> None:
    rows = [(7, k, agent, 0.3 * k, int(k == 4)) for k in range(5) for agent in (0, 1)]
    path = csv_of(write_lines, "episode,step,who,action,done", *rows)
    mapping = '[columns]\neps_id = "episode"\nt = "step"\nobs = "who"\nactions = "action"\ndones = "done"\n'
    with pytest.raises(BadEpisode, match="two different rows of one episode have t = 0") as raised:
        read_table(path, mapping)
    assert "`agent_id` where rows are of several agents" in raised.value.fix


@pytest.mark.parametrize("number", ["odometer", "travel_time"])
def test_a_date_that_orders_the_rows_of_each_id_is_the_time_and_not_a_number_that_grows(
    number: str, write_lines: Write
) -> None:
    rows = [(e, 10 * e + k, f"2024-03-0{e} 12:00:0{k}", 0.3 * k, k % 2) for e in (7, 8) for k in range(6)]
    text = proposed(csv_of(write_lines, f"run,{number},logged,x,action", *rows))
    assert tomllib.loads(text)["columns"]["t"] == "logged"
    assert 't = "logged"  # grows from row to row of each "run"' in text
    left = '# left out: "travel_time": looks like a time too' in text
    assert left if number == "travel_time" else tomllib.loads(text)["columns"]["obs"] == ["odometer", "x"]


def test_a_counter_by_its_name_is_the_time_beside_a_date(write_lines: Write) -> None:
    rows = [(e, f"2024-03-0{e} 12:00:0{k}", k, 0.3 * k, k % 2) for e in (7, 8) for k in range(6)]
    text = proposed(csv_of(write_lines, "run,timestamp,step,x,action", *rows))
    assert tomllib.loads(text)["columns"]["t"] == "step"
    assert '# left out: "timestamp": looks like a time too' in text


def test_a_counter_by_its_name_that_does_not_grow_gives_way_to_a_date(write_lines: Write) -> None:
    rows = [(e, 100 - k, f"2024-03-0{e} 12:00:0{k}", k % 2) for e in (7, 8) for k in range(6)]
    assert tomllib.loads(proposed(csv_of(write_lines, "run,steps,when,action", *rows)))["columns"]["t"] == "when"


def test_a_date_that_two_rows_of_an_id_share_is_not_the_time_but_a_line_to_uncomment(write_lines: Write) -> None:
    rows = [(e, f"2024-03-0{e} 12:00:0{k // 2}", 0.5 * (-1) ** k, k % 2) for e in (7, 8) for k in range(6)]
    text = proposed(csv_of(write_lines, "run,timestamp,x,action", *rows))
    assert "t" not in tomllib.loads(text)["columns"]
    assert '# t = "timestamp"  # looks like a time, but rows of one "run" share its values' in text
    rows = [(run, when, k, x, a) for k, (run, when, x, a) in enumerate(rows)]
    text = proposed(csv_of(write_lines, "run,timestamp,count,x,action", *rows))
    assert tomllib.loads(text)["columns"]["t"] == "count"


def test_ids_are_found_beside_a_date_that_goes_on_from_episode_to_episode(write_lines: Write) -> None:
    rows = [(e, f"2024-03-0{e} 12:00:0{k}", k, 0.3 * (-1) ** k, k % 2) for e in (7, 8) for k in range(6)]
    found = tomllib.loads(proposed(csv_of(write_lines, "sortie,timestamp,n,x,action", *rows)))["columns"]
    assert (found["eps_id"], found["t"]) == ("sortie", "timestamp")


def test_cells_without_a_value_are_offered_to_be_filled_and_the_lines_work(write_lines: Write, read_table: Read) -> None:
    rows = [("A", k, "" if k == 3 else 0.1 * k, 0.5 * k, 1.0 if k else "") for k in range(6)]
    path = csv_of(write_lines, "run,step,temp,cmd,reward", *rows)
    text = proposed(path)
    assert "fill" not in tomllib.loads(text)  # nobody has chosen yet
    assert '# temp = "previous"  # the value before, or "mean", or a number; 1 of the cells seen are empty' in text
    assert "# cmd" not in text
    filled = text.replace("# [fill]", "[fill]").replace("# temp =", "temp =").replace('# reward = "previous"', "reward = 0")
    assert read_table(path, filled)[1].num_steps == 6


def test_the_line_for_actions_says_that_they_are_no_observation_and_one_that_stays_there_is_noted(
    write_lines: Write, read_table: Read, caplog: pytest.LogCaptureFixture
) -> None:
    path = csv_of(write_lines, "run,step,x,turn,reward", *(("A", k, 0.5 * k, 0.1 * k * (-1) ** k, 1.0) for k in range(6)))
    text = proposed(path)
    assert 'actions = "?"  # the column that was chosen or commanded; take it out of obs' in text
    read_table(path, text.replace('"?"', '"turn"'))
    assert "note: column 'turn' is in obs and in actions" in caplog.text
    caplog.clear()
    read_table(path, text.replace('"?"', '"turn"').replace('["x", "turn"]', '["x"]'))
    assert "in obs and in actions" not in caplog.text


def test_cells_that_are_not_looked_at_are_not_told_to_be_empty(tmp_path: Path) -> None:
    frame = bytes(cv2.imencode(".png", np.zeros((16, 16, 3), np.uint8))[1])
    rows = {"run": ["A"] * 100, "frame": [frame] * 100, "cmd": [0, 1] * 50, "reward": [1.0] * 100}
    pq.write_table(pa.table(rows), tmp_path / "a.parquet")
    assert "fill" not in proposed(tmp_path / "a.parquet")
    (tmp_path / "cut.json").write_text('{"a": 1}\n{"a": 2')
    assert "fill" not in proposed(tmp_path / "cut.json")


def test_a_mean_is_offered_to_fill_what_has_one(write_lines: Write, read_table: Read) -> None:
    rows = [("A", k, "" if k == 3 else 0.1 * k, "" if k == 2 else k % 2, "" if k == 1 else "lr"[k % 2], 1.0) for k in range(6)]
    path = csv_of(write_lines, "run,step,temp,cmd,side,reward", *rows)
    text = proposed(path)
    assert [line for line in text.splitlines() if line.startswith("# ") and '= "previous"' in line] == [
        '# temp = "previous"  # the value before, or "mean", or a number; 1 of the cells seen are empty',
        '# side = "previous"  # the value before; 1 of the cells seen are empty',
        '# cmd = "previous"  # the value before, or a number; 1 of the cells seen are empty',
    ]
    filled = text.replace("# [fill]", "[fill]")
    for name in ("temp", "side", "cmd"):
        filled = filled.replace(f"# {name} =", f"{name} =")
    assert read_table(path, filled)[1].num_steps == 6
    assert read_table(path, "split_at_gaps = true\n" + text)[0].tally.assumptions["split-at-gap"] == 3

"""Nothing of a table is lost or guessed in silence: files of unequal columns, structs, flags, one name twice, damage."""

from __future__ import annotations

import gzip
import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from offline_cli.errors import BadData, BadEpisode, BadMapping
from offline_cli.formats.tables import claims, files

Read = Callable[..., Any]
Write = Callable[..., Path]

COLUMNS = '[columns]\neps_id = "e"\nt = "t"\nobs = ["x"]\nactions = "a"\n'


def test_an_optional_column_that_one_file_lacks_is_refused_and_not_left_out_of_all(
    read_table: Read, write_lines: Write, tmp_path: Path
) -> None:
    write_lines("logs-1.csv", "e,t,x,a,r", "A,0,0.5,1,7")
    write_lines("logs-2.csv", "e,t,x,a", "B,0,0.5,1")
    with pytest.raises(BadMapping, match=r"column 'r' \(for rewards\) is in .*logs-1.csv and not in .*logs-2.csv"):
        read_table(f"{tmp_path}/logs-*.csv", f'optional = ["rewards"]\n{COLUMNS}rewards = "r"\n')


def test_a_column_that_is_not_mapped_and_one_file_lacks_is_counted_as_dropped(
    read_table: Read, write_lines: Write, tmp_path: Path
) -> None:
    write_lines("logs-1.csv", "e,t,x,a", "B,0,0.5,1")
    write_lines("logs-2.csv", "e,t,x,a,speed", "A,0,0.5,1,7")
    stream, _ = read_table(f"{tmp_path}/logs-*.csv", COLUMNS)
    assert stream.tally.assumptions["dropped-column"] == 1


@pytest.mark.parametrize("ours", ["rewards", "dones"])
def test_a_struct_for_a_single_number_is_refused(ours: str, read_table: Read, write_lines: Write) -> None:
    lines = write_lines("a.jsonl", {"e": 1, "t": 0, "x": 0.5, "a": 1, "s": {"v": 1}}, {"e": 1, "t": 1, "x": 0.5, "a": 1})
    with pytest.raises(BadMapping, match=f"{ours}: 's' is a struct: name one of its columns"):
        read_table(lines, f'{COLUMNS}{ours} = "s"\n')


@pytest.mark.parametrize("values", [[0, 2], [0.0, 0.5], [0, -1]])
def test_a_flag_that_is_neither_0_nor_1_is_a_bad_row(values: list[float], read_table: Read, tmp_path: Path) -> None:
    pq.write_table(pa.table({"e": [1, 1], "t": [0, 1], "x": [0.1, 0.2], "a": [0, 1], "d": values}), tmp_path / "a.parquet")
    with pytest.raises(BadEpisode, match=f"column d holds {values[1]}, not a flag: 0 or 1, true or false, yes or no"):
        read_table(tmp_path / "a.parquet", f'{COLUMNS}dones = "d"\n')


@pytest.mark.parametrize("twice", ["x", "other"])
def test_a_parquet_file_with_two_columns_of_one_name_is_refused(twice: str, read_table: Read, tmp_path: Path) -> None:
    values = [pa.array([1]), pa.array([0]), pa.array([0.1]), pa.array([1]), pa.array([0.1]), pa.array([0.2])]
    table = pa.Table.from_arrays(values, names=["e", "t", "x", "a", twice, "other"])
    pq.write_table(table, tmp_path / "a.parquet")
    with pytest.raises(BadData, match=f"two columns are called '{twice}'"):
        read_table(tmp_path / "a.parquet", COLUMNS)


def test_an_order_beyond_signed_integers_is_a_bad_row_and_not_a_negative_number(read_table: Read, tmp_path: Path) -> None:
    order = pa.array([2**64 - 1, 0], pa.uint64())
    pq.write_table(pa.table({"e": [1, 1], "t": order, "x": [0.1, 0.2], "a": [0, 1]}), tmp_path / "a.parquet")
    with pytest.raises(BadEpisode, match="column t holds 18446744073709551615, which int64 cannot hold"):
        read_table(tmp_path / "a.parquet", COLUMNS)


def test_json_ids_of_64_bits_stay_exact(read_table: Read, write_lines: Write) -> None:
    ids = [2**64 - 1, 2**64 - 2, 5]
    lines = write_lines("a.jsonl", *({"e": number, "t": 0, "x": 0.5, "a": 1} for number in ids))
    _, batch = read_table(lines, COLUMNS)
    assert sorted(data["source_id"] for data in batch.custom_data) == sorted(map(str, ids))


@pytest.mark.parametrize("cut", [slice(0, -9), slice(0, None)])
def test_a_damaged_gzip_of_csv_is_called_damaged(cut: slice, read_table: Read, tmp_path: Path) -> None:
    text = "e,t,x,a\n" + "".join(f"A,{t},0.5,1\n" for t in range(100))
    tail = b"" if cut.stop else b"garbage"
    (tmp_path / "a.csv.gz").write_bytes(gzip.compress(text.encode())[cut] + tail)
    with pytest.raises(BadData, match="the file breaks off or is damaged"):
        read_table(tmp_path / "a.csv.gz", COLUMNS)


# ---- keys of JSON lines ----

LATE: list[dict[str, Any]] = [{"e": row // 100, "t": row, "x": 0.5, "a": 1, "pad": "-" * 400} for row in range(4000)]


def test_a_key_that_json_lines_have_only_late_is_a_column(read_table: Read, write_lines: Write) -> None:
    late = [{**row, "r": 7.0 * (row["e"] > 36)} if row["e"] > 35 else row for row in LATE]
    lines = write_lines("a.jsonl", *late)
    stream, batch = read_table(lines, f'{COLUMNS}rewards = "r"\n', on_error="skip")
    assert batch is not None
    assert (len(batch), sum(batch.rewards)) == (4, 3 * 100 * 7.0)
    assert stream.rejects.count == 3600


def test_an_optional_key_that_json_lines_have_only_late_is_not_left_out(read_table: Read, write_lines: Write) -> None:
    lines = write_lines("a.jsonl", *(row if row["e"] < 39 else {**row, "r": 7.0} for row in LATE))
    with pytest.raises(BadEpisode, match="column r has no value"):
        read_table(lines, f'optional = ["rewards"]\n{COLUMNS}rewards = "r"\n')


def test_a_key_that_is_not_mapped_and_comes_late_is_an_extra_output(read_table: Read, write_lines: Write) -> None:
    lines = write_lines("a.jsonl", *(row if row["e"] < 39 else {**row, "speed": 7.0} for row in LATE))
    stream, batch = read_table(lines, COLUMNS)
    assert batch is not None
    assert np.nansum(batch.extra["speed"]) == 700
    assert stream.tally.assumptions["null-as-nan"] == 3900


def test_a_key_that_one_file_of_json_lacks_is_null_in_its_rows(read_table: Read, write_lines: Write, tmp_path: Path) -> None:
    write_lines("logs-1.jsonl", {"e": 1, "t": 0, "x": 0.5, "a": 1})
    write_lines("logs-2.jsonl", {"e": 2, "t": 0, "x": 0.5, "a": 1, "d": True})
    stream, batch = read_table(f"{tmp_path}/logs-*.jsonl", f'optional = ["dones"]\n{COLUMNS}dones = "d"\n')
    assert batch is not None
    assert len(batch) == 2
    assert stream.tally.assumptions["null-as-false"] == 1


def test_an_optional_key_that_no_file_of_json_has_is_left_out(read_table: Read, write_lines: Write, tmp_path: Path) -> None:
    for number in range(2):
        write_lines(f"logs-{number}.jsonl", {"e": number, "t": 0, "x": 0.5, "a": 1})
    _, batch = read_table(f"{tmp_path}/logs-*.jsonl", f'optional = ["rewards"]\n{COLUMNS}rewards = "r"\n')
    assert batch is not None
    assert batch.rewards.tolist() == [0, 0]


def test_an_object_that_is_null_in_the_first_lines_is_one(read_table: Read, write_lines: Write) -> None:
    lines = write_lines("a.jsonl", *({**row, "s": None if row["e"] < 39 else {"v": 7.0}} for row in LATE))
    _, batch = read_table(lines, f'{COLUMNS}rewards = "s.v"\n', on_error="skip")
    assert batch is not None
    assert batch.rewards.tolist() == [7.0] * 100


def test_json_lines_of_endlessly_many_keys_are_refused(
    read_table: Read, write_lines: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "MAX_KEYS", 100)
    lines = write_lines("a.jsonl", *({"e": 1, "t": t, "x": 0.5, "a": 1, f"key {t}": 1} for t in range(101)))
    with pytest.raises(BadMapping, match="JSON lines of more than 100 different keys"):
        read_table(lines, COLUMNS)


def test_a_key_with_a_dot_beside_an_object_of_that_key_is_refused(read_table: Read, write_lines: Write) -> None:
    lines = write_lines("a.jsonl", {"e": 1, "t": 0, "x": 0.5, "a": 1, "s.v": 1, "s": {"v": 2}})
    with pytest.raises(BadData, match=r"two columns are called 's\.v'"):
        read_table(lines, f'{COLUMNS}rewards = "s.v"\n')


# ---- ids ----


def test_ids_of_64_bits_without_a_sign_stay_exact_in_all_files(read_table: Read, tmp_path: Path) -> None:
    for number, ids in enumerate([pa.array([2**64 - 1, 2**64 - 2], pa.uint64()), pa.array([5, 6])]):
        table = pa.table({"e": ids, "t": [0, 0], "x": [0.1, 0.2], "a": [0, 1]})
        pq.write_table(table, tmp_path / f"part-{number}.parquet")
    _, batch = read_table(f"{tmp_path}/part-*.parquet", COLUMNS)
    assert [data["source_id"] for data in batch.custom_data] == [str(2**64 - 1), str(2**64 - 2), "5", "6"]


@pytest.mark.parametrize("other", [1, -1, "A"])
def test_json_ids_beyond_64_bits_stay_apart(other: Any, read_table: Read, write_lines: Write) -> None:
    ids = [2**70, 2**70 + 1, other]
    lines = write_lines("a.jsonl", *({"e": number, "t": 0, "x": 0.5, "a": 1} for number in ids))
    _, batch = read_table(lines, COLUMNS)
    assert [data["source_id"] for data in batch.custom_data] == list(map(str, ids))


def test_json_ids_that_were_rounded_beside_a_decimal_are_refused(read_table: Read, write_lines: Write) -> None:
    lines = write_lines("a.jsonl", *({"e": number, "t": 0, "x": 0.5, "a": 1} for number in [2**53, 2**53 + 1, 0.5]))
    with pytest.raises(BadEpisode, match=r"column e holds 9007199254740992\.0, which may stand for another integer"):
        read_table(lines, COLUMNS)


@pytest.mark.parametrize(("one", "other"), [("1", "1.0"), ("1.00", "1"), ("-20.0", "-20")])
def test_whole_numbers_with_and_without_decimals_are_one_id(
    one: str, other: str, read_table: Read, write_lines: Write, tmp_path: Path
) -> None:
    write_lines("logs-1.csv", "e,t,x,a", f"{one},0,0.5,1")
    write_lines("logs-2.csv", "e,t,x,a", f"{other},1,0.5,1", "A,0,0.5,1")
    _, batch = read_table(f"{tmp_path}/logs-*.csv", COLUMNS)
    assert [data["source_id"] for data in batch.custom_data] == [min(one, other, key=len), "A"]


@pytest.mark.parametrize(("one", "other"), [("7", "007"), ("1.5", "1.50"), ("v1.0", "v1"), ("10", "1.0")])
def test_ids_that_are_not_the_same_whole_number_stay_two(one: str, other: str, read_table: Read, write_lines: Write) -> None:
    _, batch = read_table(write_lines("logs.csv", "e,t,x,a", f"{one},0,0.5,1", f"{other},0,0.5,1"), COLUMNS)
    assert batch is not None
    assert len(batch) == 2


# ---- many columns ----


def test_the_work_grows_with_the_columns_and_not_with_their_square(read_table: Read, tmp_path: Path) -> None:
    def calls(columns: int) -> int:
        many = {f"c{number}": [0.5, 1.5] for number in range(columns)}
        pq.write_table(pa.table({"e": [1, 1], "t": [0, 1], "x": [0.1, 0.2], "a": [0, 1], **many}), tmp_path / "a.parquet")
        count = 0

        def see(*_: Any) -> None:
            nonlocal count
            count += 1

        sys.setprofile(see)
        try:
            read_table(tmp_path / "a.parquet", COLUMNS)
        finally:
            sys.setprofile(None)
        return count

    calls(10)  # imports
    assert calls(1000) < 5 * calls(250)


# ---- headers ----


@pytest.mark.parametrize("delimiter", [";", "\t", "|"])
def test_a_header_that_another_delimiter_divides_is_told_so(delimiter: str, read_table: Read, write_lines: Write) -> None:
    lines = write_lines("a.csv", *(delimiter.join(row) for row in ("etxa", "1011")))
    with pytest.raises(BadMapping, match=re.escape(f"[csv] delimiter = {json.dumps(delimiter)}")):
        read_table(lines, COLUMNS)


@pytest.mark.parametrize("name", ["a.csv.gz", "a.jsonl.gz"])
def test_the_rows_before_the_place_where_a_packed_file_breaks_off_are_read_and_reported(
    name: str, read_table: Read, tmp_path: Path
) -> None:
    rows = [{"e": n // 10, "t": n % 10, "x": n + 0.5, "a": n % 2} for n in range(50_000)]
    if name == "a.csv.gz":
        lines = ["e,t,x,a", *(",".join(map(str, row.values())) for row in rows)]
    else:
        lines = [json.dumps(row) for row in rows]
    lines[1005] = "short"
    data = gzip.compress(("\n".join(lines) + "\n").encode())
    (tmp_path / name).write_bytes(data[: len(data) // 2])
    stream, batch = read_table(tmp_path / name, COLUMNS, on_error="skip")
    assert 20_000 < stream.tally.rows_in < 30_000
    assert stream.rejects.first[0].reason.startswith("a row of 1 cells" if name == "a.csv.gz" else "a line that is not whole")
    assert batch.num_steps % 10 == 0  # of whole episodes: the one in which the file breaks off is set aside
    assert stream.rejects.count + batch.num_steps == stream.tally.rows_in + 1  # the rest of the file counts as one


# ---- rows whose columns nobody can tell ----

RIDES = [[f"r{ride}", str(t), f"{ride}.{t}", "1", str(int(t == 3))] for ride in range(6) for t in range(4)]
ENDS = f'{COLUMNS}terminateds = "d"\n'


def rides(*, interleaved: bool, **damaged: Callable[[str], str]) -> list[str]:
    """CSV: 6 episodes of 4 rows; what `damaged` makes of the rows named `r3_0` (episode, t)."""
    rows = sorted(RIDES, key=lambda row: row[1]) if interleaved else RIDES
    return ["e,t,x,a,d", *(damaged.get(f"{row[0]}_{row[1]}", str)(",".join(row)) for row in rows)]


def kept(batch: Any) -> list[str]:
    return sorted(data["source_id"] for data in batch.custom_data)


@pytest.mark.parametrize("damage", [lambda row: f"{row},9", lambda row: row[: row.rindex(",")]])
@pytest.mark.parametrize("at", ["r3_0", "r3_2", "r0_0", "r5_3"])
def test_a_row_of_another_length_costs_the_episode_that_it_names_and_not_its_neighbours(
    at: str, damage: Callable[[str], str], read_table: Read, write_lines: Write
) -> None:
    lines = write_lines("a.csv", *rides(interleaved=True, **{at: damage}))
    stream, batch = read_table(lines, ENDS, on_error="skip")
    assert kept(batch) == [f"r{ride}" for ride in range(6) if f"r{ride}" != at[:2]]
    assert stream.rejects.lost == {"lost-episode-bad-row": 1}
    assert "bad-row-of-unknown-episode" not in stream.tally.assumptions


def test_a_broken_line_of_json_costs_the_episode_that_it_names(read_table: Read, write_lines: Write) -> None:
    rows = [{"e": ride, "t": t, "x": 0.5, "a": 1} for t in range(4) for ride in range(6)]
    lines: list[Any] = [json.dumps(row) for row in rows]
    lines[9] = lines[9][:-4]  # of episode 3
    _, batch = read_table(write_lines("a.jsonl", *lines), COLUMNS, on_error="skip")
    assert kept(batch) == ["0", "1", "2", "4", "5"]


@pytest.mark.parametrize("text", ["?", "?,0,1", ",0,1", "r3"])
def test_an_interleaved_row_that_names_no_episode_is_counted(text: str, read_table: Read, write_lines: Write) -> None:
    lines = write_lines("a.csv", *rides(interleaved=True, r3_1=lambda _: text))
    stream, batch = read_table(lines, ENDS, on_error="skip")
    assert kept(batch) == ["r0", "r1", "r3", "r5"]
    assert stream.tally.assumptions["bad-row-of-unknown-episode"] == 1


def test_a_row_of_an_ordered_file_that_names_an_episode_from_elsewhere_is_counted(read_table: Read, write_lines: Write) -> None:
    lines = write_lines("a.csv", *rides(interleaved=False, r3_1=lambda row: f"r1{row[2:]},9"))
    stream, batch = read_table(lines, ENDS, on_error="skip")
    assert kept(batch) == ["r0", "r1", "r2", "r4", "r5"]
    assert stream.tally.assumptions["bad-row-of-unknown-episode"] == 1


@pytest.mark.parametrize("interleaved", [False, True])
def test_an_episode_of_which_every_row_is_short_is_the_one_that_is_lost(
    interleaved: bool, read_table: Read, write_lines: Write
) -> None:
    damaged = {f"r3_{t}": lambda row: row[:-2] for t in range(4)}
    stream, batch = read_table(write_lines("a.csv", *rides(interleaved=interleaved, **damaged)), ENDS, on_error="skip")
    assert kept(batch) == ["r0", "r1", "r2", "r4", "r5"]
    assert stream.rejects.lost == {"lost-episode-bad-row": 1}


@pytest.mark.parametrize("delimiter", [",", ";"])
def test_the_id_of_a_bad_row_is_found_by_the_form_of_the_file(delimiter: str, read_table: Read, write_lines: Write) -> None:
    rows = [[f"{t}.5", "1", str(t), str(ride)] for t in range(4) for ride in range(6)]
    rows[9] += ["9"]  # of episode 3
    mapping = f'{COLUMNS}[csv]\ndelimiter = "{delimiter}"\ncolumns = ["x", "a", "t", "e"]\n'
    lines = write_lines("a.csv", *(delimiter.join(row) for row in rows))
    _, batch = read_table(lines, mapping, on_error="skip")
    assert kept(batch) == ["0", "1", "2", "4", "5"]


def test_a_bad_row_costs_the_episode_of_its_agent_and_of_its_own_file(
    read_table: Read, write_lines: Write, tmp_path: Path
) -> None:
    for number in range(2):
        rows = [f"{ride},{agent},{t},0.5,1" for t in range(4) for ride in range(3) for agent in "AB"]
        rows[8] += ",9" * number  # episode 1 of agent A, in the second file
        write_lines(f"logs-{number}.csv", "e,who,t,x,a", *rows)
    mapping = f'ids_per_file = true\n{COLUMNS}agent_id = "who"\n'
    _, batch = read_table(f"{tmp_path}/logs-*.csv", mapping, on_error="skip")
    assert batch is not None
    named = {name.partition("-")[2].replace("-default_policy", "") for name in batch.ids}
    assert {f"{file}-{ride}-{agent}" for file in range(2) for ride in range(3) for agent in "AB"} - named == {"1-1-A"}


def test_after_many_bad_rows_the_neighbours_are_set_aside_too(
    read_table: Read, write_lines: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(claims, "MOST", 1)
    lines = write_lines("a.csv", *rides(interleaved=True, r0_1=lambda row: f"{row},9", r3_1=lambda row: f"{row},9"))
    _, batch = read_table(lines, ENDS, on_error="skip")
    assert kept(batch) == ["r1", "r5"]

"""The layouts that people bring, each in a file that its own writer made, counted by what went into it."""

from __future__ import annotations

import datetime as dt
import gzip
import json
import uuid
from collections.abc import Callable
from decimal import Decimal
from itertools import pairwise
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from offline_cli import convert, open_dataset
from offline_cli.errors import BadMapping

LENGTHS = (4, 5, 6)
STEPS = sum(LENGTHS)
MAPPING: dict[str, Any] = {"action_scale": "env", "columns": {"obs": ["x", "y"], "actions": "a", "rewards": "r"}}

Converted = Callable[..., tuple[dict[str, int], pl.DataFrame]]


def steps() -> pl.DataFrame:
    """Rows of three episodes, in order."""
    rng = np.random.default_rng(0)
    episode = np.repeat(np.arange(3), LENGTHS)
    t = np.concatenate([np.arange(length) for length in LENGTHS])
    columns: dict[str, Any] = {"ep": episode, "t": t, "x": rng.normal(size=STEPS), "y": rng.normal(size=STEPS)}
    columns |= {"a": rng.integers(0, 3, STEPS), "r": np.arange(STEPS, dtype=float)}
    return pl.DataFrame(columns)


def mapped(*, columns: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    return {**MAPPING, **more, "columns": {**MAPPING["columns"], **(columns or {})}}


KEYED = mapped(columns={"eps_id": "ep", "t": "t"})


@pytest.fixture
def converted(tmp_path: Path) -> Converted:
    """A function that converts: what was assumed, and a row for each episode."""

    def run(source: Path, mapping: Any, **options: Any) -> tuple[dict[str, int], pl.DataFrame]:
        made = convert(str(source), out=str(tmp_path / "out"), mapping=mapping, overwrite=True, **options)
        return dict(made.assumptions), pl.read_parquet(tmp_path / "out" / "data" / "*.parquet")

    return run


def check(episodes: pl.DataFrame, lengths: tuple[int, ...] = LENGTHS) -> None:
    """As many steps and as much reward as went in, by episode."""
    assert sorted(episodes["length"].to_list()) == sorted(lengths)
    if lengths == LENGTHS:
        first = np.cumsum([0, *LENGTHS])
        assert sorted(episodes["return"].to_list()) == sorted(sum(range(a, b)) for a, b in pairwise(first))


# ---- rows ----


def by_pandas(path: Path) -> None:
    steps().to_pandas().to_csv(path, index=False)


def by_excel(path: Path) -> None:
    steps().to_pandas().to_csv(path, sep=";", decimal=",", index=False, encoding="cp1251", lineterminator="\r\n")


def by_r(path: Path) -> None:
    """As R's write.csv does: names quoted, a column of row numbers without a name."""
    lines = ['"","ep","t","x","y","a","r"']
    lines += [f'"{i}",' + ",".join(map(str, row)) for i, row in enumerate(steps().iter_rows(), 1)]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def by_duckdb(path: Path) -> None:
    duckdb.from_arrow(steps().to_arrow()).write_csv(str(path), compression="gzip")


def by_numpy(path: Path) -> None:
    np.savetxt(path, steps().to_numpy(), delimiter=",", header="ep,t,x,y,a,r", comments="")


def utf_16(path: Path) -> None:
    path.write_text(steps().write_csv(), encoding="utf-16")


def json_array(path: Path) -> None:
    path.write_text(json.dumps(steps().to_dicts(), indent=1), encoding="utf-8-sig")


def json_lines(path: Path) -> None:
    path.write_text(steps().write_ndjson(), encoding="utf-8-sig")


def packed_lines(path: Path) -> None:
    path.write_bytes(gzip.compress(steps().write_ndjson().encode()))


def arrow_stream(path: Path) -> None:
    steps().write_ipc_stream(path)


def arrow_file(path: Path) -> None:
    steps().with_columns(pl.col("ep").cast(pl.String).cast(pl.Categorical)).write_ipc(path)


WRITERS = [
    (by_pandas, "a.csv", {}),
    (by_excel, "a.csv", {"csv": {"delimiter": ";", "decimal": ",", "encoding": "cp1251"}}),
    (by_r, "a.csv", {}),
    (by_duckdb, "a.csv.gz", {}),
    (by_numpy, "a.csv", {}),
    (utf_16, "a.csv", {"csv": {"encoding": "utf-16"}}),
    (json_array, "a.json", {}),
    (json_lines, "a.jsonl", {}),
    (packed_lines, "a.jsonl.gz", {}),
    (arrow_stream, "a.arrow", {}),
    (arrow_file, "a.arrow", {}),
]


@pytest.mark.parametrize(("write", "name", "more"), WRITERS, ids=[write.__name__ for write, _, _ in WRITERS])
def test_rows_are_read_as_each_writer_wrote_them(
    write: Callable[[Path], None], name: str, more: dict[str, Any], tmp_path: Path, converted: Converted
) -> None:
    write(tmp_path / name)
    _, episodes = converted(tmp_path / name, {**KEYED, **more})
    check(episodes)


def test_a_dataset_of_steps_on_disk_as_hugging_face_lays_it_out(tmp_path: Path, converted: Converted) -> None:
    folder = tmp_path / "steps"
    folder.mkdir()
    table = steps().to_arrow()
    for part, rows in enumerate((table.slice(0, 7), table.slice(7))):
        with (
            pa.OSFile(str(folder / f"data-{part:05}-of-00002.arrow"), "wb") as file,
            pa.ipc.new_stream(file, rows.schema) as out,
        ):
            out.write_table(rows)
    files = [{"filename": f"data-{part:05}-of-00002.arrow"} for part in (0, 1)]
    (folder / "state.json").write_text(json.dumps({"_data_files": files, "_fingerprint": "0"}))
    (folder / "dataset_info.json").write_text(json.dumps({"features": {}}))
    check(converted(folder, KEYED)[1])


def test_types_that_arrow_alone_has_become_numbers(tmp_path: Path, converted: Converted) -> None:
    frame = steps()
    columns = {
        "ep": pa.array([uuid.UUID(int=e).bytes for e in frame["ep"]], pa.uuid()),
        "t": pa.array([dt.datetime(2024, 1, 1, tzinfo=dt.UTC) + dt.timedelta(seconds=int(t)) for t in frame["t"]]),
        "x": pa.array(frame["x"].to_numpy().astype(np.float16)),
        "y": pa.array([list(pair) for pair in zip(frame["x"], frame["y"], strict=True)], pa.list_(pa.float32(), 2)),
        "a": pa.array(frame["a"].to_list(), pa.uint8()),
        "r": pa.array(frame["r"].to_list()).cast(pa.decimal256(40, 2)),
    }
    table = pa.table(columns)
    with pa.OSFile(str(tmp_path / "a.arrow"), "wb") as file, pa.ipc.new_file(file, table.schema) as out:
        out.write_table(table)
    check(converted(tmp_path / "a.arrow", KEYED)[1])


def test_a_type_that_is_not_supported_is_named_by_column_and_type(tmp_path: Path, converted: Converted) -> None:
    table = steps().to_arrow().set_column(2, "x", pa.array([pa.MonthDayNano([1, 2, 3])] * STEPS))
    with pa.OSFile(str(tmp_path / "a.arrow"), "wb") as file, pa.ipc.new_file(file, table.schema) as out:
        out.write_table(table)
    with pytest.raises(BadMapping) as caught:
        converted(tmp_path / "a.arrow", KEYED)
    assert "column 'x' holds month_day_nano_interval" in str(caught.value)


@pytest.mark.parametrize(
    "as_frame", [lambda frame: frame, pl.DataFrame.to_pandas, pl.DataFrame.to_arrow], ids=["polars", "pandas", "pyarrow"]
)
def test_a_table_in_memory_is_a_source(as_frame: Callable[[pl.DataFrame], Any], tmp_path: Path) -> None:
    made = convert(as_frame(steps()), out=str(tmp_path / "out"), mapping=KEYED)
    assert made.episodes == 3
    check(pl.read_parquet(tmp_path / "out" / "data" / "*.parquet"))


# ---- where an episode begins and ends ----


@pytest.mark.parametrize(
    "kind",
    [pa.uuid(), pa.binary(), pa.date32(), pa.float64(), pa.decimal128(5, 1), pa.timestamp("ms"), pa.int8()],
    ids=str,
)
def test_ids_may_be_of_any_type_and_rows_in_any_order(kind: pa.DataType, tmp_path: Path, converted: Converted) -> None:
    frame = steps().sample(fraction=1.0, shuffle=True, seed=3)
    known = {
        pa.uuid(): lambda e: uuid.UUID(int=e).bytes,
        pa.binary(): lambda e: bytes([255, e]),
        pa.date32(): lambda e: dt.date(2024, 1, 1 + e),
        pa.decimal128(5, 1): Decimal,
        pa.timestamp("ms"): lambda e: dt.datetime(2024, 1, 1 + e),
        pa.float64(): float,
    }.get(kind, int)
    table = frame.to_arrow().set_column(0, "ep", pa.array([known(e) for e in frame["ep"].to_list()], kind))
    pq.write_table(table, tmp_path / "a.parquet")
    check(converted(tmp_path / "a.parquet", KEYED)[1])


def test_several_columns_are_one_id(tmp_path: Path, converted: Converted) -> None:
    steps().with_columns(machine=pl.lit("m"), day=pl.col("ep")).drop("ep").write_parquet(tmp_path / "a.parquet")
    _, episodes = converted(tmp_path / "a.parquet", mapped(columns={"eps_id": ["machine", "day"], "t": "t"}, unmapped="drop"))
    check(episodes)
    assert sorted(name.partition("-")[2] for name in episodes["eps_id"]) == ["m-0", "m-1", "m-2"]


@pytest.mark.parametrize("yes", ["True", "1", "1.0", "1.000000e+00", "yes"])
def test_end_flags_of_any_format_divide_the_rows(yes: str, tmp_path: Path, converted: Converted) -> None:
    no = {"True": "False", "1": "0", "1.0": "0.0", "1.000000e+00": "0.000000e+00", "yes": "no"}[yes]
    ends = [yes if step in (3, 8, 14) else no for step in range(STEPS)]
    steps().drop("ep", "t").with_columns(done=pl.Series(ends)).write_csv(tmp_path / "a.csv")
    assumed, episodes = converted(tmp_path / "a.csv", mapped(columns={"dones": "done"}))
    check(episodes)
    assert assumed["dones-as-terminateds"] == 3
    assert "unfinished-episode" not in assumed


def test_start_flags_divide_the_rows(tmp_path: Path, converted: Converted) -> None:
    starts = [float(step in (0, 4, 9)) for step in range(STEPS)]
    steps().drop("ep", "t").with_columns(episode_starts=pl.Series(starts)).write_parquet(tmp_path / "a.parquet")
    check(converted(tmp_path / "a.parquet", mapped(columns={"starts": "episode_starts"}))[1])


@pytest.mark.parametrize("said", [{}, {"eps_id": "@file"}], ids=["without a sign", "said"])
def test_each_file_is_an_episode(said: dict[str, Any], tmp_path: Path, converted: Converted) -> None:
    (tmp_path / "eps").mkdir()
    for episode, rows in steps().group_by("ep", maintain_order=True):
        rows.drop("ep", "t").write_csv(tmp_path / "eps" / f"[{episode[0]}] it's.csv")
    check(converted(tmp_path / "eps", mapped(columns=said))[1])


def test_partitions_of_a_folder_are_columns(tmp_path: Path, converted: Converted) -> None:
    table = steps().to_arrow()
    pq.write_to_dataset(table, str(tmp_path / "lake"), partition_cols=["ep"])
    check(converted(tmp_path / "lake", KEYED)[1])


def test_a_folder_is_an_episode(tmp_path: Path, converted: Converted) -> None:
    for episode, rows in steps().group_by("ep", maintain_order=True):
        for part in range(2):
            folder = tmp_path / "runs" / f"run {episode[0]}"
            folder.mkdir(parents=True, exist_ok=True)
            rows.drop("ep", "t")[part * 2 : (part + 1) * 2 if not part else None].write_csv(folder / f"{part}.csv")
    check(converted(tmp_path / "runs", mapped(columns={"eps_id": "@folder"}))[1])


def test_a_row_is_an_episode_where_cells_hold_lists_of_steps(tmp_path: Path, converted: Converted) -> None:
    frame = steps().group_by("ep", maintain_order=True).agg(pl.concat_list("x", "y").alias("obs"), "a", "r")
    frame.write_parquet(tmp_path / "a.parquet")
    mapping = {"action_scale": "env", "columns": {"obs": "obs", "actions": "a", "rewards": "r"}}
    check(converted(tmp_path / "a.parquet", mapping)[1])


def test_lists_of_different_lengths_in_one_row_cost_that_episode(tmp_path: Path, converted: Converted) -> None:
    rows = [{"o": [[0.5]] * n, "a": [0] * n, "r": [1.0] * m} for n, m in ((4, 4), (5, 4), (6, 6))]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "a.parquet")
    mapping = {"rows": "episodes", "columns": {"obs": "o", "actions": "a", "rewards": "r"}}
    assumed, episodes = converted(tmp_path / "a.parquet", mapping, on_error="skip")
    assert sorted(episodes["length"].to_list()) == [4, 6]
    assert assumed["lost-episode-bad-row"] == 1


def test_a_row_without_a_step_is_counted(tmp_path: Path, converted: Converted) -> None:
    rows = [{"o": [[0.5]] * n, "a": [0] * n, "r": [1.0] * n} for n in (4, 0, 6)]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "a.parquet")
    mapping = {"rows": "episodes", "columns": {"obs": "o", "actions": "a", "rewards": "r"}}
    assumed, episodes = converted(tmp_path / "a.parquet", mapping)
    assert sorted(episodes["length"].to_list()) == [4, 6]
    assert assumed["zero-length-episode"] == 1


def test_a_gap_in_time_begins_an_episode(tmp_path: Path, converted: Converted) -> None:
    frame = steps()
    stamps = [dt.datetime(2024, 1, 1) + dt.timedelta(minutes=step, hours=int(e)) for step, e in enumerate(frame["ep"])]
    frame = frame.with_columns(stamp=pl.Series(stamps)).drop("ep", "t").sample(fraction=1.0, shuffle=True, seed=1)
    frame.write_csv(tmp_path / "a.csv")
    check(converted(tmp_path / "a.csv", mapped(columns={"t": "stamp"}, gap="30min"))[1])


def test_a_period_of_time_is_an_episode(tmp_path: Path, converted: Converted) -> None:
    frame = steps()
    stamps = [dt.datetime(2024, 1, 1 + e, t) for e, t in zip(frame["ep"], frame["t"], strict=True)]
    frame.with_columns(stamp=pl.Series(stamps)).drop("ep", "t").write_parquet(tmp_path / "a.parquet")
    check(converted(tmp_path / "a.parquet", mapped(columns={"t": "stamp"}, period="1d"))[1])


def test_a_chain_of_observations_divides_the_rows(tmp_path: Path, converted: Converted) -> None:
    frame = steps().with_columns(nx=pl.col("x").shift(-1).over("ep"), ny=pl.col("y").shift(-1).over("ep")).fill_null(9.0)
    frame.drop("ep", "t").write_parquet(tmp_path / "a.parquet")
    mapping = mapped(columns={"new_obs": ["nx", "ny"]}, episode_ends="chain")
    check(converted(tmp_path / "a.parquet", mapping)[1])


# ---- columns ----


def test_a_dummy_first_action_is_shifted_away(tmp_path: Path, converted: Converted) -> None:
    steps().write_parquet(tmp_path / "a.parquet")
    assumed, episodes = converted(tmp_path / "a.parquet", {**KEYED, "shift": 1})
    assert sorted(episodes["length"].to_list()) == [3, 4, 5]
    assert sorted(episodes["return"].to_list()) == [sum((1, 2, 3)), sum(range(5, 9)), sum(range(10, 15))]
    assert "missing-final-observation" not in assumed


def test_a_cost_is_a_negative_reward(tmp_path: Path, converted: Converted) -> None:
    steps().rename({"r": "cost"}).write_parquet(tmp_path / "a.parquet")
    _, episodes = converted(tmp_path / "a.parquet", mapped(columns={"eps_id": "ep", "t": "t", "rewards": "-cost"}))
    assert sorted(-episodes["return"]) == [sum(range(4)), sum(range(4, 9)), sum(range(9, 15))]


@pytest.mark.parametrize("space", [None, "Discrete"])
def test_choices_of_one_number_in_a_list_are_choices(space: str | None, tmp_path: Path, converted: Converted) -> None:
    frame = steps().with_columns(a=pl.concat_list("a").list.to_array(1))
    frame.write_parquet(tmp_path / "a.parquet")
    spaces = {"spaces": {"action": {"type": "Discrete", "n": 3}}} if space else {}
    check(converted(tmp_path / "a.parquet", {**KEYED, **spaces})[1])
    manifest = json.loads((tmp_path / "out" / "manifest.json").read_text())
    assert manifest["spaces"]["action"]["type"] == "Discrete" if "spaces" in manifest else manifest["action_space"]["type"]


# ---- bad rows, and names that are SQL ----


def test_names_and_texts_of_files_are_never_sql(tmp_path: Path, converted: Converted) -> None:
    names = {"ep": 'e"; DROP TABLE steps; --', "x": "x'", "a": 'a" FROM steps', "y": "X'"}  # and one that differs in case alone
    texts = pl.lit("') OR 1=1; --") + pl.col("ep").cast(pl.String)
    steps().with_columns(ep=texts).rename(names).write_csv(tmp_path / "a'; --.csv")
    columns = {"eps_id": names["ep"], "t": "t", "obs": [names["x"], names["y"]], "actions": names["a"]}
    check(converted(tmp_path / "a'; --.csv", mapped(columns=columns))[1])


# ---- proposals ----


@pytest.mark.parametrize("layout", ["ids", "starts", "files", "row an episode", "gap", "semicolons", "categories", "cost"])
def test_a_proposed_mapping_works_as_it_is_printed(layout: str, tmp_path: Path, converted: Converted) -> None:
    frame, source = steps(), tmp_path / "a.parquet"
    plain = frame.drop("ep", "t")
    if layout == "files":
        source = tmp_path / "eps"
        source.mkdir()
        for episode, rows in frame.group_by("ep", maintain_order=True):
            rows.drop("ep", "t").write_csv(source / f"{episode[0]}.csv")
    elif layout == "semicolons":
        source = tmp_path / "a.csv"
        by_excel(source)
    else:
        made = {
            "starts": lambda: plain.with_columns(episode_starts=pl.Series([step in (0, 4, 9) for step in range(STEPS)])),
            "row an episode": lambda: frame.group_by("ep", maintain_order=True).agg(
                pl.concat_list("x", "y").alias("observations"), pl.col("a").alias("actions"), pl.col("r").alias("rewards")
            ),
            "gap": lambda: plain.with_columns(
                ts=pl.Series([dt.datetime(2024, 1, 1 + int(e)) + dt.timedelta(seconds=t) for t, e in enumerate(frame["ep"])])
            ),
            "categories": lambda: frame.with_columns(a=pl.Series(["left", "right", "stay"] * 5)),
            "cost": lambda: frame.rename({"r": "cost"}),
            "ids": lambda: frame,
        }[layout]()
        made.write_parquet(source)
    with pytest.raises(BadMapping) as caught:
        convert(str(source), out=str(tmp_path / "none"))
    text = caught.value.details["starting_mapping"]
    (tmp_path / "proposed.toml").write_text(text, encoding="utf-8")
    _, episodes = converted(source, str(tmp_path / "proposed.toml"))
    check(episodes.with_columns(pl.col("return").abs()))


@pytest.mark.parametrize("suffix", ["jsonl", "parquet"])
def test_infos_of_rllibs_columns_are_kept_as_they_are(suffix: str, tmp_path: Path) -> None:
    rows = [
        {"eps_id": "a", "t": t, "obs": [0.5, t], "actions": t % 2, "rewards": 1.0, "terminateds": t == 2, "truncateds": False}
        | {"infos": {"lives": 3 - t}}
        for t in range(3)
    ]
    source = tmp_path / f"steps.{suffix}"
    if suffix == "jsonl":
        source.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    else:
        pq.write_table(pa.Table.from_pylist(rows), source)
    convert(source, tmp_path / "D", from_="table")
    (episode,) = open_dataset(tmp_path / "D")
    assert episode.get_infos() == [{}, {"lives": 3}, {"lives": 2}, {"lives": 1}]

"""Tables in the manners of real users become known episodes, in whatever order their rows stand.

What every episode holds follows from formulas that are written down here once more, in plain Python.
"""

from __future__ import annotations

import csv
import gzip
import io
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from gymnasium import spaces

from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.trees import flatten

TABLES = Path(__file__).resolve().parent.parent / "testdata" / "tables"
Read = Callable[..., Any]


def length(e: int) -> int:
    return 3 + e


def vector(e: int, t: int, size: int) -> list[float]:
    return [e + t / 8 + i / 2 for i in range(size)]


@dataclass
class Expected:
    """One table and what it says."""

    file: str
    mapping: str | None  # a file beside it, or a preset
    theirs: Callable[[int], str] | None = None  # id of the e-th episode; None: the table has none
    obs: Callable[[int, int], Any] = lambda e, t: {"": vector(e, t, 2)}  # by dotted path
    actions: Callable[[int, int], Any] = lambda e, t: {"": (e + t) % 3}
    reward: Callable[[int, int], float] = lambda e, t: t - e / 4
    ended: Callable[[int], str] = lambda e: "truncated"
    has_next: bool = False  # the last observation is in the table
    extra: dict[str, Callable[[int, int], float]] = field(default_factory=dict)
    assumptions: dict[str, int] = field(default_factory=dict)


UNENDED = {"missing-end-flags": 1, "unfinished-episode": 3}
SHIFTED = {"missing-final-observation": 3}
NAMELESS = {"missing-eps-id": 3}

EXPECTED = [
    Expected(
        "robot_log.csv",
        "robot_log.toml",
        theirs=lambda e: f"run-0{e}",
        obs=lambda e, t: {"": vector(e, t, 3)},
        actions=lambda e, t: {"": [(t + 1) / 4, -e / 2]},
        ended=lambda e: "terminated",
        extra={"battery": lambda e, t: 100 - t},
        assumptions={**SHIFTED, "null-as-false": 9, "dones-as-terminateds": 3},
    ),
    Expected(
        "recommender.jsonl",
        "recommender.toml",
        theirs=lambda e: f"s/{e}",
        assumptions={**SHIFTED, **UNENDED, "dropped-column": 1},
    ),
    Expected(
        "d4rl.parquet",
        "d4rl-table",
        obs=lambda e, t: {"": vector(e, t, 3)},
        actions=lambda e, t: {"": [(t - e) / 8, t / 16]},
        ended=lambda e: "truncated" if e % 2 else "terminated",
        assumptions={**SHIFTED, **NAMELESS},
    ),
    Expected(
        "old_gym.csv",
        "gym-legacy",
        ended=lambda e: "terminated",
        has_next=True,
        extra={"action_logp": lambda e, t: -0.5 * t},
        assumptions={**NAMELESS, "dones-as-terminateds": 3},
    ),
    Expected("kaggle.csv", "kaggle.toml", theirs=str, assumptions={**SHIFTED, **UNENDED, "dropped-column": 2}),
    Expected(
        "minari_export.parquet",
        "minari_export.toml",
        theirs=str,
        obs=lambda e, t: {"": vector(e, t, 4)},
        ended=lambda e: "truncated" if e else "terminated",
        has_next=True,
    ),
    Expected(
        "dict_observations.parquet",
        "dict_observations.toml",
        theirs=lambda e: f"t{e}",
        obs=lambda e, t: {"camera": [[e, t], [t, e]], "arm.angle": vector(e, t, 1)[0], "arm.load": vector(e, t, 2)[1]},
        actions=lambda e, t: {"grip": (e + t) % 3, "speed": [t / 2]},
        ended=lambda e: "terminated",
        assumptions=SHIFTED,
    ),
    Expected("json_cells.csv.gz", None, theirs=str, ended=lambda e: "terminated", assumptions=SHIFTED),
    Expected(
        "arrow_parts",
        None,
        theirs=lambda e: f"ep{e}",
        ended=lambda e: "terminated",
        extra={"action_logp": lambda e, t: -t / 4},
        assumptions=SHIFTED,
    ),
    Expected(
        "from_one.tsv",
        "from_one.toml",
        theirs=lambda e: str(e + 10),
        reward=lambda e, t: 0.0,
        assumptions={**SHIFTED, **UNENDED, "missing-rewards": 12},
    ),
    Expected("falling_back.csv", "falling_back.toml", assumptions={**SHIFTED, **UNENDED, **NAMELESS}),
    Expected("chain.parquet", "chain.toml", has_next=True, assumptions={**UNENDED, **NAMELESS}),
    Expected("decimal_commas.csv", "decimal_commas.toml", theirs=str, assumptions={**SHIFTED, **UNENDED}),
]
WITH_ORDER = [table for table in EXPECTED if table.theirs is not None and table.file != "arrow_parts"]


def named(table: Expected) -> str:
    return table.file


def mapping_of(table: Expected) -> str | None:
    return str(TABLES / table.mapping) if table.mapping and table.mapping.endswith(".toml") else table.mapping


def check(table: Expected, batch: EpisodeBatch) -> None:
    """Every value of every episode; the last observation is repeated where the table has none."""
    order = range(3) if table.theirs is None else [source_ids(batch).index(table.theirs(e)) for e in range(3)]
    assert batch.lengths[list(order)].tolist() == [length(e) for e in range(3)]
    for e, entry in enumerate(order):
        a, b = int(batch.starts[entry]), int(batch.starts[entry + 1])
        steps = [*range(length(e)), length(e) if table.has_next else length(e) - 1]
        for path, leaf in flatten(batch.obs):
            np.testing.assert_array_equal(leaf[a + entry : b + entry + 1], [table.obs(e, t)[path] for t in steps])
        for path, leaf in flatten(batch.actions):
            np.testing.assert_array_equal(leaf[a:b], [table.actions(e, t)[path] for t in steps[:-1]])
        assert batch.rewards[a:b].tolist() == [table.reward(e, t) for t in steps[:-1]]
        for name, value in table.extra.items():
            assert batch.extra[name][a:b].tolist() == [value(e, t) for t in steps[:-1]]
        assert bool(batch.terminated[entry]) == (table.ended(e) == "terminated")
        assert bool(batch.truncated[entry]) == (table.ended(e) == "truncated")
    assert set(batch.extra) == set(table.extra)
    assert {path for path, _ in flatten(batch.obs)} == set(table.obs(0, 0))


def source_ids(batch: EpisodeBatch) -> list[str]:
    assert batch.custom_data is not None
    return [data["source_id"] for data in batch.custom_data]


@pytest.mark.parametrize("table", EXPECTED, ids=named)
def test_a_table_becomes_the_episodes_that_it_says(table: Expected, read_table: Read) -> None:
    stream, batch = read_table(TABLES / table.file, mapping_of(table))
    check(table, batch)
    assert dict(stream.tally.assumptions) == table.assumptions
    assert stream.tally.rows_in == 12


@pytest.mark.parametrize("table", WITH_ORDER, ids=named)
def test_a_shuffled_copy_of_a_table_with_id_and_t_gives_the_same_episodes(
    table: Expected, read_table: Read, tmp_path: Path
) -> None:
    copy = shuffled(TABLES / table.file, tmp_path / "shuffled", seed=0)
    stream, batch = read_table(copy, mapping_of(table))
    check(table, batch)
    assert stream.tally.assumptions["unfinished-episode"] == table.assumptions.get("unfinished-episode", 0)


def test_agents_that_share_an_episode_have_an_episode_each(read_table: Read) -> None:
    _, batch = read_table(TABLES / "two_agents.jsonl", str(TABLES / "two_agents.toml"))
    prefix = batch.ids[0][:8]
    assert set(batch.ids) == {f"{prefix}-{e}-brain-{name}-{name}" for e in range(3) for name in ("red", "blue")}
    assert batch.multi_agent_ids is not None
    for entry in range(6):
        e, k = int(source_ids(batch)[entry]), ["red", "blue"].index(batch.agent_ids[entry])
        assert batch.multi_agent_ids[entry] == f"{prefix}-{e}"
        assert batch.module_ids[entry] == f"brain-{batch.agent_ids[entry]}"
        a, b = int(batch.starts[entry]), int(batch.starts[entry + 1])
        assert batch.rewards[a:b].tolist() == [t - e / 4 + k for t in range(length(e))]
        acted = batch.obs[a + entry : b + entry].tolist()
        assert acted == [[e + t / 8 + k / 2, e + t / 8 + (k + 1) / 2] for t in range(length(e))]


def test_infos_of_a_table_stand_at_the_step_that_they_came_with(read_table: Read) -> None:
    _, batch = read_table(TABLES / "old_gym.csv", "gym-legacy")
    at = {(e, t): batch.infos[int(batch.obs_starts[e]) + t] for e in range(3) for t in range(length(e) + 1)}
    assert {place: info for place, info in at.items() if info} == {(e, 2): {"lives": 3 - e} for e in range(3)}


def test_spaces_follow_from_values_and_are_called_inferred(read_table: Read) -> None:
    stream, _ = read_table(TABLES / "dict_observations.parquet", str(TABLES / "dict_observations.toml"))
    assert stream.spaces_inferred
    assert stream.observation_space["camera"] == spaces.Box(0, 255, (2, 2), np.uint8)
    assert stream.action_space["grip"] == spaces.Discrete(3)
    assert stream.action_scale == "unknown"


def test_a_copy_of_a_table_elsewhere_gives_the_same_ids_and_another_table_others(read_table: Read, tmp_path: Path) -> None:
    copy = tmp_path / "elsewhere.data"
    copy.write_bytes((TABLES / "json_cells.csv.gz").read_bytes())
    changed = tmp_path / "changed.csv"
    changed.write_bytes(gzip.decompress(copy.read_bytes()).replace(b"-0.5,", b"-0.25,"))
    ids = [read_table(path, None)[1].ids for path in (TABLES / "json_cells.csv.gz", copy, changed)]
    assert ids[0] == ids[1]
    assert not set(ids[0]) & set(ids[2])
    assert all(name[8] == "-" and int(name[:8], 16) >= 0 for name in ids[0])


# ---- shuffling, format by format ----


def shuffled(path: Path, folder: Path, seed: int) -> Path:
    folder.mkdir()
    rng = random.Random(seed)
    copy = folder / path.name
    if path.suffix == ".parquet":
        table = pq.read_table(path)
        pq.write_table(table.take(rng.sample(range(table.num_rows), table.num_rows)), copy)
    elif path.suffix == ".jsonl":
        lines = path.read_text(encoding="utf-8").splitlines()
        copy.write_text("\n".join(rng.sample(lines, len(lines))) + "\n", encoding="utf-8")
    else:
        copy.write_bytes(shuffled_csv(path, rng))
    return copy


def shuffled_csv(path: Path, rng: random.Random) -> bytes:
    data = path.read_bytes()
    text = (gzip.decompress(data) if path.suffix == ".gz" else data).decode()
    delimiter = {"from_one.tsv": "\t", "decimal_commas.csv": ";"}.get(path.name, ",")
    header, *rows = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter)
    out = io.StringIO(newline="")
    csv.writer(out, delimiter=delimiter).writerows([header, *rng.sample(rows, len(rows))])
    return gzip.compress(out.getvalue().encode()) if path.suffix == ".gz" else out.getvalue().encode()

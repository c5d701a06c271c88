"""Two and three sources of whatever formats are one reading: every count is the sum of those of its parts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from made_recordings import (
    TABLES,
    Written,
    assert_same_episodes,
    made,
    read,
    rows_of,
    write_table,
)
from spoiling import spoil_cells

from offline_cli.converting.reading import read_episodes
from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.errors import OfflineCliError
from offline_cli.tally import DROPPED

Write = Callable[..., Written]
EPISODES = 20
SHARING = [("rllib-columns", "episodes"), ("sample-batch", "rllib-episodes"), ("columns", "sample-batch-packed")]
TRIPLES = [
    ("csv", "sample-batch", "columns"),
    ("episodes", "rllib-packed", "jsonl"),
    ("rllib-episodes", "arrow", "sample-batch-packed"),
    ("parquet", "csv", "arrow"),
    ("rllib-columns", "episodes", "rllib-episodes"),
    ("jsonl", "columns", "sample-batch"),
]


def of_all(batches: list[EpisodeBatch]) -> EpisodeBatch:
    return EpisodeBatch.concat(batches)


@pytest.mark.parametrize("kinds", TRIPLES, ids="+".join)
def test_the_counts_of_several_sources_are_the_sum_of_each_alone(kinds: tuple[str, ...], written: Write) -> None:
    sources = [written(kind, EPISODES + 5 * number, 3, first=1000 * number) for number, kind in enumerate(kinds)]
    found, together, _ = read(*sources)
    alone = [read(source)[1] for source in sources]
    assert together == sum(alone[1:], alone[0])
    assert_same_episodes(found, of_all([source.batch for source in sources]))


@pytest.mark.parametrize("kinds", SHARING, ids="+".join)
def test_episodes_that_two_sources_share_are_duplicates_of_the_first(kinds: tuple[str, str], written: Write) -> None:
    one, other = written(kinds[0], EPISODES, 3), written(kinds[1], EPISODES, 3, first=EPISODES // 2)
    found, together, _ = read(one, other)
    alone = [read(source)[1] for source in (one, other)]
    shared = EPISODES // 2
    assert together == replace(
        alone[0] + alone[1], episodes=2 * EPISODES - shared, steps=3 * (2 * EPISODES - shared), duplicates=shared
    )
    assert_same_episodes(found, made(EPISODES + shared, 3))


# ---- sources with something wrong in each ----


@pytest.fixture
def source_of(tmp_path: Path) -> Callable[..., Written]:
    """A function that writes a table of rows, changed by `change`, and makes some of its values unreadable."""

    def make(kind: str, number: int, change: Callable[[pa.Table], pa.Table], bad: tuple[int, ...] = ()) -> Written:
        folder = tmp_path / f"{number}"
        folder.mkdir()
        batch = made(EPISODES, 3, first=1000 * number)
        suffix = kind if kind in TABLES else "parquet"
        rows = change(rows_of(batch))
        if kind == "csv":
            for name in ("obs", "new_obs"):
                if name in rows.column_names:
                    texts = pa.array([str(value) for value in rows[name].to_pylist()])
                    rows = rows.set_column(rows.column_names.index(name), name, texts)
        spoil = write_table(folder / f"part.{suffix}", rows)
        if bad:
            spoil_cells(spoil, bad)
        return Written(kind, folder, batch)

    return make


def without_next(rows: pa.Table) -> pa.Table:
    return rows.drop_columns(["new_obs"])


def without_end(rows: pa.Table) -> pa.Table:
    """The last episode is not ended."""
    flags = rows["terminateds"].to_numpy().copy()
    flags[-1] = False
    return rows.set_column(rows.column_names.index("terminateds"), "terminateds", pa.array(flags))


def with_gaps(rows: pa.Table) -> pa.Table:
    return rows.set_column(rows.column_names.index("t"), "t", pa.array(rows["t"].to_numpy() * 2))


def with_texts(rows: pa.Table) -> pa.Table:
    return rows.append_column("note", pa.array(["a note"] * rows.num_rows))


def twice(rows: pa.Table) -> pa.Table:
    return pa.concat_tables([rows, rows.slice(0, 6)])


CHANGES = (without_next, without_end, with_gaps, with_texts, twice)
FORMATS = [("csv", "jsonl"), ("arrow", "csv"), ("rllib-columns", "jsonl"), ("arrow", "rllib-columns")]
FAULTY = [  # each two changes, in formats by turns; a recorder's timesteps are what they are
    (FORMATS[number % 2 if set(changes) & {with_gaps, twice} else number % 4], changes)
    for number, changes in enumerate(zip(CHANGES, (*CHANGES[2:], *CHANGES[:2]), strict=True))
]


@pytest.mark.parametrize(
    ("kinds", "changes"), FAULTY, ids=[f"{'+'.join(k)}-{'+'.join(one.__name__ for one in c)}" for k, c in FAULTY]
)
def test_what_is_assumed_of_two_sources_is_the_sum_of_what_is_assumed_of_each(
    kinds: tuple[str, str], changes: tuple[Any, Any], source_of: Callable[..., Written]
) -> None:
    sources = [
        source_of(kind, number, change, bad)
        for number, (kind, change, bad) in enumerate(zip(kinds, changes, ((7, 8), (20,)), strict=True))
    ]
    together = read(*sources, on_error="skip")[1]
    alone = [read(source, on_error="skip")[1] for source in sources]
    assert alone[0].set_aside
    dropped = max(one.assumptions.pop(DROPPED, 0) for one in alone)
    assert together.assumptions.pop(DROPPED, 0) == dropped, "a column of one name is dropped once"
    assert together == alone[0] + alone[1]


@pytest.fixture
def broken_chain(tmp_path: Path) -> Path:
    """An episode in two files whose observations do not chain between these; the first file ends with equal observations."""
    rows = rows_of(made(1, 6)).to_pydict()
    rows["new_obs"][2] = rows["obs"][2]
    folder = tmp_path / "broken-chain"
    folder.mkdir()
    table = pa.table(rows).drop_columns(["t"])
    write_table(folder / "part-0.parquet", table.slice(0, 3))
    write_table(folder / "part-1.parquet", table.slice(3))
    return folder


@pytest.fixture
def missing_final(tmp_path: Path) -> Path:
    """An episode without next observations."""
    folder = tmp_path / "missing-final"
    folder.mkdir()
    write_table(folder / "part-0.parquet", rows_of(made(1, 4, first=100)).drop_columns(["new_obs"]))
    return folder


@pytest.mark.parametrize(
    "order",
    [
        pytest.param(1, id="broken chain first"),
        pytest.param(-1, id="missing final first"),
    ],
)
def test_what_one_source_lacks_never_takes_back_what_another_one_says(
    order: int, broken_chain: Path, missing_final: Path
) -> None:
    sources = [broken_chain, missing_final][::order]
    alone = [read(source)[1].assumptions for source in sources]
    assert {kind for one in alone for kind in one} >= {"broken-chain", "missing-final-observation"}
    assert read(*sources)[1].assumptions == {kind: count for one in alone for kind, count in one.items()}


# ---- dtypes, extra outputs, agents ----


@pytest.mark.parametrize("kinds", [("rllib-columns", "sample-batch"), ("csv", "arrow")], ids="+".join)
def test_sources_with_other_extra_outputs_are_refused_by_the_name_of_the_output(kinds: tuple[str, str], written: Write) -> None:
    sources = [written(kinds[0], EPISODES, 3, extra=("action_logp",)), written(kinds[1], EPISODES, 3, first=1000)]
    with pytest.raises(OfflineCliError, match="action_logp"):
        read(*sources)


@pytest.mark.parametrize("kinds", [("rllib-columns", "rllib-columns"), ("arrow", "jsonl")], ids="+".join)
def test_agents_of_two_sources_keep_their_names_and_policies(kinds: tuple[str, str], tmp_path: Path) -> None:
    sources, alone = [], []
    for number, kind in enumerate(kinds):
        batch = made(EPISODES, 3, first=1000 * number)
        rows = rows_of(batch)
        both = []
        for agent in ("attacker", "defender"):
            names = {"agent_id": pa.array([f"{agent}-0"] * rows.num_rows), "module_id": pa.array([agent] * rows.num_rows)}
            both.append(pa.table({**{name: rows[name] for name in rows.column_names}, **names}))
        folder = tmp_path / f"{number}"
        folder.mkdir()
        write_table(folder / f"part.{kind if kind in TABLES else 'parquet'}", pa.concat_tables(both))
        sources.append(folder)
        alone.append(read(folder)[1])
    stream = read_episodes([str(source) for source in sources])
    batches = list(stream)
    modules = [name for batch in batches for name in batch.module_ids or ()]
    agents = [name for batch in batches for name in batch.agent_ids or ()]
    assert {name: modules.count(name) for name in set(modules)} == {"attacker": 2 * EPISODES, "defender": 2 * EPISODES}
    assert {name: agents.count(name) for name in set(agents)} == {"attacker-0": 2 * EPISODES, "defender-0": 2 * EPISODES}
    assert len({name for batch in batches for name in batch.ids}) == sum(each.episodes for each in alone)
    assert stream.tally.rows_in == sum(each.rows_in for each in alone)

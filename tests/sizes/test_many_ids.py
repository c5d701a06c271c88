"""Twenty thousand ids, and ten times as many: all different, and all twice."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from growth import assert_grows_in_proportion, processor_seconds
from made_recordings import READERS, Written, assert_same_episodes, read

Write = Callable[..., Written]
MANY, MORE = 20_000, 200_000
MIB = 1 << 20


@pytest.mark.parametrize("kind", READERS)
def test_twenty_thousand_different_ids_are_as_many_episodes(kind: str, written: Write) -> None:
    source = written(kind, MANY)
    found, counts, _ = read(source)
    assert_same_episodes(found, source.batch)
    assert (counts.episodes, counts.steps, counts.duplicates, counts.stitched) == (MANY, 2 * MANY, 0, 0)


def seldom(*quick: str) -> list[Any]:
    """All readers, those but `quick` in the lane of big data."""
    return [kind if kind in quick else pytest.param(kind, marks=pytest.mark.nightly) for kind in READERS]


@pytest.mark.nightly
@pytest.mark.parametrize("kind", seldom("arrow", "rllib-columns"))
def test_twice_as_many_ids_take_twice_as_long_to_read(kind: str, written: Write) -> None:
    """Of both sizes, many ids are kept as hashes, and rows come in several blocks."""
    times = {"jsonl": 1, "columns": 10, "rllib-packed": 4}.get(kind, 2)  # more where half of it stays in caches
    sources = written(kind, times * MANY), written(kind, 2 * times * MANY)
    read(sources[0], keep=False)
    assert_grows_in_proportion(*(lambda source=source: read(source, keep=False) for source in sources))


@pytest.mark.nightly
@pytest.mark.parametrize("kind", seldom("arrow", "rllib-columns", "sample-batch-packed", "episodes"))
def test_twenty_thousand_episodes_with_the_same_beside_them_take_at_most_four_times_as_long(kind: str, written: Write) -> None:
    source = written(kind, MANY)
    found, counts, _ = read(source, source)
    assert_same_episodes(found, source.batch)
    assert (counts.episodes, counts.duplicates) == (MANY, MANY)
    assert_grows_in_proportion(lambda: read(source, keep=False), lambda: read(source, source, keep=False), most=4)


@pytest.mark.parametrize("kind", ["rllib-columns", "rllib-packed", "rllib-episodes", "sample-batch", "sample-batch-packed"])
def test_a_file_that_lies_twice_in_one_folder_is_as_if_it_lay_there_once(kind: str, written: Write, tmp_path: Path) -> None:
    source = written(kind, MANY)
    (file,) = source.path.iterdir()
    for number in range(2):
        shutil.copy(file, tmp_path / f"{number}{file.suffix}")
    found, counts, _ = read(tmp_path)
    assert_same_episodes(found, source.batch)
    assert counts.duplicates == MANY


# ---- ten times as many ----

LIMIT = 1024 * MIB  # --memory-limit's default


@pytest.mark.nightly
@pytest.mark.parametrize("kind", [kind for kind in READERS if kind not in ("jsonl", "sample-batch")])
def test_two_hundred_thousand_different_ids_convert_within_the_default_limit(
    kind: str, written: Write, memory_of: Callable[..., tuple[dict[str, Any], int]], tmp_path: Path
) -> None:
    source = written(kind, MORE)
    result, peak = memory_of("convert", *source.arguments, "--out", tmp_path / "out")
    assert (result["episodes"], result["steps"], result["duplicates_dropped"]) == (MORE, 2 * MORE, 0)
    assert peak <= LIMIT, f"{peak / MIB:.0f} MiB"


@pytest.mark.nightly
@pytest.mark.parametrize("kind", ["arrow", "rllib-columns", "rllib-episodes", "columns"])
def test_two_hundred_thousand_episodes_with_the_same_beside_them_take_at_most_four_times_as_long(
    kind: str, written: Write
) -> None:
    source = written(kind, MORE)
    once = processor_seconds(lambda: read(source, keep=False))
    found: list[Any] = []
    twice = processor_seconds(lambda: found.append(read(source, source, keep=False)[1]))
    assert (found[0].episodes, found[0].duplicates) == (MORE, MORE)
    assert twice <= 4 * once, f"{once:.2f} s once, {twice:.2f} s twice"


@pytest.mark.nightly
@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_two_hundred_thousand_ids_in_any_order_convert_within_384_mib(
    kind: str, memory_of: Callable[..., tuple[dict[str, Any], int]], tmp_path: Path
) -> None:
    import numpy as np
    from made_recordings import made, rows_of, write_table

    rows = rows_of(made(MORE, 3))
    order = np.random.default_rng(0).permutation(rows.num_rows)
    flat = rows.select(["eps_id", "t", "actions", "rewards", "terminateds"]).append_column("obs", rows["rewards"]).take(order)
    file = write_table(tmp_path / f"rows.{kind}", flat)
    limit = ("--memory-limit", "384MiB", "--temp-dir", tmp_path)
    result, peak = memory_of("convert", file, "--from", "table", "--out", tmp_path / "out", *limit)
    assert (result["episodes"], result["steps"], result["rows_in"]) == (MORE, 3 * MORE, 3 * MORE)
    assert peak <= 384 * MIB, f"{peak / MIB:.0f} MiB"

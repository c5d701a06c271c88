"""Episodes of a hundred thousand and five million steps, and a hundred thousand and a million of one step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from growth import assert_grows_in_proportion
from gymnasium import spaces
from made_recordings import READERS, Written, assert_same_episodes, made, read, write

Write = Callable[..., Written]
Memory = Callable[..., tuple[dict[str, Any], int]]
MIB = 1 << 20
LIMIT = 1024 * MIB  # --memory-limit's default, for tables; held against the other readers too
LONG, LONGEST = 100_000, 5_000_000
SHORT, SHORTEST = 50_000, 1_000_000
FAST = [kind for kind in READERS if kind not in ("jsonl", "sample-batch")]  # the others take minutes for so many rows


@pytest.mark.parametrize("kind", READERS)
def test_an_episode_of_a_hundred_thousand_steps_is_read_as_it_was_made(kind: str, written: Write) -> None:
    source = written(kind, 1, LONG, dims=1, block_rows=10_000)
    found, counts, _ = read(source)
    assert_same_episodes(found, source.batch)
    assert (counts.episodes, counts.steps) == (1, LONG)


@pytest.mark.nightly
@pytest.mark.parametrize("kind", FAST)
def test_an_episode_of_twice_as_many_steps_takes_twice_as_long_to_read(kind: str, written: Write) -> None:
    times = {"csv": 1, "parquet": 2, "arrow": 2}.get(kind, 4)
    sources = [written(kind, 1, times * steps, dims=1, block_rows=10_000) for steps in (LONG, 2 * LONG)]
    read(sources[0], keep=False)
    assert_grows_in_proportion(*(lambda source=source: read(source, keep=False) for source in sources))


@pytest.mark.parametrize("kind", READERS)
def test_fifty_thousand_episodes_of_one_step_are_read_as_they_were_made(kind: str, written: Write) -> None:
    source = written(kind, SHORT, 1, dims=1)
    found, counts, _ = read(source)
    assert_same_episodes(found, source.batch)
    assert (counts.episodes, counts.steps, counts.duplicates) == (SHORT, SHORT, 0)


@pytest.mark.nightly
@pytest.mark.parametrize("kind", FAST)
def test_an_episode_of_five_million_steps_converts_within_the_default_limit(
    kind: str, memory_of: Memory, tmp_path: Path
) -> None:
    source = write(
        kind, tmp_path / kind, made(1, LONGEST, dims=1), block_rows=50_000 if kind == "sample-batch-packed" else None
    )
    result, peak = memory_of("convert", *source.arguments, "--out", tmp_path / "out")
    assert (result["episodes"], result["steps"], result["rows_quarantined"]) == (1, LONGEST, 0)
    assert peak <= LIMIT, f"{peak / MIB:.0f} MiB"


@pytest.mark.parametrize("kind", ["arrow", "parquet"])
def test_an_episode_of_a_table_that_is_too_long_for_the_limit_is_refused_by_its_name(
    kind: str, written: Write, call: Callable[..., tuple[int, dict[str, Any]]], tmp_path: Path
) -> None:
    source = written(kind, 1, 700_000, dims=1)
    code, found = call("convert", *source.arguments, "--out", tmp_path / "out", "--memory-limit", "256MiB")
    assert (code, found["error"]["where"]) == (6, "eps_id = 0")
    assert "raise --memory-limit" in found["error"]["fix"]
    assert not (tmp_path / "out").exists()


@pytest.mark.nightly
@pytest.mark.parametrize("kind", ["arrow", "rllib-columns", "columns"])
def test_a_million_episodes_of_one_step_convert_within_the_default_limit(kind: str, memory_of: Memory, tmp_path: Path) -> None:
    source = write(kind, tmp_path / kind, made(SHORTEST, 1, dims=1))
    result, peak = memory_of("convert", *source.arguments, "--out", tmp_path / "out")
    assert (result["episodes"], result["steps"], result["duplicates_dropped"]) == (SHORTEST, SHORTEST, 0)
    assert peak <= LIMIT, f"{peak / MIB:.0f} MiB"


def test_an_episode_that_compresses_far_better_than_a_reader_believes_is_written_so_that_it_is_read(tmp_path: Path) -> None:
    """A hundred MiB of zeros: a screen that stays black, a log of a robot at rest."""
    batch = made(1, 1000, dims=2)
    still = np.zeros((1001, 26_000), np.float32)
    black = replace(batch, obs=still, observation_space=spaces.Box(-1.0, 1.0, (26_000,)))
    source = write("episodes", tmp_path / "black", black)
    found, counts, _ = read(source)
    assert_same_episodes(found, black)
    assert counts.steps == 1000

"""Files of three blocks and more: rows that cannot be read cost their own episodes, wherever they stand among the blocks."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from made_recordings import FOREIGN, Written, assert_same_episodes, read, without
from spoiling import lost_beside, spoil_cells, spoil_lines

from offline_cli.errors import BadData

Write = Callable[..., Written]
LENGTH, EPISODES, BLOCK = 5, 13, 16  # episodes, rows and blocks end in different places
ROWS = EPISODES * LENGTH
AROUND = tuple(row for row in range(ROWS) if row in (0, ROWS - 1) or row % BLOCK in (BLOCK - 1, 0, 1))
CELLS = ("csv", "jsonl", "arrow", "parquet", "rllib-columns", "rllib-packed")
LINES = ("csv", "jsonl")
MAPPING = """
unmapped = "drop"
episode_ends = "flags"
[columns]
obs = "obs"
actions = "actions"
rewards = "rewards"
terminateds = "terminateds"
new_obs = "new_obs"
"""


@pytest.fixture
def spoiled(written: Write, small_blocks: None, tmp_path: Path) -> Callable[..., Written]:
    """A function that copies made episodes, with faults in some rows."""

    def make(kind: str, spoil: Callable[..., None], rows: Collection[int], **said: Any) -> Written:
        whole = written(kind, EPISODES, LENGTH, block_rows=BLOCK)
        shutil.rmtree(tmp_path / "spoiled", ignore_errors=True)
        shutil.copytree(whole.path, tmp_path / "spoiled")
        (file,) = (tmp_path / "spoiled").iterdir()
        spoil(file, rows, **said)
        return Written(kind, tmp_path / "spoiled", whole.batch)

    return make


@pytest.mark.parametrize("kind", FOREIGN)
def test_whole_files_of_many_blocks_are_read_as_they_were_made(kind: str, written: Write, small_blocks: None) -> None:
    source = written(kind, EPISODES, LENGTH, block_rows=BLOCK)
    found, counts, _ = read(source)
    assert_same_episodes(found, source.batch)
    assert (counts.duplicates, counts.set_aside) == (0, 0)
    assert counts.assumptions.keys() <= {"dtype-inferred"}


@pytest.mark.parametrize("kind", CELLS)
def test_a_value_that_cannot_be_read_costs_its_own_episode_on_either_side_of_a_border(
    kind: str, spoiled: Callable[..., Written]
) -> None:
    for row in AROUND:
        source = spoiled(kind, spoil_cells, [row], block_rows=BLOCK)
        found, counts, _ = read(source, on_error="skip")
        assert_same_episodes(found, without(source.batch, {row // LENGTH}))
        assert (counts.rows_in, counts.set_aside) == (ROWS, LENGTH), row


@pytest.mark.parametrize("kind", CELLS)
def test_values_that_cannot_be_read_on_both_sides_of_all_borders_cost_their_episodes(
    kind: str, spoiled: Callable[..., Written]
) -> None:
    rows = [row for row in AROUND if 0 < row < ROWS - 1]
    source = spoiled(kind, spoil_cells, rows, block_rows=BLOCK)
    lost = {row // LENGTH for row in rows}
    found, counts, _ = read(source, on_error="quarantine")
    assert_same_episodes(found, without(source.batch, lost))
    assert (counts.rows_in, counts.set_aside) == (ROWS, LENGTH * len(lost))


@pytest.mark.parametrize("kind", CELLS)
def test_a_value_that_cannot_be_read_is_named_by_its_row_in_whatever_block(kind: str, spoiled: Callable[..., Written]) -> None:
    for row in AROUND:
        source = spoiled(kind, spoil_cells, [row], block_rows=BLOCK)
        with pytest.raises(BadData) as caught:
            read(source)
        assert caught.value.where.endswith(f" row {row}")
        assert "--on-error" in caught.value.fix or "leave" in caught.value.fix


@pytest.mark.parametrize("kind", LINES)
def test_a_row_that_its_parser_cannot_read_costs_the_episodes_beside_it_wherever_it_stands(
    kind: str, spoiled: Callable[..., Written]
) -> None:
    for row in range(ROWS):  # blocks of text end where their bytes do
        source = spoiled(kind, spoil_lines, [row])
        lost = lost_beside([row], ROWS, LENGTH)
        found, counts, _ = read(source, on_error="skip")
        assert_same_episodes(found, without(source.batch, lost))
        assert (counts.rows_in, counts.set_aside) == (ROWS, LENGTH * len(lost)), row


@pytest.mark.parametrize(
    ("kind", "spoil"),
    [
        *((kind, spoil_cells) for kind in ("csv", "jsonl", "arrow", "parquet")),
        *((kind, spoil_lines) for kind in LINES),
    ],
)
def test_in_a_table_without_ids_a_bad_row_costs_the_episodes_beside_it_wherever_it_stands(
    kind: str, spoil: Callable[..., None], spoiled: Callable[..., Written], tmp_path: Path
) -> None:
    (tmp_path / "mapping.toml").write_text(MAPPING, encoding="utf-8")
    for rows in (*([row] for row in (AROUND if spoil is spoil_cells else range(ROWS))), AROUND):
        source = spoiled(kind, spoil, rows)
        found, counts, _ = read(source, on_error="skip", mapping=str(tmp_path / "mapping.toml"))
        assert found is not None
        wanted = without(source.batch, lost_beside(rows, ROWS, LENGTH))
        np.testing.assert_array_equal(found.starts, wanted.starts)
        np.testing.assert_array_equal(found.obs, wanted.obs)
        np.testing.assert_array_equal(found.rewards, wanted.rewards)
        assert counts.rows_in == ROWS


@pytest.mark.parametrize("kind", LINES)
def test_runs_of_rows_that_their_parser_cannot_read_cost_the_episodes_beside_them(
    kind: str, spoiled: Callable[..., Written]
) -> None:
    for length, first in ((2, 14), (3, 31), (20, 17), (7, 0), (9, ROWS - 9)):
        rows = range(first, first + length)
        source = spoiled(kind, spoil_lines, rows)
        lost = lost_beside(rows, ROWS, LENGTH)
        found, counts, _ = read(source, on_error="skip")
        assert_same_episodes(found, without(source.batch, lost))
        also = sum(row not in rows and row // LENGTH in lost for row in range(ROWS))
        assert (counts.rows_in, counts.set_aside) == (ROWS, length + also)


@pytest.mark.parametrize("kind", LINES)
def test_a_row_that_its_parser_cannot_read_is_named_by_file_and_row_with_a_remedy(
    kind: str, spoiled: Callable[..., Written]
) -> None:
    for row in range(0, ROWS, 3):
        source = spoiled(kind, spoil_lines, [row])
        with pytest.raises(BadData) as caught:
            read(source)
        assert caught.value.where.endswith(f" row {row}")
        assert "--on-error skip" in caught.value.fix


@pytest.mark.parametrize("kind", ["sample-batch", "sample-batch-packed"])
def test_a_broken_line_costs_the_episodes_that_have_steps_in_it_whichever_line_it_is(
    kind: str, spoiled: Callable[..., Written]
) -> None:
    """But for the steps before it: they are an episode that nothing ended, and counted as one."""
    lines = -(-ROWS // BLOCK)
    for line in range(lines):
        source = spoiled(kind, spoil_lines, [line])
        first, stop = line * BLOCK, min(ROWS, (line + 1) * BLOCK)
        lost, begun = {row // LENGTH for row in range(first, stop)}, first % LENGTH
        found, counts, _ = read(source, on_error="skip")
        assert found is not None
        assert counts.assumptions.get("unfinished-episode", 0) == (begun > 0)
        cut = [number for number, length in enumerate(found.lengths) if length < LENGTH]
        assert [(found.ids[e], found.lengths[e], bool(found.truncated[e])) for e in cut] == [
            (str(first // LENGTH), begun, True)
        ] * (begun > 0)
        assert_same_episodes(without(found, cut), without(source.batch, lost))
        after = -stop % LENGTH  # of the episode that goes on after the line
        assert (counts.rows_in, counts.set_aside) == (lines, 1 + (after if stop < ROWS else 0))
        with pytest.raises(BadData, match=r"not whole JSON|JSON"):
            read(source)


def test_a_packed_episode_that_cannot_be_read_costs_itself_alone_on_either_side_of_a_border(
    written: Write, small_blocks: None, tmp_path: Path
) -> None:
    whole = written("rllib-episodes", 65, 3, block_rows=BLOCK)
    for rows in (*([row] for row in AROUND), AROUND):
        shutil.rmtree(tmp_path / "spoiled", ignore_errors=True)
        shutil.copytree(whole.path, tmp_path / "spoiled")
        (file,) = (tmp_path / "spoiled").iterdir()
        spoil_cells(file, rows, block_rows=BLOCK)
        found, counts, _ = read(tmp_path / "spoiled", on_error="skip")
        assert_same_episodes(found, without(whole.batch, set(rows)))
        assert (counts.rows_in, counts.set_aside) == (65, len(rows))
        with pytest.raises(BadData) as caught:
            read(tmp_path / "spoiled")
        assert caught.value.where.endswith(f" row {min(rows)}")

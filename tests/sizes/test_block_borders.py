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
    for row in AROUND[::4]:
        source = spoiled(kind, spoil_cells, [row], block_rows=BLOCK)
        found, counts, _ = read(source, on_error="skip")
        assert_same_episodes(found, without(source.batch, {row // LENGTH}))
        assert (counts.rows_in, counts.set_aside) == (ROWS, LENGTH), row


@pytest.mark.parametrize("kind", LINES)
def test_a_row_that_its_parser_cannot_read_costs_the_episodes_beside_it_wherever_it_stands(
    kind: str, spoiled: Callable[..., Written]
) -> None:
    for row in range(0, ROWS, 16):  # blocks of text end where their bytes do
        source = spoiled(kind, spoil_lines, [row])
        lost = lost_beside([row], ROWS, LENGTH)
        found, counts, _ = read(source, on_error="skip")
        assert_same_episodes(found, without(source.batch, lost))
        assert (counts.rows_in, counts.set_aside) == (ROWS, LENGTH * len(lost)), row


@pytest.mark.parametrize(
    ("kind", "spoil"),
    [
        ("csv", spoil_lines),
        ("jsonl", spoil_cells),
        ("parquet", spoil_cells),
    ],
)
def test_in_a_table_without_ids_a_bad_row_costs_its_episode_and_one_without_columns_those_beside_it(
    kind: str, spoil: Callable[..., None], spoiled: Callable[..., Written], tmp_path: Path
) -> None:
    (tmp_path / "mapping.toml").write_text(MAPPING, encoding="utf-8")
    for rows in (*([row] for row in AROUND[::3]), AROUND):
        source = spoiled(kind, spoil, rows)
        found, counts, _ = read(source, on_error="skip", mapping=str(tmp_path / "mapping.toml"))
        assert found is not None
        lost = lost_beside(rows, ROWS, LENGTH) if spoil is spoil_lines else {row // LENGTH for row in rows}
        wanted = without(source.batch, lost)
        np.testing.assert_array_equal(found.starts, wanted.starts)
        np.testing.assert_array_equal(found.obs, wanted.obs)
        np.testing.assert_array_equal(found.rewards, wanted.rewards)
        assert counts.rows_in == ROWS


@pytest.mark.parametrize("kind", LINES)
def test_a_row_that_its_parser_cannot_read_is_named_by_file_and_line_with_a_remedy(
    kind: str, spoiled: Callable[..., Written]
) -> None:
    for row in range(0, ROWS, 16):
        source = spoiled(kind, spoil_lines, [row])
        with pytest.raises(BadData) as caught:
            read(source)
        assert caught.value.where.endswith(f" line {row + (2 if kind == 'csv' else 1)}")
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
        with pytest.raises(BadData, match=r"not complete JSON|JSON"):
            read(source)

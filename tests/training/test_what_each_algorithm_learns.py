"""The table of docs/algorithms.md, algorithm by what it learns from: each cell is tried, and either works or is exit 4 by name.

A new column of the table has a function in LEARNED, which prepares the data and says what to add to the command.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from small_runs import filmed

from offline_cli.training.algorithms.algorithm import OURS

PAGE = Path(__file__).resolve().parents[2] / "docs" / "algorithms.md"
REFUSED = re.compile(r'exit 4, "([^"]+)"')
MEMORY = '[network]\nmemory = "gru"\nmemory_size = 8\nmax_seq_len = 5\n'
STACK = 'kind = "learner"\n[[pieces]]\nname = "frame_stacking"\nnum_frames = 2\nadd_channel_axis = true\n'
Prepare = Callable[[Callable[..., Any], Callable[..., Path], Path], list[Any]]


def of_steps(make_batch: Callable[..., Any], write_dataset: Callable[..., Path], folder: Path) -> list[Any]:
    return [write_dataset(make_batch(continuous=True), action_scale="env"), "--batch-size", 32]


def of_sequences(make_batch: Callable[..., Any], write_dataset: Callable[..., Path], folder: Path) -> list[Any]:
    (folder / "c.toml").write_text(MEMORY)
    return [*of_steps(make_batch, write_dataset, folder), "--config", folder / "c.toml"]


def of_frames(make_batch: Callable[..., Any], write_dataset: Callable[..., Path], folder: Path) -> list[Any]:
    (folder / "c.toml").write_text("hidden = [8]\nbatch_size = 8\n")
    return [write_dataset(filmed(), action_scale="env"), "--config", folder / "c.toml"]


def of_stacks(make_batch: Callable[..., Any], write_dataset: Callable[..., Path], folder: Path) -> list[Any]:
    (folder / "stack.toml").write_text(STACK)
    return [*of_frames(make_batch, write_dataset, folder), "--pipeline", folder / "stack.toml"]


def of_sequences_of_frames(make_batch: Callable[..., Any], write_dataset: Callable[..., Path], folder: Path) -> list[Any]:
    (folder / "c.toml").write_text("hidden = [8]\nbatch_size = 10\n" + MEMORY)
    return [write_dataset(filmed(), action_scale="env"), "--config", folder / "c.toml"]


def of_agents(make_batch: Callable[..., Any], write_dataset: Callable[..., Path], folder: Path) -> list[Any]:
    data = write_dataset(_by_agents(make_batch(continuous=True)), action_scale="env")
    return [data, "--batch-size", 32, "--module-of", "agent_id"]


def _by_agents(batch: Any) -> Any:
    """Its episodes as those of two agents in turn."""
    agents, games = (tuple(of(number) for number in range(len(batch))) for of in (_agent, str))
    return replace(batch, agent_ids=agents, multi_agent_ids=games)


def _agent(number: int) -> str:
    return f"agent_{number % 2}"


def of_sequences_of_agents(make_batch: Callable[..., Any], write_dataset: Callable[..., Path], folder: Path) -> list[Any]:
    (folder / "c.toml").write_text(MEMORY)
    return [*of_agents(make_batch, write_dataset, folder), "--config", folder / "c.toml"]


def of_frames_of_agents(make_batch: Callable[..., Any], write_dataset: Callable[..., Path], folder: Path) -> list[Any]:
    (folder / "c.toml").write_text("hidden = [8]\nbatch_size = 8\n")
    data = write_dataset(_by_agents(filmed()), action_scale="env")
    return [data, "--config", folder / "c.toml", "--module-of", "*=shared"]


LEARNED: dict[str, Prepare] = {
    "steps": of_steps,
    "sequences": of_sequences,
    "frames": of_frames,
    "stacks of frames": of_stacks,
    "sequences of frames": of_sequences_of_frames,
    "several agents": of_agents,
    "sequences of several agents": of_sequences_of_agents,
    "frames of several agents": of_frames_of_agents,
}
"""By column: the command's data and options, for Box actions of two numbers."""


def table() -> dict[tuple[str, str], str]:
    """What the page says, by algorithm and column."""
    (text,) = re.findall(r"^\| algorithm \| steps \|.*\n(?:\|.*\n)+", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    head, _, *rows = [[cell.strip(" `") for cell in line.strip("|").split("|")] for line in text.splitlines()]
    return {(row[0], column): cell for row in rows for column, cell in zip(head[1:], row[1:], strict=True)}


def test_the_table_has_every_algorithm_and_no_column_that_is_not_tried() -> None:
    assert {name for name, _ in table()} == set(OURS)
    assert {column for _, column in table()} == set(LEARNED)


@pytest.mark.parametrize("streaming", [False, True], ids=["in memory", "streaming"])
@pytest.mark.parametrize(("algorithm", "column"), table(), ids=str)
def test_a_cell_says_what_happens(
    algorithm: str,
    column: str,
    streaming: bool,
    make_batch: Callable[..., Any],
    write_dataset: Callable[..., Path],
    tmp_path: Path,
    call: Callable[..., tuple[int, dict[str, Any]]],
) -> None:
    said, words = table()[algorithm, column], LEARNED[column](make_batch, write_dataset, tmp_path)
    how = ["--out", tmp_path / "run", "--algorithm", algorithm, "--updates", 3, "--device", "cpu"]
    if streaming:
        how += ["--streaming", *(["--set", "refresh_every=0"] if algorithm == "marwil" else [])]
    code, found = call("train", *words, *how)
    if said == "yes":
        assert (code, found.get("updates")) == (0, 3), found
        return
    match = REFUSED.fullmatch(said)
    assert match is not None, f"a cell is yes, or exit 4 with words of the error: {said}"
    assert code == 4
    assert match[1] in found["error"]["what"]
    assert not (tmp_path / "run").exists()

"""What the tests of sizes and combinations share: inputs made once, commands run in this process, small blocks."""

from __future__ import annotations

import gc
import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from made_recordings import Written, made, write

from offline_cli.formats.memory_limits import give_back

Write = Callable[..., Written]


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Write]:
    """A function that writes made episodes in a format, once per file of tests for the same arguments."""
    known: dict[Any, Written] = {}
    root = tmp_path_factory.mktemp("written")

    def find(
        kind: str, episodes: int, length: int = 2, *, files: int = 1, block_rows: int | None = None, **said: Any
    ) -> Written:
        key = (kind, episodes, length, files, block_rows, *sorted((name, str(value)) for name, value in said.items()))
        if key not in known:
            known[key] = write(
                kind, root / f"{len(known)}-{kind}", made(episodes, length, **said), files=files, block_rows=block_rows
            )
        return known[key]

    yield find
    known.clear()
    gc.collect()
    give_back()  # tests that come later hold this process against limits of memory


SMALL_BLOCKS = {
    "offline_cli.formats.tables.files.BATCH_BYTES": 2 << 10,
    "offline_cli.formats.tables.files.BATCH_ROWS": 16,
    "offline_cli.formats.tables.text_files.JSON_BLOCK": 1 << 10,
    "offline_cli.formats.parquet_files.ROWS": 16,
    "offline_cli.formats.parquet_files.BIG": 1,
    "offline_cli.formats.rllib.sample_batch.BLOCK_BYTES": 4 << 10,
}


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on every reader works on blocks of a few rows, as it does on those of megabytes."""
    for name, value in SMALL_BLOCKS.items():
        monkeypatch.setattr(name, value)


@pytest.fixture
def memory_of(measured: Callable[..., tuple[str, int]]) -> Callable[..., tuple[dict[str, Any], int]]:
    """A function that runs a command in a process of its own: its result, and the most memory, in bytes, that it had."""
    import sys

    def run(*args: Any) -> tuple[dict[str, Any], int]:
        out, peak = measured([sys.executable, "-m", "offline_cli", *map(str, args), "--json", "--quiet"])
        return json.loads(out), peak

    return run

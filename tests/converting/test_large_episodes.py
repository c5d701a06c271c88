"""One episode that is too large for the memory limit is refused by name; one that fits is converted."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from made_recordings import Written, made, write

from offline_cli import convert
from offline_cli.errors import MemoryLimitExceeded

MIB = 1 << 20
LIMIT = 256 * MIB
STEPS = 800_000  # 20 bytes each, five times: more than the 64 MiB that such a limit has for data


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Written]:
    """A function that gives a recording of one long episode, in a format."""
    known: dict[tuple[str, int], Written] = {}

    def find(kind: str, steps: int = STEPS) -> Written:
        if (kind, steps) not in known:
            known[kind, steps] = write(kind, tmp_path_factory.mktemp("large") / kind, made(1, steps, dims=1))
        return known[kind, steps]

    return find


def refused(work: Callable[[], Any]) -> MemoryLimitExceeded:
    with pytest.raises(MemoryLimitExceeded) as caught:
        work()
    assert "raise --memory-limit" in caught.value.fix
    return caught.value


@pytest.mark.parametrize("kind", ["rllib-columns", "columns"])
def test_an_episode_too_large_for_the_limit_is_refused_by_name(
    kind: str, recording: Callable[..., Written], tmp_path: Path
) -> None:
    source = recording(kind)
    error = refused(lambda: convert([source.path], tmp_path / "out", memory_limit=LIMIT))
    assert ("episode 0 " if kind in ("rllib-columns", "sample-batch") else "the longest episode ") in error.what
    assert source.path.name in error.where
    assert convert([source.path], tmp_path / "out", memory_limit=2 * LIMIT, overwrite=True).steps == STEPS

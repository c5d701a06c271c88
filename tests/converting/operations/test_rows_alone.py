"""Operations on datasets of ours move rows: no step is decoded, and what only steps say is computed when it is asked for."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from operated import numbers, read

from offline_cli import filter as filtered
from offline_cli import merge, repack, sample, split
from offline_cli.converting.reading import EpisodeStream

Made = Callable[..., Path]


@pytest.fixture(autouse=True)
def nothing_is_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reading the episodes of a stream is an error; its first batch is looked at, for spaces."""

    def refuse(_: EpisodeStream) -> Any:
        raise AssertionError("episodes are decoded")

    monkeypatch.setattr(EpisodeStream, "__iter__", refuse)


@pytest.mark.parametrize("name", ["filter", "sample", "split", "merge", "repack"])
def test_no_operation_decodes_a_step_of_our_datasets(name: str, made: Made, format: str, tmp_path: Path) -> None:
    source, more = made(range(6), format=format), made(range(3), name="E", first_id=6, format=format)
    done: dict[str, Callable[[], Any]] = {
        "filter": lambda: filtered(source, tmp_path / "F", where="return in (1, 4)"),
        "sample": lambda: sample(source, tmp_path / "F", episodes=2),
        "split": lambda: split(source, tmp_path / "S", counts={"a": 2, "b": 4}),
        "merge": lambda: merge([source, more], tmp_path / "F"),
        "repack": lambda: repack(source, tmp_path / "F", max_rows_per_file=4, compression="snappy"),
    }
    result = done[name]()
    assert result.episodes == {"filter": 2, "sample": 2, "split": 6, "merge": 9, "repack": 6}[name]
    if name == "filter":
        assert numbers(tmp_path / "F") == [1, 4]
        assert read(tmp_path / "F").returns.tolist() == [1, 4]

"""What is resumed or passed through is of the source as it is: not of one that has changed, nor of plain columns that lie."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from offline_cli import convert, open_dataset, split
from offline_cli.errors import OfflineCliError

Made = Callable[..., Path]


def test_a_split_is_not_resumed_after_its_source_has_grown(made: Made, tmp_path: Path) -> None:
    source, more = made(range(10)), made(range(5), name="E", first_id=10)
    split(source, tmp_path / "S", fractions={"train": 0.5, "val": 0.5})
    shutil.rmtree(tmp_path / "S" / "val")
    convert(more, source, append=True)
    with pytest.raises(OfflineCliError):
        split(source, tmp_path / "S", fractions={"train": 0.5, "val": 0.5}, resume=True)
    assert len(open_dataset(tmp_path / "S" / "train")) == 5
    assert not (tmp_path / "S" / "val" / "manifest.json").exists()

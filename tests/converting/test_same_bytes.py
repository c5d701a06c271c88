"""Same input and options, same `data/`: names and bytes."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from offline_cli.converting.convert import convert

SAMPLE = Path(__file__).resolve().parents[2] / "sample_data" / "rllib_cartpole_expert"


def contents(dataset: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in sorted((dataset / "data").iterdir())}


@pytest.mark.parametrize("to", ["episodes", "columns"])
def test_a_source_that_lies_elsewhere_gives_the_same_files(to: str, tmp_path: Path) -> None:
    shutil.copytree(SAMPLE, tmp_path / "elsewhere")
    for source, out in ((SAMPLE, "A"), (tmp_path / "elsewhere", "B")):
        convert([str(source)], str(tmp_path / out), to=to, max_rows_per_file=4000 if to == "columns" else 7)
    assert len(contents(tmp_path / "A")) > 1
    assert contents(tmp_path / "A") == contents(tmp_path / "B")

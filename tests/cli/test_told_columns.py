"""Which columns `inspect` and `convert` tell people of: extra ones, and those that were left out."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

TESTDATA = Path(__file__).resolve().parents[1] / "testdata"
Call = Callable[..., Any]


def lines(done: Any) -> dict[str, str]:
    """The rows of a table for people, by name."""
    assert done.exit_code == 0, done.stderr
    told: dict[str, str] = {}
    for line in done.stdout.splitlines():
        name = line[:20].strip() or list(told)[-1]  # a long value goes on in the next line
        told[name] = f"{told.get(name, '')} {line[20:].strip()}".strip()
    return told


def test_parts_of_dict_observations_are_no_extra_columns(call: Call, tmp_path: Path) -> None:
    source, mapping = (TESTDATA / "tables" / f"dict_observations.{ending}" for ending in ("parquet", "toml"))
    told = lines(call("inspect", source, "--mapping", mapping))
    assert told["extra columns"] == "none"
    call("convert", source, "--mapping", mapping, "--out", tmp_path / "D")
    assert lines(call("inspect", tmp_path / "D", "--deep"))["extra columns"] == "none"


def test_columns_that_are_left_out_are_named_with_the_reason_for_people_too(call: Call, tmp_path: Path) -> None:
    source = TESTDATA / "sample_batch" / "recurrent.json"
    convert = lines(call("convert", source, "--out", tmp_path / "D"))
    for name in ("unroll_id (which piece", "seq_lens (one row for each sequence", "state_in_0 (one row"):
        assert name in convert["dropped columns"]
    assert convert["assumptions"].startswith("dropped-column 3")
    assert lines(call("inspect", source))["dropped columns"] == convert["dropped columns"]
    assert "dropped columns" not in lines(call("inspect", tmp_path / "D"))  # of what came before it nothing is known by name

"""Columns that were left out are told to people, by `convert` and `inspect`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

TESTDATA = Path(__file__).resolve().parents[1] / "testdata"
Call = Callable[..., Any]


def test_columns_that_are_left_out_are_named_with_the_reason_for_people_too(call: Call, tmp_path: Path) -> None:
    source = TESTDATA / "sample_batch" / "recurrent.json"
    for done in (call("convert", source, "--out", tmp_path / "D"), call("inspect", source)):
        assert done.exit_code == 0, done.stderr
        for text in ("unroll_id which piece", "seq_lens one row for each sequence", "state_in_0 one row", "dropped-column 3"):
            assert text in done.stdout
    assert "dropped reasons" not in call("inspect", tmp_path / "D").stdout  # of what came before it nothing is known by name

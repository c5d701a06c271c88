"""The guide to connectors: its code runs as it stands, its table has every piece, its picture is that of the code."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from offline_cli.connectors.piece_makers import own_pieces
from offline_cli.connectors.pipeline_spec import PipelineSpec

DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGE = (DOCS / "connectors.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE, flags=re.DOTALL)


def test_all_code_runs_from_top_to_bottom(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("pipeline.toml").write_text(blocks("toml")[0], encoding="utf-8")
    assert len(blocks("python")) > 8
    names: dict[str, object] = {"__name__": "guide"}
    for number, code in enumerate(blocks("python")):
        exec(compile(code, f"docs/connectors.md, block {number}", "exec"), names)


def test_every_pipeline_file_is_one() -> None:
    for text in blocks("toml"):
        assert PipelineSpec.from_document(tomllib.loads(text), where="docs/connectors.md").entries()


def test_the_table_names_every_piece_and_no_other() -> None:
    table = PAGE.split("## The pieces")[1].split("\n## ")[0]
    assert sorted(re.findall(r"^\| `(\w+)` \|", table, flags=re.MULTILINE)) == sorted(own_pieces())

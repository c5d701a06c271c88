"""docs/howto/pipelines.md: it names every piece, and its pipeline files are some."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

from offline_cli.connectors.piece_makers import own_pieces
from offline_cli.connectors.pipeline_spec import PipelineSpec

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "howto" / "pipelines.md").read_text(encoding="utf-8")


def test_the_page_names_every_piece_and_no_other() -> None:
    section = PAGE.split("## The pieces")[1].split("\n## ")[0]
    table, defaults = section.split("The default pieces are added")
    named = re.findall(r"^\| `(\w+)` \|", table, flags=re.MULTILINE) + re.findall(r"`([a-z]\w+_\w+)`", defaults)
    assert sorted(named) == sorted(own_pieces())


def test_every_pipeline_file_is_one() -> None:
    for text in re.findall(r"```toml\n(.*?)```", PAGE, flags=re.DOTALL):
        assert PipelineSpec.from_document(tomllib.loads(text), where="pipelines.md").entries()

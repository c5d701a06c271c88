"""Datasets and run folders of which pages are written."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from rides import Made, Run

from offline_cli import SingleAgentEpisode, write_dataset


@pytest.fixture
def made(tmp_path: Path) -> Made:
    """A dataset of these episodes, by name of its folder."""

    def make(name: str, episodes: Sequence[SingleAgentEpisode], **given: Any) -> str:
        write_dataset(episodes, tmp_path / name, **given)
        return str(tmp_path / name)

    return make


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """A run folder with these losses, by its path below the test's folder."""

    def make(name: str, losses: Sequence[float], **config: Any) -> str:
        folder = tmp_path / name
        folder.mkdir(parents=True)
        rows = [{"update": 10 * (i + 1), "loss": loss, "eval_return_mean": -loss} for i, loss in enumerate(losses)]
        (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
        lines = [f"{key} = {json.dumps(value)}" for key, value in config.items()]
        (folder / "config.toml").write_text("\n".join(lines), encoding="utf-8")
        (folder / "result.json").write_text(json.dumps({"loss": losses[-1], "stopped_by": "updates"}), encoding="utf-8")
        return str(folder)

    return make

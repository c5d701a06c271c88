"""Formats that are recognised and have no reader yet: the error names a section of the page on other programs' data."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

PAGE = Path(__file__).resolve().parents[2] / "docs" / "howto" / "formats.md"


def npy(folder: Path) -> None:
    np.save(folder / "log.npy", np.zeros(3))


def rlds(folder: Path) -> None:
    (folder / "features.json").write_text(json.dumps({"pythonClassName": "FeaturesDict"}), encoding="utf-8")
    (folder / "dataset_info.json").write_text(json.dumps({"fileFormat": "tfrecord"}), encoding="utf-8")
    (folder / "rlds-train.tfrecord-00000-of-00001").write_bytes(bytes(40))


@pytest.mark.parametrize(
    ("make", "words", "heading"),
    [
        (npy, "found NumPy arrays", "NumPy arrays"),
        (rlds, "found an RLDS dataset", "RLDS datasets"),
    ],
)
@pytest.mark.parametrize("command", ["inspect", "validate"])
def test_the_error_names_the_format_and_its_recipe(
    make: Callable[[Path], None], words: str, heading: str, command: str, tmp_path: Path, call: Callable[..., Any]
) -> None:
    (tmp_path / "source").mkdir()
    make(tmp_path / "source")
    code, told = call(command, tmp_path / "source")
    assert code == 3
    text = json.dumps(told)
    assert words in text
    assert heading in told["error"]["fix"]
    assert f"\n## {heading}\n" in PAGE.read_text(encoding="utf-8")

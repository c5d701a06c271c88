"""train-bc on what it cannot learn whole: several modules, and images that no convolution takes."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from offline_cli import write_dataset
from offline_cli.episodes.batch import EpisodeBatch

Call = Callable[..., Any]
Random = Callable[..., EpisodeBatch]
OPTIONS = ("--updates", 2, "--batch-size", 8, "--device", "cpu")


def test_an_image_that_is_flattened_is_said_in_a_note_and_in_the_result(
    random_batch: Random, tmp_path: Path, call: Call, caplog: pytest.LogCaptureFixture
) -> None:
    small = spaces.Dict({"camera": spaces.Box(0, 255, (32, 32, 3), np.uint8), "speed": spaces.Box(-1, 1, (2,), np.float32)})
    data = write_dataset(random_batch(small, spaces.Discrete(2), lengths=(5, 4)), tmp_path / "small").out
    done = call("train-bc", data, "--out", tmp_path / "run", *OPTIONS, "--json")
    assert done.exit_code == 0, done.stderr
    (note,) = json.loads(done.stdout)["notes"]
    assert note.startswith("observations.camera, Box(32x32x3, uint8), is flattened to 3072 numbers for the MLP")
    assert "--network" in note
    assert f"note: {note}" in caplog.messages  # on stderr, as all that is logged


@pytest.mark.parametrize(("option", "has_it"), [("--weight", True), ("--top-fraction", True), ("--no-such-option", False)])
def test_an_option_that_only_train_has_points_to_it(option: str, has_it: bool, call_json: Callable[..., Any]) -> None:
    code, told = call_json("train-bc", "D", "--out", "run", option, "1")
    assert (code, told["error"]["code"]) == (2, "usage-error")
    assert ("offline-cli train " in told["error"]["fix"]) == has_it

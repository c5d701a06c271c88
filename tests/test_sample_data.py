"""The experts in sample_data/ are small, play as well as their scores say, and bring no more pickles than they must."""

from __future__ import annotations

import base64
import io
import json
import pickle
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest

EXPERTS = Path(__file__).resolve().parent.parent / "sample_data" / "experts"
NAMES = [file.stem for file in sorted(EXPERTS.glob("*.zip"))]
PACKAGES = {"stable_baselines3", "gymnasium", "numpy"}


class Guarded(pickle.Unpickler):
    """Builds nothing but what these packages define."""

    def find_class(self, module: str, name: str) -> Any:
        assert module.split(".")[0] in PACKAGES, f"{module}.{name}"
        return super().find_class(module, name)


def scores() -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = json.loads((EXPERTS / "scores.json").read_text(encoding="utf-8"))
    return found


@pytest.mark.parametrize("name", NAMES)
def test_what_is_pickled_in_an_expert_is_its_class_and_its_spaces(name: str) -> None:
    pytest.importorskip("stable_baselines3")
    with zipfile.ZipFile(EXPERTS / f"{name}.zip") as archive:
        described = json.loads(archive.read("data"))
    pickled = {key: value[":serialized:"] for key, value in described.items() if isinstance(value, dict) and ":type:" in value}
    assert pickled.keys() == {"policy_class", "observation_space", "action_space"}
    for text in pickled.values():
        Guarded(io.BytesIO(base64.b64decode(text))).load()


@pytest.mark.parametrize("name", NAMES)
def test_an_expert_is_recorded_as_its_score_says(name: str, tmp_path: Path) -> None:
    pytest.importorskip("stable_baselines3")
    from offline_cli.recording.record import record

    told = scores()[name]
    if "mujoco" in told["versions"]:
        pytest.importorskip("mujoco")
    policy, episodes = f"sb3:{EXPERTS / name}.zip", 5
    result = record(told["env"], tmp_path / "D", policy=policy, episodes=episodes, vectorize="sync", device="cpu")
    assert result.action_scale == "env"
    assert result.return_mean is not None
    error = 4 * told["return_std"] / episodes**0.5  # of a mean of so few; the arithmetic of other machines differs
    assert result.return_mean >= told["return_mean"] - max(error, 5)


@pytest.mark.integration
def test_an_expert_is_recorded_quietly_beside_the_old_gym_that_stable_baselines3_imports(tmp_path: Path) -> None:
    pytest.importorskip("stable_baselines3")
    words = [
        "record",
        "CartPole-v1",
        "--policy",
        f"sb3:{EXPERTS / 'cartpole.zip'}",
        "--episodes",
        "1",
        "--out",
        str(tmp_path / "D"),
    ]
    done = subprocess.run([sys.executable, "-m", "offline_cli", *words, "--quiet"], capture_output=True, text=True, check=True)
    assert done.stderr == ""

"""Actions that are none of the space's categories are refused where they are taken: no dataset can hold them."""

from __future__ import annotations

from pathlib import Path

import pytest
from recording_envs import Count

from offline_cli import Recorder, inspect, record
from offline_cli.errors import BadData, OfflineCliError, UnsupportedSpace

LATE = """
import numpy as np
calls = 0
def act(observations):
    global calls
    calls += 1
    return np.full(len(observations), 3 if calls > 200 else 1)
"""


def test_a_policy_is_told_and_whole_episodes_stay(tmp_path: Path) -> None:
    (tmp_path / "late.py").write_text(LATE)
    out, policy = tmp_path / "D", f"python:{tmp_path}/late.py:act"
    with pytest.raises(OfflineCliError, match=r"\b3\b.*Discrete\(3\)"):
        record("recording_envs:Count-v0", out, policy=policy, episodes=50, vectorize="sync", num_envs=2)
    assert 1 < inspect(out).episodes < 50
    assert not inspect(out).complete


def test_the_recorder_names_the_action(tmp_path: Path) -> None:
    with Recorder(Count(), tmp_path / "D") as env:
        env.reset(seed=0)
        for wrong in (3, -1):
            with pytest.raises(BadData, match=f"{wrong}"):
                env.step(wrong)
        env.step(2)
    assert inspect(tmp_path / "D").steps == 1


def test_an_environment_without_a_space_is_told(tmp_path: Path) -> None:
    (tmp_path / "bare.py").write_text("import gymnasium as gym\nclass Bare(gym.Env):\n    pass\n")
    with pytest.raises(UnsupportedSpace, match="observation_space"):
        record(f"{tmp_path}/bare.py:Bare", tmp_path / "D", policy="random", episodes=1)

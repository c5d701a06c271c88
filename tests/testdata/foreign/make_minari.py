"""The small samples in this folder, by Minari itself: `python make_minari.py` with minari[create,hdf5,arrow] 0.5.4 and Pillow.

Each is a dataset of two episodes with nested observations and infos; `minari_jpeg` has frames as JPEG. `NAME.json` has what
Minari's own reader gives: the episodes of each as trees of [dtype, values].
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

HERE = Path(__file__).resolve().parent


class Odd(gym.Env):  # type: ignore[type-arg]
    """Dict, Tuple and vectors of several dtypes; ends by itself or by a limit of five steps."""

    action_space = spaces.Dict({"move": spaces.Box(-2, 2, (2,), np.float32), "grip": spaces.Discrete(3)})

    def __init__(self, frames: bool) -> None:
        parts: dict[str, Any] = {
            "pose": spaces.Box(-np.inf, np.inf, (3,), np.float64),
            "pair": spaces.Tuple((spaces.Discrete(7), spaces.MultiBinary(4))),
            "small": spaces.Box(0, 255, (2, 2), np.uint8),
        }
        if frames:
            parts["camera"] = spaces.Box(0, 255, (32, 40, 3), np.uint8)
        self.observation_space = spaces.Dict(parts)
        self.t = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.observation_space.seed(seed)
        self.t, self.ends = 0, (seed or 0) % 2 == 0
        return self.observation_space.sample(), self.info()

    def info(self) -> dict[str, Any]:
        return {"speed": np.float32(self.t) / 3, "goal": {"x": np.arange(2) + self.t, "name": f"g{self.t}"}, "count": self.t}

    def step(self, action: Any) -> Any:
        self.t += 1
        is_last = self.t == 4 + self.ends
        return self.observation_space.sample(), self.t / 7, is_last and self.ends, is_last and not self.ends, self.info()


def make(name: str, stored: str, *, frames: bool = False) -> None:
    from minari import DataCollector

    with tempfile.TemporaryDirectory() as root:
        os.environ["MINARI_DATASETS_PATH"] = root
        env = DataCollector(Odd(frames), record_infos=True, data_format=stored, jpeg_encoding=frames)
        env.action_space.seed(1)
        for seed in range(2):
            env.reset(seed=seed, options={"minari_autoseed": False, "level": {"hard": seed, "kind": "a"}})
            done = False
            while not done:
                done = any(env.step(env.action_space.sample())[2:4])
        env.create_dataset(f"odd/{name}-v0", algorithm_name="random", author="somebody", description="a sample")
        target = HERE / name
        shutil.rmtree(target, ignore_errors=True)
        shutil.copytree(Path(root) / f"odd/{name}-v0", target)
    (HERE / f"{name}.json").write_text(json.dumps(answers(target / "data")), encoding="utf-8")


def answers(folder: Path) -> list[dict[str, Any]]:
    """The episodes by Minari's reader; also asked by tests of the lane `rivals`."""
    from minari import MinariDataset

    data = MinariDataset(str(folder))
    said = data.storage.get_episode_metadata(range(data.total_episodes))
    names = ("observations", "actions", "rewards", "terminations", "truncations", "infos")
    return [
        {"id": int(one.id), "seed": int(its["seed"]), **{name: plain(getattr(one, name)) for name in names}}
        for one, its in zip(data, said, strict=True)
    ]


def plain(tree: Any) -> Any:
    """A tree as JSON values; a frame is a sum."""
    if isinstance(tree, dict):
        return {key: plain(value) for key, value in tree.items()}
    if isinstance(tree, tuple):
        return {"tuple": [plain(value) for value in tree]}
    array = np.asarray(tree)
    if array.dtype.kind in "OSU":
        return ["text", [one.decode() if isinstance(one, bytes) else str(one) for one in array.tolist()]]
    return [str(array.dtype), array.tolist() if array.size < 500 else int(array.astype(np.int64).sum())]


if __name__ == "__main__" and len(sys.argv) > 1:
    print(json.dumps(answers(Path(sys.argv[1]))))
elif __name__ == "__main__":
    for stored in ("hdf5", "arrow", "parquet"):
        make(f"minari_{stored}", stored)
    make("minari_jpeg", "hdf5", frames=True)

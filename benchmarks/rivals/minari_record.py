"""Minari: whole episodes of CartPole through its DataCollector into a dataset on disk, with a policy by torch."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable

FOLDER = tempfile.TemporaryDirectory()
os.environ["MINARI_DATASETS_PATH"] = FOLDER.name  # before Minari reads it

import gymnasium as gym  # noqa: E402
import minari  # noqa: E402
import torch  # noqa: E402
from data import make_it_balance  # noqa: E402
from serving import serve  # noqa: E402
from torch import nn  # noqa: E402


def prepare(episodes: int) -> Callable[[], float]:
    torch.set_num_threads(1)
    net = nn.Sequential(nn.Linear(4, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 2))
    make_it_balance([layer for layer in net if isinstance(layer, nn.Linear)])
    name = "bench/record-v0"

    def run() -> float:
        if name in minari.list_local_datasets():
            minari.delete_dataset(name)
        env, steps = minari.DataCollector(gym.make("CartPole-v1")), 0
        with torch.inference_mode():
            for number in range(episodes):
                observation, _ = env.reset(seed=number)
                over = False
                while not over:
                    action = int(net(torch.from_numpy(observation)).argmax())
                    observation, _, terminated, truncated, _ = env.step(action)
                    over, steps = terminated or truncated, steps + 1
        env.create_dataset(name, algorithm_name="balancing", author="x", author_email="x@example.org", code_permalink="none")
        env.close()
        return steps

    return run


if __name__ == "__main__":
    serve(prepare, "minari", "gymnasium", "torch")

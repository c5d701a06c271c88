"""d3rlpy: updates of behaviour cloning on CartPole-like transitions: draw a batch from its replay buffer, update."""

from __future__ import annotations

from collections.abc import Callable

import d3rlpy
import torch
from data import cartpole_steps
from serving import serve


def prepare(hidden: list[int], batch: int, updates: int, threads: int) -> Callable[[], float]:
    torch.set_num_threads(threads)
    steps = cartpole_steps(batch * 40)
    dataset = d3rlpy.dataset.MDPDataset(steps["obs"], steps["actions"], steps["rewards"], steps["ends"])
    encoder = d3rlpy.models.VectorEncoderFactory(hidden)
    learner = d3rlpy.algos.DiscreteBCConfig(batch_size=batch, encoder_factory=encoder).create(device="cpu")
    learner.build_with_dataset(dataset)

    def run() -> float:
        for _ in range(updates):
            learner.update(dataset.sample_transition_batch(batch))
        return updates

    return run


if __name__ == "__main__":
    serve(prepare, "d3rlpy", "torch")

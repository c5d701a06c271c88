"""d3rlpy: updates of IQL or TD3+BC on made transitions: draw a batch from its replay buffer, update."""

from __future__ import annotations

from collections.abc import Callable

import d3rlpy
import numpy as np
import torch
from serving import serve


def prepare(
    algorithm: str, obs: int, actions: int, hidden: list[int], batch: int, held: int, updates: int
) -> Callable[[], float]:
    torch.set_num_threads(1)
    rng = np.random.default_rng(0)
    ends = np.zeros(held, np.float32)
    ends[499::500] = 1
    dataset = d3rlpy.dataset.MDPDataset(
        rng.normal(size=(held, obs)).astype(np.float32),
        np.tanh(rng.normal(size=(held, actions))).astype(np.float32),
        rng.normal(size=held).astype(np.float32),
        ends,
    )
    encoder = d3rlpy.models.VectorEncoderFactory(hidden)
    kinds = {"iql": d3rlpy.algos.IQLConfig, "td3-bc": d3rlpy.algos.TD3PlusBCConfig}
    networks = {f"{part}_encoder_factory": encoder for part in ("actor", "critic", *(["value"] if algorithm == "iql" else []))}
    learner = kinds[algorithm](batch_size=batch, **networks).create(device="cpu")
    learner.build_with_dataset(dataset)

    def run() -> float:
        for _ in range(updates):
            learner.update(dataset.sample_transition_batch(batch))
        return updates

    return run


if __name__ == "__main__":
    serve(prepare, "d3rlpy", "torch")

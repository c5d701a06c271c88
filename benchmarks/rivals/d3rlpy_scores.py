"""d3rlpy: train on stored steps, play the policy, and answer with its mean return, a seed further with each call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import d3rlpy
import gymnasium as gym
import numpy as np
import torch
from serving import serve


def prepare(
    steps: str,
    env: str,
    algorithm: str,
    hidden: list[int],
    batch: int,
    lr: float,
    updates: int,
    episodes: int,
    options: dict[str, Any],
) -> Callable[[], float]:
    torch.set_num_threads(1)
    with np.load(steps) as held:
        stored = {name: held[name] for name in held.files}
    dataset = d3rlpy.dataset.MDPDataset(
        stored["obs"], stored["actions"], stored["rewards"], stored["terminateds"], timeouts=stored["truncateds"]
    )
    encoder = d3rlpy.models.VectorEncoderFactory(hidden)
    kinds = {"iql": d3rlpy.algos.IQLConfig, "td3-bc": d3rlpy.algos.TD3PlusBCConfig}
    networks = {f"{part}_encoder_factory": encoder for part in ("actor", "critic", *(["value"] if algorithm == "iql" else []))}
    bounds = gym.make(env).action_space
    scaler = d3rlpy.preprocessing.MinMaxActionScaler(minimum=bounds.low, maximum=bounds.high)
    config = kinds[algorithm](
        action_scaler=scaler, batch_size=batch, actor_learning_rate=lr, critic_learning_rate=lr, **networks, **options
    )
    seed = -1

    def run() -> float:
        nonlocal seed
        seed += 1
        d3rlpy.seed(seed)
        learner = config.create(device="cpu")
        learner.build_with_dataset(dataset)
        for _ in range(updates):
            learner.update(dataset.sample_transition_batch(batch))
        return played(learner, gym.make(env), episodes)

    return run


def played(learner: Any, env: Any, episodes: int) -> float:
    """The mean return over so many episodes, greedily."""
    returns = []
    for number in range(episodes):
        seen, _ = env.reset(seed=10_000 + number)
        total, over = 0.0, False
        while not over:
            seen, reward, terminated, truncated, _ = env.step(learner.predict(seen[None].astype(np.float32))[0])
            total, over = total + float(reward), terminated or truncated
        returns.append(total)
    return float(np.mean(returns))


if __name__ == "__main__":
    serve(prepare, "d3rlpy", "torch", warm_ups=0)

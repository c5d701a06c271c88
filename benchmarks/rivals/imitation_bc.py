"""imitation: updates of behaviour cloning on CartPole-like transitions, as its trainer makes them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from data import cartpole_steps
from gymnasium import spaces
from imitation.algorithms import bc
from imitation.data.types import Transitions
from serving import serve
from stable_baselines3.common.policies import ActorCriticPolicy


def prepare(hidden: list[int], batch: int, updates: int, threads: int) -> Callable[[], float]:
    torch.set_num_threads(threads)
    steps = cartpole_steps(batch * 40)
    seen, done = spaces.Box(-np.inf, np.inf, (4,), np.float32), spaces.Discrete(2)
    next_obs = np.roll(steps["obs"], -1, axis=0)
    infos = np.array([{}] * len(steps["obs"]))
    transitions = Transitions(steps["obs"], steps["actions"], infos, next_obs, steps["ends"])
    policy = ActorCriticPolicy(seen, done, lambda _: 1e-3, net_arch=hidden, activation_fn=torch.nn.ReLU)
    trainer = bc.BC(
        observation_space=seen,
        action_space=done,
        rng=np.random.default_rng(0),
        policy=policy,
        demonstrations=transitions,
        batch_size=batch,
        device="cpu",
    )

    def run() -> float:
        trainer.train(n_batches=updates, log_interval=10**9, progress_bar=False)
        return updates

    return run


if __name__ == "__main__":
    serve(prepare, "imitation", "stable-baselines3", "torch")

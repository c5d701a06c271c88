"""RLlib: whole episodes of CartPole recorded as the page "Working with offline data" does it: by evaluation.

The policy is the same on every side: an MLP 64x64 whose weights keep the pole up. Starting Ray and building the algorithm do
not count. Ray is told of more processors than there may be, because its runners and the tasks that write claim one each, and
would wait for each other.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable

import ray
import torch
from data import make_it_balance
from ray.rllib.algorithms.ppo import PPOConfig
from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig
from serving import serve
from torch import nn

WRITERS = 6  # processors for tasks of Ray Data
FOLDER = tempfile.TemporaryDirectory()


def prepare(runners: int, envs: int, episodes: int) -> Callable[[], float]:
    torch.set_num_threads(1)
    ray.init(num_cpus=runners + WRITERS, include_dashboard=False, log_to_driver=False)
    config = (
        PPOConfig()
        .environment("CartPole-v1")
        .env_runners(
            num_env_runners=0,
            batch_mode="complete_episodes",
            num_envs_per_env_runner=envs,
            gym_env_vectorize_mode="vector_entry_point" if envs > 1 else "sync",
            explore=False,
        )
        .evaluation(
            evaluation_num_env_runners=runners,
            evaluation_duration=episodes,
            evaluation_config={"explore": False},
        )
        .rl_module(model_config=DefaultModelConfig(fcnet_hiddens=[64, 64], fcnet_activation="relu", vf_share_layers=False))
        .offline_data(output=FOLDER.name, output_write_episodes=True, output_max_rows_per_file=25)
    )
    algorithm = config.build_algo()
    algorithm.learner_group.foreach_learner(lambda learner, _=None: balance(learner.module["default_policy"]))
    balance(algorithm.get_module())

    def run() -> float:
        figures = algorithm.evaluate()["env_runners"]
        return float(figures["num_env_steps_sampled"])

    return run


def balance(module: nn.Module) -> None:
    """Set the actor's layers."""
    parts = (module.encoder.actor_encoder, module.pi)
    make_it_balance([layer for part in parts for layer in part.modules() if isinstance(layer, nn.Linear)])


if __name__ == "__main__":
    serve(prepare, "ray", "torch")

"""RLlib: its default learner pipeline for behaviour cloning, on numpy'ized episodes, to tensors on the CPU."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from data import cartpole_steps
from gymnasium import spaces
from ray.rllib.algorithms.algorithm_config import AlgorithmConfig
from ray.rllib.algorithms.bc.bc_catalog import BCCatalog
from ray.rllib.algorithms.bc.torch.default_bc_torch_rl_module import DefaultBCTorchRLModule
from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig
from ray.rllib.core.rl_module.multi_rl_module import MultiRLModuleSpec
from ray.rllib.core.rl_module.rl_module import RLModuleSpec
from ray.rllib.env.single_agent_episode import SingleAgentEpisode
from serving import serve


def prepare(number: int, length: int, times: int) -> Callable[[], float]:
    seen, done = spaces.Box(-np.inf, np.inf, (4,), np.float32), spaces.Discrete(2)
    spec = RLModuleSpec(
        module_class=DefaultBCTorchRLModule,
        observation_space=seen,
        action_space=done,
        model_config=vars(DefaultModelConfig()),
        catalog_class=BCCatalog,
    )
    pipeline = AlgorithmConfig().framework("torch").build_learner_connector(seen, done)
    module = MultiRLModuleSpec(rl_module_specs={"default_policy": spec}).build()
    steps = cartpole_steps((number + 1) * length)
    episodes = [
        SingleAgentEpisode(
            id_=f"{first:032x}",
            observations=list(steps["obs"][first : first + length + 1]),
            observation_space=seen,
            actions=list(steps["actions"][first : first + length]),
            action_space=done,
            rewards=[1.0] * length,
            terminated=True,
            len_lookback_buffer=0,
        ).to_numpy()
        for first in range(0, number * length, length)
    ]

    def run() -> float:
        for _ in range(times):
            pipeline(rl_module=module, batch={}, episodes=episodes, shared_data={})
        return times * number * length

    return run


if __name__ == "__main__":
    serve(prepare, "ray", "torch")

"""How long does the default learner pipeline take, episodes to train batch? Rival: RLlib's, on the same numpy'ized episodes.

Both make tensors on the CPU of the same data: observations of 4 float32, two actions. Ours takes them as our readers give
them, an EpisodeBatch, and as a list of single episodes, as RLlib's does.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from benchmarks.harness import Row, paired
from benchmarks.read_episodes import episodes
from offline_cli.connectors import learner_pipeline
from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.modules import build_recurrent_module

STEPS = 500


def rows() -> list[Row]:
    numbers = (100, 1000)
    return [
        *(row(number, "an EpisodeBatch", lambda batch: batch) for number in numbers),
        *(row(number, "a list of episodes", list) for number in numbers),
        row(100, "an EpisodeBatch", lambda batch: batch, stateful=True),
    ]


def row(number: int, form: str, given: Callable[[EpisodeBatch], Any], *, stateful: bool = False) -> Row:
    batch = episodes(STEPS, number)
    theirs, their_pipeline, their_module = rllibs(batch, stateful=stateful)
    mine, pipeline = given(batch), learner_pipeline(batch.observation_space, batch.action_space)
    module = build_recurrent_module(batch.observation_space, batch.action_space, lstm_size=8) if stateful else None
    kind = "LSTM of 20 timesteps" if stateful else "stateless"
    return paired(
        f"learner pipeline ({kind}) on {number} episodes of {STEPS} steps, {form}",
        amount=batch.num_steps,
        unit="steps/s",
        ours=lambda: pipeline(rl_module=module, episodes=mine),
        rival=lambda: their_pipeline(rl_module=their_module, batch={}, episodes=theirs, shared_data={}),
        rival_name="RLlib",
        pairs=9 if number == 100 else 5,
    )


def rllibs(batch: EpisodeBatch, *, stateful: bool) -> tuple[list[Any], Any, Any]:
    """RLlib's episodes with the same steps, its default pipeline, and its module for behaviour cloning."""
    from ray.rllib.algorithms.algorithm_config import AlgorithmConfig
    from ray.rllib.algorithms.bc.bc_catalog import BCCatalog
    from ray.rllib.algorithms.bc.torch.default_bc_torch_rl_module import DefaultBCTorchRLModule
    from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig
    from ray.rllib.core.rl_module.multi_rl_module import MultiRLModuleSpec
    from ray.rllib.core.rl_module.rl_module import RLModuleSpec
    from ray.rllib.env.single_agent_episode import SingleAgentEpisode

    spec = RLModuleSpec(
        module_class=DefaultBCTorchRLModule,
        observation_space=batch.observation_space,
        action_space=batch.action_space,
        model_config=vars(DefaultModelConfig(use_lstm=stateful, lstm_cell_size=8, max_seq_len=20)),
        catalog_class=BCCatalog,
    )
    pipeline = AlgorithmConfig().framework("torch").build_learner_connector(batch.observation_space, batch.action_space)
    singles = [
        SingleAgentEpisode(
            id_=episode.id_,
            observations=list(episode.get_observations()),
            observation_space=batch.observation_space,
            actions=list(episode.get_actions()),
            action_space=batch.action_space,
            rewards=list(episode.get_rewards()),
            terminated=True,
            len_lookback_buffer=0,
        ).to_numpy()
        for episode in batch
    ]
    return singles, pipeline, MultiRLModuleSpec(rl_module_specs={"default_policy": spec}).build()

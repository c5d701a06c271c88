"""Episodes of several agents through RLlib's learner pipeline and through ours: equal batches by module."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from rllib_answers import Answers

from offline_cli import MultiAgentEpisode
from offline_cli.connectors import AgentToModuleMapping, learner_pipeline
from offline_cli.modules.rl_module import RLModule
from offline_cli.trees import flatten

OBSERVATIONS = spaces.Box(-1.0, 1.0, (3,), np.float32)
ACTIONS = spaces.Discrete(4)
AGENTS = ("ann", "bob", "cid")
MODULES = {"ann": "left", "bob": "left", "cid": "right"}
BY_AGENT = (spaces.Dict(dict.fromkeys(AGENTS, OBSERVATIONS)), spaces.Dict(dict.fromkeys(AGENTS, ACTIONS)))
STEPS = (7, 1, 5)


def module_of(agent_id: str, *_: Any, **__: Any) -> str:
    return MODULES[agent_id]


def played(kind: Any, *, states: bool, cut: bool) -> list[Any]:
    """Episodes in which cid sees and acts at every other step only, the same for every class that `kind` is."""
    episodes = []
    for number, steps in enumerate(STEPS):
        rng = np.random.default_rng(number)
        by_agent = {"observation_space": dict.fromkeys(AGENTS, OBSERVATIONS), "action_space": dict.fromkeys(AGENTS, ACTIONS)}
        episode = kind(id_=f"e{number}", agent_to_module_mapping_fn=module_of, **by_agent)
        episode.add_env_reset(observations={agent: rng.uniform(-1, 1, 3).astype(np.float32) for agent in AGENTS}, infos={})
        seeing = set(AGENTS)
        for t in range(steps):
            if cut and t == 4:
                episodes.append(episode)
                episode = renamed(episode.cut(len_lookback_buffer=2))
            actions = {agent: int(rng.integers(4)) for agent in AGENTS if agent in seeing}
            seeing = {"ann", "bob"} | ({"cid"} if t % 2 or t == steps - 1 else set())
            end = number == 0 and t == steps - 1
            extra = {agent: extra_of(rng, agent, states) for agent in actions}
            episode.add_env_step(
                observations={agent: rng.uniform(-1, 1, 3).astype(np.float32) for agent in AGENTS if agent in seeing},
                actions=actions,
                rewards={agent: float(rng.normal()) for agent in AGENTS if agent in seeing},
                infos={},
                terminateds={"__all__": end},
                truncateds={"__all__": False},
                extra_model_outputs=extra,
            )
        episodes.append(episode)
    return [episode.to_numpy() for episode in episodes]


def renamed(episode: Any) -> Any:
    """A chunk with a name of its own: RLlib files the items of chunks that share one under one key, as one sequence."""
    episode.id_ += "b"
    for part in episode.agent_episodes.values():
        part.multi_agent_episode_id = episode.id_
    return episode


def extra_of(rng: Any, agent: str, states: bool) -> dict[str, Any]:
    found: dict[str, Any] = {"action_logp": np.float32(rng.normal())}
    if states and MODULES[agent] == "left":
        found["state_out"] = {name: rng.normal(size=(1, 2)).astype(np.float32) for name in ("h", "c")}
    return found


def their_specs(*, stateful: bool) -> Any:
    from ray.rllib.algorithms.bc.bc_catalog import BCCatalog
    from ray.rllib.algorithms.bc.torch.default_bc_torch_rl_module import DefaultBCTorchRLModule
    from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig
    from ray.rllib.core.rl_module.multi_rl_module import MultiRLModuleSpec
    from ray.rllib.core.rl_module.rl_module import RLModuleSpec

    def spec(lstm: bool) -> Any:
        config = DefaultModelConfig(fcnet_hiddens=[4], use_lstm=lstm, lstm_cell_size=2, max_seq_len=4)
        return RLModuleSpec(
            module_class=DefaultBCTorchRLModule,
            observation_space=OBSERVATIONS,
            action_space=ACTIONS,
            model_config=vars(config),
            catalog_class=BCCatalog,
        )

    return MultiRLModuleSpec(rl_module_specs={"left": spec(stateful), "right": spec(False)})


def their_pipeline(specs: Any) -> Any:
    from ray.rllib.algorithms.ppo import PPOConfig  # the base class cannot be asked where there are several modules

    config = PPOConfig().framework("torch").rl_module(rl_module_spec=specs)
    config.multi_agent(policies={"left", "right"}, policy_mapping_fn=module_of)
    return config.build_learner_connector(*BY_AGENT)


class StandIn(RLModule):
    """What pipelines ask of RLlib's module."""

    def get_initial_state(self) -> dict[str, Any]:
        return {name: torch.zeros(1, 2) for name in ("h", "c")} if self.model_config["stateful"] else {}

    def is_stateful(self) -> bool:
        return bool(self.model_config["stateful"])


def stand_in(stateful: bool) -> StandIn:
    return StandIn(OBSERVATIONS, ACTIONS, model_config={"max_seq_len": 4, "stateful": stateful})


@pytest.mark.parametrize("cut", [False, True], ids=["whole", "cut"])
@pytest.mark.parametrize("stateful", [False, True], ids=["stateless", "one LSTM, one without"])
def test_batches_by_module_are_equal(answers: Answers, stateful: bool, cut: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    def asked() -> Any:
        from ray.rllib.env.multi_agent_episode import MultiAgentEpisode as Theirs

        # RLlib walks over a set: its rows come in another order in every process.
        monkeypatch.setattr(Theirs, "agent_ids", property(lambda episode: list(episode.agent_episodes)))
        specs = their_specs(stateful=stateful)
        episodes = played(Theirs, states=stateful, cut=cut)
        return their_pipeline(specs)(rl_module=specs.build(), batch={}, episodes=episodes, shared_data={})

    wanted = answers(asked)
    mapping = AgentToModuleMapping(
        rl_module_specs={"left", "right"}, agent_to_module_mapping_fn=module_of, as_learner_connector=True
    )
    mine = learner_pipeline(*BY_AGENT, mapping=mapping)
    module = {"left": stand_in(stateful), "right": stand_in(False)}
    found = mine(rl_module=module, episodes=played(MultiAgentEpisode, states=stateful, cut=cut))
    assert found.keys() == wanted.keys() == {"left", "right"}
    mine_flat, other = dict(flatten(found)), dict(flatten(wanted))
    assert mine_flat.keys() == other.keys()
    for path, leaf in other.items():
        assert (mine_flat[path].dtype, mine_flat[path].shape) == (leaf.dtype, leaf.shape), path
        assert torch.equal(mine_flat[path], leaf), path

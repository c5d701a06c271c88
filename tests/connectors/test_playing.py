"""Playing through pipelines: one step after the other, alone or with others, with memory or without."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

from offline_cli import Columns, MultiAgentEpisode, SingleAgentEpisode
from offline_cli.connectors.common.batching import AgentToModuleMapping
from offline_cli.connectors.env_to_module.observation_preprocessor import env_to_module_pipeline
from offline_cli.connectors.learner.added_columns import learner_pipeline
from offline_cli.connectors.module_to_env.default_pipeline import module_to_env_pipeline
from offline_cli.connectors.pipeline_player import PipelinePlayer
from offline_cli.errors import BadPiece
from offline_cli.modules import build_module, build_recurrent_module
from offline_cli.modules.distributions import ForEnvironment
from offline_cli.trees import flatten, map_leaves

VECTOR = gym.spaces.Box(-1.0, 1.0, (3,), np.float32)
ARM = gym.spaces.Box(-2.0, 2.0, (2,), np.float32)
CHOICES = gym.spaces.Discrete(4)


def begun(id_: str, first: float = 0.0) -> SingleAgentEpisode:
    episode = SingleAgentEpisode(id_=id_, observation_space=VECTOR, action_space=CHOICES)
    episode.add_env_reset(np.full(3, first, np.float32))
    return episode


def player_of(module: Any, action_space: Any, **more: Any) -> PipelinePlayer:
    return PipelinePlayer(
        module, env_to_module_pipeline(VECTOR, action_space), module_to_env_pipeline(VECTOR, action_space), **more
    )


def play(player: PipelinePlayer, episodes: list[SingleAgentEpisode], steps: int, **drawing: Any) -> None:
    rng = np.random.default_rng(0)
    for _ in range(steps):
        acts = player.act(episodes, **drawing)
        for row, episode in enumerate(episodes):
            seen = rng.uniform(-1, 1, 3).astype(np.float32)
            extra = {name: items[row] for name, items in acts.extra.items()}
            episode.add_env_step(seen, acts.actions[row], 1.0, extra_model_outputs=extra)


@pytest.mark.parametrize(
    "space", [CHOICES, ARM, gym.spaces.Dict({"move": CHOICES, "aim": ARM})], ids=lambda s: type(s).__name__
)
def test_actions_are_those_of_the_module_and_of_its_head(space: Any) -> None:
    module = build_module(VECTOR, space, hidden=[8], action_scale="normalized")
    acts = player_of(module, space).act([begun("a", 0.5), begun("b", -0.5)])
    wanted = map_leaves(lambda leaf: leaf.numpy(), module.act(torch.tensor([[0.5] * 3, [-0.5] * 3])))
    for path, leaf in flatten(ForEnvironment(space)(wanted)):
        np.testing.assert_array_equal(dict(flatten(acts.actions_for_env))[path], leaf)
    for path, leaf in flatten(wanted):
        np.testing.assert_array_equal(dict(flatten(acts.actions))[path], leaf)
    assert space.contains(map_leaves(lambda leaf: leaf[1], acts.actions_for_env))


def test_a_module_with_memory_is_played_as_it_is_trained() -> None:
    module = build_recurrent_module(VECTOR, CHOICES, hidden=[8], memory_size=5, max_seq_len=4).eval()
    episodes = [begun("a", 0.1), begun("b", -0.9)]
    player = player_of(module, CHOICES)
    play(player, episodes, 7)
    assert episodes[0].get_extra_model_outputs(Columns.STATE_OUT, -1)["h"].shape == (1, 5)
    whole = [SingleAgentEpisode.from_state(episode.get_state()).to_numpy() for episode in episodes]
    batch = learner_pipeline(VECTOR, CHOICES)(episodes=whole, rl_module=module)
    with torch.no_grad():
        trained = module.forward_train(batch)[Columns.ACTION_DIST_INPUTS][batch[Columns.LOSS_MASK]]
    played = np.concatenate([episode.get_extra_model_outputs(Columns.ACTION_DIST_INPUTS) for episode in whole])
    np.testing.assert_allclose(trained.numpy(), played, rtol=1e-5, atol=1e-6)


def test_a_pipeline_that_gives_no_actions_says_so() -> None:
    out = module_to_env_pipeline(VECTOR, CHOICES, add_default_connectors_to_module_to_env_pipeline=False)
    player = PipelinePlayer(build_module(VECTOR, CHOICES, hidden=[4]), env_to_module_pipeline(VECTOR, CHOICES), out)
    with pytest.raises(BadPiece, match=r"'actions'.*'action_dist_inputs'"):
        player.act([begun("a")])


# ---- several agents ----

AGENTS = {"a": "left", "b": "left", "c": "right"}
OBSERVATIONS = gym.spaces.Dict(dict.fromkeys(AGENTS, VECTOR))
ACTIONS = gym.spaces.Dict({"a": ARM, "b": ARM, "c": CHOICES})


def several(id_: str, acting: str) -> MultiAgentEpisode:
    """An episode in which the agents in `acting` have just seen something."""
    episode = MultiAgentEpisode(
        id_=id_,
        observation_space=OBSERVATIONS.spaces,
        action_space=ACTIONS.spaces,
        agent_to_module_mapping_fn=lambda agent, episode: AGENTS[agent],
    )
    episode.add_env_reset(observations={agent: np.full(3, ord(agent) / 200, np.float32) for agent in acting})
    return episode


@pytest.mark.parametrize("memory", [False, True], ids=["without memory", "one module with memory"])
def test_every_agent_that_has_to_act_plays_with_its_own_module_and_scale(memory: bool) -> None:
    left = build_module(VECTOR, ARM, hidden=[4], action_scale="normalized", seed=1)
    right: Any = build_module(VECTOR, CHOICES, hidden=[4], seed=2)
    if memory:
        right = build_recurrent_module(VECTOR, CHOICES, hidden=[4], memory_size=3, max_seq_len=4)
    modules = {"left": left.eval(), "right": right.eval()}
    mapping = AgentToModuleMapping(
        rl_module_specs=dict(modules.items()), agent_to_module_mapping_fn=lambda agent, episode: AGENTS[agent]
    )
    player = PipelinePlayer(
        modules,
        env_to_module_pipeline(OBSERVATIONS, ACTIONS, mapping=mapping),
        module_to_env_pipeline(OBSERVATIONS, ACTIONS, multi_agent=True),
    )
    episodes = [several("e", "abc"), several("f", "c")]
    for _ in range(3):
        acts = player.act(episodes)
        assert [set(actions) for actions in acts.actions] == [{"a", "b", "c"}, {"c"}]
        for row, episode in enumerate(episodes):
            actions = acts.actions[row]
            assert all(ACTIONS[agent].contains(action) for agent, action in acts.actions_for_env[row].items())
            extra = {
                agent: {n: items[row][agent] for n, items in acts.extra.items() if agent in items[row]} for agent in actions
            }
            seen = {agent: np.zeros(3, np.float32) for agent in actions}
            episode.add_env_step(seen, actions, dict.fromkeys(actions, 1.0), extra_model_outputs=extra)
    assert len(episodes[0].agent_episodes["b"]) == 3
    kept = episodes[1].agent_episodes["c"].extra_model_outputs
    assert (Columns.STATE_OUT in kept) == memory
    assert Columns.STATE_OUT not in episodes[0].agent_episodes["a"].extra_model_outputs

"""Playing step by step through RLlib's default env-to-module and module-to-env pipelines and through ours: equal batches.

Both get the same module of RLlib's and the same episodes; what comes out is held against each other at every step, and added
to the episodes of both. Where we differ on purpose: `action_logp` of greedy actions is one 0 per row here, and in RLlib zeros
of the shape and type of the actions; stacked integer actions have the action space's type, and in RLlib int32.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from rllib_answers import Answers

from offline_cli import Columns, SingleAgentEpisode
from offline_cli.connectors.env_to_module.observation_preprocessor import env_to_module_pipeline
from offline_cli.connectors.module_to_env.default_pipeline import GetActions, module_to_env_pipeline
from offline_cli.modules.distributions import build_head
from offline_cli.trees import flatten, map_leaves

OBSERVATIONS = gym.spaces.Box(-1.0, 1.0, (3,), np.float32)
ACTIONS: dict[str, gym.Space[Any]] = {
    "discrete": gym.spaces.Discrete(4),
    "box": gym.spaces.Box(np.array([-2.0, 0.0], np.float32), np.array([2.0, 0.5], np.float32)),
    "unbounded box": gym.spaces.Box(-np.inf, np.inf, (2,), np.float32),
    "multi-discrete": gym.spaces.MultiDiscrete([3, 2, 4]),
    "dict": gym.spaces.Dict({"move": gym.spaces.Discrete(3), "aim": gym.spaces.Box(-3.0, 3.0, (2,), np.float32)}),
    "tuple": gym.spaces.Tuple([gym.spaces.Box(0.0, 9.0, (1,), np.float32), gym.spaces.Discrete(2)]),
}
LENGTHS = (0, 1, 4)
STEPS = 3


@pytest.fixture(scope="module")
def rllib() -> Any:
    pytest.importorskip("ray", reason="RLlib comes with the extra [ray]")
    from ray.rllib.algorithms.algorithm_config import AlgorithmConfig

    return AlgorithmConfig


def rllib_module(action_space: gym.Space[Any], *, stateful: bool) -> Any:
    from ray.rllib.algorithms.bc.bc_catalog import BCCatalog
    from ray.rllib.algorithms.bc.torch.default_bc_torch_rl_module import DefaultBCTorchRLModule
    from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig
    from ray.rllib.core.rl_module.rl_module import RLModuleSpec

    torch.manual_seed(0)
    return RLModuleSpec(
        module_class=DefaultBCTorchRLModule,
        observation_space=OBSERVATIONS,
        action_space=action_space,
        model_config=DefaultModelConfig(fcnet_hiddens=[8], use_lstm=stateful, lstm_cell_size=4, max_seq_len=5),
        catalog_class=BCCatalog,
    ).build()


def their_pipelines(config_class: Any, action_space: gym.Space[Any], custom: Any = None, **scaling: bool) -> tuple[Any, Any]:
    config = config_class().environment(observation_space=OBSERVATIONS, action_space=action_space, **scaling)
    config.env_runners(env_to_module_connector=custom)
    spaces = {"__env_single__": (OBSERVATIONS, action_space), "__env__": (OBSERVATIONS, action_space)}
    return config.build_env_to_module_connector(spaces=spaces), config.build_module_to_env_connector(spaces=spaces)


def begun(kind: Callable[..., Any], length: int, action_space: gym.Space[Any], extra: dict[str, Any]) -> Any:
    """An episode of `length` steps, the same for every class that `kind` makes."""
    rng = np.random.default_rng(length)
    action_space.seed(length)
    episode = kind(id_=f"e{length}", observation_space=OBSERVATIONS, action_space=action_space)
    episode.add_env_reset(rng.uniform(-1, 1, 3).astype(np.float32))
    for _ in range(length):
        outputs = map_leaves(lambda leaf: rng.normal(size=leaf.shape).astype(np.float32), extra)
        episode.add_env_step(rng.uniform(-1, 1, 3).astype(np.float32), action_space.sample(), 1.0, extra_model_outputs=outputs)
    return episode


def assert_equal(theirs: Any, ours: Any, where: str) -> None:
    """Same structure, same type of leaves (but for the size of integers), same values."""
    found, wanted = dict(flatten(ours)), dict(flatten(theirs))
    assert found.keys() == wanted.keys(), where
    for path, leaf in wanted.items():
        mine, other = np.asarray(found[path]), np.asarray(leaf)
        assert (mine.dtype.kind, mine.shape) == (other.dtype.kind, other.shape), f"{where} {path}"
        assert mine.dtype == other.dtype or mine.dtype.kind == "i", f"{where} {path}"
        np.testing.assert_array_equal(mine, other, err_msg=f"{where} {path}")


def assert_same_outputs(theirs: dict[str, Any], ours: dict[str, Any], *, explore: bool) -> None:
    assert list(ours) == list(theirs)
    for column, wanted in theirs.items():
        if column == Columns.ACTION_LOGP and not explore:
            assert [float(value) for value in ours[column]] == [0.0] * len(wanted)
        elif isinstance(wanted, list):
            assert isinstance(ours[column], list)
            for theirs_one, ours_one in zip(wanted, ours[column], strict=True):
                assert_equal(theirs_one, ours_one, column)
        else:
            assert_equal(wanted, ours[column], column)


def play_both(rllib: Any, action_space: gym.Space[Any], *, stateful: bool, explore: bool, **scaling: bool) -> None:
    from ray.rllib.env.single_agent_episode import SingleAgentEpisode as TheirEpisode

    module = rllib_module(action_space, stateful=stateful)
    their_in, their_out = their_pipelines(rllib, action_space, **scaling)
    our_in = env_to_module_pipeline(OBSERVATIONS, action_space)
    our_out = module_to_env_pipeline(OBSERVATIONS, action_space, **scaling)
    extra = {Columns.STATE_OUT: module.get_initial_state()} if stateful else {}
    theirs = [begun(TheirEpisode, length, action_space, extra) for length in LENGTHS]
    ours = [begun(SingleAgentEpisode, length, action_space, extra) for length in LENGTHS]
    their_data: dict[str, Any] = {}
    our_data: dict[str, Any] = {}
    for step in range(STEPS):
        their_call = {"rl_module": module, "episodes": theirs, "explore": explore, "shared_data": their_data}
        our_call = {"rl_module": module, "episodes": ours, "explore": explore, "shared_data": our_data}
        their_batch, our_batch = their_in(batch={}, **their_call), our_in(batch={}, **our_call)
        assert_equal(their_batch, our_batch, f"step {step}")
        with torch.no_grad():
            outputs = module.forward_exploration(their_batch) if explore else module.forward_inference(their_batch)
        torch.manual_seed(step)
        their_outputs = their_out(batch=dict(outputs), **their_call)
        torch.manual_seed(step)
        our_outputs = our_out(batch=dict(outputs), **our_call)
        assert_same_outputs(their_outputs, our_outputs, explore=explore)
        for row, (theirs_one, ours_one) in enumerate(zip(theirs, ours, strict=True)):
            observation = np.full(3, step / 10 + row / 100, np.float32)
            state = {Columns.STATE_OUT: our_outputs[Columns.STATE_OUT][row]} if stateful else {}
            action = map_leaves(lambda leaf, row=row: leaf[row], our_outputs[Columns.ACTIONS])
            for episode in (theirs_one, ours_one):
                episode.add_env_step(observation, action, 0.5, extra_model_outputs=dict(state))


@pytest.mark.integration
@pytest.mark.parametrize(
    ("name", "stateful", "explore"),
    [("discrete", True, True), ("box", False, True), ("unbounded box", True, False), ("multi-discrete", False, False)],
)
def test_both_pipelines_give_what_rllibs_give(rllib: Any, name: str, stateful: bool, explore: bool) -> None:
    play_both(rllib, ACTIONS[name], stateful=stateful, explore=explore)


@pytest.mark.parametrize(
    "scaling",
    [
        {"normalize_actions": True, "clip_actions": False},
        {"normalize_actions": False, "clip_actions": True},
        {"normalize_actions": False, "clip_actions": False},
    ],
    ids=["normalize", "clip", "neither"],
)
@pytest.mark.parametrize("name", ["box", "dict", "tuple"])
def test_actions_for_the_environment_are_rllibs_bit_for_bit(answers: Answers, name: str, scaling: dict[str, bool]) -> None:
    action_space = ACTIONS[name]
    our_out = module_to_env_pipeline(OBSERVATIONS, action_space, **scaling)
    rng = np.random.default_rng(0)
    actions = map_leaves(
        lambda leaf: torch.as_tensor(rng.normal(size=leaf.shape) if leaf.dtype.kind == "f" else leaf).to(
            torch.float32 if leaf.dtype.kind == "f" else torch.int64
        ),
        batched(action_space, 3),
    )

    def played(pipeline: Any, kind: Any) -> Any:
        episodes = [begun(kind, length, action_space, {}) for length in LENGTHS]
        data: dict[str, Any] = {"memorized_map_structure": [episode.id_ for episode in episodes]}
        batch = {Columns.ACTIONS: actions}
        return pipeline(rl_module=None, batch=batch, episodes=episodes, explore=False, shared_data=data)

    def asked() -> Any:
        from ray.rllib.algorithms.algorithm_config import AlgorithmConfig
        from ray.rllib.env.single_agent_episode import SingleAgentEpisode as Theirs

        _, their_out = their_pipelines(AlgorithmConfig, action_space, **scaling)
        return played(their_out, Theirs)

    wanted, found = answers(asked), played(our_out, SingleAgentEpisode)
    assert_same_outputs(wanted, found, explore=True)
    assert (Columns.ACTIONS_FOR_ENV in found) == any(scaling.values())


def batched(space: gym.Space[Any], count: int) -> Any:
    space.seed(1)
    samples = [space.sample() for _ in range(count)]
    return map_leaves(lambda *leaves: np.stack(leaves), *samples)


@pytest.mark.integration
@pytest.mark.parametrize("name", ["discrete", "box", "multi-discrete"])
def test_our_action_heads_take_the_same_actions_and_give_them_the_same_likelihood(rllib: Any, name: str) -> None:
    action_space = ACTIONS[name]
    module = rllib_module(action_space, stateful=False)

    class Ours:
        action_head = build_head(action_space, action_scale="normalized")

    logits = torch.rand(50, Ours.action_head.size, generator=torch.Generator().manual_seed(1))  # our spreads end at exp(2)
    episodes: list[Any] = []
    call = {"episodes": episodes, "shared_data": {}}
    for explore in (False, True):
        theirs = GetActions()(rl_module=module, batch={Columns.ACTION_DIST_INPUTS: logits}, explore=explore, **call)
        ours = GetActions()(rl_module=Ours, batch={Columns.ACTION_DIST_INPUTS: logits}, explore=explore, **call)
        if not explore:
            torch.testing.assert_close(ours[Columns.ACTIONS], theirs[Columns.ACTIONS], rtol=0, atol=0)
            continue
        likelihood = Ours.action_head.logp(logits, theirs[Columns.ACTIONS])
        torch.testing.assert_close(likelihood, theirs[Columns.ACTION_LOGP], rtol=1e-5, atol=1e-5)


AGENTS = {"a": "left", "b": "left", "c": "right"}


def module_of(agent: str, episode: Any, **_: Any) -> str:
    return AGENTS[agent]


def their_multi_agent_pipelines(spaces: tuple[Any, Any], specs: dict[str, Any]) -> tuple[Any, Any]:
    from ray.rllib.algorithms.ppo import PPOConfig
    from ray.rllib.core.rl_module.multi_rl_module import MultiRLModuleSpec

    config = PPOConfig().environment(observation_space=spaces[0], action_space=spaces[1])
    config.multi_agent(policies=set(specs), policy_mapping_fn=module_of)
    config.rl_module(rl_module_spec=MultiRLModuleSpec(rl_module_specs=specs))
    given = {"__env_single__": spaces}
    return config.build_env_to_module_connector(spaces=given), config.build_module_to_env_connector(spaces=given)


@pytest.mark.integration
@pytest.mark.parametrize("explore", [False, True], ids=["greedy", "explore"])
def test_episodes_of_several_agents_go_through_the_same_pieces_to_the_same_actions(
    rllib: Any, explore: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ray.rllib.core.rl_module.multi_rl_module import MultiRLModule
    from ray.rllib.core.rl_module.rl_module import RLModuleSpec
    from ray.rllib.env.multi_agent_episode import MultiAgentEpisode as TheirEpisode

    from offline_cli import MultiAgentEpisode
    from offline_cli.connectors.common.batching import AgentToModuleMapping

    # RLlib walks over a set: its rows come in another order in every process.
    stepped = TheirEpisode.get_agents_that_stepped
    monkeypatch.setattr(TheirEpisode, "get_agents_that_stepped", lambda episode: sorted(stepped(episode)))
    left, right = ACTIONS["box"], ACTIONS["discrete"]
    modules = MultiRLModule()
    modules.add_module("left", rllib_module(left, stateful=False))
    modules.add_module("right", rllib_module(right, stateful=True))
    modules.framework = "torch"
    observation_space = gym.spaces.Dict(dict.fromkeys(AGENTS, OBSERVATIONS))
    action_space = gym.spaces.Dict({"a": left, "b": left, "c": right})
    specs = {
        "left": RLModuleSpec(observation_space=OBSERVATIONS, action_space=left),
        "right": RLModuleSpec(observation_space=OBSERVATIONS, action_space=right),
    }
    their_in, their_out = their_multi_agent_pipelines((observation_space, action_space), specs)
    mapping = AgentToModuleMapping(rl_module_specs=specs, agent_to_module_mapping_fn=module_of)
    our_in = env_to_module_pipeline(observation_space, action_space, mapping=mapping)
    our_out = module_to_env_pipeline(observation_space, action_space, multi_agent=True)
    for mine, their in ((our_in, their_in), (our_out, their_out)):
        assert [name for name, _ in mine.named()] == [type(piece).__name__ for piece in their.connectors]

    def begun_by(kind: Any, number: int) -> Any:
        of_agents = {"observation_space": observation_space.spaces, "action_space": action_space.spaces}
        episode = kind(id_=f"m{number}", agent_to_module_mapping_fn=module_of, **of_agents)
        episode.add_env_reset(observations={agent: np.full(3, number / 4, np.float32) for agent in "abc"[number:]})
        return episode

    theirs, ours = ([begun_by(kind, number) for number in range(2)] for kind in (TheirEpisode, MultiAgentEpisode))
    their_data: dict[str, Any] = {}
    our_data: dict[str, Any] = {}
    for step in range(STEPS):
        their_call = {"rl_module": modules, "episodes": theirs, "explore": explore, "shared_data": their_data}
        our_call = {"rl_module": modules, "episodes": ours, "explore": explore, "shared_data": our_data}
        their_batch, our_batch = their_in(batch={}, **their_call), our_in(batch={}, **our_call)
        assert_equal(their_batch, our_batch, f"step {step}")
        with torch.no_grad():
            outputs = modules.forward_exploration(their_batch) if explore else modules.forward_inference(their_batch)
        torch.manual_seed(step)
        their_outputs = their_out(batch={name: dict(part) for name, part in outputs.items()}, **their_call)
        torch.manual_seed(step)
        our_outputs = our_out(batch={name: dict(part) for name, part in outputs.items()}, **our_call)
        assert set(our_outputs) == set(their_outputs)
        for column in [Columns.ACTIONS, Columns.ACTIONS_FOR_ENV, Columns.STATE_OUT]:
            for their_row, our_row in zip(their_outputs[column], our_outputs[column], strict=True):
                assert_equal(their_row, our_row, column)
        for row, pair in enumerate(zip(theirs, ours, strict=True)):
            actions, states = our_outputs[Columns.ACTIONS][row], our_outputs[Columns.STATE_OUT][row]
            extra = {agent: {Columns.STATE_OUT: states[agent]} if agent in states else {} for agent in actions}
            seen = {agent: np.full(3, step / 10, np.float32) for agent in actions}
            for episode in pair:
                episode.add_env_step(seen, actions, dict.fromkeys(actions, 1.0), extra_model_outputs=extra)

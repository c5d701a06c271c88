"""From a module's outputs to actions that environments take."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

from offline_cli import Columns, SingleAgentEpisode
from offline_cli.connectors.connector_v2 import ConnectorV2
from offline_cli.connectors.module_to_env.default_pipeline import NormalizeAndClipActions, module_to_env_pipeline
from offline_cli.modules.distributions import build_head

OBSERVATIONS = gym.spaces.Box(-1.0, 1.0, (2,), np.float32)
CHOICES = gym.spaces.Discrete(3)
ARM = gym.spaces.Box(np.array([0.0, -4.0], np.float32), np.array([1.0, 4.0], np.float32))


class Module:
    """As much of a module as these pieces ask for."""

    def __init__(self, action_space: Any) -> None:
        self.action_head = build_head(action_space, action_scale="normalized")


def episodes(*ids: str) -> list[SingleAgentEpisode]:
    return [SingleAgentEpisode(id_=id_) for id_ in ids]


LOGITS = torch.tensor([[0.0, 9.0, 0.0], [9.0, 0.0, 0.0]])


def through(pipeline: Any, outputs: dict[str, Any], **call: Any) -> dict[str, Any]:
    given = {"rl_module": Module(CHOICES), "episodes": episodes("a", "b"), "explore": False} | call
    return pipeline(batch=outputs, **given)


def test_the_default_pieces_come_in_the_documented_order_with_custom_ones_before_the_scaling() -> None:
    class Custom(ConnectorV2):
        def __call__(self, *, batch: Any, **_: Any) -> Any:
            return batch

    single = module_to_env_pipeline(OBSERVATIONS, ARM, custom=lambda env: [Custom(), Custom()])
    assert [name for name, _ in single.named()] == [
        "GetActions",
        "TensorToNumpy",
        "UnBatchToIndividualItems",
        "RemoveSingleTsTimeRankFromBatch",
        "Custom",
        "Custom_2",
        "NormalizeAndClipActions",
        "ListifyDataForVectorEnv",
    ]
    several = module_to_env_pipeline(OBSERVATIONS, ARM, multi_agent=True)
    assert [name for name, _ in several.named()][2:5] == [
        "UnBatchToIndividualItems",
        "ModuleToAgentUnmapping",
        "RemoveSingleTsTimeRankFromBatch",
    ]


def test_greedy_actions_are_the_likeliest_and_certain() -> None:
    outputs = through(module_to_env_pipeline(OBSERVATIONS, CHOICES), {Columns.ACTION_DIST_INPUTS: LOGITS})
    assert outputs[Columns.ACTIONS].tolist() == [1, 0]
    assert outputs[Columns.ACTIONS_FOR_ENV].tolist() == [1, 0]
    assert outputs[Columns.ACTION_LOGP] == [0.0, 0.0]
    assert isinstance(outputs[Columns.ACTION_DIST_INPUTS], list)


def test_a_time_axis_of_one_step_is_kept_while_drawing_and_taken_away_after() -> None:
    state = {"h": torch.ones(2, 5)}
    found = through(
        module_to_env_pipeline(OBSERVATIONS, CHOICES),
        {Columns.ACTION_DIST_INPUTS: LOGITS[:, None], Columns.STATE_OUT: state},
        shared_data={"_added_single_ts_time_rank": True},
    )
    assert found[Columns.ACTIONS].tolist() == [1, 0]
    assert found[Columns.ACTION_DIST_INPUTS][0].shape == (3,)
    assert found[Columns.STATE_OUT][1]["h"].shape == (5,), "states have no time axis to lose"


@pytest.mark.parametrize(
    ("normalize", "clip", "expected"), [(True, False, [0.75, 4.0]), (False, True, [0.5, 3.0]), (True, True, [0.75, 4.0])]
)
def test_actions_are_stretched_to_the_bounds_or_clipped_to_them(normalize: bool, clip: bool, expected: list[float]) -> None:
    piece = NormalizeAndClipActions(OBSERVATIONS, ARM, normalize_actions=normalize, clip_actions=clip)
    batch = {Columns.ACTIONS: {("a",): [np.array([0.5, 3.0], np.float32)]}}
    found = piece(batch=batch, episodes=episodes("a"))
    assert found[Columns.ACTIONS_FOR_ENV][("a",)][0].tolist() == expected
    assert found[Columns.ACTIONS][("a",)][0].tolist() == [0.5, 3.0], "what is recorded is what the module put out"


def test_parts_of_nested_actions_are_scaled_each_by_its_own_space() -> None:
    space = gym.spaces.Dict({"move": CHOICES, "arms": gym.spaces.Tuple([ARM, gym.spaces.Box(-np.inf, np.inf, ())])})
    piece = NormalizeAndClipActions(OBSERVATIONS, space, normalize_actions=True, clip_actions=False)
    action = {"move": np.int64(2), "arms": (np.array([-1.0, 0.0], np.float32), np.float32(9.0))}
    found = piece(batch={Columns.ACTIONS: {("a",): [action]}}, episodes=episodes("a"))[Columns.ACTIONS_FOR_ENV][("a",)][0]
    assert found["move"] == 2
    assert found["arms"][0].tolist() == [0.0, 0.0]
    assert found["arms"][1] == 9.0, "without bounds there is nothing to stretch to"


def test_whole_numbers_in_an_integer_box_are_counted_from_its_low_and_fractions_are_stretched_and_rounded() -> None:
    space = gym.spaces.Box(-3, 5, (1,), np.int64)
    piece = NormalizeAndClipActions(OBSERVATIONS, space, normalize_actions=True, clip_actions=False)
    batch = {Columns.ACTIONS: {("a",): [np.array([2])]}}
    assert piece(batch=batch, episodes=[])[Columns.ACTIONS_FOR_ENV][("a",)][0].tolist() == [-1]
    batch = {Columns.ACTIONS: {("a",): [np.array([0.2], np.float32)]}}
    assert piece(batch=batch, episodes=[])[Columns.ACTIONS_FOR_ENV][("a",)][0].tolist() == [2]


def test_each_agent_has_its_own_bounds() -> None:
    space = gym.spaces.Dict({"left": ARM, "right": gym.spaces.Box(-9.0, 9.0, (2,), np.float32)})
    piece = NormalizeAndClipActions(OBSERVATIONS, space, normalize_actions=True, clip_actions=False)
    column = {("a", name, "m"): [np.ones(2, np.float32)] for name in ("left", "right")}
    found = piece(batch={Columns.ACTIONS: column}, episodes=[])[Columns.ACTIONS_FOR_ENV]
    assert found[("a", "left", "m")][0].tolist() == [1.0, 4.0]
    assert found[("a", "right", "m")][0].tolist() == [9.0, 9.0]


def test_logits_are_changed_before_actions_are_drawn_by_a_piece_before_get_actions() -> None:
    class NeverOne(ConnectorV2):
        """Takes one choice away."""

        def __call__(self, *, batch: Any, **_: Any) -> Any:
            batch[Columns.ACTION_DIST_INPUTS][..., 1] = -np.inf
            return batch

    pipeline = module_to_env_pipeline(OBSERVATIONS, CHOICES)
    pipeline.insert_before("GetActions", NeverOne())
    found = through(pipeline, {Columns.ACTION_DIST_INPUTS: LOGITS.clone()})
    assert found[Columns.ACTIONS].tolist() == [0, 0]

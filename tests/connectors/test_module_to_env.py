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
from offline_cli.connectors.module_to_env.unbatching import (
    GetActions,
    ListifyDataForVectorEnv,
    RemoveSingleTsTimeRankFromBatch,
    UnBatchToIndividualItems,
)
from offline_cli.errors import BadConfig, BadPiece
from offline_cli.modules.distributions import build_head
from offline_cli.modules.drawing import chance_size

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


def test_without_defaults_the_custom_pieces_are_all() -> None:
    pipeline = module_to_env_pipeline(
        OBSERVATIONS, CHOICES, custom=lambda env, spaces: [GetActions()], add_default_connectors_to_module_to_env_pipeline=False
    )
    assert [name for name, _ in pipeline.named()] == ["GetActions"]


def test_a_builder_that_gives_something_else_is_refused_by_name() -> None:
    with pytest.raises(BadConfig, match="the class GetActions"):
        module_to_env_pipeline(OBSERVATIONS, CHOICES, custom=lambda env: GetActions)
    with pytest.raises(BadConfig, match="wants 4 arguments"):
        module_to_env_pipeline(OBSERVATIONS, CHOICES, custom=lambda a, b, c, d: GetActions())


def test_greedy_actions_are_the_likeliest_and_certain() -> None:
    outputs = through(module_to_env_pipeline(OBSERVATIONS, CHOICES), {Columns.ACTION_DIST_INPUTS: LOGITS})
    assert outputs[Columns.ACTIONS].tolist() == [1, 0]
    assert outputs[Columns.ACTIONS_FOR_ENV].tolist() == [1, 0]
    assert outputs[Columns.ACTION_LOGP] == [0.0, 0.0]
    assert isinstance(outputs[Columns.ACTION_DIST_INPUTS], list)


def test_actions_of_the_module_itself_stay() -> None:
    outputs = {Columns.ACTIONS: torch.tensor([2, 2]), Columns.ACTION_DIST_INPUTS: LOGITS}
    found = through(module_to_env_pipeline(OBSERVATIONS, CHOICES), outputs)
    assert found[Columns.ACTIONS].tolist() == [2, 2]
    assert Columns.ACTION_LOGP not in found


def test_the_same_chance_draws_the_same_action_in_any_row() -> None:
    flat = torch.zeros(2, 3)
    chance = torch.rand(2, chance_size(Module(CHOICES).action_head), generator=torch.Generator().manual_seed(0))
    pipeline = module_to_env_pipeline(OBSERVATIONS, CHOICES)
    straight = through(pipeline, {Columns.ACTION_DIST_INPUTS: flat}, explore=True, chance=chance)
    turned = through(pipeline, {Columns.ACTION_DIST_INPUTS: flat}, explore=True, chance=chance.flip(0))
    assert straight[Columns.ACTIONS].tolist() == turned[Columns.ACTIONS].tolist()[::-1]
    np.testing.assert_allclose(straight[Columns.ACTION_LOGP], np.log(1 / 3), rtol=1e-6)


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


def test_a_time_axis_of_more_steps_is_an_error_that_names_the_column() -> None:
    batch = {"actions": {("a",): [np.zeros((2, 3))]}}
    with pytest.raises(BadPiece, match=r"'actions' has items of shape \(2, 3\)"):
        RemoveSingleTsTimeRankFromBatch()(batch=batch, episodes=episodes("a"), shared_data={"_added_single_ts_time_rank": True})


def test_rows_are_filed_as_they_were_before_they_were_stacked() -> None:
    noted = {"memorized_map_structure": ["b", "a"]}
    found = UnBatchToIndividualItems()(batch={"x": np.arange(2)}, episodes=episodes("a", "b"), shared_data=noted)
    assert found == {"x": {("b",): [0], ("a",): [1]}}


def test_nested_columns_are_taken_apart_row_by_row() -> None:
    batch = {"actions": {"move": np.arange(2), "aim": (np.zeros((2, 3)),)}}
    found = UnBatchToIndividualItems()(batch=batch, episodes=episodes("a", "b"))
    assert found["actions"][("b",)][0]["move"] == 1
    assert found["actions"][("a",)][0]["aim"][0].shape == (3,)


def test_more_rows_than_episodes_are_an_error_that_names_the_column() -> None:
    with pytest.raises(BadPiece, match="'x' has 3 rows, and 2 observations"):
        UnBatchToIndividualItems()(batch={"x": np.arange(3)}, episodes=episodes("a", "b"))


@pytest.mark.parametrize(
    ("normalize", "clip", "expected"), [(True, False, [0.75, 4.0]), (False, True, [0.5, 3.0]), (True, True, [0.75, 4.0])]
)
def test_actions_are_stretched_to_the_bounds_or_clipped_to_them(normalize: bool, clip: bool, expected: list[float]) -> None:
    piece = NormalizeAndClipActions(OBSERVATIONS, ARM, normalize_actions=normalize, clip_actions=clip)
    batch = {Columns.ACTIONS: {("a",): [np.array([0.5, 3.0], np.float32)]}}
    found = piece(batch=batch, episodes=episodes("a"))
    assert found[Columns.ACTIONS_FOR_ENV][("a",)][0].tolist() == expected
    assert found[Columns.ACTIONS][("a",)][0].tolist() == [0.5, 3.0], "what is recorded is what the module put out"


def test_with_neither_the_actions_go_to_the_environment_as_they_are() -> None:
    piece = NormalizeAndClipActions(OBSERVATIONS, ARM, normalize_actions=False, clip_actions=False)
    assert Columns.ACTIONS_FOR_ENV not in piece(batch={Columns.ACTIONS: [np.zeros(2)]}, episodes=[])


def test_clipping_keeps_within_the_bounds() -> None:
    piece = NormalizeAndClipActions(OBSERVATIONS, ARM, normalize_actions=False, clip_actions=True)
    found = piece(batch={Columns.ACTIONS: [np.array([7.0, -7.0], np.float32)]}, episodes=[])
    assert found[Columns.ACTIONS_FOR_ENV][0].tolist() == [1.0, -4.0]


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


@pytest.mark.parametrize("space", [ARM, gym.spaces.Box(-3, 5, (2,), np.int8), gym.spaces.Box(-3e38, 3e38, (2,), np.float32)])
def test_the_pipeline_and_the_action_head_give_the_environment_the_same_bits(space: Any) -> None:
    head = build_head(space, action_scale="normalized")
    actions = torch.randn(50, 2, generator=torch.Generator().manual_seed(0)).numpy()
    piece = NormalizeAndClipActions(OBSERVATIONS, space, normalize_actions=True, clip_actions=False)
    found = np.stack(piece(batch={Columns.ACTIONS: list(actions)}, episodes=[])[Columns.ACTIONS_FOR_ENV])
    np.testing.assert_array_equal(found, head.for_env(actions))
    assert found.dtype == space.dtype
    assert (found >= space.low).all()
    assert (found <= space.high).all()


def test_each_agent_has_its_own_bounds() -> None:
    space = gym.spaces.Dict({"left": ARM, "right": gym.spaces.Box(-9.0, 9.0, (2,), np.float32)})
    piece = NormalizeAndClipActions(OBSERVATIONS, space, normalize_actions=True, clip_actions=False)
    column = {("a", name, "m"): [np.ones(2, np.float32)] for name in ("left", "right")}
    found = piece(batch={Columns.ACTIONS: column}, episodes=[])[Columns.ACTIONS_FOR_ENV]
    assert found[("a", "left", "m")][0].tolist() == [1.0, 4.0]
    assert found[("a", "right", "m")][0].tolist() == [9.0, 9.0]


def test_entries_follow_the_order_of_the_episodes_not_that_of_the_keys() -> None:
    batch = {Columns.ACTIONS: {("b",): [np.array(1)], ("a",): [np.array(0)]}, "note": {("b",): ["B"], ("a",): ["A"]}}
    found = ListifyDataForVectorEnv()(batch=batch, episodes=episodes("a", "b"))
    assert found[Columns.ACTIONS].tolist() == [0, 1]
    assert found["note"] == ["A", "B"]


@pytest.mark.parametrize("column", [{("a",): [1]}, {("a",): [1], ("b",): [1, 2]}, {("a",): [1], ("c",): [1]}])
def test_a_column_with_gaps_or_leftovers_is_an_error_that_names_it(column: Any) -> None:
    with pytest.raises(BadPiece, match="'x' has items"):
        ListifyDataForVectorEnv()(batch={"x": column}, episodes=episodes("a", "b"))


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

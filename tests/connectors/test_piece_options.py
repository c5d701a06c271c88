"""Options of pieces given in Python: known ones arrive, misspelt ones are an error that names the nearest."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from offline_cli import ConnectorPipelineV2, ConnectorV2, OfflineCliError
from offline_cli.connectors import MeanStdFilter, NumpyToTensor
from offline_cli.connectors.piece_makers import own_pieces
from offline_cli.errors import BadPiece

OBSERVATIONS = gym.spaces.Box(-1, 1, (2,), np.float32)
NEEDED: dict[str, dict[str, Any]] = {
    "agent_to_module_mapping": {"rl_module_specs": ["m"], "agent_to_module_mapping_fn": lambda *_: "m"},
    "compute_returns_to_go": {"gamma": 0.9},
    "general_advantage_estimation": {"gamma": 0.9, "lambda_": 0.9},
    "gymnasium_wrapper": {"wrapper": "FlattenObservation"},
    "n_step_returns": {"gamma": 0.9, "n_step": 2},
    "normalize_and_clip_actions": {"normalize_actions": True, "clip_actions": False},
}


class Costs(ConnectorV2):
    """As one's own pieces are written, for RLlib, too."""

    def __init__(self, cost: float = 0.0, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.cost = cost

    def __call__(self, *, batch: Any, **_: Any) -> Any:
        return batch


class CostsMore(Costs):
    def __init__(self, *args: Any, factor: float = 2.0, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.factor = factor


def test_a_misspelt_option_is_an_error_that_names_the_nearest() -> None:
    with pytest.raises(
        BadPiece, match=r"MeanStdFilter: unknown option 'clip_by_vlaue', did you mean 'clip_by_value'\?"
    ) as caught:
        MeanStdFilter(clip_by_vlaue=1.0)
    assert isinstance(caught.value, TypeError)
    assert isinstance(caught.value, OfflineCliError)
    assert (caught.value.exit_code, caught.value.where) == (4, "piece MeanStdFilter")


@pytest.mark.parametrize("name", own_pieces())
def test_no_piece_of_ours_swallows_an_unknown_option(name: str) -> None:
    with pytest.raises(TypeError, match="nonsense"):
        own_pieces()[name](**NEEDED.get(name, {}), nonsense=1)


@pytest.mark.parametrize("name", own_pieces())
def test_every_piece_of_ours_takes_what_rllibs_builders_give_to_any(name: str) -> None:
    piece = own_pieces()[name](**NEEDED.get(name, {}), input_observation_space=None, as_learner_connector=True)
    assert piece.input_observation_space is None


@pytest.mark.parametrize(("kind", "near"), [(Costs, "cost"), (CostsMore, "cost")])
def test_an_option_that_a_piece_of_ones_own_passes_on_is_one_of_its_own_misspelt(kind: type[ConnectorV2], near: str) -> None:
    with pytest.raises(BadPiece, match=f"{kind.__name__}: unknown option 'cosst', did you mean '{near}'"):
        kind(cosst=1.0)


def test_a_piece_of_ones_own_keeps_its_options_and_the_spaces() -> None:
    piece = CostsMore(cost=3.0, factor=4.0, input_observation_space=OBSERVATIONS, multi_agent=False)
    assert (piece.cost, piece.factor, piece.observation_space) == (3.0, 4.0, OBSERVATIONS)


def test_a_pipeline_takes_no_unknown_option_either() -> None:
    with pytest.raises(BadPiece, match="unknown option 'conectors', did you mean 'connectors'"):
        ConnectorPipelineV2(conectors=[NumpyToTensor()])


def test_several_unknown_options_are_named_at_once() -> None:
    with pytest.raises(BadPiece, match=r"unknown option 'pin_memry', did you mean 'pin_memory'\?; unknown option 'xyz'"):
        NumpyToTensor(pin_memry=True, xyz=1)

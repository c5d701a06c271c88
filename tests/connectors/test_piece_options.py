"""Options of pieces given in Python: known ones arrive, misspelt ones are an error that names the nearest."""

from __future__ import annotations

from typing import Any

import pytest

from offline_cli import OfflineCliError
from offline_cli.connectors import MeanStdFilter
from offline_cli.connectors.piece_makers import own_pieces
from offline_cli.errors import BadPiece

NEEDED: dict[str, dict[str, Any]] = {
    "agent_to_module_mapping": {"rl_module_specs": ["m"], "agent_to_module_mapping_fn": lambda *_: "m"},
    "compute_returns_to_go": {"gamma": 0.9},
    "general_advantage_estimation": {"gamma": 0.9, "lambda_": 0.9},
    "n_step_returns": {"gamma": 0.9, "n_step": 2},
    "normalize_and_clip_actions": {"normalize_actions": True, "clip_actions": False},
}


def test_a_misspelt_option_is_an_error_that_names_the_nearest() -> None:
    with pytest.raises(BadPiece, match="'clip_by_value'") as caught:
        MeanStdFilter(clip_by_vlaue=1.0)
    assert isinstance(caught.value, TypeError)
    assert isinstance(caught.value, OfflineCliError)
    assert (caught.value.exit_code, caught.value.where) == (4, "piece MeanStdFilter")


def test_no_piece_of_ours_swallows_an_unknown_option() -> None:
    for name, kind in own_pieces().items():
        with pytest.raises(TypeError, match="nonsense"):
            kind(**NEEDED.get(name, {}), nonsense=1)

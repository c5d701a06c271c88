"""What users give for a pipeline: builders of every signature, pieces, lists."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from offline_cli.connectors import ConnectorPipelineV2, ConnectorV2, NumpyToTensor
from offline_cli.connectors.piece_makers import Kind, custom_pieces
from offline_cli.errors import BadConfig, BadPiece

OBS, ACT = spaces.Box(-1, 1, (3,), np.float32), spaces.Discrete(2)


def pieces(custom: Any, kind: Kind = "env_to_module", **options: Any) -> list[ConnectorV2]:
    return custom_pieces(custom, kind, OBS, ACT, **options)


def received(kind: Kind, make: Any, **options: Any) -> Any:
    """What a builder is called with."""
    calls: list[Any] = []
    pieces(make(calls), kind, **options)
    return calls[0]


def remembering(calls: list[Any], *arguments: Any) -> ConnectorV2:
    calls.append(arguments)
    return NumpyToTensor()


def test_a_builder_of_three_arguments_gets_spaces_and_device_too() -> None:
    env, given, device = received(
        "env_to_module",
        lambda calls: lambda env, spaces, device: remembering(calls, env, spaces, device),
        device="cpu",
        num_envs=5,
    )
    assert (env, device) == (None, "cpu")
    assert given["__env_single__"] == (OBS, ACT)
    assert given["__env__"] == (spaces.Box(-1, 1, (5, 3), np.float32), spaces.MultiDiscrete([2] * 5))


def test_a_builder_that_takes_anything_gets_everything() -> None:
    assert len(received("env_to_module", lambda calls: lambda *arguments: remembering(calls, *arguments))) == 3
    assert received("learner", lambda calls: lambda *arguments: remembering(calls, *arguments)) == (OBS, ACT)


def test_one_piece_several_and_pipelines_need_no_builder() -> None:
    one, two = NumpyToTensor(), ConnectorPipelineV2()
    assert pieces(one) == pieces([one]) == pieces((one,)) == pieces(lambda env: one) == [one]
    assert pieces(two) == [two]
    assert pieces(lambda env: (one, two)) == [one, two]
    assert pieces(None) == []


@pytest.mark.parametrize(
    ("custom", "named"),
    [
        (NumpyToTensor, "NumpyToTensor"),
        (lambda env: NumpyToTensor, "NumpyToTensor"),
        (lambda env: None, "NoneType"),
        (lambda env: "FrameStacking", "str"),
        ("FrameStacking", "str"),
        (lambda a, b, c, d: NumpyToTensor(), "4"),
    ],
)
def test_what_is_no_piece_and_builds_none_is_refused_as_a_mistake_in_the_config(custom: Any, named: str) -> None:
    with pytest.raises(BadPiece, match=named) as caught:
        pieces(custom)
    assert isinstance(caught.value, BadConfig)
    assert caught.value.where == "env-to-module pipeline"

"""ONNX files from anywhere: what is cut, mutated, or more than a graph of standard operators is refused, and never a crash."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from offline_cli.errors import BadData, SpaceMismatch
from offline_cli.policies.onnx_policy import OnnxPolicy, model_of
from offline_cli.policies.policy import stand_in

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

SEEN, CHOICES = spaces.Box(-np.inf, np.inf, (3,), np.float32), spaces.Discrete(2)


def small(edit: Callable[[Any], object] = lambda model: None) -> bytes:
    """A policy as somebody else may write it: one matrix, the larger of two sums, and what `edit` does to it."""
    helper, of = onnx.helper, onnx.TensorProto
    weight = onnx.numpy_helper.from_array(np.ones((3, 2), np.float32), "weight")
    nodes = [
        helper.make_node("MatMul", ["obs", "weight"], ["action_dist_inputs"]),
        helper.make_node("ArgMax", ["action_dist_inputs"], ["actions"], axis=1, keepdims=0),
    ]
    inputs = [helper.make_tensor_value_info("obs", of.FLOAT, ["B", 3])]
    outputs = [helper.make_tensor_value_info("actions", of.INT64, ["B"])]
    outputs += [helper.make_tensor_value_info("action_dist_inputs", of.FLOAT, ["B", 2])]
    graph = helper.make_graph(nodes, "policy", inputs, outputs, [weight])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    edit(model)
    return bytes(model.SerializeToString())


def fixed_rows(model: Any) -> None:
    for port in (*model.graph.input, *model.graph.output):
        port.type.tensor_type.shape.dim[0].dim_value = 4


def renamed(model: Any) -> None:
    model.graph.input[0].name = model.graph.node[0].input[0] = "pixels"


def no_space(model: Any) -> None:
    model.metadata_props.add(key="observation_space", value='{"type": "Box", "shape": [-1]}')


@pytest.mark.parametrize(
    "content",
    [b"", b"PK\3\4 not a model", small()[:-20], small(lambda model: model.graph.ClearField("initializer")), small(fixed_rows)],
    ids=["empty", "zip", "cut", "without weight", "fixed rows"],
)
def test_what_is_no_whole_model_of_rows_is_bad_data(content: bytes) -> None:
    with pytest.raises(BadData):
        model_of(content, where="their.onnx")


def test_a_file_of_somebody_else_plays_by_its_names_and_shapes() -> None:
    model = model_of(small(), where="their.onnx")
    OnnxPolicy(model, stand_in("theirs", (SEEN, CHOICES)))
    assert model.space("observation_space") is None
    assert model.run({"obs": np.zeros((5, 3), np.float32)})["actions"].shape == (5,)


def test_another_name_or_shape_and_metadata_that_describe_no_space_are_told() -> None:
    for content, seen in [(small(renamed), SEEN), (small(), spaces.Box(-1, 1, (4,), np.float32))]:
        with pytest.raises(SpaceMismatch):
            OnnxPolicy(model_of(content, where="their.onnx"), stand_in("theirs", (seen, CHOICES)))
    with pytest.raises(BadData, match="observation_space"):
        model_of(small(no_space), where="their.onnx").space("observation_space")

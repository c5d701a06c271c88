"""ONNX files from anywhere: what is cut, mutated, or more than a graph of standard operators is refused, and never a crash."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from offline_cli.errors import BadData, SpaceMismatch, StorageNotFound, UnsafeData
from offline_cli.policies.onnx_model import MAX_NUMBERS, model_of, read_model
from offline_cli.policies.onnx_policy import check_ports

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

SEEN, CHOICES = spaces.Box(-np.inf, np.inf, (3,), np.float32), spaces.Discrete(2)
Edit = Callable[[Any], None]


def small(edit: Edit = lambda model: None) -> bytes:
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


def elsewhere(model: Any) -> None:
    weight = model.graph.initializer[0]
    weight.ClearField("raw_data")
    weight.data_location = onnx.TensorProto.EXTERNAL
    weight.external_data.add(key="location", value="/etc/passwd")


def hidden_elsewhere(model: Any) -> None:
    tensor = onnx.TensorProto(data_type=1, dims=[1], data_location=onnx.TensorProto.EXTERNAL, name="hidden")
    tensor.external_data.add(key="location", value="../weights")
    model.graph.node.append(onnx.helper.make_node("Constant", [], ["hidden"], value=tensor))


def own_operator(model: Any) -> None:
    model.graph.node[1].domain = "their.lab"
    model.opset_import.append(onnx.helper.make_opsetid("their.lab", 1))


def own_function(model: Any) -> None:
    model.functions.append(onnx.FunctionProto(name="Mine", domain="their.lab"))


def loop(model: Any) -> None:
    body = onnx.helper.make_graph([], "body", [], [])
    model.graph.node.append(onnx.helper.make_node("Loop", ["", ""], ["forever"], body=body))


def huge(model: Any) -> None:
    shape = onnx.numpy_helper.from_array(np.array([MAX_NUMBERS, 4]), "shape")
    model.graph.initializer.append(shape)
    model.graph.node.append(onnx.helper.make_node("ConstantOfShape", ["shape"], ["huge"]))


@pytest.mark.parametrize(
    ("edit", "said"),
    [
        (elsewhere, "data in another file ('weight')"),
        (hidden_elsewhere, "data in another file ('hidden')"),
        (own_operator, "operators of its own (domain 'their.lab')"),
        (own_function, "functions of its own"),
        (loop, "control flow ('Loop')"),
        (huge, f"a value of {4 * MAX_NUMBERS:,} numbers ('huge')"),
    ],
)
def test_what_is_no_graph_of_standard_operators_is_refused_by_name(edit: Edit, said: str) -> None:
    with pytest.raises(UnsafeData) as caught:
        model_of(small(edit), where="their.onnx")
    assert said in caught.value.what


def without_weight(model: Any) -> None:
    del model.graph.initializer[:]


def unknown_operator(model: Any) -> None:
    model.graph.node[1].op_type = "Imagine"


def fixed_rows(model: Any) -> None:
    for port in (*model.graph.input, *model.graph.output):
        port.type.tensor_type.shape.dim[0].dim_value = 4


@pytest.mark.parametrize(
    "content",
    [b"", b"\0" * 100, b"PK\3\4 not a model", small()[:-20], small(without_weight), small(unknown_operator), small(fixed_rows)],
    ids=["empty", "zeros", "zip", "cut", "without weight", "unknown operator", "fixed rows"],
)
def test_what_is_no_whole_model_of_rows_is_bad_data(content: bytes) -> None:
    with pytest.raises(BadData):
        model_of(content, where="their.onnx")


def test_a_file_of_somebody_else_plays_by_its_names_and_shapes() -> None:
    model = model_of(small(), where="their.onnx")
    check_ports(model, SEEN, CHOICES)
    assert model.space("observation_space") is None
    assert model.run({"obs": np.zeros((5, 3), np.float32)})["actions"].shape == (5,)


def renamed(model: Any) -> None:
    model.graph.input[0].name = model.graph.node[0].input[0] = "pixels"


def test_another_name_or_shape_is_told_with_what_was_wanted() -> None:
    wide = spaces.Box(-1, 1, (4,), np.float32)
    for content, seen, said in [
        (small(renamed), SEEN, "no input 'obs', but ['pixels']"),
        (small(), wide, "input 'obs' is float32"),
    ]:
        with pytest.raises(SpaceMismatch) as caught:
            check_ports(model_of(content, where="their.onnx"), seen, CHOICES)
        assert said in caught.value.what


def broken_metadata(model: Any) -> None:
    model.metadata_props.add(key="observation_space", value='{"type": "Box", "shape": [-1]}')
    model.metadata_props.add(key="version", value="not JSON")


def test_metadata_that_describe_no_space_are_bad_data() -> None:
    model = model_of(small(broken_metadata), where="their.onnx")
    with pytest.raises(BadData, match="observation_space"):
        model.space("observation_space")


def test_a_thousand_mutations_end_in_an_error_of_ours_or_run() -> None:
    content, rng, outcomes = small(), random.Random(5), set()
    for _ in range(1000):
        mutated = bytearray(content)
        for _ in range(rng.randrange(1, 6)):
            mutated[rng.randrange(len(mutated))] = rng.randrange(256)
        try:
            model = model_of(bytes(mutated[: rng.randrange(len(mutated))] if rng.random() < 0.2 else mutated), where="mutated")
            given = {name: np.zeros((2, *port.shape), port.dtype) for name, port in model.inputs.items()}
            if sum(array.size for array in given.values()) < MAX_NUMBERS:
                model.run(given)
            outcomes.add("ran")
        except Exception as err:  # noqa: BLE001  of a call onnxruntime's own, which the play engine reports with its place
            outcomes.add(type(err).__name__ if isinstance(err, BadData) else type(err).__module__.partition(".")[0])
    assert {"ran", "BadData"} <= outcomes <= {"ran", "BadData", "UnsafeData", "onnxruntime"}


def test_a_missing_file_is_told_as_such(tmp_path: Path) -> None:
    with pytest.raises(StorageNotFound):
        read_model(tmp_path / "none.onnx")

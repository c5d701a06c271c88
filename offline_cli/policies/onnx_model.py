"""OnnxModel: an ONNX file of a policy, read as data and run by onnxruntime on the CPU.

A file comes from anywhere. It is one graph of standard operators with its weights inside: data in other files, operators and
functions of its own, control flow and parts larger than `MAX_NUMBERS` raise UnsafeData before onnxruntime sees the file. What
is cut or mutated raises BadData. Nothing in a file names code that is run here.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from offline_cli.errors import BadData, MissingPackage, UnsafeData, UnsupportedSpace
from offline_cli.json_documents import from_json
from offline_cli.spaces import Space, space_from_json
from offline_cli.storage.locations import Location, open_location

__all__ = ["INSTALL", "MAX_BYTES", "OnnxModel", "Port", "facts_as_metadata", "model_of", "read_model"]

INSTALL: Final = "pip install 'offline-cli[onnx]'"
FIX: Final = "export it again: offline-cli export RUN --to onnx --out FILE"
MAX_BYTES: Final = (1 << 31) - 1  # protobuf's own limit
MAX_NODES: Final = 100_000
MAX_NUMBERS: Final = 1 << 28  # of a value in the graph, for a batch of one row
STANDARD: Final = ("", "ai.onnx")
TYPES: Final = {
    "tensor(float)": "float32",
    "tensor(double)": "float64",
    "tensor(float16)": "float16",
    "tensor(bool)": "bool",
    **{f"tensor({name})": name for name in ("int8", "int16", "int32", "int64", "uint8")},
}


@dataclass(frozen=True, slots=True)
class Port:
    """An input or an output, (B, *shape)."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True, eq=False)
class OnnxModel:
    """A graph that is ready to run; its arrays have an axis of B rows first, for any B from 1 on."""

    inputs: Mapping[str, Port]
    outputs: Mapping[str, Port]
    facts: Mapping[str, Any]  # of the file's metadata, as far as they are JSON
    fingerprint: str
    where: str
    session: Any = field(repr=False)  # of onnxruntime

    def run(self, given: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        """Outputs by name. Raises what onnxruntime raises."""
        return dict(zip(self.outputs, self.session.run(list(self.outputs), dict(given)), strict=True))

    def space(self, name: str) -> Space | None:
        """The space that the metadata give under that name; None: they give none. Raises BadData for a broken one."""
        told = self.facts.get(name)
        if told is None:
            return None
        try:
            return space_from_json(told, where=self.where)
        except (ValueError, TypeError, KeyError, AttributeError, OverflowError, UnsupportedSpace) as err:
            raise BadData(f"its metadata {name!r} cannot be read: {err}", where=self.where, fix=FIX) from err


def read_model(file: str | os.PathLike[str] | Location, storage_options: Mapping[str, Any] | None = None) -> OnnxModel:
    """The model in `file`, a path or URL.

    Raises StorageNotFound, MissingPackage; UnsafeData and BadData as the module says.
    """
    place = open_location(file, storage_options)
    _, size = place.start(1)
    if size > MAX_BYTES:
        raise UnsafeData(f"a file of {size:,} bytes; an ONNX file has at most {MAX_BYTES:,}", where=place.url, fix=FIX)
    return model_of(place.read_bytes(), where=place.url)


def model_of(content: bytes, *, where: str) -> OnnxModel:
    """The model that these bytes are. Raises as `read_model`."""
    try:
        import onnx
        import onnxruntime
    except ImportError as err:
        raise MissingPackage(f"the package {err.name} is missing", where=where, fix=INSTALL) from err
    proto = onnx.ModelProto()
    try:
        proto.ParseFromString(content)
        _refuse_unsafe(proto, where)
        onnx.checker.check_model(proto)
        inferred = onnx.shape_inference.infer_shapes(proto, check_type=True, strict_mode=True, data_prop=True)
        _refuse_large(inferred.graph, where)
        session = onnxruntime.InferenceSession(
            content, _options(onnxruntime), providers=["CPUExecutionProvider"], disabled_optimizers=[]
        )
        inputs, outputs = (
            {port.name: _port(port, where) for port in ports} for ports in (session.get_inputs(), session.get_outputs())
        )
    except BadData:
        raise
    except Exception as err:  # protobuf, onnx and onnxruntime have many of their own
        reason = str(err).strip().partition("\n")[0][:300] or type(err).__name__
        raise BadData(f"not an ONNX model that can be run: {reason}", where=where, fix=FIX) from err
    return OnnxModel(inputs, outputs, _facts(proto), hashlib.sha256(content).hexdigest(), where, session)


def _facts(proto: Any) -> dict[str, Any]:
    """Metadata that are JSON; other programs have them in forms of their own. Text that is not UTF-8 comes as bytes."""
    found = {}
    for one in proto.metadata_props:
        if isinstance(one.key, str) and isinstance(one.value, str):
            with suppress(ValueError):
                found[one.key] = from_json(one.value.encode())
    return found


def _options(onnxruntime: Any) -> Any:
    """One thread, as all policies have, and silence on stderr: errors are raised."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 4
    return options


def _port(port: Any, where: str) -> Port:
    """Raises BadData for what is no tensor of numbers with rows first."""
    first, *rest = port.shape or [None]
    if port.type not in TYPES or isinstance(first, int) or not all(isinstance(size, int) and size >= 0 for size in rest):
        what = f"{port.name!r} is {port.type} of shape {port.shape}; its first axis must be of any length, and no other"
        raise BadData(what, where=where, fix=FIX)
    return Port(np.dtype(TYPES[port.type]), tuple(rest))


# ---- what a file may hold ----


def _refuse_unsafe(proto: Any, where: str) -> None:
    """Raise UnsafeData for anything but one graph of standard operators with its weights inside."""
    for what in _unsafe(proto):
        raise UnsafeData(f"an ONNX file with {what}", where=where, fix=FIX)


def _unsafe(proto: Any) -> Iterator[str]:
    graph = proto.graph
    domains = [one.domain for one in proto.opset_import] + [node.domain for node in graph.node]
    yield from (f"operators of its own (domain {domain!r:.100})" for domain in domains if domain not in STANDARD)
    if len(proto.functions) or len(proto.training_info):
        yield "functions of its own"
    if len(graph.node) > MAX_NODES:
        yield f"{len(graph.node):,} operations; at most {MAX_NODES:,} are run"
    weights = [*graph.initializer, *(part for one in graph.sparse_initializer for part in (one.values, one.indices))]
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("g") or len(attribute.graphs):
                yield f"control flow ({node.op_type!r:.100})"
            weights += [attribute.t, *attribute.tensors]
            weights += [attribute.sparse_tensor.values, attribute.sparse_tensor.indices]
            weights += [part for one in attribute.sparse_tensors for part in (one.values, one.indices)]
    for weight in weights:
        if weight.data_location != 0 or len(weight.external_data):
            yield f"data in another file ({weight.name!r:.100})"


def _refuse_large(graph: Any, where: str) -> None:
    """Raise UnsafeData where a value of the graph has too many numbers, each axis of unknown length taken for one row."""
    for value in (*graph.input, *graph.output, *graph.value_info):
        count = 1
        for axis in value.type.tensor_type.shape.dim:
            count *= max(axis.dim_value, 1) if axis.HasField("dim_value") else 1
        if count > MAX_NUMBERS:
            what = f"an ONNX file with a value of {count:,} numbers ({value.name!r:.100}); at most {MAX_NUMBERS:,} are computed"
            raise UnsafeData(what, where=where, fix=FIX)


def facts_as_metadata(facts: Mapping[str, Any]) -> dict[str, str]:
    """Facts as a file's metadata have them, text by name."""
    return {name: json.dumps(value, sort_keys=True) for name, value in sorted(facts.items())}

"""OnnxModel: an ONNX file of a policy, checked by `onnx.checker` and run by onnxruntime on the CPU.

Weights are inside the file: data in other files raises UnsafeData. What is cut or mutated raises BadData. Nothing in a file
names code of ours; whether its graph may take time or memory is for who names the file to know.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from offline_cli.errors import BadData, MissingPackage, UnsafeData, UnsupportedSpace
from offline_cli.safe_json import from_json
from offline_cli.spaces import Space, space_from_json
from offline_cli.storage.locations import Location, open_location

__all__ = ["INSTALL", "MAX_BYTES", "OnnxModel", "Port", "facts_as_metadata", "model_of", "read_model"]

INSTALL: Final = "pip install 'offline-cli[onnx]'"
FIX: Final = "export it again: offline-cli export RUN --to onnx --out FILE"
MAX_BYTES: Final = (1 << 31) - 1  # protobuf's own limit
TYPES: Final = {"float": "float32", "double": "float64", "float16": "float16", "bool": "bool"}
TYPES.update({name: name for name in ("int8", "int16", "int32", "int64", "uint8")})


@dataclass(frozen=True, slots=True)
class Port:
    """An input or an output, (B, *shape)."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]

    def __str__(self) -> str:
        return f"{self.dtype} {self.shape}"


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
        """Outputs by name; inputs are given their dtypes. Raises what onnxruntime raises."""
        typed = {name: np.ascontiguousarray(array, self.inputs[name].dtype) for name, array in given.items()}
        return dict(zip(self.outputs, self.session.run(list(self.outputs), typed), strict=True))

    def space(self, name: str) -> Space | None:
        """The space that the metadata give under that name; None: they give none. Raises BadData for a broken one."""
        told = self.facts.get(name)
        try:
            return None if told is None else space_from_json(told, where=self.where)
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
    proto, options = onnx.ModelProto(), onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1  # as all policies have
    options.log_severity_level = 4  # errors are raised, and not written to stderr
    try:
        proto.ParseFromString(content)
        if any(len(weight.external_data) for weight in proto.graph.initializer):
            raise UnsafeData("an ONNX file with weights in another file", where=where, fix=FIX)
        onnx.checker.check_model(proto, full_check=True)
        session = onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"], disabled_optimizers=[])
        ports = [{port.name: _port(port, where) for port in side} for side in (session.get_inputs(), session.get_outputs())]
    except BadData:
        raise
    except Exception as err:  # protobuf, onnx and onnxruntime have many of their own
        reason = str(err).strip().partition("\n")[0][:300] or type(err).__name__
        raise BadData(f"not an ONNX model that can be run: {reason}", where=where, fix=FIX) from err
    facts = {}
    for one in proto.metadata_props:
        if isinstance(one.key, str) and isinstance(one.value, str):  # text that is not UTF-8 comes as bytes
            with suppress(ValueError):  # other programs have theirs in forms of their own
                facts[one.key] = from_json(one.value.encode())
    return OnnxModel(ports[0], ports[1], facts, hashlib.sha256(content).hexdigest(), where, session)


def _port(port: Any, where: str) -> Port:
    """Raises BadData for what is no tensor of numbers with rows first."""
    first, *rest = port.shape or [None]
    dtype = TYPES.get(port.type.removeprefix("tensor(").removesuffix(")"))
    if dtype is None or isinstance(first, int) or not all(isinstance(size, int) and size >= 0 for size in rest):
        what = f"{port.name!r} is {port.type} of shape {port.shape}; its first axis must be of any length, and no other"
        raise BadData(what, where=where, fix=FIX)
    return Port(np.dtype(dtype), tuple(rest))


def facts_as_metadata(facts: Mapping[str, Any]) -> dict[str, str]:
    """Facts as a file's metadata have them, text by name."""
    return {name: json.dumps(value, sort_keys=True) for name, value in sorted(facts.items())}

"""The policy `onnx:FILE`: raw observations in, environment actions out; the file includes pieces and action scaling.

Inputs are `obs`, or one per leaf (`obs.camera`); outputs are `actions`, or one per leaf, and optionally `action_dist_inputs`.
Recurrent state is `state_in/NAME` and `state_out/NAME`, zeros at the start of an episode; `rewards` are those of the last
action, 0 at the start. Actions are always greedy, and recorded with the scale `env`.

`onnx.checker` checks files, and onnxruntime runs them on the CPU. A file cannot run our code or other Python code; the user who
names it answers for its time and memory.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from offline_cli.columns import Columns
from offline_cli.environments import Environment
from offline_cli.episodes.episode_spaces import space_tree
from offline_cli.errors import BadConfig, BadData, MissingPackage, SpaceMismatch, UnsafeData, UnsupportedSpace
from offline_cli.policies.policy import Acted, Policy, PolicyOptions, State, fitting
from offline_cli.schema_files import from_json
from offline_cli.spaces import Space, leaf_spaces, space_from_json
from offline_cli.storage.locations import open_location
from offline_cli.trees import Tree, leaves, map_leaves, unflatten_like

__all__ = ["INSTALL", "MAX_BYTES", "ONNX", "OnnxModel", "OnnxPolicy", "model_of", "open_onnx"]

ONNX: Final = "onnx:"
INPUTS = Columns.ACTION_DIST_INPUTS
STATE_IN, STATE_OUT = f"{Columns.STATE_IN}/", f"{Columns.STATE_OUT}/"
INSTALL: Final = "pip install 'offline-cli[onnx]'"
FIX: Final = "export it again: offline-cli export RUN --to onnx --out FILE"
MAX_BYTES: Final = (1 << 31) - 1  # protobuf's own limit


class Port(NamedTuple):
    """An input or an output (B, *shape)."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True, eq=False)
class OnnxModel:
    """A loaded graph; all arrays have a batch axis first, of any size B >= 1."""

    inputs: Mapping[str, Port]
    outputs: Mapping[str, Port]
    facts: Mapping[str, Any]  # the file's JSON metadata
    fingerprint: str
    where: str
    session: Any  # of onnxruntime

    def run(self, given: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        """Outputs by name; inputs are cast to their dtypes. Raises like onnxruntime."""
        typed = {name: np.ascontiguousarray(array, self.inputs[name].dtype) for name, array in given.items()}
        return dict(zip(self.outputs, self.session.run(list(self.outputs), typed), strict=True))

    def space(self, name: str) -> Space | None:
        """The space in the metadata called `name`, or None. Raises BadData for an invalid one."""
        described = self.facts.get(name)
        try:
            return None if described is None else space_from_json(described, where=self.where)
        except (ValueError, TypeError, KeyError, AttributeError, OverflowError, UnsupportedSpace) as err:
            raise BadData(f"the metadata {name!r} cannot be read: {err}", where=self.where, fix=FIX) from err


def model_of(content: bytes, *, where: str) -> OnnxModel:
    """Load a model. Raises MissingPackage, UnsafeData for weights in another file, BadData for an invalid model."""
    try:
        import onnx
        import onnxruntime
    except ImportError as err:
        raise MissingPackage(f"the package {err.name} is missing", where=where, fix=INSTALL) from err
    proto, options = onnx.ModelProto(), onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1  # like all policies
    options.log_severity_level = 4  # errors are raised, not logged
    try:
        proto.ParseFromString(content)
        if any(len(weight.external_data) for weight in proto.graph.initializer):
            raise UnsafeData("the ONNX file has weights in another file", where=where, fix=FIX)
        onnx.checker.check_model(proto, full_check=True)
        session = onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
        inputs, outputs = ({one.name: _port(one) for one in side} for side in (session.get_inputs(), session.get_outputs()))
    except UnsafeData:
        raise
    except Exception as err:  # protobuf, onnx and onnxruntime raise many types
        reason = str(err).strip().partition("\n")[0][:300] or type(err).__name__
        raise BadData(f"not an ONNX model that can be run: {reason}", where=where, fix=FIX) from err
    facts = {}
    for one in proto.metadata_props:
        with suppress(ValueError, AttributeError):  # other programs write other metadata; bytes: not UTF-8
            facts[one.key] = from_json(one.value.encode())
    return OnnxModel(inputs, outputs, facts, hashlib.sha256(content).hexdigest(), where, session)


def _port(port: Any) -> Port:
    """A port of onnxruntime. Raises ValueError unless it is a numeric tensor with a free first axis and fixed others."""
    first, *rest = port.shape or [None]
    if isinstance(first, int) or not all(isinstance(size, int) and size >= 0 for size in rest):
        raise ValueError(f"{port.name!r} has the shape {port.shape}; only the first axis may, and must, be dynamic")
    name = port.type.removeprefix("tensor(").removesuffix(")")
    return Port(np.dtype({"float": "float32", "double": "float64"}.get(name, name)), tuple(rest))


# ---- the policy ----


def open_onnx(name: str, environment: Environment | None, options: PolicyOptions) -> OnnxPolicy:
    """Open the policy `onnx:FILE`, a path or URL. Raises StorageNotFound, like `model_of`, SpaceMismatch, and BadConfig with
    `explore`."""
    options.refuse_pieces(name)
    place = open_location(name.removeprefix(ONNX), options.storage_options)
    if place.start(1)[1] > MAX_BYTES:
        raise UnsafeData(f"the ONNX file is larger than {MAX_BYTES:,} bytes", where=place.url, fix=FIX)
    model = model_of(place.read_bytes(), where=place.url)
    if options.explore:
        fix = "use --no-explore, or the run folder that was exported"
        raise BadConfig("an ONNX model cannot explore: its actions are greedy", where=model.where, fix=fix)
    return OnnxPolicy(model, fitting((model.space("observation_space"), model.space("action_space")), name, environment))


class OnnxPolicy(Policy):
    """See Policy. The memory holds the model's last state outputs."""

    def __init__(self, model: OnnxModel, environment: Environment) -> None:
        """Raises SpaceMismatch, naming both sides, if the model's inputs or outputs do not fit the environment's spaces."""
        super().__init__(environment, model.fingerprint)
        self._model = model
        self._states = {name.removeprefix(STATE_IN): port for name, port in model.inputs.items() if name.startswith(STATE_IN)}
        self.reads_rewards = Columns.REWARDS in model.inputs
        self.looks_back = bool(self._states) or self.reads_rewards
        self._like = [*map(space_tree, self.spaces)]
        seen, acts = (leaf_spaces(space, name) for space, name in zip(self.spaces, (Columns.OBS, Columns.ACTIONS), strict=True))
        self._seen, self._acts = (
            {path: Port(np.dtype(leaf.dtype), tuple(leaf.shape or ())) for path, leaf in parts.items()}
            for parts in (seen, acts)
        )
        takes = {name: port for name, port in model.inputs.items() if name != Columns.REWARDS and not name.startswith(STATE_IN)}
        gives = self._acts | {STATE_OUT + name: port for name, port in self._states.items()}
        if takes != self._seen or not gives.items() <= model.outputs.items():
            what = f"the model takes {takes} and returns {model.outputs}; this environment needs {self._seen} and {gives}"
            raise SpaceMismatch(what, where=model.where, fix="use the environment of the export, with the same wrappers")

    def act(self, observations: Tree, state: State, explore: bool) -> Acted:
        """See Policy."""
        rows = len(state.t)
        ordered = map_leaves(lambda _, leaf: leaf, self._like[0], observations)
        inputs: dict[str, Any] = dict(zip(self._seen, leaves(ordered), strict=True))
        if self.reads_rewards:
            inputs[Columns.REWARDS] = state.rewards
        for name, port in self._states.items():
            held = inputs[STATE_IN + name] = np.zeros((rows, *port.shape), port.dtype)
            if (going := state.t > 0).any():
                held[going] = state.memory[name][going]
        outputs = self._model.run(inputs)
        extras = {INPUTS: outputs[INPUTS], Columns.ACTION_LOGP: np.zeros(rows, np.float32)} if INPUTS in outputs else {}
        actions = unflatten_like(self._like[1], [outputs[name] for name in self._acts])
        return Acted(actions, actions, extras, {name: outputs[STATE_OUT + name] for name in self._states})

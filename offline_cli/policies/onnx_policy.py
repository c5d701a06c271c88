"""Plays `onnx:FILE`: raw observations in, actions of the environment out; pieces and action scale are inside the file.

Inputs are `obs`, or a leaf each (`obs.camera`), outputs `actions`, or a leaf each, and `action_dist_inputs` where the file has
them. What a file remembers is `state_in/NAME` and `state_out/NAME`, zeros where an episode begins, and `rewards`, the answer to
the last action, 0 there. Actions are the likeliest ones: a file draws none. They are recorded with the scale `env`.

Files are checked by `onnx.checker` and run by onnxruntime on the CPU. Nothing in a file names code of ours; whether its graph
may take time or memory is for who names the file to know.
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
    session: Any  # of onnxruntime

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


def model_of(content: bytes, *, where: str) -> OnnxModel:
    """The model that these bytes are. Raises MissingPackage, UnsafeData for weights in another file, BadData for no model."""
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
        session = onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
        inputs, outputs = ({one.name: _port(one) for one in side} for side in (session.get_inputs(), session.get_outputs()))
    except UnsafeData:
        raise
    except Exception as err:  # protobuf, onnx and onnxruntime have many of their own
        reason = str(err).strip().partition("\n")[0][:300] or type(err).__name__
        raise BadData(f"not an ONNX model that can be run: {reason}", where=where, fix=FIX) from err
    facts = {}
    for one in proto.metadata_props:
        with suppress(ValueError, AttributeError):  # other programs have forms of their own; bytes: text that is not UTF-8
            facts[one.key] = from_json(one.value.encode())
    return OnnxModel(inputs, outputs, facts, hashlib.sha256(content).hexdigest(), where, session)


def _port(port: Any) -> Port:
    """Raises ValueError for what is no tensor of numbers with rows first."""
    first, *rest = port.shape or [None]
    if isinstance(first, int) or not all(isinstance(size, int) and size >= 0 for size in rest):
        raise ValueError(f"{port.name!r} has the shape {port.shape}, and its first axis alone may be of any length")
    name = port.type.removeprefix("tensor(").removesuffix(")")
    return Port(np.dtype({"float": "float32", "double": "float64"}.get(name, name)), tuple(rest))


# ---- played ----


def open_onnx(name: str, environment: Environment | None, options: PolicyOptions) -> OnnxPolicy:
    """The policy of the model in `onnx:FILE`, a path or URL. Raises StorageNotFound, what `model_of` raises, SpaceMismatch, and
    BadConfig where it explores."""
    options.refuse_pieces(name)
    place = open_location(name.removeprefix(ONNX), options.storage_options)
    if place.start(1)[1] > MAX_BYTES:
        raise UnsafeData(f"an ONNX file of more than {MAX_BYTES:,} bytes", where=place.url, fix=FIX)
    model = model_of(place.read_bytes(), where=place.url)
    if options.explore:
        fix = "--no-explore, or the run folder it was exported from"
        raise BadConfig("an ONNX model gives its likeliest actions", where=model.where, fix=fix)
    return OnnxPolicy(model, fitting((model.space("observation_space"), model.space("action_space")), name, environment))


class OnnxPolicy(Policy):
    """See Policy. It remembers what the file put out last."""

    def __init__(self, model: OnnxModel, environment: Environment) -> None:
        """Raises SpaceMismatch, with both sides, for a file of other inputs or outputs than a policy over these spaces has."""
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
            what = f"it takes {takes} and gives {model.outputs}; here a policy takes {self._seen} and gives {gives}"
            raise SpaceMismatch(what, where=model.where, fix="an environment that it was exported for, wrapped as it was")

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

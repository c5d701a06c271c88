"""Plays `onnx:FILE`: raw observations in, actions of the environment out; pieces and action scale are inside the file.

Inputs are `obs`, or a leaf each (`obs.camera`), outputs `actions`, or a leaf each, and `action_dist_inputs` where the file has
them. What a file remembers is `state_in/NAME` and `state_out/NAME`, zeros where an episode begins, and `rewards`, the answer to
the last action, 0 there. Actions are the likeliest ones: a file draws none. They are recorded with the scale `env`.

* `OnnxPolicy`: a file without memory.
* `OnnxModule`: one with memory, as a module between the pieces that carry states and rewards from step to step.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np
import torch
from gymnasium import spaces
from numpy.typing import NDArray

from offline_cli.columns import Columns
from offline_cli.connectors.common.flattening import PrevActionsPrevRewards
from offline_cli.connectors.pipeline_spec import PipelineSpec
from offline_cli.environments import Environment
from offline_cli.episodes.episode_spaces import space_tree
from offline_cli.errors import BadConfig, BadData, SpaceMismatch
from offline_cli.modules.rl_module import RLModule
from offline_cli.policies.onnx_model import FIX, OnnxModel
from offline_cli.policies.piped_policy import PipedPolicy, PlaySpec
from offline_cli.policies.policy import Acted
from offline_cli.spaces import Space, leaf_spaces
from offline_cli.trees import Tree, flatten, leaves, map_leaves, unflatten_like

__all__ = ["OnnxModule", "OnnxPolicy", "check_ports", "onnx_policy"]

OBS, ACTIONS, REWARDS, INPUTS = Columns.OBS, Columns.ACTIONS, Columns.REWARDS, Columns.ACTION_DIST_INPUTS
STATE_IN, STATE_OUT = f"{Columns.STATE_IN}/", f"{Columns.STATE_OUT}/"
PIECE: Final = "prev_actions_prev_rewards"


def onnx_policy(model: OnnxModel, environment: Environment, *, explore: bool) -> OnnxPolicy | PipedPolicy:
    """The policy of a file in an environment, on the CPU. Raises SpaceMismatch, and BadConfig where it is to explore."""
    if explore:
        fix = "--no-explore, or the run folder it was exported from"
        raise BadConfig("an ONNX model gives its likeliest actions", where=model.where, fix=fix)
    spaces = environment.observation_space, environment.action_space
    check_ports(model, *spaces)
    if REWARDS not in model.inputs and not any(name.startswith(STATE_IN) for name in model.inputs):
        return OnnxPolicy(model, *spaces)
    module, cpu = OnnxModule(model, *spaces), torch.device("cpu")
    return PipedPolicy(module, _beside(model), environment, explore=False, device=cpu, fingerprint=model.fingerprint)


def check_ports(model: OnnxModel, observations: Space, actions: Space) -> None:
    """Raise SpaceMismatch, with every difference, unless inputs and outputs are those of a policy over these spaces."""
    wanted = {path: (leaf, model.inputs) for path, leaf in leaf_spaces(observations, OBS).items()}
    wanted |= {path: (leaf, model.outputs) for path, leaf in leaf_spaces(actions, ACTIONS).items()}
    problems = []
    for path, (leaf, ports) in wanted.items():
        port, shape = ports.get(path), tuple(leaf.shape or ())
        side = "input" if ports is model.inputs else "output"
        if port is None:
            problems.append(f"it has no {side} {path!r}, but {list(ports)}")
        elif (port.shape, port.dtype) != (shape, np.dtype(leaf.dtype)):
            problems.append(f"{side} {path!r} is {port.dtype} of shape (B, {port.shape}), for {leaf.dtype} of shape {shape}")
    states = {name.removeprefix(STATE_IN): port for name, port in model.inputs.items() if name.startswith(STATE_IN)}
    problems += [
        f"input {name!r} is unknown"
        for name in model.inputs
        if not (name in wanted or name.startswith(STATE_IN) or name == REWARDS)
    ]
    problems += [
        f"{STATE_OUT}{name} is not like {STATE_IN}{name}"
        for name, port in states.items()
        if model.outputs.get(f"{STATE_OUT}{name}") != port
    ]
    if REWARDS in model.inputs and model.inputs[REWARDS].shape != ():
        problems.append(f"input {REWARDS!r} is not one number a row")
    if problems:
        raise SpaceMismatch.of(
            problems, where=model.where, fix="an environment that the policy was exported for, wrapped as it was"
        )


class _Runs:
    """Calls of one model."""

    def __init__(self, model: OnnxModel, observations: Space, actions: Space) -> None:
        self.model = model
        self._observed, self._acted = space_tree(observations), space_tree(actions)
        self._names = list(leaf_spaces(observations, OBS)), list(leaf_spaces(actions, ACTIONS))

    def __call__(self, observations: Tree, others: Mapping[str, NDArray[Any]]) -> tuple[Tree, dict[str, NDArray[Any]]]:
        """Actions, leaves (B, ...), and all outputs by name. Raises BadData for other numbers of rows."""
        ordered = map_leaves(lambda _, leaf: leaf, self._observed, observations)
        given = dict(zip(self._names[0], leaves(ordered), strict=True)) | dict(others)
        typed = {name: np.ascontiguousarray(array, self.model.inputs[name].dtype) for name, array in given.items()}
        rows = len(next(iter(typed.values())))
        outputs = self.model.run(typed)
        for name, array in outputs.items():
            if array.shape != (rows, *self.model.outputs[name].shape):
                what = f"output {name!r} has shape {array.shape} for {rows} rows"
                raise BadData(what, where=self.model.where, fix=FIX)
        return unflatten_like(self._acted, [outputs[name] for name in self._names[1]]), outputs


class OnnxPolicy:
    """See Policy."""

    rows_alike = False
    action_scale = "env"
    chance_size = 0

    def __init__(self, model: OnnxModel, observations: Space, actions: Space) -> None:
        """For a model whose ports are checked."""
        self.fingerprint = model.fingerprint
        self.shows_numbers = INPUTS in model.outputs
        self._runs = _Runs(model, observations, actions)

    def act(self, observations: Tree, chance: NDArray[np.float64]) -> Acted:
        """See Policy."""
        actions, outputs = self._runs(observations, {})
        extras = {}
        if self.shows_numbers:
            extras = {INPUTS: outputs[INPUTS], Columns.ACTION_LOGP: np.zeros(len(chance), np.float32)}
        return Acted(actions, map_leaves(np.copy, actions), extras)


class OnnxModule(RLModule):
    """A model with memory as a module. Its states are the file's, with zeros at first."""

    def __init__(self, model: OnnxModel, observations: Space, actions: Space) -> None:
        """For a model whose ports are checked."""
        self._wants_rewards = REWARDS in model.inputs
        self._runs = _Runs(model, observations, actions)
        self._states = {name: port for name, port in model.inputs.items() if name.startswith(STATE_IN)}
        rewarded = {PrevActionsPrevRewards.ORIG_OBS_KEY: observations}
        rewarded[PrevActionsPrevRewards.PREV_REWARDS_KEY] = spaces.Box(-np.inf, np.inf, (1,), np.float32)
        super().__init__(spaces.Dict(rewarded) if self._wants_rewards else observations, actions)

    def get_initial_state(self) -> dict[str, Any]:
        """Zeros, by name."""
        first = {name.removeprefix(STATE_IN): np.zeros(port.shape, port.dtype) for name, port in self._states.items()}
        return {name: torch.from_numpy(zeros) for name, zeros in first.items()}

    def _forward(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        """ACTIONS and ACTION_DIST_INPUTS (B, 1, ...) of observations (B, 1, ...), and STATE_OUT (B, ...)."""
        stateful = bool(self._states)
        seen = map_leaves(lambda leaf: (leaf[:, 0] if stateful else leaf).numpy(), batch[Columns.OBS])
        others = {f"{STATE_IN}{name}": leaf.numpy() for name, leaf in flatten(batch[Columns.STATE_IN])} if stateful else {}
        if self._wants_rewards:
            others[REWARDS] = seen[PrevActionsPrevRewards.PREV_REWARDS_KEY][:, 0]
            seen = seen[PrevActionsPrevRewards.ORIG_OBS_KEY]
        actions, outputs = self._runs(seen, others)

        def stepped(array: NDArray[Any]) -> Any:
            tensor = torch.from_numpy(array)
            return tensor[:, None] if stateful else tensor

        found: dict[str, Any] = {Columns.ACTIONS: map_leaves(stepped, actions)}
        if INPUTS in outputs:
            found[INPUTS] = stepped(outputs[INPUTS])
            found[Columns.ACTION_LOGP] = torch.zeros(found[INPUTS].shape[:-1])
        if stateful:
            names = [name.removeprefix(STATE_IN) for name in self._states]
            found[Columns.STATE_OUT] = {name: torch.from_numpy(outputs[f"{STATE_OUT}{name}"]) for name in names}
        return found


def _beside(model: OnnxModel) -> PlaySpec:
    """The pieces that an OnnxModule plays between: actions go as they are, and the last reward comes with the observation."""
    where = f"pieces beside {model.where}"
    pieces = [{"name": PIECE, "n_prev_actions": 0, "n_prev_rewards": 1}] if REWARDS in model.inputs else []
    after = {"kind": "module_to_env", "normalize_actions": False, "clip_actions": False}
    return PlaySpec(
        PipelineSpec.from_document({"kind": "env_to_module", "pieces": pieces}, "env_to_module", where=where),
        PipelineSpec.from_document(after, "module_to_env", where=where),
    )

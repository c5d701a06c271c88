"""Plays `onnx:FILE`: raw observations in, actions of the environment out; pieces and action scale are inside the file.

Inputs are `obs`, or a leaf each (`obs.camera`), outputs `actions`, or a leaf each, and `action_dist_inputs` where the file has
them. What a file remembers is `state_in/NAME` and `state_out/NAME`, zeros where an episode begins, and `rewards`, the answer to
the last action, 0 there. Actions are the likeliest ones: a file draws none. They are recorded with the scale `env`.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from offline_cli.columns import Columns
from offline_cli.environments import Environment
from offline_cli.episodes.episode_spaces import space_tree
from offline_cli.errors import BadConfig, BadData, SpaceMismatch
from offline_cli.policies.onnx_model import FIX, OnnxModel, Port, read_model
from offline_cli.policies.policy import Acted, Policy, PolicyOptions, State, check_fits
from offline_cli.spaces import Space, leaf_spaces
from offline_cli.trees import Tree, leaves, map_leaves, unflatten_like

__all__ = ["ONNX", "OnnxPolicy", "check_ports", "open_onnx", "spaces_of_file"]

ONNX: Final = "onnx:"
OBS, ACTIONS, REWARDS, INPUTS = Columns.OBS, Columns.ACTIONS, Columns.REWARDS, Columns.ACTION_DIST_INPUTS
STATE_IN, STATE_OUT = f"{Columns.STATE_IN}/", f"{Columns.STATE_OUT}/"


def open_onnx(name: str, environment: Environment, options: PolicyOptions) -> OnnxPolicy:
    """The policy of the model in `onnx:FILE`. Raises what `read_model` raises, SpaceMismatch, BadConfig where it explores."""
    options.refuse_pieces("an ONNX model", name)
    model = read_model(name.removeprefix(ONNX), options.storage_options)
    if options.explore:
        fix = "--no-explore, or the run folder it was exported from"
        raise BadConfig("an ONNX model gives its likeliest actions", where=model.where, fix=fix)
    check_fits((model.space("observation_space"), model.space("action_space")), name, environment)
    return OnnxPolicy(model, environment.observation_space, environment.action_space)


def spaces_of_file(name: str, options: PolicyOptions) -> tuple[Space | None, Space | None]:
    """Of observations and actions, as the file's metadata have them. Raises what `read_model` raises."""
    model = read_model(name.removeprefix(ONNX), options.storage_options)
    return model.space("observation_space"), model.space("action_space")


def check_ports(model: OnnxModel, observations: Space, actions: Space) -> None:
    """Raise SpaceMismatch, with every difference, unless inputs and outputs are those of a policy over these spaces."""
    states = {name: port for name, port in model.inputs.items() if name.startswith(STATE_IN)}
    takes = {**_ports(observations, OBS), **states}
    if REWARDS in model.inputs:
        takes[REWARDS] = Port(model.inputs[REWARDS].dtype, ())
    gives = _ports(actions, ACTIONS) | {STATE_OUT + name.removeprefix(STATE_IN): port for name, port in states.items()}
    sides = ("input", takes, model.inputs, {**takes, **model.inputs}), ("output", gives, model.outputs, gives)
    problems = [
        f"{side} {name!r} is {found.get(name, 'missing')}, for {wanted.get(name, 'nothing')}"
        for side, wanted, found, names in sides
        for name in names
        if wanted.get(name) != found.get(name)
    ]
    if problems:
        fix = "an environment that the policy was exported for, wrapped as it was"
        raise SpaceMismatch.of(problems, where=model.where, fix=fix)


def _ports(space: Space, name: str) -> dict[str, Port]:
    return {path: Port(np.dtype(leaf.dtype), tuple(leaf.shape or ())) for path, leaf in leaf_spaces(space, name).items()}


class OnnxPolicy(Policy):
    """See Policy. It remembers what the file put out last."""

    def __init__(self, model: OnnxModel, observations: Space, actions: Space) -> None:
        """Raises SpaceMismatch."""
        check_ports(model, observations, actions)
        self.fingerprint = model.fingerprint
        self._model = model
        self._states = {name.removeprefix(STATE_IN): port for name, port in model.inputs.items() if name.startswith(STATE_IN)}
        self.reads_rewards = REWARDS in model.inputs
        self.looks_back = bool(self._states) or self.reads_rewards
        self._observed, self._acted = space_tree(observations), space_tree(actions)
        self._names = list(leaf_spaces(observations, OBS)), list(leaf_spaces(actions, ACTIONS))

    def act(self, observations: Tree, state: State, explore: bool) -> Acted:
        """See Policy. Raises BadData for other numbers of rows."""
        rows = len(state.t)
        ordered = map_leaves(lambda _, leaf: leaf, self._observed, observations)
        inputs: dict[str, Any] = dict(zip(self._names[0], leaves(ordered), strict=True))
        if self.reads_rewards:
            inputs[REWARDS] = state.rewards
        for name, port in self._states.items():
            held = inputs[STATE_IN + name] = np.zeros((rows, *port.shape), port.dtype)
            if (going := state.t > 0).any():
                held[going] = state.memory[name][going]
        outputs = self._model.run(
            {name: np.ascontiguousarray(array, self._model.inputs[name].dtype) for name, array in inputs.items()}
        )
        for name, array in outputs.items():
            if array.shape != (rows, *self._model.outputs[name].shape):
                what = f"output {name!r} has shape {array.shape} for {rows} rows"
                raise BadData(what, where=self._model.where, fix=FIX)
        extras = {INPUTS: outputs[INPUTS], Columns.ACTION_LOGP: np.zeros(rows, np.float32)} if INPUTS in outputs else {}
        actions = unflatten_like(self._acted, [outputs[name] for name in self._names[1]])
        return Acted(actions, actions, extras, {name: outputs[STATE_OUT + name] for name in self._states})

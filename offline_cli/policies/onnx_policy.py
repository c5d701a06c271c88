"""Plays `onnx:FILE`: raw observations in, actions of the environment out; pieces and action scale are inside the file.

Inputs are `obs`, or a leaf each (`obs.camera`), outputs `actions`, or a leaf each, and `action_dist_inputs` where the file has
them. What a file remembers is `state_in/NAME` and `state_out/NAME`, zeros where an episode begins, and `rewards`, the answer to
the last action, 0 there. Actions are the likeliest ones: a file draws none. They are recorded with the scale `env`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from offline_cli.columns import Columns
from offline_cli.episodes.episode_spaces import space_tree
from offline_cli.errors import BadConfig, BadData, SpaceMismatch
from offline_cli.policies.onnx_model import FIX, OnnxModel
from offline_cli.policies.policy import Acted, Seen
from offline_cli.spaces import Space, leaf_spaces
from offline_cli.trees import leaves, map_leaves, unflatten_like

__all__ = ["OnnxPolicy", "check_ports"]

OBS, ACTIONS, REWARDS, INPUTS = Columns.OBS, Columns.ACTIONS, Columns.REWARDS, Columns.ACTION_DIST_INPUTS
STATE_IN, STATE_OUT = f"{Columns.STATE_IN}/", f"{Columns.STATE_OUT}/"
Rows = NDArray[Any]


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
    for name, port in model.inputs.items():
        if name.startswith(STATE_IN) and model.outputs.get(STATE_OUT + name.removeprefix(STATE_IN)) != port:
            problems.append(f"there is no {STATE_OUT}... like {name}")
        elif not (name in wanted or name.startswith(STATE_IN) or name == REWARDS):
            problems.append(f"input {name!r} is unknown")
    if REWARDS in model.inputs and model.inputs[REWARDS].shape != ():
        problems.append(f"input {REWARDS!r} is not one number a row")
    if problems:
        fix = "an environment that the policy was exported for, wrapped as it was"
        raise SpaceMismatch.of(problems, where=model.where, fix=fix)


class OnnxPolicy:
    """See Policy. Its state is by slot what the file put out last."""

    action_scale = "env"
    chance_size = 0

    def __init__(self, model: OnnxModel, observations: Space, actions: Space, *, explore: bool) -> None:
        """Raises SpaceMismatch, and BadConfig where it is to explore."""
        if explore:
            fix = "--no-explore, or the run folder it was exported from"
            raise BadConfig("an ONNX model gives its likeliest actions", where=model.where, fix=fix)
        check_ports(model, observations, actions)
        self.fingerprint = model.fingerprint
        self._model = model
        self._states = {name.removeprefix(STATE_IN): port for name, port in model.inputs.items() if name.startswith(STATE_IN)}
        self.reads_rewards = REWARDS in model.inputs
        self.looks_back = bool(self._states) or self.reads_rewards
        self._observed, self._acted = space_tree(observations), space_tree(actions)
        self._names = list(leaf_spaces(observations, OBS)), list(leaf_spaces(actions, ACTIONS))

    def act(self, seen: Seen, state: Any, explore: bool) -> Acted:
        """See Policy. Raises BadData for other numbers of rows."""
        slots, rows = seen.slots.tolist(), len(seen.slots)
        ordered = map_leaves(lambda _, leaf: leaf, self._observed, seen.obs)
        given = dict(zip(self._names[0], leaves(ordered), strict=True))
        if REWARDS in self._model.inputs:
            given[REWARDS] = seen.rewards
        held: dict[str, dict[int, Rows]] = {name: {} for name in self._states} if state is None else state
        for name, port in self._states.items():
            zeros = np.zeros(port.shape, port.dtype)
            begins = zip(slots, seen.begins.tolist(), strict=True)
            given[STATE_IN + name] = np.stack([zeros if begin else held[name][slot] for slot, begin in begins])
        typed = {name: np.ascontiguousarray(array, self._model.inputs[name].dtype) for name, array in given.items()}
        outputs = self._model.run(typed)
        for name, array in outputs.items():
            if array.shape != (rows, *self._model.outputs[name].shape):
                what = f"output {name!r} has shape {array.shape} for {rows} rows"
                raise BadData(what, where=self._model.where, fix=FIX)
        for name in self._states:
            held[name].update(zip(slots, outputs[STATE_OUT + name], strict=True))
        extras = {}
        if INPUTS in outputs:
            extras = {INPUTS: outputs[INPUTS], Columns.ACTION_LOGP: np.zeros(rows, np.float32)}
        actions = unflatten_like(self._acted, [outputs[name] for name in self._names[1]])
        return Acted(actions, actions, extras, held if self._states else None)

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
from offline_cli.errors import BadConfig, SpaceMismatch
from offline_cli.policies.onnx_model import OnnxModel, Port, read_model
from offline_cli.policies.policy import Acted, Policy, PolicyOptions, State, fitting
from offline_cli.spaces import leaf_spaces
from offline_cli.trees import Tree, leaves, map_leaves, unflatten_like

__all__ = ["ONNX", "OnnxPolicy", "open_onnx"]

ONNX: Final = "onnx:"
OBS, ACTIONS, REWARDS, INPUTS = Columns.OBS, Columns.ACTIONS, Columns.REWARDS, Columns.ACTION_DIST_INPUTS
STATE_IN, STATE_OUT = f"{Columns.STATE_IN}/", f"{Columns.STATE_OUT}/"


def open_onnx(name: str, environment: Environment | None, options: PolicyOptions) -> OnnxPolicy:
    """The policy of the model in `onnx:FILE`. Raises what `read_model` raises, SpaceMismatch, BadConfig where it explores."""
    options.refuse_pieces("an ONNX model", name)
    model = read_model(name.removeprefix(ONNX), options.storage_options)
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
        self.reads_rewards = REWARDS in model.inputs
        self.looks_back = bool(self._states) or self.reads_rewards
        self._observed, self._acted = map(space_tree, self.spaces)
        seen, acts = (
            {path: Port(np.dtype(leaf.dtype), tuple(leaf.shape or ())) for path, leaf in leaf_spaces(space, name).items()}
            for space, name in zip(self.spaces, (OBS, ACTIONS), strict=True)
        )
        self._names = list(seen), list(acts)
        takes = seen | {name: port for name, port in model.inputs.items() if name == REWARDS or name.startswith(STATE_IN)}
        gives = acts | {STATE_OUT + name: port for name, port in self._states.items()}
        if takes != model.inputs or not gives.items() <= model.outputs.items():
            told = [
                ", ".join(f"{name} {port}" for name, port in one.items()) for one in (model.inputs, model.outputs, takes, gives)
            ]
            what = "it takes {} and gives {}; here a policy takes {} and gives {}".format(*told)
            raise SpaceMismatch(what, where=model.where, fix="an environment that it was exported for, wrapped as it was")

    def act(self, observations: Tree, state: State, explore: bool) -> Acted:
        """See Policy."""
        rows = len(state.t)
        ordered = map_leaves(lambda _, leaf: leaf, self._observed, observations)
        inputs: dict[str, Any] = dict(zip(self._names[0], leaves(ordered), strict=True))
        if self.reads_rewards:
            inputs[REWARDS] = state.rewards
        for name, port in self._states.items():
            held = inputs[STATE_IN + name] = np.zeros((rows, *port.shape), port.dtype)
            if (going := state.t > 0).any():
                held[going] = state.memory[name][going]
        outputs = self._model.run(inputs)
        extras = {INPUTS: outputs[INPUTS], Columns.ACTION_LOGP: np.zeros(rows, np.float32)} if INPUTS in outputs else {}
        actions = unflatten_like(self._acted, [outputs[name] for name in self._names[1]])
        return Acted(actions, actions, extras, {name: outputs[STATE_OUT + name] for name in self._states})

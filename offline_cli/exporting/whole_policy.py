"""WholePolicy: a policy with its env-to-module pieces and its action scale as one torch module, from arrays to arrays.

Inputs are the raw observations of the environment, a leaf each, and what the policy remembers; outputs are the likeliest
actions as the environment takes them, the inputs of their distribution, and what to remember next. Every input and output has
an axis of B rows first. The arithmetic is that of the pieces, in the same precision: a filter computes in float64.

Memory is explicit, because a graph has none: each `state_in/NAME` has a `state_out/NAME` of the same shape, and is zeros where
an episode begins. So are the rewards that a piece looks at.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor, nn

from offline_cli.columns import Columns
from offline_cli.connectors.common.flattening import PrevActionsPrevRewards
from offline_cli.connectors.connector_v2 import ConnectorV2
from offline_cli.connectors.env_to_module.default_pipeline import default_pieces
from offline_cli.episodes.episode_spaces import space_tree
from offline_cli.errors import BadConfig
from offline_cli.exporting.pieces_in_torch import DTYPES, OWN_STATES, STEPS, State, Step, step_of
from offline_cli.modules.action_units import span_of
from offline_cli.modules.rl_module import RLModule
from offline_cli.spaces import Space, leaf_spaces
from offline_cli.trees import Tree, flatten, leaves, map_leaves, unflatten_like

__all__ = ["ACTIONS", "INPUTS", "OBS", "REWARDS", "STATE_IN", "STATE_OUT", "WholePolicy"]

OBS: Final = Columns.OBS
ACTIONS: Final = Columns.ACTIONS
INPUTS: Final = Columns.ACTION_DIST_INPUTS
REWARDS: Final = Columns.REWARDS
STATE_IN, STATE_OUT = f"{Columns.STATE_IN}/", f"{Columns.STATE_OUT}/"


class WholePolicy(nn.Module):
    """See the module. `input_names`, `output_names`: of the tensors that `forward` takes and gives, in order."""

    def __init__(self, module: RLModule, pieces: Sequence[tuple[str, ConnectorV2]], observations: Space, *, where: str) -> None:
        """`pieces`: the env-to-module pipeline's, by name, built for `observations`, and with what they learned.

        Raises BadConfig, naming every piece and dtype that has no form here.
        """
        super().__init__()
        _check(pieces, observations, module.action_space, where=where)
        self.policy = module
        self.steps = nn.ModuleList(made for _, piece in pieces if (made := step_of(piece)) is not None)
        self.for_environment = _ForEnvironment(module.action_space)
        self._parts = leaf_spaces(observations, OBS)
        self._like = space_tree(observations)
        self._module_like = space_tree(module.observation_space)
        self._state_like = module.get_initial_state()
        first = {name: np.zeros(shape, dtype) for step in self._own_steps() for name, (shape, dtype) in step.states().items()}
        first |= _first_states(module, where=where)
        self.first_states: Mapping[str, Any] = first  # of one row: arrays of zeros, by name
        self.wants_rewards = any(step.wants_rewards for step in self._own_steps())
        remembered = [f"{STATE_IN}{name}" for name in first]
        self.input_names = [*self._parts, *([REWARDS] if self.wants_rewards else []), *remembered]
        actions = list(leaf_spaces(module.action_space, ACTIONS))
        self.output_names = [*actions, INPUTS, *(f"{STATE_OUT}{name}" for name in first)]

    def _own_steps(self) -> list[Step]:
        return [step for step in self.steps if isinstance(step, Step)]

    def zeros(self, rows: int) -> tuple[Tensor, ...]:
        """Inputs of so many rows, for tracing."""
        found = [torch.zeros(rows, *(space.shape or ()), dtype=DTYPES[str(space.dtype)]) for space in self._parts.values()]
        found += [torch.zeros(rows)] if self.wants_rewards else []
        return (
            *found,
            *(torch.zeros(rows, *first.shape, dtype=DTYPES[str(first.dtype)]) for first in self.first_states.values()),
        )

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        """Tensors by `input_names`, (B, ...) each; gives those of `output_names`."""
        count = len(self._parts)
        observations = unflatten_like(self._like, list(inputs[:count]))
        rewards = inputs[count] if self.wants_rewards else None
        state = dict(zip(self.first_states, inputs[count + self.wants_rewards :], strict=True))
        after: State = {}
        for step in self._own_steps():
            observations = step.changed(observations, state, rewards, after)
        batch: dict[str, Any] = {Columns.OBS: _in_order(observations, self._module_like)}
        outputs = self._asked(batch, state, after)
        dist_inputs = outputs[Columns.ACTION_DIST_INPUTS]
        chosen = self.policy.action_head.greedy(dist_inputs)
        for step in self._own_steps():
            step.chose(chosen, state, after)
        actions = self.for_environment(chosen)
        return (*leaves(actions), dist_inputs, *(after[name] for name in self.first_states))

    def _asked(self, batch: dict[str, Any], state: State, after: State) -> dict[str, Any]:
        """What the policy puts out for rows, which a policy with memory takes as sequences of one step."""
        if not self._state_like:
            return self.policy.forward_inference(batch)
        batch[Columns.OBS] = map_leaves(lambda leaf: leaf[:, None], batch[Columns.OBS])
        batch[Columns.STATE_IN] = unflatten_like(self._state_like, [state[name] for name, _ in flatten(self._state_like)])
        outputs = self.policy.forward_inference(batch)
        after |= flatten(outputs[Columns.STATE_OUT])
        return {**outputs, Columns.ACTION_DIST_INPUTS: outputs[Columns.ACTION_DIST_INPUTS][:, 0]}


def _check(pieces: Sequence[tuple[str, ConnectorV2]], observations: Space, actions: Space, *, where: str) -> None:
    default = {type(piece) for piece in default_pieces(None, None)}
    problems = [
        f"piece {name} ({type(piece).__name__}) has no form in the exported graph"
        for name, piece in pieces
        if type(piece) not in STEPS and type(piece) not in default
    ]
    parts = {**leaf_spaces(observations, OBS), **leaf_spaces(actions, ACTIONS)}
    problems += [f"{path} is {space.dtype}" for path, space in parts.items() if str(space.dtype) not in DTYPES]
    looks_back = [name for name, piece in pieces if isinstance(piece, PrevActionsPrevRewards) and piece.n_prev_actions]
    whole = [
        path for path, space in leaf_spaces(actions, ACTIONS).items() if isinstance(space, spaces.Box) and _is_whole(space)
    ]
    problems += [f"piece {name} looks at {whole[0]}, a Box of integers" for name in looks_back if whole]
    if problems:
        known = ", ".join(sorted(kind.__name__ for kind in STEPS))
        raise BadConfig.of(problems, where=where, fix=f"train without it; these pieces can be exported: {known}")


def _is_whole(space: Space) -> bool:
    return np.dtype(space.dtype).kind in "iu"


def _first_states(module: RLModule, *, where: str) -> dict[str, Any]:
    """What the module remembers before an episode's first step, by name. Raises BadConfig where that is not zeros."""
    found = {name: np.asarray(torch.as_tensor(leaf)) for name, leaf in flatten(module.get_initial_state())}
    if any(first.any() for first in found.values()) or any(name.partition(".")[0] in OWN_STATES for name in found):
        what = f"{type(module).__name__} begins episodes with a state that is not zeros, or has a piece's name"
        raise BadConfig(what, where=where, fix="zeros as its initial state: whoever runs the exported file begins with them")
    return found


def _in_order(tree: Tree, like: Tree) -> Tree:
    """The same parts, Dict keys as in `like`: networks depend on their order."""
    if isinstance(like, dict):
        return {key: _in_order(tree[key], part) for key, part in like.items()}
    return tuple(_in_order(*pair) for pair in zip(tree, like, strict=True)) if isinstance(like, tuple) else tree


# ---- actions ----


class _ForEnvironment(nn.Module):
    """Actions in the units of networks as the environment takes them (`modules/action_units.py`), leaves (B, ...)."""

    def __init__(self, space: Space) -> None:
        super().__init__()
        self.parts = nn.ModuleList(_Fitted(leaf) for leaf in leaf_spaces(space).values())

    def forward(self, actions: Tree) -> Tree:
        return unflatten_like(actions, [fit(leaf) for fit, leaf in zip(self.parts, leaves(actions), strict=True)])


class _Fitted(nn.Module):
    """One leaf: boxes stretched to their bounds, where these are finite, and clipped; others in their dtype."""

    def __init__(self, space: Space) -> None:
        super().__init__()
        self.low: Tensor
        self.width: Tensor
        self.least: Tensor
        self.most: Tensor
        self._dtype: torch.dtype = DTYPES[str(space.dtype)]
        self._is_box = isinstance(space, spaces.Box)
        self._rounds = _is_whole(space)
        if not isinstance(space, spaces.Box):
            return
        span = span_of(space)
        self._stretches = span is not None
        wide = np.result_type(np.float32, space.low, *([] if span is None else [span.low]))
        if span is not None:
            stretch = np.result_type(np.float32, span.low)
            self.register_buffer("low", torch.from_numpy(np.array(span.low, stretch)))
            self.register_buffer("width", torch.from_numpy(np.array(span.width, stretch)))
        self.register_buffer("least", torch.from_numpy(np.array(space.low, wide)))
        self.register_buffer("most", torch.from_numpy(np.array(space.high, wide)))

    def forward(self, leaf: Tensor) -> Tensor:
        if not self._is_box:
            return leaf.to(self._dtype)
        values = leaf
        if self._stretches:
            values = self.low + (values + 1.0).to(self.low.dtype) * self.width / 2.0
        values = torch.minimum(torch.maximum(values.to(self.least.dtype), self.least), self.most)
        return (torch.round(values) if self._rounds else values).to(self._dtype)

"""WholePolicy: a policy with its env-to-module pieces and its action scale as one torch module, from arrays to arrays.

Inputs are the raw observations of the environment, a leaf each, and what the policy remembers; outputs are the likeliest
actions as the environment takes them, the inputs of their distribution, and what to remember next. Every input and output has
an axis of B rows first. The arithmetic is that of the pieces, in the same precision: a filter computes in float64.

Memory is explicit, because a graph has none: each `state_in/NAME` has a `state_out/NAME` of the same shape, and is zeros where
an episode begins. So are the rewards that a piece looks at.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor, nn

from offline_cli.columns import Columns
from offline_cli.connectors.connector_pipeline_v2 import ConnectorPipelineV2
from offline_cli.connectors.pipeline_spec import added_pieces
from offline_cli.connectors.torch_forms import RememberingForm, State
from offline_cli.episodes.episode_spaces import space_tree
from offline_cli.errors import BadConfig
from offline_cli.modules.action_units import span_of
from offline_cli.modules.rl_module import RLModule
from offline_cli.spaces import Space, leaf_spaces
from offline_cli.trees import Tree, flatten, leaves, map_leaves, unflatten_like

__all__ = ["INPUTS", "WholePolicy"]

INPUTS: Final = Columns.ACTION_DIST_INPUTS
STATE_IN, STATE_OUT = f"{Columns.STATE_IN}/", f"{Columns.STATE_OUT}/"
DTYPES: Final = frozenset(("bool", "int8", "int16", "int32", "int64", "uint8", "float16", "float32", "float64"))


class WholePolicy(nn.Module):
    """See the module. `input_names`, `output_names`: of the tensors that `forward` takes and gives, in order."""

    def __init__(self, module: RLModule, pipeline: ConnectorPipelineV2, observations: Space, *, where: str) -> None:
        """`pipeline`: env-to-module, built for `observations`, with what its pieces learned.

        Raises BadConfig, naming every piece and dtype that has no form here.
        """
        super().__init__()
        parts, acted = leaf_spaces(observations, Columns.OBS), leaf_spaces(module.action_space, Columns.ACTIONS)
        forms = {name: piece.to_torch() for name, piece in added_pieces(pipeline)}
        problems = [f"piece {name} has no torch form" for name, form in forms.items() if form is None]
        problems += [f"{path} is {space.dtype}" for path, space in {**parts, **acted}.items() if str(space.dtype) not in DTYPES]
        if problems:
            fix = "a `to_torch` in the class of the piece, or train without it (docs/export.md)"
            raise BadConfig.of(problems, where=where, fix=fix)
        self.policy = module
        self.forms = nn.ModuleList(forms.values())
        self.for_environment = nn.ModuleList(map(_ForEnvironment, acted.values()))
        self._parts, self._like, self._seen_like = parts, space_tree(observations), space_tree(module.observation_space)
        self._remembering = [form for form in self.forms if isinstance(form, RememberingForm)]
        self.wants_rewards = any(form.wants_rewards for form in self._remembering)
        self._state_like = module.get_initial_state()
        own = {name: np.asarray(torch.as_tensor(leaf)) for name, leaf in flatten(self._state_like)}
        states = [form.states() for form in self._remembering]
        self._states = {name: np.zeros(shape, dtype) for known in states for name, (shape, dtype) in known.items()} | own
        if any(first.any() for first in own.values()) or len(self._states) < len(own) + sum(map(len, states)):
            what = f"{type(module).__name__} or a piece has a state that is not zeros at first, or of another one's name"
            raise BadConfig(what, where=where, fix="zeros at first: whoever runs the exported file begins with them")
        remembered = [f"{STATE_IN}{name}" for name in self._states]
        self.input_names = [*parts, *([Columns.REWARDS] if self.wants_rewards else []), *remembered]
        self.output_names = [*acted, INPUTS, *(f"{STATE_OUT}{name}" for name in self._states)]

    def zeros(self, rows: int) -> tuple[Tensor, ...]:
        """Inputs of so many rows, for tracing."""
        given = [np.zeros(space.shape or (), space.dtype) for space in self._parts.values()]
        given += [np.zeros((), np.float32)] * self.wants_rewards + [*self._states.values()]
        return tuple(torch.from_numpy(np.broadcast_to(one, (rows, *one.shape)).copy()) for one in given)

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        """Tensors by `input_names`, (B, ...) each; gives those of `output_names`."""
        count = len(self._parts)
        observations = unflatten_like(self._like, list(inputs[:count]))
        rewards = inputs[count] if self.wants_rewards else None
        state = dict(zip(self._states, inputs[count + self.wants_rewards :], strict=True))
        after: State = {}
        for form in self.forms:
            remembers = isinstance(form, RememberingForm)
            observations = form(observations, state, rewards, after) if remembers else form(observations)
        dist_inputs = self._dist_inputs(_in_order(observations, self._seen_like), state, after)
        chosen = self.policy.action_head.greedy(dist_inputs)
        for form in self._remembering:
            form.chose(chosen, state, after)
        actions = [fit(leaf) for fit, leaf in zip(self.for_environment, leaves(chosen), strict=True)]
        return (*actions, dist_inputs, *(after[name] for name in self._states))

    def _dist_inputs(self, observations: Tree, state: State, after: State) -> Any:
        """What the policy puts out for rows, which a policy with memory takes as sequences of one step."""
        batch: dict[str, Any] = {Columns.OBS: observations}
        if not self._state_like:
            return self.policy.forward_inference(batch)[INPUTS]
        batch[Columns.OBS] = map_leaves(lambda leaf: leaf[:, None], observations)
        batch[Columns.STATE_IN] = unflatten_like(self._state_like, [state[name] for name, _ in flatten(self._state_like)])
        outputs = self.policy.forward_inference(batch)
        after |= flatten(outputs[Columns.STATE_OUT])
        return outputs[INPUTS][:, 0]


def _in_order(tree: Tree, like: Tree) -> Tree:
    """The same parts, Dict keys as in `like`: networks depend on their order."""
    if isinstance(like, dict):
        return {key: _in_order(tree[key], part) for key, part in like.items()}
    return tuple(_in_order(*pair) for pair in zip(tree, like, strict=True)) if isinstance(like, tuple) else tree


class _ForEnvironment(nn.Module):
    """One leaf of actions as the environment takes it (`modules/action_units.py`), (B, ...): boxes stretched to their bounds,
    where these are finite, and clipped; others in their dtype."""

    low: Tensor
    width: Tensor
    least: Tensor
    most: Tensor

    def __init__(self, space: Space) -> None:
        super().__init__()
        self._dtype, self._rounds = getattr(torch, str(space.dtype)), np.dtype(space.dtype).kind in "iu"
        self._is_box = isinstance(space, spaces.Box)
        self._span = span_of(space) if isinstance(space, spaces.Box) else None
        if self._span is not None:
            dtype = np.result_type(np.float32, self._span.low)
            self._keep(low=self._span.low.astype(dtype), width=self._span.width.astype(dtype))
        if isinstance(space, spaces.Box):
            wide = np.result_type(np.float32, space.low, *([] if self._span is None else [self._span.low]))
            self._keep(least=space.low.astype(wide), most=space.high.astype(wide))

    def _keep(self, **arrays: Any) -> None:
        for name, array in arrays.items():
            self.register_buffer(name, torch.from_numpy(np.array(array)))

    def forward(self, values: Tensor) -> Tensor:
        if not self._is_box:
            return values.to(self._dtype)
        if self._span is not None:
            values = self.low + (values + 1.0).to(self.low.dtype) * self.width / 2.0
        values = torch.minimum(torch.maximum(values.to(self.least.dtype), self.least), self.most)
        return (torch.round(values) if self._rounds else values).to(self._dtype)

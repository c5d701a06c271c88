"""Export a policy as an ONNX model: one graph with its weights, and the facts of the model card as metadata.

`torch.onnx.export` traces `WholePolicy`: the policy with its env-to-module pieces and action scaling as one torch module.
Inputs are raw observations, one per leaf, and the recurrent state; outputs are greedy actions for the environment, the inputs
of their distribution, and the next state. Every input and output has a batch axis first. The arithmetic equals that of the
pieces: a filter computes in float64.

State is explicit: each `state_in/NAME` has a `state_out/NAME` of the same shape, and is zero at the start of an episode. So are
the rewards for pieces that read them.
"""

from __future__ import annotations

import gc
import json
import logging
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
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
from offline_cli.errors import BadConfig, MissingPackage, causes
from offline_cli.exporting import card
from offline_cli.modules.distributions import span_of
from offline_cli.modules.rl_module import RLModule, evaluating
from offline_cli.policies.onnx_policy import INSTALL, MAX_BYTES, STATE_IN, STATE_OUT, OnnxModel, model_of
from offline_cli.policies.policy import sampled
from offline_cli.spaces import Space, leaf_spaces, tree_from_lists
from offline_cli.trees import flatten, leaves, map_leaves, unflatten_like

__all__ = ["WholePolicy", "onnx_export"]

INPUTS: Final = Columns.ACTION_DIST_INPUTS
ROWS: Final = 64  # batch size for testing the file before it is written
TRACED: Final = 2  # batch size for tracing: torch treats an axis of length 1 as constant
HOW: Final = """
```python
import numpy as np
import onnxruntime

session = onnxruntime.InferenceSession({file})
given = {{
{given}
}}
names = [port.name for port in session.get_outputs()]
found = dict(zip(names, session.run(names, given)))
```

Each `state_in/NAME` is the `state_out/NAME` of the previous call, and zeros at the start of an episode.
`offline-cli evaluate onnx:FILE --env ENV` plays it.
"""


def onnx_export(
    module: RLModule, pipeline: ConnectorPipelineV2, observations: Space, facts: Mapping[str, Any], *, name: str, where: str
) -> card.Made:
    """Export and test the file. `observations`: the space before `pipeline`; `facts`: JSON values by name.

    Raises MissingPackage, and BadConfig for a network or a piece that cannot be exported to ONNX.
    """
    policy = WholePolicy(module, pipeline, observations, where=where)
    content = _onnx_bytes(policy, facts, where=where)
    model = model_of(content, where="the exported file")
    inputs, outputs = ({port: card.form(*one) for port, one in ports.items()} for ports in (model.inputs, model.outputs))
    given = []
    for port, one in model.inputs.items():
        zeros = f'np.zeros({(1, *one.shape)}, "{one.dtype}")'
        given.append(f"    {json.dumps(port)}: {'observation[None]' if port == Columns.OBS else zeros},")
    how = HOW.format(file=json.dumps(name), given="\n".join(given))
    return card.Made({"": content}, inputs, outputs, how, _difference(policy, model, observations))


class WholePolicy(nn.Module):
    """The policy with pieces and action scaling as one torch module. `input_names`, `output_names`: of `forward`, in order."""

    def __init__(self, module: RLModule, pipeline: ConnectorPipelineV2, observations: Space, *, where: str) -> None:
        """`pipeline`: env-to-module, built for `observations`, with its learned state.

        Raises BadConfig, naming every piece without a torch form.
        """
        super().__init__()
        forms = {name: piece.to_torch() for name, piece in added_pieces(pipeline)}
        if lacking := [f"piece {name} has no torch form" for name, form in forms.items() if form is None]:
            fix = "define `to_torch` in the piece's class, or train without the piece"
            raise BadConfig.of(lacking, where=where, fix=fix)
        acted = leaf_spaces(module.action_space, Columns.ACTIONS)
        self.policy, self.forms = module, nn.ModuleList(forms.values())
        self.for_environment = nn.ModuleList(map(_ForEnvironment, acted.values()))
        self._parts, self._like = leaf_spaces(observations, Columns.OBS), space_tree(observations)
        self._remembering = [form for form in self.forms if isinstance(form, RememberingForm)]
        self.wants_rewards = any(form.wants_rewards for form in self._remembering)
        self._state_like = module.get_initial_state()
        known = [(name, np.asarray(torch.as_tensor(leaf))) for name, leaf in flatten(self._state_like)]
        for form in self._remembering:
            known += [(name, np.zeros(shape, dtype)) for name, (shape, dtype) in form.states().items()]
        self._states = dict(known)
        if any(first.any() for _, first in known) or len(self._states) < len(known):
            what = f"{type(module).__name__} or a piece has a non-zero initial state, or a state name that is not unique"
            raise BadConfig(what, where=where, fix="use zeros: programs that run the exported file start with zeros")
        rewards = [Columns.REWARDS] if self.wants_rewards else []
        self.input_names = [*self._parts, *rewards, *(f"{STATE_IN}{name}" for name in self._states)]
        self.output_names = [*acted, INPUTS, *(f"{STATE_OUT}{name}" for name in self._states)]

    def zeros(self, rows: int) -> tuple[Tensor, ...]:
        """Zero inputs of `rows` rows, for tracing."""
        given = [np.zeros(space.shape or (), space.dtype) for space in self._parts.values()]
        given += [np.zeros((), np.float32)] * self.wants_rewards + [*self._states.values()]
        return tuple(torch.from_numpy(np.broadcast_to(one, (rows, *one.shape)).copy()) for one in given)

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        """Take the tensors of `input_names`, (B, ...) each; return those of `output_names`."""
        count = len(self._parts)
        observations = unflatten_like(self._like, list(inputs[:count]))
        rewards = inputs[count] if self.wants_rewards else None
        state = dict(zip(self._states, inputs[count + self.wants_rewards :], strict=True))
        after: State = {}
        for form in self.forms:
            remembers = isinstance(form, RememberingForm)
            observations = form(observations, state, rewards, after) if remembers else form(observations)
        batch: dict[str, Any] = {Columns.OBS: tree_from_lists(observations, self.policy.observation_space)}  # in key order
        if self._state_like:  # a recurrent policy takes sequences, here of one step
            batch[Columns.OBS] = map_leaves(lambda leaf: leaf[:, None], batch[Columns.OBS])
            batch[Columns.STATE_IN] = unflatten_like(self._state_like, [state[name] for name, _ in flatten(self._state_like)])
        outputs = self.policy.forward_inference(batch)
        if self._state_like:
            after |= flatten(outputs[Columns.STATE_OUT])
        dist_inputs = outputs[INPUTS][:, 0] if self._state_like else outputs[INPUTS]
        chosen = self.policy.action_head.greedy(dist_inputs)
        for form in self._remembering:
            form.chose(chosen, state, after)
        actions = [fit(leaf) for fit, leaf in zip(self.for_environment, leaves(chosen), strict=True)]
        return (*actions, dist_inputs, *(after[name] for name in self._states))


class _ForEnvironment(nn.Module):
    """One leaf of actions (B, ...) for the environment (`modules/distributions.py`): boxes stretched to finite bounds and
    clipped; other spaces cast to their dtype."""

    def __init__(self, space: Space) -> None:
        super().__init__()
        self._dtype, self._rounds = getattr(torch, str(space.dtype)), np.dtype(space.dtype).kind in "iu"
        self._is_box = isinstance(space, spaces.Box)
        self._span = span = span_of(space) if isinstance(space, spaces.Box) else None
        if span is not None:
            dtype = np.result_type(np.float32, span.low)
            self._keep(low=span.low.astype(dtype), width=span.width.astype(dtype))
        if isinstance(space, spaces.Box):
            wide = np.result_type(np.float32, space.low, *([] if span is None else [span.low]))
            self._keep(least=space.low.astype(wide), most=space.high.astype(wide))

    def _keep(self, **arrays: Any) -> None:
        for name, array in arrays.items():
            self.register_buffer(name, torch.from_numpy(np.array(array)))

    def forward(self, values: Tensor) -> Tensor:
        if not self._is_box:
            return values.to(self._dtype)
        held: dict[str, Any] = dict(self.named_buffers())
        if self._span is not None:
            values = held["low"] + (values + 1.0).to(held["low"].dtype) * held["width"] / 2.0
        values = torch.minimum(torch.maximum(values.to(held["least"].dtype), held["least"]), held["most"])
        return (torch.round(values) if self._rounds else values).to(self._dtype)


# ---- the file ----


def _onnx_bytes(policy: WholePolicy, facts: Mapping[str, Any], *, where: str) -> bytes:
    """Trace and serialize the policy, without torch's paths and stack traces, so that equal policies give equal bytes."""
    try:
        import onnx
        import onnxruntime  # noqa: F401  tests the file
        import onnxscript  # noqa: F401  torch.onnx needs it
    except ImportError as err:
        raise MissingPackage(f"the package {err.name} is missing", where="--to onnx", fix=INSTALL) from err
    batch = torch.export.Dim("batch", min=1)
    with evaluating(policy), torch.no_grad(), _quiet():
        try:
            program = torch.onnx.export(
                policy,
                policy.zeros(TRACED),
                dynamo=True,
                verbose=False,
                input_names=policy.input_names,
                output_names=policy.output_names,
                dynamic_shapes={"inputs": tuple({0: batch} for _ in policy.input_names)},
            )
        except Exception as err:
            first = [*causes(err)][-1]
            reason = f"{type(first).__name__}: {str(first).strip().partition(chr(10))[0]}"[:300]
            what = f"{type(policy.policy).__name__} or a piece cannot be exported to ONNX: {reason}"
            fix = "use operations that torch.export supports; --debug shows the traceback"
            raise BadConfig(what, where=where, fix=fix) from err
    assert program is not None, "dynamo returns a program"
    model: Any = program.model_proto
    model.graph.name = "policy"
    for part in (model, model.graph, *model.graph.node, *model.graph.input, *model.graph.output):
        part.doc_string = ""
        del part.metadata_props[:]
    del model.graph.value_info[:]
    model.producer_name, model.producer_version = "offline-cli", ""
    onnx.helper.set_model_props(model, {name: json.dumps(value, sort_keys=True) for name, value in sorted(facts.items())})
    if model.ByteSize() > MAX_BYTES:
        fix = f"use a network of at most {MAX_BYTES:,} bytes"
        raise BadConfig(f"the file would have {model.ByteSize():,} bytes", where=where, fix=fix)
    content: bytes = model.SerializeToString(deterministic=True)
    return content


def _difference(policy: WholePolicy, model: OnnxModel, observations: Space) -> float:
    """Maximum difference of `action_dist_inputs` between both, on made-up observations at the start of an episode."""
    arrays = [np.ascontiguousarray(leaf) for leaf in leaves(sampled(observations, ROWS))]
    given = [*map(torch.from_numpy, arrays), *policy.zeros(ROWS)[len(arrays) :]]
    with evaluating(policy), torch.inference_mode():
        wanted = dict(zip(policy.output_names, policy(*given), strict=True))[INPUTS]
    found = model.run({name: tensor.numpy() for name, tensor in zip(policy.input_names, given, strict=True)})[INPUTS]
    return float(np.abs(found - wanted.numpy()).max(initial=0.0))


@contextmanager
def _quiet() -> Iterator[None]:
    """Context manager: silence torch's logs and warnings, and disable garbage collection: CPython failed with SystemError when
    an environment's finalizer ran while tracing parsed code.
    """
    before, collects = logging.root.manager.disable, gc.isenabled()
    logging.disable(logging.WARNING)
    gc.disable()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)
        if collects:
            gc.enable()

"""Writes a policy as an ONNX model: one graph, its weights inside, facts of the model card among its metadata.

The graph comes from `torch.onnx.export`, which traces `WholePolicy` through torch.export, so that a network of any package can
be exported. What it notes of this machine (paths of source files, stack traces) is removed: one policy gives the same bytes.
"""

from __future__ import annotations

import json
import logging
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

import numpy as np
import torch

from offline_cli.columns import Columns
from offline_cli.connectors.connector_pipeline_v2 import ConnectorPipelineV2
from offline_cli.errors import BadConfig, MissingPackage, causes
from offline_cli.exporting.made import Made, form
from offline_cli.exporting.whole_policy import INPUTS, WholePolicy
from offline_cli.modules.rl_module import RLModule, evaluating
from offline_cli.policies.onnx_policy import INSTALL, MAX_BYTES, OnnxModel, model_of
from offline_cli.policies.policy import sampled
from offline_cli.spaces import Space
from offline_cli.trees import leaves

__all__ = ["onnx_export"]

ROWS: Final = 64  # that the file is tried with before it is written
TRACED: Final = 2  # rows while tracing: of one row torch takes the axis for a constant
NOISY: Final = ("torch.__trace", "torch.onnx", "torch.export", "onnxscript", "onnx_ir")
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

Each `state_in/NAME` is the `state_out/NAME` of the call before, and zeros where an episode begins.
`offline-cli evaluate onnx:FILE --env ENV` plays it.
"""


def onnx_export(
    module: RLModule, pipeline: ConnectorPipelineV2, observations: Space, facts: Mapping[str, Any], *, name: str, where: str
) -> Made:
    """The file, tried. `observations`: the space before `pipeline`; `facts`: JSON values by name.

    Raises MissingPackage, and BadConfig for a network or a piece that has no form in ONNX.
    """
    policy = WholePolicy(module, pipeline, observations, where=where)
    content = _onnx_bytes(policy, facts, where=where)
    model = model_of(content, where="the exported file")
    inputs, outputs = ({port: form(*one) for port, one in ports.items()} for ports in (model.inputs, model.outputs))
    given = []
    for port, one in model.inputs.items():
        zeros = f'np.zeros({(1, *one.shape)}, "{one.dtype}")'
        given.append(f"    {json.dumps(port)}: {'observation[None]' if port == Columns.OBS else zeros},")
    how = HOW.format(file=json.dumps(name), given="\n".join(given))
    return Made({"": content}, inputs, outputs, how, _difference(policy, model, observations))


def _onnx_bytes(policy: WholePolicy, facts: Mapping[str, Any], *, where: str) -> bytes:
    try:
        import onnx
        import onnxruntime  # noqa: F401  the file is tried with it
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
            what = f"{type(policy.policy).__name__}, or a piece, has no form in ONNX: {reason}"
            fix = "operations that torch.export knows; --debug shows where it stopped"
            raise BadConfig(what, where=where, fix=fix) from err
    assert program is not None, "dynamo gives a program"
    model: Any = program.model_proto
    model.graph.name = "policy"
    for part in (model, model.graph, *model.graph.node, *model.graph.input, *model.graph.output):
        part.doc_string = ""
        del part.metadata_props[:]
    del model.graph.value_info[:]
    model.producer_name, model.producer_version = "offline-cli", ""
    onnx.helper.set_model_props(model, {name: json.dumps(value, sort_keys=True) for name, value in sorted(facts.items())})
    if model.ByteSize() > MAX_BYTES:
        raise BadConfig(f"a file of {model.ByteSize():,} bytes", where=where, fix=f"a network of at most {MAX_BYTES:,} bytes")
    content: bytes = model.SerializeToString(deterministic=True)
    return content


def _difference(policy: WholePolicy, model: OnnxModel, observations: Space) -> float:
    """The greatest difference of `action_dist_inputs` between both, on invented observations at the start of an episode."""
    arrays = [np.ascontiguousarray(leaf) for leaf in leaves(sampled(observations, ROWS))]
    given = [*map(torch.from_numpy, arrays), *policy.zeros(ROWS)[len(arrays) :]]
    with evaluating(policy), torch.inference_mode():
        wanted = dict(zip(policy.output_names, policy(*given), strict=True))[INPUTS]
    found = model.run({name: tensor.numpy() for name, tensor in zip(policy.input_names, given, strict=True)})[INPUTS]
    return float(np.abs(found - wanted.numpy()).max(initial=0.0))


@contextmanager
def _quiet() -> Iterator[None]:
    """Within it torch says nothing of its progress, nor of packages that are not needed here."""
    levels = {name: logging.getLogger(name).level for name in NOISY}
    for name in NOISY:
        logging.getLogger(name).setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for name, level in levels.items():
            logging.getLogger(name).setLevel(level)

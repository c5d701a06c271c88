"""Writes a policy as an ONNX model: one graph, its weights inside, facts of the model card among its metadata.

The graph comes from `torch.onnx.export`, which traces `WholePolicy` through torch.export, so that a network of any package can
be exported. What it notes of this machine (paths of source files, stack traces) is removed: one policy gives the same bytes.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

import numpy as np
import torch

from offline_cli.errors import BadConfig, MissingPackage
from offline_cli.exporting.whole_policy import INPUTS, WholePolicy
from offline_cli.modules.rl_module import evaluating
from offline_cli.policies.onnx_model import INSTALL, MAX_BYTES, OnnxModel, facts_as_metadata
from offline_cli.policies.policy import sampled
from offline_cli.spaces import Space
from offline_cli.trees import leaves

__all__ = ["difference", "onnx_bytes"]

ROWS: Final = 64  # that the file is tried with before it is written
TRACED: Final = 2  # rows while tracing: of one row torch takes the axis for a constant
NOISY: Final = ("torch.__trace", "torch.onnx", "torch.export", "onnxscript", "onnx_ir")


def onnx_bytes(policy: WholePolicy, facts: Mapping[str, Any], *, where: str) -> bytes:
    """The file. `facts`: JSON values by name. Raises MissingPackage, and BadConfig for a network that has no form in ONNX."""
    try:
        import onnx
        import onnxruntime  # noqa: F401  the file is tried with it
        import onnxscript  # noqa: F401  torch.onnx needs it
    except ImportError as err:
        raise MissingPackage(f"the package {err.name} is missing", where="--to onnx", fix=INSTALL) from err
    with evaluating(policy), torch.no_grad(), _quiet():
        try:
            program = torch.onnx.export(
                policy,
                policy.zeros(TRACED),
                dynamo=True,
                verbose=False,
                input_names=policy.input_names,
                output_names=policy.output_names,
                dynamic_shapes={"inputs": tuple({0: torch.export.Dim("batch", min=1)} for _ in policy.input_names)},
            )
        except Exception as err:
            what = f"{type(policy.policy).__name__} has no form in ONNX: {_reason(err)}"
            raise BadConfig(
                what, where=where, fix="operations that torch.export knows; `--debug` shows where it stopped"
            ) from err
    assert program is not None, "dynamo gives a program"
    model: Any = program.model_proto
    _forget_this_machine(model.graph)
    model.producer_name, model.producer_version, model.doc_string = "offline-cli", "", ""
    onnx.helper.set_model_props(model, facts_as_metadata(facts))
    if model.ByteSize() > MAX_BYTES:
        raise BadConfig(f"a file of {model.ByteSize():,} bytes", where=where, fix=f"a network of at most {MAX_BYTES:,} bytes")
    content: bytes = model.SerializeToString(deterministic=True)
    return content


def difference(policy: WholePolicy, model: OnnxModel, observations: Space) -> float:
    """The greatest difference of `action_dist_inputs` between both, on invented observations at the start of an episode."""
    arrays = [np.ascontiguousarray(leaf) for leaf in leaves(sampled(observations, ROWS))]
    given = [*map(torch.from_numpy, arrays), *policy.zeros(ROWS)[len(arrays) :]]
    with evaluating(policy), torch.inference_mode():
        wanted = dict(zip(policy.output_names, policy(*given), strict=True))[INPUTS]
    found = model.run({name: tensor.numpy() for name, tensor in zip(policy.input_names, given, strict=True)})[INPUTS]
    return float(np.abs(found - wanted.numpy()).max(initial=0.0))


def _forget_this_machine(graph: Any) -> None:
    graph.name, graph.doc_string = "policy", ""
    del graph.metadata_props[:]
    for part in (*graph.node, *graph.value_info, *graph.input, *graph.output):
        part.doc_string = ""
        del part.metadata_props[:]
    del graph.value_info[:]


def _reason(err: BaseException) -> str:
    """The first line of what was raised first."""
    while err.__cause__ is not None:
        err = err.__cause__
    return f"{type(err).__name__}: {str(err).strip().partition(chr(10))[0]}"[:300]


@contextmanager
def _quiet() -> Iterator[None]:
    """Within it torch says nothing of its progress, nor of packages that are not needed here."""
    loggers = [logging.getLogger(name) for name in NOISY]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)

"""The files of a run: their names, JSON objects and tensors as bytes, and its checkpoint.

The tensors of a checkpoint by name:

    modules.policy.network.0.weight   parameters and buffers of every module
    adam.0.network.0.weight.exp_avg   of the optimizer of each group, by its number
    sum.nll                           losses added up since the last row of metrics
    best.network.0.weight             the policy of the best check
    refreshed.policy...               the modules that columns were last computed with, where they are recomputed
    generator, generator_cuda         torch's random generators

The counters of the run are metadata of the same file, so that both are of one moment.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any, Final

import torch
from safetensors.torch import save
from torch import Tensor

from offline_cli.datasets.file_names import RUN_CONFIG, RUN_POLICY
from offline_cli.errors import BadData
from offline_cli.safe_json import from_json
from offline_cli.storage.locations import Location
from offline_cli.storage.staging import whole_file

__all__ = ["BEST", "CONFIG", "CURVE", "LEARNED", "METRICS", "MODULES", "OF_POLICY", "POLICY", "REFRESHED", "RESULT", "STATE"]
__all__ += ["STEPPED", "TENSORS", "TRACKERS", "WEIGHTS", "check_learned", "checkpoint_bytes", "copy_into", "json_bytes"]
__all__ += ["json_object", "part", "prefixed", "state_in", "tensor_bytes"]

MODULES: Final = "modules."
BEST: Final = "best."
REFRESHED: Final = "refreshed."
OF_POLICY: Final = "policy."
STEPPED: Final = "stepped."  # of the policy, where what is kept is a moving average

TENSORS, STATE = "state.safetensors", "state.json"
COUNTERS: Final = "state"  # the key of the metadata
CONFIG, POLICY = RUN_CONFIG, RUN_POLICY
LEARNED, WEIGHTS, METRICS = "connectors.msgpack", "policy.safetensors", "metrics.jsonl"
RESULT, CURVE, TRACKERS = "result.json", "curve.png", "trackers.json"


def prefixed(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors under names with `prefix` before them."""
    return {f"{prefix}{name}": tensor for name, tensor in tensors.items()}


def part(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """Those whose names have `prefix`, without it."""
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}


def copy_into(own: Mapping[str, Tensor], tensors: Mapping[str, Tensor]) -> None:
    """Copy the tensors of the same names into `own`, in place, without gradients."""
    with torch.no_grad():
        for name, tensor in own.items():
            tensor.copy_(tensors[name])


def checkpoint_bytes(run: Location) -> tuple[int, bytes] | None:
    """Update and tensors of the checkpoint; None: there is none. Raises StorageError, BadData for a broken file."""
    content = whole_file(run.join(TENSORS))
    if content is None:
        return None
    try:
        return int(state_in(content)["update"]), content
    except (ValueError, TypeError, KeyError) as err:
        raise BadData(f"{TENSORS} cannot be read: {err}", where=run.url, fix="train again with --overwrite") from err


def state_in(checkpoint: bytes) -> dict[str, Any]:
    """The counters in a checkpoint's file. Raises ValueError, TypeError or KeyError for another file."""
    size = int.from_bytes(checkpoint[:8], "little")
    return json_object(json_object(checkpoint[8 : 8 + size])["__metadata__"][COUNTERS].encode())


def json_bytes(value: Mapping[str, Any]) -> bytes:
    """The file of a JSON object."""
    return (json.dumps(value) + "\n").encode()


def json_object(content: bytes) -> dict[str, Any]:
    """The object in such a file. Raises ValueError for other files."""
    loaded = from_json(content)
    if not isinstance(loaded, dict):
        raise ValueError("no JSON object")
    return loaded


def tensor_bytes(tensors: Mapping[str, Tensor], counters: str | None = None) -> bytes:
    """The safetensors file of `tensors`; `counters`: of a checkpoint, as JSON.

    By way of memory: the library's own writer reports a full disk as an error of the format.
    """
    metadata = None if counters is None else {COUNTERS: counters}
    return save({name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}, metadata)


def check_learned(content: bytes | None, told: Any) -> bytes:
    """`content`. Raises ValueError unless it (None: no file) is what the pieces learned, as policy.json says."""
    if content is None:
        raise ValueError(f"{LEARNED} is missing, which holds what its connector pieces learned")
    if not isinstance(told, dict) or hashlib.sha256(content).hexdigest() != told.get("state_sha256"):
        raise ValueError(f"{LEARNED} is not the one that {POLICY} was written with")
    return content

"""The files of a run: their names, JSON objects and tensors as bytes, and the newest whole checkpoint.

The tensors of a checkpoint by name:

    modules.policy.network.0.weight   parameters and buffers of every module
    adam.0.network.0.weight.exp_avg   of the optimizer of each group, by its number
    sum.nll                           losses added up since the last row of metrics
    best.network.0.weight             the policy of the best check
    refreshed.policy...               the modules that columns were last computed with, where they are recomputed
    generator, generator_cuda         torch's random generators

`newest_checkpoint` and `checkpoint_bytes` read the newest whole checkpoint, also while a trainer may replace it.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Final

import torch
from safetensors.torch import save
from torch import Tensor

from offline_cli.datasets.file_names import RUN_CONFIG, RUN_POLICY
from offline_cli.datasets.ownership import is_link
from offline_cli.errors import StorageNotFound
from offline_cli.json_documents import from_json
from offline_cli.storage.locations import Location

__all__ = [
    "BEST",
    "CHECKPOINT",
    "CHECKPOINTS",
    "CONFIG",
    "CURVE",
    "LEARNED",
    "METRICS",
    "MODULES",
    "POLICY",
    "REFRESHED",
    "RESULT",
    "STATE",
    "STEPPED",
    "TENSORS",
    "WEIGHTS",
    "check_learned",
    "checkpoint_bytes",
    "checkpoint_folders",
    "copy_into",
    "json_bytes",
    "json_object",
    "newest_checkpoint",
    "part",
    "prefixed",
    "tensor_bytes",
]

MODULES: Final = "modules."
BEST: Final = "best."
REFRESHED: Final = "refreshed."
OF_POLICY: Final = "policy."
STEPPED: Final = "stepped."  # of the policy, where what is kept is a moving average

CHECKPOINTS: Final = "checkpoints"
TENSORS, STATE = "tensors.safetensors", "state.json"
CHECKPOINT: Final = re.compile(r"(?P<update>[0-9]{9,18})a*", re.ASCII)
READS: Final = 5  # of a checkpoint that a trainer replaces meanwhile, before it counts as none

CONFIG, POLICY = RUN_CONFIG, RUN_POLICY
LEARNED, WEIGHTS, METRICS = "connectors.msgpack", "policy.safetensors", "metrics.jsonl"
RESULT, CURVE = "result.json", "curve.png"


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


def checkpoint_folders(run: Location) -> list[Location]:
    """The folders in the run that have names of checkpoints, in their order. Raises StorageError."""
    found = (child for child in run.join(CHECKPOINTS).children() if CHECKPOINT.fullmatch(child.name) and not is_link(child))
    return sorted(found, key=lambda child: child.name)


def newest_checkpoint(run: Location) -> Location | None:
    """The folder of the newest whole checkpoint; None: there is none. Raises StorageError."""
    return next((folder for folder in reversed(checkpoint_folders(run)) if folder.join(STATE).is_file()), None)


def checkpoint_bytes(run: Location) -> tuple[int, bytes] | None:
    """Update and tensors of the newest whole checkpoint, which may give way to a newer one while it is read.

    None: there is none. Raises StorageError.
    """
    for _ in range(READS):
        folder = newest_checkpoint(run)
        if folder is None:
            return None
        match = CHECKPOINT.fullmatch(folder.name)
        assert match is not None, "a checkpoint's name"
        with suppress(StorageNotFound):  # a newer one has just taken its place
            return int(match["update"]), folder.join(TENSORS).read_bytes()
    return None


def json_bytes(value: Mapping[str, Any]) -> bytes:
    """The file of a JSON object."""
    return (json.dumps(value) + "\n").encode()


def json_object(content: bytes) -> dict[str, Any]:
    """The object in such a file. Raises ValueError for other files."""
    loaded = from_json(content)
    if not isinstance(loaded, dict):
        raise ValueError("no JSON object")
    return loaded


def tensor_bytes(tensors: Mapping[str, Tensor]) -> bytes:
    """The safetensors file of `tensors`.

    By way of memory: the library's own writer reports a full disk as an error of the format.
    """
    return save({name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()})


def check_learned(content: bytes | None, told: Any) -> bytes:
    """`content`. Raises ValueError unless it (None: no file) is what the pieces learned, as policy.json says."""
    if content is None:
        raise ValueError(f"{LEARNED} is missing, which holds what its connector pieces learned")
    if not isinstance(told, dict) or hashlib.sha256(content).hexdigest() != told.get("state_sha256"):
        raise ValueError(f"{LEARNED} is not the one that {POLICY} was written with")
    return content

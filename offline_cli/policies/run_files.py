"""The files of a run: their names, JSON objects and tensors as sealed bytes, and the newest whole checkpoint.

A seal is the SHA-256 that a file carries of itself; a file whose bytes are not those that were written is an error that names
it. A writer leaves `BLANK` where the digest belongs, and `sealed` puts it there: the SHA-256 of the file with `BLANK` in its
place. So one seal covers every byte of the file, its own digits too. It shows damage, not malice: whoever changes a file on
purpose can seal it again. Files of earlier versions have no seal. They are read, and the caller is informed, so that it can say
so.

The tensors of a checkpoint by name:

    modules.policy.network.0.weight   parameters and buffers of every module
    adam.0.mean                       of the optimizer of each group, by its number
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
from collections.abc import Collection, Mapping
from contextlib import suppress
from typing import Any, Final

import torch
from safetensors.torch import load, save
from torch import Tensor

from offline_cli.datasets.file_names import RUN_CONFIG, RUN_MODULES, RUN_POLICY
from offline_cli.datasets.ownership import is_link
from offline_cli.errors import StorageNotFound
from offline_cli.files.locations import Location
from offline_cli.json_documents import from_json

__all__ = [
    "BEST",
    "BLANK",
    "CHECKPOINT",
    "CHECKPOINTS",
    "CONFIG",
    "CURVE",
    "LEARNED",
    "METRICS",
    "MODULES",
    "MODULES_FILE",
    "MODULES_FOLDER",
    "OF_TENSORS",
    "POLICY",
    "POLICY_KEYS",
    "REFRESHED",
    "RESULT",
    "SEAL",
    "STATE",
    "STEPPED",
    "TENSORS",
    "UNSEALED",
    "WEIGHTS",
    "check_learned",
    "check_seal",
    "checkpoint_bytes",
    "checkpoint_folders",
    "copy_into",
    "is_digest",
    "json_bytes",
    "json_object",
    "newest_checkpoint",
    "part",
    "policy_weights",
    "prefixed",
    "seal_of",
    "sealed",
    "tensor_bytes",
    "tensors_of",
    "unsealed",
]

SEAL: Final = "sha256"  # the key of the digest
BLANK: Final = "0" * 64
_DIGEST: Final = re.compile(r"[0-9a-f]{64}", re.ASCII)

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
MODULES_FILE, MODULES_FOLDER = RUN_MODULES, "modules"  # of a run of several modules, each a run folder in there
RESULT, CURVE = "result.json", "curve.png"
POLICY_KEYS: Final = frozenset(
    ("format", "version", "observation_space", "action_space", "action_scale", "hidden", "activation", "environment")
) | {"uint8_scaling", "pipeline"}
OF_TENSORS: Final = "tensors_sha256"  # in state.json: the seal of the tensors beside it
UNSEALED: Final = "note: files of the run %s carry no hash, as earlier versions wrote them: damage to these cannot be seen"
METADATA: Final = "__metadata__"  # of safetensors: text by name


def is_digest(value: Any) -> bool:
    """Whether `value` is text that can be a SHA-256 in hex."""
    return isinstance(value, str) and _DIGEST.fullmatch(value) is not None


def sealed(content: bytes) -> bytes:
    """`content` with its digest where the first `BLANK` is."""
    at = content.index(BLANK.encode())
    digest = hashlib.sha256(content).hexdigest().encode()
    return b"".join((content[:at], digest, memoryview(content)[at + len(digest) :]))


def check_seal(content: bytes, digest: Any) -> None:
    """Raise ValueError unless `digest`, read from `content`, is the one that `sealed` put there."""
    at = content.find(digest.encode()) if is_digest(digest) else -1
    if at >= 0:
        found = hashlib.sha256(content[:at])
        found.update(BLANK.encode())
        found.update(memoryview(content)[at + len(BLANK) :])
        if found.hexdigest() == digest:
            return
    raise ValueError("it is damaged: its bytes are not those that were written, by the SHA-256 in it")


def unsealed(document: dict[str, Any], content: bytes, known: Collection[str]) -> tuple[dict[str, Any], bool]:
    """The JSON object in `content` without its seal, which fits, and whether it has one.

    Raises ValueError. One without a seal, as earlier versions wrote them, has no keys but `known` ones: else a seal whose name
    is damaged would be none.
    """
    if SEAL in document:
        check_seal(content, document[SEAL])
        return {name: value for name, value in document.items() if name != SEAL}, True
    strange = sorted(document.keys() - set(known))
    if strange:
        raise ValueError(f"it is damaged: it has no {SEAL}, and {strange[0]!r}, which nothing has written")
    return document, False


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


def policy_weights(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The state of the policy in a checkpoint."""
    return part(tensors, f"{MODULES}{OF_POLICY}")


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
    """The file of a JSON object, with a seal."""
    return sealed((json.dumps({SEAL: BLANK, **value}) + "\n").encode())


def json_object(content: bytes, known: Collection[str]) -> tuple[dict[str, Any], bool]:
    """The object in such a file, and whether a seal was in it; `known`: keys that one without it may have.

    Raises ValueError for other and for damaged files.
    """
    loaded = from_json(content)
    if not isinstance(loaded, dict):
        raise ValueError("no JSON object")
    return unsealed(loaded, content, known)


def tensor_bytes(tensors: Mapping[str, Tensor]) -> bytes:
    """The safetensors file of `tensors`, with a seal among its metadata.

    By way of memory: the library's own writer reports a full disk as an error of the format.
    """
    own = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}
    return sealed(save(own, metadata={SEAL: BLANK}))


def tensors_of(content: bytes) -> tuple[dict[str, Tensor], bool]:
    """The tensors in a safetensors file, and whether a seal was in it. Raises ValueError, SafetensorError for damaged ones."""
    digest = seal_of(content)
    if digest is not None:
        check_seal(content, digest)
    return load(content), digest is not None


def seal_of(content: bytes) -> Any:
    """What stands in the place of a seal; None: nothing does."""
    size = int.from_bytes(content[:8], "little")
    header = from_json(content[8 : 8 + size]) if size <= len(content) - 8 else None
    metadata = header.get(METADATA) if isinstance(header, dict) else None
    if not isinstance(metadata, dict):
        return None  # and what is wrong beyond that, the library says
    if SEAL in metadata:
        return metadata[SEAL]
    return "" if any(map(is_digest, metadata.values())) else None  # a seal whose name is damaged


def check_learned(content: bytes | None, told: Any) -> None:
    """Raise ValueError unless `content` (None: no file) is what the pieces learned, as policy.json says."""
    if content is None:
        raise ValueError(f"{LEARNED} is missing, which holds what its connector pieces learned")
    if not isinstance(told, dict) or hashlib.sha256(content).hexdigest() != told.get("state_sha256"):
        raise ValueError(f"{LEARNED} is not the one that {POLICY} was written with")

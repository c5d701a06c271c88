"""The files of a run as bytes, and back: JSON objects and tensors, sealed; refuses those that are damaged, by name.

Files of earlier versions have no seal. They are read, and the caller is told, so that it can say so.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Mapping
from typing import Any, Final

from safetensors.torch import load, save
from torch import Tensor

from offline_cli.json_documents import from_json
from offline_cli.storage.layout import RUN_CONFIG, RUN_POLICY
from offline_cli.storage.seals import BLANK, SEAL, check_seal, is_digest, sealed, unsealed

__all__ = [
    "CONFIG",
    "CURVE",
    "LEARNED",
    "METRICS",
    "OF_TENSORS",
    "POLICY",
    "POLICY_KEYS",
    "RESULT",
    "UNSEALED",
    "WEIGHTS",
    "check_learned",
    "json_bytes",
    "json_object",
    "seal_of",
    "tensor_bytes",
    "tensors_of",
]

CONFIG, POLICY = RUN_CONFIG, RUN_POLICY
LEARNED, WEIGHTS, METRICS = "connectors.msgpack", "policy.safetensors", "metrics.jsonl"
RESULT, CURVE = "result.json", "curve.png"
POLICY_KEYS: Final = frozenset(
    ("format", "version", "observation_space", "action_space", "action_scale", "hidden", "activation", "environment")
) | {"uint8_scaling", "pipeline"}
OF_TENSORS: Final = "tensors_sha256"  # in state.json: the seal of the tensors beside it
UNSEALED: Final = "note: files of the run %s carry no hash, as earlier versions wrote them: damage to these cannot be seen"
METADATA: Final = "__metadata__"  # of safetensors: text by name


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
    """Raise ValueError unless `content` (None: no file) is what the pieces learned of whose pipeline policy.json tells so."""
    if content is None:
        raise ValueError(f"{LEARNED} is missing, which holds what its connector pieces learned")
    if not isinstance(told, dict) or hashlib.sha256(content).hexdigest() != told.get("state_sha256"):
        raise ValueError(f"{LEARNED} is not the one that {POLICY} was written with")

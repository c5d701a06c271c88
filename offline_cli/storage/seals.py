"""Seals: the SHA-256 that a file carries of itself; refuses a file whose bytes are not those that were written.

A writer leaves `BLANK` where the digest belongs, and `sealed` puts it there: the SHA-256 of the file with `BLANK` in its place.
So one seal covers every byte of the file, its own digits too. It tells of damage, not of malice: whoever changes a file on
purpose can seal it again.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection
from typing import Any, Final

__all__ = ["BLANK", "SEAL", "check_seal", "is_digest", "sealed", "unsealed"]

SEAL: Final = "sha256"  # the key of the digest
BLANK: Final = "0" * 64
_DIGEST: Final = re.compile(r"[0-9a-f]{64}", re.ASCII)


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

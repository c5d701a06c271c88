"""JSON as Python's own writer makes it, NaN and Infinity included; refuses what no other program could take over from there.

Python's parser follows any nesting until its stack ends, and takes halves of surrogate pairs for letters, which neither
UTF-8 nor msgpack nor Arrow can hold. Both are told here, as the ValueErrors that broken JSON raises anyway.
"""

from __future__ import annotations

import json
import re
from itertools import chain
from typing import Any

__all__ = ["deeper_than", "from_json"]

SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")  # of an escape that may be half of a letter


def from_json(text: str | bytes) -> Any:
    """The value of `text` (bytes: UTF-8). Raises ValueError where it is no JSON, nests too deeply, or holds half letters."""
    plain = text.decode("utf-8") if isinstance(text, bytes) else text
    try:
        value = json.loads(plain)
        if SURROGATE.search(plain):
            json.dumps(value, ensure_ascii=False).encode("utf-8")
    except RecursionError as err:
        raise ValueError("nested too deeply") from err
    return value


def deeper_than(document: Any, depth: int) -> bool:
    """Whether lists and objects are nested deeper than `depth`: a validator goes as deep as they do, and Python does not."""
    level = [document] if isinstance(document, (dict, list)) else []
    for _ in range(depth):
        parts = (node.values() if isinstance(node, dict) else node for node in level)
        level = [part for part in chain.from_iterable(parts) if isinstance(part, (dict, list))]
        if not level:
            return False
    return bool(level)

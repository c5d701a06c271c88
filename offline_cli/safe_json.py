"""JSON of other programs, parsed so that every program can read it again.

Python's parser follows any nesting until its stack ends, and accepts lone surrogates, which neither UTF-8 nor msgpack nor Arrow
can hold: both raise the ValueErrors that broken JSON raises anyway. NaN and Infinity are read.
"""

from __future__ import annotations

import json
import re
from itertools import chain
from typing import Any, Final

SURROGATE: Final = re.compile(r"\\u[dD][89a-fA-F]")  # of an escape that may be half of a letter


def from_json(text: str | bytes) -> Any:
    """The value of `text` (bytes: UTF-8). Raises ValueError where it is not JSON, nests too deeply, or holds half letters."""
    plain = text.decode("utf-8") if isinstance(text, bytes) else text
    try:
        value = json.loads(plain)
        if SURROGATE.search(plain):
            json.dumps(value, ensure_ascii=False).encode("utf-8")
    except RecursionError as err:
        raise ValueError("nested too deeply") from err
    return value


def json_or_text(text: str) -> Any:
    """The JSON value that `text` is; the text where it is none."""
    try:
        return from_json(text)
    except ValueError:
        return text


def deeper_than(document: Any, depth: int) -> bool:
    """Whether lists and objects are nested deeper than `depth`: a validator goes as deep as they do, and Python does not."""
    level = [document] if isinstance(document, (dict, list)) else []
    for _ in range(depth):
        parts = (node.values() if isinstance(node, dict) else node for node in level)
        level = [part for part in chain.from_iterable(parts) if isinstance(part, (dict, list))]
    return bool(level)

"""Edits that keep a format's frame and change what is in it: msgpack nodes, text tokens, pickle instructions, space bounds.

Mutated bytes alone rarely get past a parser. Each structured mutator takes bytes, makes one to four edits, and gives bytes;
where the input is not of its format any more it falls back to bytes. All chance comes from the random.Random that is passed
in, so that an input can be made again from its seed.
"""

from __future__ import annotations

import base64
import copy
import math
import pickletools
import random
import re
from collections.abc import Callable
from typing import Any

import lz4.frame
import msgpack

__all__ = ["MUTATORS", "Mutator", "any_bytes"]

Mutator = Callable[[bytes, random.Random], bytes]

NUMBERS = (0, 1, 2, -1, 255, 1 << 31, (1 << 31) - 1, 1 << 32, 1 << 53, 1 << 62, (1 << 63) - 1, -(1 << 63), (1 << 64) - 1)
FLOATS = (0.5, -0.0, 1e308, 5e-324, math.nan, math.inf, -math.inf)
TEXTS = ("", "e", "obs", "\x00", "../../etc/passwd", "a" * 300, "\u202e", "nan", "data/shard-00000000-000000.parquet")
TYPES = ("|O", "O", "f8,O", "<f4", ">f8", "|b1", "<U4", "|S0", "|V8", "<M8[s]", "(2,)<f4", "<f16", "<i0", "<u3", "<c16")


def any_bytes(data: bytes, rng: random.Random) -> bytes:
    """Flipped, cut, copied, doubled, inserted bytes: what a broken disk does, and more."""
    work = bytearray(data)
    for _ in range(rng.randint(1, 4)):
        rng.choice(BYTE_EDITS)(work, rng)
    return bytes(work)


def _flip(work: bytearray, rng: random.Random) -> None:
    if work:
        work[rng.randrange(len(work))] ^= 1 << rng.randrange(8)


def _set(work: bytearray, rng: random.Random) -> None:
    if work:
        work[rng.randrange(len(work))] = rng.choice((0, 1, 0x7F, 0x80, 0xC1, 0xFF, rng.randrange(256)))


def _insert(work: bytearray, rng: random.Random) -> None:
    at = rng.randint(0, len(work))
    work[at:at] = rng.randbytes(rng.choice((1, 1, 2, 4, 8)))


def _cut(work: bytearray, rng: random.Random) -> None:
    at = rng.randint(0, len(work))
    del work[at : at + rng.choice((1, 1, 2, 4, 16, len(work)))]


def _copy(work: bytearray, rng: random.Random) -> None:
    start, at = rng.randint(0, len(work)), rng.randint(0, len(work))
    work[at:at] = work[start : start + rng.choice((1, 4, 16, 64))]


BYTE_EDITS = (_flip, _set, _insert, _cut, _copy)


# ---- msgpack ----


def msgpack_nodes(data: bytes, rng: random.Random) -> bytes:
    """A msgpack tree with a few of its nodes replaced, removed, doubled, exchanged or wrapped."""
    try:
        tree = msgpack.unpackb(data, strict_map_key=False)
    except (ValueError, TypeError, msgpack.exceptions.UnpackException):
        return any_bytes(data, rng)
    for _ in range(rng.randint(1, 3)):
        tree = _edited(tree, rng, bytes_too=True)
    try:
        packed: bytes = msgpack.packb(tree)
    except (ValueError, TypeError, OverflowError, RecursionError):
        return any_bytes(data, rng)
    return packed if rng.random() < 0.9 else any_bytes(packed, rng)


def _edited(tree: Any, rng: random.Random, *, bytes_too: bool) -> Any:
    """`tree` with one edit at a node chosen by chance."""
    nodes = list(_containers(tree))
    if not nodes:
        return _value(rng, bytes_too)
    parent = rng.choice(nodes)
    keys = list(parent) if isinstance(parent, dict) else list(range(len(parent)))
    if not keys or rng.random() < 0.1:
        _add(parent, rng, bytes_too)
        return tree
    key = rng.choice(keys)
    kind = rng.randrange(8)
    if kind < 3:
        parent[key] = _near(parent[key], rng, bytes_too)
    elif kind == 3:
        del parent[key]
    elif kind == 4:
        parent[key] = _copied(_some_value(tree, rng))
    elif kind == 5:
        other = rng.choice(keys)
        parent[key], parent[other] = parent[other], parent[key]
    elif kind == 6:
        for _ in range(rng.choice((1, 1, 2, 20, 200))):
            parent[key] = [parent[key]] if rng.random() < 0.5 else {"a": parent[key]}
    else:
        _add(parent, rng, bytes_too)
    return tree


def _containers(tree: Any) -> list[Any]:
    found, waiting = [], [tree]
    while waiting:
        node = waiting.pop()
        if isinstance(node, (dict, list)):
            found.append(node)
            waiting.extend(node.values() if isinstance(node, dict) else node)
    return found


def _copied(value: Any) -> Any:
    """A value of its own; None for one that is nested too deep to be copied."""
    try:
        return copy.deepcopy(value)
    except RecursionError:
        return None


def _some_value(tree: Any, rng: random.Random) -> Any:
    parent = rng.choice(_containers(tree))
    parts = list(parent.values()) if isinstance(parent, dict) else parent
    return rng.choice(parts) if parts else parent


def _add(parent: Any, rng: random.Random, bytes_too: bool) -> None:
    value = _copied(_some_value(parent, rng)) if rng.random() < 0.5 else _value(rng, bytes_too)
    if isinstance(parent, list):
        parent[rng.randint(0, len(parent)) :] += [value] * rng.choice((1, 1, 2, 50))
    else:
        parent[rng.choice(TEXTS)] = value


def _near(value: Any, rng: random.Random, bytes_too: bool) -> Any:
    """Another value, often one that is almost the same."""
    if rng.random() < 0.4:
        return _value(rng, bytes_too)
    if isinstance(value, bool) or value is None:
        return rng.choice((True, False, None, 1, 0))
    if isinstance(value, int):
        return max(-(1 << 63), min((1 << 64) - 1, value + rng.choice((-1, 1, -value, value, 1 << 32))))
    if isinstance(value, float):
        return rng.choice(FLOATS)
    if isinstance(value, bytes):
        return any_bytes(value, rng)
    if isinstance(value, str):
        return (
            rng.choice(TYPES)
            if rng.random() < 0.3
            else any_bytes(value.encode("utf-8", "replace"), rng).decode("utf-8", "replace")
        )
    return rng.choice(([], {}, [value], list(value)))


def _value(rng: random.Random, bytes_too: bool) -> Any:
    plain = (rng.choice(NUMBERS), rng.choice(FLOATS), rng.choice(TEXTS), rng.choice(TYPES), None, True, [], {})
    node = {
        b"nd": rng.choice((True, False)),
        b"type": rng.choice(TYPES),
        b"kind": b"",
        b"shape": [rng.choice(NUMBERS)],
        b"data": b"\1" * 8,
    }
    return rng.choice((*plain, rng.choice((b"", b"\xff" * 8)), node) if bytes_too else plain)


# ---- texts: JSON, TOML, CSV ----

TOKEN = re.compile(rb'"(?:[^"\\]|\\.)*"|-?[0-9][0-9.eE+-]*|[A-Za-z_]+|\s+|.', re.DOTALL)
# fmt: off
STRANGE = (
    *(str(number).encode() for number in NUMBERS),
    *(b"1e400 -1e400 1e-400 9999999999999999999999999 -0 00 0x10 1_000 .5 5. +1".split()),
    *(b"NaN -Infinity Infinity nan inf null true false".split()),
    *(b'"" "\\ud800" "\\u0000" "a\\nb" "\xff\xfe" "BCJN" "obs" "1" "NaN" "../../etc/passwd"'.split()),
    *(b"[] {} [[]] [{}] {\"a\":1} [null] , : [ ] { } \" ' # = \n \r\n \t ; |".split(b" ")),
    b"[" * 60, b"[" * 3000, b'{"a":' * 60, b'{"a":' * 3000, b"\xef\xbb\xbf", b"\x00", b"\xff", b'"' + b"a" * 2000 + b'"',
)
# fmt: on


def text_tokens(data: bytes, rng: random.Random) -> bytes:
    """A text with a few of its tokens replaced, removed, doubled, exchanged."""
    tokens = TOKEN.findall(data)
    for _ in range(rng.randint(1, 4)):
        if not tokens:
            break
        at, other = rng.randrange(len(tokens)), rng.randrange(len(tokens))
        kind = rng.randrange(7)
        if kind < 2:
            tokens[at] = rng.choice(STRANGE)
        elif kind == 2:
            del tokens[at : at + rng.choice((1, 1, 2, 8))]
        elif kind == 3:
            tokens[at:at] = tokens[other : other + rng.choice((1, 2, 8, 40))]
        elif kind == 4:
            tokens[at], tokens[other] = tokens[other], tokens[at]
        elif kind == 5:
            tokens[at:at] = [rng.choice(STRANGE)]
        else:
            tokens[at] = any_bytes(tokens[at], rng)
    return b"".join(tokens)


# ---- packed cells ----


def pickle_instructions(data: bytes, rng: random.Random) -> bytes:
    """A pickle with a few of its instructions removed, doubled, exchanged, or other ones put between them."""
    try:
        ends = [position for _, _, position in pickletools.genops(data)]
    except Exception:  # noqa: BLE001  whatever it is, it is no pickle any more
        return any_bytes(data, rng)
    parts = [data[a:b] for a, b in zip(ends, [*ends[1:], len(data)], strict=True)]
    for _ in range(rng.randint(1, 4)):
        at, other = rng.randrange(len(parts)), rng.randrange(len(parts))
        kind = rng.randrange(6)
        if kind == 0:
            del parts[at]
        elif kind == 1:
            parts.insert(at, parts[other])
        elif kind == 2:
            parts[at], parts[other] = parts[other], parts[at]
        elif kind == 3:
            parts.insert(at, rng.choice(INSTRUCTIONS))
        elif kind == 4:
            parts[at] = parts[at][:1] + any_bytes(parts[at][1:], rng)
        else:
            parts[at] = rng.choice(INSTRUCTIONS)
        if not parts:
            break
    return b"".join(parts)


# fmt: off
INSTRUCTIONS = (
    b"(", b")", b"]", b"}", b"N", b"\x88", b"\x89", b"0", b"2", b"\x85", b"\x86", b"\x87", b"t", b"l", b"d", b"e", b"u", b"a",
    b"s", b"R", b"b", b"o", b"\x81", b"\x92", b"\x90", b"\x8f", b"\x94", b"h\x00", b"q\x00", b"K\x01", b"J\xff\xff\xff\x7f",
    b"M\xff\xff", b"\x8a\x09" + b"\xff" * 8 + b"\x7f", b"C\x08\x01\x02\x03\x04\x05\x06\x07\x08", b"X\x02\x00\x00\x00O8",
    b"\x8c\x02f8", b"Pid\n", b"cos\nsystem\n", b"cbuiltins\neval\n", b"cbuiltins\nbytearray\n", b"cnumpy\nndarray\n",
    b"cnumpy\ndtype\n", b"\x93", b"\x96" + b"\xff" * 8, b"c_codecs\nencode\n", b"cnumpy.core.multiarray\nscalar\n",
    b"cnumpy.core.multiarray\n_reconstruct\n", b"cbuiltins\nset\n", b"\x95" + b"\xff" * 8,
    b"cnumpy.core.numeric\n_frombuffer\n", b"ccollections\nOrderedDict\n", b"G\x7f\xf8\x00\x00\x00\x00\x00\x00",
)
# fmt: on


def packed_text(data: bytes, rng: random.Random) -> bytes:
    """A packed cell whose frame or pickle was edited and packed again, or whose text was."""
    try:
        frame = base64.b64decode(data, validate=True)
        inside = lz4.frame.decompress(frame)
    except Exception:  # noqa: BLE001  no cell any more
        return any_bytes(data, rng)
    if len(inside) > 1 << 20 or rng.random() < 0.2:
        return base64.b64encode(any_bytes(frame, rng))
    edited = pickle_instructions(inside, rng) if rng.random() < 0.7 else any_bytes(inside, rng)
    return base64.b64encode(lz4.frame.compress(edited, store_size=rng.random() < 0.5))


MUTATORS: dict[str, Mutator] = {
    "episode": msgpack_nodes,
    "episodes": msgpack_nodes,
    "cell": packed_text,
    "objects": pickle_instructions,
    "sample-batch": text_tokens,
    "space-json": text_tokens,
    "space-rllib": msgpack_nodes,
    "manifest": text_tokens,
    "mapping": text_tokens,
    "pipeline": text_tokens,
    "csv-table": text_tokens,
    "json-table": text_tokens,
}
"""By target: the structured mutator that takes turns with plain bytes."""

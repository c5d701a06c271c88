"""Convert gymnasium spaces to and from JSON and RLlib's dict form; raises UnsupportedSpace for spaces episodes cannot store.

Supported for observations and actions: Box of any dtype and rank, Discrete, MultiDiscrete, MultiBinary, and nested Dict
and Tuple of these. Not supported: Text, Graph, Sequence and OneOf. The two serialized forms:

* JSON (manifests, schemas/): readable, equal bounds as one number, infinities as "inf" and "-inf".
* RLlib's `gym_space_to_dict` (inside episode bytes): bounds as base64 of zlib of a .npy file. They are untrusted: bounds that
  would build objects, or inflate to another size than their header says, raise UnsafeData.
"""

from __future__ import annotations

import base64
import io
import math
import re
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from numpy.lib import format as npy
from numpy.typing import NDArray

from offline_cli.errors import BadEpisode, UnsafeData, UnsupportedSpace
from offline_cli.trees import Tree

Space = gym.Space[Any]
MAX_DEPTH: Final = 16
MAX_COUNT: Final = np.iinfo(np.int64).max  # choices of a Discrete
MAX_VALUE_BYTES: Final = 1 << 40  # of a single value; a larger one is treated as an attack
MAX_BOUND_BYTES: Final = 64 << 20  # of one bound; likewise
PLAIN_DTYPE: Final = re.compile(r"[<>=|]?[biuf][0-9]{1,2}|bool|u?int(?:8|16|32|64)|float(?:16|32|64|96|128)", re.ASCII)


def check_supported(space: Space, *, where: str) -> None:
    """Raise UnsupportedSpace, naming the part, unless every leaf of `space` can be stored."""
    for path, leaf in leaf_spaces(space).items():
        if not isinstance(leaf, (spaces.Box, spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary)):
            name = f"{where}, part {path!r}" if path else where
            raise UnsupportedSpace(
                f"{type(leaf).__name__} spaces cannot be stored in episodes",
                where=name,
                fix="wrap the environment so that this part is a Box, Discrete, MultiDiscrete, MultiBinary, Dict or Tuple",
            )


def only_discrete(space: Space) -> bool:
    """Whether an action space has no float Box, so that there is only one action scale."""
    return not any(isinstance(leaf, spaces.Box) and np.dtype(leaf.dtype).kind == "f" for leaf in leaf_spaces(space).values())


def leaf_spaces(space: Space, prefix: str = "") -> dict[str, Space]:
    """The leaf spaces by dotted path, depth first; the path of a bare leaf is `prefix`."""
    if isinstance(space, spaces.Dict):
        parts = [(str(key), part) for key, part in space.spaces.items()]
    elif isinstance(space, spaces.Tuple):
        parts = [(str(index), part) for index, part in enumerate(space.spaces)]
    else:
        return {prefix: space}
    found: dict[str, Space] = {}
    for name, part in parts:
        found |= leaf_spaces(part, f"{prefix}.{name}" if prefix else name)
    return found


def map_space(fn: Callable[[Space], Space], space: Space) -> Space:
    """A space of the same structure whose leaves are `fn(leaf)`, depth first."""
    if isinstance(space, spaces.Dict):
        return spaces.Dict([(key, map_space(fn, part)) for key, part in space.spaces.items()])
    return spaces.Tuple([map_space(fn, part) for part in space.spaces]) if isinstance(space, spaces.Tuple) else fn(space)


def bound_bytes(space: Space | None) -> int:
    """Size in memory of the bounds of `space`, in bytes."""
    leaves = () if space is None else leaf_spaces(space).values()
    arrays = (getattr(leaf, name, None) for leaf in leaves for name in ("low", "high", "nvec"))
    return sum(array.nbytes for array in arrays if array is not None)


def same_space(left: Space | None, right: Space | None) -> bool:
    """Whether structure, bounds and dtypes are equal (gymnasium's == tolerates small differences in bounds)."""
    if left is None or right is None:
        return left is right
    return left is right or space_to_json(left) == space_to_json(right)


def describe(space: Space | None) -> str:
    """One readable line: `Box(4, float32)`, `Dict(camera: Box(84x84x3, uint8), arm: Discrete(3))`."""
    match space:
        case None:
            return "unknown"
        case spaces.Box():
            return f"Box({'x'.join(map(str, space.shape)) or 'scalar'}, {space.dtype})"
        case spaces.Discrete():
            return f"Discrete({space.n}{f', start={space.start}' if space.start else ''})"
        case spaces.MultiDiscrete():
            return f"MultiDiscrete({space.nvec.tolist()})"
        case spaces.MultiBinary():
            return f"MultiBinary({space.n})"
        case spaces.Dict():
            return "Dict(" + ", ".join(f"{key}: {describe(part)}" for key, part in space.spaces.items()) + ")"
        case spaces.Tuple():
            return "Tuple(" + ", ".join(describe(part) for part in space.spaces) + ")"
    return str(space)


# ---- JSON ----


def space_to_json(space: Space) -> dict[str, Any]:
    """`space` as plain JSON values (schemas/spaces.v1.json). Raises UnsupportedSpace."""
    match space:
        case spaces.Box():
            return {
                "type": "Box",
                "shape": list(space.shape),
                "dtype": str(space.dtype),
                "low": _bound_to_json(space.low),
                "high": _bound_to_json(space.high),
            }
        case spaces.Discrete():
            return {"type": "Discrete", "n": int(space.n), "start": int(space.start), "dtype": str(space.dtype)}
        case spaces.MultiDiscrete():
            return {
                "type": "MultiDiscrete",
                "nvec": space.nvec.tolist(),
                "start": space.start.tolist(),
                "dtype": str(space.dtype),
            }
        case spaces.MultiBinary():
            return {"type": "MultiBinary", "n": _plain_n(space.n)}
        case spaces.Dict():  # pairs, not an object: the order of keys is part of the space
            return {"type": "Dict", "spaces": [[key, space_to_json(part)] for key, part in space.spaces.items()]}
        case spaces.Tuple():
            return {"type": "Tuple", "spaces": [space_to_json(part) for part in space.spaces]}
    check_supported(space, where=str(space))
    raise AssertionError(space)  # check_supported refuses every other type


def space_from_json(node: Mapping[str, Any], *, where: str) -> Space:
    """Parse a space from JSON values. Raises UnsupportedSpace for invalid types and values."""
    try:
        return _built(node, _SpaceForm(where, is_rllibs=False))
    except UnsupportedSpace:
        raise
    except NO_SPACE as err:
        raise UnsupportedSpace(f"not a space: {err!r}", where=where, fix="see schemas/spaces.v1.json for the form") from err


def _bound_to_json(bound: NDArray[Any]) -> Any:
    first = (0,) * bound.ndim  # `flat` supports only 32 dimensions
    if bound.size and (bound == bound[first]).all():
        value = bound[first].item()
        return str(value) if isinstance(value, float) and not np.isfinite(value) else value
    return [_bound_to_json(row) for row in bound] if bound.ndim else []


def _bound_from_json(value: Any, shape: tuple[int, ...], dtype: Any) -> NDArray[Any]:
    if not isinstance(value, list):
        return np.full(shape, float(value) if isinstance(value, str) else value, dtype)
    if not shape:
        raise ValueError("a list instead of a number")
    rows = [_bound_from_json(row, shape[1:], dtype) for row in value]
    return np.stack(rows).reshape(shape) if rows else np.zeros(shape, dtype)


def _plain_n(n: Any) -> Any:
    return n.tolist() if isinstance(n, np.ndarray) else list(map(int, n)) if isinstance(n, (tuple, list)) else int(n)


def _plain_dtype(name: Any) -> Any:
    """The numeric dtype of that name; `Any` because gymnasium's signatures demand type objects but accept dtypes."""
    if not PLAIN_DTYPE.fullmatch(str(name)):  # numpy accepts more: `f4,O` is a record dtype with objects
        raise ValueError(f"dtype {str(name)[:40]!r}")
    return np.dtype(str(name))


# ---- RLlib's dict form (ray.rllib.utils.serialization.gym_space_to_dict) ----


def space_to_rllib(space: Space) -> dict[str, Any]:
    """`space` in the form of RLlib's `gym_space_from_dict`. Raises UnsupportedSpace."""
    match space:
        case spaces.Box():
            return {
                "space": "box",
                "low": _bound_to_rllib(space.low),
                "high": _bound_to_rllib(space.high),
                "shape": list(space.shape),
                "dtype": np.dtype(space.dtype).str,
            }
        case spaces.Discrete():
            plain = {"space": "discrete", "n": int(space.n), "start": int(space.start)}
            return plain if space.dtype == np.int64 else {**plain, "dtype": np.dtype(space.dtype).str}
        case spaces.MultiDiscrete():
            plain = {"space": "multi-discrete", "nvec": _bound_to_rllib(space.nvec), "dtype": np.dtype(space.dtype).str}
            # RLlib's writer drops `start`, but its reader passes extra keys on to gymnasium, so ours is kept.
            return {**plain, "start": space.start.tolist()} if space.start.any() else plain
        case spaces.MultiBinary():
            return {"space": "multi-binary", "n": _plain_n(space.n)}
        case spaces.Dict():
            return {"space": "dict", "spaces": {key: space_to_rllib(part) for key, part in space.spaces.items()}}
        case spaces.Tuple():
            return {"space": "tuple", "spaces": [space_to_rllib(part) for part in space.spaces]}
    check_supported(space, where=str(space))
    raise AssertionError(space)  # check_supported refuses every other type


def space_from_rllib(node: Mapping[str, Any], *, where: str) -> Space:
    """Parse a space from RLlib's dict form, without pickle.

    Raises UnsupportedSpace for other space types, UnsafeData for bounds that are no plain arrays, BadEpisode for other values.
    """
    try:
        return _built(node, _SpaceForm(where, is_rllibs=True))
    except (BadEpisode, UnsafeData, UnsupportedSpace):
        raise
    except NO_SPACE as err:
        raise BadEpisode(f"not a space: {err!r}", where=where, fix="write the file again from its source") from err


# ---- building spaces from either form ----

NO_SPACE: Final = (KeyError, TypeError, ValueError, AssertionError, AttributeError, OverflowError, MemoryError)
"""Exceptions for invalid space values, including gymnasium's."""


@dataclass(frozen=True, slots=True)
class _SpaceForm:
    """One of the two serialized forms."""

    where: str
    is_rllibs: bool

    def bound(self, value: Any, shape: tuple[int, ...], dtype: Any) -> NDArray[Any]:
        """A bound of a Box."""
        return self.counts(value).astype(dtype).reshape(shape) if self.is_rllibs else _bound_from_json(value, shape, dtype)

    def counts(self, value: Any) -> NDArray[Any]:
        """The `nvec` of a MultiDiscrete. RLlib's is an encoded .npy file; raises UnsafeData unless it holds plain numbers,
        and as many bytes as its header says."""
        if not self.is_rllibs:
            return np.asarray(value)
        try:
            raw = zlib.decompressobj().decompress(base64.b64decode(value, validate=True), MAX_BOUND_BYTES)
            file = io.BytesIO(raw)
            if npy.read_magic(file) != (1, 0):
                raise ValueError(".npy version other than 1.0")
            shape, is_fortran, dtype = npy.read_array_header_1_0(file)
            if dtype.kind not in "biuf" or math.prod(shape) * dtype.itemsize != len(raw) - file.tell():
                raise ValueError(f"{len(raw) - file.tell()} bytes for {dtype}{shape}")
            return np.frombuffer(raw, dtype, offset=file.tell()).reshape(shape, order="F" if is_fortran else "C")
        except Exception as err:  # numpy's header parser raises many types
            fix = "write the file again from its source"
            raise UnsafeData(f"a space bound is not a plain array: {err}", where=self.where, fix=fix) from err

    def parts(self, value: Any) -> list[tuple[str, Any]]:
        """The parts of a Dict, by key."""
        found = list(value.items()) if self.is_rllibs else [(str(key), part) for key, part in value]
        if not all(isinstance(key, str) for key, _ in found):
            raise TypeError("a key is not a string")
        return found


def _bound_to_rllib(array: NDArray[Any]) -> str:
    buffer = io.BytesIO()
    np.save(buffer, array, allow_pickle=False)
    return base64.b64encode(zlib.compress(buffer.getvalue())).decode("ascii")


def _built(node: Any, form: _SpaceForm, *, depth: int = 0) -> Space:
    if not isinstance(node, dict):  # arrays and strings can be indexed too
        raise TypeError(f"a {type(node).__name__} instead of a space")
    if depth > MAX_DEPTH:
        raise ValueError(f"a space nested deeper than {MAX_DEPTH}")
    kind = str(node["space" if form.is_rllibs else "type"])
    match kind.replace("-", "").lower():
        case "box":
            shape, dtype = tuple(map(int, node["shape"])), _plain_dtype(node["dtype"])
            low, high = (form.bound(node[side], shape, dtype) for side in ("low", "high"))
            return spaces.Box(low, high, shape, dtype)
        case "discrete":  # gymnasium 1.1, required by Ray 2.49, accepts no dtype here
            dtype = _plain_dtype(node.get("dtype", "int64"))
            named = {} if dtype == np.int64 else {"dtype": dtype}
            return spaces.Discrete(int(node["n"]), start=int(node.get("start", 0)), **named)
        case "multidiscrete":
            nvec, dtype = form.counts(node["nvec"]), _plain_dtype(node.get("dtype", "int64"))
            return spaces.MultiDiscrete(nvec, dtype=dtype, start=np.asarray(node["start"]) if "start" in node else None)
        case "multibinary":  # no stored array limits its size
            sizes = np.asarray(node["n"])
            if math.prod(map(int, sizes.ravel().tolist())) > MAX_VALUE_BYTES:
                raise ValueError(f"MultiBinary of {node['n']}")
            return spaces.MultiBinary(sizes.tolist() if sizes.ndim else int(node["n"]))
        case "dict":
            return spaces.Dict([(key, _built(part, form, depth=depth + 1)) for key, part in form.parts(node["spaces"])])
        case "tuple":
            return spaces.Tuple([_built(part, form, depth=depth + 1) for part in node["spaces"]])
    fix = "record with a Box, Discrete, MultiDiscrete, MultiBinary, Dict or Tuple"
    raise UnsupportedSpace(f"{kind[:40]!r} spaces cannot be read", where=form.where, fix=fix)


# ---- from data ----


def infer_space(tree: Tree, *, discrete: bool, vectors: bool = True) -> Space:
    """Infer a space from batched leaves (N, *shape): unbounded Boxes; with `discrete`, integers become Discrete.

    With `discrete`, integer leaves of rank 0 become Discrete(max + 1), and of rank 1 MultiDiscrete if `vectors` too; negative
    values, or a maximum of 2**63 - 1 and more, give a Box. Callers must report that the space was inferred. Raises
    UnsupportedSpace for text, complex numbers, and nesting deeper than MAX_DEPTH.
    """
    return _inferred(tree, int(vectors) if discrete else -1, 0)


def _inferred(tree: Tree, counted: int, depth: int) -> Space:
    """`counted`: the highest rank of integer leaves that become Discrete or MultiDiscrete."""
    if depth > MAX_DEPTH:
        fix = "flatten the values, or leave the column out"
        raise UnsupportedSpace(f"values nested deeper than {MAX_DEPTH}", where="data without a declared space", fix=fix)
    if isinstance(tree, dict):
        return spaces.Dict([(key, _inferred(part, counted, depth + 1)) for key, part in tree.items()])
    if isinstance(tree, tuple):
        return spaces.Tuple([_inferred(part, counted, depth + 1) for part in tree])
    shape, dtype = tree.shape[1:], tree.dtype
    if dtype.kind not in "biuf":
        fix = "record numbers; put text and complex numbers into infos"
        raise UnsupportedSpace(f"no space holds values of type {dtype}", where="data without a declared space", fix=fix)
    if dtype.kind == "b":
        return spaces.MultiBinary(shape[0] if len(shape) == 1 else shape) if shape else spaces.Discrete(2)
    if dtype.kind != "f" and len(shape) <= counted and tree.size and 0 <= int(tree.min()) <= int(tree.max()) < MAX_COUNT:
        return spaces.MultiDiscrete(tree.max(axis=0).astype(np.int64) + 1) if shape else spaces.Discrete(int(tree.max()) + 1)
    low, high = (-np.inf, np.inf) if dtype.kind == "f" else (np.iinfo(dtype).min, np.iinfo(dtype).max)
    return spaces.Box(np.full(shape, low, dtype), np.full(shape, high, dtype), shape, dtype)


def tree_from_lists(tree: Any, space: Space | None) -> Tree:
    """`tree` with lists converted to tuples where `space` is a Tuple: msgpack and JSON have no tuples."""
    if isinstance(space, spaces.Dict) and isinstance(tree, dict):
        known = {key: tree_from_lists(tree[key], part) for key, part in space.spaces.items() if key in tree}
        return known | {key: part for key, part in tree.items() if key not in known}
    if isinstance(space, spaces.Tuple) and isinstance(tree, (list, tuple)):
        return tuple(tree_from_lists(item, part) for item, part in zip(tree, space.spaces, strict=True))
    return tree

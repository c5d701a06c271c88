"""Objects of an HDF5 file, opened by h5py's low-level calls in the child process: checked first, then read.

Refused by name: soft and external links, objects with several names (groups may be endless by them), external storage, virtual
datasets, filters other than HDF5's own and h5py's, datasets of other types than numbers, booleans and texts, and datasets that
unfold to more than `RATIO` times what is stored. Bytes of varying length are read only as JPEG frames, as Minari stores them.
"""

from __future__ import annotations

import math
import os
from contextlib import suppress
from functools import cache
from typing import Any, Final

import numpy as np

from offline_cli.formats.hdf5.messages import FRAMES, TEXT, plain_text

with suppress(ImportError):  # the parent has looked: without it no child is started
    os.environ["HDF5_PLUGIN_PRELOAD"] = "::"  # filters are never loaded from files
    from h5py import h5a, h5d, h5g, h5l, h5o, h5s, h5t

__all__ = [
    "RATIO",
    "SMALL",
    "WRITE",
    "Refused",
    "all_of",
    "attributes_of",
    "form_of",
    "opened_member",
    "rows_of",
]

RATIO: Final = 1000  # times the stored bytes that a dataset may unfold to, beyond:
SMALL: Final = 64 << 20  # bytes
ATTRIBUTE: Final = 16 << 20  # bytes of one
FILTERS: Final = frozenset({1, 2, 3, 4, 5, 6, 32000})  # deflate, shuffle, fletcher32, szip, nbit, scaleoffset; h5py's lzf
WRITE: Final = "write the file again with h5py: plain datasets of numbers in groups"


class Refused(Exception):
    """What is refused: kind of error, what, where, remedy."""


def opened_member(group: Any, name: bytes, place: str) -> Any:
    link = group.links.get_info(name)
    if link.type != h5l.TYPE_HARD:
        kind = "an external link" if link.type == h5l.TYPE_EXTERNAL else "a soft link"
        raise Refused("unsafe", f"{kind}, which may lead elsewhere", place, "write a copy of what it leads to in its place")
    found = h5o.open(group, name)
    if not isinstance(found, (h5g.GroupID, h5d.DatasetID)):
        raise Refused("bad", "neither a group nor a dataset", place, WRITE)
    if isinstance(found, h5g.GroupID) and h5o.get_info(found).rc > 1:
        raise Refused("unsafe", "a group with several names (hard links)", place, "write a copy under each name")
    return found


def form_of(dataset: Any, path: str) -> list[Any]:
    """dtype (or TEXT, FRAMES) and shape. Raises Refused."""
    space = dataset.get_space()
    if space.get_simple_extent_type() == h5s.NULL:
        raise Refused("bad", "a dataset without a value", path, WRITE)
    shape = list(space.get_simple_extent_dims())
    kind = dataset.get_type()
    name, size = _type_name(kind, path), kind.get_size()
    stored = dataset.get_create_plist()
    if stored.get_layout() == h5d.VIRTUAL:
        raise Refused("unsafe", "a virtual dataset, whose values are in other files", path, WRITE)
    if stored.get_external_count():
        raise Refused("unsafe", "external storage: its values are in another file", path, WRITE)
    for number in range(stored.get_nfilters()):
        code = stored.get_filter(number)[0]
        if code not in FILTERS:
            raise Refused("unsafe", f"filter {code} is not one of HDF5's own, and is not loaded", path, WRITE)
    nbytes = math.prod(shape) * size
    if nbytes > max(SMALL, RATIO * dataset.get_storage_size()):
        what = f"{nbytes / 1e6:,.0f} MB of values in {dataset.get_storage_size():,} stored bytes"
        raise Refused("bad", what, path, "write the file again without compression")
    if stored.get_layout() == h5d.CHUNKED and math.prod(stored.get_chunk()) * size > 16 * SMALL:
        raise Refused("bad", "a chunk of more than a gibibyte", path, "write the file again with smaller chunks")
    return [name, shape]


def _type_name(kind: Any, path: str) -> str:
    known = _standard_types().get((kind.get_class(), kind.get_size()), ())
    for standard, name in known:
        if kind == standard:
            return name
    if isinstance(kind, h5t.TypeStringID):
        return TEXT
    if isinstance(kind, h5t.TypeVlenID) and kind.get_super() == h5t.NATIVE_UINT8:
        return FRAMES
    if isinstance(kind, (h5t.TypeIntegerID, h5t.TypeFloatID)) or (isinstance(kind, h5t.TypeEnumID) and kind.dtype == np.bool_):
        found: np.dtype[Any] = kind.dtype
        if found.kind in "biuf" and found.itemsize <= 8 and found.names is None:
            return found.newbyteorder("=").str
    words = type(kind).__name__.removeprefix("Type").removesuffix("ID").lower()
    raise Refused("unsafe", f"values of the type {words}: only numbers, booleans and texts are read", path, WRITE)


@cache
def _standard_types() -> dict[tuple[int, int], list[tuple[Any, str]]]:
    """Types that files of this machine's byte order have, by class and size: names of their dtypes."""
    names = ("|b1", "|i1", "|u1", "<i2", "<u2", "<i4", "<u4", "<i8", "<u8", "<f4", "<f8")
    found: dict[tuple[int, int], list[tuple[Any, str]]] = {}
    for name in names:
        kind = _memory_type(name)
        found.setdefault((kind.get_class(), kind.get_size()), []).append((kind, name))
    return found


@cache
def _memory_type(name: str) -> Any:
    return h5t.py_create(np.dtype(name))


def all_of(dataset: Any, kind: str, shape: list[int]) -> Any:
    values = np.empty(shape, kind)
    if values.size:
        dataset.read(h5s.ALL, h5s.ALL, values, mtype=_memory_type(kind))
    return values


def rows_of(dataset: Any, path: str, first: int, stop: int) -> Any:
    shape = tuple(dataset.shape)
    kind = _type_name(dataset.get_type(), path)
    if kind in (TEXT, FRAMES):
        raise Refused("bad", "texts where numbers are wanted", path, WRITE)
    if not shape:
        return all_of(dataset, kind, [])
    if not 0 <= first <= stop <= shape[0]:
        raise Refused("bad", f"rows {first} to {stop} of {shape[0]}", path, WRITE)
    rows = np.empty((stop - first, *shape[1:]), kind)
    if rows.size:
        chosen = dataset.get_space()
        chosen.select_hyperslab((first, *(0 for _ in shape[1:])), rows.shape)
        dataset.read(h5s.create_simple(rows.shape), chosen, rows)
    return rows


def attributes_of(found: Any, path: str, passed_over: set[str]) -> tuple[dict[str, Any], list[str]]:
    """Values by name, and the names of those that are neither numbers nor texts."""
    values: dict[str, Any] = {}
    left_out: list[str] = []
    names: list[bytes] = []
    h5a.iterate(found, names.append)
    for raw in names:
        name = plain_text(raw)
        if name in passed_over:
            continue
        attribute = h5a.open(found, raw)
        kind = attribute.get_type()
        size = math.prod(attribute.shape or ()) * kind.get_size()
        if size > ATTRIBUTE:
            raise Refused("bad", f"an attribute of {size / 1e6:,.0f} MB", f"{path}@{name}", WRITE)
        is_text = isinstance(kind, h5t.TypeStringID)
        is_number = isinstance(kind, (h5t.TypeIntegerID, h5t.TypeFloatID, h5t.TypeEnumID)) and kind.get_size() <= 8
        if attribute.get_space().get_simple_extent_type() == h5s.NULL or not (is_text or is_number):
            left_out.append(name)
            continue
        array = np.empty(attribute.shape, attribute.dtype)
        attribute.read(array, mtype=h5t.py_create(attribute.dtype))
        plain = array.tolist()
        values[name] = _texts_in(plain) if is_text else plain
    return values, left_out


def _texts_in(value: Any) -> Any:
    return [_texts_in(one) for one in value] if isinstance(value, list) else plain_text(value)

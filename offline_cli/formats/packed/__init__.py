"""Packed cells of RLlib (base64 of an lz4 frame of a pickle), and bare pickles of Ray, as arrays; nothing in them is run.

RLlib packs a value as text by pickling it, compressing the pickle as one lz4 frame and writing that in base64. Old-stack
recordings hold whole columns in this form, columns of the new stack one vector per cell. We read them, and never write them.

* `text`: the text to the pickle in it;
* `pickles`, `values`: the pickle to numbers and plain containers, and to nothing else;
* `cells`: one text, or a column of cells; `objects`: a column of bare pickles, of values with parts;
* `patterns`, `template`: how pickles, and whole cells, that differ in numbers only are read by what they have in common.
"""

from __future__ import annotations

from offline_cli.formats.packed.cells import KnownPatterns, unpack, unpack_cells
from offline_cli.formats.packed.objects import is_pickle, tree_of_value, unpickle_cells
from offline_cli.formats.packed.pickles import unpickle
from offline_cli.formats.packed.template import looks_packed

__all__ = [
    "KnownPatterns",
    "is_pickle",
    "looks_packed",
    "tree_of_value",
    "unpack",
    "unpack_cells",
    "unpickle",
    "unpickle_cells",
]

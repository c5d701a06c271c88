"""Packed cells of RLlib (base64 of an lz4 frame of a pickle), and bare pickles of Ray, as arrays; nothing in them is run.

RLlib packs a value as text by pickling it, compressing the pickle as one lz4 frame and writing that in base64. Old-stack
recordings hold whole columns in this form, columns of the new stack one vector per cell. We read them, and never write them.

* `pickles`, `values`: the pickle to numbers and plain containers, and to nothing else;
* `template`: the text to the pickle in it, and cells that differ from a known one in numbers only;
* `cells`: one cell, or a column of packed ones or of bare pickles, by the patterns that they share.
"""

from __future__ import annotations

from offline_cli.formats.packed.cells import KnownPatterns, is_pickle, tree_of_value, unpack, unpack_cells, unpickle_cells
from offline_cli.formats.packed.pickles import unpickle
from offline_cli.formats.packed.template import looks_packed, unfolded_size

__all__ = [
    "KnownPatterns",
    "is_pickle",
    "looks_packed",
    "tree_of_value",
    "unfolded_size",
    "unpack",
    "unpack_cells",
    "unpickle",
    "unpickle_cells",
]

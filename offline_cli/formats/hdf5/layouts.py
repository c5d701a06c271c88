"""Which layout an HDF5 file has, by the names in it: D4RL's, robomimic's, d3rlpy's, or none that is known.

A file is opened once for a listing, and what is found out is kept for as long as that lives. Files of several layouts are not
one source.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final
from weakref import WeakKeyDictionary

from offline_cli.errors import BadData
from offline_cli.formats.hdf5.safe import Hdf5File, Node
from offline_cli.formats.listing import Listing
from offline_cli.storage.locations import Location

__all__ = ["D3RLPY", "D4RL", "MINARI_FILE", "ROBOMIMIC", "is_of"]

D4RL: Final = "d4rl"
D3RLPY: Final = "d3rlpy"
ROBOMIMIC: Final = "robomimic"
MINARI_FILE: Final = "minari's main_data.hdf5"
OTHER: Final = "other"
LOOKED_AT: Final = 3  # files of a source: the first, and the last ones

_known: WeakKeyDictionary[Listing, str] = WeakKeyDictionary()


def is_of(listing: Listing, layout: str) -> bool:
    """Whether the files are HDF5 of that layout. Raises BadData for damaged ones, MissingPackage without h5py.

    Files of another layout are nobody's.
    """
    if listing.kind != "hdf5":
        return False
    if listing not in _known:
        _known[listing] = _layout_of_all(listing.data)
    return _known[listing] == layout


def _layout_of_all(files: Sequence[Location]) -> str:
    chosen = list(files) if len(files) <= LOOKED_AT else [files[0], *files[1 - LOOKED_AT :]]
    found = {}
    for file in chosen:
        with Hdf5File(file) as opened:
            found[layout_of(opened.top)] = file
    if len(found) > 1:
        (first, one), (second, other), *_ = found.items()
        what, fix = f"HDF5 of two layouts: {first} and {second}", "convert the files of each layout by themselves"
        raise BadData(what, where=f"{one.url} and {other.url}", fix=fix)
    layout = next(iter(found))
    if layout == MINARI_FILE:
        what = "this is the file of a Minari dataset, without its metadata.json"
        raise BadData(what, where=files[0].url, fix="name the folder that has both")
    return layout


def layout_of(top: Node) -> str:
    """By what the root has."""
    if {"columns", "num_episodes", "version"} <= top.datasets.keys():
        return D3RLPY
    if "data" in top.groups:
        return ROBOMIMIC
    if {"observations", "actions", "rewards", "terminals"} <= {*top.datasets, *top.groups}:
        return D4RL
    return MINARI_FILE if any(name.startswith("episode_") for name in top.groups) else OTHER

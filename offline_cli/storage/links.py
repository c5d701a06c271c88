"""Links of this machine whose target is missing: what the user sees in a listing, and what no program can open."""

from __future__ import annotations

import os
from collections.abc import Iterator

from offline_cli.errors import StorageNotFound

__all__ = ["dangling_link", "not_found"]


def not_found(path: str | os.PathLike[str], what: str, *, where: str, fix: str) -> StorageNotFound:
    """The error of a place where nothing is: `what`, unless it or a folder above is a link without its target."""
    return dangling_link(path) or StorageNotFound(what, where=where, fix=fix)


def dangling_link(path: str | os.PathLike[str], *, shown: str = "") -> StorageNotFound | None:
    """The error that names the link at or above a local path whose target does not exist, and that target; None without one.

    `shown`: the same path as the user wrote it, where that is another spelling.
    """
    spelt = os.fspath(path)
    same = bool(shown) and os.path.abspath(shown) == os.path.abspath(spelt)
    link = next((place for place in _with_parents(shown if same else spelt) if os.path.islink(place)), None)
    if link is None or os.path.exists(link):
        return None
    what = f"{link} is a link, and its target {os.readlink(link)} does not exist"
    return StorageNotFound(what, where=link, fix="bring the target back, or point the link at what is there")


def _with_parents(path: str) -> Iterator[str]:
    """`path`, and each folder above it as it is spelt."""
    while path and path != os.path.dirname(path):
        yield path
        path = os.path.dirname(path)

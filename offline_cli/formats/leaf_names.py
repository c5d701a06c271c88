"""Leaves of trees by name, as files of arrays have them: `observations/camera/left`, parts of a Tuple by their number."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from offline_cli.errors import BadData
from offline_cli.trees import Tree


def named_leaves(name: str, tree: Tree, tuple_key: str = "{}") -> dict[str, Any]:
    """The leaves of a tree by `/` paths below `name`; `tuple_key`: what a part of a Tuple is called. Raises BadData."""
    if not isinstance(tree, (dict, tuple)):
        return {name: tree}
    parts = tree if isinstance(tree, dict) else {tuple_key.format(at): part for at, part in enumerate(tree)}
    found: dict[str, Any] = {}
    for key, part in parts.items():
        found |= named_leaves(f"{name}/{checked_key(str(key), name)}", part, tuple_key)
    return found


def tree_of_names(leaves: Mapping[str, Any], separator: str = "/") -> dict[str, Any]:
    """Nested dicts of leaves by path. Raises ValueError where a path goes through another one, or has an empty part."""
    tree: dict[str, Any] = {}
    for path, leaf in leaves.items():
        *above, name = path.split(separator)
        inner: Any = tree
        for key in above:
            inner = inner.setdefault(key, {}) if isinstance(inner, dict) else None
        if not isinstance(inner, dict) or name in inner or not all((*above, name)):
            raise ValueError(path)
        inner[name] = leaf
    return tree


def heads(names: Iterable[str]) -> set[str]:
    """The first parts of the names."""
    return {name.partition("/")[0] for name in names}


def checked_key(key: str, where: str) -> str:
    """A key of a Dict that can be part of a name. Raises BadData."""
    if "/" in key or key in ("", "."):
        fix = "rename the key in the recordings, or choose another --to"
        raise BadData(f"a key that cannot be part of a name in this format: {key!r}", where=where, fix=fix)
    return key

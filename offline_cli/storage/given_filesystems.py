"""Filesystems that a program hands over, of fsspec or `pyarrow.fs`, as locations use them; refuses other objects.

What is really a disk of this machine, however it is wrapped, becomes fsspec's local filesystem: its files are written by
rename, which `pyarrow.fs` cannot promise. The others of `pyarrow.fs` are wrapped as they are.
"""

from __future__ import annotations

import os
from typing import Any

import fsspec
from fsspec.implementations.arrow import ArrowFSWrapper
from fsspec.implementations.local import LocalFileSystem
from pyarrow import fs as arrow_fs

from offline_cli.errors import UsageError

__all__ = ["place_in"]


def place_in(filesystem: Any, path: str) -> tuple[Any, str, str]:
    """`filesystem` as an fsspec one, `path` as it spells it, and a URL for people to read. Raises UsageError for other objects.

    `path` is relative to what the filesystem shows: to the base path of a `pyarrow.fs.SubTreeFileSystem`.
    """
    if isinstance(filesystem, arrow_fs.SubTreeFileSystem):
        return place_in(filesystem.base_fs, f"{filesystem.base_path.rstrip('/')}/{path.lstrip('/')}")
    if isinstance(filesystem, arrow_fs.PyFileSystem) and isinstance(filesystem.handler, arrow_fs.FSSpecHandler):
        return place_in(filesystem.handler.fs, path)
    if isinstance(filesystem, arrow_fs.LocalFileSystem):
        return LocalFileSystem(), os.path.abspath(path), path
    if isinstance(filesystem, arrow_fs.FileSystem):
        inner = path.strip("/")
        return ArrowFSWrapper(filesystem), inner, f"{filesystem.type_name}://{inner}"
    if isinstance(filesystem, fsspec.AbstractFileSystem):
        inner = str(filesystem._strip_protocol(path))
        return filesystem, inner, path if isinstance(filesystem, LocalFileSystem) else str(filesystem.unstrip_protocol(inner))
    fix = "give a filesystem of fsspec or pyarrow.fs"
    raise UsageError(f"{type(filesystem).__name__} is no filesystem", where=path, fix=fix)

"""Filesystems by URL, made under the watchdog, and those that a program hands over.

Making a client may take long: Google's and Azure's look for credentials then, on the network too. fsspec keeps clients by
the thread that they were made in, so all are made in one, as long as that answers: where it does not, another takes its
place.

Of filesystems that are handed over, what is really a disk of this machine, however it is wrapped, becomes fsspec's local
filesystem: its files are written by rename, which `pyarrow.fs` cannot promise. The others of `pyarrow.fs` are wrapped as
they are.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from concurrent.futures import Future
from queue import SimpleQueue
from threading import Thread
from typing import Any, TypeAlias

import fsspec
from fsspec.core import url_to_fs
from fsspec.implementations.arrow import ArrowFSWrapper
from fsspec.implementations.local import LocalFileSystem
from pyarrow import fs as arrow_fs

from offline_cli.errors import UsageError
from offline_cli.storage.blanking import blanked
from offline_cli.storage.timeouts import NoAnswer, Patience

__all__ = ["client_for", "place_in"]

_Made: TypeAlias = "tuple[Any, str]"


class _Maker:
    """One thread that makes clients, one after the other; it never keeps the process alive."""

    def __init__(self) -> None:
        self._asked: SimpleQueue[tuple[Future[_Made], str, Mapping[str, Any]]] = SimpleQueue()
        self._thread = Thread(target=self._work, name="offline-cli-clients", daemon=True)
        self._thread.start()

    @property
    def is_there(self) -> bool:
        """Whether the thread lives; in a process that was forked from the one that began it, it does not."""
        return self._thread.is_alive()

    def make(self, url: str, options: Mapping[str, Any]) -> _Made:
        """The filesystem and the path for `url`."""
        made: Future[_Made] = Future()
        self._asked.put((made, url, options))
        return made.result()

    def _work(self) -> None:
        while True:
            made, url, options = self._asked.get()
            try:
                made.set_result(url_to_fs(url, **options))
            except BaseException as error:  # noqa: BLE001  raised again by whoever asked
                made.set_exception(error)


_makers: list[_Maker] = []  # the last one is at work; those before it never answered


def client_for(url: str, options: Mapping[str, Any], patience: Patience) -> _Made:
    """The fsspec filesystem for a remote `url`, and the path as it spells it. Raises NoAnswer, and what clients raise."""
    if not _makers or not _makers[-1].is_there:
        _makers.append(_Maker())
    maker = _makers[-1]
    try:
        return patience.wait_for(lambda: maker.make(url, options), blanked(url))
    except NoAnswer:
        if maker is _makers[-1]:
            _makers.append(_Maker())
        raise


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

"""A provider of another package: `shop://shelf/path`, files behind a small HTTP server, whose address is SHOP_URL.

The server answers GET (with ranges), HEAD, PUT (with If-None-Match) and DELETE of a path, and GET of `path?list`, all files
below it as JSON. Each answer has the file's version as its ETag.
"""

from __future__ import annotations

import io
import json
import os
from collections.abc import Mapping
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

from fsspec import AbstractFileSystem

from offline_cli.storage.providers import Fault, Provider

SHOP = Provider(
    "shop",
    ("shop",),
    filesystem="shop_storage.ShopFileSystem",
    client=frozenset({"shop_storage"}),
    set_up="SHOP_URL",
    container="shelf",
    serves_ranges=True,
    has_folders=False,
    creates_only=True,
    forgets_uploads=True,
    codes={"ShopClosed": Fault.UNREACHABLE},
)


class ShopClosed(Exception):
    """The server answered 503."""


class ShopFileSystem(AbstractFileSystem):
    """Files of the shop."""

    protocol = "shop"

    def _ask(self, method: str, path: str, data: bytes | None = None, **headers: str) -> tuple[bytes, Mapping[str, str]]:
        address = f"{os.environ['SHOP_URL']}/{self._strip_protocol(path)}"
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        try:
            with urlopen(Request(address, data, named, method=method)) as answer:
                return answer.read(), answer.headers
        except HTTPError as error:
            if error.code == 404:
                raise FileNotFoundError(path) from error
            if error.code == 412:
                raise FileExistsError(path) from error
            if error.code == 503:
                raise ShopClosed("come back later") from error
            raise

    def find(self, path: str, maxdepth: int | None = None, withdirs: bool = False, detail: bool = False, **_: Any) -> Any:
        listed = json.loads(self._ask("GET", f"{self._strip_protocol(path)}?list")[0])
        found = {entry["name"]: {**entry, "type": "file"} for entry in listed}
        return found if detail else sorted(found)

    def ls(self, path: str, detail: bool = True, **_: Any) -> list[Any]:
        root, found = self._strip_protocol(path), dict[str, dict[str, Any]]()
        for name, entry in self.find(path, detail=True).items():
            first, mark, _rest = name.removeprefix(f"{root}/").partition("/")
            folder = {"name": f"{root}/{first}", "type": "directory", "size": 0}
            found.setdefault(f"{root}/{first}", folder if mark else entry)
        return list(found.values()) if detail else sorted(found)

    def info(self, path: str, **_: Any) -> dict[str, Any]:
        path = self._strip_protocol(path)
        try:
            headers = self._ask("HEAD", path)[1]
            return {"name": path, "type": "file", "size": int(headers["Content-Length"]), "etag": headers["ETag"]}
        except FileNotFoundError:
            if not self.find(path):
                raise
            return {"name": path, "type": "directory", "size": 0}

    def cat_file(self, path: str, start: int | None = None, end: int | None = None, **_: Any) -> bytes:
        ranged = {} if start is None and end is None else {"Range": f"bytes={start or 0}-{'' if end is None else end - 1}"}
        return self._ask("GET", path, **ranged)[0]

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **_: Any) -> None:
        self._ask("PUT", path, bytes(value), **({"If_None_Match": "*"} if mode == "create" else {}))

    def rm_file(self, path: str) -> None:
        self._ask("DELETE", path)

    def _open(self, path: str, mode: str = "rb", **_: Any) -> Any:
        return _Upload(self, path) if "w" in mode else io.BytesIO(self.cat_file(path))


class _Upload(io.BytesIO):
    """A file whose bytes are sent by `commit`."""

    def __init__(self, shop: ShopFileSystem, path: str) -> None:
        super().__init__()
        self._send = lambda: shop.pipe_file(path, self.getvalue())

    def close(self) -> None:
        """Nothing: `commit` needs the bytes."""

    def commit(self) -> None:
        self._send()

    def discard(self) -> None:
        self.truncate(0)

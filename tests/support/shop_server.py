"""The server that `shop://` of tests/plugins/shop asks: files in memory behind HTTP on loopback; counts what it is asked."""

from __future__ import annotations

import hashlib
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit

PLUGIN = Path(__file__).resolve().parents[1] / "plugins" / "shop"


class ShopServer(ThreadingHTTPServer):
    """`files` by path; `asked`: (method, path) of each request, at most `most_at_once` together; `seconds`: of an answer.

    `closed`: all answers are 503.
    """

    daemon_threads = True
    request_queue_size = 256

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.files: dict[str, bytes] = {}
        self.asked: list[tuple[str, str]] = []
        self.most_at_once = self.at_once = 0
        self.seconds = 0.0
        self.closed = False

    @property
    def address(self) -> str:
        """Where it listens."""
        return f"http://127.0.0.1:{self.server_address[1]}"

    def take_folder(self, folder: Path, at: str) -> None:
        """Hold the files of a folder under a path."""
        files = [path for path in folder.rglob("*") if path.is_file()]
        self.files |= {f"{at}/{path.relative_to(folder).as_posix()}": path.read_bytes() for path in files}

    def below(self, path: str) -> dict[str, bytes]:
        """Files under a path, by what follows it."""
        return {name.removeprefix(f"{path}/"): data for name, data in self.files.items() if name.startswith(f"{path}/")}


@contextmanager
def shop_server() -> Iterator[ShopServer]:
    """Within it, a server listens."""
    server = ShopServer()
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: ShopServer

    def _answer(self, status: int, data: bytes = b"", tag: str = "") -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.send_header("ETag", tag)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def _serve(self) -> None:
        shop, url = self.server, urlsplit(self.path)
        path = unquote(url.path).strip("/")
        sent = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        shop.asked.append((self.command, path))
        shop.at_once += 1
        shop.most_at_once = max(shop.most_at_once, shop.at_once)
        time.sleep(shop.seconds)
        shop.at_once -= 1
        held = shop.files.get(path)
        if shop.closed:
            self._answer(503)
        elif url.query == "list":
            names = sorted(name for name in shop.files if name == path or name.startswith(f"{path}/"))
            found = [{"name": name, "size": len(shop.files[name]), "etag": _tag(shop.files[name])} for name in names]
            self._answer(200, json.dumps(found).encode())
        elif self.command == "PUT":
            refused = held is not None and self.headers.get("If-None-Match") == "*"
            if not refused:
                shop.files[path] = sent
            self._answer(412 if refused else 200)
        elif held is None:
            self._answer(404)
        elif self.command == "DELETE":
            del shop.files[path]
            self._answer(200)
        else:
            first, _, last = (self.headers.get("Range") or "bytes=0-").removeprefix("bytes=").partition("-")
            self._answer(206, held[int(first) : int(last) + 1 if last else None], _tag(held))

    do_GET = do_HEAD = do_PUT = do_DELETE = _serve  # noqa: N815

    def log_message(self, *_: object) -> None:
        """Nothing."""


def _tag(data: bytes) -> str:
    return hashlib.md5(data).hexdigest()

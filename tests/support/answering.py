"""A web server on loopback that gives every request the same answer, as a provider would."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@contextmanager
def answering(status: int, body: str, **headers: str) -> Iterator[int]:
    """Within it, a port that answers so: HEAD, as HTTP has it, without the body."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def answer(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length") or 0))
            data = b"" if self.command == "HEAD" else body.encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(data)))
            for name, value in headers.items():
                self.send_header(name.replace("_", "-"), value)
            self.end_headers()
            with suppress(ConnectionError):  # some clients hang up once they have seen the status
                self.wfile.write(data)

        do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = answer  # noqa: N815  names that the base class looks for

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield int(server.server_address[1])
    finally:
        server.shutdown()
        server.server_close()


def s3_error(code: str, message: str, **more: str) -> str:
    """The body of an error of S3."""
    rest = "".join(f"<{name}>{value}</{name}>" for name, value in more.items())
    return (
        f'<?xml version="1.0" encoding="UTF-8"?>\n<Error><Code>{code}</Code><Message>{message}</Message>{rest}'
        "<RequestId>4442587FB7D0A2F9</RequestId></Error>"
    )

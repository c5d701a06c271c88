"""A link of a bounded rate before a server on loopback, as between a machine and a store in another building."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

CHUNK = 1 << 16


class _Bucket:
    """What all connections together may pass: `rate` bytes a second."""

    def __init__(self, rate: float) -> None:
        self._rate, self._lock, self._next = rate, threading.Lock(), 0.0

    def wait_for(self, size: int) -> None:
        """Return when `size` more bytes may pass."""
        with self._lock:
            self._next = max(self._next, time.monotonic()) + size / self._rate
            turn = self._next
        time.sleep(max(0.0, turn - time.monotonic()))


@contextmanager
def slow_link(port: int, rate: float) -> Iterator[int]:
    """The port of a way to the server at `port` whose answers come at `rate` bytes a second, all connections together."""
    bucket = _Bucket(rate)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        threading.Thread(target=_accept, args=(listening, port, bucket), daemon=True).start()
        yield int(listening.getsockname()[1])


def _accept(listening: socket.socket, port: int, bucket: _Bucket) -> None:
    while True:
        try:
            client, _ = listening.accept()
        except OSError:
            return  # closed: the measurement is over
        server = socket.create_connection(("127.0.0.1", port))
        threading.Thread(target=_relay, args=(client, server, None), daemon=True).start()
        threading.Thread(target=_relay, args=(server, client, bucket), daemon=True).start()


def _relay(source: socket.socket, sink: socket.socket, bucket: _Bucket | None) -> None:
    try:
        while data := source.recv(CHUNK):
            if bucket is not None:
                bucket.wait_for(len(data))
            sink.sendall(data)
        sink.shutdown(socket.SHUT_WR)
    except OSError:
        for one in (source, sink):
            one.close()

"""A relay on loopback that harms the traffic it carries: delays, resets, stalls, and answers of its own."""

from __future__ import annotations

import socket
import struct
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from types import TracebackType
from typing import Literal, Self

METHODS = (b"GET ", b"PUT ", b"POST ", b"HEAD ", b"DELETE ")
RESET = struct.pack("ii", 1, 0)  # linger for no time: closing sends RST


@dataclass(frozen=True)
class Fault:
    """What happens to traffic in one direction, of all connections, once `since` and then over `after` bytes have passed."""

    kind: Literal["reset", "stall", "delay", "answer"]
    since: bytes = b""  # words of a request, such as the name of a file
    after: int = 0
    only: bytes = b""  # pieces of traffic that hold these bytes, such as words of a request
    direction: Literal["up", "down"] = "up"
    times: int | None = None  # None: every time from then on
    status: str = "503 Slow Down"  # of an answer, which comes instead of the server's where a request begins
    seconds: float = 0.2  # of a delay, for each piece of up to 64 KiB


class FaultProxy:
    """Relays connections to a port of this machine; `fault` may change at any time, None relays faithfully."""

    def __init__(self, server_port: int) -> None:
        self._server_port = server_port
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=256)
        self.port = int(self._listener.getsockname()[1])
        self._lock = threading.Lock()
        self._fault: Fault | None = None
        self._bytes = self.fired = 0
        self._began = False
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._open: set[socket.socket] = set()
        self._threads[0].start()

    @property
    def fault(self) -> Fault | None:
        """The fault that is armed."""
        return self._fault

    @fault.setter
    def fault(self, fault: Fault | None) -> None:
        with self._lock:
            self._fault, self._bytes, self.fired, self._began = fault, 0, 0, False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.fault = None
        self._listener.close()
        for one in tuple(self._open):
            self._cut(one)

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
                server = socket.create_connection(("127.0.0.1", self._server_port), 5)
            except OSError:
                return
            server.settimeout(None)
            self._open |= {client, server}
            for ends in ((client, server, "up"), (server, client, "down")):
                threading.Thread(target=self._relay, args=ends, daemon=True).start()

    def _relay(self, source: socket.socket, sink: socket.socket, direction: str) -> None:
        with suppress(OSError):
            while data := source.recv(1 << 16):
                fault = self._struck(direction, data)
                if fault is not None and not self._strike(fault, source, sink):
                    return
                sink.sendall(data)
        for one in (source, sink):
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)

    def _struck(self, direction: str, data: bytes) -> Fault | None:
        """The fault that is due with `data`, if one is."""
        with self._lock:
            fault = self._fault
            if fault is None:
                return None
            self._began = self._began or (direction == "up" and fault.since in data)
            if not self._began or direction != fault.direction:
                return None
            self._bytes += len(data)
            if self._bytes <= fault.after or (fault.times is not None and self.fired >= fault.times):
                return None
            if fault.only not in data or (fault.kind == "answer" and not data.startswith(METHODS)):
                return None
            self.fired += 1
            return fault

    def _strike(self, fault: Fault, source: socket.socket, sink: socket.socket) -> bool:
        """Do harm; whether the connection goes on."""
        if fault.kind == "delay":
            time.sleep(fault.seconds)
            return True
        if fault.kind == "answer":
            source.sendall(f"HTTP/1.1 {fault.status}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n".encode())
            time.sleep(0.05)
            source.shutdown(socket.SHUT_RDWR)
            sink.shutdown(socket.SHUT_RDWR)
            return False
        while fault.kind == "stall" and self._fault is fault:
            time.sleep(0.05)
        for one in (source, sink):
            self._cut(one)
        return False

    def _cut(self, one: socket.socket) -> None:
        with suppress(OSError):
            one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
            one.shutdown(socket.SHUT_RD)  # wakes the thread that reads from it, and sends nothing
        one.close()

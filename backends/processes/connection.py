"""A connection between two processes: messages, and whether any have come."""

from __future__ import annotations

import contextlib
import json
import select
import socket
from typing import cast


class Connection:
    """Messages to and from another process: a JSON object on a line each."""

    def __init__(self, connected: socket.socket) -> None:
        self.socket = connected
        connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)  # finds hosts that are no more
        for option, seconds in (("TCP_KEEPIDLE", 10), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 3)):
            if hasattr(socket, option):
                connected.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), seconds)
        self._received = b""

    def send(self, **message: object) -> None:
        with contextlib.suppress(OSError):  # whoever reads finds that it is lost
            self.socket.sendall(json.dumps(message).encode() + b"\n")

    def receive(self, seconds: float | None = None) -> dict[str, object] | None:
        """The next message; empty where the other process is lost or is not one of ours, None where nothing of it
        has come for so many seconds."""
        while b"\n" not in self._received:
            if seconds is not None and not self._has_come(seconds):
                return None
            try:
                more = self.socket.recv(4096)
            except OSError:
                more = b""
            if not more or len(self._received) > 10000:
                return {}
            self._received += more
        line, _, self._received = self._received.partition(b"\n")
        try:
            found: object = json.loads(line)
        except ValueError:
            return {}
        return cast("dict[str, object]", found) if isinstance(found, dict) else {}

    def _has_come(self, seconds: float) -> bool:
        try:
            waiting = select.poll()
            waiting.register(self.socket, select.POLLIN)
            return bool(waiting.poll(1000 * seconds))
        except (OSError, ValueError):  # closed by another thread
            return True

    def close(self) -> None:
        with contextlib.suppress(OSError):  # wakes up who reads
            self.socket.shutdown(socket.SHUT_RDWR)
        self.socket.close()

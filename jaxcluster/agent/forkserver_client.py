"""The connection of an agent's client to its fork server."""

from __future__ import annotations

import contextlib
import socket
from pathlib import Path


class ForkServerClient:
    """A client's connection to the fork server. Never waits: what can't be sent yet is kept."""

    def __init__(self, path: Path) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        try:
            self.sock.connect(str(path))
        except OSError:
            self.sock.close()
            raise
        self.sock.setblocking(False)
        self._inbox = b""
        self._outbox = bytearray()

    @property
    def has_more(self) -> bool:
        return bool(self._outbox)

    def send(self, line: bytes) -> None:
        self._outbox += line + b"\n"
        self.flush()

    def flush(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while self._outbox:
                del self._outbox[: self.sock.send(self._outbox)]

    def receive(self) -> list[bytes] | None:
        """The lines that have come; None if the fork server has ended."""
        try:
            data = self.sock.recv(1 << 16)
        except BlockingIOError:
            return []
        except OSError:
            data = b""
        if not data:
            return None
        *lines, self._inbox = (self._inbox + data).split(b"\n")
        return lines

"""Files of other hosts, read from there: what a rank needs of them, and nothing else.

The notebook says where a folder of saved values is: a path on this host, or the agent of another
one that gives it out (``agent.mirrors``), with a key for it. What is asked for comes from there and
not through the notebook, and is in this rank's memory alone.

Whatever goes wrong on the way is remembered until the end: a value is not lost because a host could
not be reached, so nothing that was read counts then.
"""

from __future__ import annotations

import errno
import io
import json
import os
from collections.abc import Mapping
from types import TracebackType
from typing import Any, NoReturn

import zmq

PART = 1 << 20
AHEAD = 8  # parts that are on their way
SILENT_S = 10.0  # without an answer
Where = str | Mapping[str, str]


class NotBrought(Exception):
    """Another host's files could not be read from there, with the reason. They may be whole."""


def connect(
    context: zmq.Context[zmq.Socket[bytes]], where: Mapping[str, str], silent_s: float
) -> zmq.Socket[bytes]:
    """A socket to another host's agent: its ``endpoint`` and ``server`` key, and one's own keys,
    ``public`` and ``secret`` (in hexadecimal)."""
    socket = context.socket(zmq.DEALER)
    socket.setsockopt(zmq.LINGER, 0)
    socket.setsockopt(zmq.IPV6, 1)
    socket.setsockopt(zmq.SNDTIMEO, int(silent_s * 1000))
    socket.setsockopt(zmq.RCVTIMEO, int(silent_s * 1000))
    socket.curve_serverkey = bytes.fromhex(where["server"])
    socket.curve_publickey = bytes.fromhex(where["public"])
    socket.curve_secretkey = bytes.fromhex(where["secret"])
    socket.connect(where["endpoint"])
    return socket


class Hosts:
    """Other hosts, while something is read from them.

    Raises:
      NotBrought: at the end, whatever has become of it: something could not be read.
    """

    def __init__(self) -> None:
        self.failed = ""
        self._context: zmq.Context[zmq.Socket[bytes]] | None = None
        self._sockets: dict[str, zmq.Socket[bytes]] = {}

    def __enter__(self) -> Hosts:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        if self._context is not None:
            self._context.destroy(0)
        if self.failed:
            raise NotBrought(self.failed) from None

    def state(self, folder: Where, rank: int) -> str | FarPath:
        """The file of a rank in a folder."""
        name = f"rank-{rank}.state"
        if isinstance(folder, str):
            return f"{folder}/{name}"
        return FarPath(self, folder, f"{folder['folder']}/{name}")

    def fail(self, why: str) -> NoReturn:
        """What was to be read can't be: nothing counts."""
        self.failed = self.failed or why
        raise NotBrought(self.failed)

    def socket_to(self, where: Mapping[str, str]) -> zmq.Socket[bytes]:
        if self.failed:
            raise NotBrought(self.failed)  # one wait is enough
        endpoint = where["endpoint"]
        if endpoint not in self._sockets:
            self._context = self._context or zmq.Context()
            self._sockets[endpoint] = connect(self._context, where, SILENT_S)
        return self._sockets[endpoint]


class FarPath:
    """A file of another host's."""

    def __init__(self, hosts: Hosts, where: Mapping[str, str], path: str) -> None:
        self._hosts, self._where, self._path = hosts, where, path

    def __str__(self) -> str:
        return f"{self._where['host']}:{self._path}"

    def open(self) -> FarFile:
        return FarFile(self)

    def refuse(self, why: str) -> NoReturn:
        """It is not what was written."""
        self._hosts.fail(why)

    def read(self, at: int, buffer: memoryview) -> tuple[int, int]:
        """Fill ``buffer`` from a place in the file; returns how much there was, and its size.

        Raises:
          NotBrought: the host does not answer, or has no such file.
        """
        socket = self._hosts.socket_to(self._where)
        parts = range(0, max(1, len(buffer)), PART)
        filled = size = asked = 0
        for number, start in enumerate(parts):
            while asked < min(len(parts), number + AHEAD):
                nbytes = min(PART, len(buffer) - parts[asked])
                self._ask(socket, asked, at + parts[asked], nbytes)
                asked += 1
            size, data = self._hear(socket, number)
            buffer[start : start + len(data)] = data
            filled += len(data)
        return filled, size

    def _ask(self, socket: zmq.Socket[bytes], number: int, at: int, nbytes: int) -> None:
        request = {"cmd": "get", "id": number, "path": self._path, "at": at, "nbytes": nbytes}
        try:
            socket.send(json.dumps(request).encode())
        except zmq.Again:
            self._silent()

    def _hear(self, socket: zmq.Socket[bytes], number: int) -> tuple[int, memoryview]:
        """The answer to a request: the file's size, and what was asked for."""
        try:
            head, *data = socket.recv_multipart(copy=False)
        except zmq.Again:
            self._silent()
        answer = json.loads(head.bytes)
        if why := answer.get("error"):
            self._hosts.fail(f"{self} can't be read: {why}")
        if answer["id"] != number:
            self._hosts.fail(f"{self}: another answer came")
        return answer["answer"], data[0].buffer if data else memoryview(b"")

    def _silent(self) -> NoReturn:
        self._hosts.fail(f"{self._where['host']} does not answer at {self._where['endpoint']}")


class FarFile(io.RawIOBase):
    """One that is being read."""

    def __init__(self, path: FarPath) -> None:
        self._path, self._at = path, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        if whence == io.SEEK_END:
            offset += self._path.read(0, memoryview(bytearray()))[1]
        elif whence != io.SEEK_SET:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        self._at = offset
        return offset

    def readinto(self, buffer: Any) -> int:
        """All of it, as far as the file goes: of other files, too, this is what it does here."""
        filled, _ = self._path.read(self._at, memoryview(buffer).cast("B"))
        self._at += filled
        return filled

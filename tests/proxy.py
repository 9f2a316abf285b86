"""A TCP connection that a test can cut, stop and mend: it stands between a client and a server."""

from __future__ import annotations

import contextlib
import selectors
import socket
import struct
import threading
import time


class Proxy:
    """Listens at ``address`` and passes on to a server what comes.

    Attributes:
      delivers: while it is not set, what comes is taken in and lost, as in a cut that nobody has
        noticed yet: the sender's kernel believes that it has arrived.
      reads: while it is not set, nothing is taken from the server, which is held up.
    """

    def __init__(self, host: str, port: int) -> None:
        self._server = host, port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = "127.0.0.1", self._listener.getsockname()[1]
        self.delivers = threading.Event()
        self.reads = threading.Event()
        self.delivers.set()
        self.reads.set()
        self.lost = 0  # bytes
        self._is_cut = self._closed = False
        self._pairs: dict[socket.socket, socket.socket] = {}
        self._servers: set[socket.socket] = set()
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    @property
    def endpoint(self) -> str:
        return "tcp://{}:{}".format(*self.address)

    def cut(self) -> None:
        """End all connections with a reset, and every new one too, until ``mend``."""
        with self._lock:
            self._is_cut = True
            for sock in list(self._pairs):
                self._drop(sock)

    def mend(self) -> None:
        self.delivers.set()
        self.reads.set()
        self._is_cut = False

    def close(self) -> None:
        self._closed = True
        self._thread.join(10)
        self.cut()
        self._listener.close()

    def _serve(self) -> None:
        while not self._closed:
            with selectors.DefaultSelector() as selector:
                selector.register(self._listener, selectors.EVENT_READ)
                with self._lock:
                    for sock in self._pairs:
                        if self.reads.is_set() or sock not in self._servers:
                            selector.register(sock, selectors.EVENT_READ)
                ready = [key.fileobj for key, _ in selector.select(0.01)]
            with self._lock:
                for sock in ready:
                    assert isinstance(sock, socket.socket)
                    if sock is self._listener:
                        self._accept()
                    elif sock in self._pairs:
                        self._pass_on(sock)

    def _accept(self) -> None:
        here, _ = self._listener.accept()
        with contextlib.suppress(OSError):
            there = socket.create_connection(self._server)
            self._pairs[here], self._pairs[there] = there, here
            self._servers.add(there)
            if self._is_cut:
                self._drop(here)
            return
        here.close()

    def _pass_on(self, sock: socket.socket) -> None:
        try:
            data = sock.recv(1 << 18)
            if data and self.delivers.is_set():
                self._pairs[sock].sendall(data)
            elif data:
                self.lost += len(data)
        except OSError:
            data = b""
        if not data:
            self._drop(sock)

    def _drop(self, sock: socket.socket) -> None:
        for end in (sock, self._pairs.pop(sock, None)):
            if end is not None:
                self._pairs.pop(end, None)
                self._servers.discard(end)
                with contextlib.suppress(OSError):
                    end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                end.close()


def wait(seconds: float) -> None:
    """For how long a cut lasts: that is what is tested, so there is no condition to wait for."""
    time.sleep(seconds)

"""Ways to pods from outside of the cluster: port-forward, as ``kubectl port-forward`` has it.

For each pod there is a Unix socket in the launch's folder; each connection to it is one to the port
of the pod's agent, through the API server.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jaxcluster.launchers.kube.api import Api

PIECE = 1 << 16


class Forwards:
    """The sockets of a launch, each with a thread that waits for connections."""

    def __init__(self, api: Api, folder: Path) -> None:
        self.api, self.folder = api, folder
        self._listening: dict[int, tuple[socket.socket, Path]] = {}

    def open(self, number: int, pod: str, endpoint: str) -> str:
        """A socket here that leads to ``endpoint`` of a pod; returns its path."""
        self.close(number)
        port = int(endpoint.rpartition(":")[2])
        path = self.folder / f"{number}.sock"
        path.unlink(missing_ok=True)
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        listener.bind(str(path))
        listener.listen(8)
        self._listening[number] = listener, path
        threading.Thread(target=self._serve, args=(listener, pod, port), daemon=True).start()
        return str(path)

    def close(self, number: int) -> None:
        """Nobody gets there any more."""
        if (found := self._listening.pop(number, None)) is not None:
            listener, path = found
            with contextlib.suppress(OSError):
                listener.shutdown(socket.SHUT_RDWR)
            listener.close()
            path.unlink(missing_ok=True)

    def close_all(self) -> None:
        for number in list(self._listening):
            self.close(number)

    def _serve(self, listener: socket.socket, pod: str, port: int) -> None:
        with contextlib.suppress(OSError):  # it was closed
            while True:
                here, _ = listener.accept()
                threading.Thread(target=self._join, args=(here, pod, port), daemon=True).start()

    def _join(self, here: socket.socket, pod: str, port: int) -> None:
        try:
            there = self.api.forward(pod, port)
        except Exception:  # the notebook's end tries again
            here.close()
            return
        there.setblocking(True)
        back = threading.Thread(target=_pump, args=(there, here), daemon=True)
        back.start()
        _pump(here, there)
        back.join()
        for one in (here, there):
            with contextlib.suppress(OSError):
                one.close()


def _pump(source: Any, sink: Any) -> None:
    """What comes from one to the other, until one of them has ended; then both have."""
    with contextlib.suppress(OSError):
        while data := source.recv(PIECE):
            sink.sendall(data)
    for one in (source, sink):
        with contextlib.suppress(OSError):
            one.shutdown(socket.SHUT_RDWR)

"""ipyparallel's client of a cluster's engines, which are its ranks."""

from __future__ import annotations

import ipyparallel
import zmq


class Client(ipyparallel.Client):
    """A client that hears its first cell's output. ``execute`` waits for its end without limit."""

    def _start_io_thread(self) -> None:
        monitor = self._iopub_socket.get_monitor_socket(zmq.EVENT_HANDSHAKE_SUCCEEDED)
        monitor.poll(1000)  # milliseconds at most
        self._iopub_socket.disable_monitor()
        monitor.close()
        super()._start_io_thread()

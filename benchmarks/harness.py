"""What the benchmarks share: a kernel driven as a notebook drives it, tables, tidying up."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

import psutil
import zmq
from jupyter_client import KernelManager

from jaxcluster.cluster import stop_owned
from jaxcluster.hosts.here import quit_warm

MARK = "JAXCLUSTER_RUNTIME_DIR"


@dataclass(frozen=True)
class Cell:
    """One executed cell: the text that it showed, and the seconds from its request to its end."""

    text: str
    seconds: float


class Kernel:
    """A Jupyter kernel in a process of its own, and the one client that runs cells on it."""

    def __init__(self) -> None:
        self.manager = KernelManager()
        self.manager.start_kernel(stderr=subprocess.DEVNULL)  # it warns that TCP is not encrypted
        self.client = self.manager.blocking_client()
        self.client.start_channels()
        self.client.wait_for_ready(timeout=60)
        # The client's own sockets belong to an event loop; without it a message takes half as long.
        self._shell = zmq.Socket.shadow(self.client.shell_channel.socket)
        self._iopub = zmq.Socket.shadow(self.client.iopub_channel.socket)
        self._poller = zmq.Poller()
        self._poller.register(self._shell, zmq.POLLIN)
        self._poller.register(self._iopub, zmq.POLLIN)

    def __enter__(self) -> Kernel:
        return self

    def __exit__(self, *exc: object) -> None:
        self.client.stop_channels()
        self.manager.shutdown_kernel()  # politely: ipyparallel stops its cluster at exit

    def open_panel(self) -> None:
        """Be a page that shows jaxcluster's panel, as the Lab extension is."""
        session = self.client.session
        content = {"comm_id": "page", "target_name": "jaxcluster.rpc", "data": {}}
        session.send(self._shell, "comm_open", content)
        asked = {"id": "page:1", "op": "hello", "args": {"client": "page"}}
        session.send(self._shell, "comm_msg", {"comm_id": "page", "data": asked})
        asked = {"id": "page:2", "op": "watch", "args": {"on": True}}
        session.send(self._shell, "comm_msg", {"comm_id": "page", "data": asked})

    def run(self, source: str, timeout_s: float = 120.0) -> Cell:
        """Execute a cell; it has ended when its reply and the kernel's "idle" are both here.

        Raises:
          RuntimeError: the cell raised, or did not end within ``timeout_s``.
        """
        session, text = self.client.session, []
        began = time.perf_counter()
        content = {
            "code": source,
            "silent": False,
            "store_history": True,
            "user_expressions": {},
            "allow_stdin": False,
            "stop_on_error": True,
        }
        sent = session.send(self._shell, "execute_request", content)["header"]["msg_id"]
        reply: dict[str, Any] | None = None
        idle = False
        while reply is None or not idle:
            events = self._poller.poll(timeout_s * 1000)
            if not events:
                raise RuntimeError(f"a cell did not end within {timeout_s:g} s:\n{source}")
            for socket, _ in events:
                _, message = session.recv(socket, 0)
                if message is None or message["parent_header"].get("msg_id") != sent:
                    continue
                kind, body = message["header"]["msg_type"], message["content"]
                if kind == "execute_reply":
                    reply = body
                elif kind == "status":
                    idle = idle or body["execution_state"] == "idle"
                elif kind == "stream":
                    text.append(body["text"])
                elif "data" in body:
                    text.append(body["data"].get("text/plain", ""))
        seconds = time.perf_counter() - began
        if reply["status"] != "ok":
            raise RuntimeError("\n".join(reply.get("traceback", [str(reply)])))
        return Cell("".join(text), seconds)


@contextlib.contextmanager
def sandbox() -> Iterator[str]:
    """A folder for all that a benchmark leaves; its processes are ended with it.

    The user's own clusters and IPython profile are neither seen nor touched, and JAX runs on CPU.
    """
    folder = tempfile.mkdtemp(prefix="jc-bench-", dir="/tmp")
    os.environ[MARK] = f"{folder}/run"
    os.environ["IPYTHONDIR"] = f"{folder}/ipython"
    os.environ["JAX_PLATFORMS"] = "cpu"
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    before = os.getloadavg()[0]
    names = ("jax", "jaxcluster", "ipyparallel", "ipykernel")
    print(
        f"Python {sys.version.split()[0]}, {', '.join(f'{n} {version(n)}' for n in names)}; "
        f"{os.cpu_count()} CPUs",
        flush=True,
    )
    try:
        yield folder
    finally:
        load = f"{before:.1f} before, {os.getloadavg()[0]:.1f} after"
        print(f"load average (1 min): {load}. Other work on the machine makes figures worse.")
        stop_owned()
        quit_warm()  # this process's own fork server, which would end with it
        if left := _end_leftovers(folder):
            print(f"ended what was left behind: {', '.join(left)}", file=sys.stderr)
        shutil.rmtree(folder, ignore_errors=True)


def _end_leftovers(folder: str) -> list[str]:
    """Kill processes that were started under the sandbox's environment and still run."""
    found, deadline = [], time.monotonic() + 5
    while time.monotonic() < deadline:
        found = [p for p in psutil.process_iter() if p.pid != os.getpid() and is_ours(p, folder)]
        if not found:
            return []
        time.sleep(0.05)  # those that see their owner's end need a moment
    names = [f"{p.pid} {p.name()}" for p in found]
    for process in found:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    return names


def is_ours(process: psutil.Process, folder: str) -> bool:
    try:
        running = process.status() != psutil.STATUS_ZOMBIE
        return running and process.environ().get(MARK, "").startswith(folder)
    except psutil.Error:
        return False


def median(values: Sequence[float]) -> float:
    return statistics.median(values)


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print rows of text under a header, all but the first column right-aligned."""
    widths = [max(len(row[i]) for row in [header, *rows]) for i in range(len(header))]
    for row in [header, *rows]:
        rest = zip(row[1:], widths[1:], strict=True)
        print("  ".join([row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in rest)]))


def ratio(what: str, value: float, limit: float, at_least: bool = False) -> None:
    """Print a figure beside the target that it is held to."""
    met = value >= limit if at_least else value <= limit
    sign = ">=" if at_least else "<="
    print(f"{what}: {value:.2f}x (target {sign} {limit:g}: {'met' if met else 'MISSED'})")

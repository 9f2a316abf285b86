"""The notebook's end of a fork server (``jaxcluster.engine.forkserver``)."""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import os
import queue
import socket
import subprocess
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from jaxcluster import wire
from jaxcluster.agent.client import WAIT_LONGER
from jaxcluster.errors import LaunchError
from jaxcluster.host import procfs
from jaxcluster.records import claims, registry
from jaxcluster.supervision import starting
from jaxcluster.supervision.ends import let_go
from jaxcluster.supervision.processes import peer_of
from jaxcluster.wire import forks
from jaxcluster.wire.requests import Reply, Request

R = TypeVar("R")

# Read when Python starts, or when numpy or jax is imported, so a fork server keeps them:
# where they differ, it takes a new one.
IMPORT_TIME_PREFIXES = (
    "JAX_",
    "XLA_",
    "TF_CPP_",
    "NPY_",
    "NUMPY_",
    "OPENBLAS_",
    "GOTO_",
    "BLIS_",
    "OMP_",
    "KMP_",
    "MKL_",
    "LD_",
    "GLIBC_",
    "MALLOC_",
    "LC_",
    "PYTHON",
)
# These alone: they stand where others can read them, and LANGCHAIN_API_KEY is not theirs.
IMPORT_TIME_NAMES = ("TPU_LIBRARY_PATH", "CUDA_ROOT", "LANG", "LANGUAGE", "JAXCLUSTER_NO_FORK")


LOOK_S = 1.0  # between looks whether one that does not answer is stopped


def import_time_settings(env: Mapping[str, str]) -> dict[str, str]:
    """The part of an environment that a process can't take on after its imports."""
    return {
        name: value
        for name, value in sorted(env.items())
        if name.startswith(IMPORT_TIME_PREFIXES) or name in IMPORT_TIME_NAMES
    }


@dataclass(frozen=True)
class HostLost:
    """A host is lost, with the ranks on it.

    Attributes:
      is_first: it had rank 0.
      gone: its agent has ended, or will; else that is not known here.
    """

    host: str
    is_first: bool
    ranks: list[int]
    why: str
    gone: bool


OnEvent = Callable[[forks.Event | HostLost], None]


class ForkServers(ABC):
    """Those whose children a cluster's processes are, one on each host, as if there were one.

    Attributes:
      path: the socket of this machine's.
      on_event: called with each event that answers no command, and with each host that is lost.
    """

    path = Path()
    on_event: OnEvent | None = None

    @abstractmethod
    def command(self, command: Request[None], timeout_s: float = 30.0) -> None:
        """Send a command and wait until it is done.

        Raises:
          LaunchError: one has ended or is stopped, or does not answer within ``timeout_s``.
        """

    @abstractmethod
    def quit(self) -> None:
        """End them and all that they have started, and wait until they are gone."""

    @abstractmethod
    def close(self) -> None:
        """Disconnect; they live on with their owner."""

    def leave(self) -> None:
        """Disconnect permanently: they are detached, and do not end with this process."""
        self.close()

    def losses(self) -> list[HostLost]:
        """Which hosts were lost before anybody listened; this machine never is."""
        return []

    def out_of_reach(self) -> list[str]:
        """The names of the hosts that can't be reached now and are not known to have ended."""
        return []

    def records(self) -> list[registry.HostRecord]:
        """How another process of this machine joins the hosts."""
        return []


class Supervisor(ForkServers):
    """A connection to one fork server, and the process itself where it was started from here.

    Args:
      path: the fork server's socket.
      on_event: called with each event that answers no command, on the reader's thread.
    """

    def __init__(self, path: Path, on_event: OnEvent | None = None):
        self.path = path
        self.on_event = on_event
        self.in_use = False  # a cluster of this process is on it, or will be again
        self.settings: dict[str, str] | None = None
        self.log: Path | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._ids = itertools.count(1)
        self._replies: dict[int, wire.Inbox[Reply | None]] = {}  # None: it is lost
        self._socket: socket.socket | None = None
        self._peer = 0  # its process id, as the kernel has it
        self._is_lost = False  # the fork server has ended the connection
        self._send_lock = threading.Lock()

    @classmethod
    def launch(cls, path: Path, env: Mapping[str, str], cwd: str) -> Supervisor:
        """Start a fork server that ends with this process. Returns before it is ready."""
        self = cls(path)
        self.settings = import_time_settings(env)
        self.log = path.with_suffix(".log")
        with open(self.log, "ab") as log:
            with contextlib.suppress(OSError):  # a file system without locks
                fcntl.flock(log, fcntl.LOCK_SH)  # the fork server shares it: see sweep
            self._process = starting.fork_server(str(path), env, cwd, log)
        return self

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process else None

    @property
    def alive(self) -> bool:
        if self._is_lost:  # its process may still be on its way out
            return False
        if self._process is not None:
            return self._process.poll() is None
        return self._socket is not None

    def is_kept(self) -> bool:
        """Have it live for what is started next; returns whether it does.

        A detached one would end with the last of its processes, an idle one after its time: once
        it has answered, it has not, and for its whole idle time it won't.
        """
        if not self.alive:
            return False
        try:
            self.command(forks.Detach(False), 10.0)
        except LaunchError:
            return False
        return True

    def connect(self, timeout_s: float) -> None:
        """Connect to its socket.

        Raises:
          LaunchError: it ended, or does not answer within ``timeout_s``.
        """
        deadline = time.monotonic() + timeout_s
        while True:
            connection = socket.socket(socket.AF_UNIX)
            try:
                connection.connect(str(self.path))
                break
            except OSError as error:
                connection.close()
                if self._process is None and not isinstance(error, BlockingIOError):
                    raise LaunchError(f"There is no fork server at {self.path}.") from None
                if self._process is not None and self._process.poll() is not None:
                    raise LaunchError(
                        f"The fork server ended with code {self._process.returncode}.\n"
                        + self.log_excerpt()
                    ) from None
                if time.monotonic() > deadline:
                    raise LaunchError(
                        f"The fork server does not answer ({error}).",
                        WAIT_LONGER,
                    ) from None
                time.sleep(0.002)
        self._peer = _check_peer(connection, self.path)
        # The one before may notice its end late: that is not the end of what is asked now.
        self._socket, self._replies = connection, {}
        threading.Thread(
            target=self._read,
            args=(connection, self._replies),
            name="jaxcluster-supervisor",
            daemon=True,
        ).start()

    def log_excerpt(self) -> str:
        return starting.log_end(self.log) if self.log is not None else ""

    def command(self, command: Request[R], timeout_s: float = 30.0) -> R:
        if self._socket is None:
            self.connect(timeout_s)
        deadline = time.monotonic() + timeout_s
        id = next(self._ids)
        answer: wire.Inbox[Reply | None] = wire.Inbox()
        replies = self._replies
        replies[id] = answer
        self._send(command.told(id))
        try:
            while True:
                try:
                    left = max(0.0, deadline - time.monotonic())
                    reply = answer.get(timeout=min(LOOK_S, left))
                    break
                except queue.Empty:
                    self._check_not_stopped()
                if time.monotonic() > deadline:
                    raise LaunchError(
                        f"The fork server did not answer {command.cmd!r} within {timeout_s:g} s.\n"
                        + self.log_excerpt(),
                        WAIT_LONGER if isinstance(command, forks.Spawn) else "",
                    )
        finally:
            replies.pop(id, None)
        if reply is None:
            raise LaunchError("The fork server has ended.\n" + self.log_excerpt())
        return command.read(reply.answer)

    @property
    def is_stopped(self) -> bool:
        """Whether somebody has stopped its process, as Ctrl-Z or a debugger does."""
        look = procfs.look_at(self._peer) if self._peer else None
        return look is not None and look.threads[look.pid].state in ("T", "t")

    def _check_not_stopped(self) -> None:
        if self.is_stopped:
            raise LaunchError(
                f"The fork server (process {self._peer}) was stopped by SIGSTOP or a debugger, "
                "so no process can be started or ended.",
                f"In a shell of this machine: kill -CONT {self._peer}",
            )

    def quit(self) -> None:
        try:
            if self._socket is None:
                self.connect(2)
            self._send(forks.End().told(0))
        except (LaunchError, OSError):
            pass
        if self._process is not None:
            let_go(self._process, 0 if self.is_stopped else 5)
            _unlink(self.path)
        self.close()

    def close(self) -> None:
        if (connection := self._socket) is not None:
            self._socket = None
            with contextlib.suppress(OSError):  # it wakes the reader, which close alone does not
                connection.shutdown(socket.SHUT_RDWR)
            connection.close()

    def leave(self) -> None:
        self.close()
        if self._process is not None and self._process.stdin is not None:
            self._process.stdin.close()
            _left.append(self._process)

    def _send(self, line: bytes) -> None:
        assert self._socket is not None
        with self._send_lock:
            try:
                self._socket.sendall(line + b"\n")
            except OSError as error:
                self._is_lost = True
                raise LaunchError(f"The fork server is gone ({error}).") from None

    def _read(
        self, connection: socket.socket, replies: dict[int, wire.Inbox[Reply | None]]
    ) -> None:
        inbox = b""
        while True:
            try:
                data = connection.recv(1 << 16)
            except OSError:
                data = b""
            if not data:
                break
            *lines, inbox = (inbox + data).split(b"\n")
            for line in lines:
                message = forks.message_in(line)
                if isinstance(message, Reply):
                    if (answer := replies.get(message.id)) is not None:
                        answer.put(message)
                elif self.on_event is not None:
                    self.on_event(message)
        self._is_lost = self._is_lost or self._socket is connection  # else it was we who left
        for answer in list(replies.values()):
            answer.put(None)
        if self.on_event is not None and self._replies is replies:
            self.on_event(forks.Lost())


_warm: Supervisor | None = None
_left: list[subprocess.Popen[bytes]] = []  # Popen would warn of a process that goes on


def warm_supervisor(root: Path, env: Mapping[str, str], cwd: str) -> Supervisor:
    """This process's fork server, for one cluster: the idle one if its imports fit ``env``.

    One is kept for the life of the process (it ends by itself after 10 idle minutes), so that the
    second start of a cluster costs no import. One that carries a cluster is not shared: its end
    is the end of all that is on it.
    """
    global _warm
    settings = import_time_settings(env)
    if _warm is not None and not _warm.in_use:
        if _warm.settings == settings and _warm.is_kept():
            _warm.in_use = True
            return _warm
        _warm.quit()
    path = root / f"fork-{os.getpid()}-{time.monotonic_ns() % 100000}.sock"
    _warm = Supervisor.launch(path, env, cwd)
    _warm.in_use = True
    return _warm


def release_warm(supervisor: Supervisor) -> None:
    """Forget ``supervisor``: the cluster on it is detached and takes it along."""
    global _warm
    if _warm is supervisor:
        _warm = None


def retire(supervisor: Supervisor) -> None:
    """After the end of its cluster: it is kept for the next one, unless there is another."""
    supervisor.on_event, supervisor.in_use = None, False
    if supervisor is not _warm:
        supervisor.quit()


def quit_warm() -> bool:
    """End this process's idle fork server, if there is one. Returns whether there was."""
    global _warm
    if _warm is None or _warm.in_use:
        return False
    supervisor, _warm = _warm, None
    was_alive = supervisor.alive
    supervisor.quit()
    return was_alive


def sweep(root: Path) -> None:
    """Remove what fork servers that have ended left behind in the runtime folder.

    A fork server shares the lock on its log with who has started it, so where locks reach, a free
    one says that it has ended (see ``claims``).
    """
    if not claims.is_local(root):
        return
    for path in {path.with_suffix(".sock") for path in root.glob("fork-*")}:
        log = path.with_suffix(".log")
        gone = registry.is_locked(log) is False or not log.exists()
        if gone and not claims.listens(path):
            _unlink(path)


def _check_peer(connection: socket.socket, path: Path) -> int:
    """Whoever listens must be this user: what he is sent is run. His process id; 0 if unknown.

    Raises:
      LaunchError: he is not.
    """
    pid, uid = peer_of(connection)
    if uid != os.getuid():
        connection.close()
        raise LaunchError(f"Another user ({uid}) listens on {path}.")
    return pid


def _unlink(path: Path) -> None:
    path.unlink(missing_ok=True)
    path.with_suffix(".log").unlink(missing_ok=True)

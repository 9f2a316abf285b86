"""The process that starts a cluster's processes on this machine, watches them, and ends them.

``python -m jaxcluster.engine.forkserver --socket PATH --owner PID:START [--no-fork]
[--folder PATH]...``

It imports jax, ipykernel and ipyparallel once and forks the ranks and ipyparallel's controller
from that: 4 ranks take some 15 ms instead of 4 imports. It has one thread, touches no JAX backend
and makes no zmq context, so forking it is safe. With ``--no-fork`` (and wherever fork is not to be
had) it imports nothing and starts plain ``python -m jaxcluster.engine`` processes instead.

It is the parent of all, so it hears of every exit at once (SIGCHLD), and it ends them all when its
owner is gone (``supervision.loop``). Should it be killed itself, the kernel ends its children
(PDEATHSIG). A detached cluster is found by its folder and this socket.

An agent's fork server (``--folder``) leaves nothing on its host, also when the agent was killed: it
takes in what its processes leave behind, in sessions of their own too, ends that when none of them
is there any more, and at its own end removes the agent's folders.

Commands and events (``wire.forks``) are JSON lines on a Unix socket in a directory that only this
user can enter.
"""

from __future__ import annotations

import argparse
import contextlib
import errno
import faulthandler
import fcntl
import gc
import importlib
import json
import os
import selectors
import shutil
import signal
import socket
import subprocess
import sys
import time
import traceback
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from jaxcluster.engine.forked import become_a_process_of_its_own
from jaxcluster.host import shared_memory
from jaxcluster.host.processes import allow_files, redirect_output
from jaxcluster.supervision import ends, processes
from jaxcluster.supervision.loop import LOOK_S, SupervisionLoop
from jaxcluster.supervision.starting import findable
from jaxcluster.wire import forks
from jaxcluster.wire.requests import Reply, Request, parsed

ENDING_S = 2.0  # for a process whose connection has ended to be gone
IDLE_EXIT_S = 600.0

# What a rank imports only when its kernel is made or its first computation is compiled: imported
# here, it is neither loaded nor kept once for every rank. One that has moved is loaded late again.
LATE_MODULES = (
    "IPython.core.completerlib",
    "IPython.core.logger",
    "IPython.core.oinspect",
    "IPython.extensions.storemagic",
    "ipykernel.debugger",  # debugpy, some 0.1 s: the kernel class names it, used or not
    "jaxlib.mlir.dialects.builtin",
    "jaxlib.mlir.dialects.mhlo",
    "threadpoolctl",
    "tornado.platform.asyncio",
)


@dataclass
class Child:
    process: forks.Process
    popen: subprocess.Popen[bytes] | None  # of one that was not forked


@dataclass
class Connection:
    sock: socket.socket
    inbox: bytes = b""
    peer: str = ""  # the process at its other end; "" where that is not known


@dataclass
class Pending:
    """A kill that is answered once all its pids are reaped."""

    connection: Connection
    id: int
    pids: set[int]


class ForkServer(SupervisionLoop):
    """One loop over the socket, SIGCHLD and the owner's standard input."""

    def __init__(
        self,
        listener: socket.socket,
        path: str,
        owner: str,
        fork: bool,
        folders: Sequence[str] = (),
    ) -> None:
        super().__init__(owner)
        self.listener = listener
        self.path = path
        self.fork = fork
        self.folders = folders
        self.children: dict[int, Child] = {}
        self.connections: dict[int, Connection] = {}
        self.former: set[str] = set()  # processes that were connected, and may have ended
        self.pending: list[Pending] = []
        self.deferred: list[tuple[Connection, int, Request[Any]]] = []
        self.preloaded = not fork
        self.exits: list[forks.Exit] = []  # of the present cluster's processes
        self.ending: set[int] = set()  # those whose end was asked for
        self.held: tuple[str, int] | None = None  # the file that says that the cluster lives
        self.socket_file = self.found_by[path] = os.stat(path)
        self.idle_since = time.monotonic()

    # ------------------------------------------------------------------ loop

    def run(self) -> None:
        self.wake = processes.wake_on(signal.SIGCHLD)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        self.selector.register(self.listener, selectors.EVENT_READ, self._accept)
        self.selector.register(self.wake[0], selectors.EVENT_READ, self._woken)
        self.hear_owner()
        self.watch_owner()
        if self.fork:
            self._preload()
        while not self.leaving:
            self.turn(LOOK_S if self.detached or self.former else self.look_s)
            self.former = {peer for peer in self.former if not shared_memory.remove_of(peer)}
            if self.children:
                self.idle_since = time.monotonic()
            elif self.folders:  # an agent's: it lives as long as that
                pass
            elif self.detached or time.monotonic() - self.idle_since > IDLE_EXIT_S:
                self.leaving = True
        self._end()

    def _preload(self) -> None:
        # All that is imported stays: to look for garbage in it costs a fifth of the time.
        gc.disable()
        # The controller needs no jax: let it come up on another core meanwhile.
        _preload_controller()
        while not self.leaving and self.turn(0):  # a connection first, then what it has sent
            pass
        if self.leaving:
            return
        _preload_rank()
        gc.freeze()  # permanently: a child that collects garbage would copy all these pages
        gc.enable()
        self.preloaded = True
        while self.deferred:
            self._command(*self.deferred.pop(0))

    def _woken(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.read(self.wake[0], 4096)
        self._reap()

    def _accept(self) -> None:
        sock, _ = self.listener.accept()
        pid, _ = processes.peer_of(sock)
        connection = Connection(sock, peer=processes.process_token(pid) if pid else "")
        self.connections[sock.fileno()] = connection
        self.selector.register(sock, selectors.EVENT_READ, partial(self._read, connection))

    def _read(self, connection: Connection) -> None:
        try:
            data = connection.sock.recv(1 << 16)
        except OSError:
            data = b""
        if not data:
            self._drop(connection)
            return
        *lines, connection.inbox = (connection.inbox + data).split(b"\n")
        for line in lines:
            message = json.loads(line)
            try:
                command = parsed(message)
            except (ValueError, TypeError) as error:  # of another version
                print(error, file=sys.stderr, flush=True)
            else:
                self._command(connection, message["id"], command)

    def _drop(self, connection: Connection) -> None:
        self.pending = [p for p in self.pending if p.connection is not connection]
        fd = connection.sock.fileno()
        if fd >= 0:
            self.selector.unregister(connection.sock)
            self.connections.pop(fd, None)
            connection.sock.close()
            self.former |= {connection.peer} - {""}

    def _send(self, connection: Connection, message: Reply | forks.Event) -> None:
        try:
            connection.sock.sendall(forks.line_of(message) + b"\n")
        except OSError:
            self._drop(connection)

    def _tell_others(self, connection: Connection, event: forks.Event) -> None:
        for other in list(self.connections.values()):
            if other is not connection:
                self._send(other, event)

    # ------------------------------------------------------------------ commands

    def _command(self, connection: Connection, id: int, command: Request[Any]) -> None:
        self.idle_since = time.monotonic()
        answer: Any = None
        match command:
            case forks.Spawn():
                if not self.preloaded and any(proc.role == "rank" for proc in command.procs):
                    self.deferred.append((connection, id, command))
                    return
                answer = [self._spawn(proc) for proc in command.procs]
            case forks.Kill() | forks.Stop():
                targets = set(self.children)
                if isinstance(command, forks.Kill):
                    targets &= set(command.pids)
                else:
                    self.exits.clear()  # those of the processes that come next are others
                    self._tell_others(connection, forks.Stopping(command.why))
                self.ending |= targets
                # Not SIGTERM: a rank would wait at JAX's shutdown barrier.
                ends.kill_groups(targets)
                if targets:
                    self.pending.append(Pending(connection, id, targets))
                    self._reap()
                    return
            case forks.Exits():
                for exit in self.exits:
                    self._send(connection, exit)
            case forks.Detach():
                self.detached = command.detached
            case forks.Relay():
                self._tell_others(connection, forks.Relayed(command.message))
            case forks.End():
                self.leaving = True
                return
        self._send(connection, Reply(id, answer))

    def own_files(self) -> Iterable[str]:
        folder = os.path.dirname(self.held[0]) if self.held is not None else ""
        own = [os.path.dirname(self.path), self.path, os.path.splitext(self.path)[0] + ".log"]
        with contextlib.suppress(OSError):
            own += [folder, *(entry.path for entry in os.scandir(folder))] if folder else []
        return own

    def _hold(self, path: str) -> None:
        """Lock the file that shows others that the cluster lives, while this process does."""
        self._let_go()
        with contextlib.suppress(OSError):  # no such file, or a file system without locks
            lock = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
            self.held, self.found_by[path] = (path, lock), os.fstat(lock)
            fcntl.flock(lock, fcntl.LOCK_SH)

    def _let_go(self) -> None:
        if self.held is not None:
            path, lock = self.held
            os.close(lock)
            self.found_by.pop(path, None)
            self.held = None

    def _spawn(self, proc: forks.Process) -> int:
        if proc.hold:
            self._hold(proc.hold)
            self.exits.clear()
        popen = None if self.fork else self._popen(proc)
        pid = self._fork(proc) if popen is None else popen.pid
        self.children[pid] = Child(proc, popen)
        return pid

    def _popen(self, proc: forks.Process) -> subprocess.Popen[bytes]:
        module, parent = "jaxcluster.engine", os.getpid()
        if proc.role != "rank":
            module += f".{proc.role}"
        with open(proc.log, "ab") as log:
            return subprocess.Popen(
                [sys.executable, "-P", "-X", "faulthandler", "-m", module, *proc.argv],
                env=findable(proc.env, os.getcwd()),
                cwd=proc.cwd,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                preexec_fn=partial(processes.die_with_parent, parent),  # noqa: PLW1509 - one thread
            )

    def _fork(self, proc: forks.Process) -> int:
        parent = os.getpid()
        pid = os.fork()
        if pid:
            return pid
        code = 1
        try:
            self._become(proc, parent)
            code = 0
        except SystemExit as exit:
            code = exit.code if isinstance(exit.code, int) else int(exit.code is not None)
        except BaseException:
            traceback.print_exc()
        finally:
            with contextlib.suppress(Exception):  # the process ends here, whatever comes
                sys.stderr.flush()
            os._exit(code)

    def _become(self, proc: forks.Process, parent: int) -> None:
        """In the child: forget the server, take on the process's own session, log and settings."""
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        self.selector.close()
        self.listener.close()
        for connection in self.connections.values():
            connection.sock.close()
        for end in self.wake:
            os.close(end)
        self._let_go()  # its own copy: the server holds it still
        os.setsid()
        processes.die_with_parent(parent)
        redirect_output(proc.log)
        os.environ.clear()
        os.environ.update(proc.env)
        os.chdir(proc.cwd)
        become_a_process_of_its_own(proc.cwd)
        gc.enable()
        is_rank = proc.role == "rank"
        module = importlib.import_module(f"jaxcluster.engine.{'app' if is_rank else proc.role}")
        module.main(*([] if is_rank else [proc.argv]))

    # ------------------------------------------------------------------ ends

    def _reap(self) -> None:
        while self.children or self.folders:  # orphans that were taken in are reaped too
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                break
            if pid == 0:
                break
            code = os.waitstatus_to_exitcode(status)
            if (child := self.children.pop(pid, None)) is None:
                continue
            if child.popen is not None:
                child.popen.returncode = code
            ends.kill_groups([pid])  # what it has started, if it ended by itself
            proc = child.process
            exit = forks.Exit(proc.role, proc.rank, code)
            if pid in self.ending:
                self.ending.discard(pid)
            else:
                self.exits.append(exit)
            for connection in list(self.connections.values()):
                self._send(connection, exit)
        for waiting in list(self.pending):
            waiting.pids &= self.children.keys()
            if not waiting.pids:
                self.pending.remove(waiting)
                self._send(waiting.connection, Reply(waiting.id))
        if not self.children:
            self._let_go()
            if self.folders:
                ends.end_children(2)

    def _end(self) -> None:
        ends.kill_groups(self.children)
        deadline = time.monotonic() + 5
        while self.children and time.monotonic() < deadline:
            self.selector.select(0.05)
            self._reap()
        with contextlib.suppress(OSError):
            if os.path.samestat(os.stat(self.path), self.socket_file):
                os.unlink(self.path)
        if self.folders:
            ends.end_children(2)
            for folder in self.folders:
                shutil.rmtree(folder, ignore_errors=True)
        self._remove_values()
        os._exit(0)

    def _remove_values(self) -> None:
        """Of processes that were killed while they had values on their way."""
        peers = {self.owner, *self.former, *(c.peer for c in self.connections.values())} - {""}
        deadline = time.monotonic() + ENDING_S
        while peers and time.monotonic() < deadline:
            peers = {
                p for p in peers if not shared_memory.remove_of(p) and shared_memory.files_of(p)
            }
            time.sleep(0.01 * bool(peers))


def _preload_controller() -> None:
    import ipyparallel.controller.app
    import ipyparallel.engine.app  # noqa: F401
    import zmq  # noqa: F401


def _preload_rank() -> None:
    """Import what every rank needs. What can't be imported here fails in the rank, with its log."""
    import jax
    import jax.experimental.multihost_utils
    import jax.numpy
    import jax.sharding  # noqa: F401

    # The first traceback that IPython renders costs over a second of imports.
    from IPython.core.ultratb import VerboseTB

    import jaxcluster.engine.app  # noqa: F401

    # ipykernel's debugger says this of itself, to the log, when it is imported.
    os.environ["PYDEVD_DISABLE_FILE_VALIDATION"] = "1"
    for name in LATE_MODULES:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    try:
        raise RuntimeError
    except RuntimeError as error:
        VerboseTB(theme_name="nocolor").structured_traceback(
            type(error), error, error.__traceback__
        )


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m jaxcluster.engine.forkserver")
    parser.add_argument("--socket", required=True)
    parser.add_argument("--owner", required=True, help="PID:START of the process that it dies with")
    parser.add_argument("--no-fork", action="store_true")
    parser.add_argument("--folder", action="append", default=[], help="removed at its end")
    args = parser.parse_args(argv)
    faulthandler.enable(file=2, all_threads=True)  # what is forked writes to its own log with it
    # OpenBLAS starts its threads at import, and only a process of one thread can be forked safely;
    # each rank sets its own number of threads after the fork.
    os.environ["OPENBLAS_NUM_THREADS"] = "1"
    allow_files()
    try:
        listener = listen(args.socket)
    except OSError as error:
        sys.exit(f"can't listen on {args.socket}: {error.strerror or error}")
    if args.folder:
        processes.adopt_orphans()
    ForkServer(listener, args.socket, args.owner, not args.no_fork, args.folder).run()


def listen(path: str) -> socket.socket:
    """A socket that listens at ``path``, in a folder that is this user's alone.

    The folder is opened, checked and used by its descriptor: a path may be turned elsewhere.

    Raises:
      OSError: it can't be bound, or the folder is somebody else's.
    """
    folder, name = os.path.split(path)
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        found = os.fstat(descriptor)
        if found.st_uid != os.getuid() or found.st_mode & 0o077:
            raise PermissionError(errno.EPERM, f"{folder} is not this user's alone")
        inside = f"/proc/self/fd/{descriptor}"
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(f"{inside if os.path.isdir(inside) else folder}/{name}")
    finally:
        os.close(descriptor)
    os.chmod(path, 0o600)
    listener.listen(64)
    return listener


if __name__ == "__main__":
    main()

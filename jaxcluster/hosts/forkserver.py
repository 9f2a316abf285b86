"""The process that starts a cluster's processes on one host, watches them, and ends them.

``python -m jaxcluster.hosts.forkserver [PATH]...``

It imports jax, ipykernel and ipyparallel once, and forks the ranks and ipyparallel's controller. So
4 ranks take some 15 ms instead of 4 imports. It has one thread, touches no JAX backend and makes no
zmq context, so forking it is safe.

It is the parent of all, so it hears of every exit at once (SIGCHLD). If it is killed, the kernel
ends its children (PDEATHSIG), and the agent ends their remains.

It adopts processes that its children leave, also in other sessions, and ends them with the last
child. If its host's agent is gone, its standard input ends. Then it ends all its children, and
removes the agent's folders and socket.

Its standard input is a connection to the agent, in both directions. Lines of JSON come there
(``Spawn``), and pids and ends of processes go there.
"""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import importlib
import os
import select
import signal
import sys
import time
import traceback
from collections.abc import Iterable, Sequence
from typing import Any, NoReturn

from jaxcluster import wire
from jaxcluster.host.processes import allow_files, redirect_output
from jaxcluster.rank import log
from jaxcluster.supervision import ends, processes
from jaxcluster.supervision.folders import remove
from jaxcluster.wire import forks

# Whose ``main`` a process of a role runs.
MAINS = {
    "controller": "jaxcluster.hosts.controller",
    "coordinator": "jaxcluster.rank.coordinator",
    "rank": "jaxcluster.rank.app",
    "script": "jaxcluster.job.script",
}
CONTROLLERS = (MAINS["controller"], "ipyparallel.engine.app")
# A rank imports these, some only when its first cell runs. The fork server imports them once for
# all ranks.
RANKS = (
    "jax",
    "jax.experimental.multihost_utils",
    MAINS["rank"],  # which takes seconds
    "IPython.core.completerlib",
    "IPython.core.logger",
    "IPython.core.oinspect",
    "IPython.extensions.storemagic",
    "ipykernel.debugger",  # debugpy, some 0.1 s: the kernel class names it, used or not
    "jaxlib.mlir.dialects.builtin",
    "jaxlib.mlir.dialects.mhlo",
    "pygments.formatters.terminal256",
    "stack_data",  # and a second of others, for the first traceback
    "threadpoolctl",
    "tornado.platform.asyncio",
)


class ForkServer:
    """One loop over the agent's connection and SIGCHLD.

    Args:
      paths: what it removes when the agent is gone.
    """

    def __init__(self, paths: Sequence[str]) -> None:
        self.paths = paths
        self.children: set[int] = set()
        self._inbox = b""

    # ------------------------------------------------------------------ loop

    def run(self) -> NoReturn:
        self.wake = processes.wake_on(signal.SIGCHLD)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        # All that is imported stays: to look for garbage in it costs a fifth of the time.
        gc.disable()
        # The controller needs no jax: let it come up on another core meanwhile.
        _import(CONTROLLERS)
        while self._turn(0):
            pass
        _import_for_ranks()
        while True:
            self._turn()

    def _turn(self, timeout_s: float | None = None) -> bool:
        """Do what there is, or comes within ``timeout_s``; returns whether there was anything."""
        ready = select.select([0, self.wake[0]], [], [], timeout_s)[0]
        if self.wake[0] in ready:
            os.read(self.wake[0], 4096)
            self._reap()
        if 0 in ready:
            self._hear()
        return bool(ready)

    def _hear(self) -> None:
        try:
            data = os.read(0, 1 << 16)
        except OSError:
            data = b""
        *lines, self._inbox = (self._inbox + data).split(b"\n")
        for line in lines:
            spawn: Any = wire.request_in(wire.decode(line))
            if any(proc.rank is not None for proc in spawn.procs):
                _import_for_ranks()
            self._say(wire.encode("reply", "", [self._fork(proc) for proc in spawn.procs]))
        if not data:
            self._end()

    def _say(self, line: bytes) -> None:
        with contextlib.suppress(OSError), open(0, "wb", closefd=False) as agent:
            agent.write(line + b"\n")  # it may be gone

    def _fork(self, proc: forks.Process) -> int:
        """Start a process; returns its pid. It never returns in the child."""
        parent = os.getpid()
        if pid := os.fork():
            self.children.add(pid)
            return pid
        code, run = 1, None
        try:
            self._forget(proc, parent)
            run = importlib.import_module(MAINS[proc.role]).main(**proc.about)
            code = 0
        except SystemExit as exit:
            code = exit.code if isinstance(exit.code, int) else int(exit.code is not None)
        except BaseException:
            traceback.print_exc()
        if run is not None:
            run()
            sys.exit()  # a script ends as Python does
        log.end_process(code)  # else a rank would wait at JAX's shutdown barrier

    def _forget(self, proc: forks.Process, parent: int) -> None:
        """Forget the server, and take on the process's own session, log and settings."""
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for end in self.wake:
            os.close(end)
        os.setsid()
        processes.die_with_parent(parent)
        redirect_output(proc.log)
        os.environ.clear()
        os.environ.update(proc.env)
        os.chdir(proc.cwd)
        _renew(proc.cwd)
        gc.enable()

    # ------------------------------------------------------------------ ends

    def _reap(self) -> None:
        with contextlib.suppress(ChildProcessError):  # orphans that were taken in are reaped too
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                pid, code = ended[0], os.waitstatus_to_exitcode(ended[1])
                if pid in self.children:
                    self.children.discard(pid)
                    ends.end_group(pid)  # its own children, if it ended unasked
                    self._say(wire.encode("ended", "", [pid, code]))
        if not self.children:
            ends.end_children(2)

    def _end(self) -> NoReturn:
        ends.end_children(5)
        remove(self.paths)
        os._exit(0)


def _renew(cwd: str) -> None:
    """Renew what a forked process has inherited: random states, keys, and what was looked up.

    All ranks of all clusters of one fork server would draw the same numbers. A script's processes
    each have their own. Not renewed, because nothing can: the hashes of strings
    (``PYTHONHASHSEED``), which are equal on all ranks.

    Others renew themselves, seen with Python 3.11 to 3.13. ``random`` reseeds itself after a fork.
    ``tempfile`` and multiprocessing's semaphores draw again in another process. ``secrets``,
    ``uuid4``, ``numpy.random.default_rng()`` and OpenSSL ask the kernel each time.

    Args:
      cwd: the folder that the process has just changed to.
    """
    sys.argv = [""]  # as in an interactive session: argparse and absl read it
    sys.orig_argv = [sys.executable]
    modules: dict[str, Any] = dict(sys.modules)
    if (numpy_random := modules.get("numpy.random")) is not None:
        # Not only its state: its seed sequence would spawn the same children everywhere.
        numpy_random.set_bit_generator(numpy_random.MT19937())
    if (uuid := modules.get("uuid")) is not None:
        # Set where uuid1 or getnode has been called; a node without an address is a random number.
        uuid._node = uuid._last_timestamp = None
    if (tempfile := modules.get("tempfile")) is not None:
        tempfile.tempdir = None  # it may have looked at another TMPDIR
    if (process := modules.get("multiprocessing.process")) is not None:
        process.current_process().authkey = os.urandom(32)
        process.ORIGINAL_DIR = cwd  # where spawned children begin
    time.tzset()


def _import(names: Iterable[str]) -> None:
    """Import modules. If an import fails here, it fails again in the process, with a log."""
    for name in names:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)


def _import_for_ranks() -> None:
    # ipykernel's debugger says this of itself, to the log, when it is imported.
    os.environ["PYDEVD_DISABLE_FILE_VALIDATION"] = "1"
    _import(RANKS)
    gc.freeze()  # permanently: a child that collects garbage would copy all these pages
    gc.enable()


if __name__ == "__main__":
    faulthandler.enable(file=2, all_threads=True)  # what is forked writes to its own log with it
    # OpenBLAS starts its threads at import, and only a process of one thread can be forked safely;
    # each rank sets its own number of threads after the fork.
    os.environ["OPENBLAS_NUM_THREADS"] = "1"
    allow_files()
    processes.adopt_orphans()
    ForkServer(sys.argv[1:]).run()

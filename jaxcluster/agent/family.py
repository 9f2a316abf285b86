"""The processes of an agent's host: its fork server, a child, and that one's children.

Should the fork server end, so do its processes: the next ones get another one.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from jaxcluster.agent import folder as folders
from jaxcluster.supervision import ends, processes, starting
from jaxcluster.wire.forks import End, Exit, Process, Spawn
from jaxcluster.wire.requests import Reply, Request

# A fork server that still imports does not hear that it should end. What a killed one has started
# is ours then, and ended in the same way.
QUIT_S = 0.5
RENEW_S = 5.0  # for one without processes to end, so that another takes its place
ENDING_S = 2.0  # for the processes of one that was killed

# What would make a rank believe that it is a task of a job: it is the agent that is.
JOB_PREFIXES = (
    "HYDI_",
    "HYDRA_",
    "IPP_",  # of its own launchers: its controller and engines would be those of its cluster
    "MPIR_",
    "OMPI_",
    "PMIX_",
    "PMI_",
    "PRTE_",
    "SLURM_",
    "SRUN_",
)

Then = Callable[[Reply], None]


class Family:
    """The fork server, and all that it has started.

    Args:
      folder: the agent's, which the fork server removes should the agent be killed.
      id: the cluster's name for this host's agent.
      umask: what ranks write has the modes that its user expects.
      socket: the agent's own, where that lies elsewhere; it is removed with the folder.

    Attributes:
      env: the environment of processes here.
      members: by their pids.
      exits: of the present cluster's processes, but for those that were asked for.
      on_exit: called with each.
      connection: to the fork server.
    """

    def __init__(self, folder: folders.Folder, id: str, umask: int, socket: str = "") -> None:
        self.folder, self._id, self._umask = folder, id, umask
        self._own = [str(folder.path), str(folder.memory), *([socket] if socket else [])]
        self.log = folder.path / "fork.log"
        self.env = own_environment(os.environ)
        self.members: dict[int, Process] = {}
        self.exits: list[Exit] = []
        self.on_exit: Callable[[Exit], None] = lambda exit: None
        self._asked: dict[int, tuple[Request[Any], Then]] = {}
        self._inbox, self._outbox = b"", bytearray()
        self._number = 0  # of the last request
        processes.adopt_orphans()
        self._record("")  # first: whoever finds the folder must be able to judge it
        self._start(self.env)

    def _start(self, env: Mapping[str, str]) -> None:
        self._imports = starting.findable(env, os.getcwd())
        argv = [sys.executable, "-P", "-m", "jaxcluster.engine.forkserver"]
        argv += [word for path in self._own for word in ("--folder", path)]
        self.connection, theirs = socket.socketpair()
        with theirs, open(self.log, "ab") as log:
            self.server = subprocess.Popen(
                argv,
                stdin=theirs.fileno(),
                stdout=log,
                stderr=log,
                env=self._imports,
                umask=self._umask,
                start_new_session=True,
            )
        self.connection.setblocking(False)
        self._inbox, self._outbox = b"", bytearray()
        self.exits.clear()  # those of its processes are others
        self._record(processes.process_token(self.server.pid))

    def _record(self, server: str) -> None:
        me, memory = processes.process_token(os.getpid()), str(self.folder.memory)
        space = processes.pid_space()
        self.folder.write(folders.Record(self._id, me, server, space, memory))

    # ------------------------------------------------------------------ what is asked

    def ask(self, request: Request[Any], then: Then) -> None:
        """Have processes started or ended; ``then`` is given the answer, now or later."""
        if self.connection.fileno() < 0:
            if not isinstance(request, Spawn):  # there is nothing to end
                then(Reply())
                return
            self._start(self._imports)
        self._number += 1
        self._asked[self._number] = request, then
        self._outbox += request.told(self._number) + b"\n"
        self.flush()

    @property
    def has_more(self) -> bool:
        """Whether there is something to send, which the fork server does not take yet."""
        return bool(self._outbox)

    def flush(self) -> None:
        """Send what the fork server takes; while it imports jax it takes nothing."""
        try:
            while self._outbox:
                del self._outbox[: self.connection.send(self._outbox)]
        except BlockingIOError:
            pass
        except OSError:  # it has ended
            self.ended()

    def preload(self, env: Mapping[str, str]) -> None:
        """Have this environment, and a fork server that answers and has imported all in it."""
        self.env = dict(env)
        has_ended = self.connection.fileno() < 0 or self.server.poll() is not None
        wanted = starting.findable(env, os.getcwd())
        settings = starting.import_time_settings
        if has_ended or settings(wanted) != settings(self._imports):
            self._end_server(RENEW_S)
            self._start(env)

    # ------------------------------------------------------------------ what is heard

    def receive(self) -> None:
        """Take in what the fork server says, or that it has ended."""
        try:
            data = self.connection.recv(1 << 16)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self.ended()
            return
        *lines, self._inbox = (self._inbox + data).split(b"\n")
        for line in lines:
            self._take(json.loads(line))

    def _take(self, message: Mapping[str, Any]) -> None:
        if "ended" in message:
            self._has_ended(message["ended"], message["code"], message["asked"])
            return
        request, then = self._asked.pop(message["id"])
        if isinstance(request, Spawn):
            self.members |= dict(zip(message["answer"], request.procs, strict=False))
        then(Reply(answer=message["answer"]))

    def _has_ended(self, pid: int, code: int, asked: bool, why: str = "") -> None:
        if (process := self.members.pop(pid, None)) is None:
            return
        exit = Exit(process.role, process.rank, code, why=why)
        if not asked:
            self.exits.append(exit)
        self.on_exit(exit)

    def ended(self) -> None:
        """The fork server has ended: its processes end as well, and it answers nothing more."""
        if self.connection.fileno() < 0:
            return
        self.connection.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.server.wait(ENDING_S)
        code = self.server.returncode
        told = f"its fork server has ended with code {code}"
        with contextlib.suppress(OSError):
            told += f"\n{chr(10).join(self.log.read_text(errors='replace').splitlines()[-12:])}"
        ends.kill_groups(self.members)
        for pid in list(self.members):
            why = f"killed with its fork server, which ended with code {code}"
            self._has_ended(pid, -signal.SIGKILL, False, why)
        ends.end_children(ENDING_S)
        asked, self._asked = self._asked, {}
        for _, then in asked.values():
            then(Reply(error=told.rstrip()))

    def reap_others(self) -> None:
        """Take the ends of orphans, of which there are where it is a container's first process."""
        for pid in processes.children():
            if pid != self.server.pid:
                ends.reap(pid)

    # ------------------------------------------------------------------ ends

    def _end_server(self, most_s: float) -> None:
        with contextlib.suppress(OSError):
            self.connection.settimeout(most_s)
            self.connection.sendall(self._outbox + End().told(0) + b"\n")
            self.connection.shutdown(socket.SHUT_WR)
        try:
            self.server.wait(most_s)
        except subprocess.TimeoutExpired:
            self.server.kill()
        self.ended()

    def end(self) -> None:
        """End all of them."""
        self._end_server(QUIT_S)
        ends.end_children(5)

    def own_files(self) -> Sequence[str]:
        """What is to be kept from those who clear /tmp."""
        folder = str(self.folder.path)
        return [folder, *(entry.path for entry in os.scandir(folder))]


def own_environment(host: Mapping[str, str]) -> dict[str, str]:
    """The environment of processes here."""
    return {name: value for name, value in host.items() if not name.startswith(JOB_PREFIXES)}

"""The processes of an agent's host: its fork server, a child, and that one's children.

Should the fork server end, so do its processes: the next ones get another one.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping
from typing import Any

from jaxcluster import wire
from jaxcluster.agent import folder as folders
from jaxcluster.supervision import ends, processes, starting
from jaxcluster.wire.forks import End, Ended, Exit, Process, Spawn, event_in
from jaxcluster.wire.ops import Operation

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
    """

    def __init__(self, folder: folders.Folder, id: str, umask: int, socket: str = "") -> None:
        self.folder, self._id, self._umask = folder, id, umask
        self._own = [str(folder.path), str(folder.memory), *([socket] if socket else [])]
        self.log = folder.path / "fork.log"
        self.env = own_environment(os.environ)
        self.members: dict[int, Process] = {}
        self.exits: list[Exit] = []
        self.on_exit: Callable[[Exit], None] = lambda exit: None
        self._asked: dict[str, tuple[Operation[Any], asyncio.Future[Any]]] = {}
        self._number = 0  # of the last request
        self._hearing: asyncio.Task[None] | None = None
        self._starting = asyncio.Lock()
        processes.adopt_orphans()
        self._record("")  # first: whoever finds the folder must be able to judge it
        self._begin(self.env)

    def _begin(self, env: Mapping[str, str]) -> None:
        self._imports = starting.findable(env, os.getcwd())
        argv = [sys.executable, "-P", "-m", "jaxcluster.engine.forkserver"]
        argv += [word for path in self._own for word in ("--folder", path)]
        self._connection, theirs = socket.socketpair()
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
        self.exits.clear()  # those of its processes are others
        self._record(processes.process_token(self.server.pid))

    def _record(self, server: str) -> None:
        me, memory = processes.process_token(os.getpid()), str(self.folder.memory)
        space = processes.pid_space()
        self.folder.write(folders.Record(self._id, me, server, space, memory))

    async def connect(self) -> None:
        """Listen to the fork server that was begun."""
        reader, self._writer = await asyncio.open_unix_connection(sock=self._connection)
        self._hearing = asyncio.create_task(self._hear(reader))

    @property
    def has_server(self) -> bool:
        """Whether there is a fork server."""
        is_heard = self._hearing is not None and not self._hearing.done()
        return is_heard and self.server.poll() is None

    async def ask(self, request: Operation[Any]) -> Any:
        """Have processes started or ended; returns the answer.

        Raises:
          OSError: the fork server ends meanwhile.
        """
        async with self._starting:
            if not self.has_server:
                if self._hearing is not None:
                    await self._hearing
                if not isinstance(request, Spawn):  # there is nothing to end
                    return None
                self._begin(self._imports)
                await self.connect()
        self._number += 1
        answer = asyncio.get_running_loop().create_future()
        self._asked[str(self._number)] = request, answer
        self._say(request)
        return await answer

    def _say(self, request: Operation[Any]) -> None:
        self._writer.write(wire.encode(request.op, str(self._number), request) + b"\n")

    async def preload(self, env: Mapping[str, str]) -> None:
        """Have this environment, and a fork server that answers and has imported all in it."""
        async with self._starting:
            self.env = dict(env)
            wanted = starting.findable(env, os.getcwd())
            settings = starting.import_time_settings
            if not self.has_server or settings(wanted) != settings(self._imports):
                await self._end_server(RENEW_S)
                self._begin(env)
                await self.connect()

    # ------------------------------------------------------------------ what is heard

    async def _hear(self, reader: asyncio.StreamReader) -> None:
        """Take in what the fork server says, until it ends."""
        with contextlib.suppress(OSError):
            while line := await reader.readline():
                self._take(wire.decode(line))
                await asyncio.sleep(0)  # who has asked goes on before what came afterwards
        self._writer.close()
        self._have_ended()

    def _take(self, envelope: Mapping[str, Any]) -> None:
        if envelope["op"] == "ended":
            ended: Ended = event_in(envelope)
            self._has_ended(ended.pid, ended.code, ended.asked)
            return
        request, answer = self._asked.pop(envelope["id"])
        if isinstance(request, Spawn):
            self.members |= dict(zip(envelope["body"], request.procs, strict=False))
        answer.set_result(envelope["body"])

    def _has_ended(self, pid: int, code: int, asked: bool, why: str = "") -> None:
        if (process := self.members.pop(pid, None)) is None:
            return
        exit = Exit(process.role, process.rank, code, why=why)
        if not asked:
            self.exits.append(exit)
        self.on_exit(exit)

    def _have_ended(self) -> None:
        """The fork server has ended: its processes end as well, and it answers nothing more."""
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
        for _, answer in asked.values():
            answer.set_exception(OSError(told.rstrip()))

    def reap_others(self) -> None:
        """Take the ends of orphans, of which there are where it is a container's first process."""
        for pid in processes.children():
            if pid != self.server.pid:
                ends.reap(pid)

    # ------------------------------------------------------------------ ends

    async def _end_server(self, most_s: float) -> None:
        if self._hearing is None:
            await self.connect()
        self._say(End())
        with contextlib.suppress(subprocess.TimeoutExpired):
            await asyncio.to_thread(self.server.wait, most_s)
        self.server.kill()
        if self._hearing is not None:
            await self._hearing

    async def end(self) -> None:
        """End all of them."""
        await self._end_server(QUIT_S)
        ends.end_children(5)


def own_environment(host: Mapping[str, str]) -> dict[str, str]:
    """The environment of processes here."""
    return {name: value for name, value in host.items() if not name.startswith(JOB_PREFIXES)}

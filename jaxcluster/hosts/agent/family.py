"""The processes of an agent: its fork server, and the fork server's children.

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
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from jaxcluster import wire
from jaxcluster.hosts.agent import folder as folders
from jaxcluster.supervision import ends, processes, starting
from jaxcluster.supervision.folders import remove
from jaxcluster.wire.forks import Exit, Process, Spawn

HEARS_S = 1.0  # until a fork server that does not import, or is stopped, has ended
ENDING_S = 2.0  # for the processes of a fork server that was killed

# These would make a rank believe that it is a task of a job; only the agent is one.
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

# For malloc in ranks, which JAX's arrays on CPU come from: other processes read them faster.
HUGE_PAGES = {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}


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
        # In the order in which they are removed: a later agent finds the rest by the last one.
        self._own = [*([socket] if socket else []), str(folder.memory), str(folder.path)]
        self.log = folder.path / "fork.log"
        self.env = own_environment(os.environ)
        self.members: dict[int, Process] = {}
        self.exits: list[Exit] = []
        self.on_exit: Callable[[Exit], None] = lambda exit: None
        self._killed = set[int]()  # members
        self._spawning: tuple[list[Process], asyncio.Future[list[int]]] | None = None
        self._ended = asyncio.Event()  # a member has
        self._hearing: asyncio.Task[None] | None = None
        self._using = asyncio.Lock()  # held until there are a server's answer and its members
        processes.adopt_orphans()
        self._record("")  # first: whoever finds the folder must be able to judge it
        self._begin(self.env)

    def _begin(self, env: Mapping[str, str]) -> None:
        self._imports = starting.findable(env, os.getcwd())
        argv = [sys.executable, "-P", "-m", "jaxcluster.hosts.forkserver", *self._own]
        self._connection, theirs = socket.socketpair()
        with theirs, open(self.log, "ab") as log:
            self.server = subprocess.Popen(
                argv,
                stdin=theirs.fileno(),
                stdout=log,
                stderr=log,
                env={**HUGE_PAGES, **self._imports},
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

    async def spawn(self, procs: list[Process]) -> list[int]:
        """Start processes; returns their pids.

        Raises:
          OSError: the fork server ends meanwhile.
        """
        async with self._using:
            if not self.has_server:
                if self._hearing is not None:
                    await self._hearing
                self._begin(self._imports)
                await self.connect()
            pids: asyncio.Future[list[int]] = asyncio.get_running_loop().create_future()
            self._spawning = procs, pids
            self._writer.write(wire.encode("spawn", "", Spawn(procs)) + b"\n")
            return await pids

    async def kill(self, pids: Iterable[int]) -> None:
        """End those of these processes that are members; returns when they are reaped."""
        async with self._using:  # some may just be on their way
            targets = self.members.keys() & {*pids}
            self._killed |= targets
            for pid in targets:  # SIGTERM would have a rank wait at JAX's shutdown barrier
                ends.signal_pid(pid, signal.SIGKILL)
        while targets & self.members.keys():
            self._ended.clear()
            await self._ended.wait()

    async def preload(self, env: Mapping[str, str]) -> None:
        """Have this environment, and a fork server that answers and has imported all in it."""
        async with self._using:
            self.env = dict(env)
            wanted = starting.findable(env, os.getcwd())
            settings = starting.import_time_settings
            if not self.has_server or settings(wanted) != settings(self._imports):
                await self._end_server()
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
            self._has_ended(*envelope["body"])
        elif self._spawning is not None:
            procs, pids = self._spawning
            self.members |= dict(zip(envelope["body"], procs, strict=True))
            pids.set_result(envelope["body"])

    def _has_ended(self, pid: int, code: int, why: str = "") -> None:
        process = self.members.pop(pid)
        exit = Exit(process.role, process.rank, code, why=why)
        if pid not in self._killed:
            self.exits.append(exit)
        self._killed.discard(pid)
        self._ended.set()
        self.on_exit(exit)

    def _have_ended(self) -> None:
        """The fork server has ended: its processes end as well, and it answers nothing more."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.server.wait(ENDING_S)
        code = self.server.returncode
        told = f"its fork server has ended with code {code}"
        with contextlib.suppress(OSError):
            told += f"\n{chr(10).join(self.log.read_text(errors='replace').splitlines()[-12:])}"
        ends.end_children(ENDING_S)
        for pid in list(self.members):
            why = f"killed with its fork server, which ended with code {code}"
            self._has_ended(pid, -signal.SIGKILL, why)
        if self._spawning is not None and not self._spawning[1].done():
            self._spawning[1].set_exception(OSError(told.rstrip()))

    def reap_others(self) -> None:
        """Take the ends of orphans, of which there are where it is a container's first process."""
        for pid in processes.children():
            if pid != self.server.pid:
                ends.reap(pid)

    # ------------------------------------------------------------------ ends

    async def _end_server(self) -> None:
        """Kill it: one that still imports hears nothing. Its children are ours then."""
        self.server.kill()
        if self._hearing is not None:
            await self._hearing

    async def end(self) -> None:
        """End all of them, and remove the folders.

        The fork server does so, and ends last: should the agent be killed now, nothing is left.
        """
        if self._hearing is not None:
            self._writer.write_eof()
            await asyncio.wait({self._hearing}, timeout=HEARS_S)
        await self._end_server()
        ends.end_children(5)
        remove(self._own)


def own_environment(host: Mapping[str, str]) -> dict[str, str]:
    """The environment of processes here."""
    return {name: value for name, value in host.items() if not name.startswith(JOB_PREFIXES)}

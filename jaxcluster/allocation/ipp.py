"""The local launcher as ipyparallel knows launchers (found by its entry points).

With these, ipyparallel's cluster file, its REST endpoint and ``ipcluster list|stop`` know our
clusters too.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from pathlib import Path

import zmq
from ipyparallel.cluster.launcher import ControllerLauncher, EngineLauncher, NotRunning
from traitlets import Any, Float, HasTraits, Int, Unicode
from traitlets import List as ListTrait

from jaxcluster.allocation.supervisor import Supervisor
from jaxcluster.errors import LaunchError
from jaxcluster.supervision.processes import start_time
from jaxcluster.wire.forks import Kill, Spawn, Stop

# A heartbeat each second tells ipyparallel's clients of new engines soon (later there are fewer,
# ``engine.controller.RestingHeartMonitor``); a minute of misses keeps engines that are busy in C
# code. Deaths are told by the fork server, not by heartbeats.
# Schedulers on threads: cells don't pass through them, and eight processes less come up sooner.
# One broadcast scheduler, not a tree: see ``engine.controller.SingleScheduler``.
CONTROLLER_ARGS = (
    "--usethreads",
    "--IPController.broadcast_scheduler_depth=0",
    "--HeartMonitor.period=1000",
    "--HeartMonitor.max_heartmonitor_misses=60",
    "--log-level=40",
    # ipyparallel signs its messages and sends them in clear over TCP: without this any user of this
    # machine can read what cells run through it print. It costs a start 0.05 s.
    *(("--IPController.enable_curve=True",) if zmq.has("curve") else ()),
)

QUIT_S = 10.0  # a fork server reaps for up to 5 s


class _OnForkServer(HasTraits):
    """What both launcher classes share: their processes live on a fork server."""

    supervisor_path = Unicode().tag(to_dict=True)
    proc_pids = ListTrait(Int()).tag(to_dict=True)
    timeout_s = Float(30.0)
    plan = Any()  # a ProcessPlan
    supervisor = Any()  # a Supervisor
    reloaded = False  # from the cluster file: whoever started the cluster is another process
    _state = "before"

    @property
    def state(self) -> str:
        """``before``, ``running`` or ``after``. Nobody tells another process of the end: it looks.

        ipyparallel drops clusters that have ended from its lists by this.
        """
        ended = self.reloaded and self._state == "running" and self.poll() is not None
        return "after" if ended else self._state

    @state.setter
    def state(self, value: str) -> None:
        self._state = value

    def find_args(self) -> list[str]:
        return ["jaxcluster"]

    def poll(self) -> int | None:
        running = [pid for pid in self.proc_pids if start_time(pid) is not None]
        return None if running else 0

    async def stop(self) -> None:
        """End its processes, and all else where ipyparallel stops the cluster by itself.

        Its REST endpoint and ``ipcluster stop`` know nothing of the coordinator and the fork
        server, and not even of the ranks if they read the cluster's file during the start. A kernel
        would take the ranks' death for an accident, and replace them.
        """
        if self.reloaded and self.state != "after":
            with contextlib.suppress(LaunchError):
                self.supervisor.command(Stop())  # which tells those that are connected first
            self.supervisor.quit()
            deadline = time.monotonic() + QUIT_S
            while self.supervisor.path.exists() and time.monotonic() < deadline:
                await asyncio.sleep(0.02)
        if self.state != "after":
            with contextlib.suppress(LaunchError):
                self.supervisor.command(Kill(self.proc_pids))
            self.notify_stop({"exit_code": 0, "pids": self.proc_pids})  # type: ignore[attr-defined]

    async def join(self, timeout: float | None = None) -> None:
        """ipyparallel waits for nothing here: ``stop`` returns when all are reaped."""

    def signal(self, sig: int) -> None:
        for pid in self.proc_pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, sig)

    @classmethod
    def from_dict(cls, d: dict[str, object], **kwargs: object) -> _OnForkServer:
        self: _OnForkServer = super().from_dict(d, **kwargs)  # type: ignore[misc]
        if self.poll() is not None:
            raise NotRunning(f"processes {self.proc_pids}")
        self.supervisor = Supervisor(Path(self.supervisor_path))
        self.state, self.reloaded = "running", True
        return self


class HostController(_OnForkServer, ControllerLauncher):
    """ipyparallel's controller as a child of the fork server."""

    def start(self) -> None:
        argv = [f"--profile-dir={self.profile_dir}", f"--cluster-id={self.cluster_id}"]
        argv += [*CONTROLLER_ARGS, *self.controller_args]
        proc = self.plan.controller.with_more(argv, self.get_env())
        self.proc_pids = self.supervisor.command(Spawn([proc]), self.timeout_s)
        self.notify_start(self.proc_pids)


class HostEngines(_OnForkServer, EngineLauncher):
    """A cluster's ranks as children of the fork server."""

    def start(self, n: int) -> None:
        self.n = n
        procs = [process.with_more(env=self.get_env()) for process in self.plan.ranks]
        self.proc_pids = self.supervisor.command(Spawn(procs), self.timeout_s)
        self.notify_start(self.proc_pids)

"""This machine: ranks and controller are children of a fork server."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import resource
import secrets
import sys
import threading
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from jaxcluster import wire
from jaxcluster.allocation.base import Allocation, Processes, Say
from jaxcluster.allocation.supervisor import (
    OnEvent,
    Supervisor,
    import_time_settings,
    release_warm,
    retire,
    warm_supervisor,
)
from jaxcluster.allocation.turns import LocalTurns
from jaxcluster.errors import LaunchError, UsageError
from jaxcluster.host import procfs, ringfile
from jaxcluster.host.facts import host_key
from jaxcluster.host.procfs import ProcessLook
from jaxcluster.host.ringfile import Part
from jaxcluster.launchers.commands import GuardedCommands
from jaxcluster.ranks import name_ranks
from jaxcluster.records import claims, registry, saved_states
from jaxcluster.records.runtimefolder import inside
from jaxcluster.text import shown_value
from jaxcluster.wire.forks import Detach, Process, Spawn
from jaxcluster.wire.link import SocketLink

# Folders beside those of one generation of ranks: they outlive it.
HISTORY = "history"  # what cells printed
COMPILED = "compiled"  # programs

GUARD_S = 2.0  # for a process that looks after folders to end; then it is killed

# What would make a child believe that it is a part of somebody else's job or kernel.
DROPPED_ENV = ("JPY_PARENT_PID", "JPY_INTERRUPT_EVENT", "IPP_CONNECTION_INFO")


@dataclass(frozen=True)
class ProcessPlan:
    """The processes of one generation of ranks, and the sockets that the ranks listen on."""

    spec: wire.ClusterSpec
    folder: Path
    controller: Process
    coordinator: Process
    ranks: tuple[Process, ...]
    addresses: tuple[str, ...]


def render(
    spec: wire.ClusterSpec, folder: Path, env: Mapping[str, str], cwd: str, connection_file: str
) -> ProcessPlan:
    """The processes of a local cluster. Pure: nothing is started or written."""
    base = {k: v for k, v in env.items() if k not in DROPPED_ENV} | spec.env
    addresses = tuple(f"ipc://{folder}/rank-{rank}.sock" for rank in range(spec.num_processes))
    ranks = []
    for rank, address in enumerate(addresses):
        log = f"{folder}/rank-{rank}.log"
        engine = {
            "rank": rank,
            "address": address,
            "connection_file": connection_file,
            "log_path": log,
            "history": f"{folder}/{HISTORY}/rank-{rank}",
            "compiled": f"{folder}/{COMPILED}",
        }
        own = base | {"JAXCLUSTER_ENGINE": json.dumps(engine)}
        ranks.append(Process("rank", own, cwd, log, rank=rank))
    hold = f"{folder}/{registry.ALIVE}"
    controller = Process("controller", base, cwd, f"{folder}/controller.log", hold=hold)
    coordinator = Process("coordinator", base, cwd, f"{folder}/coordinator.log")
    return ProcessPlan(spec, folder, controller, coordinator, tuple(ranks), addresses)


def describe_launch(plan: ProcessPlan) -> str:
    """The launch plan as text, for ``--dry-run``."""
    lines = [
        f"{plan.spec.num_processes} ranks on this machine, forked from one preloaded process "
        f"(or as plain processes: {Path(sys.executable).name} -m jaxcluster.engine)",
        f"folder: {plan.folder}",
    ]
    for proc in plan.ranks:
        lines.append(f"  rank {proc.rank}: JAXCLUSTER_ENGINE={proc.env['JAXCLUSTER_ENGINE']}")
    if plan.spec.env:
        lines.append(
            "  every rank: "
            + " ".join(f"{k}={shown_value(k, v)}" for k, v in plan.spec.env.items())
        )
    return "\n".join(lines)


def check_files(num_processes: int, num_hosts: int = 0) -> None:
    """Refuse to start what will run out of file descriptors: libzmq ends the process then.

    Where this process may allow itself more, it does, as many as are needed. The figures were
    counted with ipyparallel 9.2 and jax 0.10, with a margin.

    Args:
      num_processes: on this machine.
      num_hosts: other ones, each with a connection from here.

    Raises:
      LaunchError: this process, or those to be started, may not open enough files.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = len(os.listdir("/proc/self/fd")) + 3 * num_processes + 5 * num_hosts + 48
    if soft != resource.RLIM_INFINITY and soft < needed:
        if hard == resource.RLIM_INFINITY or needed <= hard:
            resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))
        else:
            what = f"{num_hosts} hosts" if num_hosts else f"{num_processes} ranks"
            raise _too_few_files("This process", hard, what, needed, num_processes)
    needed = 6 * num_processes + 144
    if num_processes and hard != resource.RLIM_INFINITY and hard < needed:
        what = f"{num_processes} ranks"
        raise _too_few_files("Each process of a cluster", hard, what, needed, num_processes)


def _too_few_files(who: str, limit: int, what: str, needed: int, num_processes: int) -> LaunchError:
    return LaunchError(
        f"{who} may open {limit} files, and {what} need {needed}.",
        f"In the shell that started it: ulimit -n {max(4096, 2 * needed)}"
        + ("   or fewer ranks: %jaxcluster start -n 2" if num_processes > 2 else ""),
    )


class LocalAllocation(Allocation):
    """This machine: the cluster's name and a fork server."""

    def __init__(self, claim: claims.Claim) -> None:
        super().__init__(claim)
        self._supervisor: Supervisor | None = None

    def take(self, claim: claims.Claim) -> None:
        self.rest()  # the fork server's socket may have gone, too
        super().take(claim)

    def prepare(
        self,
        spec: wire.ClusterSpec,
        on_event: OnEvent,
        say: Say,
        timeout_s: float,
        stopped: threading.Event,
    ) -> LocalProcesses:
        """Have the fork server come up, and lay out what it is to start; nothing waits in a queue.

        Raises:
          LaunchError: there are too few file descriptors for so many ranks.
        """
        say(f"starting {spec.num_processes} processes ...")
        check_files(spec.num_processes)
        env = {k: v for k, v in os.environ.items() if k not in DROPPED_ENV} | spec.env
        supervisor = self._fork_server(env, os.getcwd())
        supervisor.on_event = on_event
        # Imported while the fork server does its own imports on another core.
        from ipyparallel.cluster.cluster import Cluster as IPPCluster

        from jaxcluster.allocation.ipp import HostController, HostEngines

        ipp = IPPCluster(
            # Unique: hosts that share a home directory share ipyparallel's folder too.
            cluster_id=f"jaxcluster-{spec.name}-{secrets.token_hex(4)}",
            n=spec.num_processes,
            delay=0,
            controller_launcher_class=HostController,
            engine_launcher_class=HostEngines,
            send_engines_connection_env=False,
            shutdown_atexit=False,  # the fork server sees to that, also where atexit never runs
            load_profile=False,
            log_level=40,
            parent=None,
        )
        # ipyparallel would make the folders at the controller's start, which is too late for us.
        security = Path(ipp.profile_dir, "security")
        security.mkdir(parents=True, exist_ok=True)
        connection_file = security / f"ipcontroller-{ipp.cluster_id}-engine.json"
        plan = render(spec, self.folder, env, os.getcwd(), str(connection_file))
        return LocalProcesses(plan, supervisor, ipp)

    def _fork_server(self, env: Mapping[str, str], cwd: str) -> Supervisor:
        """The fork server, whose imports fit ``env``; it may not be up yet."""
        found = self._supervisor
        if found is None or found.settings != import_time_settings(env) or not found.is_kept():
            self.rest()
            found = self._supervisor = warm_supervisor(self.folder.parent, env, cwd)
        return found

    def detach(self) -> None:
        assert self._supervisor is not None
        self._supervisor.command(Detach(True))
        release_warm(self._supervisor)

    def keep(self) -> None:
        """A detached fork server would end with its ranks."""
        if self._supervisor is not None:
            self._supervisor.is_kept()

    def clear(self) -> None:
        super().clear()
        if self._supervisor is not None:
            self._supervisor.on_event = None

    def rest(self) -> None:
        """Have no fork server for now."""
        if self._supervisor is not None:
            retire(self._supervisor)
            self._supervisor = None

    def give_back(self) -> None:
        self.rest()
        self.let_go()

    def let_go(self) -> None:
        self.claim.let_go()
        self._supervisor = None

    def end(self) -> None:
        self.rest()
        self.claim.remove()


class LocalProcesses(Processes):
    """Those on this machine, and ipyparallel's record of them.

    Args:
      plan: what is started.
      supervisor: the connection to the fork server whose children they are.
      ipp: ipyparallel's cluster; None where another process has it.
    """

    supervisor: Supervisor

    def __init__(
        self,
        plan: ProcessPlan,
        supervisor: Supervisor,
        ipp: Any,
        record: registry.ClusterRecord | None = None,
    ) -> None:
        super().__init__(plan.spec, supervisor, plan.folder, record)
        self.plan, self.ipp = plan, ipp
        self._is_seen = record is None or record.host_key == host_key()

    @classmethod
    def joined(cls, record: registry.ClusterRecord) -> LocalProcesses:
        """Those that another process of this user has started.

        Raises:
          LaunchError: their fork server is gone, or does not answer.
        """
        supervisor = Supervisor(Path(record.supervisor))
        supervisor.connect(5.0)
        plan = render(record.spec, registry.folder(record.name), {}, "", "")
        return cls(replace(plan, addresses=tuple(record.addresses)), supervisor, None, record)

    def start(self) -> list[int]:
        self._remove_connection_files()
        kwargs = {
            "plan": self.plan,
            "supervisor": self.supervisor,
            "supervisor_path": str(self.supervisor.path),
            "timeout_s": self.spec.timeout_s,
        }
        _run(self.ipp.start_controller(**kwargs))
        _run(self.ipp.start_engines(self.spec.num_processes, **kwargs))
        self._pids = self.ipp.engine_set.proc_pids
        return self._pids

    def connect(self) -> SocketLink:
        return SocketLink(dict(enumerate(self.addresses)))

    @property
    def addresses(self) -> tuple[str, ...]:
        return self.plan.addresses

    @property
    def logs(self) -> list[str]:
        return [process.log for process in self.plan.ranks]

    @property
    def cluster_file(self) -> str:
        return str(self.ipp.cluster_file)

    def _spawn_coordinator(self, *argv: str) -> int:
        procs = [self.plan.coordinator.with_more(argv)]
        return self.supervisor.command(Spawn(procs), self.spec.timeout_s)[0]

    def no_way(self, to: int, address: str, port: int, deaf: Sequence[int]) -> LaunchError:
        return LaunchError(
            f"Rank {to} at {address} can't be reached from {name_ranks(deaf)}.",
            "%jaxcluster doctor checks this machine.",
        )

    def socket_path(self, name: str) -> str:
        return str(self.folder / name)

    def look_at(self, ranks: Iterable[int]) -> dict[int, ProcessLook | None]:
        """Nothing from within another container."""
        return {r: procfs.look_at(self._pids[r]) for r in ranks} if self._is_seen else {}

    def read_log(self, name: str, nbytes: int | None = None) -> str:
        """A text file, or the last ``nbytes`` of it. "" where it can't be read."""
        try:
            with open(self.folder / f"{name}.log", "rb") as file:
                if nbytes is not None:
                    file.seek(max(0, file.seek(0, os.SEEK_END) - nbytes))
                return file.read().decode(errors="replace")
        except OSError:
            return ""

    def read_history(self, log: str, wanted: Mapping[int, int]) -> dict[int, Part]:
        folder = inside() / self.folder.name / HISTORY
        return {r: ringfile.read(folder / f"rank-{r}" / log, at) for r, at in wanted.items()}

    def turns(self, last_seq: int) -> LocalTurns:
        return LocalTurns(self.folder.name, last_seq)

    def state_folder(self) -> saved_states.LocalStates:
        return saved_states.LocalStates(self.spec.num_processes, _look_after)

    def copies_folder(self) -> saved_states.LocalStates:
        memory = saved_states.SHARED_MEMORY
        if not memory.is_dir():
            raise UsageError(
                f"Copies are kept in memory, in {memory}, and this machine has none.",
                "%jaxcluster checkpoint NAME saves the variables to disk.",
            )
        return saved_states.LocalStates(self.spec.num_processes, in_memory=True)

    def _clear_away(self) -> None:
        with contextlib.suppress(LaunchError):
            _run(self.ipp.stop_cluster())
        self._remove_connection_files()

    def _remove_connection_files(self) -> None:
        """The controller does it itself when it has the time; it is killed instead."""
        for kind in ("engine", "client"):
            name = f"ipcontroller-{self.ipp.cluster_id}-{kind}.json"
            Path(self.ipp.profile_dir, "security", name).unlink(missing_ok=True)


def _look_after(folders: Sequence[Path]) -> Callable[[], None]:
    """Have folders removed by another process, should this one be killed; returns what ends it."""
    try:
        guarded = GuardedCommands(lambda id, event: None)
    except OSError:  # no process can be started: the next start of a cluster removes them
        return lambda: None
    guarded.look_after(folders)
    # A process that was forked meanwhile may hold its input open: it has nothing to do any more.
    return lambda: guarded.close(GUARD_S)


def _run(steps: Coroutine[Any, Any, None]) -> None:
    """Take these steps of ipyparallel's; where this thread has a loop that runs, on another one.

    Its own ``_sync`` methods would leave a thread and its files behind with each cluster.
    """

    def take() -> None:
        loop = asyncio.new_event_loop()
        try:
            loop.run_until_complete(steps)
        finally:
            loop.close()

    try:
        asyncio.get_running_loop()
    except RuntimeError:  # there is none, and at the interpreter's end no thread can be started
        take()
        return
    done: Future[None] = Future()

    def work() -> None:
        try:
            take()
            done.set_result(None)
        except BaseException as error:
            done.set_exception(error)

    threading.Thread(target=work, name="jaxcluster-ipyparallel", daemon=True).start()
    done.result()

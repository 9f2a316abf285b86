"""This machine: ranks and controller are children of a fork server."""

from __future__ import annotations

import json
import os
import resource
import sys
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from jaxcluster import wire
from jaxcluster.allocation.base import Allocation, Processes, Say
from jaxcluster.allocation.controller import CONTROLLER_ARGS
from jaxcluster.allocation.supervisor import (
    OnEvent,
    Supervisor,
    import_time_settings,
    release_warm,
    retire,
    warm_supervisor,
)
from jaxcluster.allocation.turns import LocalTurns
from jaxcluster.errors import LaunchError
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

# How names begin that would make a child believe that it is part of another job or kernel.
DROPPED_ENV = ("JPY_PARENT_PID", "JPY_INTERRUPT_EVENT", "IPP_")


@dataclass(frozen=True)
class ProcessPlan:
    """The processes of one generation of ranks, and the sockets that the ranks listen on."""

    spec: wire.ClusterSpec
    folder: Path
    controller: Process
    coordinator: Process
    ranks: tuple[Process, ...]
    addresses: tuple[str, ...]


def render(spec: wire.ClusterSpec, folder: Path, env: Mapping[str, str], cwd: str) -> ProcessPlan:
    """The processes of a local cluster. Pure: nothing is started or written."""
    base = {k: v for k, v in env.items() if not k.startswith(DROPPED_ENV)} | spec.env
    addresses = tuple(f"ipc://{folder}/rank-{rank}.sock" for rank in range(spec.num_processes))
    ranks = []
    for rank, address in enumerate(addresses):
        log = f"{folder}/rank-{rank}.log"
        engine = {
            "rank": rank,
            "address": address,
            "connection_file": f"{folder}/{registry.CONTROLLER}/security/ipcontroller-engine.json",
            "log_path": log,
            "history": f"{folder}/{HISTORY}/rank-{rank}",
            "compiled": f"{folder}/{COMPILED}",
        }
        own = base | {"JAXCLUSTER_ENGINE": json.dumps(engine)}
        ranks.append(Process("rank", own, cwd, log, rank=rank))
    hold = f"{folder}/{registry.ALIVE}"
    argv = (f"--profile-dir={folder}/{registry.CONTROLLER}", *CONTROLLER_ARGS)
    controller = Process("controller", base, cwd, f"{folder}/controller.log", argv, hold=hold)
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
        env = {k: v for k, v in os.environ.items() if not k.startswith(DROPPED_ENV)} | spec.env
        supervisor = self._fork_server(env, os.getcwd())
        supervisor.on_event = on_event
        return LocalProcesses(render(spec, self.folder, env, os.getcwd()), supervisor)

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
    """Those on this machine.

    Args:
      plan: what is started.
      supervisor: the connection to the fork server whose children they are.
    """

    supervisor: Supervisor

    def __init__(
        self,
        plan: ProcessPlan,
        supervisor: Supervisor,
        record: registry.ClusterRecord | None = None,
    ) -> None:
        super().__init__(plan.spec, supervisor, plan.folder, record)
        self.plan = plan
        self._is_seen = record is None or record.host_key == host_key()

    @classmethod
    def joined(cls, record: registry.ClusterRecord) -> LocalProcesses:
        """Those that another process of this user has started.

        Raises:
          LaunchError: their fork server is gone, or does not answer.
        """
        supervisor = Supervisor(Path(record.supervisor))
        supervisor.connect(5.0)
        plan = render(record.spec, registry.folder(record.name), {}, "")
        return cls(replace(plan, addresses=tuple(record.addresses)), supervisor, record)

    def start(self) -> list[int]:
        # The controller would make it at its start, which is too late: the ranks look for its file.
        registry.client_file(self.spec.name).parent.mkdir(parents=True, exist_ok=True)
        procs = Spawn([self.plan.controller, *self.plan.ranks])
        _, *self._pids = self.supervisor.command(procs, self.spec.timeout_s)
        return self._pids

    def connect(self) -> SocketLink:
        return SocketLink(dict(enumerate(self.addresses)))

    @property
    def addresses(self) -> tuple[str, ...]:
        return self.plan.addresses

    @property
    def logs(self) -> list[str]:
        return [process.log for process in self.plan.ranks]

    def _spawn_coordinator(self, *argv: str) -> int:
        procs = [replace(self.plan.coordinator, argv=argv)]
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

    def turns(self, record: registry.ClusterRecord) -> LocalTurns:
        return LocalTurns(record.name, record.last_seq)

    def state_folder(self) -> saved_states.LocalStates:
        return saved_states.LocalStates(self.spec.num_processes, _look_after)


def _look_after(folders: Sequence[Path]) -> Callable[[], None]:
    """Have folders removed by another process, should this one be killed; returns what ends it."""
    try:
        guarded = GuardedCommands(lambda id, event: None)
    except OSError:  # no process can be started: the next start of a cluster removes them
        return lambda: None
    guarded.look_after(folders)
    # A process that was forked meanwhile may hold its input open: it has nothing to do any more.
    return lambda: guarded.close(GUARD_S)

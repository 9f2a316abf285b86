"""The processes of one generation of ranks, on all hosts of a cluster."""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from jaxcluster import wire
from jaxcluster.errors import LaunchError
from jaxcluster.host.procfs import Silence, explain
from jaxcluster.host.ringfile import Part
from jaxcluster.hosts.agent.client import Asked, OnMessage, answers
from jaxcluster.hosts.agent.requests import CHUNK, Get, Look, Mkdir, RelayFrames, Ring
from jaxcluster.hosts.fleet import Fleet, Host
from jaxcluster.hosts.records import registry
from jaxcluster.hosts.records.registry import ClusterRecord
from jaxcluster.hosts.states import HostStates
from jaxcluster.supervision.ends import wait
from jaxcluster.wire.forks import (
    HISTORY,
    RANKS,
    SECURITY,
    STOPPED,
    Kill,
    Process,
    Signal,
    Spawn,
    Stop,
    rank_socket,
)
from jaxcluster.wire.link import Channel, Link
from jaxcluster.wire.ops import Operation

K = TypeVar("K")
R = TypeVar("R")

ASK_S = 10.0
LOOK_S = 1.0
FILE_S = 0.01  # between looks for the controller's connection file
LOG_NBYTES = 4 << 20
DOCTOR = "%jaxcluster doctor checks this machine."

REFEREE = f"{RANKS}/referee.sock"  # in each agent's folder


class Processes:
    """The processes of one generation of ranks.

    Args:
      spec: with what the hosts' devices have decided.
      fleet: the hosts, whose fork servers have them as children.
      record: that of a cluster that another process has started; None: this one starts it.
    """

    def __init__(
        self, spec: wire.ClusterSpec, fleet: Fleet, record: ClusterRecord | None = None
    ) -> None:
        self.spec, self.fleet = spec, fleet
        self.is_ours = record is None
        self._may_quit = record is not None and not record.owner  # it ends with its ranks
        self._pids = record.pids if record is not None else []

    @property
    def hosts(self) -> Sequence[Host]:
        """The hosts that have ranks, or may; the first one has rank 0."""
        return self.fleet.hosts

    def start(self, are_scripts: bool = False) -> list[int]:
        """Start the ranks, with ipyparallel's controller; returns their pids, each on its own host.

        Args:
          are_scripts: their processes become a script's, and need no controller.

        Raises:
          LaunchError: a fork server did not start them in time.
        """
        role = "script" if are_scripts else "rank"
        deadline = time.monotonic() + self.spec.timeout_s
        asked = [] if are_scripts else [self._begin_controller()]
        asked += [h.begin(Spawn([self._rank(r, h, role) for r in h.ranks])) for h in self.hosts]
        found = [one.wait(max(0.1, deadline - time.monotonic()))[0] for one in asked]
        self._pids = [pid for pids in found[not are_scripts :] for pid in pids]
        return self._pids

    def _begin_controller(self) -> Asked[list[int]]:
        first = self.hosts[0]
        first.ask(Mkdir(SECURITY), ASK_S)
        about = {"folder": f"{first.folder}/{RANKS}/profile", "address": first.address}
        # It needs no jax, which fork servers import last.
        return first.begin(Spawn([self._process("controller", first, about)]))

    def _rank(self, rank: int, where: Host, role: str) -> Process:
        host = "" if where.is_here else where.name
        about = {"rank": rank, "folder": where.folder, "host": host}
        if role == "script":
            about["num_ranks"] = self.spec.num_processes
        return self._process(role, where, about, f"rank-{rank}")

    def _process(self, role: str, where: Host, about: Mapping[str, Any], name: str = "") -> Process:
        log = f"{where.folder}/{RANKS}/{name or role}.log"
        return Process(role, self.spec.env, os.getcwd(), log, about)

    def engine_file(self, timeout_s: float, check: Callable[[], object]) -> dict[str, Any]:
        """How engines reach the controller. How its clients do is in a file here then.

        Args:
          check: called now and then; raises where this is not to be waited for.

        Raises:
          LaunchError: the controller has not said so in time.
        """
        for _ in wait(timeout_s, lambda: True):
            check()
            names = (f"{SECURITY}/ipcontroller-{kind}.json" for kind in ("engine", "client"))
            asked = [self.hosts[0].begin(Get(name)) for name in names]
            with contextlib.suppress(LaunchError, ValueError):  # not there yet, or not whole
                engine, client = (json.loads(bytes(one.wait(ASK_S)[1])) for one in asked)
                path = registry.client_file(self.spec.name)
                with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
                    json.dump(client, file)
                return dict(engine)
            time.sleep(FILE_S)
        raise LaunchError("ipyparallel's controller did not start in time.", DOCTOR)

    def connect(self) -> Link:
        """The way to the ranks."""

        def open(rank: int, on_message: OnMessage) -> Channel:
            host = self.fleet.host_of(rank)
            own = rank_socket(host.folder, rank) if host.is_here else ""
            return host.rank(rank, on_message, own)

        return Link(range(self.spec.num_processes), open)

    def start_coordinator(self, address: str, relays: str = "", key: str = "") -> int:
        """Start the referee beside rank 0, with JAX's coordination service; returns its pid.

        Args:
          address: where JAX's service listens; port 0 means a free port.
          relays, key: the address where the referee hears other hosts, and their shared secret.

        Raises:
          LaunchError: the fork server did not start it in time.
        """
        about = {
            "num_processes": self.spec.num_processes,
            "referee": f"{self.hosts[0].folder}/{REFEREE}",
            "heartbeat_timeout_s": self.spec.heartbeat_timeout_seconds,
            "address": address,
            "relays": relays,
            "key": key,
        }
        procs = [self._process("coordinator", self.hosts[0], about)]
        return self.hosts[0].ask(Spawn(procs), self.spec.timeout_s)[0]

    def referee_paths(self, address: str, port: int, key: str) -> dict[int, str]:
        """The referee's socket for each rank, on its own host.

        Args:
          address, port, key: of the referee, for relays on other hosts.

        Raises:
          LaunchError: a host could not reach it.
        """
        first, *others = self.hosts
        paths = {host: f"{host.folder}/{REFEREE}" for host in self.hosts}
        for host in others if port else ():  # else all are on one machine
            host.ask(RelayFrames(paths[host], address, port, key), self.spec.timeout_s)
        ranks = range(self.spec.num_processes)
        return {rank: paths[self.fleet.host_of(rank) if port else first] for rank in ranks}

    def stop(self, why: str = STOPPED) -> None:
        """End every process of the cluster; returns when all are reaped. The others learn why.

        Agents of another process's cluster end with that process.
        """
        with contextlib.suppress(LaunchError):
            self.fleet.command(Stop(why), 10.0)
            if self._may_quit:
                self.fleet.quit()
        if not self.is_ours:
            self.fleet.close()

    def leave(self) -> None:
        """Let go of them; they run on."""
        if not self.is_ours or self.spec.detach:
            self.fleet.close()

    def kill(self, rank: int) -> None:
        """End a rank's process, and return when it is reaped.

        Raises:
          LaunchError: its host is lost, or its fork server does not answer.
        """
        self.fleet.host_of(rank).ask(Kill(self._pids[rank]), 5.0)

    def _ask(
        self, wanted: Iterable[tuple[K, int, Operation[R]]], timeout_s: float = ASK_S
    ) -> dict[K, tuple[R, memoryview]]:
        """The answers of the hosts of ranks, all asked at once; without hosts that do not answer.

        Args:
          wanted: (what it is, a rank, what its host is asked).
        """
        there = ((key, self.fleet.host_of(rank), request) for key, rank, request in wanted)
        asked = [(key, host.begin(request)) for key, host, request in there if not host.lost]
        return answers(asked, timeout_s)

    def signal(self, number: int, ranks: Iterable[int]) -> None:
        """Send the processes of ranks a signal. Hosts that do not answer are passed over."""
        self._ask((rank, rank, Signal(self._pids[rank], number)) for rank in ranks)

    def printed(self, read: Mapping[tuple[int, str], int]) -> dict[tuple[int, str], bytes]:
        """The new output of scripts, by rank and stream.

        Args:
          read: how much of each has been read.
        """
        most = CHUNK // len(read)
        files = {end: f"{RANKS}/rank-{end[0]}.{end[1]}" for end in read}
        wanted = ((end, end[0], Get(files[end], at, most)) for end, at in read.items())
        return {end: bytes(data) for end, (_, data) in self._ask(wanted).items()}

    def why_silent(self, ranks: Sequence[int]) -> dict[int, Silence]:
        """Why ranks do not answer, by what their hosts' kernels say of their processes."""
        near = [rank for rank in ranks if self.fleet.host_of(rank).cut_s == 0]
        states = self._ask(((rank, rank, Look(self._pids[rank])) for rank in near), LOOK_S)
        told = {}
        for rank in ranks:
            host = self.fleet.host_of(rank)
            if rank in states:
                told[rank] = explain(self._pids[rank], states[rank][0])
            elif host.cut_s < 1:
                told[rank] = Silence("is not responding, and its host can't be asked why")
            else:
                cut = f"host {host.name} has not been reached for {host.cut_s:.0f} s"
                told[rank] = Silence(f"is not responding: {cut}; still waiting")
        return told

    def read_log(self, name: str, nbytes: int | None = None) -> str:
        """A log, or its end: ``rank-0``, ``controller`` or ``coordinator``. "" if it is gone.

        At most the last ``LOG_NBYTES``.
        """
        rank = int(name.partition("-")[2] or 0)  # the others run beside rank 0
        request = Get(f"{RANKS}/{name}.log", -(nbytes or LOG_NBYTES))
        found = self._ask([(name, rank, request)])
        return bytes(found[name][1]).decode(errors="replace") if found else ""

    def read_history(self, log: str, since: Mapping[int, int]) -> dict[int, Part]:
        """The cells' records that ranks have written, also of busy or dead ranks.

        All hosts are asked at once; of one that does not answer there is nothing.

        Args:
          log: ``cells`` or ``output``.
          since: by rank, from which position on.
        """
        wanted = ((r, r, Ring(f"{HISTORY}/rank-{r}/{log}", at)) for r, at in since.items())
        return {rank: Part(*said, data) for rank, (said, data) in self._ask(wanted).items()}

    def state_folder(self) -> HostStates:
        """A new place for what the ranks save."""
        return HostStates(self.fleet)

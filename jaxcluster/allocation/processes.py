"""The processes of one generation of ranks on hosts with agents."""

from __future__ import annotations

import contextlib
import json
import os
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path

from jaxcluster import wire
from jaxcluster.agent.client import WAIT_LONGER, Asked, Ended, answers
from jaxcluster.agent.requests import Get, Look, Mkdir, Move, Put, RelayFrames, Ring
from jaxcluster.allocation import bulk
from jaxcluster.allocation.base import REFEREE, Processes
from jaxcluster.allocation.controller import CONTROLLER_ARGS
from jaxcluster.allocation.fleet import Fleet, Place, ask_each
from jaxcluster.allocation.keys import keys_of
from jaxcluster.allocation.local import COMPILED, HISTORY, check_files
from jaxcluster.allocation.states import HostStates
from jaxcluster.errors import LaunchError
from jaxcluster.host.procfs import ProcessLook, Silence
from jaxcluster.host.ringfile import Part
from jaxcluster.ranks import name_hosts, name_ranks
from jaxcluster.records import registry
from jaxcluster.wire.forks import Kill, Process, Spawn
from jaxcluster.wire.link import ChannelLink

ASK_S = 10.0
LOOK_S = 1.0
REASON_S = 3.0
FILE_S = 30.0  # for the controller to say how engines reach it
LOG_NBYTES = 4 << 20
KINDS = ("engine", "client")  # of ipyparallel's connection files


class HostProcesses(Processes):
    """Those on several hosts.

    Args:
      supervisor: stands for all hosts' fork servers.
    """

    supervisor: Fleet

    def __init__(
        self,
        spec: wire.ClusterSpec,
        supervisor: Fleet,
        folder: Path,
        record: registry.ClusterRecord | None = None,
    ) -> None:
        super().__init__(spec, supervisor, folder, record)
        self._handed_out: threading.Thread | None = None

    @classmethod
    def joined(cls, record: registry.ClusterRecord) -> HostProcesses:
        """Those of a cluster that another process of this user has started.

        Raises:
          LaunchError: a host does not answer.
          NoCluster: this user has no key to it.
        """
        folder = registry.folder(record.name)
        check_files(0, len(record.hosts))
        fleet = Fleet.joined(keys_of(record, folder), record.hosts)
        return cls(record.spec, fleet, folder, record)

    @property
    def places(self) -> Sequence[Place]:
        return self.supervisor.in_use

    def start(self) -> list[int]:
        first = self.places[0]
        profile = f"{first.folder}/ranks/profile"
        first.agent.ask(Mkdir("ranks/profile/security"), ASK_S)
        argv = (
            f"--profile-dir={profile}",
            f"--ip={first.address}",
            f"--location={first.address}",
            *CONTROLLER_ARGS,
        )
        controller = self._process("controller", first, argv=argv)
        asked = []
        for where in self.places:
            procs = [controller] if where is first else []
            procs += [self._rank(rank, where) for rank in where.ranks]
            asked.append((where, where.agent.begin(Spawn(procs))))
        self._pids = []
        deadline = time.monotonic() + self.spec.timeout_s
        for where, one in asked:
            self._pids += _pids(where, one, deadline)[1 if where is first else 0 :]
        self._handed_out = threading.Thread(
            target=self._hand_out, name="jaxcluster-controller", daemon=True
        )
        self._handed_out.start()
        return self._pids

    def _process(
        self,
        role: str,
        where: Place,
        argv: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
        rank: int | None = None,
        address: str = "",
    ) -> Process:
        name = role if rank is None else f"rank-{rank}"
        return Process(
            role,
            {**self.spec.env, **(env or {})},
            os.getcwd(),
            f"{where.folder}/ranks/{name}.log",
            argv,
            rank,
            inherit=True,
            address=address,
        )

    def _rank(self, rank: int, where: Place) -> Process:
        address = f"ipc://{where.folder}/ranks/{rank}.sock"
        engine = {
            "rank": rank,
            "address": address,
            "connection_file": f"{where.folder}/ranks/engine.json",
            "log_path": f"{where.folder}/ranks/rank-{rank}.log",
            "compiled": f"{where.folder}/{COMPILED}",
            "host_address": where.address,
            "host": where.name,
            "history": f"{where.folder}/{HISTORY}/rank-{rank}",
        }
        env = {"JAXCLUSTER_ENGINE": json.dumps(engine)}
        return self._process("rank", where, env=env, rank=rank, address=address)

    def _hand_out(self) -> None:
        """Bring the controller's connection file to the hosts, and its client's to the notebook."""
        first = self.places[0]
        security = "ranks/profile/security/ipcontroller"
        deadline = time.monotonic() + FILE_S
        while time.monotonic() < deadline:
            try:
                found = {kind: first.agent.get(f"{security}-{kind}.json") for kind in KINDS}
                for text in found.values():
                    json.loads(text)
            except (LaunchError, ValueError):  # it is not there yet, or not whole
                time.sleep(0.02)
                continue
            with contextlib.suppress(LaunchError, OSError):
                draft = "ranks/engine.part"
                ask_each(self.places, Put(draft), FILE_S, data=found["engine"])
                ask_each(self.places, Move(draft, "ranks/engine.json"), FILE_S)
                path = registry.client_file(self.spec.name)
                path.parent.mkdir(parents=True, exist_ok=True)
                with open(os.open(path, os.O_WRONLY | os.O_CREAT, 0o600), "wb") as file:
                    file.write(found["client"])
            return

    def connect(self) -> ChannelLink:
        ranks = range(self.spec.num_processes)
        return ChannelLink(ranks, lambda rank, on: self.host_of(rank).agent.rank(rank, on))

    def referee_paths(self, address: str, port: int, key: str) -> dict[int, str]:
        first = self.places[0]
        ranks = range(self.spec.num_processes)
        if not port:  # all are on one machine
            return dict.fromkeys(ranks, f"{first.folder}/ranks/{REFEREE}")
        others = [where for where in self.places if where is not first]
        for where in others:
            path = f"{where.folder}/ranks/{REFEREE}"
            where.agent.ask(RelayFrames(path, address, port, key), self.spec.timeout_s)
        return {rank: f"{self.host_of(rank).folder}/ranks/{REFEREE}" for rank in ranks}

    def host_of(self, rank: int) -> Place:
        """The host that a rank is on."""
        return self.supervisor.place_of(rank)

    def memory(self, ranks: Iterable[int]) -> AbstractContextManager[bulk.Memory]:
        return bulk.memory({rank: self.host_of(rank) for rank in ranks})

    def why_unseen(self, rank: int) -> Silence:
        where = self.host_of(rank)
        if where.agent.cut_s < 1:
            return super().why_unseen(rank)
        return Silence(
            "cut",
            f"is not responding: host {where.name} has not been reached for "
            f"{where.agent.cut_s:.0f} s; still waiting",
        )

    @property
    def addresses(self) -> list[str]:
        return self._on_hosts("{}.sock")

    @property
    def logs(self) -> list[str]:
        return self._on_hosts("rank-{}.log")

    def _on_hosts(self, name: str) -> list[str]:
        homes = enumerate(map(self.host_of, range(self.spec.num_processes)))
        return [f"{host.name}:{host.folder}/ranks/{name.format(rank)}" for rank, host in homes]

    def _spawn_coordinator(self, argv: Sequence[str], env: Mapping[str, str]) -> int:
        first = self.places[0]
        procs = [self._process("coordinator", first, argv=argv, env=env)]
        return first.agent.ask(Spawn(procs), self.spec.timeout_s)[0]

    def no_way(self, to: int, address: str, port: int, deaf: Sequence[int]) -> LaunchError:
        hosts = list(dict.fromkeys(self.host_of(rank).name for rank in deaf))
        return LaunchError(
            f"Host {self.host_of(to).name} (rank {to} listens at {address}, port {port}) can't be "
            f"reached from host{'s' if len(hosts) > 1 else ''} {name_hosts(hosts)} "
            f"({name_ranks(deaf)}).",
            "JAX's processes connect to each other by TCP, on any port. Is there a firewall "
            "between these hosts, or does one of them have several networks?",
        )

    def socket_path(self, name: str) -> str:
        return f"{self.places[0].folder}/ranks/{name}"

    def kill(self, rank: int) -> None:
        self.host_of(rank).agent.ask(Kill([self._pids[rank]]), 5.0)

    def look_at(self, ranks: Iterable[int]) -> dict[int, ProcessLook | None]:
        wanted: dict[int, list[int]] = {}
        for rank in ranks:
            wanted.setdefault(self.host_of(rank).number, []).append(rank)
        asked = []
        for number, there in wanted.items():
            where = self.supervisor.places[number]
            if not where.lost and where.agent.cut_s == 0:
                request = Look([self._pids[rank] for rank in there])
                asked.append((number, where.agent.begin(request)))
        return {
            rank: looks[self._pids[rank]]
            for number, (looks, _) in answers(asked, LOOK_S).items()
            for rank in wanted[number]
        }

    def read_log(self, name: str, nbytes: int | None = None) -> str:
        """At most the last ``LOG_NBYTES``."""
        nbytes = nbytes or LOG_NBYTES
        rank = name.partition("-")[2]
        where = self.host_of(int(rank)) if rank else self.places[0]
        if where.lost:
            return ""
        try:
            _, data = where.agent.begin(Get(f"ranks/{name}.log", -nbytes)).wait(ASK_S)
        except LaunchError:
            return ""
        return bytes(data).decode(errors="replace")

    def read_history(self, log: str, wanted: Mapping[int, int]) -> dict[int, Part]:
        """All hosts are asked at once; of one that does not answer there is nothing."""
        asked = []
        for rank, at in wanted.items():
            where = self.host_of(rank)
            if not where.lost:
                path = f"{HISTORY}/rank-{rank}/{log}"
                asked.append((rank, where.agent.begin(Ring(path, at))))
        return {rank: Part(*said, data) for rank, (said, data) in answers(asked, ASK_S).items()}

    def state_folder(self) -> HostStates:
        return HostStates(self.supervisor)


def _pids(where: Place, asked: Asked[list[int]], deadline: float) -> list[int]:
    try:
        found = asked.poll(max(0.1, deadline - time.monotonic()))
    except Ended:
        deadline = time.monotonic() + REASON_S  # its agent says why with its next message
        while not where.agent.why and time.monotonic() < deadline:
            time.sleep(0.01)
        why = where.agent.why or "its fork server has ended"
        raise LaunchError(f"Host {where.name} is lost: {why}.") from None
    finally:
        asked.forget()
    if found is None:
        raise LaunchError(
            f"Host {where.name} did not start its ranks in time{where.agent.condition}.",
            WAIT_LONGER,
        )
    return found[0]

"""Other hosts: ranks are children of a fork server on each, behind an agent that a launcher starts.

``HostAllocation`` and ``HostProcesses`` are for hosts what ``local.Allocation`` and
``local.LocalCluster`` are for this machine.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import queue
import secrets
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from jaxcluster import wire
from jaxcluster.agent.client import Agents, State
from jaxcluster.agent.transport import Keys, new_keys
from jaxcluster.agent.visit import RECORD
from jaxcluster.allocation.fleet import Event, Fleet, Place
from jaxcluster.allocation.local import Process, check_files
from jaxcluster.allocation.supervisor import import_time_settings
from jaxcluster.allocation.sync import Sync
from jaxcluster.allocation.turns import HostTurns
from jaxcluster.errors import JaxClusterError, LaunchError, NoCluster, UsageError
from jaxcluster.host.procfs import ProcessLook, look_from
from jaxcluster.launchers.base import AgentOptions, Launcher, describe
from jaxcluster.launchers.commands import Launch, StartedAgent
from jaxcluster.launchers.hosts import ranks_by_host
from jaxcluster.launchers.options import launcher_of
from jaxcluster.launchers.wishes import Wish, wish_of
from jaxcluster.plan import placement
from jaxcluster.plan.spec import check_reach, check_spec, check_wishes, platform_in
from jaxcluster.records import claims, registry
from jaxcluster.records.runtimefolder import VARIABLE, make_private
from jaxcluster.wire.link import ChannelLink

LAUNCH = "launch"
KEYS = "keys.json"
SHARED_DIR = "JAXCLUSTER_SHARED_DIR"  # a folder that the hosts share, where the home is none
ASK_S = 10.0
LOOK_S = 1.0
REASON_S = 3.0
FILE_S = 30.0  # for the controller to say how engines reach it
LOG_NBYTES = 4 << 20
KINDS = ("engine", "client")  # of ipyparallel's connection files

Say = Callable[[str], None]


def launcher_for(spec: wire.ClusterSpec) -> tuple[Launcher, str]:
    """(what starts the agents of a cluster of hosts, the hosts' Python).

    Raises:
      UsageError: an option is none of this launcher's.
    """
    launcher, python = launcher_of(spec.launcher, dict(spec.options), spec.num_processes or None)
    assert launcher is not None
    return launcher, python or sys.executable


def dry_run(spec: wire.ClusterSpec) -> str:
    """What would be run and written to start the agents of a cluster of hosts."""
    launcher, python = launcher_for(spec)
    folder = registry.runtime_root() / spec.name / LAUNCH
    if launcher.shares_folder:
        folder = _shared_root() / f"{spec.name}-XXXX"
    agent = AgentOptions(spec.name, "PUBLIC-KEY", python, env=_agent_env(spec))
    plan = describe(launcher.prepared(os.environ).render(agent, str(folder)))
    platform = spec.platform or "as the hosts' devices decide"
    if spec.devices_per_process is not None:
        platform += f", {spec.devices_per_process} devices each"
    lines = [plan, f"then ranks from each agent's fork server; platform: {platform}"]
    if spec.env:
        lines.append("environment of every rank, beside its host's own; it goes there encrypted:")
        lines += [f"  {name}={value}" for name, value in spec.env.items()]
    return "\n".join(lines)


def _shared_root() -> Path:
    """Where the folders lie that launchers share with their hosts; several users may share one."""
    if chosen := os.environ.get(SHARED_DIR):
        return Path(os.path.abspath(chosen)) / f"jaxcluster-{os.getuid()}"
    return Path.home() / ".jaxcluster" / LAUNCH


def _agent_env(spec: wire.ClusterSpec) -> tuple[tuple[str, str], ...]:
    """What agents and fork servers read when they start. All else goes encrypted to the ranks."""
    place = {VARIABLE: spec.env[VARIABLE]} if VARIABLE in spec.env else {}
    return tuple({**place, **import_time_settings(spec.env)}.items())


def launch_folder(claim: str) -> str:
    """In a cluster's folder: what its launcher needs. The next cluster of the name has another."""
    return f"{LAUNCH}-{claim[:6]}"


class HostAllocation:
    """Hosts with their agents, for one cluster; they outlive its ranks.

    Args:
      claim: on the cluster's name.
    """

    def __init__(self, claim: claims.Claim) -> None:
        self.claim = claim
        self.folder = registry.folder(claim.name)
        self.fleet: Fleet | None = None
        self._launch: Launch | None = None
        self._sync: Sync | None = None
        self._keys: Keys | None = None
        self._own_folder = self.folder / launch_folder(claim.id)
        self._shared: Path | None = None  # the launcher's folder where hosts must share it

    @property
    def is_held(self) -> bool:
        """Whether the name is this process's still."""
        return self.claim.is_held

    def take(self, claim: claims.Claim) -> None:
        """Go on under another claim, since the folder of the first one is gone.

        The agents stay, and so does what ranks have saved on their hosts. Their tunnels' sockets
        went with the folder: what is connected stays so, and nobody else can attach.
        """
        self.claim.let_go()
        self.claim, self.folder = claim, registry.folder(claim.name)
        if self._keys is not None and self._launch is not None:
            self._own_folder.mkdir(parents=True, mode=0o700, exist_ok=True)  # a successor's tunnel
            self._own_folder = self.folder / launch_folder(claim.id)
            self._write_keys(self._keys)
            self._launch.look_after([self.folder])

    def prepare(
        self,
        spec: wire.ClusterSpec,
        on_event: Callable[[Event], None],
        say: Say = lambda line: None,
        timeout_s: float = 60.0,
    ) -> HostProcesses:
        """Have an agent on every host, and lay out a generation of ranks.

        Args:
          on_event: told of each process that ends, and of each host that is lost.

        Raises:
          LaunchError: an agent did not come up, or the hosts' versions differ.
        """
        deadline = time.monotonic() + timeout_s
        if self.fleet is None:
            check_files(0)
            self._bring_up(spec, say, deadline)
        else:
            self._bring_back(say, deadline)
        assert self.fleet is not None
        self.fleet.on_event = on_event
        placed = place(spec, self.fleet.places, self._counts)
        self._sync = self._sync or Sync(wish_of(spec.options))
        self._sync.bring(self.fleet.places)
        return HostProcesses(placed, self.fleet, self.folder, self._sync)

    def examine(
        self,
        spec: wire.ClusterSpec,
        look: Callable[[Sequence[Place]], str],
        say: Say,
        timeout_s: float,
    ) -> str:
        """What ``look`` says of the hosts, with an agent on each and no rank, whatever they have.

        Raises:
          LaunchError: an agent did not come up.
        """
        self._bring_up(spec, say, time.monotonic() + timeout_s, check=False)
        assert self.fleet is not None
        return look(self.fleet.places)

    def _bring_up(
        self, spec: wire.ClusterSpec, say: Say, deadline: float, check: bool = True
    ) -> None:
        launcher, python = launcher_for(spec)
        launcher = launcher.prepared(os.environ)
        keys = self._make_keys()
        agent = AgentOptions(spec.name, keys.public, python, env=_agent_env(spec))
        plan = launcher.render(agent, str(self._launch_folder(launcher)))
        self._counts = plan.ranks
        fleet = Fleet(keys, lambda: launcher.ended(plan))
        folders = [self.folder, *([self._shared] if self._shared is not None else [])]
        launch = Launch(launcher, plan, fleet.ended, _note, folders, [self.claim.descriptor])
        try:
            left_s = max(1.0, deadline - time.monotonic())
            say(f"starting agents on {plan.num_hosts} hosts ...")
            started = launch.start(left_s, lambda text: say(f"agents: {text}"))
            named = in_order(started, plan.hosts)
            if check:
                check_versions(named)
            fleet.add(named)
        except BaseException:
            fleet.close()
            launch.stop()
            self._remove_launch_folder()
            raise
        self.fleet, self._launch = fleet, launch

    def _make_keys(self) -> Keys:
        """The cluster's own; the secret one lies in its folder, for other processes of the user."""
        keys = self._keys = new_keys()
        self._write_keys(keys)
        return keys

    def _write_keys(self, keys: Keys) -> None:
        path = self._own_folder
        path.mkdir(mode=0o700, exist_ok=True)
        with open(os.open(path / KEYS, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
            json.dump({"public": keys.public, "secret": keys.secret}, file)

    def _bring_back(self, say: Say, deadline: float) -> None:
        """Another agent for each host that is lost. On the host it first ends what is left of the
        old one, and waits for its end: two would share a GPU or TPU."""
        assert self.fleet is not None and self._launch is not None
        for lost in [p for p in self.fleet.places if p.lost]:
            say(f"waiting for another agent on host {lost.name} ...")
            agent = self._launch.successor(
                lost.number, lost.name, max(1.0, deadline - time.monotonic())
            )
            if agent is None:
                raise LaunchError(
                    f"Host {lost.name} is lost ({lost.lost}), and its launcher can't give another.",
                    "%jaxcluster stop, then start again: with the hosts that are there.",
                )
            self.fleet.replace(lost, agent)

    def _launch_folder(self, launcher: Launcher) -> Path:
        if not launcher.shares_folder:
            path = self._own_folder
            path.mkdir(mode=0o700, exist_ok=True)
            return path
        root = _shared_root()
        hint = f"Name one that can be: {SHARED_DIR}=/path in the notebook's environment"
        try:
            # What agents say in it tells their keys: whoever could write it could be one of them.
            make_private(root)
            self._shared = Path(tempfile.mkdtemp(prefix=f"{self.claim.name}-", dir=root))
        except JaxClusterError as error:
            told = error.message.replace(", the folder of your clusters,", "")
            raise LaunchError(f"The hosts must share a folder with you: {told}", hint) from None
        except OSError as error:
            raise LaunchError(
                f"{root}, which the hosts must share, can't be written to: {error.strerror}.", hint
            ) from None
        return self._shared

    def _remove_launch_folder(self) -> None:
        if self._shared is not None:
            shutil.rmtree(self._shared, ignore_errors=True)
            self._shared = None
        shutil.rmtree(self._own_folder, ignore_errors=True)

    def clear(self) -> None:
        """After the end of its ranks: what they have left goes, for the next ones."""
        if self.is_held:
            self.claim.empty()
        if self.fleet is not None:
            self.fleet.on_event = None
            for one in self.fleet.places:
                if not one.lost:
                    with contextlib.suppress(LaunchError):
                        one.agent.ask("remove", ASK_S, path="ranks")
                        one.agent.ask("mkdir", ASK_S, path="ranks")

    def rest(self) -> None:
        """The agents stay: they have what was saved."""

    def detach(self) -> None:
        """Let agents, and what has started them, outlive this process.

        Raises:
          LaunchError: an agent does not answer.
        """
        assert self.fleet is not None and self._launch is not None
        self.fleet.command("detach", detached=True)
        self._launch.detach(self.folder)

    def let_go(self) -> None:
        """Take no part in it any more. The agents run on, detached."""
        self.fleet = self._launch = None
        self.claim.let_go()

    def give_back(self) -> None:
        """End the agents, and have no part in it any more."""
        if self.fleet is not None:
            self.fleet.on_event = None
            self.fleet.quit()
            self.fleet = None
        if self._launch is not None:
            self._launch.stop()
            self._launch = None
        self._remove_launch_folder()
        self.claim.let_go()

    def end(self) -> None:
        """Give everything back."""
        self.claim.remove()
        self.give_back()


def _keys_of(record: registry.ClusterRecord, folder: Path) -> Keys:
    """The owner's keys, from the cluster's folder.

    Raises:
      NoCluster: they are not there.
    """
    try:
        return Keys(**json.loads((folder / launch_folder(record.claim) / KEYS).read_bytes()))
    except (OSError, ValueError, TypeError):
        raise NoCluster(
            f"The key of cluster {record.name!r} is not in {folder}.",
            "%jaxcluster start starts another.",
        ) from None


def unreachable(record: registry.ClusterRecord, timeout_s: float) -> list[str]:
    """The hosts of a cluster, by the record in its folder here, that don't answer within that."""
    try:
        agents = Agents(_keys_of(record, registry.folder(record.name)))
    except NoCluster:
        return [host.name for host in record.hosts]
    try:
        hosts = [agents.connect(h.endpoint, h.key, name=h.name) for h in record.hosts]
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline and any(h.state is State.CONNECTING for h in hosts):
            time.sleep(0.01)
        return [host.name for host in hosts if host.state is not State.CONNECTED]
    finally:
        agents.close()


def _note(text: str) -> None:
    print(text, file=sys.stderr)


class HostProcesses:
    """The processes of one generation of ranks on several hosts.

    Attributes:
      spec: with what the hosts' devices have decided.
      supervisor: stands for all hosts' fork servers.
    """

    def __init__(
        self,
        spec: wire.ClusterSpec,
        fleet: Fleet,
        folder: Path,
        sync: Sync,
    ) -> None:
        self.spec = spec
        self.supervisor = fleet
        self._sync = sync
        self.folder = folder  # the notebook's own
        self._cluster_id = f"jaxcluster-{spec.name}-{secrets.token_hex(4)}"
        self._pids: list[int] = []
        self._handed_out: threading.Thread | None = None

    @classmethod
    def joined(cls, record: registry.ClusterRecord, fleet: Fleet | None = None) -> HostProcesses:
        """Those of a cluster that another process of this user has started.

        Args:
          fleet: its hosts, where they are connected already; else they are by what lies here.

        Raises:
          LaunchError: a host does not answer.
          NoCluster: this user has no key to it.
        """
        folder = registry.folder(record.name)
        fleet = fleet or Fleet.joined(_keys_of(record, folder), record.hosts)
        self = cls(record.spec, fleet, folder, Sync(Wish(None)))  # its owner sends the code
        self._cluster_id = Path(record.cluster_file).stem.removeprefix("cluster-")
        self._pids = record.pids
        return self

    def publish(self, record: registry.ClusterRecord) -> None:
        """Put the cluster's record beside each agent, for the user's notebooks on other machines.

        It holds no key but the agents' public ones, and nothing of the ranks' environment. A host
        that does not answer has none: it can't be visited.
        """
        spec = dataclasses.replace(record.spec, env={}, options={})
        hosts = self.supervisor.records(there=True)
        told = dataclasses.replace(record, spec=spec, hosts=hosts, supervisor="")
        data = json.dumps(dataclasses.asdict(told)).encode()
        asked = [p.agent.begin("put", data, path=RECORD) for p in self._places]
        for one in asked:
            with contextlib.suppress(LaunchError):
                one.wait(ASK_S)

    @property
    def _places(self) -> Sequence[Place]:
        return self.supervisor.places

    def start(self) -> list[int]:
        """Start controller and ranks; returns the ranks' pids, each on its own host.

        Raises:
          LaunchError: a fork server did not start them in time.
        """
        first = self._places[0]
        profile = f"{first.folder}/ranks/profile"
        first.agent.ask("mkdir", ASK_S, path="ranks/profile/security")
        from jaxcluster.allocation.ipp import CONTROLLER_ARGS

        argv = (
            f"--profile-dir={profile}",
            f"--cluster-id={self._cluster_id}",
            f"--ip={first.address}",
            f"--location={first.address}",
            *CONTROLLER_ARGS,
        )
        controller = self._process("controller", first, argv=argv)
        asked = []
        for where in self._places:
            procs = [controller] if where is first else []
            procs += [self._rank(rank, where) for rank in where.ranks]
            asked.append((where, where.agent.fork.begin("spawn", procs=procs)))
        self._pids = []
        deadline = time.monotonic() + self.spec.timeout_s
        for where, (_, answer) in asked:
            reply = _answer(where, answer, deadline)
            self._pids += reply["pids"][1 if where is first else 0 :]
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
    ) -> dict[str, Any]:
        name = role if rank is None else f"rank-{rank}"
        process = Process(
            role,
            {**self.spec.env, **(env or {})},
            os.getcwd(),
            f"{where.folder}/ranks/{name}.log",
            tuple(argv),
            rank,
        )
        return {**process.request(), "inherit": True}

    def _rank(self, rank: int, where: Place) -> dict[str, Any]:
        address = f"ipc://{where.folder}/ranks/{rank}.sock"
        engine = {
            "rank": rank,
            "address": address,
            "connection_file": f"{where.folder}/ranks/engine.json",
            "log_path": f"{where.folder}/ranks/rank-{rank}.log",
            "host_address": where.address,
            "code": self._sync.path_on(where),
        }
        env = {"JAXCLUSTER_ENGINE": json.dumps(engine)}
        return {**self._process("rank", where, env=env, rank=rank), "address": address}

    def _hand_out(self) -> None:
        """Bring the controller's connection file to the hosts, and its client's to the notebook."""
        first, *others = self._places
        security = f"ranks/profile/security/ipcontroller-{self._cluster_id}"
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
                for where in (first, *others):
                    where.agent.put("ranks/engine.part", found["engine"])
                    where.agent.ask("move", ASK_S, path="ranks/engine.part", to="ranks/engine.json")
                path = Path(self.cluster_file).with_name(
                    f"ipcontroller-{self._cluster_id}-client.json"
                )
                with open(os.open(path, os.O_WRONLY | os.O_CREAT, 0o600), "wb") as file:
                    file.write(found["client"])
            return

    def connect(self) -> ChannelLink:
        """The way to the ranks."""
        ranks = range(self.spec.num_processes)
        return ChannelLink(ranks, lambda rank, on: self.host_of(rank).agent.rank(rank, on))

    def bring_code(self) -> None:
        """Bring what has changed of the user's own code to the hosts.

        Raises:
          UsageError: it is too large, or can't be read.
          LaunchError: a host does not answer.
        """
        self._sync.bring(self._places)

    def explain_missing(self, error: str, ranks: Sequence[int]) -> list[str]:
        """What to add to a ModuleNotFoundError of these ranks."""
        return self._sync.explain(error, [self.host_of(rank) for rank in ranks])

    @property
    def turns(self) -> HostTurns:
        """The turns of cells for these ranks."""
        return HostTurns(self._places[0], self._cluster_id)

    def host_of(self, rank: int) -> Place:
        """The host that a rank is on."""
        return self.supervisor.place_of(rank)

    @property
    def addresses(self) -> tuple[str, ...]:
        """Each rank's own socket, on its host."""
        ranks = range(self.spec.num_processes)
        return tuple(
            f"{self.host_of(r).name}:{self.host_of(r).folder}/ranks/{r}.sock" for r in ranks
        )

    @property
    def logs(self) -> list[str]:
        """Each rank's log, on its host."""
        ranks = range(self.spec.num_processes)
        return [
            f"{self.host_of(r).name}:{self.host_of(r).folder}/ranks/rank-{r}.log" for r in ranks
        ]

    @property
    def cluster_file(self) -> str:
        """Beside it lies how ipyparallel's clients reach the controller."""
        return str(self.folder / f"cluster-{self._cluster_id}.json")

    def start_coordinator(self, address: str) -> int:
        """Start JAX's coordination service at ``address`` on the first host; returns its pid.

        Raises:
          LaunchError: the fork server did not start it in time.
        """
        argv = (
            f"--address={address}",
            f"--num-processes={self.spec.num_processes}",
            f"--heartbeat-timeout={self.spec.heartbeat_timeout_seconds}",
        )
        first = self._places[0]
        process = self._process("coordinator", first, argv=argv)
        (pid,) = self.supervisor.spawn(first, [process], self.spec.timeout_s)
        return pid

    def socket_path(self, name: str) -> str:
        """Where a Unix socket of the first host's may lie."""
        return f"{self._places[0].folder}/ranks/{name}"

    def kill(self, rank: int) -> None:
        """End a rank's process, and return when it is reaped.

        Raises:
          LaunchError: its host is lost, or does not answer.
        """
        self.host_of(rank).agent.fork.command("kill", 5.0, pids=[self._pids[rank]])

    def look_at(self, ranks: Iterable[int]) -> dict[int, ProcessLook | None]:
        """What their hosts' kernels say of the processes of ranks, of those that answer."""
        wanted: dict[int, list[int]] = {}
        for rank in ranks:
            wanted.setdefault(self.host_of(rank).number, []).append(rank)
        found: dict[int, ProcessLook | None] = {}
        for number, there in wanted.items():
            where = self._places[number]
            if where.lost or where.agent.cut_s > 0:
                continue
            with contextlib.suppress(LaunchError):
                pids = {self._pids[rank]: rank for rank in there}
                body, _ = where.agent.ask("look", LOOK_S, pids=list(pids))
                found |= {pids[int(pid)]: look_from(told) for pid, told in body["looks"].items()}
        return found

    def read_log(self, name: str, nbytes: int = LOG_NBYTES) -> str:
        """The end of a log: ``rank-0``, ``controller`` or ``coordinator``. "" where it is lost."""
        rank = name.partition("-")[2]
        where = self.host_of(int(rank)) if rank else self._places[0]
        if where.lost:
            return ""
        try:
            _, data = where.agent.ask("tail", ASK_S, path=f"ranks/{name}.log", nbytes=nbytes)
        except LaunchError:
            return ""
        return bytes(data).decode(errors="replace")

    def state_folder(self) -> HostStates:
        """A place for what the ranks save, on each host."""
        return HostStates(self.supervisor)

    def stop(self) -> None:
        """End every process of the cluster; returns when all are reaped."""
        with contextlib.suppress(LaunchError):
            self.supervisor.command("stop", timeout_s=10)
        path = Path(self.cluster_file)
        path.with_name(f"ipcontroller-{self._cluster_id}-client.json").unlink(missing_ok=True)


def _answer(where: Place, answer: queue.SimpleQueue[Event], deadline: float) -> Event:
    try:
        reply: Event = answer.get(timeout=max(0.1, deadline - time.monotonic()))
    except queue.Empty:
        raise LaunchError(
            f"Host {where.name} did not start its ranks in time{where.agent.condition}.",
            "On busy hosts: %jaxcluster start --timeout 120",
        ) from None
    if reply["event"] == "lost":
        deadline = time.monotonic() + REASON_S  # its agent says why with its next message
        while not where.agent.why and time.monotonic() < deadline:
            time.sleep(0.01)
        why = where.agent.why or "its fork server has ended"
        raise LaunchError(f"Host {where.name} is lost: {why}.")
    return reply


class HostStates:
    """What ranks have saved: a folder in the memory of each host, gone with its agent."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._name = f"state-{secrets.token_hex(4)}"
        self._brought: set[tuple[int, str]] = set()
        for where in fleet.places:
            self._make(where)

    def _path(self, where: Place) -> str:
        return f"{where.memory}/{self._name}"

    def _make(self, where: Place) -> None:
        if not where.lost:
            with contextlib.suppress(LaunchError):
                where.agent.ask("mkdir", ASK_S, path=self._path(where))

    def path_of(self, rank: int) -> str:
        """The folder of the rank's host."""
        return self._path(self._fleet.place_of(rank))

    def donor_for(self, rank: int, donor: int, saved: Sequence[int]) -> int:
        """Which rank's file ``rank`` is to take values from: one on its host, or brought there.

        Raises:
          LaunchError: a host does not answer.
        """
        here, there = self._fleet.place_of(rank), self._fleet.place_of(donor)
        near = [r for r in saved if r in here.ranks]
        if near:
            return min(near)
        if (donor, here.folder) not in self._brought:
            name = f"rank-{donor}.state"
            self._make(here)
            for at, data in there.agent.chunks(f"{self._path(there)}/{name}"):
                here.agent.ask("put", FILE_S, path=f"{self._path(here)}/{name}", at=at, data=data)
            self._brought.add((donor, here.folder))
        return donor

    def remove(self) -> None:
        """Remove all of it."""
        for where in self._fleet.places:
            if not where.lost:
                with contextlib.suppress(LaunchError):
                    where.agent.ask("remove", ASK_S, path=self._path(where))


# --------------------------------------------------------------------------- pure


def in_order(
    started: Sequence[StartedAgent], names: Sequence[str]
) -> list[tuple[str, StartedAgent]]:
    """(name, agent) in the order of ranks: the user's, else the launcher's."""
    if names and all(agent.host is not None for agent in started):
        return [(names[agent.host or 0], agent) for agent in started]
    numbered = sorted(
        started,
        key=lambda a: (a.facts.get("number") is None, a.facts.get("number") or 0, a.facts["host"]),
    )
    return [(str(agent.facts["host"]), agent) for agent in numbered]


def check_versions(started: Sequence[tuple[str, StartedAgent]]) -> None:
    """Refuse hosts that differ in what must be equal, before a rank is started.

    Raises:
      LaunchError: they do, or this process has another jaxcluster; with a table.
    """
    # Not imported by name: the package's own module names the notebook's side.
    rows = {"here": {"jaxcluster": sys.modules["jaxcluster"].__version__}}
    rows |= {name: dict(agent.facts["versions"]) for name, agent in started}
    for versions in rows.values():
        if "python" in versions:  # whose patch level may differ
            versions["python"] = ".".join(versions["python"].split(".")[:2])
    names = list(dict.fromkeys(name for versions in rows.values() for name in versions))
    odd = [n for n in names if len({v[n] for v in rows.values() if n in v}) > 1]
    if not odd:
        return
    table = [["", *odd]]
    table += [[host, *(v.get(n, "") for n in odd)] for host, v in rows.items() if {*odd} & {*v}]
    widths = [max(len(row[column]) for row in table) for column in range(len(odd) + 1)]
    lines = ["  ".join(w.ljust(n) for w, n in zip(row, widths, strict=True)) for row in table]
    raise LaunchError(
        f"The hosts have different versions of {', '.join(odd)}:\n"
        + "\n".join(line.rstrip() for line in lines),
        "Install the same on all of them, or name another Python there: --python PATH",
    )


def place(
    spec: wire.ClusterSpec, places: Sequence[Place], counts: Sequence[int] | None
) -> wire.ClusterSpec:
    """The spec with what the hosts' devices decide; each place gets its ranks.

    Raises:
      UsageError: what was asked for does not fit the hosts.
    """
    facts = [place.facts for place in places]
    platform = spec.platform
    if not platform:
        chosen = {
            placement.choose_platform(
                platform_in(spec.env), f["gpus"], f["tpu_chips"], f["cuda_plugin"]
            )
            for f in facts
        }
        if len(chosen) > 1:
            raise UsageError(
                f"The hosts have different devices: {', '.join(sorted(chosen))}.",
                "Choose one platform: --platform cpu",
            )
        (platform,) = chosen
    if counts is None:
        counts = [_default_ranks(platform, f, len(places)) for f in facts]
    for one, ranks in zip(places, ranks_by_host(counts), strict=True):
        one.ranks = ranks
    placed = dataclasses.replace(spec, num_processes=sum(counts), platform=platform)
    check_spec(placed)
    check_wishes(placed)
    check_reach(placed, places[0].address, [one.name for one in places[1:]])
    return placed


def _default_ranks(platform: str, facts: Mapping[str, Any], num_hosts: int) -> int:
    """One for each GPU or TPU chip; on CPU one for each host."""
    if platform == "cpu":
        return 1 if num_hosts > 1 else placement.default_num_processes([], 0)
    on_gpu = platform == "cuda"
    return placement.default_num_processes(
        facts["gpus"] if on_gpu else [], 0 if on_gpu else facts["tpu_chips"]
    )

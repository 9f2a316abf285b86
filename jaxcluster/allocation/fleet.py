"""The hosts of one cluster, as the notebook has them: their agents' connections and their ends.

A host is lost where its agent has ended, its launcher's command has, or nothing has been heard of
it for longer than its lease: then it has ended by itself. Whoever listens is told so once, with the
ranks that were there.
"""

from __future__ import annotations

import bisect
import contextlib
import errno
import json
import os
import queue
import re
import socket
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from jaxcluster import wire
from jaxcluster.agent.client import Agents, Connection, Ended, State, wait_all
from jaxcluster.agent.requests import Mkdir, Quit
from jaxcluster.agent.transport import Keys
from jaxcluster.allocation.limits import check_files
from jaxcluster.errors import LaunchError, NoCluster
from jaxcluster.host.reachability import connection_errors
from jaxcluster.launchers.base import LEASE_S
from jaxcluster.launchers.commands import StartedAgent
from jaxcluster.launchers.failures import Reason
from jaxcluster.launchers.hosts import ranks_by_host
from jaxcluster.records import registry
from jaxcluster.records.registry import ClusterRecord, HostRecord
from jaxcluster.supervision.ends import wait
from jaxcluster.text import join_words, seconds
from jaxcluster.wire import forks
from jaxcluster.wire.requests import Request
from jaxcluster.wire.sockets import Buffer

MARGIN_S = 5.0  # a host whose way is cut is given up before its agent ends by itself
LOOK_S = 0.5
REASON_S = 8.0  # for a launcher's command to end, and so to say why an agent was ended
ENDED_BY_OTHERS = re.compile("SIGTERM|SIGHUP|standard input")
CONNECT_S = 20.0
QUIT_S = 5.0  # all agents together; who has not heard it ends with its input, or its lease
JOIN_S = 5.0  # for an agent that is there already
ASKED_S = 2.0  # ... by who only lists clusters
REFUSAL_S = 0.3  # for the answer
REFUSED_S = 2.0  # for so long a host refuses connections until its agent is known to be gone
LAUNCH, KEYS = "launch", "keys.json"


@dataclass(frozen=True)
class HostLost:
    """A host is lost, with the ranks on it.

    Attributes:
      is_first: it had rank 0.
      gone: its agent has ended, or will; else that is not known here.
    """

    host: str
    is_first: bool
    ranks: list[int]
    why: str
    gone: bool


OnEvent = Callable[[forks.Event | HostLost], None]
LOOPBACK = "127.0.0.1"


class Host(Connection):
    """One host of a cluster: the connection to its agent, and what it has there.

    A lost host with a new agent is a new ``Host`` in the same place.

    Args:
      number: of the host, in the order of ranks.
      name: what messages call it.
      agent: how its agent is reached, and what it said of itself and the host.
      is_here: whether it is this machine, whose files and sockets are reached without its agent.

    Attributes:
      folder: the agent's own there; ``memory`` is the one in the host's memory.
      address: at which its ranks' other processes reach it.
      ranks: those of the present generation.
      lost: why it is lost; "" while it is not.
      gone: whether its agent has ended, or will; else its end is not known here.
      left_out: whether it was lost, and the cluster goes on without it.
    """

    def __init__(
        self, agents: Agents, number: int, name: str, agent: StartedAgent, is_here: bool = False
    ) -> None:
        self.facts = agent.said
        endpoint = f"ipc://{agent.via}" if agent.via else self.facts.endpoint
        super().__init__(agents, endpoint, self.facts.key, name)
        self.number, self.is_here = number, is_here
        self.folder, self.memory = self.facts.folder, self.facts.memory
        self.address = LOOPBACK if is_here else self.facts.address
        self.ranks = range(0)
        self.lost = ""
        self.gone = self.left_out = False


@dataclass(frozen=True)
class Left:
    """What is left where some of a cluster's hosts are lost; nothing where none is, or all are.

    Attributes:
      num_ranks: how many the others have.
      hosts: their names.
    """

    num_ranks: int = 0
    hosts: tuple[str, ...] = ()

    @property
    def offer(self) -> str:
        """What to type to go on with it; "" where there is nothing."""
        if not self.hosts:
            return ""
        where = "host " if len(self.hosts) == 1 else "hosts "
        return (
            f"%jaxcluster restart -n {self.num_ranks} goes on with what is left, "
            f"{where}{join_words(self.hosts)}"
        )


Heard = tuple[Host, forks.Event | Reason]  # what an agent has said, or its launcher of it


class Fleet:
    """All hosts of a cluster.

    Args:
      keys: the owner's.
      owns: whether this process started them: they end where it can't reach them.
      is_here: whether this machine is the only one.
      lease_s: how long its agents live without a connection.

    Attributes:
      hosts: in the order of ranks.
      on_event: called with each event of an agent, and with ``host_lost`` events; on a thread
        that may wait for a host's answer.
    """

    def __init__(
        self, keys: Keys, *, owns: bool = True, is_here: bool = False, lease_s: float = LEASE_S
    ) -> None:
        self.owns, self.is_here = owns, is_here
        self._most_cut_s = lease_s - MARGIN_S
        self.hosts: list[Host] = []
        self.on_event: OnEvent | None = None
        self._agents = Agents(keys)
        self._events: wire.Inbox[Heard | None] = wire.Inbox()
        self._ending: dict[Host, tuple[float, str]] = {}  # not later than, why
        self._ended: dict[int, Reason] = {}  # of hosts that are not connected to yet
        self._refusing: dict[Host, float] = {}  # since when
        self._closed = False
        self._thread = threading.Thread(target=self._tell, name="jaxcluster-hosts", daemon=True)
        self._thread.start()

    # ------------------------------------------------------------------ its hosts

    def add(
        self,
        started: Sequence[tuple[str, StartedAgent]],
        explain: Callable[[int], Reason | None] = lambda number: None,
    ) -> None:
        """Connect to the agents of these hosts (name, agent), in the order of ranks.

        Args:
          explain: why nothing comes through the tunnel to a host, by its number for the launcher.

        Raises:
          LaunchError: one of them does not answer.
        """
        for number, (name, agent) in enumerate(started):
            self.hosts.append(self._connect(number, name, agent))
            self.ended([number])
        try:
            ask_each(self.hosts, Mkdir(forks.RANKS), CONNECT_S)
        except LaunchError:
            for host, (_, agent) in zip(self.hosts, started, strict=True):
                is_way_closed = host.state is State.CONNECTING and agent.via
                if is_way_closed and agent.host is not None and (why := explain(agent.host)):
                    raise LaunchError(why.message, why.hint) from None
            raise

    @classmethod
    def joined(cls, record: ClusterRecord, timeout_s: float = JOIN_S) -> Fleet:
        """The hosts of a cluster that another process has started. Those that are silent are lost.

        Takes ``timeout_s`` where there is one.

        Raises:
          LaunchError: none of them answers, or this process may not open enough files.
          NoCluster: this user has no key to it.
        """
        hosts, spec = record.hosts, record.spec
        check_files(len(record.pids) if spec.is_here else 0, len(hosts))
        self = cls(keys_of(record), owns=False, is_here=spec.is_here, lease_s=lease_of(spec))
        ranks = ranks_by_host([len(host.ranks) for host in hosts])
        for number, (one, its) in enumerate(zip(hosts, ranks, strict=True)):
            host = self._connect(number, one.name, StartedAgent(None, asdict(one)))
            host.ranks = its
            self.hosts.append(host)
        away = self.gone(self.hosts) if self.is_here else ()

        def connecting() -> bool:
            return any(h.state is State.CONNECTING and h not in away for h in self.hosts)

        for _ in wait(timeout_s, connecting):
            time.sleep(0.01)
        for host in self.hosts:
            if host.state is not State.CONNECTED:
                self._lose(host, host.condition.removeprefix(": "), False)
        if not self.alive:
            self.close()
            why = "; ".join(f"{host.name}: {host.lost}" for host in self.hosts)
            raise LaunchError(f"None of the cluster's hosts can be reached ({why}).")
        return self

    def losses(self) -> list[HostLost]:
        """Which hosts were lost before anybody listened."""
        return [self._host_lost(host) for host in self.hosts if host.lost]

    def out_of_reach(self) -> list[str]:
        """The names of the hosts that can't be reached now and are not known to have ended."""
        cut = (State.CUT, State.CONNECTING)
        return [h.name for h in self.hosts if (h.state in cut if not h.lost else not h.gone)]

    def records(self) -> list[HostRecord]:
        """How another process of this machine joins the hosts."""
        return [
            HostRecord(h.name, h.endpoint, h.key, h.folder, h.memory, h.address, list(h.ranks))
            for h in self.in_use
        ]

    def replace(self, lost: Host, agent: StartedAgent) -> None:
        """Go on with another agent on a host whose own is lost.

        Raises:
          LaunchError: it does not answer.
        """
        lost.close()
        host = self._connect(lost.number, lost.name, agent)
        host.ranks, host.lost = lost.ranks, lost.lost
        self.hosts[lost.number] = host
        host.ask(Mkdir(forks.RANKS), CONNECT_S)
        host.lost = ""

    def _connect(self, number: int, name: str, agent: StartedAgent) -> Host:
        host = Host(self._agents, number, name, agent, self.is_here)
        host.on_event = lambda event: self._events.put((host, event))
        host.open()
        return host

    def host_of(self, rank: int) -> Host:
        """The host that a rank is on."""
        at = bisect.bisect_right(self.hosts, rank, key=lambda host: host.ranks.start) - 1
        assert rank in self.hosts[at].ranks
        return self.hosts[at]

    def ended(self, numbers: Iterable[int], why: Reason | None = None) -> None:
        """The launcher's command for these hosts has ended, or may have before. Any thread."""
        for number in numbers:
            if why is not None:
                self._ended[number] = why
            if number < len(self.hosts) and (told := self._ended.pop(number, None)):
                self._events.put((self.hosts[number], told))

    @property
    def in_use(self) -> list[Host]:
        """Those that were not left out; some may have no ranks now. The first one has rank 0."""
        return [host for host in self.hosts if not host.left_out]

    @property
    def there(self) -> list[Host]:
        """Those that are not lost."""
        return [host for host in self.hosts if not host.lost]

    @property
    def left(self) -> Left:
        """What is left where some of them are lost."""
        there = self.there
        if len(there) == len(self.in_use):
            return Left()
        num_ranks = sum(len(host.ranks) for host in there)
        return Left(max(num_ranks, len(there)), tuple(host.name for host in there))

    def leave_out_lost(self) -> None:
        """Go on without the hosts that are lost."""
        for host in self.hosts:
            if host.lost and not host.left_out:
                host.left_out = True
                host.close()

    # ------------------------------------------------------------------ as one

    @property
    def alive(self) -> bool:
        """Whether any host is."""
        return bool(self.there)

    def command(self, command: Request[None], timeout_s: float = 30.0) -> None:
        """Send a command to the agents of all hosts that are not lost.

        Raises:
          LaunchError: one of them does not answer within ``timeout_s``.
        """
        ask_each(self.there, command, timeout_s, Ended)

    def quit(self) -> None:
        """End them and all that they have started, and disconnect."""
        ask_each(self.there, Quit(), QUIT_S, LaunchError)
        self.close()

    def close(self) -> None:
        """Agents without their owner end after their lease."""
        self._closed = True
        self._events.put(None)
        self._agents.close()
        if threading.current_thread() is not self._thread:
            self._thread.join(2)

    # ------------------------------------------------------------------ the thread

    def _tell(self) -> None:
        while not self._closed:
            with contextlib.suppress(queue.Empty):
                heard = self._events.get(timeout=LOOK_S)
                if heard is not None:
                    self._take(*heard)
            now = time.monotonic()
            for host, (until, why) in list(self._ending.items()):
                if now > until:
                    self._lose(host, why, True)
            self._look_at_cuts(now)

    def _look_at_cuts(self, now: float) -> None:
        """Give up the hosts that have not been reached for long, or whose agents are known gone."""
        cut = [h for h in self.hosts if not h.lost and h.state is State.CUT]
        since = self._refusing
        self._refusing = {host: since.get(host, now) for host in self.gone(cut)}
        for host in cut:
            if host.cut_s > self._most_cut_s:
                why = f"it has not been reached for {host.cut_s:.0f} s"
                self._lose(host, why, self.owns)  # its agent ends by itself
            elif now - self._refusing.get(host, now) > REFUSED_S:
                why = "its agent has ended: nothing answers at its socket there"
                self._lose(host, why, True)

    def gone(self, hosts: Sequence[Host]) -> list[Host]:
        """At whose sockets nothing listens any more, as far as an answer says so."""
        if self.is_here:
            return [host for host in hosts if not _listens(host.endpoint.removeprefix("ipc://"))]
        # Else it is a socket of ssh's, whose end its launcher tells.
        tcp = [host for host in hosts if host.endpoint.startswith("tcp:")]
        whys = connection_errors([address_of(h.endpoint) for h in tcp], REFUSAL_S) if tcp else []
        refused = os.strerror(errno.ECONNREFUSED)
        return [host for host, why in zip(tcp, whys, strict=True) if why == refused]

    def _take(self, host: Host, event: forks.Event | Reason) -> None:
        if isinstance(event, forks.Lost):  # the agent has said that it ends, or has
            why = host.why or "its agent has ended"
            if self.owns and ENDED_BY_OTHERS.search(why):  # its launcher may know who, and why
                self._ending[host] = time.monotonic() + REASON_S, why
            else:
                self._lose(host, why, True)
        elif isinstance(event, Reason):
            why = re.sub(r'\.("?)\.?$', r"\1", event.message)  # no sentence's end
            self._lose(host, why, self.owns or event.has_ended)
            if host.gone:
                host.close(why)  # nobody waits for an answer of a process that has ended
        elif self.on_event is not None and not host.lost:
            if isinstance(event, forks.Exit) and not host.is_here:
                event = replace(event, host=host.name)
            self.on_event(event)

    def _lose(self, host: Host, why: str, gone: bool) -> None:
        """``gone``: its agent has ended, or will; else that is not known here."""
        self._ending.pop(host, None)
        if host.lost:
            return
        host.lost, host.gone = why, gone
        if self.on_event is not None:
            self.on_event(self._host_lost(host))

    def _host_lost(self, host: Host) -> HostLost:
        is_first = host is self.in_use[0]
        return HostLost(host.name, is_first, list(host.ranks), host.lost, host.gone)


def _listens(path: str) -> bool:
    """Whether a process of this kernel listens on a Unix socket."""
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.connect(path)
        except BlockingIOError:  # it has more connections than it can take at the moment
            return True
        except OSError:
            return False
    return True


def launch_folder(claim: str) -> str:
    """In a cluster's folder: what its launcher needs. The next cluster of the name has another."""
    return f"{LAUNCH}-{claim[:6]}"


def keys_of(record: ClusterRecord) -> Keys:
    """The owner's keys, from the cluster's folder here.

    Raises:
      NoCluster: they are not there.
    """
    folder = registry.folder(record.name)
    try:
        return Keys(**json.loads((folder / launch_folder(record.claim) / KEYS).read_bytes()))
    except (OSError, ValueError, TypeError):
        raise NoCluster(
            f"The key of cluster {record.name!r} is not in {folder}.",
            "%jaxcluster start starts another.",
        ) from None


def lease_of(spec: wire.ClusterSpec) -> float:
    """How long the agents of a cluster live without their owner's connection, in seconds."""
    return max(LEASE_S, seconds(str(dict(spec.options).get("lease", LEASE_S))))


def unreachable(record: ClusterRecord) -> list[str]:
    """The other hosts of a cluster whose record is here that don't answer now.

    Takes ``ASKED_S`` where there is one. None where this process may not open enough files to know.
    """
    if record.spec.is_here:
        return []
    try:
        check_files(0, len(record.hosts))
    except LaunchError:
        return []
    try:
        fleet = Fleet.joined(record, ASKED_S)
    except (LaunchError, NoCluster):
        return [host.name for host in record.hosts]
    fleet.close()
    return [host.name for host in fleet.hosts if host.lost]


def address_of(endpoint: str) -> tuple[str, int]:
    """The address and the port of a TCP endpoint."""
    address, _, port = endpoint.removeprefix("tcp://").rpartition(":")
    return address.strip("[]"), int(port)


def ask_each(
    hosts: Iterable[Host],
    request: Request[Any],
    timeout_s: float,
    *passed_over: type[Exception],
    data: Buffer | None = None,
) -> None:
    """Ask something of the agents of several hosts, all at once, and ``wait_all``."""
    wait_all([host.begin(request, data) for host in hosts], timeout_s, *passed_over)

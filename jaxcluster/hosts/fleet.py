"""The hosts of one cluster, as the notebook has them: their agents' connections and their ends.

A host is lost if its agent or its launcher's command has ended. It is also lost if it was silent
for longer than its lease: then the agent has ended. Listeners hear of it once, with the ranks of
the host.
"""

from __future__ import annotations

import asyncio
import bisect
import contextlib
import errno
import os
import queue
import re
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, replace
from typing import Any

from jaxcluster import wire
from jaxcluster.errors import LaunchError
from jaxcluster.host.processes import check_files
from jaxcluster.host.reachability import connection_errors
from jaxcluster.hosts.agent.client import Agents, Connection, Ended, State, answers
from jaxcluster.hosts.agent.requests import Mkdir, Quit
from jaxcluster.hosts.agent.transport import Keys
from jaxcluster.hosts.records.registry import ClusterRecord, HostRecord
from jaxcluster.launchers.base import LEASE_S
from jaxcluster.launchers.commands import StartedAgent
from jaxcluster.launchers.failures import Reason
from jaxcluster.plan.shares import ranks_by_host
from jaxcluster.supervision.ends import wait
from jaxcluster.text import seconds
from jaxcluster.wire import forks
from jaxcluster.wire.ops import Operation

MARGIN_S = 5.0  # the fleet gives up a host out of reach so long before its agent ends
CUT_S = 2.0  # without a connection, until the fleet asks whether anybody listens there
REFUSAL_S = 0.3  # for the answer
NOBODY_LISTENS = [os.strerror(code) for code in (errno.ECONNREFUSED, errno.ENOENT)]
LOOK_S = 0.5
REASON_S = 8.0  # for a launcher's command to end, and so to say why an agent was ended
ENDED_BY_OTHERS = re.compile("SIGTERM|SIGHUP|standard input")
CONNECT_S = 20.0
QUIT_S = 5.0  # for all agents; one that misses the request ends with its input or lease
JOIN_S = 5.0  # for an agent that is there already
ASKED_S = 2.0  # ... if clusters are only listed
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
      share: how many the first generation had there.
      lost: why it is lost; "" while it is not.
      gone: whether its agent has ended, or will; else its end is not known here.
      ends: where its agent has ended: not later than when it is lost, and why.
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
        self.ranks, self.share = range(0), 0
        self.lost, self.gone = "", False
        self.ends: tuple[float, str] | None = None


class Fleet:
    """All hosts of a cluster.

    Args:
      keys: the owner's.
      owns: whether this process started them: they end where it can't reach them.
      is_here: whether this machine is the only one.
      lease_s: how long its agents live without a connection.

    Attributes:
      hosts: that have ranks, or may, in the order of ranks; the first one has rank 0.
      on_event: called with each event of an agent and with each lost host. Its thread may wait for
        a host's answer.
    """

    def __init__(
        self, keys: Keys, *, owns: bool = True, is_here: bool = False, lease_s: float = LEASE_S
    ) -> None:
        self.keys, self.is_here, self.hosts = keys, is_here, list[Host]()
        self.on_event: Callable[[forks.Event | Host], None] | None = None
        self._owns, self._most_cut_s = owns, lease_s - MARGIN_S
        self._agents = Agents(keys)
        self._events: wire.Inbox[tuple[Host, forks.Event] | None] = wire.Inbox()
        self._ended: dict[int, Reason] = {}  # of hosts, by their numbers, as their launcher says
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
        try:
            asked = [(host, host.begin(Mkdir(forks.RANKS))) for host in self.hosts]
            answers(asked, CONNECT_S, ())
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
        """
        hosts, spec = record.hosts, record.spec
        check_files(len(record.pids) if spec.is_here else 0, len(hosts))
        keys = Keys(**record.keys)
        self = cls(keys, owns=False, is_here=spec.is_here, lease_s=lease_of(spec))
        ranks = ranks_by_host([len(host.ranks) for host in hosts])
        for number, (one, its) in enumerate(zip(hosts, ranks, strict=True)):
            self.hosts.append(self._connect(number, one.name, StartedAgent(None, asdict(one))))
            self.hosts[-1].ranks = its
        for _ in wait(timeout_s, lambda: any(h.state is State.CONNECTING for h in self.hosts)):
            time.sleep(0.01)
        for host in self.hosts:
            if host.state is not State.CONNECTED:
                self._lose(host, host.condition.removeprefix(": "), False)
        if not self.there:
            self.close()
            why = "; ".join(f"{host.name}: {host.lost}" for host in self.hosts)
            raise LaunchError(f"None of the cluster's hosts can be reached ({why}).")
        return self

    @property
    def lost(self) -> list[Host]:
        """Those that are lost."""
        return [host for host in self.hosts if host.lost]

    def out_of_reach(self) -> list[str]:
        """The names of the hosts that don't answer now and are not known to have ended."""
        asked = [(host.name, host.begin(Mkdir(forks.RANKS))) for host in self.there]
        found = answers(asked, JOIN_S)
        return [host.name for host in self.hosts if not host.gone and host.name not in found]

    def records(self) -> list[HostRecord]:
        """How another process of this machine joins the hosts."""
        return [
            HostRecord(**vars(h.facts) | {"endpoint": h.endpoint}, name=h.name, ranks=list(h.ranks))
            for h in self.hosts
        ]

    def replace(self, lost: Host, agent: StartedAgent) -> None:
        """Go on with another agent on a host whose own is lost.

        Raises:
          LaunchError: it does not answer.
        """
        lost.close()
        host = self._connect(lost.number, lost.name, agent)
        host.ranks, host.share, host.lost = lost.ranks, lost.share, lost.lost
        self.hosts[self.hosts.index(lost)] = host
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

    def ended(self, numbers: Iterable[int], why: Reason) -> None:
        """The launcher's command for these hosts has ended; some may come later. Any thread."""
        self._ended |= dict.fromkeys(numbers, why)
        self._events.put(None)

    @property
    def there(self) -> list[Host]:
        """Those that are not lost."""
        return [host for host in self.hosts if not host.lost]

    def leave_out(self, lost: Sequence[Host]) -> None:
        """Leave these hosts out from now on, if there are others."""
        if len(lost) < len(self.hosts):
            for host in lost:
                self.hosts.remove(host)
                host.close()

    # ------------------------------------------------------------------ as one

    def command(
        self,
        command: Operation[Any],
        timeout_s: float = 30.0,
        passed_over: type[LaunchError] = Ended,
    ) -> None:
        """Send a command to the agents of all hosts that are not lost.

        Raises:
          LaunchError: one of them does not answer within ``timeout_s``; but see ``answers``.
        """
        asked = [(host, host.begin(command)) for host in self.there]
        answers(asked, timeout_s, (passed_over,))

    def quit(self) -> None:
        """End them and all that they have started, and disconnect."""
        self.command(Quit(), QUIT_S, LaunchError)
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
                if (heard := self._events.get(timeout=LOOK_S)) is not None:
                    self._take(*heard)
            cut = [one for one in self.there if one.state is State.CUT and one.cut_s > CUT_S]
            gone = self.gone(cut)
            for host in list(self.hosts):
                self._look_at(host, host in gone)

    def gone(self, hosts: Sequence[Host]) -> list[Host]:
        """At whose agents' sockets nothing listens any more, as far as an answer says so."""
        # Else a path is a socket of ssh's, whose end its launcher tells.
        asked = [one for one in hosts if self.is_here or one.endpoint.startswith("tcp:")]
        to = []
        for one in asked:
            kind, _, where = one.endpoint.partition("://")
            address, _, port = where.rpartition(":")
            to.append((address.strip("[]"), int(port)) if kind == "tcp" else (where, 0))
        whys = asyncio.run(connection_errors(to, REFUSAL_S)) if to else []
        return [one for one, why in zip(asked, whys, strict=True) if why in NOBODY_LISTENS]

    def _look_at(self, host: Host, is_gone: bool = False) -> None:
        """Whether it is lost by now, as its launcher says or its connection shows."""
        if (reason := self._ended.pop(host.number, None)) is not None:
            why = re.sub(r'\.("?)\.?$', r"\1", reason.message)  # no sentence's end
            self._lose(host, why, self._owns or reason.has_ended)
        elif host.ends is not None and time.monotonic() > host.ends[0]:
            self._lose(host, host.ends[1], True)
        elif is_gone:
            self._lose(host, "its agent has ended: nothing answers at its socket there", True)
        elif host.state is State.CUT and host.cut_s > self._most_cut_s:
            why = f"it has not been reached for {host.cut_s:.0f} s"
            self._lose(host, why, self._owns)  # its agent ends alone

    def _take(self, host: Host, event: forks.Event) -> None:
        if isinstance(event, forks.Lost):  # the agent has said that it ends, or has
            why = host.why or "its agent has ended"
            if self._owns and ENDED_BY_OTHERS.search(why):  # its launcher may know who, and why
                host.ends = time.monotonic() + REASON_S, why
            else:
                self._lose(host, why, True)
        elif self.on_event is not None and not host.lost:
            if isinstance(event, forks.Exit) and not host.is_here:
                event = replace(event, host=host.name)
            self.on_event(event)

    def _lose(self, host: Host, why: str, gone: bool) -> None:
        """``gone``: its agent has ended, or will; else that is not known here."""
        if not host.lost:
            host.lost, host.gone = why, gone
            if gone:
                host.close(why)  # nobody waits for its answer
            if self.on_event is not None:
                self.on_event(host)


def lease_of(spec: wire.ClusterSpec) -> float:
    """How long the agents of a cluster live without their owner's connection, in seconds."""
    return max(LEASE_S, seconds(str(dict(spec.options).get("lease", LEASE_S))))


def unreachable(record: ClusterRecord) -> list[str]:
    """The other hosts of a cluster whose record is here that don't answer now.

    Takes ``ASKED_S`` where there is one.
    """
    if record.spec.is_here or record.protocol != wire.PROTOCOL_VERSION:
        return []
    try:
        fleet = Fleet.joined(record, ASKED_S)
    except LaunchError:
        return [host.name for host in record.hosts]
    fleet.close()
    return [host.name for host in fleet.hosts if host.lost]

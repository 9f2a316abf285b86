"""Clusters that another process has started: how this one comes to their ranks, and whether it can.

Three ways: ranks of this machine by their sockets; ranks of other hosts by what the process that
started them has left in the cluster's folder here; and, where another machine has started them, by
logins to their hosts (``launchers.visits``).
"""

from __future__ import annotations

import socket
from pathlib import Path

from jaxcluster.allocation import keys, visits
from jaxcluster.allocation.processes import HostProcesses
from jaxcluster.allocation.supervisor import Supervisor
from jaxcluster.allocation.visits import Found, Visit, Way
from jaxcluster.cluster.world import World
from jaxcluster.errors import LaunchError, NoCluster
from jaxcluster.options.known import known
from jaxcluster.options.table import kind_of
from jaxcluster.records import claims
from jaxcluster.records.registry import ClusterRecord
from jaxcluster.wire.link import SocketLink

VISIT_S = 60.0  # for the logins to all hosts

find, look, way_of = visits.find, visits.look, visits.way_of

__all__ = [
    "Found",
    "Way",
    "check_is_here",
    "find",
    "join",
    "look",
    "unreachable",
    "visit",
    "way_of",
]


def join(record: ClusterRecord) -> World:
    """The ranks of a cluster whose record lies here.

    Raises:
      LaunchError: its fork server is gone, or a host does not answer.
      NoCluster: it runs where it can't be reached from here.
    """
    if record.hosts:
        # Sockets of ssh's are another machine's, where several share the folder; ports are not.
        if any(not host.endpoint.startswith("tcp://") for host in record.hosts):
            check_is_here(record)
        joined = HostProcesses.joined(record)
        return World(record, joined.connect(), joined.supervisor, remote=joined)
    supervisor = Supervisor(Path(record.supervisor))
    try:
        supervisor.connect(5.0)
    except LaunchError:
        check_is_here(record)
        raise
    return World(record, SocketLink(dict(enumerate(record.addresses))), supervisor)


def visit(way: Way, found: Found) -> World:
    """The ranks of a cluster that another machine has started.

    Raises:
      LaunchError: a host can't be reached.
    """
    record = found.record
    fleet = Visit(way, found).start(VISIT_S)
    joined = HostProcesses.joined(record, fleet)
    return World(record, joined.connect(), fleet, remote=joined, way=way)


def check_is_here(record: ClusterRecord) -> None:
    """Raises NoCluster of a cluster that does not answer and yet may live, somewhere else."""
    if claims.lives([record.name])[record.name] is not claims.Life.UNKNOWN:
        return
    hint = f"There: jaxcluster stop {record.name}   or   %jaxcluster attach {record.name}"
    launcher = known().launchers.get(kind_of(record.spec.launcher))  # it may be none of ours
    if record.hosts and launcher is not None and launcher.no_logins:
        hint += f"\n{launcher.no_logins}"
    elif record.hosts:
        hint += f"\nHere, if you can log in to its hosts: %jaxcluster attach {record.name} "
        hint += f"--hosts {record.hosts[0].name}"
    raise NoCluster(
        f"Cluster {record.name!r} was started on host {record.hostname} and can't be reached "
        f"from here ({socket.gethostname()}).",
        hint,
    )


def unreachable(record: ClusterRecord, timeout_s: float = 2.0) -> list[str]:
    """The hosts of a cluster whose record lies here that don't answer now; none of this machine's.

    Takes ``timeout_s`` where there is one.
    """
    return keys.unreachable(record, timeout_s) if record.hosts else []

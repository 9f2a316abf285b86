"""Which kind of host a cluster is on: only this module asks; all others know ``base``'s classes."""

from __future__ import annotations

import socket
from pathlib import Path

from jaxcluster.allocation.base import Allocation, Processes
from jaxcluster.allocation.local import LocalAllocation, LocalProcesses
from jaxcluster.allocation.processes import HostProcesses
from jaxcluster.allocation.remote import HostAllocation
from jaxcluster.allocation.supervisor import Supervisor
from jaxcluster.errors import LaunchError, NoCluster
from jaxcluster.records import claims
from jaxcluster.records.registry import ClusterRecord
from jaxcluster.wire import ClusterSpec


def allocate(claimed: claims.Claim, spec: ClusterSpec) -> Allocation:
    """What the ranks of ``spec`` are to run on: this machine, or hosts that a launcher gives."""
    return LocalAllocation(claimed) if spec.is_here else HostAllocation(claimed)


def joined(record: ClusterRecord) -> Processes:
    """Ranks that another process has started, whose record is here.

    Raises:
      LaunchError: their fork server is gone, or a host does not answer.
      NoCluster: they run where they can't be reached from here.
    """
    if record.hosts:
        # Sockets of ssh's are another machine's, where several share the folder; ports are not.
        if any(not host.endpoint.startswith("tcp://") for host in record.hosts):
            check_is_here(record)
        return HostProcesses.joined(record)
    try:
        return LocalProcesses.joined(record)
    except LaunchError:
        check_is_here(record)
        raise


def check_is_here(record: ClusterRecord) -> None:
    """Raises NoCluster of a cluster that does not answer and yet may live, somewhere else."""
    if claims.lives([record.name])[record.name] is not claims.Life.UNKNOWN:
        return
    raise NoCluster(
        f"Cluster {record.name!r} was started on host {record.hostname} and can't be reached "
        f"from here ({socket.gethostname()}).",
        f"There: jaxcluster stop {record.name}   or   %jaxcluster attach {record.name}",
    )


def end_rest(record: ClusterRecord) -> bool:
    """End what may be left of a cluster that does not answer; whether nothing can live then."""
    if not record.hosts:
        Supervisor(Path(record.supervisor)).quit()
    return not record.hosts

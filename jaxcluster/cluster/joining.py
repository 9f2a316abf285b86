"""Clusters that another process has started: how this one comes to their ranks, and whether it can.

Three ways: ranks of this machine by their sockets; ranks of other hosts by what the process that
started them has left in the cluster's folder here; and, where another machine has started them, by
logins to their hosts (``launchers.visits``).
"""

from __future__ import annotations

from jaxcluster.allocation import chosen, keys, visits
from jaxcluster.allocation.visits import Found, Way
from jaxcluster.cluster.world import World
from jaxcluster.records.registry import ClusterRecord

find, look, way_of = visits.find, visits.look, visits.way_of
check_is_here, end_rest, unreachable = chosen.check_is_here, chosen.end_rest, keys.unreachable

__all__ = [
    "Found",
    "Way",
    "check_is_here",
    "end_rest",
    "find",
    "join",
    "look",
    "unreachable",
    "visit",
    "way_of",
]


def join(record: ClusterRecord) -> World:
    """The ranks of a cluster whose record is here.

    Raises:
      LaunchError, NoCluster: see ``chosen.joined``.
    """
    processes = chosen.joined(record)
    return World(record, processes.connect(), processes)


def visit(way: Way, found: Found) -> World:
    """The ranks of a cluster that another machine has started.

    Raises:
      LaunchError: a host can't be reached.
    """
    processes = chosen.visited(way, found)
    return World(found.record, processes.connect(), processes, way=way)

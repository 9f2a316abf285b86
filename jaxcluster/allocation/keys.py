"""The owner's keys of a cluster of hosts, in its folder here, and what they can reach."""

from __future__ import annotations

import json
import time

from jaxcluster import wire
from jaxcluster.agent.client import Agents, State
from jaxcluster.agent.transport import Keys
from jaxcluster.allocation.limits import check_files
from jaxcluster.errors import LaunchError, NoCluster
from jaxcluster.launchers.base import LEASE_S
from jaxcluster.records import registry
from jaxcluster.text import seconds

LAUNCH = "launch"
KEYS = "keys.json"
LOOK_S = 2.0


def launch_folder(claim: str) -> str:
    """In a cluster's folder: what its launcher needs. The next cluster of the name has another."""
    return f"{LAUNCH}-{claim[:6]}"


def lease_of(spec: wire.ClusterSpec) -> float:
    """How long the agents of a cluster live without their owner's connection, in seconds."""
    return max(LEASE_S, seconds(str(dict(spec.options).get("lease", LEASE_S))))


def keys_of(record: registry.ClusterRecord) -> Keys:
    """The owner's keys, from the cluster's folder.

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


def unreachable(record: registry.ClusterRecord) -> list[str]:
    """The other hosts of a cluster whose record is here that don't answer now.

    Takes ``LOOK_S`` where there is one.
    """
    if record.spec.is_here:
        return []
    try:
        check_files(0, len(record.hosts))
        agents = Agents(keys_of(record))
    except NoCluster:
        return [host.name for host in record.hosts]
    except LaunchError:
        return []  # this process has no files left to ask so many, and nothing is known of them
    try:
        hosts = [agents.connect(h.endpoint, h.key, name=h.name) for h in record.hosts]
        deadline = time.monotonic() + LOOK_S
        while time.monotonic() < deadline and any(h.state is State.CONNECTING for h in hosts):
            time.sleep(0.01)
        return [host.name for host in hosts if host.state is not State.CONNECTED]
    finally:
        agents.close()

"""The owner's keys of a cluster of hosts, in its folder here."""

from __future__ import annotations

import json

from jaxcluster.agent.transport import Keys
from jaxcluster.errors import NoCluster
from jaxcluster.records import registry

LAUNCH = "launch"
KEYS = "keys.json"


def launch_folder(claim: str) -> str:
    """In a cluster's folder: what its launcher needs. The next cluster of the name has another."""
    return f"{LAUNCH}-{claim[:6]}"


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

"""Clusters: started, found, run cells on, given new ranks, and ended.

``handle`` has what a user holds in his hand, ``sessions`` the clusters of this process.
"""

from __future__ import annotations

from jaxcluster.cluster.handle import Cluster
from jaxcluster.cluster.running import RunningCell
from jaxcluster.cluster.sessions import (
    attach,
    connect,
    connected,
    current,
    listed,
    live_records,
    offer,
    start,
    start_once,
    start_spec,
    stop_by_name,
    stop_owned,
)
from jaxcluster.cluster.spec import make_spec
from jaxcluster.cluster.starting import dry_run, is_starting

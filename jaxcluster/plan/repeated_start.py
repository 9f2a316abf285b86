"""A start cell that is run again: its cluster is there already, or one with other options is. Pure.

A notebook's cells are run again and again, one by one and all of them. A second cluster beside the
first would double the memory, and the next cell would miss its variables.
"""

from __future__ import annotations

from typing import Any

from jaxcluster import wire
from jaxcluster.options.known import known
from jaxcluster.options.table import COMMON

# A start's time limit and its cluster's name don't change what runs.
NOT_COMPARED = ("name", "timeout_s", "initialization_timeout")


def are_alike(running: wire.ClusterSpec, wanted: wire.ClusterSpec) -> bool:
    """Whether a start asks for what runs; what it leaves open (0 processes, no platform) may be."""
    there, asked = _given(running), _given(wanted)
    for name in ("num_processes", "platform"):
        if not getattr(wanted, name):
            there.pop(name, None)
    return there == asked


def typed(spec: wire.ClusterSpec) -> str:
    """The options of a cluster that are no defaults, as typed: ``-n 4 --platform cpu``."""
    return known().line(_given(spec))


def _given(spec: wire.ClusterSpec) -> dict[str, Any]:
    """By its name each option that is not the default."""
    default = wire.ClusterSpec(spec.name, 0, platform="")
    found = {
        name: getattr(spec, name)
        for name in COMMON
        if name not in NOT_COMPARED and getattr(spec, name) != getattr(default, name)
    }
    ids = found.get("local_device_ids") or []
    if ids and all(one == ids[0] for one in ids):  # whatever the number of ranks
        found["local_device_ids"] = ids[:1]
    if found.get("devices_per_process") == 0:
        found["devices_per_process"] = "all"
    return found | spec.options

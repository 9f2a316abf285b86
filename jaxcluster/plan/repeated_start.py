"""A start cell that is run again: its cluster is there already, or one with other options is. Pure.

A notebook's cells are run again and again, one by one and all of them. A second cluster beside the
first would double the memory, and the next cell would miss its variables.
"""

from __future__ import annotations

from typing import Any

from jaxcluster import wire
from jaxcluster.options.known import known
from jaxcluster.options.table import COMMON

# What a start may take, and how its cluster is called, are no part of what runs.
NOT_COMPARED = ("name", "timeout_s", "initialization_timeout")


def differences(running: wire.ClusterSpec, wanted: wire.ClusterSpec) -> list[str]:
    """What sets two clusters' options apart, as typed: ``-n 4, not -n 2``.

    Args:
      wanted: what is left open in it (0 processes, no platform) is no difference.
    """
    there, asked = _given(running), _given(wanted)
    if not wanted.num_processes:
        there.pop("num_processes", None)
    if not wanted.platform:
        there.pop("platform", None)

    told = []
    for name in {**there, **asked}:
        if there.get(name) != asked.get(name):
            has, wants = (
                known().line({name: given[name]}, hide=True) if name in given else ""
                for given in (there, asked)
            )
            told.append(f"{has}, not {wants}" if has and wants else has or f"no {wants}")
    return told


def _given(spec: wire.ClusterSpec) -> dict[str, Any]:
    """By its name each option that is not the default."""
    default = wire.ClusterSpec(spec.name, 0, platform="")
    found = {
        name: getattr(spec, name)
        for name in COMMON
        if name not in NOT_COMPARED
        and (name == "launcher" or getattr(spec, name) != getattr(default, name))
    }
    ids = found.get("local_device_ids") or []
    if ids and all(one == ids[0] for one in ids):  # whatever the number of ranks
        found["local_device_ids"] = ids[:1]
    if found.get("devices_per_process") == 0:
        found["devices_per_process"] = "all"
    return found | spec.options

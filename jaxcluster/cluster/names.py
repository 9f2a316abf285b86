"""Clusters by name: which are free, which are taken, which live."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator

from jaxcluster import wire
from jaxcluster.errors import ClusterExists
from jaxcluster.records import claims, registry


def free_name() -> str:
    """``main``, or the first of ``main-2``, ``main-3``... that nobody has, or may have."""
    return next(name for name in automatic_names() if claims.life(name) is claims.Life.DEAD)


def automatic_names() -> Iterator[str]:
    return itertools.chain(["main"], (f"main-{i}" for i in itertools.count(2)))


def claim(spec: wire.ClusterSpec) -> tuple[wire.ClusterSpec, claims.Claim]:
    """The cluster's name for this process; where the user gave none, the next that is free.

    Raises:
      ClusterExists: somebody else has it.
    """
    registry.check_name(spec.name)
    for name in itertools.chain([spec.name], automatic_names() if spec.any_name else []):
        if (claimed := claims.claim(name)) is not None:
            return dataclasses.replace(spec, name=name), claimed
    holder = claims.read_holder(registry.folder(spec.name))
    running = any(record.name == spec.name for record in live_records(tidy=False))
    if running:
        raise ClusterExists(
            f"Cluster {spec.name!r} is already running.",
            f"%jaxcluster attach {spec.name} connects to it, %jaxcluster stop ends it, and "
            "%jaxcluster start --name NAME starts another.",
        )
    if holder is not None:
        pid = holder.owner.partition(":")[0]
        raise ClusterExists(
            f"Cluster {spec.name!r} is being started, by process {pid} on {holder.hostname}.",
            f"%jaxcluster attach {spec.name} connects to it once it runs; %jaxcluster start "
            "--name NAME starts another.",
        )
    raise ClusterExists(
        f"{registry.folder(spec.name)} already exists, and may not be a cluster's folder.",
        "Remove it if it is not needed, or: %jaxcluster start --name NAME",
    )


def live_records(tidy: bool = True) -> list[registry.ClusterRecord]:
    """The running clusters of this user; what dead ones left is removed.

    One that can't be judged from here is among them: it may run on another host.

    Args:
      tidy: remove it. A thread that only looks leaves it to those that start clusters.
    """
    if tidy:
        claims.tidy()
    return [r for r in registry.records() if claims.life(r.name) is not claims.Life.DEAD]

"""What a cluster says of itself: what it has, what it has lost, and what to type then."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jaxcluster.ranks import name_ranks

if TYPE_CHECKING:
    from jaxcluster.cluster.handle import Cluster


def summary(cluster: Cluster) -> str:
    """One line: ranks, devices per rank, platform, time."""
    if cluster.down:
        return f"{cluster.down}\n{down_hint(cluster)}"
    counts = sorted({len(r.devices) for r in cluster.record.devices})
    per_rank = "-".join(str(c) for c in counts)
    kinds = sorted({d.kind for r in cluster.record.devices for d in r.devices})
    started_s = cluster.world.started_s
    took = f", ready in {started_s:.1f} s" if started_s else ""
    total = sum(len(r.devices) for r in cluster.record.devices)
    return (
        f"Cluster {cluster.name!r}: {name_ranks(range(cluster.num_processes))}, "
        f"{per_rank} {cluster.spec.platform} device{'s' if counts != [1] else ''} per rank "
        f"({total} in all, {', '.join(kinds)}){took}{_profile(cluster)}.{_unchecked(cluster)}"
        + (f" {without_coordinator(cluster)}" if cluster.coordinator_died else "")
        + (f" {without_dead(cluster)}" if cluster.dead else "")
    )


def _profile(cluster: Cluster) -> str:
    return f", by profile {cluster.spec.profile!r}" if cluster.spec.profile else ""


def without_dead(cluster: Cluster) -> str:
    why = "; ".join(sorted({facts["why"] for facts in cluster.dead.values()}))
    if cluster.world.unreachable:  # they may live
        return f"{name_ranks(cluster.dead).capitalize()} can't be asked ({why})."
    return f"{name_ranks(cluster.dead).capitalize()} died ({why})."


def without_coordinator(cluster: Cluster) -> str:
    """What the death of JAX's coordinator means."""
    return (
        f"JAX's coordinator died ({cluster.coordinator_died}); no rank can do without it. "
        "%jaxcluster restart gives the ranks new processes."
    )


def _unchecked(cluster: Cluster) -> str:
    """What to say where JAX's launches don't reach the journal."""
    if all(reply.recording for reply in cluster.record.devices):
        return ""
    return (
        " This jax can't be watched: divergence is not checked, and a hang is told by stacks "
        "alone (%jaxcluster stacks)."
    )


def down_hint(cluster: Cluster) -> str:
    """What to type where it has no processes, and what is still there."""
    if cluster.kept is None or not cluster.kept.reports:
        return (
            "%jaxcluster restart starts them again, with empty ranks; %jaxcluster stop gives "
            "the cluster up."
        )
    return (
        f"The variables of {name_ranks(cluster.kept.reports)} are saved: %jaxcluster restart "
        "brings them back, %jaxcluster stop gives them up."
    )


def again(cluster: Cluster) -> str:
    """What to type where hosts that may live can't be reached."""
    return (
        "The cluster is not known to have ended, and nothing of it was cleared away. Once they "
        f"can be reached: {how_to_attach(cluster)}"
    )


def how_to_attach(cluster: Cluster) -> str:
    way = cluster.world.way
    return f"%jaxcluster attach {cluster.name}" + (f" {way.typed}" if way is not None else "")

"""What a cluster says of itself: what it has, and what is left where it has no processes."""

from __future__ import annotations

from jaxcluster.allocation.fleet import Left
from jaxcluster.allocation.states import Kept
from jaxcluster.model.availability import ClusterCondition
from jaxcluster.ranks import name_ranks
from jaxcluster.records.registry import ClusterRecord


def summary(now: ClusterCondition, record: ClusterRecord, started_s: float) -> str:
    """One line: ranks, devices per rank, platform, time."""
    if now.down:
        return f"{now.down}\n{now.down_hint}"
    counts = sorted({len(r.devices) for r in record.devices})
    per_rank = "-".join(str(c) for c in counts)
    kinds = sorted({d.kind for r in record.devices for d in r.devices})
    took = f", ready in {started_s:.1f} s" if started_s else ""
    total = sum(len(r.devices) for r in record.devices)
    return (
        f"Cluster {now.name!r}: {name_ranks(range(record.spec.num_processes))}, "
        f"{per_rank} {record.spec.platform} device{'s' if counts != [1] else ''} per rank "
        f"({total} in all, {', '.join(kinds)}){took}.{_unchecked(record)}"
        + (f" {now.without_coordinator}" if now.coordinator_died else "")
        + (f" {now.without_dead}" if now.dead else "")
    )


def _unchecked(record: ClusterRecord) -> str:
    """What to say where JAX's launches don't reach the journal."""
    if all(reply.recording for reply in record.devices):
        return ""
    return (
        " Launches can't be recorded with this jax, so divergence is not found (%jaxcluster doctor "
        "says why). %jaxcluster stacks shows a hang."
    )


def down_hint(kept: Kept | None, spent: str, left: Left = Left()) -> str:  # noqa: B008
    """What to type where it has no processes, and what can still be read of what was saved.

    Args:
      spent: why it can get no new ones; "" while nobody knows better.
      left: the hosts that are left, where others are lost.
    """
    kept = kept.looked_at() if kept is not None else None
    gone = ""
    if kept is not None and kept.gone:
        gone = f"The saved variables are gone: {kept.why_gone}. "
    if left.hosts:
        return _down_with_some(kept, spent, left, gone)
    if spent:
        told = ""
        if kept is not None and kept.reports:
            told = f"The variables of {name_ranks(kept.reports)} can't be restored: "
        return f"{told}{spent}. {gone}%jaxcluster stop ends the cluster."
    if kept is None or not kept.reports:
        return (
            f"{gone}%jaxcluster restart starts them again, with empty ranks; %jaxcluster stop "
            "ends the cluster."
        )
    return (
        f"The variables of {name_ranks(kept.reports)} are saved: %jaxcluster restart restores "
        f"them, %jaxcluster stop discards them. {gone}".rstrip()
    )


def _down_with_some(kept: Kept | None, spent: str, left: Left, gone: str) -> str:
    """The same where some hosts are left."""
    again = "" if spent else "%jaxcluster restart tries again with all hosts; "
    their, ends = "", "ends the cluster"
    if kept is not None and kept.reports:
        their = f"The variables of {name_ranks(kept.reports)} are saved: "
        ends = "discards them"
    why = f"{spent[0].upper()}{spent[1:]}. " if spent else ""
    return f"{why}{their}{left.offer}; {again}%jaxcluster stop {ends}. {gone}".rstrip()

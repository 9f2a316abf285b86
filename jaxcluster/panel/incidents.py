"""The last certain finding of this kernel's clusters: a hang, wrong numbers, or dead ranks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from jaxcluster.cluster import Cluster, RunningCell, recovery
from jaxcluster.cluster.running import Owner
from jaxcluster.panel import protocol
from jaxcluster.views import text


@dataclass(frozen=True)
class Incident:
    """What was found, and where to ask what has become of it.

    ``about`` tells it from others: what ``diagnose`` has found, or the ranks that died.
    """

    about: Any
    report: protocol.Report
    cluster: Owner
    launch: int
    cell: RunningCell | None


class Incidents:
    """Keeps the last one, since that is the one to act upon."""

    def __init__(self) -> None:
        self._last: Incident | None = None

    def of_cell(self, cell: RunningCell, now: int) -> None:
        """Take in a cell's finding, with the stacks of the moment when it was found."""
        found = cell.report
        if found is None or (self._last is not None and self._last.about is found):
            return
        shown = text.stacks(cell.evidence)
        culprits, others = list(found.culprits), list(found.others)
        self._keep(found, cell.cluster, cell, found.kind, now, found.lines, others, culprits, shown)

    def of_cluster(self, current: Cluster, now: int) -> None:
        """Take in what has befallen a cluster: the death of ranks, or of its coordinator."""
        last = self._last
        dead = sorted(current.dead)
        about = (current.record.created_ns, *dead)
        if current.closed or not current.is_broken or (last is not None and last.about == about):
            return
        stacks = text.stacks(recovery.ask_reports(current.link, launches=1))
        if dead or current.coordinator_died:
            cell = next((c for c in current.cells if set(c.record.ranks) & set(dead)), None)
            waiting = []
            if cell is not None:
                waiting = sorted(set(cell.record.ranks) - set(dead) - set(cell.record.replies))
            lines = _obituary(current, dead, cell)
            self._keep(about, current, cell, "dead", now, lines, waiting, dead, stacks)
        elif (why := current.divergence) is not None and (last is None or last.about is not why):
            # No cell has a finding, and yet they could not be brought back into lockstep.
            self._keep(why, current, None, "step", now, why.lines, why.others, why.culprits, stacks)

    def _keep(
        self,
        about: Any,
        of: Owner,
        cell: RunningCell | None,
        kind: str,
        now: int,
        lines: Sequence[str],
        waiting: Sequence[int],
        culprits: Sequence[int],
        stacks: str,
    ) -> None:
        record = cell.record if cell is not None else None
        report = protocol.Report(
            id=f"{of.name}:{kind}:{now}",
            cluster=of.name,
            cell_id=record.cell_id if record is not None else "",
            cell=record.execution_count if record is not None else 0,
            at=now,
            lines=list(lines),
            waiting=list(waiting),
            culprits=list(culprits),
            stacks=stacks,
        )
        self._last = Incident(about, report, of, of.world.record.created_ns, cell)

    def report(self) -> protocol.Report | None:
        """The last one as it stands now."""
        last = self._last
        if last is None:
            return None
        recovered = last.cell.recovered if last.cell is not None else ""
        world = last.cluster.world
        same_launch = not last.cluster.closed and world.record.created_ns == last.launch
        return replace(
            last.report,
            recovered=recovered or last.cluster.recovered,
            open=same_launch and world.is_broken,
        )


def _obituary(current: Cluster, dead: Sequence[int], cell: RunningCell | None) -> list[str]:
    where = f" in cell [{cell.record.execution_count}]" if cell is not None else ""
    lines = [f"Rank {rank} died{where}: {current.dead[rank]['why']}." for rank in dead]
    if not dead:
        return [f"JAX's coordinator died: {current.coordinator_died}."]
    return [
        *lines,
        f"The end of rank {dead[0]}'s log:",
        *current.world.log_excerpt(dead[0]).splitlines(),
    ]

"""The last certain finding of this kernel's clusters: a hang, wrong numbers, or dead ranks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from jaxcluster import wire
from jaxcluster.cluster import Cluster, RunningCell, replay
from jaxcluster.cluster.action_runner import Owner
from jaxcluster.model.availability import advice
from jaxcluster.model import crash_log, deaths, explain
from jaxcluster.model.findings import Report
from jaxcluster.panel import protocol
from jaxcluster.panel.poller import RankPoller
from jaxcluster.ranks import begin_ranks
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
        """Take in a cell's finding, with what the ranks said at the moment when it was found."""
        found = cell.report
        if found is None or (self._last is not None and self._last.about is found):
            return
        self._keep(found, cell.cluster, cell, found.kind, now, **_told(found, cell.evidence))

    def of_cluster(self, current: Cluster, now: int, poller: RankPoller) -> None:
        """Take in what has befallen a cluster: the death of ranks, or of its coordinator.

        Args:
          poller: knows what its ranks did last.
        """
        last = self._last
        dead = sorted(current.dead)
        about = (current.record.created_ns, *dead)
        if current.closed or not current.is_broken or (last is not None and last.about == about):
            return
        if dead or current.coordinator_died:
            self._keep_death(about, current, dead, now, poller)
        elif (why := current.divergence) is not None and (last is None or last.about is not why):
            # No cell has a finding, and yet they could not be brought back into lockstep.
            said = replay.ask_reports(current.link, launches=1)
            self._keep(why, current, None, "step", now, **_told(why, said))

    def _keep_death(
        self,
        about: Any,
        current: Cluster,
        dead: list[int],
        now: int,
        poller: RankPoller,
    ) -> None:
        """Who died, of what, and what the others did then: most of them wait for nobody."""
        said = replay.ask_reports(current.link, launches=1)
        culprits = [rank for rank in dead if not deaths.meant([current.dead[rank].why])]
        cell = next((c for c in current.cells if set(c.record.ranks) & set(dead)), None)
        self._keep(
            about,
            current,
            cell,
            "dead",
            now,
            title=_death_title(current, dead),
            lines=_obituary(current, dead, cell, said, poller.states),
            waiting=sorted(poller.waiting - set(dead)),
            culprits=culprits,
            stacks=text.stacks(said),
        )

    def _keep(
        self,
        about: Any,
        of: Owner,
        cell: RunningCell | None,
        kind: protocol.ReportKind,
        now: int,
        **told: Any,
    ) -> None:
        record = cell.record if cell is not None else None
        report = protocol.Report(
            kind=kind,
            cluster=of.name,
            cell_id=record.cell_id if record is not None else "",
            cell=record.execution_count if record is not None else 0,
            at=now,
            **told,
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


def _told(found: Report, said: Mapping[int, wire.RankReport]) -> Mapping[str, Any]:
    """A finding, as fields of a ``protocol.Report``."""
    return {
        "title": found.title,
        "lines": list(found.lines),
        "waiting": list(found.others),
        "culprits": list(found.culprits),
        "stacks": text.stacks(said),
    }


def _death_title(current: Cluster, dead: Sequence[int]) -> str:
    if not dead:
        return "JAX's coordinator died"
    why = current.condition.ended_by_others
    return why.capitalize() or f"{begin_ranks(dead)} died"


def _obituary(
    current: Cluster,
    dead: Sequence[int],
    cell: RunningCell | None,
    said: Mapping[int, wire.RankReport],
    seen: Mapping[int, wire.RankState],
) -> list[str]:
    """What has died, of what, and where; where the others were; the end of the first one's log.

    Of ranks that a person has ended: that, and what to type.

    Args:
      said: what the others say now.
      seen: what each rank was doing when it was last asked.
    """
    if not dead:
        return [f"JAX's coordinator died: {current.coordinator_died}."]
    number = cell.record.execution_count if cell is not None else None
    lines = deaths.tell({rank: current.dead[rank].why for rank in dead}, number)
    if current.condition.ended_by_others:
        return [*lines, advice(current.condition) or ""]
    for rank in dead:
        state = seen.get(rank)
        if state is not None and state.state == "running" and state.line:
            lines.append(f"Rank {rank} was last seen at cell [{state.cell}] line {state.line}.")
    if cell is not None and said:
        record = cell.record
        others = [rank for rank in record.ranks if rank in said]
        lines += explain.tell_places(said, others, record.source, record.execution_count)
    log = current.world.log_excerpt(dead[0])
    if log == crash_log.EMPTY:
        return lines
    return [*lines, f"The end of rank {dead[0]}'s log:", *log.splitlines()]

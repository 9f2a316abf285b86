"""What the looks at the ranks during a cell have found: a suspicion, or what is certain."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING

from jaxcluster import wire
from jaxcluster.cluster import events
from jaxcluster.model import deadlock, diagnose, excused, findings, notices

if TYPE_CHECKING:
    from jaxcluster.cluster.running import RunningCell

FOREIGN_S = 4.0  # that another cell's notebook gets to mend what went wrong in it


class Looks:
    """Those of one cell.

    Attributes:
      report: the certain finding, if the cell can't end or its numbers are wrong.
      evidence: what the ranks said when it was found.
      before: what they said at the last look.
      suspicion: what the last look made likely.
      circle: ranks that seem to wait for each other.
      foreign_since: since when another cell's finding is in the way.
    """

    def __init__(self, cell: RunningCell) -> None:
        self._cell = cell
        self.report: findings.Report | None = None
        self.evidence: Mapping[int, wire.RankReport] = {}
        self.before: Mapping[int, wire.RankReport] = {}
        self.suspicion: findings.Suspicion | None = None
        self.circle: list[str] = []
        self.foreign_since: float | None = None

    def find(self, reports: Mapping[int, wire.RankReport]) -> None:
        """Keep the first certain finding in these reports that concerns this cell."""
        record = self._cell.record
        ended = [r for r, report in reports.items() if self._has_ended(report.state)]
        errors = {r: e for r, e in record.errors.items() if r in ended}
        self.suspicion = None
        if self._cell.watch.why in ("stop", "timeout"):
            return  # whatever is uneven now, the interrupt made it so
        if self.report is not None:
            return
        world = self._cell.world
        found: findings.Report | findings.Suspicion | None
        world.excused, found = excused.made_elsewhere(world.excused, reports)
        found = found or diagnose.diagnose(
            reports,
            ended,
            record.source,
            record.execution_count,
            errors,
            record.ranks,
            before=self.before,
            expected=self._expected(),
        )
        self.before = reports
        if isinstance(found, findings.Suspicion):
            self.suspicion = found
            found = None
        if found is None:
            found, unsure = deadlock.find(reports)
            self.circle = unsure or self.circle
        if found is not None and self._concerns(found):
            self.report, self.evidence = found, reports
            if found.is_hopeless and self._cell.on_notice is not None:
                told = "\n".join(found.lines[:-1])
                self._cell.on_notice(notices.Alarm(f"{told}\nThe cell is ended.\n"))
            self._cell.cluster.recovered = ""
            events.tell()

    def excuse(self, reports: Mapping[int, wire.RankReport]) -> None:
        """Remember, and say, what ranks ended this cell without since a thread may make it yet."""
        cell, record = self._cell, self._cell.record
        found = excused.find(reports, record.seq, record.ranks)
        cell.world.excused += found
        if found and cell.on_notice is not None:
            cell.on_notice("\n".join(one.tell(cell.world.hosts) for one in found) + "\n")

    def _concerns(self, found: findings.Report) -> bool:
        """Whether a finding is this cell's, or an earlier one's whose notebook does not mend it."""
        if found.concerns(self._cell.record.seq):
            return True
        now = time.monotonic()
        self.foreign_since = self.foreign_since or now
        return found.cell_seq < self._cell.record.seq and now > self.foreign_since + FOREIGN_S

    def _expected(self) -> Mapping[int, int]:
        return self._cell.world.turns.last_cells()

    def _has_ended(self, state: wire.RankState) -> bool:
        """Whether a rank will launch nothing more in this cell; its reply may be on its way."""
        if state.rank in self._cell.record.replies:
            return True
        if state.state == "running" or state.queued:
            return state.seq > self._cell.record.seq
        return state.rank not in self._cell.record.ranks or state.ended >= self._cell.record.seq

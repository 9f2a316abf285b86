"""What the looks at the ranks during a cell have found: a suspicion, or what is certain."""

from __future__ import annotations

import contextlib
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
      suspected_at: when the launch that it is about was first found to be waited for.
      circle: ranks that seem to wait for each other.
      foreign_since: since when another cell's finding is in the way.
    """

    def __init__(self, cell: RunningCell) -> None:
        self._cell = cell
        self.report: findings.Report | None = None
        self.evidence: Mapping[int, wire.RankReport] = {}
        self.before: Mapping[int, wire.RankReport] = {}
        self.suspicion: findings.Suspicion | None = None
        self.suspected_at = time.monotonic()
        self._wanted: tuple[str, int | None] | None = None
        self.circle: list[str] = []
        self.foreign_since: float | None = None
        self._excused_at: Mapping[int, int] = {}  # the ranks' probes at the first look

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
        found: findings.Report | findings.Suspicion | None = self._find_excused(reports)
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
        wanted = self._wanted
        self._wanted = None
        if isinstance(found, findings.Suspicion):
            self.suspicion = found
            self._wanted = (found.processes, found.launch.seq if found.launch else None)
            if self._wanted != wanted:  # ranks that go on are apart by a launch, now and then
                self.suspected_at = time.monotonic()
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

    def _find_excused(self, reports: Mapping[int, wire.RankReport]) -> findings.Report | None:
        """What a cell has made that an earlier one was excused for, where it concerns this one."""
        remembered = self._cell.world.excused
        settled, found = excused.look(tuple(remembered), reports)
        for one in settled:
            with contextlib.suppress(ValueError):  # another cell's thread has
                remembered.remove(one)
        return found if found is not None and found.concerns(self._cell.record.seq) else None

    def excuse(self, reports: Mapping[int, wire.RankReport], sure: bool = False) -> bool:
        """Remember, and say, what ranks ended this cell without since a thread may make it yet.

        Args:
          sure: at once. Else a second look is asked for (False), since a task that the cell has
            begun is told by the next answer of the main thread only.
        """
        cell, record = self._cell, self._cell.record
        known = {(one.rank, one.launch.processes) for one in cell.world.excused}
        found = [
            one
            for one in excused.find(reports, record.seq, record.ranks)
            if (one.rank, one.launch.processes) not in known
        ]
        probes = {rank: report.state.probes for rank, report in reports.items()}
        before, self._excused_at = self._excused_at, self._excused_at or probes
        if (
            found
            and not sure
            and not (before and all(probes[rank] > before.get(rank, 0) for rank in probes))
        ):
            return False
        cell.world.excused.extend(found)
        if found and cell.on_notice is not None:
            cell.on_notice("\n".join(one.tell(cell.world.hosts) for one in found) + "\n")
        return True

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

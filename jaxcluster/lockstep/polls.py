"""What the looks at the ranks during a cell have found: a suspicion, or what is certain. Pure."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from jaxcluster import wire
from jaxcluster.lockstep.actions import Action, AddPending, CountAnew, DropPending, Found, Notice
from jaxcluster.lockstep.facts import Facts, Reports
from jaxcluster.model import (
    deadlock,
    diagnose,
    findings,
    health,
    lockstep,
    notices,
    pending_launches,
)
from jaxcluster.model.long_launches import waits_for_launch
from jaxcluster.model.outputs import CellRecord
from jaxcluster.ranks import name_ranks

FOREIGN_S = 10.0  # that another notebook gets to fix its cell: it waits 5 s for a stopped rank
TIE_S = 5.0  # that ranks to come get to show which of two programs most ranks launch
CHECKED_S = 45.0  # that whoever brings the ranks back gets for a check (``selfcheck.PATIENCE_S``)


class Polls:
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

    def __init__(self, record: CellRecord, watch: health.CellWatch) -> None:
        self._record, self._watch = record, watch
        self.report: findings.Report | None = None
        self.evidence: Reports = {}
        self.before: Reports = {}
        self.suspicion: findings.Suspicion | None = None
        self.suspected_at = watch.started
        self._wanted: tuple[str, int | None] | None = None
        self.circle: list[str] = []
        self._announced: tuple[str, ...] | None = None  # a circle of the last look
        self.foreign_since: float | None = None
        self._replayed = 0
        self._checked_since: float | None = None
        self._held_up_since: float | None = None
        self._half_anew_since: float | None = None
        self._pending_at: Mapping[int, int] = {}  # the ranks' probes at the first look

    def find(self, reports: Reports, facts: Facts, is_patient: bool = True) -> list[Action]:
        """Keep the first certain finding in these reports that concerns this cell.

        ``is_patient``: ranks to come may show for a while which of two programs most launch.
        """
        record = self._record
        self.suspicion = None
        if facts.were_ended:
            return []
        counted = {report.state.restarts for report in reports.values()}
        if len(counted) > 1:
            return self._count_anew(max(counted), facts.now)
        self._half_anew_since = None
        reports = {**reports, **self._of_the_dead(facts.dead)}
        if self.report is not None:
            return []
        ended = [r for r, report in reports.items() if self._has_ended(report.state)]
        errors = {r: e for r, e in record.errors.items() if r in ended}
        settled, late = pending_launches.look(facts.pending, reports)
        forget: list[Action] = [DropPending(tuple(settled))] if settled else []
        found: findings.Report | findings.Suspicion | None = late
        if late is None or not late.concerns(record.seq):
            look = functools.partial(
                diagnose.diagnose,
                reports,
                ended,
                cell=record.execution_count,
                errors=errors,
                told=record.ranks,
                before=self.before,
                expected=facts.sent,
                is_patient=is_patient
                and (self._wanted is None or facts.now < self.suspected_at + TIE_S),
            )
            found = look(source=record.source)
            if isinstance(found, findings.Report) and not found.concerns(record.seq):
                found = look(source="")  # another notebook's cell may have the same number
        self.before = reports
        wanted = self._wanted
        self._wanted = None
        if isinstance(found, findings.Suspicion):
            self.suspicion = found
            self._wanted = (found.processes, found.launch.seq if found.launch else None)
            if self._wanted != wanted:  # ranks that go on are apart by a launch, now and then
                self.suspected_at = facts.now
            found = None
        if found is None or not _is_of(found, record.seq):
            # Another notebook may have stopped ranks in it, which have not come further since.
            circle, self.circle = self._find_circle(reports)
            found = circle or _circle_before(found, reports) or found
        if found is None or not self._concerns(found, facts, reports):
            return forget
        return forget + self._keep(found, reports)

    def _count_anew(self, number: int, now: float) -> list[Action]:
        """Some ranks count from zero, and some do not yet: who had them do so may be gone."""
        self._half_anew_since = self._half_anew_since or now
        return [CountAnew(number)] if now > self._half_anew_since + FOREIGN_S else []

    def _find_circle(self, reports: Reports) -> tuple[findings.Report | None, list[str]]:
        """``deadlock.find``; of launches that are only announced what a second look sees, too.

        In strict mode one of them may be about to hear that another rank has announced something
        else, and then it waits no more.
        """
        found, unsure = deadlock.find(reports)
        before, self._announced = self._announced, None
        if found is not None and deadlock.may_hear_more(reports, found.culprits):
            self._announced = found.lines
            if before != found.lines:
                found = None
        return found, unsure

    def find_at_end(self, reports: Reports) -> list[Action]:
        """Keep what is certain of a cell that has ended on all its ranks, whatever came since."""
        record = self._record
        return self._keep(
            diagnose.diagnose_end(
                reports, self.ends, record.seq, record.source, record.execution_count, record.errors
            ),
            reports,
        )

    def find_replayed(self, reports: Reports) -> list[Action]:
        """Keep that launches of the cell were met by zeros on ranks that are not in it."""
        found = diagnose.find_replayed(reports, self.ends, self._record.seq)
        return self._keep(found, reports, may_be_of_interrupt=False)

    def find_given_up(self) -> list[Action]:
        """Keep that ranks came to no launch, in strict mode, that others had announced."""
        record = self._record
        found = diagnose.find_given_up(record.replies, record.seq)
        return self._keep(found, self.evidence, may_be_of_interrupt=False)

    @property
    def ends(self) -> dict[int, wire.cell_ends.CellEnd]:
        """How the cell has ended on the ranks that have replied."""
        return {r: wire.cell_ends.end_of(reply) for r, reply in self._record.replies.items()}

    def _keep(
        self, found: findings.Report | None, reports: Reports, may_be_of_interrupt: bool = True
    ) -> list[Action]:
        if found is None or self.report is not None:
            return []
        if may_be_of_interrupt and self._is_of_interrupt(found):
            return []
        self.report = found = self._with_caught_stop(found)
        self.evidence = reports
        if not found.is_hopeless or not self._watch.open_ranks:
            return [Found(found)]
        told = "\n".join(found.lines[:-1])
        return [Notice(notices.Alarm(f"{told}\nThe cell is ended.\n")), Found(found)]

    def _with_caught_stop(self, found: findings.Report) -> findings.Report:
        """The finding; where the cell has caught a stop, that is what parts ranks, and no loop."""
        ended = {r: one for r, one in self._record.replies.items() if one.status == "ok"}
        caught = [rank for rank, one in ended.items() if one.stopped_at is not None]
        if found.kind != "missing" or found.cell_seq != self._record.seq or not caught:
            return found
        ranks = name_ranks(caught)
        told = f"The cell has caught a stop on {ranks}: it comes to each rank at another moment."
        lines = [line for line in found.lines if not line.startswith("Hint: ")]
        lines = [told, *(line for line in lines if "ran more often on" not in line)]
        lines.append("Hint: let a stop end the cell, or end the loop on all ranks alike.")
        return replace(found, lines=tuple(lines), title=f"Stop caught on {ranks}")

    def _of_the_dead(self, dead: Iterable[int]) -> dict[int, wire.RankReport]:
        """Of dead ranks that are not in the cell, or not any more: they launch nothing now."""
        record = self._record
        found = {}
        for rank in dead:
            reply, before = record.replies.get(rank), self.before.get(rank)
            if reply is not None:
                launches = reply.launches
            elif rank in record.ranks:
                continue  # its death ends the cell
            else:
                launches = before.state.launches if before else {}
            state = wire.RankState(rank, 0, "", "dead", ended=record.seq, launches=launches)
            found[rank] = wire.RankReport(state, [], [])
        return found

    def _is_of_interrupt(self, found: findings.Report) -> bool:
        """Whether an interrupt, or a time limit, has made ranks leave launches out.

        It makes none launch another program.
        """
        left = any(reply.status == "interrupted" for reply in self._record.replies.values())
        interrupted = self._watch.why in ("stop", "timeout", "")  # "": not by this cell
        is_open = bool(self._watch.why and self._watch.open_ranks)
        return interrupted and (left or is_open) and found.kind != "mismatch"

    def excuse(self, reports: Reports, facts: Facts) -> list[Action] | None:
        """Remember, and say, what ranks ended this cell without since a thread may make it yet.

        None: look a second time, since a task that the cell has begun is told by the next answer
        of the main thread only.
        """
        record = self._record
        known = {(one.rank, one.launch.processes) for one in facts.pending}
        found = tuple(
            one
            for one in pending_launches.find(reports, record.seq, record.ranks)
            if (one.rank, one.launch.processes) not in known
        )
        probes = {rank: report.state.probes for rank, report in reports.items()}
        before, self._pending_at = self._pending_at, self._pending_at or probes
        if not found:
            return []
        if not (before and all(probes[rank] > before.get(rank, 0) for rank in probes)):
            return None
        told = "\n".join(one.tell(facts.hosts) for one in found)
        sought = tuple(one for one in found if one.can_be_looked_for)
        return [AddPending(sought), Notice(f"{told}\n")]

    def _replays(self, reports: Reports) -> bool:
        """Whether ranks have run more with zeros since the last look: somebody brings them back."""
        before = self._replayed
        self._replayed = sum(
            entry.cell_seq == wire.OURS for rep in reports.values() for entry in rep.launches
        )
        return self._replayed > before

    def _concerns(self, found: findings.Report, facts: Facts, reports: Reports) -> bool:
        """Whether a finding is this cell's, or holds it up and is left by the other's notebook."""
        now, replays = facts.now, self._replays(reports)
        if found.concerns(self._record.seq):
            return True
        if found.cell_seq == wire.OURS:
            self._checked_since = self._checked_since or now
            return now > self._checked_since + CHECKED_S
        self.foreign_since = now if replays else self.foreign_since or now
        if found.cell_seq in facts.own:
            return False  # that cell has it too, and is told
        in_circle = found.kind == "circle" and {*self._watch.open_ranks} <= {*found.culprits}
        if found.cell_seq > self._record.seq and not (in_circle or self._waits(reports)):
            return False
        return now > self.foreign_since + FOREIGN_S

    def _waits(self, reports: Reports) -> bool:
        """Whether all that are still in this cell wait for others, at a launch."""
        own = [reports.get(rank) for rank in self._watch.open_ranks]
        return all(
            report is not None and (report.announced is not None or waits_for_launch(report))
            for report in own
        )

    def stuck_gates(self, reports: Reports, facts: Facts) -> set[int]:
        """Cells that are over, whose end others wait for since their notebook does not say so."""
        states = {rank: report.state for rank, report in reports.items()}
        gates = {s.gate[0]: s.gate[1:] for s in states.values() if s.gate}
        stuck = {
            seq
            for seq, ranks in gates.items()
            if seq < self._record.seq
            and seq not in facts.own
            and _is_over(seq, [states.get(rank) for rank in ranks])
        }
        is_known = facts.dead.keys() | reports.keys() >= set(facts.ranks)
        if stuck or is_known:  # else a rank that now and then answers late would restart that time
            self._held_up_since = (self._held_up_since or facts.now) if stuck else None
        if not stuck or facts.now < (self._held_up_since or facts.now) + FOREIGN_S:
            return set()
        return stuck

    def _has_ended(self, state: wire.RankState) -> bool:
        """Whether a rank will launch nothing more in this cell.

        Where its reply is missing it may be about to say that it was interrupted, which explains
        what it has not launched. What had ended at the last look, too, has sent its reply before
        this one's answer.
        """
        if state.rank in self._record.replies:
            return True
        if state.state == "running" or state.is_queueing:
            return state.seq > self._record.seq
        if state.rank not in self._record.ranks:
            return True
        before = self.before.get(state.rank)
        return before is not None and min(before.state.ended, state.ended) >= self._record.seq


def _is_over(seq: int, states: Sequence[wire.RankState | None]) -> bool:
    """Whether a cell has ended on its ranks, and those that have run it are in lockstep.

    Others may be further: those to which it was not sent, or has never come.
    """
    known = [state for state in states if state is not None]
    here = [s for s in known if s.gate[:1] == [seq] or max(s.seq, s.ended) <= seq]
    is_free = all(state.state == "idle" and not state.is_queueing for state in here)
    is_even = lockstep.in_lockstep({state.rank: state.launches for state in here})
    return len(known) == len(states) and is_free and is_even


def _is_of(found: findings.Report, seq: int) -> bool:
    """Whether a finding says where a cell went wrong, or a thread, which is of no cell."""
    by_thread = found.kind == "mismatch" and found.cell_seq == 0 and found.seq is not None
    return by_thread or found.cell_seq == seq


def _circle_before(found: findings.Report | None, reports: Reports) -> findings.Report | None:
    """The circle in which ranks waited that lack a launch, until they were interrupted in its cell.

    In strict mode they announce nothing from then on.
    """
    if found is None or found.kind != "missing":
        return None
    circle, _ = deadlock.find(lockstep.as_interrupted(reports, found.cell_seq))
    in_it = circle is not None and not {*circle.culprits}.isdisjoint(found.culprits)
    return circle if in_it else None

"""The panel's model: clusters and cells of this kernel as the messages that a page gets.

Used by the panel's thread alone, except ``submitted`` and what says otherwise.
"""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass, field

from msgspec.structs import replace

from jaxcluster import cluster, wire
from jaxcluster.agreement.messages import Waiting
from jaxcluster.cluster import Cluster, RunningCell, events
from jaxcluster.errors import NoCluster
from jaxcluster.hosts.records import registry
from jaxcluster.hosts.records.registry import ClusterRecord
from jaxcluster.model import waiting
from jaxcluster.model.outputs import CellRecord
from jaxcluster.model.rewrite import AutoMode
from jaxcluster.ranks import name_ranks
from jaxcluster.views import messages, report
from jaxcluster.views.messages import Cell, CellRank, CellRankStatus, Rank, State
from jaxcluster.wire.link import Link, replies
from jaxcluster.wire.ops.status import Resources

KEPT_CELLS = 50
KEPT_CHARS = 50_000_000  # of all their outputs together
LOOK_S = 0.4  # a look waits so long for the ranks: a page may wait too
SILENT_S = 3.0  # without an answer: a busy machine's may be late
READINGS = 2  # of what ranks use after they were busy: the first is of that time, too
READING_S = 2.0  # between two of them
RECORDS_S = 1.0  # between two looks at what runs on this machine
MEASURE_S = 0.3  # for the ranks' use, which can come with the next look

ENDS: dict[str, CellRankStatus] = {"ok": "done", "error": "failed"}  # others are "interrupted"


@dataclass
class Known:
    """The known state of the ranks of one world."""

    link: Link | None = None  # to them; None where there is no cluster
    states: dict[int, wire.RankState] = field(default_factory=dict)  # of those that have answered
    owing: dict[int, float] = field(default_factory=dict)  # since when a rank owes an answer
    ended: dict[int, int] = field(default_factory=dict)  # the seq of the last cell of each rank
    waits: dict[int, Waiting] = field(default_factory=dict)  # of ranks for others
    late: waiting.Late | None = None  # who keeps the others waiting
    used: dict[int, wire.RankResources] = field(default_factory=dict)
    to_measure: int = READINGS  # so often it is asked what they use, next at ``measure_at``
    measure_at: float = 0.0


@dataclass
class Model:
    """The state that this kernel's pages show."""

    auto: AutoMode
    submitted: deque[RunningCell] = field(default_factory=deque)  # of any thread, not yet taken in
    is_busy: bool = False  # whether some rank of the current cluster runs a cell
    _cells: dict[str, RunningCell] = field(default_factory=dict)
    _open: set[str] = field(default_factory=set)  # of these, those that had not ended
    _known: Known = field(default_factory=Known)
    _records: list[tuple[ClusterRecord, bool]] = field(default_factory=list)
    _records_at: float = 0.0
    _records_of: list[int] = field(default_factory=list)

    @property
    def current(self) -> Cluster | None:
        """The cluster that this kernel uses now."""
        connected = cluster.connected()
        return next(reversed(connected.values())) if connected else None

    def look(self) -> None:
        """Ask the ranks of the current cluster what they do."""
        if (current := self.current) is None:
            return
        world, link = current.world, current.world.link
        if self._known.link is not link:
            self._known = Known(link)
        known, now = self._known, time.monotonic()
        try:
            states = world.status(LOOK_S)
        except NoCluster:  # it has no processes now
            return
        for state in states:
            if state.state != "silent":
                known.owing.pop(state.rank, None)
            elif now < known.owing.setdefault(state.rank, now) + SILENT_S:
                continue
            known.states[state.rank] = state
        if (looked := world.look(waiting.LAUNCHES, LOOK_S)) is not None:
            known.waits = {one.rank: one for one in looked.waits if not one.lane}
            known.late = waiting.find_late(looked)
        if self.is_busy:
            known.to_measure = READINGS
        if known.to_measure and now >= known.measure_at:  # an idle kernel must look idle
            known.measure_at, known.to_measure = now + READING_S, known.to_measure - 1
            told = [rank for rank in link.ranks if rank not in known.owing]
            known.used |= replies(link.gather(told, Resources(), timeout_s=MEASURE_S))

    def take_in(self) -> tuple[State, list[Cell]]:
        """The state, and the cells that may have changed."""
        now = time.time_ns() // 1_000_000
        current = self.current
        if current is None or self._known.link is not current.world.link:
            self._known = Known()
        while self.submitted:
            self._follow(self.submitted.popleft())
        changed = []
        for key in [key for key in self._cells if key in self._open]:
            changed.append(shown := self._shown(self._cells[key], now))
            if shown.ended is not None:
                self._open.discard(key)
                if not shown.cell_id:  # nothing to show it beside
                    del self._cells[key]
        ranks = self._ranks(current) if current is not None else []
        self.is_busy = any(r.status in ("running", "waiting", "interrupted") for r in ranks)
        name = current.name if current is not None else None
        on, clusters, last = self.auto.on, self._clusters(), report.last(current, now)
        state = State(now, on, clusters, name, events.progress, _start(), ranks, last)
        return state, [shown for shown in changed if shown.cell_id]

    def cells(self) -> list[Cell]:
        """The newest run of each Jupyter cell, oldest first."""
        now = time.time_ns() // 1_000_000
        return [self._shown(cell, now) for cell in self._cells.values() if cell.record.cell_id]

    def record(self, cell_id: str) -> CellRecord | None:
        """The output of the ranks in a cell, if that is kept. Any thread."""
        new = (cell for cell in reversed(list(self.submitted)) if cell.record.cell_id == cell_id)
        found = next(new, self._cells.get(cell_id))
        return found.record if found is not None else None

    # ------------------------------------------------------------------ clusters

    def _clusters(self) -> list[messages.Cluster]:
        connected = cluster.connected()
        ours = [c.record.created_ns for c in connected.values()]
        if ours != self._records_of or time.monotonic() > self._records_at + RECORDS_S:
            self._records = [(r, registry.is_held(r.name)) for r in cluster.live_records()]
            self._records_at, self._records_of = time.monotonic(), ours
        rows = [(c.record, True) for c in connected.values()]
        rows += [row for row in self._records if row[0].created_ns not in ours]
        rows.sort(key=lambda row: (row[0].created_ns not in ours, row[0].created_ns))
        return [
            messages.Cluster(
                name=r.name,
                launcher=r.spec.launcher,
                num_processes=r.spec.num_processes,
                platform=r.spec.platform,
                created=r.created_ns // 1_000_000,
                notebook=r.notebook,
                orphaned=not held,
            )
            for r, held in rows
        ]

    # ------------------------------------------------------------------ ranks

    def _ranks(self, current: Cluster) -> list[Rank]:
        first: dict[int, RunningCell] = {}  # the own cell that each rank runs, or will run next
        for cell in current.cells:
            for rank in cell.record.ranks:
                if cell.record.records[rank].reply is None:
                    first.setdefault(rank, cell)
        every = range(current.num_processes)
        shown = [self._rank(current, rank, first.get(rank)) for rank in every]
        late = self._known.late
        if late is not None and shown[late.rank].status == "running":
            shown[late.rank].note = late.told(current.world.hosts)
        return shown

    def _rank(self, current: Cluster, rank: int, own: RunningCell | None) -> Rank:
        record, known = current.record, self._known
        state, ended = known.states.get(rank), known.ended.get(rank, 0)
        devices = [f"{d.platform}:{d.id}" for d in record.devices[rank].devices]
        shown = Rank(rank, "idle", record.facts[rank].hostname, record.pids[rank], devices)
        shown.use = known.used.get(rank)
        if current.why and not current.is_restarting:
            return replace(shown, status="dead", note=current.down.replace("\n", " "))
        if rank in current.dead:
            return replace(shown, status="dead", use=None, note=current.dead[rank].why)
        if current.is_restarting or (state is not None and state.state == "starting"):
            return replace(shown, status="starting")
        if state is not None and state.state == "silent":
            return replace(shown, status="silent", note="It does not answer.")
        if state is not None and (state.state != "running" or state.seq <= ended):
            state = None  # it has replied since
        if own is not None and (state is None or state.seq == own.record.seq):
            shown.status = "interrupted" if own.why else "running"
            shown.cell, shown.since = own.record.execution_count, _started(own)
        elif state is not None:  # another notebook's; a seq is a time
            shown.status, shown.cell, shown.since = "running", state.cell, state.seq // 1000
        if state is None:
            return shown
        shown.line = state.line
        wait = known.waits.get(rank)
        if state.paused:
            is_debugger = state.paused == "debugger"
            shown.status = "paused"
            shown.note = "In the debugger." if is_debugger else "Waits for an answer to input()."
        elif shown.status == "running" and wait is not None and wait.seq == state.seq:
            shown.status = "waiting"
            place = waiting.where(wait.place, wait.name)
            shown.note = f"waits for {name_ranks(wait.missing)} ({place})"
        return shown

    # ------------------------------------------------------------------ cells

    def _follow(self, cell: RunningCell) -> None:
        """Keep a cell, and let go of older ones. One without Jupyter's id is shown nowhere."""
        key = cell.record.cell_id or f"#{cell.record.seq}"
        self._cells.pop(key, None)
        self._cells[key] = cell
        self._open.add(key)
        chars = 0
        for number, (key, kept) in enumerate([*reversed(self._cells.items())]):
            chars += sum(record.chars for record in kept.record.records.values())
            if key not in self._open and (number >= KEPT_CELLS or chars > KEPT_CHARS):
                del self._cells[key]

    def _shown(self, cell: RunningCell, now: int) -> Cell:
        """How far a cell has come."""
        record, started = cell.record, _started(cell)
        is_done = cell.done  # before its ranks are looked at: it may end meanwhile
        known = self._known if cell.cluster is self.current else Known()
        ranks = []
        for rank in record.ranks:
            kept = record.records[rank]
            shown = CellRank(rank, "running", None)
            if kept.died:
                shown.status = "dead"
            elif kept.reply is not None:
                known.ended[rank] = max(record.seq, known.ended.get(rank, 0))
                shown.seconds = kept.reply.seconds
                shown.status = ENDS.get(kept.reply.status, "interrupted")
                is_cause = cell.refusal is not None and rank in cell.refusal.causes
                if is_cause and shown.status == "done":
                    shown.status = "failed"  # it has left the others without a launch
            elif is_done:
                shown.status = "interrupted"
            elif rank in cell.paused:
                shown.status = "paused"
            elif rank in known.waits and known.waits[rank].seq == record.seq:
                shown.status = "waiting"
            ranks.append(shown)
        ended = started + int(record.seconds * 1000) if is_done else None
        number = record.execution_count
        return Cell(record.cell_id, record.seq, number, started, ranks, ended, now)


def _started(cell: RunningCell) -> int:
    return cell.record.sent_ns // 1_000_000


def _start() -> messages.Start | None:
    """The start that goes on, or the last one, if it has failed."""
    if (course := events.course) is None:
        return None
    spec, failure, is_restart = course.spec, course.failure, course.is_restart
    steps = [course.steps.get(rank, "") for rank in range(spec.num_processes)]
    return messages.Start(spec.name, course.began, steps, failure, is_restart)

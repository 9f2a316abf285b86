"""The panel's model: clusters and cells of this kernel as the messages that a page gets.

``labextension/src/protocol.ts`` says what is in a message.

Used by the panel's thread alone, except ``submitted`` and what says otherwise.
"""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass, field
from typing import Any

from msgspec import to_builtins

from jaxcluster import cluster, wire
from jaxcluster.cluster import Cluster, RunningCell, events
from jaxcluster.errors import NoCluster
from jaxcluster.hosts.records import registry
from jaxcluster.hosts.records.registry import ClusterRecord
from jaxcluster.model import waiting
from jaxcluster.model.outputs import CellRecord
from jaxcluster.model.rewrite import AutoMode
from jaxcluster.ranks import name_ranks
from jaxcluster.views import report
from jaxcluster.wire.link import Link, replies
from jaxcluster.wire.ops.agreement import Waiting
from jaxcluster.wire.ops.status import Resources

KEPT_CELLS = 50
KEPT_CHARS = 50_000_000  # of all their outputs together
LOOK_S = 0.4  # a look waits so long for the ranks: a page may wait too
SILENT_S = 3.0  # without an answer: a busy machine's may be late
READINGS = 2  # of what ranks use after they were busy: the first is of that time, too
READING_S = 2.0  # between two of them
RECORDS_S = 1.0  # between two looks at what runs on this machine
MEASURE_S = 0.3  # for the ranks' use, which can come with the next look

Message = dict[str, Any]
PROTOCOL = 4
ENDS = {"ok": "done", "error": "failed"}  # others are "interrupted"


@dataclass
class Known:
    """The known state of the ranks of one world.

    Attributes:
      link: to them; None where there is no cluster.
      states: the last of each rank; one that has never answered is missing.
      owing: since when each rank that has not answered owes an answer.
      ended: the seq of the last cell that each rank is known to have ended.
      waits: what the referee says of the ranks that wait for others.
      late: who keeps the others waiting.
      used: what the ranks use; it is asked ``to_measure`` times more, next at ``measure_at``.
    """

    link: Link | None = None
    states: dict[int, wire.RankState] = field(default_factory=dict)
    owing: dict[int, float] = field(default_factory=dict)
    ended: dict[int, int] = field(default_factory=dict)
    waits: dict[int, Waiting] = field(default_factory=dict)
    late: waiting.Late | None = None
    used: dict[int, wire.RankResources] = field(default_factory=dict)
    to_measure: int = READINGS
    measure_at: float = 0.0


@dataclass
class Model:
    """The state that this kernel's pages show.

    Attributes:
      submitted: the cells that are not taken in yet; any thread may append to it.
      is_busy: whether some rank of the current cluster runs a cell.
    """

    auto: AutoMode
    submitted: deque[RunningCell] = field(default_factory=deque)
    is_busy: bool = False
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

    def take_in(self) -> tuple[Message, list[Message]]:
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
            if shown["ended"] is not None:
                self._open.discard(key)
                if not shown["cell_id"]:  # nothing to show it beside
                    del self._cells[key]
        ranks = self._ranks(current) if current is not None else []
        self.is_busy = any(r["status"] in ("running", "waiting", "interrupted") for r in ranks)
        state = {
            "type": "state",
            "v": PROTOCOL,
            "now": now,
            "spmd": self.auto.on,
            "clusters": self._clusters(),
            "current": current.name if current is not None else None,
            "progress": events.progress,
            "start": _start(),
            "ranks": ranks,
            "report": to_builtins(report.last(current, now)),
        }
        return state, [shown for shown in changed if shown["cell_id"]]

    def cells(self) -> list[Message]:
        """The newest run of each Jupyter cell, oldest first."""
        now = time.time_ns() // 1_000_000
        return [self._shown(cell, now) for cell in self._cells.values() if cell.record.cell_id]

    def record(self, cell_id: str) -> CellRecord | None:
        """The output of the ranks in a cell, if that is kept. Any thread."""
        new = (cell for cell in reversed(list(self.submitted)) if cell.record.cell_id == cell_id)
        found = next(new, self._cells.get(cell_id))
        return found.record if found is not None else None

    # ------------------------------------------------------------------ clusters

    def _clusters(self) -> list[Message]:
        connected = cluster.connected()
        ours = [c.record.created_ns for c in connected.values()]
        if ours != self._records_of or time.monotonic() > self._records_at + RECORDS_S:
            self._records = [(r, registry.is_held(r.name)) for r in cluster.live_records()]
            self._records_at, self._records_of = time.monotonic(), ours
        rows = [(c.record, True) for c in connected.values()]
        rows += [row for row in self._records if row[0].created_ns not in ours]
        rows.sort(key=lambda row: (row[0].created_ns not in ours, row[0].created_ns))
        return [
            {
                "name": r.name,
                "launcher": r.spec.launcher,
                "num_processes": r.spec.num_processes,
                "platform": r.spec.platform,
                "created": r.created_ns // 1_000_000,
                "notebook": r.notebook,
                "orphaned": not held,
            }
            for r, held in rows
        ]

    # ------------------------------------------------------------------ ranks

    def _ranks(self, current: Cluster) -> list[Message]:
        first: dict[int, RunningCell] = {}  # the own cell that each rank runs, or will run next
        for cell in current.cells:
            for rank in cell.record.ranks:
                if cell.record.records[rank].reply is None:
                    first.setdefault(rank, cell)
        every = range(current.num_processes)
        shown = [self._rank(current, rank, first.get(rank)) for rank in every]
        late = self._known.late
        if late is not None and shown[late.rank]["status"] == "running":
            shown[late.rank]["note"] = late.told(current.world.hosts)
        return shown

    def _rank(self, current: Cluster, rank: int, own: RunningCell | None) -> Message:
        record, known = current.record, self._known
        state = known.states.get(rank)
        shown: Message = {
            "rank": rank,
            "status": "idle",
            "host": record.facts[rank].hostname,
            "pid": record.pids[rank],
            "devices": [f"{d.platform}:{d.id}" for d in record.devices[rank].devices],
            "cell": None,
            "line": None,
            "since": None,
            "note": "",
            "use": _use(known.used.get(rank)),
        }
        if current.why and not current.is_restarting:
            return shown | {"status": "dead", "note": current.down.replace("\n", " ")}
        if rank in current.dead:
            return shown | {"status": "dead", "use": None, "note": current.dead[rank].why}
        if current.is_restarting or (state is not None and state.state == "starting"):
            return shown | {"status": "starting"}
        if state is not None and state.state == "silent":
            return shown | {"status": "silent", "note": "It does not answer."}
        if state is not None and (
            state.state != "running" or state.seq <= known.ended.get(rank, 0)
        ):
            state = None  # it has replied since
        if own is not None and (state is None or state.seq == own.record.seq):
            shown["status"] = "interrupted" if own.why else "running"
            shown |= {"cell": own.record.execution_count, "since": _started(own)}
        elif state is not None:  # another notebook's; a seq is a time
            shown |= {"status": "running", "cell": state.cell, "since": state.seq // 1000}
        if state is None:
            return shown
        shown["line"] = state.line
        wait = known.waits.get(rank)
        if state.paused:
            is_debugger = state.paused == "debugger"
            note = "In the debugger." if is_debugger else "Waits for an answer to input()."
            shown |= {"status": "paused", "note": note}
        elif shown["status"] == "running" and wait is not None and wait.seq == state.seq:
            place = waiting.where(wait.place, wait.name)
            shown |= {
                "status": "waiting",
                "note": f"waits for {name_ranks(wait.missing)} ({place})",
            }
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

    def _shown(self, cell: RunningCell, now: int) -> Message:
        """How far a cell has come."""
        record, started = cell.record, _started(cell)
        is_done = cell.done  # before its ranks are looked at: it may end meanwhile
        known = self._known if cell.cluster is self.current else Known()
        ranks = []
        for rank in record.ranks:
            kept = record.records[rank]
            status, seconds = "running", None
            if kept.died:
                status = "dead"
            elif kept.reply is not None:
                known.ended[rank] = max(record.seq, known.ended.get(rank, 0))
                status, seconds = ENDS.get(kept.reply.status, "interrupted"), kept.reply.seconds
                if cell.refusal is not None and rank in cell.refusal.causes and status == "done":
                    status = "failed"  # it has left the others without a launch
            elif is_done:
                status = "interrupted"
            elif rank in cell.paused:
                status = "paused"
            elif rank in known.waits and known.waits[rank].seq == record.seq:
                status = "waiting"
            ranks.append({"rank": rank, "status": status, "seconds": seconds})
        return {
            "type": "cell",
            "cell_id": record.cell_id,
            "seq": record.seq,
            "number": record.execution_count,
            "started": started,
            "ranks": ranks,
            "ended": started + int(record.seconds * 1000) if is_done else None,
            "now": now,
        }


def _started(cell: RunningCell) -> int:
    return cell.record.sent_ns // 1_000_000


def _start() -> Message | None:
    """The start that goes on, or the last one, if it has failed."""
    course = events.course
    if course is None:
        return None
    spec, steps = course.spec, dict(course.steps)
    return {
        "name": spec.name,
        "since": course.began,
        "steps": [steps.get(rank, "") for rank in range(spec.num_processes)],
        "failure": course.failure,
        "is_restart": course.is_restart,
    }


def _use(used: wire.RankResources | None) -> Message | None:
    if used is None:
        return None
    return {
        "cpu": round(used.cpu),
        "rss": used.rss_nbytes,
        "gpu": None if used.gpu is None else round(used.gpu),
        "gpu_used": used.gpu_used_nbytes,
        "gpu_total": used.gpu_total_nbytes,
    }

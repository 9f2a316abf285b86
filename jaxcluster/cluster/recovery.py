"""Brings ranks that have diverged back into lockstep, with their variables.

The mildest way first: *replay*. A rank that skipped programs runs them, in order, with zeros for
inputs; that releases the ranks which wait in them, and counts and hashes are equal again. What
those programs computed is garbage, so the aborted cell is taken back after it (``undoing``);
everything older is as it was.

Whichever way was taken, the ranks are in lockstep only when a sum over all devices has come out
right on all of them (``selfcheck``). Meanwhile no notebook hands out a cell.
"""

from __future__ import annotations

import ast
import contextlib
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from jaxcluster import wire
from jaxcluster.allocation.turns import Turns
from jaxcluster.cluster import selfcheck
from jaxcluster.errors import NoCluster
from jaxcluster.model import diagnose, findings, lockstep, skipped
from jaxcluster.ranks import name_ranks
from jaxcluster.wire.link import Link, Sink

REPORT_S = 1.0
STALLED_S = 3.0  # without any change, while a rank that was interrupted is in the cell yet
UNDER_WAY_S = 0.5  # that a thread of the user's gets to make the launches that its rank lacks
MOMENT_S = 0.1  # between two looks that must agree
JOURNAL_DEPTH = 4096
SETTLE_S = 8.0
COURSES_S = 5.0  # to read the texts of some programs
STEP_S = 0.01
IN_FLIGHT_S = 0.5  # that a cell gets on its way from its notebook to a rank


def ask_reports(
    link: Link,
    names: Iterable[str] = (),
    launches: int = JOURNAL_DEPTH,
    timeout_s: float = REPORT_S,
) -> dict[int, wire.RankReport]:
    """What the control channels say of all ranks; those that are dead or silent are missing."""
    body = {"names": sorted(names), "launches": launches}
    answers = link.gather(link.ranks, "poll", body, timeout_s=timeout_s)
    return wire.parse_polls({r: e.body for r, e in answers.items() if e.op == "reply"})


@dataclass
class Replay:
    """Lets idle ranks run what they skipped, while the others wait in it.

    Call ``step`` again and again; it never blocks on a rank.

    Attributes:
      ran: how many programs each rank ran in place of real ones.
      stuck: why it can't go on; "" while it can.
      counts: each rank's launches, once all are idle.
      pending: what ranks that lack launches still do: one that may launch them itself is waited
        for, and never made to run them with zeros.
      seq: the cell that it follows, if it follows one.
      is_patient: it waits for ranks that run other cells, however long they take.
      others_run: a rank that is not idle runs another cell, or has one to run.
      threads: ranks on which threads of the user's live.
    """

    link: Link
    seq: int | None = None
    pending: dict[int, findings.Reason] = field(default_factory=dict)
    is_patient: bool = False
    others_run: bool = False
    threads: tuple[int, ...] = ()
    ran: dict[int, int] = field(default_factory=dict)
    stuck: str = ""
    counts: dict[int, lockstep.Counts] = field(default_factory=dict)
    _handed_out: Mapping[int, int] = field(default_factory=dict)
    _sink: Sink = field(default_factory=Sink)
    _asked: dict[int, list[wire.Launch]] = field(default_factory=dict)
    _held: dict[int, lockstep.Counts] = field(default_factory=dict)
    _shipped: set[int] = field(default_factory=set)
    _exported: dict[int, bytes] = field(default_factory=dict)
    _course: Any = None
    _course_since: float = 0.0
    _looks: list[tuple[float, dict[int, wire.RankReport]]] = field(default_factory=list)
    _replayed: Mapping[int, lockstep.Counts] = field(default_factory=dict)

    def step(self, answer_s: float = REPORT_S) -> bool:
        """One look and what follows from it. True once all ranks are idle and in lockstep.

        Args:
          answer_s: how long ranks that say nothing hold it up.
        """
        self._collect()
        reports = ask_reports(self.link, timeout_s=answer_s)
        counts: dict[int, lockstep.Counts] = {
            rank: report.state.launches for rank, report in reports.items()
        }
        idle = {r for r, report in reports.items() if self._is_idle(report.state)}
        before = self._before(reports)
        self.threads = tuple(sorted(r for r, rep in reports.items() if rep.state.background))
        self.others_run = self.seq is not None and any(
            rep.state.queued or rep.state.seq not in (0, self.seq) for rep in reports.values()
        )
        if len(reports) == len(self.link.ranks) == len(idle) and not self._asked:
            self.counts = counts
            if lockstep.in_lockstep(counts):
                return True
        todo = skipped.to_replay(counts, {r: rep.launches for r, rep in reports.items()})
        if todo is None:
            self.stuck = "the ranks launched different programs"
            return False
        self.pending = {}
        for rank, launches in todo.items():
            handed_out = self._handed_out.get(rank, 0)
            why = diagnose.may_launch(reports[rank], before.get(rank), handed_out)
            if rank in self._asked or self.stuck:
                continue
            if why is None:
                self._ask(rank, launches, {}, counts[rank])
            else:
                self.pending[rank] = why
        return False

    def _is_idle(self, state: wire.RankState) -> bool:
        """Whether a rank runs no cell and none is on its way to it."""
        taken = state.taken >= self._handed_out.get(state.rank, 0)
        return state.state == "idle" and not state.queued and taken

    def _before(self, reports: dict[int, wire.RankReport]) -> dict[int, wire.RankReport]:
        """What was said a moment ago."""
        now = time.monotonic()
        old = [look for look in self._looks if look[0] <= now - MOMENT_S]
        self._looks = [*old[-1:], *(look for look in self._looks if look not in old)]
        self._looks.append((now, reports))
        return old[-1][1] if old else {}

    def _ask(
        self,
        rank: int,
        launches: Sequence[wire.Launch],
        shipped: dict[int, bytes],
        counts: lockstep.Counts,
    ) -> None:
        self._asked[rank] = list(launches)
        self._held[rank] = counts
        body = {
            "fingerprints": [e.fingerprint for e in launches],
            "shipped": list(shipped),
            "counts": counts,  # it runs nothing if it has launched something meanwhile
        }
        self.link.request(rank, "replay", body, list(shipped.values()), sink=self._sink)

    def _collect(self) -> None:
        while not self._sink.empty():
            event = self._sink.get()
            launches = self._asked.pop(event.rank, [])
            if event.op == "reply":
                self.ran[event.rank] = self.ran.get(event.rank, 0) + event.body["ran"]
            elif event.body.get("ename") == "MovedOn":
                pass
            elif event.body.get("ename") == "UnknownProgram" and event.rank not in self._shipped:
                # It has never compiled some of them: send it all of them.
                self._ship(event.rank, launches)
            else:
                self.stuck = str(event.body.get("message") or event.body.get("why"))

    def _ship(self, rank: int, launches: Sequence[wire.Launch]) -> None:
        """Send ``rank`` the programs that it may never have compiled, from a rank that has.

        All get the same bytes: a program that came as bytes is not the same when it is exported
        once more (on jax 0.10.2 and 0.12 some devices then wait for ever).
        """
        self._shipped.add(rank)
        for fingerprint in dict.fromkeys(e.fingerprint for e in launches):
            if fingerprint in self._exported:
                continue
            body = {"fingerprint": fingerprint}
            answers = self.link.gather(self.link.ranks, "export", body, timeout_s=5.0)
            found = [e for e in answers.values() if e.op == "reply" and e.buffers]
            if not found:
                refused = [e for e in answers.values() if e.body.get("ename") == "CannotReplay"]
                self.stuck = f"no rank can hand out a program that rank {rank} skipped"
                if refused:
                    self.stuck = refused[0].body["message"]
                return
            self._exported[fingerprint] = bytes(found[0].buffers[0])
        wanted = {e.fingerprint for e in launches}
        self._ask(rank, launches, {f: self._exported[f] for f in wanted}, self._held[rank])

    def settle(
        self, timeout_s: float = SETTLE_S, handed_out: Mapping[int, int] | None = None
    ) -> bool:
        """Step until all ranks are in lockstep, it is stuck, or the time is up.

        Args:
          timeout_s: without progress: a rank that runs one skipped program after another gets more.
          handed_out: the seq of the last cell of each rank: it may not have got it yet.
        """
        started = time.monotonic()
        deadline = started + timeout_s
        while (now := time.monotonic()) < deadline:
            # A notebook that died over a cell never sends it.
            self._handed_out = (handed_out or {}) if now < started + IN_FLIGHT_S else {}
            if self.step():
                return True
            if self.stuck:
                return False
            if self._has_stalled(now):
                return False
            if (self.others_run and self.is_patient) or self._has_progressed():
                deadline = now + timeout_s
            elif self.is_under_way:
                deadline = min(deadline, now + UNDER_WAY_S)
            time.sleep(STEP_S)
        if not self.is_under_way:
            self.stuck = self.stuck or f"not in lockstep after {timeout_s:g} s"
        return False

    def _has_progressed(self) -> bool:
        """Whether a rank that replays has run another program since the last look."""
        _, reports = self._looks[-1]
        replayed: dict[int, lockstep.Counts] = {
            r: reports[r].state.launches for r in self._asked if r in reports
        }
        before, self._replayed = self._replayed, replayed
        return any(before.get(rank, counts) != counts for rank, counts in replayed.items())

    def _has_stalled(self, now: float) -> bool:
        """Whether a rank is in the cell yet, and nothing that is done here gets it out."""
        _, reports = self._looks[-1]
        states = {rank: report.state for rank, report in reports.items()}
        course = ({r: (s.seq, s.line, s.launches) for r, s in states.items()}, list(self._asked))
        if course != self._course or self._asked:
            self._course, self._course_since = course, now
        inside = sorted(r for r, s in states.items() if s.state == "running" and s.seq == self.seq)
        if inside and self.seq is not None and now > self._course_since + STALLED_S:
            self.stuck = f"the cell goes on: {name_ranks(inside)}"
        return bool(self.stuck)

    @property
    def is_under_way(self) -> bool:
        """Whether ranks lack launches that threads of the user's on them may be about to make."""
        kinds = {why.kind for why in self.pending.values()}
        return kinds == {"background"} and not self._asked and not self.stuck

    def told(self, seconds: float, kept: str) -> str:
        """One line: what was done, and what of the variables is ``kept``."""
        by_number: dict[int, list[int]] = {}
        for rank, n in sorted(self.ran.items()):
            by_number.setdefault(n, []).append(rank)
        done = ", ".join(
            f"{name_ranks(ranks)} ran {n} skipped program{'s' if n != 1 else ''} with zeros"
            for n, ranks in by_number.items()
        )
        return f"Back in lockstep after {seconds:.1f} s ({done or 'nothing was missing'}). {kept}"


def assigned_names(source: str) -> list[str]:
    """The names that a cell binds, by any statement."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, RecursionError, MemoryError):
        return []
    return sorted(
        {n.id for n in ast.walk(tree) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
    )


def bring_back(turns: Turns, link: Link, replay: Replay) -> str:
    """Bring ranks back into lockstep without new processes.

    Returns:
      How: ``replayed``, or ``completed`` where different programs have all ended and the ranks
      count from zero. "" if they are not in lockstep; ``replay.stuck`` says why.
    """
    with contextlib.ExitStack() as stack:
        handed_out: dict[int, int] = {}
        with contextlib.suppress(NoCluster):  # nobody can hand out a cell any more
            handed_out = stack.enter_context(turns.quiet())
        replayed = replay.settle(handed_out=handed_out)
        if not (replayed or may_have_completed(link, ask_reports(link))):
            return ""
        if replayed and replay.threads and not replay.ran:
            return "replayed"  # and threads launch beside it, which a check would get in between
        verdict = selfcheck.verify(link)
        replay.stuck, replay.counts = verdict.why, verdict.counts
        if verdict.why:
            return ""
        if not replayed:
            answers = link.gather(link.ranks, "resume", {}, timeout_s=REPORT_S)
            if all(r in answers and answers[r].op == "reply" for r in link.ranks):
                return "completed"
            replay.stuck = "not all ranks count from zero again"
            return ""
        if not lockstep.in_lockstep(verdict.counts):
            replay.stuck = "something else was launched while they were checked"
            return ""
        return "replayed"


def may_have_completed(link: Link, reports: dict[int, wire.RankReport]) -> bool:
    """Whether mixed-up programs can all have ended, so that the ranks may count from here.

    Ranks that launched different programs may all have completed them, with wrong numbers: if
    every rank is idle and has launched equally many, and those that differ made the same
    collectives in the same order, each has met another, and nothing is left over.
    """
    if len(reports) < len(link.ranks):
        return False
    if any(report.state.state != "idle" for report in reports.values()):
        return False
    differing = skipped.differing(reports)
    if not differing:
        return False
    wanted = {r: sorted({entry[r] for entry in differing if r in entry}) for r in link.ranks}
    bodies = {rank: {"fingerprints": prints} for rank, prints in wanted.items()}
    answers = link.gather(link.ranks, "courses", timeout_s=COURSES_S, bodies=bodies)
    if any(r not in answers or answers[r].op != "reply" for r in link.ranks):
        return False
    courses = {r: dict(zip(wanted[r], answers[r].body, strict=True)) for r in link.ranks}
    for entry in differing:
        made = {courses[rank][fingerprint] for rank, fingerprint in entry.items()}
        if len(made) > 1 or "" in made:
            return False
    return True

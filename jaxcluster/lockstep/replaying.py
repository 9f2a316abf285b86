"""Which ranks run what they skipped, when, and whether they are in lockstep then. Pure.

The mildest way to bring ranks back: *replay*. A rank that skipped programs runs them, in order,
with zeros for inputs; that releases the ranks which wait in them, and counts and hashes are equal
again.

What is done and asked is yielded, and the answers are sent (``actions``, and those below).
"""

from __future__ import annotations

import itertools
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from jaxcluster import wire
from jaxcluster.lockstep.actions import REPORT_S, Ask, CountAnew, LookAround
from jaxcluster.lockstep.events import Looked
from jaxcluster.lockstep.facts import Facts, Reports
from jaxcluster.model import deadlock, diagnose, findings, lockstep, skipped
from jaxcluster.ranks import name_ranks

STALLED_S = 3.0  # without any change, while a rank that was interrupted is in the cell yet
PATIENT_S = 2.0  # at once for another cell's ranks: its end may need what this one holds
UNDER_WAY_S = 0.5  # that a thread of the user's gets to make the launches that its rank lacks
MOMENT_S = 0.1  # between two looks that must agree
SETTLE_S = 8.0
STEP_S = 0.01
SILENT_S = 3.0  # that ranks get to say what they have launched, before others replay without
FORSAKEN_S = 12.0  # that a notebook gets to end its cell, whose ranks announce what others lack
IN_FLIGHT_S = 0.5  # that a cell gets on its way from its notebook to a rank

T = TypeVar("T")


@dataclass(frozen=True)
class RunSkipped:
    """Have a rank run these programs with zeros. It runs nothing if its counts are others by then.

    ``shipped``: programs that it may never have compiled, by fingerprint.
    """

    rank: int
    fingerprints: tuple[int, ...]
    counts: lockstep.Counts
    shipped: Mapping[int, bytes]


@dataclass(frozen=True)
class Collect:
    """What has become of that since it was asked last. -> list of ``Ran`` and ``Refused``"""


@dataclass(frozen=True)
class Ran:
    """A rank has run so many programs with zeros."""

    rank: int
    number: int


@dataclass(frozen=True)
class Refused:
    """A rank has not: the error's name, and why."""

    rank: int
    ename: str
    why: str


@dataclass(frozen=True)
class Export:
    """A program as bytes, from a rank that has compiled it. -> bytes; or str: why not"""

    fingerprint: int


@dataclass(frozen=True)
class Pause:
    """Wait so long."""

    seconds: float


@dataclass(frozen=True)
class Verify:
    """Ask the ranks, which are idle, for sums of all devices. -> ``Verified``"""


@dataclass(frozen=True)
class Verified:
    """``why`` the ranks are not in lockstep, "" if they are; ``counts``: their launches by then."""

    why: str
    counts: Mapping[int, lockstep.Counts]


@dataclass(frozen=True)
class AskCourses:
    """Which collectives programs make, in order. -> rank -> fingerprint -> text; None: not known"""

    wanted: Mapping[int, Sequence[int]]


Action = LookAround | Ask | RunSkipped | Collect | Export | Pause | Verify | AskCourses | CountAnew
Steps = Generator[Action, Any, T]


class Replaying:
    """Lets idle ranks run what they skipped, while the others wait in it.

    Args:
      seq: the cell that it follows, if it follows one.

    Attributes:
      ran: how many programs each rank ran in place of real ones.
      stuck: why it can't go on; "" while it can.
      first: what the ranks have told before anything was run.
      counts: each rank's launches, once all are idle.
      pending: what ranks that lack launches still do: one that may launch them itself is waited
        for, and never made to run them with zeros.
      is_patient: it waits for ranks that run other cells, however long they take.
      others_run: a rank that is not idle runs another cell, or has one to run.
      missing: the set and place of a launch that ranks have skipped; ("", None) where none have.
      threads: ranks on which threads of the user's live.
      is_even: ranks lack nothing but what the cells behind will launch themselves, which wait for
        this one's end; others are in those cells already, so they are never all idle.
    """

    def __init__(self, seq: int | None = None) -> None:
        self.seq = seq
        self.ran: dict[int, int] = {}
        self.stuck = ""
        self.first: Reports = {}
        self.counts: Mapping[int, lockstep.Counts] = {}
        self.pending: dict[int, findings.Reason] = {}
        self.is_patient = self.others_run = self.is_even = False
        self.missing: tuple[str, int | None] = ("", None)
        self.threads: tuple[int, ...] = ()
        self._handed_out: Mapping[int, int] = {}
        self._last_cells: Mapping[int, int] = {}
        self._last_cells_since = 0.0
        self._heard: dict[int, wire.RankReport] = {}  # what each rank has said last
        self._asked_at: float | None = None  # when they were first asked
        self._all_spoken = False
        self._asked: dict[int, RunSkipped] = {}
        self._shipped: set[int] = set()
        self._exported: dict[int, bytes] = {}
        self._looks: list[tuple[float, Reports]] = []
        self._course: Any = None
        self._course_since = 0.0
        self._replayed: Mapping[int, lockstep.Counts] = {}
        self._begun_or_done: frozenset[tuple[int, str]] = frozenset()

    def step(
        self, answer_s: float = REPORT_S, handed_out: Mapping[int, int] | None = None
    ) -> Steps[bool]:
        """One look and what follows from it. True once all ranks are idle and in lockstep.

        Args:
          answer_s: how long ranks that say nothing hold it up.
          handed_out: the seq of the last cell of each rank: it may not have got it yet.
        """
        yield from self._collect()
        wait_s = answer_s if self._all_spoken else max(answer_s, REPORT_S)
        look: Looked = yield Ask("end", (), wait_s, is_brief=True)
        if handed_out is not None:
            if handed_out != self._last_cells:
                self._last_cells, self._last_cells_since = handed_out, look.now
            # A notebook that died over a cell never sends it.
            is_under_way = look.now < self._last_cells_since + IN_FLIGHT_S
            self._handed_out = handed_out if is_under_way else {}
        reports = look.reports
        self.first = self.first or reports
        counts: dict[int, lockstep.Counts] = {r: rep.state.launches for r, rep in reports.items()}
        idle = {r for r, report in reports.items() if self._is_idle(report.state)}
        before = self._before(look.now, reports)
        self.threads = tuple(sorted(r for r, rep in reports.items() if rep.state.background))
        self.others_run = self.seq is not None and any(
            rep.state.is_queueing or rep.state.seq not in (0, self.seq) for rep in reports.values()
        )
        if len(reports) == len(look.facts.ranks) == len(idle) and not self._asked:
            self.counts = counts
            if lockstep.in_lockstep(counts):
                return True
        self._hear(look)
        if not self._all_spoken:
            return False
        todo = self._to_replay(look)
        if todo is None:
            self.stuck = "they launched different programs"
            return False
        self.pending = {}
        self.is_even = self._is_even(reports, before, todo)
        if self.is_even:
            self.counts = {rank: counts[rank] for rank in idle | todo.keys()}
            return self.is_patient
        for rank, launches in todo.items():
            newest = self._handed_out.get(rank, 0)
            held = self._held(rank, reports, launches)
            why = diagnose.may_launch(reports[rank], before.get(rank), newest, bool(held))
            if rank in self._asked or self.stuck:
                continue
            if why is None:
                prints = tuple(e.fingerprint for e in held or launches)
                yield self._ask(RunSkipped(rank, prints, counts[rank], {}))
            else:
                self.pending[rank] = why
        return False

    def _hear(self, look: Looked) -> None:
        """Keep what ranks have launched. Each has to say so once, or gets the time to.

        What one of them has launched may come before what another one is seen to lack.
        """
        self._asked_at = look.now if self._asked_at is None else self._asked_at
        self._heard |= look.reports
        silent = set(look.facts.ranks) - self._heard.keys() - look.facts.dead.keys()
        self._all_spoken |= not silent or look.now >= self._asked_at + SILENT_S

    def _to_replay(self, look: Looked) -> dict[int, list[wire.Launch]] | None:
        """What ranks must launch, in order, also by what those that say nothing now said before."""
        heard = {r: rep for r, rep in self._heard.items() if r not in look.facts.dead}
        counts = {r: rep.state.launches for r, rep in heard.items()}
        todo = skipped.to_replay(counts, {r: rep.launches for r, rep in heard.items()})
        return todo and {rank: lacks for rank, lacks in todo.items() if rank in look.reports}

    def _ask(self, run: RunSkipped) -> RunSkipped:
        self._asked[run.rank] = run
        return run

    def _collect(self) -> Steps[None]:
        for answer in (yield Collect()):
            asked = self._asked.pop(answer.rank, None)
            if isinstance(answer, Ran):
                self.ran[answer.rank] = self.ran.get(answer.rank, 0) + answer.number
            elif answer.ename == "MovedOn":
                continue
            elif answer.ename == "UnknownProgram" and asked and answer.rank not in self._shipped:
                yield from self._ship(asked)
            else:
                self.stuck = answer.why or f"{name_ranks([answer.rank])} raised {answer.ename}"

    def _ship(self, asked: RunSkipped) -> Steps[None]:
        """Send a rank the programs that it may never have compiled, all of them.

        All ranks get the same bytes: a program that came as bytes is not the same when it is
        exported once more (on jax 0.10.2 and 0.12 some devices then wait for ever).
        """
        self._shipped.add(asked.rank)
        wanted = dict.fromkeys(asked.fingerprints)
        for fingerprint in wanted.keys() - self._exported.keys():
            exported: bytes | str = yield Export(fingerprint)
            if isinstance(exported, str):
                none = f"no rank can supply a program that rank {asked.rank} skipped"
                self.stuck = exported or none
                return
            self._exported[fingerprint] = exported
        shipped = {f: self._exported[f] for f in wanted}
        yield self._ask(RunSkipped(asked.rank, asked.fingerprints, asked.counts, shipped))

    def _held(self, rank: int, reports: Reports, lacks: Sequence[wire.Launch]) -> list[wire.Launch]:
        """What a rank lacks that the cell which waits at its gate will not launch itself.

        That cell does not begin before the ranks are called settled, or before its gate opens.
        Where this is the gate of a later cell, that one may wait for what the rank lacks.
        """
        if not (gate := reports[rank].state.gate):
            return []
        before = itertools.takewhile(lambda e: lockstep.comes_before(e, gate, reports), lacks)
        return list(before)

    def _is_even(
        self, reports: Reports, before: Reports, todo: Mapping[int, Sequence[wire.Launch]]
    ) -> bool:
        """See the attribute. It is seen twice, a moment apart."""
        if self.seq is None or self._asked or not todo:
            return False
        for rank, report in reports.items():
            state, old = report.state, before.get(rank)
            waits = state.state == "idle" and state.gate[:1] == [self.seq]
            later = state.state == "idle" or state.seq > self.seq
            if not (waits and not self._held(rank, reports, todo[rank]) if rank in todo else later):
                return False
            if old is None or (old.state.seq, old.state.gate) != (state.seq, state.gate):
                return False
        return True

    def _is_idle(self, state: wire.RankState) -> bool:
        """Whether a rank runs no cell and none is on its way to it."""
        taken = state.taken >= self._handed_out.get(state.rank, 0)
        return state.state == "idle" and not state.is_queueing and taken

    def _before(self, now: float, reports: Reports) -> Reports:
        """What was said a moment ago."""
        old = [look for look in self._looks if look[0] <= now - MOMENT_S]
        self._looks = [*old[-1:], *(look for look in self._looks if look not in old)]
        self._looks.append((now, reports))
        return old[-1][1] if old else {}

    def settle(
        self, timeout_s: float = SETTLE_S, handed_out: Mapping[int, int] | None = None
    ) -> Steps[bool]:
        """Step until all ranks are in lockstep, it is stuck, or the time is up.

        Args:
          timeout_s: without progress: a rank that runs one skipped program after another gets more,
            and so does one that has just been asked to. On a busy machine a look takes seconds.
          handed_out: the seq of the last cell of each rank: it may not have got it yet.
        """
        facts: Facts = yield LookAround()
        started, deadline = facts.now, facts.now + timeout_s
        while (now := facts.now) < deadline:
            # A notebook that died over a cell never sends it.
            self._handed_out = (handed_out or {}) if now < started + IN_FLIGHT_S else {}
            if (yield from self.step()):
                return True
            facts = yield LookAround()
            if facts.dead:  # then nothing brings the others back but new processes
                self.stuck = self.stuck or f"{name_ranks(facts.dead)} died"
            if self.stuck or self._has_stalled(now):
                return False
            if self._has_progressed():
                deadline = facts.now + timeout_s  # the look may have taken all of its time
            elif self.waits_for_others:
                deadline = min(deadline, now + PATIENT_S)
            elif self.is_under_way:
                deadline = min(deadline, now + UNDER_WAY_S)
            yield Pause(STEP_S)
            facts = yield LookAround()
        if not (self.is_under_way or self.waits_for_others):
            self.stuck = self.stuck or f"they were not in lockstep after {timeout_s:g} s"
        return False

    def _has_progressed(self) -> bool:
        """Whether a rank that replays has run another program since the last look.

        Or was asked to for the first time, or has done all of it for the first time.
        """
        _, reports = self._looks[-1]
        before, known = self._replayed, self._begun_or_done
        self._replayed = {
            rank: reports[rank].state.launches if rank in reports else before.get(rank, {})
            for rank in self._asked
        }
        stages = [(rank, "begun") for rank in self._asked] + [(rank, "done") for rank in self.ran]
        self._begun_or_done = known.union(stages)
        if self._begun_or_done != known:
            return True
        return any(before.get(r, counts) != counts for r, counts in self._replayed.items())

    def _has_stalled(self, now: float) -> bool:
        """Whether nothing has changed for long, and nothing that is done here will help.

        A rank is in the cell yet; or in another one, where it waits for ever.
        """
        _, reports = self._looks[-1]
        states = {rank: report.state for rank, report in reports.items()}
        course = ({r: (s.seq, s.line, s.launches) for r, s in states.items()}, list(self._asked))
        if course != self._course or self._asked:
            self._course, self._course_since = course, now
        if self.seq is None or now <= self._course_since + STALLED_S:
            return bool(self.stuck)
        busy = {r: report for r, report in reports.items() if _is_busy(report)}
        inside = sorted(r for r, rep in busy.items() if rep.state.seq == self.seq)
        circle = deadlock.find(reports)[0] if busy else None
        if circle is not None and circle.is_hopeless:
            self.stuck = "they wait for each other"
        elif any(busy[rank].state.state == "running" for rank in inside):
            self.stuck = f"{name_ranks(inside)} did not leave the cell"
        elif (
            busy
            and all(report.announced for report in busy.values())
            and now > self._course_since + FORSAKEN_S
        ):
            runs = any(report.state.state == "running" for report in busy.values())
            where = "another notebook's cell" if runs else "what belongs to no cell"
            self.stuck = f"{name_ranks(busy)} wait for others in {where}"
        return bool(self.stuck)

    @property
    def is_open(self) -> bool:
        """Whether ranks were asked to run programs, and have not answered."""
        return bool(self._asked)

    @property
    def waits_for_others(self) -> bool:
        """Whether it is to be tried again, since a rank runs another cell."""
        return self.others_run and self.is_patient and not self.stuck

    @property
    def is_under_way(self) -> bool:
        """Whether ranks lack launches that threads of the user's on them may be about to make."""
        kinds = {why.kind for why in self.pending.values()}
        return kinds == {"background"} and not self._asked and not self.stuck

    @property
    def why_not(self) -> str:
        """Why the ranks are not in lockstep: what it is stuck at, or what it has waited for."""
        said = [f"{name_ranks([rank])} {why.message}" for rank, why in sorted(self.pending.items())]
        return self.stuck or "; ".join(said)

    def bring_back(self, handed_out: Mapping[int, int] | None = None) -> Steps[str]:
        """Bring ranks back into lockstep without new processes, and check it.

        Returns:
          How: ``replayed``, or ``completed`` where different programs have all ended and the ranks
          count from zero. "" if they are not in lockstep; ``stuck`` says why.
        """
        replayed = yield from self.settle(handed_out=handed_out)
        if not (replayed or (yield from may_have_completed())):
            return ""
        if replayed and self._is_announced_in_vain:
            return "replayed" if (yield from self._count_anew()) else ""
        if replayed and (self.is_even or (self.threads and not self.ran)):
            return "replayed"  # other cells or threads launch beside it: a check would get between
        verified: Verified = yield Verify()
        self.stuck, self.counts = verified.why, verified.counts
        if self.stuck:
            return ""
        if not replayed:
            if (yield from self._count_anew()):
                return "completed"
        elif not lockstep.in_lockstep(self.counts):
            self.stuck = "something else was launched while they were checked"
        return "" if self.stuck else "replayed"

    @property
    def _is_announced_in_vain(self) -> bool:
        """Whether a thread still announces, in strict mode, what others have skipped for good.

        All ranks are idle. It would meet what the next cell launches.
        """
        waiting = (one.announced for one in self._looks[-1][1].values())
        return any(one and (one.processes, one.seq) == self.missing for one in waiting)

    def _count_anew(self) -> Steps[bool]:
        """Have all ranks count from zero, whatever was announced before."""
        heard = {**self._heard, **self._looks[-1][1]}
        number = 1 + max(one.state.restarts for one in heard.values())
        # A thread may launch at any time, also before its rank is told.
        if not (yield CountAnew(number, lockstep.made_by_all(self.counts))):
            self.stuck = "not all ranks count from zero again"
            return False
        look: Looked = yield Ask("end", is_brief=True)
        self.counts = {rank: report.state.launches for rank, report in look.reports.items()}
        return True


def _is_busy(report: wire.RankReport) -> bool:
    """Whether it is in a cell, or in what keeps it from the next one, as ``%%px`` does."""
    state = report.state
    return state.state != "idle" or state.is_queueing or report.announced is not None


def may_have_completed() -> Steps[bool]:
    """Whether mixed-up programs can all have ended, so that the ranks may count from here.

    Ranks that launched different programs may all have completed them, with wrong numbers: if
    every rank is idle and has launched equally many, and those that differ made the same
    collectives in the same order, each has met another, and nothing is left over.
    """
    look: Looked = yield Ask("end", is_brief=True)
    if len(look.reports) < len(look.facts.ranks):
        return False
    if any(report.state.state != "idle" for report in look.reports.values()):
        return False
    differing = skipped.differing(look.reports)
    if not differing:
        return False
    ranks = look.facts.ranks
    wanted = {r: sorted({entry[r] for entry in differing if r in entry}) for r in ranks}
    courses: Mapping[int, Mapping[int, str]] | None = yield AskCourses(wanted)
    if courses is None:
        return False
    made = [{courses[rank][print_] for rank, print_ in entry.items()} for entry in differing]
    return all(len(each) == 1 and "" not in each for each in made)

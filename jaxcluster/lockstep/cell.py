"""One cell from its sending to its ranks' replies: events in, what is to be done out. Pure.

``health.CellWatch`` knows when to interrupt whom and when to ask the ranks where they are, and
``polls`` what their answers mean. What follows once it has ended is ``settling``'s.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from jaxcluster import wire
from jaxcluster.lockstep import actions, events
from jaxcluster.lockstep.actions import Action
from jaxcluster.lockstep.facts import Facts, Reports
from jaxcluster.lockstep.polls import Polls
from jaxcluster.lockstep.states import Course, State
from jaxcluster.lockstep.undone import Undone
from jaxcluster.model import (
    explain,
    findings,
    health,
    notices,
    paused,
    suspect_launches,
    verdict,
)
from jaxcluster.model.long_launches import LongLaunches, UsualTimes, waits_for_launch
from jaxcluster.model.outputs import CellRecord
from jaxcluster.model.progress import Progress, Wait, Waits, on_one_line
from jaxcluster.ranks import name_ranks, say_each

NOTICE_AFTER_S = 0.1
DEATH_NOTICE_AFTER_S = 2.0
SUSPECTED_S = 2.0  # before it is said that ranks wait for a launch that may still come
HEARD_S = 2.0  # before somebody else's interrupt, which no code hears, is one of the stop button
STILL_WORKING_S = 5.0  # before it is said who a cell waits for
WAITED_S = 1.0  # for one launch: ranks that go on wait for each other for less
REPLAY_AFTER_S = 0.2  # that interrupted ranks get to leave by themselves
SCRIPT_ANSWER_S = 3.0  # that a script's ranks get to leave it where another one has failed
SCRIPT_STOP_S = 30.0  # ... and after Ctrl-C, to write what they must; a second one ends them


class Cell:
    """What is known of one cell, and what follows from it.

    Args:
      hosts: of the ranks, where there are several.
      is_last: nothing runs after it: it is a script, and all that the ranks are there for.
      stays: how long launches have lasted in the cluster's earlier cells.

    Attributes:
      record: what has come so far.
      watch: when it is over.
      polls: what was found.
      course: what it is now, and how it came to it.
      silent: ranks that did not answer an interrupt.
      left_early: the stop button was pressed again: no rank is waited for.
      places: where the ranks were when their time was up.
      aborted_at: when it was first interrupted.
      ran: how many programs ranks have run in place of real ones; None where no replay began.
      may_replay: ranks may yet run some, since they were asked to.
      recovered: what was done about what was wrong; "" while nothing was.
      undone: what became of what it did; None where it was not taken back.
      killed: ranks whose processes were ended, and why.
      withdrawn: why it was not run though nobody stopped it; "" else.
      stalled_s: how long all its ranks were in one launch, where that has ended it.
    """

    def __init__(
        self,
        record: CellRecord,
        started: float,
        timeout_s: float | None = None,
        hosts: Mapping[int, str] | None = None,
        is_last: bool = False,
        stall_s: float | None = None,
        stays: UsualTimes | None = None,
    ) -> None:
        self.record, self.hosts, self.is_last = record, hosts or {}, is_last
        self.started = started
        self.watch = health.CellWatch(record.ranks, started, timeout_s)
        if is_last:
            self.watch.answer_s = SCRIPT_ANSWER_S
        self.polls = Polls(record, self.watch)
        self.course = Course(started)
        self.silent: tuple[int, ...] = ()
        self.left_early = False
        self.places: list[str] = []
        self.aborted_at: float | None = None
        self.ran: int | None = None
        self.may_replay = False
        self.recovered = ""
        self.undone: Undone | None = None
        self.killed: dict[int, str] = {}
        self.withdrawn = ""
        self._are_silent: frozenset[int] = frozenset()  # at the last look
        self.left: list[int] = []  # a script's ranks whose processes have ended with code 0
        self._held: dict[int, str] = {}  # ranks that a person holds: in what
        self._noticed = False
        self._notice_at: float | None = None
        self._death_notice_at: float | None = None
        self._replay_at: float | None = None
        self._looked: Reports = {}
        self._progress, self._waits = Progress(started), Waits(started)
        self._standing = LongLaunches(record.seq, record.ranks, started, stays)
        self._stands = ""  # in which launch all its ranks are
        self._stall_s = stall_s
        self.stalled_s: float | None = None

    # ---------------------------------------------------------------------------- while it runs

    def deadline(self) -> float | None:
        """When ``Tick`` must come at the latest."""
        times = (self.watch.deadline(), self._notice_at, self._death_notice_at, self._replay_at)
        return min((t for t in times if t is not None), default=None)

    def feed(self, event: events.Event) -> list[Action]:
        """What is to be done after ``event``, in order."""
        now = event.now
        match event:
            case events.Looked(_, actions.Ask("last"), reports, facts):
                self.aborted_at = now
                return self.polls.find(reports, facts)
            case events.Looked(_, actions.Ask("places", ranks), reports):
                self.aborted_at = now
                source, number = self.record.source, self.record.execution_count
                self.places = explain.tell_places(reports, ranks, source, number)
                return []
            case events.Explained(_, lines):
                return self._tell_waiting(list(lines), now)
            case events.Located():
                return self._say_unanswered(event)
            case events.Replied(_, reply):
                todo = self._take_reply(reply, now)
            case events.Died(_, rank, why, code):
                todo = self._take_death(rank, why, code, now)
            case events.Stopped():
                self.left_early |= bool(self.watch.interrupted)
                todo = self._watched(health.StopPressed(), now)
            case events.Leaving(_, rank):
                todo = self._watched(health.Leaving(rank), now)
            case events.Held(_, rank, kind):
                self._held[rank] = kind
                todo = [actions.Changed(), *self._watched(self._paused(), now)]
            case events.Looked(_, _, reports, facts):
                todo = self._take_poll(reports, now, facts)
                self.watch.polled(now)
            case events.Stepped(_, stuck, ran, is_open):
                self.ran, self.may_replay = ran, is_open
                if stuck:  # nothing will release them
                    self.watch.answer_s = min(self.watch.answer_s, health.HOPELESS_ANSWER_S)
                self._replay_at = now + REPLAY_AFTER_S
                todo = []
            case events.TookBack(_, lines):
                todo = [actions.Notice(notices.Warned(f"{line}\n")) for line in lines]
            case events.Tick():
                todo = self._watched(health.Tick(), now)
        return todo + self._due(now)

    def _watched(self, event: health.Event, now: float) -> list[Action]:
        todo: list[Action] = []
        for instruction in self.watch.feed(event, now):
            match instruction:
                case health.Interrupt(ranks, why):
                    todo += self._interrupt(ranks, why, now)
                case health.Poll():
                    wait_s = actions.SHORT_S if self._are_silent else actions.REPORT_S
                    todo.append(actions.Ask("poll", timeout_s=wait_s))
                case health.SayUnanswered(ranks):
                    todo.append(actions.AskWhere(ranks))
                case health.Finish(silent):
                    self.silent = silent
                    why = f"gave up on {name_ranks(silent)}" if silent else "on all its ranks"
                    self.course.become(State.ENDED, now, why)
                    self._waits.look(None, now)
                    todo += self._say("", now)
        return todo

    def _interrupt(self, ranks: tuple[int, ...], why: str, now: float) -> list[Action]:
        self.course.become(State.LEAVING, now, why)
        self.aborted_at = now
        todo: list[Action] = []
        if why == "timeout":
            todo.append(actions.Ask("places", ranks))
        if why == "error" and self.polls.report is None:
            todo.append(actions.Ask("last"))
        spare = why not in ("stop", "timeout")
        todo += [actions.WatchSilent(frozenset(ranks)), actions.Interrupt(ranks, spare)]
        if self.is_last:  # what a replay gives them might be written to a file
            if why == "stop":
                self.watch.answer_s = SCRIPT_STOP_S
            return todo
        self._replay_at = now + REPLAY_AFTER_S
        return todo + ([] if why == "death" else [actions.Prepare()]) + [actions.Changed()]

    def _take_reply(self, reply: wire.CellReply, now: float) -> list[Action]:
        self.record.add_reply(reply)
        if reply.status == "ok" and not self.watch.why:
            self._standing.end()
        quit = reply.error is not None and reply.error.ename == verdict.QUIT  # for the whole cell
        stopped = reply.status == "interrupted" and not self.watch.why  # not by this cell
        todo: list[Action] = [actions.PressStop()] if quit or stopped else []
        if reply.status == "error" and not self._noticed:
            # Equal errors come together; only one that the others don't share is told early.
            self._noticed, self._notice_at = True, now + NOTICE_AFTER_S
        return todo + self._watched(health.Replied(reply.rank, reply.status), now)

    def _take_death(self, rank: int, why: str, code: int | None, now: float) -> list[Action]:
        if self.is_last and code == 0:  # os._exit(0): its own end
            self.left.append(rank)
            self.record.add_reply(wire.CellReply(rank, self.record.seq, "ok", 0.0))
            return self._watched(health.Replied(rank, "ok"), now)
        self.record.records[rank].died = why
        # Most cells are over in a moment, with an error that says it: then it is said once.
        self._death_notice_at = self._death_notice_at or now + DEATH_NOTICE_AFTER_S
        return [actions.Changed(), *self._watched(health.Died(rank), now)]

    def _due(self, now: float) -> list[Action]:
        todo: list[Action] = []
        if self.polls.report is not None and self.polls.report.is_hopeless:
            self._replay_at = None  # to launch more would only make it longer
        if self._replay_at is not None and now >= self._replay_at:
            # Ranks that sit in a collective may answer the interrupt only once it completes.
            self.ran = self.ran or 0
            todo.append(actions.StepReplay())
        open_ranks = self.watch.open_ranks
        if self._death_notice_at is not None and now >= self._death_notice_at:
            self._death_notice_at = math.inf  # once
            if not self.watch.finished:
                died = {r: one.died for r, one in self.record.records.items() if one.died}
                todo.append(actions.Notice(notices.deaths(died, open_ranks, self.hosts)))
        if self._notice_at is not None and now >= self._notice_at and not self.watch.finished:
            self._notice_at = None
            # Where a rank has died, what others raise mostly comes of it, and the death is told.
            if self._death_notice_at is None:
                told = notices.first_error(
                    self.record, open_ranks, self.watch.grace_s, self.hosts, self.watch.paused
                )
                todo.append(actions.Notice(told))
        return todo

    # ----------------------------------------------------------------------- what a look comes to

    def _take_poll(self, reports: Reports, now: float, facts: Facts) -> list[Action]:
        """A certain finding ends the cell."""
        record = self.record
        self._are_silent = self.silent_in(reports, facts)
        self._held = paused.kinds(report.state for report in reports.values())
        todo: list[Action] = []
        if self._paused().ranks != self.watch.paused:
            self.watch.polled(now)
            todo += self._watched(self._paused(), now)
        todo += self.polls.find(reports, facts)
        if (report := self.polls.report) is not None:
            lives = facts.dead.keys().isdisjoint(report.culprits)
            found = health.Diagnosed(report.is_releasable and lives)
            return todo + self._watched(found, now)
        states = [report.state for report in reports.values()]
        # One that has heard it may write what it must: it is not interrupted again.
        unheard = {s.rank for s in states if s.seq == record.seq and s.stop_waits_s > HEARD_S}
        if unheard.issuperset(self.watch.open_ranks) and not (self.watch.why or self.watch.paused):
            return todo + self._watched(health.StopPressed(), now)
        if gates := self.polls.stuck_gates(reports, facts):  # their notebook can't open them now
            # They have not ended alike, unless a thread may yet launch what ranks lack.
            left = gates
            if any(state.background for state in states):
                cut_short = {state.gate[0] for state in states if state.is_cut_short}
                left = gates & (cut_short | suspect_launches.met_zeros(reports))
            if left:
                todo.append(actions.TakeBackOthers(suspect_launches.numbers_of(left, reports)))
            todo.append(actions.OpenGates(frozenset(gates)))
        todo.append(actions.WatchSilent(self._are_silent))
        if self.polls.suspicion is not None and self.polls.suspicion.has("moment"):
            todo += self._watched(health.Suspected(), now)
        self._stands = self._standing.look(reports, now)
        lasted_s, stall_s = self._standing.lasted_s, self._stall_s
        if stall_s is not None and lasted_s >= stall_s and not self.watch.why:
            self.stalled_s = lasted_s
            todo += self._watched(health.Stalled(), now)
        self._waits.look(self._wait_in(reports), now)
        return todo + self.say_waiting(reports, facts)

    def _wait_in(self, reports: Reports) -> Wait | None:
        """Which of its ranks sit in a launch that others have not come to."""
        found = self.polls.suspicion
        if found is None or found.launch is None or found.has("moment"):
            return None
        waiting = [r for r in found.waiting if r in reports and waits_for_launch(reports[r])]
        places = {rank: findings.place_of(reports[rank]) for rank in found.reasons}
        which = (found.processes, found.launch.seq)
        return Wait(which, tuple(waiting), places) if waiting else None

    def _paused(self) -> health.Paused:
        ranks = frozenset(rank for rank, kind in self._held.items() if kind)
        self.record.held |= ranks
        return health.Paused(ranks)

    def silent_in(self, reports: Reports, facts: Facts) -> frozenset[int]:
        """Ranks that are in the cell, and gave no answer."""
        return frozenset(self.watch.open_ranks) - reports.keys() - facts.dead.keys()

    def say_waiting(self, reports: Reports, facts: Facts) -> list[Action]:
        """Who still works while others have ended, who waits for whom, and who says nothing."""
        suspicion = self.polls.suspicion
        unsure = self.polls.circle or (suspicion is not None and suspicion.has("background"))
        first = SUSPECTED_S if unsure else STILL_WORKING_S
        held = [r.state for r in reports.values() if r.state.paused]
        if facts.now - self.started < first or any(s.seq == self.record.seq for s in held):
            # Who debugs this cell, or is to answer it, knows whom it waits for.
            return self._say("", facts.now)
        self._looked = reports
        return [actions.ExplainSilent(tuple(sorted(self.silent_in(reports, facts))))]

    def _tell_waiting(self, silent: list[str], now: float) -> list[Action]:
        reports, suspicion = self._looked, self.polls.suspicion
        held = {r: report.state for r, report in reports.items() if report.state.paused}
        lines = [*paused.tell(held, self.hosts), *silent]
        working = {r: reports[r] for r in self.watch.open_ranks if r in reports}
        if self.polls.circle:
            lines += self.polls.circle
        elif suspicion is not None and not suspicion.has("moment"):
            lasted = now - self.polls.suspected_at
            if lasted >= WAITED_S:
                wait = self._wait_in(reports)
                waiting = wait.waiting if wait is not None else ()
                lines.append(explain.tell_suspicion(suspicion, lasted, waiting))
                self._waits.told()
        elif self.record.replies and working:
            waited, done = now - self.started, self.record.replies
            lines.append(explain.tell_working(working, done, waited, self.hosts))
            lines += explain.tell_left(self.left, self.hosts)
        return self._say(on_one_line([*lines, *filter(None, [self._stands])]), now)

    def _say(self, text: str, now: float, for_logs: bool = False) -> list[Action]:
        """Show this line under the cell, in place of the last one."""
        line = self._progress.say(text, now, for_logs)
        return [] if line is None else [actions.Status(line)]

    def _say_unanswered(self, where: events.Located) -> list[Action]:
        """Throttle after a stop or a timeout: who is still waited for, and why."""
        lines = self.tell_unanswered(where, with_leaving=False)
        if not lines:
            return []
        told = f"Interrupted {name_ranks(self.watch.interrupted)}. {' '.join(lines)} "
        told += f"Waiting {self.watch.answer_s:g} s for an answer."
        return self._say(told, where.now, for_logs=True)

    def tell_unanswered(self, where: events.Located, with_leaving: bool = True) -> list[str]:
        """Where these ranks are, or why they say nothing: a sentence for each place and reason."""
        asked = {rank: state for rank, state in where.states.items() if rank not in where.whys}
        messages = dict(where.whys)
        for rank, state in asked.items():
            ended = state.seq != self.record.seq
            place = f"cell [{state.cell}] line {state.line}" if state.line else state.frame
            doing = "has ended it" if ended else f"is in {place}"
            if state.has_left:
                doing = "has left the cell's code and is rendering its error"
            if with_leaving or not (state.has_left or ended):
                messages[rank] = f"has not answered the interrupt: it {doing}"
        return say_each(messages, "have not answered either")

    # ------------------------------------------------------------------------------- at its end

    @property
    def ends(self) -> dict[int, wire.cell_ends.CellEnd]:
        """How it has ended on the ranks that have replied."""
        return self.polls.ends

    @property
    def is_complete(self) -> bool:
        """Whether its code has come to its own end on all its ranks."""
        ends = self.ends
        left = any(end.status == "interrupted" for end in ends.values())
        return len(ends) == len(self.record.ranks) and not left

    @property
    def was_stopped_alike(self) -> bool:
        """Whether its ranks have launched the same in it, and were stopped in the same place."""
        ends, ranks = self.ends, self.record.ranks
        places = {(reply.status, reply.stopped_at) for reply in self.record.replies.values()}
        if len(ends) < len(ranks) or len(places) > 1 or not all(place for _, place in places):
            return False
        apart = wire.cell_ends.differing(ends) or not wire.cell_ends.covers(ranks, ends)
        unsure = any(end.foreign or end.refused or end.unchecked for end in ends.values())
        return not (apart or unsure)

    @property
    def was_stopped_apart(self) -> bool:
        """Whether stops or errors have come in different places, behind launches of the cell.

        So one rank may have a name for what another was stopped before. Where a stop has ended some
        ranks alone, the verdict says that what they changed may differ.
        """
        replies = self.record.replies.values()
        places = {reply.stopped_at for reply in replies}
        if self.watch.why not in ("stop", "timeout", "error", ""):
            return False
        is_told = {reply.status for reply in replies} == {"ok", "interrupted"}
        is_apart = len(places) > 1 or "" in places
        return is_apart and not is_told and any(reply.own for reply in replies)

    @property
    def stopped_since(self) -> int:
        """The line of the cell's own code in which the first of its ranks was stopped, or failed.

        All ranks have come past the statements before it.
        """
        places = [reply.stopped_at for reply in self.record.replies.values()]
        number = str(self.record.execution_count)
        outermost = [place.rpartition("/")[2].split(":") for place in places if place is not None]
        is_known = all(place[0] == number for place in outermost)
        return min((int(place[1]) for place in outermost), default=1) if is_known else 1

    @property
    def never_begun(self) -> set[int]:
        """The ranks on which it was interrupted before its turn."""
        return {
            rank
            for rank, reply in self.record.replies.items()
            if reply.status == "interrupted" and not reply.seconds and not reply.launches
        }

    @property
    def was_not_run(self) -> bool:
        """Whether no rank has begun it, as far as is known of those that have died."""
        records = self.record.records.items()
        died = {rank for rank, one in records if one.died and one.reply is None}
        never, total = self.never_begun, len(self.record.ranks)
        is_likely = bool(never) and len(never | died) == total
        return is_likely or len(never | self.record.kept_from) == total

    @property
    def lets_others_begin(self) -> bool:
        """Whether the ranks themselves let the next cell begin after it."""
        ends = self.ends
        return len(ends) == len(self.record.ranks) and wire.cell_ends.may_go_on(ends)

    @property
    def is_to_be_checked(self) -> bool:
        """Whether a program with collectives broke off, maybe on all ranks alike."""
        return any(reply.unchecked for reply in self.record.replies.values())

    @property
    def came_late(self) -> bool:
        """Whether a rank has left it out, since a later one, which may have met it, had begun."""
        return any(error.ename == wire.TOO_LATE for error in self.record.errors.values())

    def was_aborted(self, dead: Mapping[int, object]) -> bool:
        """Whether it ended in a way that nobody can have meant, on some of its ranks."""
        record = self.record
        return (
            self.polls.report is not None
            or self.came_late
            or (self.watch.why == "timeout" and not record.ok)
            or any(one.died for one in record.records.values())
            or any(error.heard is not None for error in record.errors.values())  # strict mode
            or bool(dead and wire.cell_ends.differing(self.ends))
        )

    @property
    def remains(self) -> str:
        """What is told at its end of what it has waited for, where it has done what it was to."""
        return self._waits.remains() if self.record.ok and self.polls.report is None else ""

    def is_in_another(self, state: wire.RankState) -> bool:
        """In a later cell; or in one before it, where this one was stopped before its turn."""
        seq = self.record.seq
        before = state.state == "running" and state.seq < seq
        return state.seq > seq or state.is_queueing or before

"""A cell's end: are the ranks in lockstep, what is done about it, and may what it did stay? Pure.

Several answers in a row decide, so these are generators: they yield what is to be done or asked
(``actions``), and are sent what was answered.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Generator, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from jaxcluster import wire
from jaxcluster.errors import RESTART_HINT
from jaxcluster.lockstep import actions, events
from jaxcluster.lockstep.actions import Action
from jaxcluster.lockstep.cell import Cell
from jaxcluster.lockstep.facts import Facts, Recovered, Replayed, Reports, Why
from jaxcluster.lockstep.states import OVER, Impossible, State
from jaxcluster.lockstep.undone import Undone, tell_apart, tell_lost
from jaxcluster.model import (
    deaths,
    explain,
    findings,
    health,
    lockstep,
    notices,
    postmortem,
    rewrite,
    skipped,
    suspect_launches,
    verdict,
)
from jaxcluster.ranks import name_ranks, say_each

ANSWER_S = 5.0  # that ranks get to say what they have launched, where it is known to differ
UNEVEN_S = 8.0  # that what made the ranks uneven gets to even out, or to become certain

ZEROS = "Other ranks have met its launches with zeros, as another notebook brought them back."

_alike = wire.cell_ends.launched_alike

T = TypeVar("T")
Steps = Generator[Action, Any, T]


class Settling:
    """Settles one cell."""

    def __init__(self, cell: Cell) -> None:
        self._cell = cell
        self._facts = Facts(cell.started)
        self._is_left_to_another = False
        self._is_doubted = False  # it is said that its launches have met those of threads
        self._seen: Reports = {}  # what ranks have launched, before they are brought back
        self._zeroed: Reports = {}  # of ranks, after a replay that may have met others' launches
        self._is_blurred = False  # what its launches have met can't be told any more
        self._others_asked: frozenset[int] = frozenset()  # other cells that it was to undo
        self._others: list[str] = []  # what became of them
        self._is_replaced = False  # its ranks are gone, and others have come in their place
        self._own: frozenset[int] = frozenset()  # cells of this notebook, which tell of themselves
        self._died_beside: dict[int, str] = {}  # ranks that were not in it, and why

    def settle(self) -> Steps[None]:
        """After the cell: are the ranks in lockstep, and may what it assigned stay?"""
        cell, record = self._cell, self._cell.record
        yield self._keep_counts()
        facts = yield from self._look_around()
        if cell.is_last:
            cell.silent = ()  # the run's end is theirs
            if record.ok and not (facts.dead or lockstep.in_lockstep(facts.counts)):
                yield from self._look_at_uneven_end()
            return self._become(State.LEFT, "nothing runs after it")
        if len(cell.never_begun) == len(record.ranks) and cell.polls.report is None:
            self._become(State.LEFT, "no rank has begun it")
            return (yield from self._open_gates())
        waited = cell.watch.answer_s >= health.ANSWER_S
        if cell.silent and waited and not (facts.is_closed or facts.dead):
            is_hung = yield from self._end_hung()
            facts = yield from self._look_around()
            if is_hung and not facts.dead:
                return self._become(State.LEFT, f"{name_ranks(cell.silent)} hang")
        if facts.is_closed:
            return self._become(State.LEFT, "the cluster is stopped")
        # They say what they refused, or waited for in vain.
        if any(error.heard == 0 or error.unconnected for error in record.errors.values()):
            yield from self._find((yield from self._ask(is_brief=True)))
        yield from self._carry(cell.polls.find_given_up())
        state, why = yield from self._judge()
        if state is not None:
            self._become(state, why)
        else:
            yield from self._bring_back()
            self._was_held_up()
        yield from self._end_with_ranks()
        if cell.was_aborted(self._facts.dead):
            yield from self._take_back((yield from self._may_stay()))
        yield from self._replace_the_dead()
        yield from self._doubt()
        yield from self._let_others_begin()

    def _replace_the_dead(self) -> Steps[None]:
        """Where it went wrong, and a rank that was not in it has died: cells behind it wait."""
        cell, facts = self._cell, self._facts
        own = cell.killed or any(rank.died for rank in cell.record.records.values())
        if own or cell.polls.report is None:
            return
        whys = {rank: death.why for rank, death in facts.dead.items()}
        self._died_beside = {r: why for r, why in whys.items() if not deaths.meant([why])}
        if facts.dead and facts.gives_new and facts.can_give_new and not facts.is_over:
            cell.recovered = yield from self._recover(str(cell.polls.report))

    def _doubt(self) -> Steps[None]:
        """Of a cell that nothing was found of: may its launches have met others?"""
        cell = self._cell
        was_stopped = cell.watch.why in ("stop", "timeout") or not cell.is_complete
        is_told = cell.polls.report is not None or cell.undone is not None or bool(cell.silent)
        is_left = self._is(State.LEFT) and not self._facts.dead
        if is_told or not (was_stopped or is_left or self._apart()):
            return
        look = yield from self._ask(timeout_s=ANSWER_S, is_brief=True)
        seq = cell.record.seq
        if not (was_stopped or is_left):
            return (yield from self._carry(self._doubt_threads(look.reports)))
        doubt = suspect_launches.from_elsewhere(look.reports, seq)
        if doubt := doubt or suspect_launches.from_other_lines(look.reports, seq):
            yield actions.Notice(notices.Warned(doubt))

    def _judge(self) -> Steps[tuple[State | None, str]]:
        """What the cell is by its end, and why; None: its ranks have to be brought back."""
        cell, ended = self._cell, self._has_ended_by_itself
        whole = ended and lockstep.in_lockstep(self._facts.counts) and not self._facts.pending
        whole = whole and wire.cell_ends.covers(cell.record.ranks, cell.ends)
        whole = whole and not cell.is_to_be_checked
        # Also where a rank has died since its reply, or a stop came when all had ended it.
        if ended or ((cell.is_complete or cell.came_late) and not cell.polls.report):
            whole = (yield from self._has_ended_alike()) and whole
        if whole and not self._facts.dead:
            return State.SETTLED, "its ranks ended it alike"
        facts = yield from self._look_around()
        if ended and not (facts.dead or facts.is_over or cell.polls.report):
            state, why = yield from self._look_at_uneven_end()
            if state is not None and not cell.is_to_be_checked:
                return state, why
            facts = yield from self._look_around()
        heard_on = cell.ran is not None and cell.is_complete and not facts.is_over
        if heard_on and not cell.polls.report:
            # It has heard a stop, and gone on: what a rank ran with zeros may not be told yet.
            yield from self._find_replayed()
        if facts.dead or facts.is_over:
            return State.LEFT, "ranks have died"
        if (yield from self._is_left_to_others()):
            return State.LEFT, "other cells run, and nothing suggests that this one went wrong"
        return None, ""

    @property
    def _has_ended_by_itself(self) -> bool:
        """Whether nothing was found of it, and nothing done to it."""
        cell = self._cell
        left_alone = cell.ran is None and not cell.watch.interrupted
        return left_alone and cell.polls.report is None

    def _end_with_ranks(self) -> Steps[None]:
        """Where a person has ended all ranks before its end was known to be right, it says so."""
        cell, dead = self._cell, self._facts.dead
        why = deaths.meant(one.why for one in dead.values())
        is_known = self._has_ended_by_itself and not cell.is_to_be_checked
        is_known = is_known and not wire.cell_ends.may_be_shifted(cell.ends)
        if is_known or not (why and self._is(State.LEFT)):
            return
        if cell.polls.report is not None:
            cell.recovered = f"Meanwhile {why}. {(yield from self._say_undone())}"
        elif not any(one.died for one in cell.record.records.values()):
            for one in cell.record.records.values():
                one.died = why

    def leave_unsettled(self) -> Steps[None]:
        """Stop was pressed before the ranks were known to be in lockstep: no cell may run now."""
        cell = self._cell
        yield self._keep_counts()
        facts = yield from self._look_around()
        # Where the cell ended alike, what is uneven is a thread's: a later cell looks at it again.
        alike = cell.is_complete and not (cell.ran is not None or cell.polls.report)
        alike = alike and not (wire.cell_ends.differing(cell.ends) or cell.is_to_be_checked)
        settled = alike or lockstep.in_lockstep(facts.counts)
        settled = settled and not self._is(State.RETURNING)
        if not (facts.is_closed or facts.dead or settled):
            why = "the stop button ended their replay"
            if facts.divergence is None:
                yield actions.Diverge(cell.polls.report or findings.unexplained(why))
            if not self._is(State.DIVERGED):
                self._become(State.DIVERGED, why)
        elif not self._is(*OVER):
            self._become(State.LEFT, "stop was pressed")
        yield from self._let_others_begin()

    # ----------------------------------------------------------------- its state, and small steps

    def _is(self, *states: State) -> bool:
        return self._cell.course.state in states

    def _become(self, state: State, why: str) -> None:
        course, report = self._cell.course, self._cell.polls.report
        if state is State.SETTLED and report is not None and self._is(State.ENDED):
            raise Impossible(f"A cell was to be settled at its end despite this finding: {report}")
        course.become(state, self._facts.now, why)

    def _keep_counts(self) -> Action:
        replies = self._cell.record.replies
        return actions.KeepCounts({rank: reply.launches for rank, reply in replies.items()})

    def _look_around(self) -> Steps[Facts]:
        self._facts = yield actions.LookAround()
        self._own |= self._facts.own
        if self._is(State.RUNNING, State.LEAVING):  # whatever was raised has ended it
            self._become(State.ENDED, "aborted")
        return self._facts

    def _ask(
        self, timeout_s: float = actions.REPORT_S, is_brief: bool = False
    ) -> Steps[events.Looked]:
        look: events.Looked = yield actions.Ask("end", (), timeout_s, is_brief)
        self._facts = look.facts
        return look

    def _carry(self, todo: Iterable[Action]) -> Steps[None]:
        for action in todo:
            answer = yield action
            if isinstance(answer, events.Explained):
                yield from self._carry(self._cell.feed(answer))

    def _find(self, look: events.Looked, is_patient: bool = True) -> Steps[None]:
        yield from self._carry(self._cell.polls.find(look.reports, look.facts, is_patient))

    # ---------------------------------------------------------------------------- is it all right?

    def _has_ended_alike(self) -> Steps[bool]:
        """Whether its ranks launched the same in it; else the finding is that of this cell."""
        cell = self._cell
        if not (wire.cell_ends.differing(cell.ends) or wire.cell_ends.may_be_shifted(cell.ends)):
            return True
        look = yield from self._ask(timeout_s=ANSWER_S)
        yield from self._carry(cell.polls.find_at_end(look.reports))
        return cell.polls.report is None

    def _look_at_uneven_end(self) -> Steps[tuple[State | None, str]]:
        """The ranks have ended the cell with uneven counts: what it is; None: it may be wrong.

        Uneven alone says nothing: a thread may launch on all of them, or another cell may run. So
        the ranks are looked at again until it is certain, or even, or a thread's business.
        """
        cell, polls = self._cell, self._cell.polls
        deadline = self._facts.now + UNEVEN_S
        while (now := (yield from self._look_around()).now) < deadline:
            look = yield from self._ask()
            yield from self._find(look)
            if polls.report is not None or look.facts.were_ended:
                return None, ""
            counts = {rank: report.state.launches for rank, report in look.reports.items()}
            is_whole = len(look.reports) == len(look.facts.ranks)
            if is_whole and lockstep.in_lockstep(counts):
                yield actions.KeepCounts(counts)
                yield from self._carry(polls.find_replayed(look.reports))
                return self._unless_found("its ranks have launched the same by now")
            if (suspicion := polls.suspicion) is not None:
                if suspicion.has("cell"):
                    deadline = now + UNEVEN_S
                    yield from self._carry(cell.say_waiting(look.reports, look.facts))
                elif suspicion.has("background") and not suspicion.has("moment"):
                    excuse = polls.excuse(look.reports, look.facts)
                    # Where its own launches differ, the late rank's journal may say how.
                    if excuse is not None and (is_whole or not self._apart()):
                        return (yield from self._excuse(look, excuse))
            elif polls.foreign_since is not None:
                return State.LEFT, "another cell went wrong, and its notebook handles that"
            yield actions.Rest()
        return None, ""

    def _excuse(self, look: events.Looked, told: list[Action]) -> Steps[tuple[State | None, str]]:
        """Say what a thread may yet launch, unless what the ranks have launched differs by now."""
        yield from self._find(look, is_patient=False)
        if self._cell.polls.report is None:
            yield from self._carry([*told, *self._doubt_threads(look.reports)])
            # A cell that was queued may have made it already.
            facts = yield from self._look_around()
            facts = dataclasses.replace(facts, sent=look.facts.sent)
            yield from self._find(dataclasses.replace(look, facts=facts))
        return self._unless_found("a thread may yet launch what ranks lack")

    def _apart(self) -> list[str]:
        """The sets of processes whose members have not launched the same in it."""
        ends = self._cell.ends
        return [s for s in wire.cell_ends.differing(ends) if not _alike(s, ends)]

    def _doubt_threads(self, reports: Reports) -> list[Action]:
        """Say once that threads have made what ranks left out, or launched once too often, here."""
        doubt = suspect_launches.from_threads(reports, self._cell.record.seq, self._apart())
        if not doubt or self._is_doubted:
            return []
        self._is_doubted = True
        return [actions.Notice(notices.Warned(f"{doubt} {suspect_launches.THREADS}\n"))]

    def _unless_found(self, why: str) -> tuple[State | None, str]:
        return (State.SETTLED, why) if self._cell.polls.report is None else (None, "")

    def _is_left_to_others(self) -> Steps[bool]:
        """Whether nothing but an interrupt speaks for a check, and other cells run on the ranks."""
        cell = self._cell
        replayed = cell.ran or cell.may_replay
        speaks = cell.polls.report or cell.silent or replayed or cell.is_to_be_checked
        if speaks or not lockstep.in_lockstep(self._facts.counts):
            return False
        states: Sequence[wire.RankState] = yield actions.AskStates()
        return any(s.state == "running" or s.is_queueing for s in states)

    def _end_hung(self) -> Steps[bool]:
        """Rank processes that will never answer are ended, as dead ones are, where that is wanted.

        On a busy machine it is waited until it is clear which these are. Returns whether there are
        such ranks: nothing can be settled with them.
        """
        cell = self._cell
        while True:
            whys: Mapping[int, Why] = yield actions.AskSilent(cell.silent)
            if not any(why.may_pass for why in whys.values()):
                break
            yield actions.Rest()
        hung = {rank: why.message for rank, why in whys.items() if why.is_hung}
        if self._facts.gives_new and self._facts.can_give_new and not cell.left_early:
            for rank, why in hung.items():
                cell.record.records[rank].died = cell.killed[rank] = why
                yield actions.EndRank(rank, f"ended by jaxcluster: it {why}")
        return bool(hung)

    # ------------------------------------------------------------------------ what is done about it

    def _bring_back(self) -> Steps[None]:
        """Say why the ranks have diverged, and bring them back."""
        cell = self._cell
        aborted_at = self._facts.now if cell.aborted_at is None else cell.aborted_at
        look = yield from self._ask()
        self._seen = look.reports
        yield from self._find(look, is_patient=False)
        report = cell.polls.report
        self._become(State.RETURNING, str(report or "they may have diverged").partition("\n")[0])
        if report is not None and report.is_hopeless:
            done = Replayed(stuck=report.hopeless)
        else:
            # Ranks in another cell that has gone wrong, or is in the circle, may never leave it.
            waits = (
                report is not None and report.kind != "circle" and report.concerns(cell.record.seq)
            )
            missing = (report.processes, report.seq) if report is not None else ("", None)
            done = yield actions.BringBack(waits or cell.is_to_be_checked, missing)
        if done.ran:
            self._zeroed = (yield from self._ask(timeout_s=ANSWER_S, is_brief=True)).reports
        facts = yield from self._look_around()
        if done.how:
            self._become(State.SETTLED, done.how)
            yield actions.DropPending()
        if done.how == "replayed":
            yield actions.KeepCounts(done.counts)
            if report is None and cell.is_complete:
                # Its code has ended, or heard a stop: nothing else says that it met zeros.
                yield from self._find_replayed()
            if report is not None or done.ran:
                undone = yield from self._say_undone()
                told = skipped.tell(done.ran, facts.now - aborted_at, undone)
                cell.recovered = told + self._warn_of_others()
            elif not cell.is_complete and (yield from self._met_zeros()):
                cell.recovered = f"{ZEROS} {(yield from self._say_undone())}"
            cell.silent = ()
        elif done.is_under_way and report is None and not done.how:
            self._become(State.LEFT, "a thread still launches: nothing more is known now")
            yield from self._carry(cell.polls.excuse(look.reports, look.facts) or ())
        elif done.how == "completed":
            yield actions.KeepCounts({}, only=True)
            cell.silent = ()
            self._is_blurred = True
            cell.recovered = (
                "All of them have completed, and the ranks are in lockstep again. Don't trust what "
                f"this cell printed. {(yield from self._say_undone())}{self._warn_of_others()}"
            )
        elif facts.dead or facts.is_over:  # who gives the ranks new processes makes an end of it
            if report is None and cell.is_complete:  # what a rank was to replay it may have run
                yield from self._find_replayed()
            self._become(State.LEFT, "ranks have died")
        else:
            yield from self._diverge(done.stuck)

    def _met_zeros(self) -> Steps[bool]:
        """Whether another notebook's replay has met launches of the cell, which was interrupted."""
        look = yield from self._ask(timeout_s=ANSWER_S, is_brief=True)
        return self._cell.record.seq in suspect_launches.met_zeros(_with_dead(look))

    def _find_replayed(self) -> Steps[None]:
        """Find that ranks which are not in the cell have met its launches with zeros."""
        look = yield from self._ask(timeout_s=ANSWER_S, is_brief=True)
        yield from self._carry(self._cell.polls.find_replayed(_with_dead(look)))

    def _was_held_up(self) -> None:
        """Where no rank has begun it, since an earlier cell was stopped, it has not diverged."""
        cell, report = self._cell, self._cell.polls.report
        stopped = self._facts.stopped - {cell.record.seq}
        never = len(cell.never_begun) == len(cell.record.ranks)
        if never and report is not None and report.cell_seq in stopped:
            cell.withdrawn = "a cell before it was stopped, and had not ended on all its ranks"

    def _warn_of_others(self) -> str:
        """What no undo of the cell reaches: values of other cells, and of threads."""
        return self._warn_of_other_cells() + self._warn_of_threads()

    def _warn_of_other_cells(self) -> str:
        """Those that ended before it without a word, and whose launches met the wrong ones."""
        seq, polls = self._cell.record.seq, self._cell.polls
        found = {seq, *(polls.report.cells if polls.report is not None else ())} - {0, wire.OURS}
        cells = {one for one in found if one < seq} - self._own
        looks = (polls.evidence, self._seen, self._zeroed)
        cells = cells.union(*(suspect_launches.met_by(look, found) for look in looks[:2]))
        cells |= self._met_zeros_now - {0, seq}
        cells -= self._others_asked
        told = suspect_launches.tell_met(cells, *looks)
        return f" {told}" if told else ""

    @property
    def _met_zeros_now(self) -> set[int]:
        """The cells of which the replay has met launches; 0 for those of threads."""
        before = suspect_launches.met_zeros(self._seen)
        return suspect_launches.met_zeros(self._zeroed) - before

    def _warn_of_threads(self) -> str:
        """What no undo reaches: values that threads have made of launches that went wrong."""
        report, evidence = self._cell.polls.report, self._cell.polls.evidence or {}
        met, doubt = 0 in self._met_zeros_now, ""
        if report is not None:
            doubt = suspect_launches.from_threads(evidence)
            met = met or 0 in report.cells or suspect_launches.threads_met_cells(evidence)
        return f"{doubt and ' '}{doubt} {suspect_launches.THREADS}" if met else ""

    def _diverge(self, stuck: str) -> Steps[None]:
        """The ranks could not be brought back."""
        cell = self._cell
        states: Sequence[wire.RankState] = yield actions.AskStates()
        # Nothing but new processes ends a circle.
        is_left = cell.polls.report is None or not cell.polls.report.is_hopeless
        seq = cell.record.seq
        # A cell that ranks have not begun waits for this one's end on those that are in it yet.
        others = [s for s in states if not cell.silent or (s.state == "running" and s.seq != seq)]
        if is_left and any(cell.is_in_another(s) and not self._is_forsaken(s) for s in others):
            # Where others are in it, ranks may wait at a gate for this one.
            self._is_left_to_another = any(s.state == "running" and s.seq > seq for s in states)
            return self._become(State.LEFT, "another cell's end will settle it")
        if (cell.is_complete or cell.is_to_be_checked) and cell.polls.report is None:  # it went on
            why = f"a program was aborted, and {stuck}" if cell.is_to_be_checked else stuck
            cell.polls.report = findings.unexplained(why)
        report = cell.polls.report
        yield actions.Diverge(report or findings.unexplained(stuck))
        self._become(State.DIVERGED, stuck)
        self._is_blurred = True
        yield from self._take_back()
        if self._facts.gives_new:
            why = f"The ranks need new processes, since {stuck}."
            done = yield from self._recover(str(report or ""), why)
            cell.recovered = done + self._warn_of_others()
            cell.silent = ()
        return None

    def _is_forsaken(self, state: wire.RankState) -> bool:
        """Whether a rank is in an earlier cell that has gone wrong, and nobody brings it back."""
        return state.state == "running" and state.seq in self._forsaken()

    def _forsaken(self) -> list[int]:
        """Other cells, which have gone wrong and are left so by their notebook; newest first."""
        report = self._cell.polls.report
        if report is None or report.concerns(self._cell.record.seq):
            return []
        cells = {report.cell_seq, *report.cells} - self._own
        return sorted((seq for seq in cells if seq > 0), reverse=True)

    def _let_others_begin(self) -> Steps[None]:
        """Cells that wait behind it on the ranks may begin now, or never will.

        Those of this notebook are not run where this one was taken back: they were written for what
        it did.
        """
        cell = self._cell
        if cell.lets_others_begin:
            return
        facts = yield from self._look_around()
        if self._is_replaced or facts.is_over or facts.dead:
            return  # they end with their ranks
        if facts.divergence is not None or cell.was_aborted(facts.dead):
            yield actions.WithdrawBehind()
        if facts.divergence is None and (self._is_left_to_another or not cell.silent):
            if self._is(State.DIVERGED):
                self._become(State.SETTLED, "another has brought the ranks back")
            yield from self._open_gates()

    def _open_gates(self) -> Steps[None]:
        if not self._is(State.SETTLED, State.LEFT):
            raise Impossible(
                f"cells that wait for this one can't begin: it is {self._cell.course.state}"
            )
        others = self._forsaken() if self._is(State.SETTLED) else ()
        yield actions.OpenGates(frozenset({self._cell.record.seq, *others}))

    def _may_stay(self) -> Steps[bool]:
        """Whether what it has assigned is right on all its ranks, though its time was up.

        They have launched the same in it, and nothing else has met that. And no rank has a name for
        what another one was stopped before.
        """
        cell, facts = self._cell, (yield from self._look_around())
        found = cell.polls.report is not None or bool(cell.recovered) or facts.pending
        is_right = cell.watch.why == "timeout" and cell.was_stopped_alike and not found
        is_even = not (facts.dead or facts.is_over) and lockstep.in_lockstep(facts.counts)
        if not (is_right and is_even and self._is(State.SETTLED)):
            return False
        look = yield from self._ask(timeout_s=ANSWER_S, is_brief=True)
        seq, reports = cell.record.seq, look.reports
        return len(reports) == len(look.facts.ranks) and not (
            seq in suspect_launches.met_zeros(reports)
            or suspect_launches.from_elsewhere(reports, seq)
            or suspect_launches.from_other_lines(reports, seq)
        )

    def _take_back(self, may_stay: bool = False) -> Steps[Undone]:
        """Undo the cell on all its ranks, once, and others that nobody else undoes.

        ``may_stay``: not where old values are donated, since what it has assigned is right.
        """
        cell = self._cell
        if cell.undone is None:
            facts = yield from self._look_around()
            gone = cell.never_begun.union(facts.dead, cell.record.kept_from)
            ranks = tuple(rank for rank in cell.record.ranks if rank not in gone)
            unbegun = tuple(sorted(cell.never_begun - facts.dead.keys()))
            stays_but = self._deleted() if may_stay else None
            holds_others = not cell.lets_others_begin
            ended = deaths.meant(one.why for r, one in facts.dead.items() if r in cell.record.ranks)
            if ended and not ranks:
                cell.undone = Undone(ended)
            else:
                cell.undone = yield actions.Undo(ranks, holds_others, stays_but, unbegun)
        if not self._is(State.LEFT) and (others := self._others_to_undo()):
            evidence = cell.polls.evidence
            took: events.TookBack = yield actions.TakeBackOthers(
                suspect_launches.numbers_of(others, evidence)
            )
            self._others += took.lines
        return cell.undone

    def _others_to_undo(self) -> frozenset[int]:
        """Other cells that are wrong, and that nobody else undoes; each is named once.

        Those that are the cause, where this one suffers from them alone; and all that the finding
        is about, where nobody can tell any more afterwards what they have met: their notebooks may
        be gone.
        """
        report = self._cell.polls.report
        cells = {*self._forsaken()}
        if self._is_blurred and report is not None:
            cells |= report.cells - {0, wire.OURS}
        facts, asked = self._facts, self._others_asked
        cells -= self._own | facts.stopped | asked | {self._cell.record.seq}
        self._others_asked = asked | cells
        return frozenset(cells)

    def _say_undone(self, told: Iterable[str] = ()) -> Steps[str]:
        """What became of what the cell did. Of names that are ``told`` it was said."""
        undone, gone = (yield from self._take_back()), set(told)
        if self._cell.was_not_run:  # the empty one is sent to go behind others
            told = ["This cell was not run."] if self._cell.record.source else []
            return " ".join([*told, *self._others])
        names = [n for n in rewrite.assigned_names(self._cell.record.source) if n not in gone]
        return " ".join([undone.without(gone).told("This cell", names), *self._others])

    def _recover(self, told: str, said: str = "") -> Steps[str]:
        """What was done about a death or a permanent hang, and about what the cell did."""
        if self._cell.is_last:
            return said
        undone = yield from self._take_back()  # before its values are saved
        when = f"in cell [{self._cell.record.execution_count}]"
        when = "when ranks died" if self._cell.was_not_run else when
        done: Recovered = yield actions.Recover(said, told, not undone.refused, when)
        self._is_replaced |= done.is_replaced
        self._cell.record.replaced = self._is_replaced
        names = rewrite.assigned_names(self._cell.record.source)
        if done.is_undone and undone.refused:
            undone = Undone.of_dead(names, done.kept)
        self._cell.undone = undone
        facts = yield from self._look_around()
        if self._is(State.LEFT, State.DIVERGED) and not (facts.dead or facts.divergence):
            self._become(State.SETTLED, "the ranks have new processes")
        return f"{done.line} {(yield from self._say_undone(done.told))}".strip()

    # -------------------------------------------------------------------------- how it has ended

    def end(self) -> Steps[verdict.Ending]:
        """How the cell has ended, once what can be recovered is."""
        cell = self._cell
        record, watch = cell.record, cell.watch
        facts = yield from self._look_around()
        death = yield from self._recover_from_death()
        if death is not None:
            facts = yield from self._look_around()
        ending = functools.partial(
            verdict.Ending,
            record,
            watch.why,
            watch.interrupted,
            watch.timeout_s,
            watch.grace_s,
            facts.hosts,
            death,
        )
        if death is not None:
            return ending()
        unanswered = explain.tell_left(cell.left, facts.hosts, is_over=True)
        if cell.silent:
            located: events.Located = yield actions.AskWhere(cell.silent)
            unanswered += cell.tell_unanswered(located)
            unanswered.append(f"%jaxcluster status shows them. {RESTART_HINT}")
        undone = ""
        if cell.undone is not None and not cell.recovered:
            undone = (yield from self._say_undone()) + self._warn_of_others()
        return ending(
            silent=cell.silent,
            unanswered=unanswered,
            report=cell.polls.report,
            is_diverged=facts.divergence is not None,
            recovered=cell.recovered,
            undone=undone,
            left=self._tell_left(),
            places=cell.places,
            withdrawn=cell.withdrawn,
            begun=sorted({*record.ranks} - cell.never_begun),
            stalled_s=cell.stalled_s,
        )

    def _tell_left(self) -> str:
        """What a stop or an error has left of names, where no undo or new processes say so."""
        cell = self._cell
        is_undone = cell.undone is not None and not cell.undone.refused
        if is_undone or self._is_replaced:
            return ""
        deleted = self._deleted()
        told = [tell_lost(sorted(deleted))] if deleted else []
        if cell.was_stopped_apart and cell.undone is None and not cell.is_last:
            line, names = rewrite.assigned_since(cell.record.source, cell.stopped_since)
            failed = any(reply.status == "error" for reply in cell.record.replies.values())
            told.append(tell_apart(names, line, failed))
        return " ".join(told)

    def _deleted(self) -> frozenset[str]:
        replies = self._cell.record.replies.values()
        return frozenset(name for reply in replies for name in reply.deleted)

    def _recover_from_death(self) -> Steps[verdict.Death | None]:
        """Where ranks died, or were ended since they hung: what was done about it."""
        cell, hosts = self._cell, self._facts.hosts
        record, killed = cell.record, cell.killed
        died = {r: rec.died for r, rec in record.records.items() if rec.died}
        if killed:
            was = "it was" if len(killed) == 1 else "they were"
            told = (
                f"Cell [{record.execution_count}] was interrupted, and "
                f"{name_ranks(killed, hosts)} did not answer for "
                f"{cell.watch.answer_s:g} s, so {was} ended."
            )
            whys = [f"Rank {rank} {why}." for rank, why in sorted(killed.items())]
            told = "\n".join([told, *whys])
            return verdict.Death(told, (yield from self._recover(told)), sorted(killed))
        if not died:
            return (yield from self._tell_died_beside())
        # Those that a restart has ended since have not died by themselves.
        died = {r: why for r, why in died.items() if not deaths.meant([why])} or died
        log_end = yield actions.ReadLogEnd(min(died))
        # Behind a cut they may live, and go on with the cell.
        what = "could no longer be reached" if self._facts.is_cut else "died"
        number, kept = f"cell [{record.execution_count}]", record.kept_from
        where = f"before another rank had begun {number}" if cell.was_not_run else f"in {number}"
        places = {rank: f"before it had begun {number}" if rank in kept else where for rank in died}
        ends = {rank: f"{what} {places[rank]}: {why}" for rank, why in died.items()}
        told = "\n".join(say_each(ends, f"{what}, too", hosts))
        if ended := deaths.meant(died.values()):
            told = f"{number.capitalize()} was ended: {ended}."
            if cell.was_not_run:
                told = f"{ended.capitalize()} before {number} had begun."
        dead = self._facts.dead
        if lost := {r: why for r, why in died.items() if r in dead and dead[r].host_lost}:
            yield actions.Notice(notices.lost_hosts(lost))  # what follows can take a minute
        report = yield from self._find_cause()
        if report is not None:
            return verdict.Death(told, (yield from self._recover(told)), sorted(died), report)
        return verdict.Death(told, (yield from self._recover(told, log_end)), sorted(died))

    def _tell_died_beside(self) -> Steps[verdict.Death | None]:
        """Where it went wrong, and ranks have died that were not in it: that is told of it, too."""
        cell, died = self._cell, self._died_beside
        if not died or cell.is_last:
            return None
        after = f" after the end of cell [{cell.record.execution_count}] there"
        where = {rank: after if rank in cell.record.replies else "" for rank in died}
        ends = {rank: f"died{where[rank]}: {why}" for rank, why in died.items()}
        told = "\n".join(say_each(ends, "died, too", self._facts.hosts))
        done = cell.recovered or (yield from self._recover(""))
        return verdict.Death(told, done, sorted(died), cell.polls.report)

    def _find_cause(self) -> Steps[findings.Report | None]:
        """The different programs that ranks launched before some of them died, if they did."""
        look = yield from self._ask(is_brief=True)
        left = look.facts.last_launches  # also of those that have died while they were asked
        gone = postmortem.reports_of(look.facts.dead, left)
        self._cell.polls.evidence = self._cell.polls.evidence or {**look.reports, **gone}
        record = self._cell.record
        number, seq = record.execution_count, record.seq
        hosts, source = look.facts.hosts, record.source
        return postmortem.cause(look.reports, left, number, seq, hosts, source)


def _with_dead(look: events.Looked) -> Reports:
    """Of all ranks: of those that have died since their replies, what is left of their journals."""
    facts = look.facts
    return {**postmortem.reports_of(facts.dead, facts.last_launches), **look.reports}

"""One cell's course: what comes from the ranks is passed on, and what must be done is done.

``health`` says when to interrupt whom and when to ask the ranks where they are, ``diagnose`` what
their answers mean, and ``recovery`` brings them back into lockstep.
"""

from __future__ import annotations

import contextvars
import dataclasses
import math
import queue
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from jaxcluster import wire
from jaxcluster.cluster import events, recovery, selfcheck, silence
from jaxcluster.cluster.asking import IN_BACKGROUND, NO_TERMINAL, Conversation
from jaxcluster.cluster.looks import Looks
from jaxcluster.cluster.prompts import Labelled
from jaxcluster.cluster.restart import Restored
from jaxcluster.cluster.settling import Settling
from jaxcluster.cluster.world import World
from jaxcluster.errors import RESTART_HINT, CellInterrupted
from jaxcluster.model import (
    explain,
    findings,
    health,
    notices,
    paused,
    verdict,
)
from jaxcluster.model.outputs import CellRecord
from jaxcluster.ranks import name_ranks
from jaxcluster.records import lastreport
from jaxcluster.wire.link import Event, Sink

NOTICE_AFTER_S = 0.1
DEATH_NOTICE_AFTER_S = 2.0
SUSPECTED_S = 2.0  # before it is said that ranks wait for a launch that may still come
AGAIN_S = 0.1  # between looks at ranks that have ended a cell with uneven counts
STILL_WORKING_S = 5.0  # before it is said who a cell waits for; then ever more rarely
WAITED_S = 1.0  # for one launch: ranks that go on wait for each other for less
POLL_DEPTH = 256  # launches of each rank
REPLAY_AFTER_S = 0.2  # that interrupted ranks get to leave by themselves
SCRIPT_ANSWER_S = 3.0  # that a script's ranks get to leave it where another one has failed
SCRIPT_STOP_S = 30.0  # ... and after Ctrl-C, to write what they must; a second one ends them
Listener = Callable[[CellRecord, wire.RankOutput | wire.CellReply], None]


@dataclasses.dataclass(frozen=True)
class CellOptions:
    """How a cell is to be run: see ``Cluster.run`` and ``submit``.

    With a ``message`` its code is not run again: what a user did to a widget of it is passed on.
    With a ``script`` it is all that the ranks are there for, so after it nothing is brought back,
    undone or replaced; what has gone wrong is found and told all the same.
    """

    ranks: Sequence[int] | None = None
    timeout_s: float | None = None
    execution_count: int | None = None
    shown_ranks: Sequence[int] | None = None
    on_output: Listener | None = None
    on_notice: Callable[[str], None] | None = None
    cell_id: str = ""
    message: wire.CommMessage | None = None
    buffers: Sequence[bytes] = ()
    prompt: Labelled | None = None
    post_mortem: bool = False
    script: wire.Script | None = None


class Owner(Protocol):
    """Whose cell it is: a ``Cluster``, as far as a cell knows it."""

    recovered: str

    @property
    def name(self) -> str: ...
    @property
    def world(self) -> World: ...
    @property
    def closed(self) -> bool: ...
    @property
    def can_restart(self) -> bool: ...
    @property
    def recovery(self) -> str: ...
    @property
    def restored(self) -> Restored | None: ...
    def press_stop(self) -> None: ...
    def recover(self, said: str, *, told: str, when: str, undo: bool) -> str: ...


class RunningCell:
    """A cell on its way. ``wait`` returns its record or raises, as ``Cluster.run`` does.

    Attributes:
      record: what has come so far.
      started: when it was sent, by ``time.monotonic``.
      silent: ranks that did not answer an interrupt.
      report: the certain finding, if the cell could not end or its numbers are wrong.
      evidence: what the ranks said when it was found.
      recovered: what was done about it; "" while nothing was.
      on_notice: is told of the first error while other ranks still run.
      is_last: nothing runs after it (see ``CellOptions``).
      terminates: a stop is SIGTERM's, and goes to what handles that on the ranks.
    """

    def __init__(
        self,
        cluster: Owner,
        record: CellRecord,
        sink: Sink,
        ids: Sequence[str],
        timeout_s: float | None,
        on_output: Listener | None,
        is_last: bool = False,
    ) -> None:
        self.cluster = cluster
        self.is_last = is_last
        self.terminates = False
        self.record = record
        self.silent: tuple[int, ...] = ()
        self.done = False
        self.on_notice: Callable[[str], None] | None = None
        self.looks = Looks(self)
        self._settling = Settling(self)
        self.aborted_at: float | None = None  # when it was first interrupted, or found diverged
        self._stopped: CellInterrupted | None = None  # in the recovery at its end, on a thread
        self.places: list[str] = []  # where the ranks were when their time was up
        self.replay: recovery.Replay | None = None
        self._replay_at: float | None = None
        self.silences = silence.Silences(cluster.world.look_at, cluster.world.why_unseen)
        self._interrupts: set[str] = set()
        self._sink = sink
        self._ids = ids
        self._on_output = on_output
        self.started = time.monotonic()
        self.watch = health.CellWatch(record.ranks, self.started, timeout_s)
        if is_last:
            self.watch.answer_s = SCRIPT_ANSWER_S
        self._ended: threading.Event | None = None  # where it is carried through on a thread
        self._are_silent: set[int] = set()  # at the last look
        self._left: list[int] = []  # a script's ranks whose processes have ended with code 0
        self._paused: dict[int, str] = {}  # ranks that a person holds: in what
        self.left_early = False  # the stop button was pressed again: no rank is waited for
        self._talk = Conversation(cluster.world.link, NO_TERMINAL if is_last else IN_BACKGROUND)
        self._noticed = False
        self._next_notice_at = STILL_WORKING_S
        self._notice_at: float | None = None
        self._death_notice_at: float | None = None
        self._listener_error: Exception | None = None

    def wait(self) -> CellRecord:
        """Carry the cell through: show what comes, interrupt whom the watch says."""
        if self._ended is None:
            self._carry()
        else:
            self._await(self._ended)
        if (say := self.on_notice) is not None:
            for line in notices.faults(self.record):
                say(line)
        if self._stopped is not None:
            raise self._stopped
        if (error := verdict.verdict(self._settling.end())) is not None:
            self._keep_for_others(error)
            raise error
        if self._listener_error is not None:
            raise self._listener_error
        return self.record

    def _keep_for_others(self, error: BaseException) -> None:
        if self.world.way is None:  # else the cluster's folder is on another machine
            record = self.record
            lastreport.keep(
                self.cluster.name, record.execution_count, record.source, error, self.looks.evidence
            )

    def run_in_background(self, when_done: Callable[[CellRecord], None]) -> None:
        """Carry the cell through on a thread; ``when_done`` is called there at its end."""

        ended = self._ended = threading.Event()

        def carry() -> None:
            try:
                try:
                    self._carry()
                except CellInterrupted as stop:  # while it waited for new processes
                    self._stopped = stop
                when_done(self.record)
            finally:
                ended.set()

        # A copy of the context keeps displays on the thread under the cell that started it.
        run = contextvars.copy_context().run
        threading.Thread(target=run, args=(carry,), daemon=True).start()

    @property
    def world(self) -> World:
        """The ranks as they are now: a recovery at its end replaces them."""
        return self.cluster.world

    @property
    def prompt(self) -> Labelled | None:
        """Where its ranks' questions are put; None: nobody can be asked."""
        return self._talk.prompt

    @prompt.setter
    def prompt(self, prompt: Labelled | None) -> None:
        self._talk.prompt = prompt

    @property
    def interrupted(self) -> tuple[int, ...]:
        """The ranks that were interrupted, whether or not they have ended the cell."""
        return self.watch.interrupted

    @property
    def paused(self) -> frozenset[int]:
        """The ranks that a person holds, in a debugger or by a question."""
        return self.watch.paused

    @property
    def report(self) -> findings.Report | None:
        return self.looks.report

    @property
    def evidence(self) -> Mapping[int, wire.RankReport]:
        return self.looks.evidence

    @property
    def recovered(self) -> str:
        return self._settling.recovered

    def stop(self) -> None:
        """Interrupt the cell's ranks, as the stop button does; ``wait`` then says how it ended."""
        self.cluster.press_stop()  # it may be at its end already, waiting for new processes
        self._sink.put(Event(-1, "stop", "", None))

    def _await(self, ended: threading.Event) -> None:
        # Not Thread.join: after a KeyboardInterrupt in it the thread counts as ended (Python 3.11).
        while not ended.is_set():
            try:
                ended.wait(0.2)
            except KeyboardInterrupt:
                self.stop()

    def _carry(self) -> None:
        if self.done:
            return
        try:
            while not self.watch.finished:
                # Wherever the stop button hits, the ranks are told, and waited for: the inner loop
                # is for the jump back to its beginning, where Python looks for signals.
                try:
                    while not self.watch.finished:
                        self._feed(self._next())
                        if self._talk.is_open:
                            self._talk.step(time.monotonic(), self.watch.open_ranks)
                except KeyboardInterrupt:
                    self._feed(health.StopPressed())
        finally:
            self._talk.end()
            self.record.seconds = time.monotonic() - self.started
            self.world.link.forget(self._ids)
            try:
                self._settling.settle()
            except KeyboardInterrupt:
                self._settling.leave_unsettled()
                raise
            finally:
                self.done = True
                events.tell()

    def _next(self) -> health.Event:
        times = (
            self.watch.deadline(),
            self._notice_at,
            self._death_notice_at,
            self._replay_at,
        )
        deadlines = [t for t in times if t is not None]
        timeout = max(0.0, min(deadlines) - time.monotonic()) if deadlines else None
        if (look_s := self._talk.look_s) is not None:
            timeout = look_s if timeout is None else min(timeout, look_s)
        try:
            return self._take(self._sink.get(timeout=timeout))
        except queue.Empty:
            return health.Tick()

    def _feed(self, event: health.Event) -> None:
        now = time.monotonic()
        self.left_early |= isinstance(event, health.StopPressed) and bool(self.interrupted)
        for instruction in self.watch.feed(event, now):
            match instruction:
                case health.Interrupt(ranks, why):
                    if why == "timeout":
                        self.places = self._ask_places(ranks)
                    if why == "error" and self.looks.report is None:  # the last moment to see why
                        names = recovery.assigned_names(self.record.source)
                        depth = self._depth()
                        self.looks.find(recovery.ask_reports(self.world.link, names, depth))
                    self.silences.look(ranks)
                    self._talk.end()
                    self._interrupt(ranks, spare=why not in ("stop", "timeout"))
                    if self.is_last:  # what a replay gives them might be written to a file
                        if why == "stop":
                            self.watch.answer_s = SCRIPT_STOP_S
                        continue
                    if why != "death":
                        selfcheck.prepare(self.world.link)  # while they leave the cell
                    events.tell()
                    self._replay_at = now + REPLAY_AFTER_S
                case health.Poll():
                    self._poll()
                    self.watch.polled(time.monotonic())
                case health.SayUnanswered(ranks):
                    self._say_unanswered(ranks)
                case health.Finish(silent):
                    self.silent = silent
        if self.looks.report is not None and self.looks.report.is_hopeless:
            self._replay_at = None  # to launch more would only make it longer
        if self._replay_at is not None and now >= self._replay_at:
            # Ranks that sit in a collective may answer the interrupt only once it completes.
            self.replay = self.replay or self.new_replay()
            self.replay.step(silence.ANSWER_S)
            if self.replay.stuck:  # nothing will release them
                self.watch.answer_s = min(self.watch.answer_s, health.HOPELESS_ANSWER_S)
            self._replay_at = time.monotonic() + REPLAY_AFTER_S
        if self._death_notice_at is not None and now >= self._death_notice_at:
            self._death_notice_at = math.inf  # once
            if self.on_notice is not None and not self.watch.finished:
                died = {r: one.died for r, one in self.record.records.items() if one.died}
                self.on_notice(notices.deaths(died, self.watch.open_ranks, self.world.hosts))
        if self._notice_at is not None and now >= self._notice_at and not self.watch.finished:
            self._notice_at = None
            if self.on_notice is not None:
                self.on_notice(
                    notices.first_error(
                        self.record,
                        self.watch.open_ranks,
                        self.watch.grace_s,
                        self.world.hosts,
                        self.watch.paused,
                    )
                )

    def _take(self, event: Event) -> health.Event:
        if event.id in self._interrupts:
            left = event.op == "reply" and event.body == "left"
            return health.Leaving(event.rank) if left else health.Tick()
        if event.op == "output":
            output = wire.parse(wire.RankOutput, event.body)
            if not self.is_last:  # else whoever hears it keeps it, all of it
                self.record.add_output(output)
            if output.rank != self.record.ranks[0]:
                self._talk.hear(output)
            self._tell(output)
            return health.Tick()
        if event.op == "stop":
            return health.StopPressed()
        if event.op == "paused":
            self._paused[event.rank] = event.body["kind"]
            self._talk.paused(event.rank, event.body["kind"])
            events.tell()
            return self._held()
        if event.op == "ask":
            self._talk.add(wire.parse(wire.Question, event.body), time.monotonic())
            return health.Tick()
        if event.op == "died":
            self._talk.withdraw(event.rank)
            if self.is_last and event.body.get("code") == 0:  # os._exit(0): its own end
                self._left.append(event.rank)
                self.record.add_reply(wire.CellReply(event.rank, self.record.seq, "ok", 0.0))
                return health.Replied(event.rank, "ok")
            self.record.records[event.rank].died = event.body["why"]
            events.tell()
            # Most cells are over in a moment, with an error that says it: then it is said once.
            at = time.monotonic() + DEATH_NOTICE_AFTER_S
            self._death_notice_at = self._death_notice_at or at
            return health.Died(event.rank)
        if event.op in ("error", "mismatch"):
            body = event.body
            error = wire.ErrorInfo(body["ename"], body["message"], [])
            reply = wire.CellReply(event.rank, self.record.seq, "error", 0.0, error)
        else:
            reply = wire.parse(wire.CellReply, event.body)
            if reply.names is not None:
                self.world.hear_names(event.rank, reply.names)
        self.record.add_reply(reply)
        self._talk.withdraw(reply.rank)
        if reply.error is not None and reply.error.ename == verdict.QUIT:
            self._sink.put(Event(-1, "stop", "", None))  # a debugger is left for the whole cell
        events.tell()
        self._tell(reply)
        if reply.status == "error" and not self._noticed:
            # Equal errors come together; only one that the others don't share is told early.
            self._noticed, self._notice_at = True, time.monotonic() + NOTICE_AFTER_S
        return health.Replied(event.rank, reply.status)

    def _tell(self, what: wire.RankOutput | wire.CellReply) -> None:
        """Show what came. A listener that raises is told nothing more, and raises at the end.

        The ranks run on whatever has befallen it: a closed pipe, an error of the user's own.
        """
        if self._on_output is None or self._listener_error is not None:
            return
        try:
            self._on_output(self.record, what)
        except Exception as error:
            self._listener_error = error

    def _poll(self) -> None:
        """Ask all ranks where they are; a certain finding ends the cell."""
        names = recovery.assigned_names(self.record.source)
        # No output is shown meanwhile: for those that were silent before it is not waited as long.
        wait_s = silence.ANSWER_S if self._are_silent else recovery.REPORT_S
        reports = recovery.ask_reports(self.world.link, names, self._depth(), timeout_s=wait_s)
        self._are_silent = self._silent(reports)
        self._paused = paused.kinds(report.state for report in reports.values())
        if self._held().ranks != self.watch.paused:
            self.watch.polled(time.monotonic())
            self._feed(self._held())
        self.looks.find(reports)
        if self.looks.report is not None:
            self._feed(health.Diagnosed(self.looks.report.is_releasable))
            return
        self.silences.look(self._are_silent)
        if self.looks.suspicion is not None and self.looks.suspicion.has("moment"):
            self._feed(health.Suspected())
        if self.on_notice is not None:
            self.say_waiting(reports)

    def _depth(self) -> int:
        """How many launches of each rank are looked at; all, where an earlier one is searched."""
        return recovery.JOURNAL_DEPTH if self.world.excused else POLL_DEPTH

    def _held(self) -> health.Paused:
        ranks = frozenset(rank for rank, kind in self._paused.items() if kind)
        self.record.held |= ranks
        return health.Paused(ranks)

    def _silent(self, reports: Mapping[int, wire.RankReport]) -> set[int]:
        return set(self.watch.open_ranks) - set(reports) - set(self.world.dead)

    def say_waiting(self, reports: Mapping[int, wire.RankReport]) -> None:
        """Now and then: who still works while others have ended, and who says nothing at all."""
        waited = time.monotonic() - self.started
        suspicion = self.looks.suspicion
        unsure = self.looks.circle or (suspicion is not None and suspicion.has("background"))
        first = SUSPECTED_S if unsure else 0.0
        if self.on_notice is None or waited < min(
            self._next_notice_at, first or self._next_notice_at
        ):
            return
        held = {r: report.state for r, report in reports.items() if report.state.paused}
        if any(state.seq == self.record.seq for state in held.values()):
            return  # who debugs this cell, or is to answer it, knows whom it waits for
        lines = paused.tell(held, self.world.hosts)
        for rank, why in self.silences.why(sorted(self._silent(reports))).items():
            if why.kind != "unknown":
                lines.append(silence.tell(rank, why))
        working = {r: reports[r] for r in self.watch.open_ranks if r in reports}
        if self.looks.circle:
            lines += self.looks.circle
        elif suspicion is not None and not suspicion.has("moment"):
            lasted = time.monotonic() - self.looks.suspected_at
            if lasted >= WAITED_S:
                lines.append(explain.tell_suspicion(suspicion, lasted))
        elif self.record.replies and working:
            lines += explain.tell_working(working, self.record.replies, waited, self.world.hosts)
            lines += explain.tell_left(self._left, self.world.hosts)
        if lines:
            self._next_notice_at = 3 * waited
            self.on_notice("\n".join(lines) + "\n")

    def new_replay(self) -> recovery.Replay:
        return recovery.Replay(self.world.link, self.record.seq)

    def rest(self) -> None:
        """Wait a moment between looks; the stop button ends it."""
        try:
            event = self._sink.get(timeout=AGAIN_S)
        except queue.Empty:
            return
        if event.op == "stop":
            raise KeyboardInterrupt

    def _ask_places(self, ranks: Sequence[int]) -> list[str]:
        names = recovery.assigned_names(self.record.source)
        reports = recovery.ask_reports(self.world.link, names, launches=1)
        record = self.record
        return explain.tell_places(reports, ranks, record.source, record.execution_count)

    def _interrupt(self, ranks: Sequence[int], spare: bool) -> None:
        self.aborted_at = self.aborted_at or time.monotonic()
        asked = {"seq": self.record.seq, "spare": spare, "terminate": self.terminates}
        body = dict.fromkeys(ranks, asked)
        ids = self.world.link.request_each(body, "interrupt", sink=self._sink)
        self._interrupts.update(ids)

    def say_silent(self) -> list[str]:
        lines = self._tell_unanswered(self.silent)
        return [*lines, f"%jaxcluster status shows them. {RESTART_HINT}"]

    def _say_unanswered(self, ranks: Sequence[int]) -> None:
        """Soon after a stop or a timeout: who is still waited for, and why."""
        if self.on_notice is None:
            return
        if lines := self._tell_unanswered(ranks, with_leaving=False):
            self.on_notice(
                f"Interrupted {name_ranks(self.watch.interrupted)}. {' '.join(lines)} "
                f"{self.watch.answer_s:g} s are given for an answer.\n"
            )

    def _tell_unanswered(self, ranks: Sequence[int], with_leaving: bool = True) -> list[str]:
        """A sentence for each of these ranks: where it is, or why it says nothing."""
        answers = self.world.link.gather(ranks, "state", timeout_s=silence.ANSWER_S)
        whys = self.silences.why([rank for rank in ranks if rank not in answers])
        lines = []
        for rank in ranks:
            event = answers.get(rank)
            if event is None:
                lines.append(f"Rank {rank} {whys[rank].message}.")
            elif event.op == "reply":
                state = wire.parse(wire.RankState, event.body)
                where = f"cell [{state.cell}] line {state.line}" if state.line else state.frame
                doing = f"it is in {where}" if state.seq == self.record.seq else "it has ended it"
                if state.has_left:
                    doing = "it has left the cell's code and is rendering its error"
                if not with_leaving and (state.has_left or state.seq != self.record.seq):
                    continue
                lines.append(f"Rank {rank} has not answered the interrupt: {doing}.")
        return lines

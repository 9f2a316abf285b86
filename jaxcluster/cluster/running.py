"""A cell that runs: its ranks' outputs are passed on until it ends."""

from __future__ import annotations

import contextlib
import contextvars
import dataclasses
import math
import queue
import re
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jaxcluster import wire
from jaxcluster.agreement.messages import Looked
from jaxcluster.cluster import events, recovery, stopbutton
from jaxcluster.cluster.questions import Conversation, Prompt
from jaxcluster.cluster.world import tell_silences
from jaxcluster.errors import CellInterrupted, JaxClusterError
from jaxcluster.hosts.records import reports
from jaxcluster.model import rewrite, verdict, waiting
from jaxcluster.model.outputs import CellRecord
from jaxcluster.wire.forks import RESTARTED
from jaxcluster.wire.link import Event, Sink, replies
from jaxcluster.wire.ops.cells import Interrupt
from jaxcluster.wire.ops.status import State

if TYPE_CHECKING:
    from jaxcluster.cluster.handle import Cluster

Listener = Callable[[CellRecord, wire.RankOutput | wire.CellReply], None]

LOOK_S = 1.0  # between looks at what the ranks wait for
LAUNCHES = 16  # in a report
ANSWER_S = 0.3  # for ranks to answer
STUCK_S = 7.0  # that ranks have to end a cell that is closed: some are interrupted after 2 s
DEATH_S = 0.8  # ... once a rank has died
FAILED_DEATH_S = 2.5  # ... in a cell that had failed: the others are interrupted after 2 s, too
_TIME = re.compile(r"\b\d+ (s|min)\b")
OVER_S = 2.0  # for the referee's result, after all ranks have replied


@dataclasses.dataclass(frozen=True)
class CellOptions:
    """The options of a cell, as ``Cluster.submit`` takes them.

    Attributes:
      ranks: those that run it; all by default.
      timeout_s: after so many seconds the ranks that are still in the cell are stopped.
      execution_count: its number, for tracebacks and ``Out``.
      shown_ranks: the ranks whose C code's output is read, too; by default the first one.
      on_output: called with each output and reply as it comes.
      on_notice: called with a line that says what the cell waits for.
      cell_id: Jupyter's, for the panel.
      parent: Jupyter's message that asks for it.
      message, buffers: a page's message on a comm of this cell; the code is not run again.
      prompt: asks the user what ranks ask; None refuses their questions.
      profile: the folder for files of JAX's profiler; "" for none.
      is_waited_for: whether the notebook sends nothing else before the cell's end.
    """

    ranks: Sequence[int] | None = None
    timeout_s: float | None = None
    execution_count: int | None = None
    shown_ranks: Sequence[int] | None = None
    on_output: Listener | None = None
    on_notice: Callable[[str], None] | None = None
    cell_id: str = ""
    parent: dict[str, Any] = dataclasses.field(default_factory=dict)
    message: wire.CommMessage | None = None
    buffers: Sequence[bytes] = ()
    prompt: Prompt | None = None
    profile: str | Path = ""
    is_waited_for: bool = False


class RunningCell(verdict.Ending):
    """A cell that was submitted. ``wait`` returns its record or raises, as ``Cluster.run`` does.

    Attributes:
      cluster: the cluster that runs it.
      started: when it was sent, by ``time.monotonic``.
      paused: the ranks that a person holds, in a debugger or by a question.
      on_notice: called with each notice under the cell; None if nobody listens.
      on_status: called with the line that says what the cell waits for, on each change; "" if it
        waits for nothing. If it is None, ``on_notice`` gets the line now and then.
      talk: puts its ranks' questions to the user.
      has_code: whether it runs a user's code, and not a page's message.
      done: whether the cell has ended on all its ranks.
    """

    def __init__(
        self,
        cluster: Cluster,
        record: CellRecord,
        sink: Sink,
        ids: Sequence[str],
        options: CellOptions,
    ) -> None:
        super().__init__(record, timeout_s=options.timeout_s, hosts=cluster.world.hosts)
        self.cluster, self.started = cluster, time.monotonic()
        self.paused: set[int] = set()
        self.on_notice = options.on_notice
        self.on_status: Callable[[str], None] | None = None
        self.done = False
        self._world, self._sink, self._ids = cluster.world, sink, ids
        self._on_output = options.on_output
        self.talk = Conversation(self._world.link, options.prompt)
        self._silent: set[int] = set()  # at the last look
        self._is_over = False
        self._closed_at = self._replied_at = self._stuck_look_at = 0.0
        self._looked: Looked | None = None  # at the referee, before new processes
        self._look_at = self.started + LOOK_S
        self._again_at, self._told = self.started, ""  # of the status, without its time
        self._ended: threading.Event | None = None  # where it is carried through on a thread
        self._stopped: CellInterrupted | None = None  # in the recovery at its end, on a thread
        self._listener_error: Exception | None = None
        self._stepped_at = self.started
        self._deadline = self.started + (math.inf if self.timeout_s is None else self.timeout_s)
        self.has_code = options.message is None

    # ------------------------------------------------------------------ waiting

    def wait(self) -> CellRecord:
        """Pass the outputs on until the cell ends; returns its record, or raises."""
        if self._ended is None:
            self._carry()
        else:
            while not self._ended.is_set():
                try:
                    self._ended.wait(0.2)
                except KeyboardInterrupt:
                    self.stop()
        try:
            self._end()
        except BaseException as error:
            self.record.end(error)
            raise
        self.record.end(None)
        if self._listener_error is not None:
            raise self._listener_error
        return self.record

    def run_in_background(self, when_done: Callable[[CellRecord], None]) -> None:
        """Pass the outputs on from a thread, which calls ``when_done`` at the end."""
        ended = self._ended = threading.Event()

        def carry() -> None:
            try:
                try:
                    self._carry()
                except CellInterrupted as stop:  # while it waited for new processes
                    self._stopped = stop
                self.record.is_over = True
                when_done(self.record)
            finally:
                ended.set()

        start_in_cell(carry, "jaxcluster-cell")

    def stop(self, why: str = "stop") -> None:
        """Stop the cell on all its ranks, before the same launch; ``wait`` says how it ended."""
        self.cluster.press_stop()  # it may be at its end already, waiting for new processes
        self.why = self.why or why
        if self._closed_at:  # it was stopped before, and has had its time
            self._closed_at = time.monotonic()
        with stopbutton.held():  # all of them must hear of it
            self.talk.end()
            each = dict.fromkeys(self._open_ranks(), Interrupt(self.record.seq))
            self._world.link.request_each(each, sink=Sink())

    # ----------------------------------------------------------------- carrying

    def _carry(self) -> None:
        if self.done:
            return
        try:
            while not self._is_finished():
                # Each press of the stop button, also the second, stops the ranks, and waits for
                # them.
                try:
                    while not self._is_finished():
                        self._step()
                except KeyboardInterrupt:
                    self.stop()
        finally:
            self.talk.end()
            self._say_status("")
            self.record.seconds = time.monotonic() - self.started
            self._world.link.forget(self._ids)
            try:
                self._recover()
            finally:
                self.done = True
                if self.record.errors:
                    self.cluster.last_failed = self.record
                self._world.turn_ended(self.record.seq)
                if self.has_code and self.record.ok and self.refusal is None:
                    names = rewrite.assigned_names(self.record.source)
                    made = dict.fromkeys(names, self.record.execution_count)
                    self.cluster.made_by.update(made)
                    if not self.cluster.cells and self.cluster.world is self._world:
                        self.cluster.autosave.after(self._world, self.record.execution_count)
                events.tell()

    def _open_ranks(self) -> list[int]:
        """The ranks that have not ended it, as far as is known."""
        ended = self.record.replies.keys() | self.deaths.keys()
        return [rank for rank in self.record.ranks if rank not in ended]

    def _is_finished(self) -> bool:
        now, open_ranks = time.monotonic(), self._open_ranks()
        if not open_ranks:
            self._replied_at = self._replied_at or now
            is_skipped = any(reply.skipped for reply in self.record.replies.values())
            is_late = now > self._replied_at + OVER_S
            return bool(self._is_over or self.deaths or is_skipped or is_late)
        if self._closed_at and not self.paused.intersection(open_ranks):
            kind = self.refusal.kind if self.refusal is not None else "died"
            death_s = DEATH_S if kind in ("stopped", "died") else FAILED_DEATH_S
            limit_s = death_s if self.deaths else STUCK_S
            if now > max(self._closed_at + limit_s, self._stuck_look_at):
                self.stuck = tuple(self._deaf(open_ranks))
                self._stuck_look_at = time.monotonic() + LOOK_S
        return bool(self.stuck)

    def _deaf(self, ranks: Sequence[int]) -> Sequence[int]:
        """Those whose code has not heard that the cell is closed; all, after a death."""
        if self.deaths:
            return ranks
        states = replies(self._world.link.gather(ranks, State(), timeout_s=ANSWER_S))
        return [rank for rank in ranks if rank not in states or not states[rank].heard]

    def _step(self) -> None:
        now = time.monotonic()
        if self.paused:  # by a person, which no time limit counts
            self._deadline += now - self._stepped_at
        self._stepped_at = now
        left_s = math.inf if self.why else self._deadline - now
        if left_s <= 0:
            self.stop("timeout")
        if now >= self._look_at:
            self._look()
            self._look_at = time.monotonic() + LOOK_S
        wait_s = max(0.0, min(left_s, self._look_at - time.monotonic()))
        if self._closed_at or not self._open_ranks():
            wait_s = min(wait_s, 0.1)
        if (look_s := self.talk.look_s) is not None:
            wait_s = min(wait_s, look_s)
        with contextlib.suppress(queue.Empty):
            self._take(self._sink.get(timeout=wait_s))
        self.talk.step(time.monotonic(), self._open_ranks())

    def _take(self, event: Event[Any]) -> None:
        """Hear what has come."""
        rank, record, now = event.rank, self.record, time.monotonic()
        match event.op:
            case "output":
                record.add_output(event.body)
                self.talk.hear(event.body)
                self._listen(event.body)
            case "reply":
                record.add_reply(event.body)
                if event.body.names is not None:
                    self._world.names[rank] = set(event.body.names)
                self.talk.withdraw(rank)
                self.paused.discard(rank)
                self._listen(event.body)
                events.tell()
            case "closed":
                self.refusal = self.refusal or event.body.refusal
                self._closed_at = self._closed_at or now
                events.tell()
            case "over":
                self._is_over = True
                self.refusal = event.body.refusal or self.refusal
            case "ask":
                self.talk.add(event.body, now)
            case "paused":
                kind = event.body.kind
                (self.paused.add if kind else self.paused.discard)(rank)
                self.talk.paused(rank, kind)
            case "died" if not self._is_over or rank in self._open_ranks():
                death = self._world.dead.get(rank) or wire.Death(event.why)
                self.deaths[rank] = death
                record.records[rank].died = death.why
                self.talk.withdraw(rank)
                self._closed_at = self._closed_at or now
                events.tell()
            case "error":  # the rank could not even begin it
                info = wire.ErrorInfo(event.ename, event.why, [f"{event.ename}: {event.why}"])
                record.add_reply(wire.CellReply(rank, record.seq, "error", 0.0, info))

    def _listen(self, what: wire.RankOutput | wire.CellReply) -> None:
        if self._on_output is not None and self._listener_error is None:
            try:
                self._on_output(self.record, what)
            except Exception as error:  # the cell's ranks are waited for all the same
                self._listener_error = error

    # ------------------------------------------------------------------- saying

    def _look(self) -> None:
        """Say what the cell waits for, if anybody listens."""
        if self.on_status is None and self.on_notice is None:
            return
        ranks = self._open_ranks()
        states = replies(self._world.link.gather(ranks, State(), timeout_s=ANSWER_S))
        looked = self._world.look(0, ANSWER_S)
        silent = {rank for rank in ranks if rank not in states}
        found = self._world.processes.why_silent(sorted(silent)) if silent else {}
        # On a busy machine an answer may be late once.
        whys = {r: why for r, why in found.items() if why.is_held or r in self._silent}
        self._silent = silent
        have_ended = len(ranks) < len(self.record.ranks)
        hosts = self._world.hosts
        self._say_status(
            waiting.line(
                self.record.seq, states, tell_silences(whys), looked, hosts, have_ended=have_ended
            )
        )

    def _say_status(self, text: str) -> None:
        """Say it at once if it differs, and its time ever more rarely; a log has less of it."""
        now, bare, is_log = time.monotonic(), _TIME.sub("", text), self.on_status is None
        is_new = bare != self._told and not is_log
        if is_new or (text and now >= self._again_at):
            ran = now - self.started
            self._told, self._again_at = bare, now + (2 * ran if is_log else ran / 50)
            if self.on_status is not None:
                self.on_status(text)
            elif self.on_notice is not None:
                self.on_notice(f"{text}\n")

    # ------------------------------------------------------------------- ending

    def _recover(self) -> None:
        """Give the ranks new processes, if some are lost or can't be used any more."""
        is_torn = self.refusal is not None and self.refusal.kind == "torn"
        if self.cluster.closed or self.cluster.world is not self._world:
            return
        if not (self.deaths or self.stuck or is_torn):
            return
        if self.cluster.is_restarting and {d.why for d in self.deaths.values()} == {RESTARTED}:
            return  # which has ended it
        when = f"in cell [{self.record.execution_count}]"
        self._world.is_torn = self._world.is_torn or is_torn or bool(self.stuck)
        self._looked = self._world.look(LAUNCHES, ANSWER_S)  # the next referee knows none of it
        told = recovery.losses(self.cluster) or f"Cell {when[3:]} has lost ranks"
        show = self.on_status or (lambda text: None)  # a log has the error, which says the same
        self.recovered = recovery.recover(
            self.cluster, f"{told}.", when, lambda step: show(f"{told}: {step}")
        )
        show("")

    def _end(self) -> None:
        """Say, or raise, what its end has brought."""
        if self._stopped is not None:
            raise self._stopped
        self.dead = dict(self._world.dead)
        self.numbers = {one.record.seq: one.record.execution_count for one in self.cluster.sent}
        if (error := verdict.verdict(self)) is not None:
            with contextlib.suppress(OSError, JaxClusterError):  # that must not take its place
                self._keep_report(error)
            raise error

    def _keep_report(self, error: BaseException) -> None:
        """For ``%jaxcluster report``, which is often asked when its ranks are gone."""
        looked = self._looked
        if looked is None and not self._world.is_over:
            looked = self._world.look(LAUNCHES, ANSWER_S)
        now = time.time_ns() // 1_000_000
        made = reports.made_of(self.record, error, self.cluster.name, now, looked)
        if made is not None:
            self.cluster.past_reports.add(made)


def start_in_cell(work: Callable[[], None], name: str) -> threading.Thread:
    """A thread whose displays stand under the cell that starts it: in a copy of its context."""
    run = contextvars.copy_context().run
    thread = threading.Thread(target=run, args=(work,), name=name, daemon=True)
    thread.start()
    return thread

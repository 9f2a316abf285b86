"""One cell, carried through: what comes from its ranks is passed on, and what is decided is done.

``lockstep.cell`` and ``lockstep.settling`` decide.
"""

from __future__ import annotations

import contextlib
import contextvars
import dataclasses
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from jaxcluster import wire
from jaxcluster.cluster import events as cluster_events
from jaxcluster.cluster import stopbutton
from jaxcluster.cluster.action_runner import ActionRunner, Owner
from jaxcluster.cluster.prompts import Labelled
from jaxcluster.cluster.questions import IN_BACKGROUND, NO_TERMINAL, Conversation
from jaxcluster.errors import CellInterrupted, JaxClusterError
from jaxcluster.lockstep import actions, events
from jaxcluster.lockstep.cell import Cell
from jaxcluster.lockstep.settling import Settling
from jaxcluster.model import findings, notices, verdict
from jaxcluster.model.outputs import CellRecord
from jaxcluster.records import lastreport
from jaxcluster.wire.forks import RESTARTED
from jaxcluster.wire.link import Event, Sink
from jaxcluster.wire.ops.cells import Withdraw

Listener = Callable[[CellRecord, wire.RankOutput | wire.CellReply], None]


@dataclasses.dataclass(frozen=True)
class CellOptions:
    """How a cell is to be run: see ``Cluster.run`` and ``submit``.

    With a ``message`` its code is not run again: what a user did to a widget of it is passed on.
    With a ``script`` it is all that the ranks are there for, so after it nothing is brought back,
    undone or replaced; what has gone wrong is found and told all the same. ``stall_s``: how long
    all its ranks may be in one launch. ``profile``: the folder for the files of JAX's profiler.
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
    profile: Path | None = None
    stall_s: float | None = None


class RunningCell:
    """A cell on its way. ``wait`` returns its record or raises, as ``Cluster.run`` does.

    Attributes:
      cluster: whose it is.
      core: what is known of it, and decided about it.
      runner: carries that out, and tells who listens.
      talk: puts its ranks' questions to the user.
      done: nothing is to be done for it any more, but to tell how it has ended.
    """

    def __init__(
        self,
        cluster: Owner,
        record: CellRecord,
        sink: Sink,
        ids: Sequence[str],
        options: CellOptions,
    ) -> None:
        self.cluster = cluster
        world, started, is_last = cluster.world, time.monotonic(), options.script is not None
        self.core = Cell(
            record, started, options.timeout_s, world.hosts, is_last, options.stall_s, world.stays
        )
        self.done = False
        self._sent_to = world
        self._settling = Settling(self.core)
        self.runner = ActionRunner(cluster, self.core, sink)
        self._sink, self._ids, self._on_output = sink, ids, options.on_output
        self.talk = Conversation(world.link, NO_TERMINAL if is_last else IN_BACKGROUND)
        self._ended: threading.Event | None = None  # where it is carried through on a thread
        self._is_carried = False
        self._stopped: CellInterrupted | None = None  # in the recovery at its end, on a thread
        self._listener_error: Exception | None = None
        self._has_looked = False  # and what was seen lies behind what came before it
        self._left: list[actions.Action] = []  # what the stop button has kept from being done
        self._has_code = options.message is None and not options.post_mortem

    def wait(self) -> CellRecord:
        """Carry the cell through: show what comes, do what is decided."""
        for earlier in self.cluster.cells:  # ranks wait for what is found of one that went wrong
            if earlier.record.seq < self.record.seq:
                earlier.carry_unwaited()
        if self._ended is None:
            self._carry()
        else:
            self._await(self._ended)
        try:
            self._end()
        except BaseException as error:
            self.record.end(error)
            raise
        self.record.end(None)
        if (raised := self._listener_error or self.runner.warned) is not None:
            raise raised
        return self.record

    def _end(self) -> None:
        """Say, or raise, what its end has brought."""
        report = self.core.polls.report
        for line in notices.faults(self.record):
            if report is None or line.strip() not in report.lines:
                self.runner.say(line)
        if remains := self.core.remains:
            self.runner.say(notices.Lasting(remains))
        if self._stopped is not None:
            raise self._stopped
        ending = self.runner.carry(self._settling.end())
        if (error := verdict.verdict(ending)) is not None:
            with contextlib.suppress(OSError, JaxClusterError):  # that must not take its place
                self._keep_report(error)
            raise error
        if ending.left:  # its code has caught the stop
            self.runner.say(notices.Warned(f"{ending.left}\n"))

    def _keep_report(self, error: BaseException) -> None:
        """For ``%jaxcluster report``, which is often asked when its ranks are gone."""
        found = getattr(error, "report", None) or self.report
        evidence = self.evidence or self.core.polls.before
        made = lastreport.made_of(self.record, error, found, evidence, time.time_ns())
        if made is not None:
            self.cluster.past_reports.add(made)

    def run_in_background(self, when_done: Callable[[CellRecord], None]) -> None:
        """Carry the cell through on a thread; ``when_done`` is called there at its end."""

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

        # A copy of the context keeps displays on the thread under the cell that started it.
        run = contextvars.copy_context().run
        threading.Thread(target=run, args=(carry,), daemon=True).start()

    def carry_unwaited(self) -> None:
        """Carry it through on a thread where nobody waits for it: others do, for what is behind."""
        if not self._is_carried and self._ended is None:
            self.run_in_background(lambda record: None)

    @property
    def record(self) -> CellRecord:
        """What has come so far."""
        return self.core.record

    @property
    def started(self) -> float:
        """When it was sent, by ``time.monotonic``."""
        return self.core.started

    @property
    def interrupted(self) -> tuple[int, ...]:
        """The ranks that were interrupted, whether or not they have ended the cell."""
        return self.core.watch.interrupted

    @property
    def paused(self) -> frozenset[int]:
        """The ranks that a person holds, in a debugger or by a question."""
        return self.core.watch.paused

    @property
    def report(self) -> findings.Report | None:
        """The certain finding, if the cell could not end or its numbers are wrong."""
        return self.core.polls.report

    @property
    def evidence(self) -> Mapping[int, wire.RankReport]:
        """What the ranks said when it was found."""
        return self.core.polls.evidence

    @property
    def recovered(self) -> str:
        """What was done about it; "" while nothing was."""
        return self.core.recovered

    @property
    def is_stopped(self) -> bool:
        """Whether this notebook has stopped it: by the button, or by a time limit."""
        return self.core.watch.why in ("stop", "timeout")

    def stop(self) -> None:
        """Interrupt the cell's ranks, as the stop button does; ``wait`` then says how it ended."""
        self.cluster.press_stop()  # it may be at its end already, waiting for new processes
        self._sink.put(Event(-1, "stop", "", None))

    def withdraw(self, why: str) -> None:
        """Have no rank begin it: it waits on all of them, behind a cell that was taken back."""
        self.core.withdrawn = why
        each = dict.fromkeys(self.record.ranks, Withdraw(self.record.seq))
        self.cluster.world.link.request_each(each, sink=Sink())

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
        self._is_carried = True
        watch, is_pressed = self.core.watch, False
        try:
            while self._left or not watch.finished:
                # Wherever the stop button hits, also twice, the ranks are told, and waited for: the
                # inner loop is for the jump back to its beginning, where Python looks for signals.
                try:
                    self._do(())
                    if is_pressed:
                        self._feed(events.Stopped(time.monotonic()))
                        is_pressed = False
                    while not watch.finished:
                        self._hear_next()
                        if self.talk.is_open:
                            self.talk.step(time.monotonic(), watch.open_ranks)
                except KeyboardInterrupt:
                    is_pressed = True
        finally:
            try:
                self.talk.end()
                self.record.seconds = time.monotonic() - self.started
                self._sent_to.link.forget(self._ids)
                # Another cell's end may have replaced the ranks. With the new ones all is right.
                self.runner.carry(self._settling.settle(), self._sent_to)
            except KeyboardInterrupt:
                with stopbutton.held():  # else nobody would know that the ranks have diverged
                    self.runner.carry(self._settling.leave_unsettled(), self._sent_to)
                raise
            finally:
                self.done = True
                self._note_names()
                cluster_events.tell()

    def _note_names(self) -> None:
        """Remember what it has made: for whoever loses it later."""
        record, undone, made = self.record, self.core.undone, self.cluster.lineage
        if not self._has_code:
            return
        is_whole = record.ok and self.report is None and undone is None
        made.ended(record.seq, record.source, record.execution_count, is_whole=is_whole)
        if undone is not None and not undone.refused:
            made.undone(record.seq, undone.in_doubt)

    def _hear_next(self) -> None:
        deadline = self.core.deadline()
        timeout = None if deadline is None else max(0.0, deadline - time.monotonic())
        if (look_s := self.talk.look_s) is not None:
            timeout = look_s if timeout is None else min(timeout, look_s)
        try:
            self._take(self._sink.get(timeout=timeout))
        except queue.Empty:
            self._feed(events.Tick(time.monotonic()))

    def _feed(self, event: events.Event) -> None:
        self._do(self.core.feed(event))

    def _do(self, todo: Sequence[actions.Action]) -> None:
        """Carry actions out, in order; before them what the stop button has come between."""
        left, self._left = deque([*self._left, *todo]), []
        try:
            while left:
                self._do_one(left.popleft())
        finally:
            self._left += left

    def _do_one(self, action: actions.Action) -> None:
        if isinstance(action, actions.AskWhere | actions.ExplainSilent) and not (
            self.runner.on_notice or self.runner.on_status
        ):
            return  # nobody listens
        is_poll = isinstance(action, actions.Ask) and action.why == "poll"
        if is_poll and self._has_looked:
            return  # it stays due until the last look is heard
        if isinstance(action, actions.Interrupt):
            with stopbutton.held() as pressed:  # they are told, all of them
                self.talk.end()
                self.runner.do(action)
            if pressed:
                self._sink.put(Event(-1, "press", "", None))
            return
        if (answer := self.runner.do(action)) is None:
            return
        if is_poll and not self._sink.empty():
            # What has come meanwhile is older than the last answer: a reply tells why its rank
            # has left launches out.
            self._has_looked = True
            self._sink.put(Event(-1, "looked", "", answer))
        else:
            self._feed(answer)

    def _take(self, event: Event[Any]) -> None:
        """Hear what has come, and let the core decide what follows."""
        now, rank, record = time.monotonic(), event.rank, self.record
        if event.id in self.runner.interrupts:
            left = event.op == "reply" and event.body == "left"
            return self._feed(events.Leaving(now, rank) if left else events.Tick(now))
        if event.op == "output":
            output = event.body
            if not self.core.is_last:  # else whoever hears it keeps it, all of it
                record.add_output(output)
            if output.rank != record.ranks[0]:
                self.talk.hear(output)
            self._tell(output)
        elif event.op == "looked":
            self._has_looked = False
            return self._feed(dataclasses.replace(event.body, now=now))
        elif event.op == "stop":
            return self._feed(events.Stopped(now))
        elif event.op == "press":  # nobody has pressed it once more
            is_first = not self.core.watch.why
            return self._feed(events.Stopped(now) if is_first else events.Tick(now))
        elif event.op == "paused":
            self.talk.paused(rank, event.body.kind)
            return self._feed(events.Held(now, rank, event.body.kind))
        elif event.op == "ask":
            self.talk.add(event.body, now)
        elif event.op == "died":
            self.talk.withdraw(rank)
            return self._feed(events.Died(now, rank, event.why, event.body.code))
        else:
            return self._take_in_turn(event)
        return self._feed(events.Tick(time.monotonic()))

    def _take_in_turn(self, event: Event[Any]) -> None:
        """Take a reply, but none of a rank that was saved before: the new one has not ended it."""
        cluster = self.cluster
        # What has come before new processes are asked for is of ranks that have not been saved.
        until = cluster.changing if cluster.is_restarting else contextlib.nullcontext()
        try:
            with until:
                now = time.monotonic()
                if cluster.world is self._sent_to:
                    return self._take_reply(event, now)
        except KeyboardInterrupt:
            self._sink.put(event)
            raise
        self.talk.withdraw(event.rank)
        return self._feed(events.Died(now, event.rank, RESTARTED))

    def _take_reply(self, event: Event[Any], now: float) -> None:
        if event.op in ("error", "mismatch"):
            error = wire.ErrorInfo(event.ename, event.why, [])
            reply = wire.CellReply(event.rank, self.record.seq, "error", 0.0, error)
        else:
            reply = event.body
            if reply.names is not None:
                self.cluster.world.hear_names(event.rank, reply.seq, reply.names)
        todo = self.core.feed(events.Replied(now, reply))
        self.talk.withdraw(reply.rank)
        cluster_events.tell()
        self._tell(reply)
        self._do(todo)

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

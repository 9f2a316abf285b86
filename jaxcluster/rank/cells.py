"""Runs cells on a rank's main thread, when the referee gives them their turn."""

from __future__ import annotations

import asyncio
import contextvars
import hashlib
import os
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

from jaxcluster import wire
from jaxcluster.agreement.cells import AT_WORK, FAILED_IN_XLA, STUCK
from jaxcluster.agreement.client import Agreement, Divergence, Stopped
from jaxcluster.errors import XLA_ERRORS
from jaxcluster.model.words import explain
from jaxcluster.rank import (
    debugging,
    interrupts,
    log,
    magics,
    tracebacks,
)
from jaxcluster.rank.arrays import READY_POLL_S, is_any_unfinished
from jaxcluster.rank.comms import Comms
from jaxcluster.rank.control import ControlChannel, Handler, Request
from jaxcluster.rank.given import Given
from jaxcluster.rank.history import History
from jaxcluster.rank.interrupts import Interrupts
from jaxcluster.rank.names import explain_lost, is_users
from jaxcluster.rank.output import CellOutput, LogTail, RankStream
from jaxcluster.rank.places import CELL_DIRECTORY, Places, outward
from jaxcluster.rank.questions import Asking
from jaxcluster.rank.tracebacks import attempt
from jaxcluster.rank.turns import Turn, Turns

FINISH_S = 1.0  # in which XLA ends what was launched, or waits for another rank


@dataclass
class Running:
    """The cell that the main thread is in.

    Attributes:
      shown: its output is shown, so the log is read.
      interrupted: somebody has stopped it.
      interrupts: how often its code was to be told so.
      heard: it was, once, and goes on as it likes.
      unheard_since: since when an interrupt that could not be raised comes again; 0: none.
      taken: agreed launches of this process before it.
      over: it launches nothing any more.
      task: it runs its lines, which may await.
      raised: what its code has raised, or shown as ``%run`` does.
      lines: as IPython has rendered that.
      is_profiled: JAX's profiler was started for it.
    """

    request: Request[wire.CellRequest]
    shown: bool
    started: float = field(default_factory=time.perf_counter)
    interrupted: bool = False
    interrupts: int = 0
    heard: bool = False
    unheard_since: float = 0.0
    taken: int = 0
    over: bool = False
    task: asyncio.Task[Any] | None = None
    raised: BaseException | None = None
    lines: list[str] | None = None
    error: wire.ErrorInfo | None = None
    status: str = ""
    is_profiled: bool = False

    @property
    def cell(self) -> wire.CellRequest:
        return self.request.body


class CellRunner:
    """Owns the shell of one rank.

    Attributes:
      current: the running cell, read by the control thread.
      last_result: the value of the last cell's last expression.
      turns: when cells, and what is done between them, may begin.
      given: hashes what cells give to launches.
      interrupts: stops cells.
      output: where the output of cells goes.
      history: its cells and their output, for those who have not sent them.
      lost: the names that were lost, and why.
      comms: those that cells have opened, and what an ``ipywidgets.Output`` takes.
      asking: what its cells ask the user, and whether a person holds the rank.
      home: the last cell, or the one whose widget has a message now: what is opened is its own.
    """

    def __init__(self, rank: int, control: ControlChannel, log_path: str, history: History) -> None:
        self.rank = rank
        self.control = control
        self.cell_numbers: dict[str, int] = {}
        self.given = Given()
        places = Places(self.cell_numbers)
        self.agreement = Agreement(rank, places.of, self.given.take, explain)
        self.turns = Turns(control, self.agreement)
        self.connect = self.turns.connect
        self.current: Running | None = None
        self.last_result: Any = None
        self.shell: Any = None
        self.lost: dict[str, str] = {}
        self._told_names: tuple[bytes, frozenset[str]] = b"", frozenset()
        self.history = history
        self.context = contextvars.copy_context()
        self.asking = Asking(self)
        self.main_thread_id = threading.main_thread().ident or 0
        self._pid = os.getpid()
        self._streams: tuple[Any, Any] = sys.stdout, sys.stderr
        self.interrupts = Interrupts(self)
        self.turns.interrupt = self._interrupt_closed
        self.output = CellOutput(self, LogTail(log_path))
        self.home: Request[wire.CellRequest] | None = None
        self.comms = Comms(self)
        self.on_idle_sigint: Callable[[FrameType | None], None] = lambda frame: None

    def attach(self, shell: Any) -> None:
        """Take over a running kernel's shell. On the main thread, inside its event loop."""
        self.shell = shell
        loop = asyncio.get_running_loop()
        out = self.output
        out.attach(shell)
        shell.compile.get_code_name = self._code_name
        magics.install(
            shell, self.cell_numbers, lambda: self.current.cell.source if self.current else ""
        )
        self._show_traceback, shell.showtraceback = shell.showtraceback, self._render_error
        sys.stdout = RankStream("stdout", 1, sys.stdout, out.print)
        sys.stderr = RankStream("stderr", 2, sys.stderr, out.print)
        self._streams = sys.stdout, sys.stderr
        self._tidy()
        debugging.install(self)
        tracebacks.install(shell)
        self.control.on_tick = out.show_log
        # Looked up at each call: the main thread is in this loop from now on.
        self.control.call_main = loop.call_soon_threadsafe  # type: ignore[assignment]

    def _code_name(self, raw_code: str, transformed_code: str, number: int) -> str:
        digest = hashlib.blake2b(
            raw_code.encode(errors="backslashreplace"), digest_size=6
        ).hexdigest()
        if self.current is not None:  # what a magic runs as a cell has the next number
            number = self.current.cell.execution_count
        name = f"{CELL_DIRECTORY}/{number}-{digest}.py"
        self.cell_numbers[name] = number
        return name

    # ------------------------------------------------------------------ turns

    def on_cell(self, request: Request[wire.CellRequest]) -> None:
        """Handler of ``cell``, on the control thread: run it in its turn and reply at its end."""
        cell = request.body

        def begin() -> None:
            # In the context of all cells: what one sets there outlasts its task.
            loop, code = asyncio.get_running_loop(), self._run_in_turn(request)
            task = loop.create_task(code, context=self.context)
            task.add_done_callback(lambda task: task.cancelled() or task.exception())

        def skip(why: wire.Skipped) -> None:
            reply = wire.CellReply(self.rank, cell.seq, "skipped", 0.0, skipped=why)
            attempt(self.history.end, reply)
            request.reply(reply)

        self.turns.arrive(Turn(request, begin, skip))

    def in_turn(self, handler: Handler) -> Handler:
        """A handler, for the control thread, that has its request's turn among cells."""

        def arrive(request: Request[Any]) -> None:
            def begin() -> None:
                self.agreement.begin(request.body.turn.seq)
                try:
                    request.answer(handler)
                finally:
                    self.agreement.end("ok")

            def skip(why: wire.Skipped) -> None:
                told = f"rank {why.dead} has died" if why.dead is not None else "it was stopped"
                request.fail(RuntimeError(f"This was not done: {told}."))

            self.turns.arrive(Turn(request, begin, skip))

        return arrive

    def _interrupt_closed(self, seq: int, is_stop: bool) -> None:
        """A cell was closed some time ago. Any thread."""
        is_heard = self.agreement.refusals == 1  # what its code makes of that goes on
        if not is_heard and (is_stop or not self.asking.kind):
            self.interrupts.interrupt(seq)

    async def _run_in_turn(self, request: Request[wire.CellRequest]) -> None:
        """One cell, to the reply that it gets whatever its code has done to this process."""
        seq, shown = request.body.seq, self.rank in request.body.shown_ranks
        running = self.current = Running(request, shown)
        try:
            reply = await self._run(running)
        except BaseException as error:  # of ours: it must not cost the reply
            reply = wire.CellReply(self.rank, seq, "error", 0.0, self._outside(error))
        finally:
            self._end_turn(running)
            self.current = None
        if running.cell.message is None:  # else it belongs to the cell before it
            attempt(self.history.end, reply)
        request.reply(reply)

    def _end_turn(self, running: Running) -> None:
        """It makes no more launches: the referee is told so, once."""
        if not running.over:
            running.over = True
            self.given.forget()
            outcome = attempt(self._outcome, running)
            self.agreement.end(*(outcome or ("error", "")))

    def _outcome(self, running: Running) -> tuple[str, str]:
        """How the cell has ended, and whether XLA is still at work, for the referee.

        It may wait for a rank on which XLA has failed. After an interrupt it gets time to finish.
        """
        at_work, until = "", time.monotonic() + FINISH_S
        if running.status != "ok" or self.agreement.taken() != running.taken:
            while is_any_unfinished():
                at_work = STUCK if running.interrupts else AT_WORK
                if not running.interrupts or time.monotonic() > until:
                    break
                time.sleep(READY_POLL_S)
            else:
                at_work = ""
        if running.error is not None and running.error.ename in XLA_ERRORS:
            return FAILED_IN_XLA, at_work
        return "ok" if running.status == "ok" else "error", at_work

    async def _run(self, running: Running) -> wire.CellReply:
        cell = running.cell
        if running.shown:  # else it is not read
            attempt(self.output.log.reset)
        attempt(self._tidy)
        if cell.message is None:
            self.last_result, self.home = None, running.request
            attempt(self.history.begin, cell)
        for name in self.lost.keys() & self.shell.user_ns.keys():  # it has a value again
            del self.lost[name]
        self.given.forget()
        self.agreement.begin(cell.seq)
        running.taken = self.agreement.taken()
        self.control.ticking = running.shown
        try:
            await interrupts.wait_for(self._run_code(running))
        except BaseException as error:
            if isinstance(error, Stopped) or not running.interrupted:
                running.raised, running.error = error, self._outside(error)
            elif running.error is None:  # whatever IPython makes of it
                running.status = "interrupted"
        running.status = running.status or self._status(running)
        if self.is_child():  # forked by the cell, which ends with it
            log.write("\n".join(running.error.traceback if running.error else []))
            log.end_process(0 if running.status == "ok" else 1)
        self._end_turn(running)
        if running.is_profiled:
            attempt(_end_profile)
        self.asking.end()
        debugging.end()
        self.control.ticking = False
        attempt(self._tidy)
        attempt(self.output.show_log, True)
        attempt(self.output.show_pages)
        return wire.CellReply(
            rank=self.rank,
            seq=cell.seq,
            status=running.status,
            seconds=time.perf_counter() - running.started,
            error=running.error,
            names=attempt(self._new_names, running.request.ident),
        )

    def _new_names(self, notebook: bytes) -> list[str] | None:
        """The user's names, where they are not those that this notebook was told last."""
        names = dict(self.shell.user_ns)  # a thread of the user's may bind more meanwhile
        (told, before), now = self._told_names, frozenset(names)
        self._told_names = notebook, now
        # Each cell binds a name of IPython's, such as _i7: to look at all names takes long.
        if told == notebook and not any(is_users(n, names.get(n)) for n in before ^ now):
            return None
        return [name for name, value in names.items() if is_users(name, value)]

    # ------------------------------------------------------------------ running

    def _status(self, running: Running) -> str:
        """How a cell has ended whose code has come to an end."""
        if running.error is None:
            return "ok"
        is_stopped = running.interrupted and _is_of_a_stop(running.error)
        is_left = running.error.ename == debugging.QUIT  # by the user, in the debugger
        if type(running.raised) is Stopped or is_stopped or is_left:
            return "interrupted"
        return "refused" if type(running.raised) is Divergence else "error"

    async def _run_code(self, running: Running) -> None:
        """Run one cell, whichever kind it is."""
        if running.interrupted:  # before it began
            raise KeyboardInterrupt
        cell = running.cell
        try:
            if cell.profile:
                _begin_profile(cell, self.rank)
                running.is_profiled = True  # else it is the user's own, of an earlier cell
            if cell.message is not None:
                self.comms.deliver(running.request, cell.message)
        except BaseException as error:
            running.raised, running.error = error, self.plain(error)
            return
        if cell.message is None:
            await self._run_source(running)

    async def _run_source(self, running: Running) -> None:
        """IPython's run of one cell, as ipykernel's ``do_execute`` does it."""
        shell, source = self.shell, running.cell.source
        shell.execution_count = running.cell.execution_count
        running.task = asyncio.current_task()
        transformed, problem, result = source, None, None
        try:
            transformed = shell.transform_cell(source)
        except Exception:
            problem = sys.exc_info()
        try:
            result = await shell.run_cell_async(
                source,
                store_history=True,
                transformed_cell=transformed,
                preprocessing_exc_tuple=problem,
            )
            self.last_result = result.result
            before = result.error_before_exec
            error = result.error_in_exec if before is None else before
            if issubclass(type(error), BaseException):
                running.raised = error
                running.error = tracebacks.error_info(error, running.lines, self.cell_numbers)
                # For %debug, whatever the rendering of it has raised.
                last = {"last_exc": error, "last_value": error}
                vars(sys).update(last, last_traceback=error.__traceback__)
        finally:
            shell.events.trigger("post_execute")
            shell.events.trigger("post_run_cell", result)

    def plain(self, error: BaseException) -> wire.ErrorInfo:
        """An exception for the notebook, as Python writes it."""
        return tracebacks.error_info(error, None, self.cell_numbers)

    def _outside(self, error: BaseException) -> wire.ErrorInfo:
        """An error that went past IPython: a hook's, or IPython's own or ours, told as such."""
        is_deep = isinstance(error, RecursionError)  # Python's parser raises it of a nested cell
        if is_deep or tracebacks.line_of(error, self.cell_numbers) is not None:
            return self.plain(error)
        log.error(error)
        told = tracebacks.of_ours(error)
        lines = [
            f"InternalError: IPython or jaxcluster failed around the cell's code: {told}",
            f"%jaxcluster logs {self.rank} has the whole traceback: please report it. "
            "%jaxcluster restart gives the ranks new processes, with their variables.",
        ]
        return wire.ErrorInfo("InternalError", told, lines)

    def _render_error(self, exc_tuple: Any = None, *args: Any, **kwargs: Any) -> None:
        """IPython's ``showtraceback``, which fails of no exception."""
        running, error = self.current, exc_tuple[1] if exc_tuple else sys.exc_info()[1]
        explain_lost(error, self.lost, self.shell.user_ns)
        if running is None or error is None or exc_tuple or not tracebacks.is_odd(error):
            self._show_traceback(exc_tuple, *args, **kwargs)
        else:
            running.lines = tracebacks.plain_lines(error, self.cell_numbers)

    def _tidy(self) -> None:
        """What each Jupyter kernel has between cells: SIGINT's handler, and streams that work."""
        self.interrupts.keep_handler()
        for name, own in zip(("stdout", "stderr"), self._streams, strict=True):
            now = getattr(sys, name, None)
            if not hasattr(now, "write") or getattr(now, "closed", False):
                setattr(sys, name, own)

    def is_child(self) -> bool:
        """Whether this is a process that the cell has forked."""
        return os.getpid() != self._pid

    def in_a_cell(self, frame: FrameType | None) -> bool:
        """Whether a frame is a cell's, or was called by one's."""
        return any(one.f_code.co_filename in self.cell_numbers for one in outward(frame))


def _is_of_a_stop(error: wire.ErrorInfo) -> bool:
    """Whether a stop has raised it; in a callback of JAX's on CPU, XLA has told of that."""
    told = "CpuCallback error" in error.evalue and "KeyboardInterrupt" in error.evalue
    return told or error.ename in ("KeyboardInterrupt", "CancelledError")


# --------------------------------------------------------------------------- profiles


def _begin_profile(cell: wire.CellRequest, rank: int) -> None:
    """Start JAX's profiler, with a folder of this rank's own: JAX names files by the host.

    Raises:
      OSError: the folder can't be made.
      RuntimeError: this process is being profiled already.
    """
    import jax

    folder = os.path.join(cell.profile, f"rank-{rank}")
    os.makedirs(folder, exist_ok=True)
    options = jax.profiler.ProfileOptions()
    # JAX's own name is the second: of two profiles in one second the first would be lost.
    when = time.strftime("%Y_%m_%d_%H_%M_%S", time.localtime(cell.sent_ns / 1e9))
    options.session_id = f"cell-{cell.execution_count}-{when}"
    # Of each Python call there would be an event, and Python 2 to 3 times as slow: what is slow
    # in a step would be another thing.
    options.python_tracer_level = 0
    jax.profiler.start_trace(folder, create_perfetto_trace=True, profiler_options=options)


def _end_profile() -> None:
    """Stop it, and write its files."""
    import jax

    try:
        jax.profiler.stop_trace()
    except RuntimeError as error:
        if str(error) != "No profile started":  # then the cell has stopped it itself
            raise

"""Runs cells on a rank's main thread, when the referee gives them their turn."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import hashlib
import os
import sys
import threading
import time
from dataclasses import dataclass, field
from typing import Any

from jaxcluster import wire
from jaxcluster.agreement.client import Agreement, Divergence, Stopped
from jaxcluster.agreement.messages import AT_WORK, FAILED_IN_XLA, STUCK
from jaxcluster.errors import XLA_ERRORS
from jaxcluster.model.words import explain
from jaxcluster.rank import interrupts, log, magics, statements, tracebacks
from jaxcluster.rank.arrays import READY_POLL_S, is_any_unfinished
from jaxcluster.rank.comms import Comms
from jaxcluster.rank.control import ControlChannel, Request
from jaxcluster.rank.given import Given
from jaxcluster.rank.history import History
from jaxcluster.rank.interrupts import Interrupts
from jaxcluster.rank.names import is_users
from jaxcluster.rank.output import CellOutput, LogTail, RankStream, is_usable
from jaxcluster.rank.places import CELL_DIRECTORY, in_a_cell, place_of
from jaxcluster.rank.questions import QUIT, Asking
from jaxcluster.rank.turns import Turns

FINISH_S = 1.0  # in which XLA ends what was launched, or waits for another rank


@dataclass
class Running:
    """The cell that the main thread is in.

    Attributes:
      log: what C code prints meanwhile, if it is shown.
      interrupted: somebody has stopped it.
      interrupts: how often its code was interrupted.
      heard: it was, once, and goes on as it likes.
      unheard_since: since when an interrupt that could not be raised comes again; 0: none.
      taken: agreed launches of this process before it.
      over: it launches nothing any more.
      task: it runs its lines, which may await.
      lines: as IPython has rendered what its code has raised.
      status, error: how it has ended so far.
      profile: ends its profile, if there is one.
    """

    request: Request[wire.CellRequest]
    log: LogTail | None = None
    started: float = field(default_factory=time.perf_counter)
    interrupted: bool = False
    interrupts: int = 0
    heard: bool = False
    unheard_since: float = 0.0
    taken: int = 0
    over: bool = False
    task: asyncio.Task[Any] | None = None
    lines: list[str] | None = None
    status: str = "ok"
    error: wire.ErrorInfo | None = None
    profile: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)

    @property
    def cell(self) -> wire.CellRequest:
        return self.request.body

    def fail(self, raised: BaseException, error: wire.ErrorInfo) -> None:
        """Its code has raised something, or shown it as ``%run`` does."""
        self.error = error
        # In a callback of JAX's on CPU, XLA has reported a stop.
        of_xla = "CpuCallback error" in error.evalue and "KeyboardInterrupt" in error.evalue
        is_of_a_stop = of_xla or error.ename in ("KeyboardInterrupt", "CancelledError")
        is_left = error.ename == QUIT  # by the user, in the debugger
        if isinstance(raised, Stopped) or is_left or (self.interrupted and is_of_a_stop):
            self.status = "interrupted"
        else:
            self.status = "refused" if isinstance(raised, Divergence) else "error"


class CellRunner:
    """Owns the shell of one rank.

    Attributes:
      current: the running cell, read by the control thread.
      last_result: the value of the last cell's last expression.
      turns: says when cells, and requests between them, may begin.
      given: hashes what cells give to launches.
      interrupts: stops cells.
      output: where the output of cells goes.
      history: its cells and their output, for those who have not sent them.
      lost: the names that were lost, and why.
      comms: those that cells have opened, and what an ``ipywidgets.Output`` takes.
      asking: what its cells ask the user, and whether a person holds the rank.
      home: the cell that owns new comms: the last one, or the one whose widget has a message now.
    """

    def __init__(self, rank: int, control: ControlChannel, log_path: str, history: History) -> None:
        self.rank = rank
        self.control = control
        self.history = history
        self._log_path = log_path
        self._pid = os.getpid()
        self.main_thread_id = threading.main_thread().ident or 0
        self.context = contextvars.copy_context()
        self.lost: dict[str, str] = {}
        self._told_names: tuple[bytes, frozenset[str]] = b"", frozenset()
        self.current: Running | None = None
        self.home: Request[wire.CellRequest] | None = None
        self.last_result: Any = None
        self.shell: Any = None
        self.given = Given()
        self.agreement = Agreement(rank, place_of, self.given.take, explain)
        self.turns = Turns(control, self.agreement, self._interrupt_closed)
        self.connect = self.turns.connect
        self.on_cell = self.turns.take(self._begin, self._skip)
        self.asking = Asking(self)
        self.interrupts = Interrupts(self)
        self.output = CellOutput(self)
        self.comms = Comms(self)

    def attach(self, shell: Any) -> None:
        """Take over a running kernel's shell. On the main thread, inside its event loop."""
        self.shell = shell
        self.output.attach(shell)
        shell.compile.get_code_name = self._code_name
        statements.install(shell)
        magics.install(shell, lambda: self.current.cell.source if self.current else "")
        self._inner = {"stdout": sys.stdout, "stderr": sys.stderr}
        sys.stdout = sys.stderr = None
        self._tidy()
        tracebacks.install(shell, self.lost)
        self.control.on_tick = self.output.show_log
        # Looked up at each call: the main thread is in this loop from now on.
        self.control.call_main = asyncio.get_running_loop().call_soon_threadsafe  # type: ignore[assignment]

    def _code_name(self, raw_code: str, transformed_code: str, number: int) -> str:
        code = raw_code.encode(errors="backslashreplace")
        if self.current is not None:  # what a magic runs as a cell has the next number
            number = self.current.cell.execution_count
        return f"{CELL_DIRECTORY}/{number}-{hashlib.blake2b(code, digest_size=6).hexdigest()}.py"

    # ------------------------------------------------------------------ turns

    def _begin(self, request: Request[wire.CellRequest]) -> None:
        """It has its turn. In the context of all cells: what one sets there outlasts its task."""
        code = self._run_in_turn(request)
        task = asyncio.get_running_loop().create_task(code, context=self.context)
        task.add_done_callback(lambda task: task.cancelled() or task.exception())

    def _skip(self, request: Request[wire.CellRequest], why: wire.Skipped) -> None:
        """It gets no turn."""
        reply = wire.CellReply(self.rank, request.body.seq, "skipped", 0.0, skipped=why)
        self.history.end(reply)
        request.reply(reply)

    def _interrupt_closed(self, seq: int, is_stop: bool) -> None:
        """A cell was closed some time ago. Any thread."""
        is_heard = self.agreement.refusals == 1  # what its code makes of that goes on
        if not is_heard and (is_stop or not self.asking.kind):
            self.interrupts.interrupt(seq)

    async def _run_in_turn(self, request: Request[wire.CellRequest]) -> None:
        """Run one cell, and return its reply, even if its code has harmed this process."""
        running, names = Running(request), None
        self.current = running
        try:
            await self._run(running)
            names = self._new_names(request.ident)
        except BaseException as error:  # of ours: it must not cost the reply, nor the cell's error
            told = self._outside(error)
            if running.error is None:
                running.fail(error, told)
        self._end_turn(running)
        self.control.ticking, self.current = False, None
        seconds = time.perf_counter() - running.started
        reply = wire.CellReply(
            self.rank, running.cell.seq, running.status, seconds, running.error, names
        )
        if running.cell.message is None:  # else it belongs to the cell before it
            self.history.end(reply)
        request.reply(reply)

    def _end_turn(self, running: Running) -> None:
        """Tell the referee once that the cell makes no more launches."""
        if running.over:
            return
        running.over = True
        outcome, at_work = "error", ""
        try:
            outcome, at_work = self._outcome(running)
        except BaseException as error:
            log.error(error)
        self.agreement.end(outcome, at_work)

    def _outcome(self, running: Running) -> tuple[str, str]:
        """How the cell has ended, and whether XLA is still at work, for the referee.

        It may wait for a rank on which XLA has failed. After an interrupt it gets time to finish.
        """
        may_be_busy = running.status != "ok" or self.agreement.taken() != running.taken
        until = time.monotonic() + (FINISH_S if running.interrupts else 0.0)
        while (is_busy := may_be_busy and is_any_unfinished()) and time.monotonic() < until:
            time.sleep(READY_POLL_S)
        at_work = "" if not is_busy else STUCK if running.interrupts else AT_WORK
        if running.error is not None and running.error.ename in XLA_ERRORS:
            return FAILED_IN_XLA, at_work
        return "ok" if running.status == "ok" else "error", at_work

    async def _run(self, running: Running) -> None:
        cell = running.cell
        if self.rank in cell.shown_ranks:
            running.log = LogTail(self._log_path)
        self._tidy()
        if cell.message is None:
            self.last_result, self.home = None, running.request
            self.history.begin(cell)
        for name in self.lost.keys() & self.shell.user_ns.keys():  # it has a value again
            del self.lost[name]
        self.given.forget()
        self.agreement.begin(cell.seq)
        running.taken = self.agreement.taken()
        self.control.ticking = running.log is not None
        try:
            await self._run_code(running)
        except BaseException as error:
            if not running.interrupted and not isinstance(error, Stopped):
                running.fail(error, self._outside(error))
            elif running.error is None:  # whatever IPython makes of it
                running.status = "interrupted"
        if self.is_child():  # forked by the cell, which ends with it
            log.write("\n".join(running.error.traceback if running.error else []))
            log.end_process(0 if running.status == "ok" else 1)
        self._end_turn(running)
        self.asking.end()
        self.control.ticking = False
        self._tidy()
        self.output.show_log(last=True)
        self.output.show_pages()
        running.profile.close()

    def _new_names(self, notebook: bytes) -> list[str] | None:
        """The user's names, if they differ from the last ones that this notebook has received."""
        names = dict(self.shell.user_ns)  # a thread of the user's may bind more meanwhile
        (told, before), now = self._told_names, frozenset(names)
        self._told_names = notebook, now
        # Each cell binds a name of IPython's, such as _i7: to look at all names takes long.
        if told == notebook and not any(is_users(n, names.get(n)) for n in before ^ now):
            return None
        return [name for name, value in names.items() if is_users(name, value)]

    # ------------------------------------------------------------------ running

    async def _run_code(self, running: Running) -> None:
        """Run one cell, whichever kind it is."""
        if running.interrupted:  # before it began
            raise KeyboardInterrupt
        cell = running.cell
        try:
            if cell.profile:
                running.profile.enter_context(_profile(cell, self.rank))
            if cell.message is not None:
                self.comms.deliver(running.request, cell.message)
        except BaseException as error:
            running.fail(error, tracebacks.error_info(error))
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
                running.fail(error, tracebacks.error_info(error, running.lines))
                # For %debug, whatever the rendering of it has raised.
                last = {"last_exc": error, "last_value": error}
                vars(sys).update(last, last_traceback=error.__traceback__)
        finally:
            shell.events.trigger("post_execute")
            shell.events.trigger("post_run_cell", result)

    # ------------------------------------------------------------------ errors

    def _outside(self, error: BaseException) -> wire.ErrorInfo:
        """An error that went past IPython: a hook's, IPython's own, or ours, named as such."""
        is_deep = isinstance(error, RecursionError)  # Python's parser raises it of a nested cell
        if is_deep or tracebacks.line_of(error) is not None:
            return tracebacks.error_info(error)
        log.error(error)
        told = f"{wire.type_name(type(error))}: {wire.shorten(tracebacks.message_of(error), 1000)}"
        lines = [
            f"InternalError: IPython or jaxcluster failed around the cell's code: {told}",
            f"%jaxcluster logs {self.rank} has the whole traceback: please report it. "
            "%jaxcluster restart gives the ranks new processes, with their variables.",
        ]
        return wire.ErrorInfo("InternalError", told, lines)

    def take_traceback(self, error: BaseException | None, content: dict[str, Any]) -> None:
        """IPython has rendered an error: the cell's own, or one that the user's code shows."""
        running, lines = self.current, content["traceback"]
        is_cell = running is not None and running.cell.message is None
        if running is not None and is_cell and not in_a_cell(sys._getframe(1)):
            running.lines = lines
        elif not self.comms.divert("error", content) and running is not None:
            if running.error is None and error is not None:
                running.fail(error, tracebacks.error_info(error))
            if is_cell:
                self.output.print("stderr", "\n".join([*lines, ""]))

    # ------------------------------------------------------------------ the process

    def _tidy(self) -> None:
        """Restore what each kernel has between cells: SIGINT's handler, and working streams."""
        self.interrupts.keep_handler()
        for name, inner in self._inner.items():
            if not is_usable(getattr(sys, name, None)):
                setattr(sys, name, RankStream(name, inner, self.output.print))

    def is_child(self) -> bool:
        """Whether this is a process that the cell has forked."""
        return os.getpid() != self._pid


interrupts.BEGINS.add(CellRunner._run_code.__code__)


def _profile(cell: wire.CellRequest, rank: int) -> contextlib.AbstractContextManager[Any]:
    """JAX's profiler, with a folder of this rank's own: JAX names files by the host.

    Raises:
      OSError: the folder can't be made.
    """
    import jax

    folder = os.path.join(cell.profile, f"rank-{rank}")
    os.makedirs(folder, exist_ok=True)
    options = jax.profiler.ProfileOptions()
    # JAX's own name is the second: of two profiles in one second the first would be lost.
    when = time.strftime("%Y_%m_%d_%H_%M_%S", time.localtime(cell.sent_ns / 1e9))
    options.session_id = f"cell-{cell.execution_count}-{when}"
    # Each Python call would be an event, which makes Python 2 to 3 times as slow. Other parts of a
    # step would look slow then.
    options.python_tracer_level = 0
    return jax.profiler.trace(folder, create_perfetto_trace=True, profiler_options=options)

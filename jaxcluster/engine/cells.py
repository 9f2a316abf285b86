"""Runs a notebook's cells on a rank's main thread, one after another."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import hashlib
import os
import sys
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from types import FrameType
from typing import Any

from IPython.core.error import StdinNotImplementedError

from jaxcluster import wire
from jaxcluster.engine import (
    changes,
    debugging,
    failures,
    log,
    magicbodies,
    mainscript,
    object_graph,
    profiling,
    tracebacks,
    usercode,
)
from jaxcluster.engine.background import Background, is_own
from jaxcluster.engine.capture import CELL_DIRECTORY, LogTail, RankStream, capture_displays
from jaxcluster.engine.cell_output import CellOutput
from jaxcluster.engine.cell_queue import CellQueue
from jaxcluster.engine.change_notices import ChangeNotices
from jaxcluster.engine.control import DEFERRED, ControlChannel, Handler, Request
from jaxcluster.engine.gate import Gate
from jaxcluster.engine.history import History
from jaxcluster.engine.interrupts import Interrupts
from jaxcluster.engine.journal import Journal, outward
from jaxcluster.engine.leftovers import Leftovers
from jaxcluster.engine.names import Names
from jaxcluster.engine.paused import Paused
from jaxcluster.engine.private import coordination, loaded
from jaxcluster.engine.questions import Asking
from jaxcluster.engine.repair import (
    keep_streams,
    repair,
    repair_builtins,
    repair_imports,
    repair_modules,
)
from jaxcluster.engine.running import Home, Running
from jaxcluster.engine.state.settings import Settings
from jaxcluster.engine.thread_errors import ThreadErrors
from jaxcluster.engine.undo import Undo
from jaxcluster.host import kernel_private


class CellRunner:
    """Owns the shell of one rank.

    Attributes:
      current: the running cell, read by the control thread.
      ended: the seq of the last cell that ended.
      last_result: the value of the last cell's last expression.
      queue: the cells that wait for their turn.
      gate: keeps a queued cell from beginning before those before it have ended alike.
      interrupts: stops cells.
      output: where the output of cells goes.
      undo: takes the last cell back.
      paused: whether a person holds the rank, in a debugger or by a question.
      history: its cells and their output, for those who have not sent them.
      diverts: whether the output of this thread is not the cell's, but an ``ipywidgets.Output``'s.
      divert: takes such an output, or says False.
      deliver: does what a page has said on a comm.
      asking: what its cells ask the user.
      last_error: what the last cell that failed has raised, for a post-mortem.
      leftovers: handlers of signals that cells have left behind.
    """

    def __init__(
        self,
        rank: int,
        control: ControlChannel,
        journal: Journal,
        log_path: str,
        history: History | None = None,
    ) -> None:
        self.rank = rank
        self.control = control
        self.journal = journal
        self.current: Running | None = None
        self.last_result: Any = None
        self.ended = 0
        self.undo = Undo()
        self.shell: Any = None
        self.names = Names()
        self.others = ChangeNotices(control, self.names, lambda: self.current is not None)
        self.history = history or History(None)
        self.background = Background()
        self.thread_errors = ThreadErrors(journal.cell_numbers, self._last_seq)
        self.settings = Settings()
        self.paused = Paused(self._tell_paused)
        self.asking = Asking(self)
        self.last_error: BaseException | None = None
        self.cell_numbers = journal.cell_numbers
        self.main_thread_id = threading.main_thread().ident or 0
        self._pid = os.getpid()
        self.interrupts = Interrupts(self)
        self.leftovers = Leftovers()
        self.settings.set_handler = self.leftovers.put_between
        self.undo.handlers = self.leftovers.handlers
        self.queue = CellQueue(rank, control, self._begin)
        self.gate = Gate(rank, lambda: coordination.store("jaxcluster-ends"))
        self.output = CellOutput(self, LogTail(log_path))
        self._lock: asyncio.Lock | None = None
        self._home: Home | None = None  # of the last cell, or of the comm that has a message now
        self.diverts: Callable[[], bool] = lambda: False
        self.divert: Callable[[str, dict[str, Any]], bool] = lambda kind, content: False
        self.deliver: Callable[[Request[wire.CellRequest], wire.CommMessage], None] = (
            lambda request, message: None
        )
        self.on_idle_sigint: Callable[[FrameType | None], None] = lambda frame: None
        self.on_idle_unraisable: Callable[[], None] = lambda: None

    def attach(self, shell: Any) -> None:
        """Take over a running kernel's shell. On the main thread, inside its event loop."""
        self.shell = shell
        self.undo.attach(shell, self.settings)
        self._lock = asyncio.Lock()
        loop = asyncio.get_running_loop()
        self.interrupts.attach(loop)
        self.others.attach(shell.user_ns, loop.call_later)
        out = self.output
        capture_displays(shell, out.emit, out.take_traceback, out.is_heard)
        fill_exec_result = shell.displayhook.fill_exec_result

        def remember(result: Any) -> None:
            self.last_result = result
            fill_exec_result(result)

        shell.displayhook.fill_exec_result = remember
        shell.compile.get_code_name = self._code_name
        magicbodies.install(shell, self.cell_numbers)
        self._should_run_async, shell.should_run_async = shell.should_run_async, self._may_await
        self._show_traceback, shell.showtraceback = shell.showtraceback, self._render_error
        self._store_exception = kernel_private.replace_exception_storage(shell, self._store_error)
        shell.events.callbacks["post_execute"].insert(0, self._leave)
        sys.stdout = RankStream("stdout", 1, sys.stdout, out.print)
        sys.stderr = RankStream("stderr", 2, sys.stderr, out.print)
        keep_streams()
        repair_builtins()
        repair(self.interrupts.handler)
        debugging.install(self)
        tracebacks.install(shell)
        self.settings.begin(shell, self.cell_numbers)
        self.settings.context.run(is_own.set, False)
        self.control.on_tick = out.tick
        self.background.attach(loop)
        self.thread_errors.listen()
        # Looked up at each call: the main thread is in this loop from now on.
        self.control.call_main = loop.call_soon_threadsafe  # type: ignore[assignment]

    def _last_seq(self) -> int:
        """The seq of the cell that runs, or has ended last."""
        running = self.current
        return self.ended if running is None else running.cell.seq

    def _code_name(self, raw_code: str, transformed_code: str, number: int) -> str:
        digest = hashlib.blake2b(
            raw_code.encode(errors="backslashreplace"), digest_size=6
        ).hexdigest()
        if self.current is not None:  # what a magic runs as a cell has the next number
            number = self.current.cell.execution_count
        name = f"{CELL_DIRECTORY}/{number}-{digest}.py"
        self.cell_numbers[name] = number
        return name

    # ------------------------------------------------------------------ running

    def _begin(self, request: Request[wire.CellRequest], cell: wire.CellRequest) -> None:
        task = asyncio.ensure_future(self._run_in_turn(request, cell))
        task.add_done_callback(lambda t: self._answer_failed(t, request, cell))

    def _answer_failed(
        self, task: asyncio.Task[None], request: Request[wire.CellRequest], cell: wire.CellRequest
    ) -> None:
        """Something of ours has failed around the cell: whoever waits for its reply gets one.

        Its turn is over, so the next one may have begun.
        """
        error = asyncio.CancelledError() if task.cancelled() else task.exception()
        if error is None:
            return
        with contextlib.suppress(Exception):  # it is answered, whatever a cell has broken
            repair_modules()
        if self.current is not None and self.current.cell is cell:
            self.current = None
        if self.ended < cell.seq:
            self.ended = cell.seq
            self.gate.ended(cell, request.ident, self.end_of(cell, "error", stopped_at=""))
        told = f"{type(error).__name__}: {error}"  # plainly: what tells errors may have failed
        info = wire.ErrorInfo("InternalError", told, [f"InternalError: {told}"])
        request.reply(wire.CellReply(self.rank, cell.seq, "error", 0.0, info))

    def in_turn(self, handler: Handler) -> Handler:
        """A ``main`` handler that keeps its turn among cells: whoever asks later, is later."""

        async def answer(request: Request[wire.CellRequest]) -> None:
            async with _Turn(self._lock):
                ControlChannel.answer(handler, request)

        def begin(request: Request[wire.CellRequest]) -> Any:
            task = asyncio.ensure_future(answer(request))
            task.add_done_callback(lambda t: t.exception())
            return DEFERRED

        return begin

    async def _run_in_turn(
        self, request: Request[wire.CellRequest], cell: wire.CellRequest
    ) -> None:
        async with _Turn(self._lock):
            await self._wait_at_gate(request, cell)
            shown = self.rank in cell.shown_ranks
            running = Running(request, cell, time.perf_counter(), shown)
            self.current = running  # before it leaves those: an interrupt finds it here or there
            if self.queue.withdraw(cell.seq) is None:
                self.current = None  # interrupted before its turn, or too late, and answered
                self.ended = max(self.ended, cell.seq)
                self.gate.ended(cell, request.ident, self.end_of(cell, "interrupted"))
                failures.attempt([], self.history.skip, cell)
                return
            try:
                reply = await self._run(running)
            except BaseException as error:  # of ours: it must not cost the reply
                failures.attempt([], self.leftovers.take)
                repair_modules()
                self.current, self.ended = None, cell.seq
                self.gate.ended(cell, request.ident, self.end_of(cell, "error", stopped_at=""))
                told = self._outside(error)
                reply = wire.CellReply(
                    self.rank, cell.seq, "error", 0.0, told, between=running.between, stopped_at=""
                )
            failures.attempt([], self.history.end, reply)
            self.others.answer(request.ident, functools.partial(request.reply, reply))
            failures.attempt([], self.others.cell_ended, request.ident, cell.seq)

    async def _wait_at_gate(
        self, request: Request[wire.CellRequest], cell: wire.CellRequest
    ) -> None:
        """It raises nothing: a cell that can't be compared is compared at its end alone."""
        try:
            await self.gate.wait(cell, request.ident, lambda: self.queue.waits(cell.seq))
        except Exception as error:
            log.error(error)

    async def _run(self, running: Running) -> wire.CellReply:
        """One cell, to the reply that it gets whatever its code has done to this process."""
        cell = running.cell
        attempt: Any = functools.partial(failures.attempt, running.faults)
        if cell.message is None:
            self.last_result = None
        self._home = Home(running.request.ident, cell.seq, cell.execution_count, running.shown)
        if running.shown:  # else it is not read
            attempt(self.output.log.reset)
        attempt(repair_builtins)
        attempt(repair, self.interrupts.handler)
        if cell.message is None:  # else it belongs to the cell before it
            attempt(self.history.begin, cell)
        self.journal.enter(cell.seq, tuple(cell.ranks))
        self.journal.interrupted = False
        if not cell.post_mortem:  # else the cell that failed can be undone after it
            attempt(self.undo.begin, cell.seq, cell.source)
        attempt(loaded.unload)
        self.control.ticking = running.shown
        running.between = self.leftovers.take_told()
        if cell.profile:
            attempt(self._begin_profile, running)
        attempt(self.leftovers.give_back)  # from here to their taking they may raise anywhere
        await self._execute(running)
        running.has_left = running.over = True
        attempt(self.leftovers.take)
        if running.error is not None:
            attempt(repair_modules)
        is_child = self.is_child()
        if running.is_profiled and not is_child:
            attempt(profiling.end)
        self.asking.end()
        self.paused.end_all()
        debugging.end()
        if is_child:
            self._end_child(running)
        self.control.ticking = False
        attempt(repair, self.interrupts.handler)  # ``leftovers`` has seen to builtins
        attempt(self.output.show_rest)
        attempt(self.output.show_pages)
        if not cell.post_mortem:
            attempt(self.undo.end)
        attempt(self.settings.note)
        deleted = attempt(self._deleted, running)
        self.current = None
        self.ended = cell.seq
        seconds = time.perf_counter() - running.started
        attempt(self.journal.leave)
        end = self.end_of(cell, running.status, running.error, running.stopped_at)
        self.gate.ended(cell, running.request.ident, end)
        copies = attempt(self.journal.host_values.end)
        names = attempt(self._name_changes, running)
        return wire.CellReply(
            rank=self.rank,
            seq=cell.seq,
            status=running.status,
            seconds=seconds,
            error=running.error,
            launches=end.launches,
            names=names,
            fault="; ".join(running.faults),
            own=end.own,
            foreign=end.foreign,
            unchecked=end.unchecked,
            background=end.background,
            copies=copies or [],
            between=running.between,
            given_up=sorted(self.journal.given_up),
            deleted=deleted or [],
            stopped_at=running.stopped_at,
            thread_error=self.thread_errors.take_untold(),
        )

    def _deleted(self, running: Running) -> list[str]:
        """What a stop has left without a value: a launch took it, and its results have no names."""
        if not running.is_stopped or running.cell.script is not None:
            return []
        namespace = self.shell.user_ns
        reached = changes.watch(namespace, running.cell.source).mentioned
        return object_graph.leading_to_deleted(namespace, reached, {})

    def _name_changes(self, running: Running) -> wire.NameChanges | None:
        namespace = self.shell.user_ns
        running.course = self.undo.course() if not running.cell.post_mortem else None
        self.names.values.note(running.course, namespace)
        return self.names.changes(running.request.ident, namespace)

    def end_of(
        self,
        cell: wire.CellRequest,
        status: str,
        error: wire.ErrorInfo | None = None,
        stopped_at: str | None = None,
    ) -> wire.cell_ends.CellEnd:
        """What it has launched by now, were this its end."""
        journal = self.journal
        own, launches = journal.own(cell.seq), journal.launches()
        lives = self.background.is_any_left()
        refused = wire.cell_ends.is_refused(error, journal.given_up)
        return wire.cell_ends.CellEnd(
            status, own, launches, journal.foreign, journal.unchecked, lives, refused, stopped_at
        )

    async def _execute(self, running: Running) -> None:
        """Run the cell's code; how that ended is in ``running``. It raises nothing."""
        try:
            code = usercode.call(self._run_code, running)
            if code is not None:
                # In the context of all cells: what it sets there outlasts its task.
                running.task = asyncio.get_running_loop().create_task(
                    usercode.wait_for(code), context=self.settings.context
                )
                self.journal.task = running.task
                if running.interrupted:
                    running.task.cancel()
                await running.task
                self.journal.task = None
                if running.escaped is not None:
                    raise running.escaped
        except BaseException as error:
            repair_modules()
            failed = _error_of(running.result)
            if not running.interrupted:
                running.error = self._outside(error)
                self.note_place(running, error)
            elif failed is not None:
                running.error = running.error or self._info(failed, ask=False)
            else:  # whatever IPython makes of it
                running.status = "interrupted"
        if running.error is None:
            running.status = running.status or "ok"
        elif running.interrupted and _is_of_a_stop(running.error):
            running.status = "interrupted"
        elif running.error.ename == debugging.QUIT:
            running.status = "interrupted"  # by the user, in the debugger
        else:
            running.status = "error"
            # Where it was stopped before, and has caught that, is the outermost place.
            if running.stopped_at != "":
                places = (running.raised_at, running.stopped_at)
                running.stopped_at = "/".join(filter(None, places))

    def _begin_profile(self, running: Running) -> None:
        try:
            profiling.begin(running.cell, self.rank)
            running.is_profiled = True
        except (OSError, RuntimeError) as error:
            lines = failures.plain_lines(error, self.cell_numbers)
            running.error = failures.error_info(error, lines, self.cell_numbers)

    def _run_code(self, running: Running) -> Coroutine[Any, Any, None] | None:
        """IPython's run of one cell, as ipykernel's ``do_execute`` does it.

        Returns:
          What is to be awaited, where the cell awaits at its top level; else it has run.
        """
        if running.interrupted:  # before it began
            raise KeyboardInterrupt
        if running.error is not None:  # it can't be profiled
            return None
        shell, cell = self.shell, running.cell
        if cell.message is not None:
            self.settings.context.run(self._deliver, running, cell.message)
            return None
        if cell.post_mortem:
            try:
                self.settings.context.run(debugging.post_mortem, self.last_error)
            except StdinNotImplementedError as error:  # nobody can be asked
                lines = failures.plain_lines(error, self.cell_numbers)
                running.error = failures.error_info(error, lines, self.cell_numbers)
            return None
        if cell.script is not None:
            self._run_script(running, cell.script)
            return None
        shell.execution_count = cell.execution_count
        kernel_private.set_last_traceback(shell, None)
        source = cell.source
        if _has_await(source):  # else run_cell alone transforms it
            transformed, problem = source, None
            try:
                transformed = shell.transform_cell(source)
            except Exception:
                problem = sys.exc_info()
            if shell.should_run_async(
                source, transformed_cell=transformed, preprocessing_exc_tuple=problem
            ):
                return self._run_async_code(running, transformed, problem)
        result = self.settings.context.run(shell.run_cell, source, store_history=True)
        self._take_result(running, result)
        return None

    def _run_script(self, running: Running, script: wire.Script) -> None:
        """A script in place of a cell: no IPython stands between Python and its code."""
        try:
            self.settings.context.run(
                mainscript.run,
                script,
                running.cell.source,
                self.shell.user_ns,
                self.cell_numbers,
            )
        except BaseException as error:
            if isinstance(error, SystemExit):
                lines = [f"It ended with exit status {error.code}."]
            else:
                lines = failures.script_lines(error, self.cell_numbers)
            running.error = failures.error_info(error, lines, self.cell_numbers)

    def _deliver(self, running: Running, message: wire.CommMessage) -> None:
        """What a page has said on a comm; an error in that is the cell's."""
        try:
            self.deliver(running.request, message)
        except Exception as error:
            self.note_place(running, error)
            lines = failures.plain_lines(error, self.cell_numbers)
            running.error = failures.error_info(error, lines, self.cell_numbers)

    def home(self) -> Home | None:
        """The cell to which a comm belongs that is opened now; of a thread's, the last one."""
        return self._home

    @contextlib.contextmanager
    def at_home(self, home: Home) -> Iterator[None]:
        """Inside it what is opened belongs to this cell, whose widget has a message."""
        before, self._home = self._home, home
        try:
            yield
        finally:
            self._home = before

    def _may_await(self, raw_cell: str, *, transformed_cell: Any = None, **more: Any) -> bool:
        """IPython's ``should_run_async``, which compiles the whole cell once more to know it."""
        if isinstance(transformed_cell, str) and not _has_await(transformed_cell):
            return False
        return bool(self._should_run_async(raw_cell, transformed_cell=transformed_cell, **more))

    async def _run_async_code(self, running: Running, transformed: str, problem: Any) -> None:
        """It raises nothing: SystemExit or KeyboardInterrupt from a task would end the loop."""
        try:
            result = await self.shell.run_cell_async(
                running.cell.source,
                store_history=True,
                transformed_cell=transformed,
                preprocessing_exc_tuple=problem,
            )
            self._take_result(running, result)
            self.shell.events.trigger("post_execute")
            self.shell.events.trigger("post_run_cell", result)
        except BaseException as error:
            running.escaped = error

    def _take_result(self, running: Running, result: Any) -> None:
        running.result = result
        if (error := _error_of(result)) is not None:
            if wire.type_name(type(error)) != debugging.QUIT:
                self.last_error = error
            running.error = self._info(error, ask=not running.is_mute)
            self.note_place(running, error)

    def note_place(self, running: Running, error: BaseException) -> None:
        """Where what has ended a cell was raised."""
        running.raised_at = self.journal.stands_at(failures.places_of(error))

    def _info(self, error: BaseException, *, ask: bool = True) -> wire.ErrorInfo:
        lines = kernel_private.last_traceback(self.shell)
        return failures.error_info(error, lines, self.cell_numbers, ask=ask)

    def _outside(self, error: BaseException) -> wire.ErrorInfo:
        """An error that went past IPython: a hook's, or IPython's own or ours, told as such."""
        if failures.line_of(error, self.cell_numbers) is not None:
            lines = failures.plain_lines(error, self.cell_numbers)
            return failures.error_info(error, lines, self.cell_numbers)
        log.error(error)
        name, told = "InternalError", failures.of_ours(error)
        lines = [
            f"\x1b[0;31m{name}\x1b[0m: IPython or jaxcluster failed around the cell's code: {told}",
            f"The cell may have run in part. %jaxcluster logs {self.rank} has the whole traceback: "
            "please report it, unless the cell has changed IPython itself.",
            "%jaxcluster restart gives the ranks new processes, with their variables.",
        ]
        return wire.ErrorInfo(name, told, lines)

    def _render_error(self, *args: Any, **kwargs: Any) -> None:
        """IPython's ``showtraceback``, which is not broken off, and fails of no exception."""
        repair_builtins()
        repair_imports()
        running = self.current
        error = sys.exc_info()[1]
        if running is None or error is None or args or kwargs.get("exc_tuple"):
            self._show_traceback(*args, **kwargs)
            return
        running.has_left, running.left_at = True, time.monotonic()
        try:
            if failures.is_odd(error):
                lines = failures.plain_lines(error, self.cell_numbers)
                kernel_private.set_last_traceback(self.shell, lines)
            else:
                self._show_traceback(**kwargs)
        except KeyboardInterrupt:  # its message does not end
            running.is_mute = True
            lines = failures.plain_lines(error, self.cell_numbers, ask=False)
            kernel_private.set_last_traceback(self.shell, lines)
        finally:
            running.has_left = False

    def _leave(self) -> None:
        """A cell's own code is over; one that a cell calls, as %run does, is not the cell's."""
        running = self.current
        if running is not None and not self.in_a_cell(sys._getframe(1)):
            running.has_left, running.left_at = True, time.monotonic()

    def _store_error(self, *args: Any, **kwargs: Any) -> Any:
        """IPython's record of an exception for its history: not worth a cell's reply."""
        running = self.current
        if running is not None and running.is_mute:
            return {}
        try:
            return self._store_exception(*args, **kwargs) if self._store_exception else {}
        except Exception:  # IPython's own, and ipykernel's above it
            return {}

    def is_child(self) -> bool:
        """Whether this is a process that the cell has forked."""
        return os.getpid() != self._pid

    def _end_child(self, running: Running) -> None:
        """End a process that the cell has forked and that has come to the cell's end."""
        if running.error is not None:
            log.write("\n".join(running.error.traceback))
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(Exception):  # a stream may be the user's
                stream.flush()
        os._exit(0 if running.status == "ok" else 1)

    def in_a_cell(self, frame: FrameType | None) -> bool:
        return any(one.f_code.co_filename in self.cell_numbers for one in outward(frame))

    def _tell_paused(self, kind: str) -> None:
        """The notebook whose cell this is stops its clocks, and says who waits for whom."""
        if (running := self.current) is not None and not self.is_child():
            running.request.send("paused", wire.Paused(kind))


class _Turn:
    """Holds a lock of the event loop, however often whoever waits for it is cancelled.

    A cell that cancels all tasks of the loop does not mean the cells after it.
    """

    def __init__(self, lock: asyncio.Lock | None) -> None:
        assert lock is not None
        self.lock = lock

    async def __aenter__(self) -> None:
        while True:
            try:
                await self.lock.acquire()
                return
            except asyncio.CancelledError:
                continue

    async def __aexit__(self, *exc: object) -> None:
        self.lock.release()


def _has_await(source: str) -> bool:
    """Whether a source may await at its top level: only by one of these words."""
    return "await" in source or "async" in source


def _is_of_a_stop(error: wire.ErrorInfo) -> bool:
    """Whether a stop has raised it; in a callback of JAX's on CPU, XLA has told of that."""
    told = "CpuCallback error" in error.evalue and "KeyboardInterrupt" in error.evalue
    return told or error.ename in ("KeyboardInterrupt", "CancelledError")


def _error_of(result: Any) -> BaseException | None:
    """What a cell has raised, by IPython's result; None where there is no result."""
    if result is None:
        return None
    error = result.error_before_exec
    if error is None:
        error = result.error_in_exec
    return error if issubclass(type(error), BaseException) else None

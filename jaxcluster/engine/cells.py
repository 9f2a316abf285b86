"""Runs a notebook's cells on a rank's main thread, one after another."""

from __future__ import annotations

import asyncio
import functools
import hashlib
import queue
import signal
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from types import FrameType
from typing import Any

from jaxcluster import wire
from jaxcluster.engine.arrays import describe, spans_processes
from jaxcluster.engine.background import Background
from jaxcluster.engine.beacon import DEFERRED, Beacon, Handler, Request
from jaxcluster.engine.capture import LogTail, RankStream, capture_displays
from jaxcluster.engine.journal import Journal
from jaxcluster.engine.names import Names
from jaxcluster.engine.undo import Undo

RETRY_S = 0.002  # before a signal that came at a bad moment is sent again
# Equal on all ranks: a cell's file name is part of its program's fingerprint in JAX.
CELL_DIRECTORY = "/tmp/ipykernel_jaxcluster"

HOLD_S = 2.0  # that a cell waits for the one before it, which another notebook has sent
HOLD_NEW_S = 0.1  # on a rank that has run no cell: it may have taken the place of one that had


@dataclass
class Running:
    """The cell that the main thread is in."""

    request: Request
    cell: wire.CellRequest
    started: float
    shown: bool
    interrupted: bool = False
    interruptible: bool = False
    has_left: bool = False  # its own code is over: IPython renders its error, or we tidy up
    task: asyncio.Future[Any] | None = None


class CellRunner:
    """Owns the shell of one rank.

    Attributes:
      current: the running cell, read by the beacon's thread.
      ended: the seq of the last cell that ended.
      last_result: the value of the last cell's last expression.
      undo: takes the last cell back.
    """

    def __init__(self, rank: int, beacon: Beacon, journal: Journal, log_path: str) -> None:
        self.rank = rank
        self.beacon = beacon
        self.journal = journal
        self.current: Running | None = None
        self.last_result: Any = None
        self.ended = 0
        self.undo = Undo()
        self.shell: Any = None
        self.names = Names()
        self.background = Background()
        self.cell_numbers = journal.cell_numbers
        self.main_thread_id = threading.main_thread().ident or 0
        self._waiting: dict[int, Request] = {}  # cells that have come and do not run yet, by seq
        self._held: dict[int, tuple[Request, wire.CellRequest]] = {}  # those that come too early
        self.taken = 0  # the seq of the last cell that the main thread was given
        self._order = threading.Lock()
        self._log = LogTail(log_path)
        self._lock: asyncio.Lock | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        # Its put is one call of C, so that a signal handler may interrupt another in it.
        self._retries: queue.SimpleQueue[Callable[[], bool]] = queue.SimpleQueue()
        self.on_idle_sigint: Callable[[FrameType | None], None] = lambda frame: None

    def attach(self, shell: Any) -> None:
        """Take over a running kernel's shell. On the main thread, inside its event loop."""
        self.shell = shell
        self.undo.attach(shell)
        self._lock = asyncio.Lock()
        self._loop = loop = asyncio.get_running_loop()
        capture_displays(shell, self._emit, lambda: self.current is not None)
        fill_exec_result = shell.displayhook.fill_exec_result

        def remember(result: Any) -> None:
            self.last_result = result
            fill_exec_result(result)

        shell.displayhook.fill_exec_result = remember
        shell.compile.get_code_name = self._code_name
        sys.stdout = RankStream("stdout", 1, sys.stdout, self._print)
        sys.stderr = RankStream("stderr", 2, sys.stderr, self._print)
        signal.signal(signal.SIGINT, self._on_sigint)
        threading.Thread(target=self._signal_again, name="jaxcluster-again", daemon=True).start()
        self.beacon.on_tick = self._tick
        self.background.attach(loop)
        # Looked up at each call: the main thread is in this loop from now on.
        self.beacon.call_main = loop.call_soon_threadsafe  # type: ignore[assignment]

    @property
    def queued(self) -> int:
        return len(self._waiting)

    def _code_name(self, raw_code: str, transformed_code: str, number: int) -> str:
        digest = hashlib.blake2b(raw_code.encode(), digest_size=6).hexdigest()
        name = f"{CELL_DIRECTORY}/{number}-{digest}.py"
        self.cell_numbers[name] = number
        return name

    # ------------------------------------------------------------------ running

    def on_cell(self, request: Request) -> Any:
        """Handler of ``cell``, on the beacon's thread: run it in its turn and reply at its end.

        It counts as waiting from here on, so that it can be interrupted while the main thread is
        in another cell.
        """
        cell = wire.parse(wire.CellRequest, request.body)
        self._waiting[cell.seq] = request
        with self._order:
            self._held[cell.seq] = (request, cell)
        self._hand_over()
        return DEFERRED

    def _hand_over(self, overdue: int | None = None) -> None:
        """Give the main thread the cells that have come, in the order of all notebooks.

        One whose predecessor is not here yet is held back; ``overdue`` is one that has been held
        back for long enough: the predecessor's notebook must have died over it.
        """
        with self._order:
            while self._held:
                seq = min(self._held)
                request, cell = self._held[seq]
                if cell.after > self.taken and seq != overdue:
                    hold_s = HOLD_S if self.taken else HOLD_NEW_S
                    timer = threading.Timer(hold_s, self._hand_over, [seq])
                    timer.daemon = True
                    timer.name = "jaxcluster-held-back"
                    timer.start()
                    return
                del self._held[seq]
                self.taken = max(self.taken, seq)
                self.beacon.call_main(functools.partial(self._begin, request, cell))

    def _begin(self, request: Request, cell: wire.CellRequest) -> None:
        task = asyncio.ensure_future(self._run_in_turn(request, cell))
        task.add_done_callback(lambda t: t.exception())

    def in_turn(self, handler: Handler) -> Handler:
        """A ``main`` handler that keeps its turn among cells: whoever asks later, is later."""

        async def answer(request: Request) -> None:
            assert self._lock is not None
            async with self._lock:
                Beacon.answer(handler, request)

        def begin(request: Request) -> Any:
            task = asyncio.ensure_future(answer(request))
            task.add_done_callback(lambda t: t.exception())
            return DEFERRED

        return begin

    async def _run_in_turn(self, request: Request, cell: wire.CellRequest) -> None:
        assert self._lock is not None
        async with self._lock:
            shown = self.rank in cell.shown_ranks
            running = Running(request, cell, time.perf_counter(), shown)
            self.current = running  # before it leaves those: an interrupt finds it here or there
            if self._waiting.pop(cell.seq, None) is None:
                self.current = None  # interrupted before its turn, and answered
                self.ended = cell.seq
                return
            request.reply(await self._run(running))

    async def _run(self, running: Running) -> wire.CellReply:
        cell = running.cell
        self.last_result = None
        self._log.reset()
        self.journal.enter(cell.seq, cell.execution_count)
        self.journal.interrupted = False
        self.undo.begin(cell.seq, cell.source)
        self.beacon.ticking = running.shown
        result: Any = None
        try:
            result = await self._execute(running)
        except KeyboardInterrupt:  # it came after IPython had stopped listening for it
            running.interrupted = True
        finally:
            running.interruptible = False
            self.beacon.ticking = False
            self._show_log(last=True)
            self._show_pages()
            self.undo.end()
            self.current = None
            self.ended = cell.seq
        seconds = time.perf_counter() - running.started
        error = self._error(result) if result is not None else None
        if error is None:
            status = "interrupted" if result is None else "ok"
        elif error.ename in ("KeyboardInterrupt", "CancelledError") and running.interrupted:
            status = "interrupted"
        else:
            status = "error"
        self.journal.leave(status, seconds)
        return wire.CellReply(
            rank=self.rank,
            seq=cell.seq,
            status=status,
            seconds=seconds,
            error=error,
            launches=self.journal.launches(),
            global_result=spans_processes(self.last_result),
            names=self.names.changes(running.request.ident, self.shell.user_ns),
        )

    async def _execute(self, running: Running) -> Any:
        """IPython's run of one cell, with top-level await, as ipykernel's ``do_execute`` does."""
        shell, cell = self.shell, running.cell
        shell.execution_count = cell.execution_count
        shell._last_traceback = None
        source = cell.source
        transformed, problem = source, None
        waits = "await" in source or "async" in source  # else run_cell alone transforms it
        if waits:
            try:
                transformed = shell.transform_cell(source)
            except Exception:
                problem = sys.exc_info()
            waits = shell.should_run_async(
                source, transformed_cell=transformed, preprocessing_exc_tuple=problem
            )
        if not waits:
            running.interruptible = True
            if running.interrupted:  # before it was
                raise KeyboardInterrupt
            result = shell.run_cell(source, store_history=True)
            running.interruptible = False
            return result
        running.task = asyncio.ensure_future(
            shell.run_cell_async(
                source,
                store_history=True,
                transformed_cell=transformed,
                preprocessing_exc_tuple=problem,
            )
        )
        if running.interrupted:
            running.task.cancel()
        try:
            return await running.task
        except asyncio.CancelledError:
            return None
        finally:
            shell.events.trigger("post_execute")
            shell.events.trigger("post_run_cell", None)

    def _error(self, result: Any) -> wire.ErrorInfo | None:
        error = result.error_before_exec or result.error_in_exec
        if error is None:
            return None
        traceback = [line for part in self.shell._last_traceback or [] for line in [str(part)]]
        return wire.ErrorInfo(
            ename=type(error).__name__,
            evalue=str(error),
            traceback=traceback,
            lineno=self._line_of(error.__traceback__),
        )

    def _line_of(self, traceback: Any) -> int | None:
        line = None
        while traceback is not None:
            if traceback.tb_frame.f_code.co_filename in self.cell_numbers:
                line = traceback.tb_lineno
            traceback = traceback.tb_next
        return line

    # ------------------------------------------------------------------ interrupting

    def interrupt(self, seq: int | None) -> bool:
        """From any thread: stop cell ``seq`` (None: whichever runs). False if it does not run.

        A cell that still waits for its turn is not run at all.
        """
        running = self.current
        if running is None or (seq is not None and running.cell.seq != seq):
            if seq is not None and (request := self._waiting.pop(seq, None)) is not None:
                request.reply(wire.CellReply(self.rank, seq, "interrupted", 0.0))
            return False
        running.interrupted = True
        if running.task is not None and self._loop is not None:
            self._loop.call_soon_threadsafe(running.task.cancel)
        signal.pthread_kill(self.main_thread_id, signal.SIGINT)
        return True

    def _on_sigint(self, signum: int, frame: FrameType | None) -> None:
        running = self.current
        if running is None:
            self.on_idle_sigint(frame)
            return
        if self.journal.between_count_and_launch(frame):
            # Raised here, it would put this rank out of step for good: the hook raises it when both
            # are done, and should it have just looked, the signal comes again. Nothing here may
            # wait: the next signal would come inside of it.
            self.journal.interrupted = True
            self.signal_again(functools.partial(self._is_to_be_raised, running))
            return
        # A cell with top-level await shares the loop's thread: only its own code is broken off.
        if running.interruptible or (running.task is not None and self.in_a_cell(frame)):
            running.interrupted = True
            raise KeyboardInterrupt

    def signal_again(self, if_still: Callable[[], bool]) -> None:
        """From a signal handler that could not raise: SIGINT comes again, if there is need yet."""
        self._retries.put(if_still)

    def _signal_again(self) -> None:
        """A thread's loop: interrupts that could not be raised where they came are sent again."""
        while True:
            if_still = self._retries.get()
            time.sleep(RETRY_S)
            if if_still():
                signal.pthread_kill(self.main_thread_id, signal.SIGINT)

    def _is_to_be_raised(self, running: Running) -> bool:
        if self.current is not running or not self.journal.interrupted:
            return False
        self.journal.interrupted = False
        return True

    def in_a_cell(self, frame: FrameType | None) -> bool:
        while frame is not None and frame.f_code.co_filename not in self.cell_numbers:
            frame = frame.f_back
        return frame is not None

    # ------------------------------------------------------------------ output

    def _emit(self, kind: str, content: dict[str, Any]) -> None:
        running = self.current
        if running is None:
            return
        if kind == "execute_result" and spans_processes(self.last_result):
            info = replace(describe(self.last_result), shards=[])
            content["array"] = asdict(info)
        output = wire.RankOutput(self.rank, running.cell.seq, kind, content)
        running.request.send("output", output)

    def _print(self, name: str, text: str) -> bool:
        running = self.current
        if running is None:
            return False
        self.beacon.stream(running.request, self.rank, running.cell.seq, name, text)
        return True

    def _show_pages(self) -> None:
        """What ``name?`` and pagers have left for the frontend."""
        payloads = self.shell.payload_manager
        for payload in payloads.read_payload():
            if payload.get("source") == "page":
                content = {"data": payload["data"], "metadata": {}, "transient": {}}
                self._emit("display_data", content)
        payloads.clear_payload()

    def _tick(self) -> None:
        self._show_log(last=False)

    def _show_log(self, last: bool) -> None:
        running = self.current
        if running is not None and running.shown and (text := self._log.read(last)):
            self._print("stdout", text)

"""Interrupts of a rank's cell: raised in its own code, never between a launch and its count.

One that comes where it can't be raised comes again.
"""

from __future__ import annotations

import asyncio
import functools
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from types import CodeType, FrameType
from typing import TYPE_CHECKING, Any

from jaxcluster import wire
from jaxcluster.engine import usercode
from jaxcluster.engine.after_binding import AfterBinding
from jaxcluster.engine.journal import outward
from jaxcluster.engine.running import Running

if TYPE_CHECKING:
    from jaxcluster.engine.cells import CellRunner

RETRY_S = 0.002  # before a signal that came at a bad moment is sent again
BINDING_S = 0.05  # that what a launch returns is on its way to its names, through exits of ``with``
RENDER_S = 1.5  # that the rendering of an error is not broken off
PATIENCE_S = 1.0  # ... and IPython's own steps around a cell's code


class Interrupts:
    """Those of one rank's cells.

    Attributes:
      handler: SIGINT's; one object, to be known again.
    """

    def __init__(self, runner: CellRunner) -> None:
        self._runner = runner
        self.handler = self.on_sigint
        self._loop: asyncio.AbstractEventLoop | None = None
        self._binding = AfterBinding()
        self._late: Running | None = None  # for which a signal is on its way, if it waits yet
        # A signal handler may interrupt a put with another.
        self._retries: wire.Inbox[Callable[[], bool]] = wire.Inbox()

    def attach(self, loop: asyncio.AbstractEventLoop) -> None:
        """From now on they are heard. On the main thread, in its loop."""
        self._loop = loop
        self._show_unraisable, sys.unraisablehook = sys.unraisablehook, self.on_unraisable
        threading.Thread(target=self._signal_again, name="jaxcluster-again", daemon=True).start()

    def interrupt(
        self, seq: int | None, spare: bool = False, terminate: bool = False
    ) -> bool | str:
        """From any thread: stop cell ``seq`` (None: whichever runs). False if it does not run.

        A cell that still waits for its turn is not run at all.

        Args:
          spare: not if its own code is over, and IPython renders its error or its figures; the
            answer is ``left`` then.
          terminate: by SIGTERM, if its code handles that.
        """
        running = self._runner.current
        if running is None or (seq is not None and running.cell.seq != seq):
            if seq is not None:
                self.withdraw(seq)
            return False
        if spare and running.has_left:
            return "left"
        if terminate and callable(signal.getsignal(signal.SIGTERM)):
            signal.pthread_kill(self._runner.main_thread_id, signal.SIGTERM)
            return True
        running.interrupted = True
        running.stop_waits_since = running.stop_waits_since or time.monotonic()
        self._runner.asking.stop()
        signal.pthread_kill(self._runner.main_thread_id, signal.SIGINT)
        return True

    def withdraw(self, seq: int) -> bool:
        """Don't run cell ``seq``, if it waits for its turn yet. Any thread."""
        request = self._runner.queue.withdraw(seq)
        if request is not None:
            request.reply(wire.CellReply(self._runner.rank, seq, "interrupted", 0.0))
        return request is not None

    def on_sigint(self, signum: int, frame: FrameType | None) -> None:
        running = self._runner.current
        was_waiting, late, self._late = self._binding.waits, self._late, None
        self._binding.end()
        if late is not None and not (was_waiting and running is late):
            return  # it was raised meanwhile, or the cell is over
        if running is None:
            self._runner.on_idle_sigint(frame)
            return
        if running.over:
            return
        is_whole = frame is not None and frame.f_code in usercode.WHOLE
        if is_whole or self._runner.journal.is_launching(frame):
            # Raised here, it would make this rank diverge permanently, or be lost: the hook raises
            # it when both are done, and should it have just looked, the signal comes again.
            # Nothing here may wait: the next signal would come inside of it.
            self._runner.journal.interrupted = True
            self.signal_again(functools.partial(self._is_to_be_raised, running))
            return
        now = time.monotonic()
        is_rendering = running.has_left and now < running.left_at + RENDER_S
        is_inside = usercode.is_inside(frame)
        if is_inside is None:
            is_inside = running.unheard_since > 0 and now > running.unheard_since + PATIENCE_S
        if is_inside and not is_rendering:
            if frame is not None and not was_waiting and self._waits_for_names(running, frame):
                return
            self._note_stop(running, frame)
            if running.task is not None and asyncio.current_task(self._loop) is not running.task:
                self._cancel_soon(running)  # what else runs in the loop is stopped here
            raise KeyboardInterrupt
        if running.task is None or is_rendering:
            running.unheard = True
            running.unheard_since = running.unheard_since or now
            self.signal_again(functools.partial(self._is_to_be_raised, running))
        else:  # it awaits, on a thread that it shares with the loop
            running.interrupted = True
            self._cancel_soon(running)

    def _cancel_soon(self, running: Running) -> None:
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._cancel, running)

    def _cancel(self, running: Running) -> None:
        """In its loop: what a cell awaits is over."""
        if isinstance(running.task, asyncio.Task) and not running.task.done():
            place = self._runner.journal.stands_at(_places(_awaiting(running.task)))
            running.stopped_at = place if running.stopped_at in (None, place) else ""
            running.stop_waits_since = 0.0
            running.task.cancel()

    def _note_stop(self, running: Running, frame: FrameType | None) -> None:
        """An interrupt is to be raised in ``frame``."""
        running.interrupted = True
        running.unheard_since = running.stop_waits_since = 0.0
        journal = self._runner.journal
        is_clear = frame is not None and not journal.may_hold_results(frame)
        is_first = running.stopped_at is None
        is_known = frame is not None and is_first and is_clear
        running.stopped_at = journal.stands_at(_places(outward(frame))) if is_known else ""

    def _waits_for_names(self, running: Running, frame: FrameType) -> bool:
        """Whether an interrupt is raised a moment later, as a launch has just returned here."""
        until = time.monotonic() + BINDING_S

        def waits_yet() -> bool:
            does = self._binding.waits and self._runner.current is running and not running.over
            if does and time.monotonic() < until:
                self.signal_again(waits_yet)
                return False
            self._late = running if does else None
            return does

        if not self._runner.journal.has_just_launched(frame):
            return False
        if not self._binding.begin(frame, functools.partial(self._note_stop, running)):
            return False
        self.signal_again(waits_yet)
        return True

    def on_unraisable(self, what: Any) -> None:
        """Python passes over what is raised in a finalizer or in a callback of its collector.

        JAX has such a callback, which runs all the time. An interrupt that came there comes again.
        """
        on_main = threading.get_ident() == self._runner.main_thread_id
        if not (on_main and what.exc_type is KeyboardInterrupt):
            self._show_unraisable(what)
        elif (running := self._runner.current) is not None:
            self.signal_again(lambda: self._runner.current is running and not running.over)
        else:
            self._runner.on_idle_unraisable()

    def signal_again(self, if_still: Callable[[], bool]) -> None:
        """From a signal handler that could not raise: SIGINT comes again, if there is need yet."""
        self._retries.put(if_still)

    def _signal_again(self) -> None:
        """A thread's loop: interrupts that could not be raised where they came are sent again."""
        while True:
            if_still = self._retries.get()
            time.sleep(RETRY_S)
            if if_still():
                signal.pthread_kill(self._runner.main_thread_id, signal.SIGINT)

    def _is_to_be_raised(self, running: Running) -> bool:
        journal = self._runner.journal
        if self._runner.current is not running or not (journal.interrupted or running.unheard):
            running.stop_waits_since = 0.0  # it was raised at a launch meanwhile
            return False
        journal.interrupted = running.unheard = False
        return True


def _places(frames: Iterable[FrameType]) -> Iterator[tuple[CodeType, int, int]]:
    return ((frame.f_code, frame.f_lineno, frame.f_lasti) for frame in frames)


def _awaiting(task: asyncio.Task[Any]) -> list[FrameType]:
    """Where what a task runs awaits something, innermost first."""
    frames: list[FrameType] = []
    coroutine: Any = task.get_coro()
    while (frame := getattr(coroutine, "cr_frame", None)) is not None:
        frames.insert(0, frame)
        coroutine = coroutine.cr_await
    return frames

"""Interrupts of a rank's cell: raised in its own code, never between a launch and its agreement.

Python raises KeyboardInterrupt at any instruction. In our own bookkeeping it would cost a reply, or
leave a lock that nobody holds. So the handler looks at the frames. In a cell's code it raises;
elsewhere the signal is sent again a moment later. Nor does IPython bear it everywhere: raised in
its own steps, it costs the result.
"""

from __future__ import annotations

import asyncio
import signal
import sys
import threading
import time
from types import CodeType, FrameType
from typing import TYPE_CHECKING, Any

from IPython.core.interactiveshell import InteractiveShell

from jaxcluster import wire
from jaxcluster.rank.places import outward

if TYPE_CHECKING:
    from jaxcluster.rank.cells import CellRunner, Running

RETRY_S = 0.002  # before a signal that came at a bad moment is sent again
PATIENCE_S = 1.0  # IPython's own steps around a cell's code are not interrupted for so long


# IPython's functions that run a cell's lines and show its value. Other modules add theirs.
RUNS: set[CodeType] = {InteractiveShell.run_code.__code__}
BEGINS: set[CodeType] = set()  # functions that run a cell's code between IPython's own steps


def is_inside(frame: FrameType | None) -> bool | None:
    """Whether ``frame`` is the user's code or called by it: KeyboardInterrupt may be raised there.

    Returns:
      None if it may be raised only after a long wait for a better moment. That is in IPython's own
      steps around the code, in which the user's hooks and transformers may hang. False: nowhere in
      the cell's course.
    """
    is_run = False
    for one in outward(frame):
        if one.f_code in BEGINS:
            return True if is_run else None if one is not frame else False
        is_run = is_run or one.f_code in RUNS
    return False


class Interrupts:
    """Those of one rank's cells.

    Attributes:
      handler: SIGINT's; one object, to be known again.
    """

    def __init__(self, runner: CellRunner) -> None:
        self._runner = runner
        self.handler = runner.agreement.guarded(self.on_sigint)
        # A signal handler may interrupt a put with another.
        self._retries: wire.Inbox[Running | None] = wire.Inbox()
        self._show_unraisable, sys.unraisablehook = sys.unraisablehook, self.on_unraisable
        threading.Thread(target=self._signal_again, name="jaxcluster-again", daemon=True).start()

    def interrupt(self, seq: int | None) -> None:
        """Interrupt cell ``seq`` if it runs (None: whichever runs). Any thread."""
        running = self._runner.current
        if running is None or running.over or seq not in (None, running.cell.seq):
            return
        running.interrupted, running.heard = True, False
        running.interrupts += 1
        self._runner.agreement.refusals = 0
        self._runner.asking.stop()
        signal.pthread_kill(self._runner.main_thread_id, signal.SIGINT)

    def on_sigint(self, signum: int, frame: FrameType | None) -> None:
        running, now = self._runner.current, time.monotonic()
        if running is None:
            self._runner.shell.kernel.on_sigint(frame)
            return
        if running.over:
            return
        task, may_raise = running.task, is_inside(frame)
        is_waiting = task is not None and task is not asyncio.current_task(task.get_loop())
        if may_raise is None:
            may_raise = 0 < running.unheard_since < now - PATIENCE_S
        if task is not None and is_waiting:  # what else runs in the loop is stopped here
            running.interrupted = True
            task.get_loop().call_soon_threadsafe(self._cancel, running)
        if may_raise:
            running.interrupted, running.unheard_since = True, 0.0
            running.heard = running.interrupts == 1
            raise KeyboardInterrupt
        if not is_waiting:
            running.unheard_since = running.unheard_since or now
            self._retries.put(running)

    @staticmethod
    def _cancel(running: Running) -> None:
        """In its loop: what a cell awaits is over."""
        if running.task is not None and not running.task.done():
            running.heard = running.interrupts == 1
            running.task.cancel()

    def keep_handler(self) -> None:
        """Between cells: restore SIGINT's handler if a cell has replaced it."""
        look: Any = getattr(signal.getsignal, "__wrapped__", signal.getsignal)  # it hides guards
        if look(signal.SIGINT) is not self.handler:
            signal.signal(signal.SIGINT, self.handler)

    def on_unraisable(self, what: Any) -> None:
        """Python passes over exceptions in a finalizer or in a callback of its collector.

        JAX has such a callback, which runs all the time. An interrupt that came there comes again.
        """
        on_main = threading.get_ident() == self._runner.main_thread_id
        if on_main and what.exc_type is KeyboardInterrupt:
            if (running := self._runner.current) is not None:
                running.unheard_since = time.monotonic()
            self._retries.put(running)
        else:
            self._show_unraisable(what)

    def _signal_again(self) -> None:
        """A thread's loop: interrupts that could not be raised where they came are sent again."""
        while True:
            running = self._retries.get()
            time.sleep(RETRY_S)
            is_unheard = running is None or running.unheard_since > 0
            if self._runner.current is running and is_unheard:
                signal.pthread_kill(self._runner.main_thread_id, signal.SIGINT)

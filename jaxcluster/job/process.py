"""One process of a job of plain processes: the whole script is its one cell.

The first refusal closes the script in all processes.
"""

from __future__ import annotations

import atexit
import functools
import os
import select
import signal
import socket
import sys
import textwrap
import threading
import time
from dataclasses import replace
from types import FrameType
from typing import Any

from jaxcluster.agreement.client import Agreement, Guard
from jaxcluster.agreement.messages import CellSpec, Looked, Refusal, receive, unpack
from jaxcluster.model import words
from jaxcluster.rank import log
from jaxcluster.rank.places import OURS, place_of
from jaxcluster.rank.private import coordination
from jaxcluster.supervision import ends

START_S = 300.0  # that other processes have to call ``agree``
LOOK_S = 0.5
LEAVE_S = 5.0  # that other processes have to end after a failure
STUCK_S = 10.0  # ... and this process's threads: Orbax's, say, may wait for a dead process
POLL_S = 0.05
STOP_S = 1.0  # the referee closes the script in this time after a stop, or is gone
RAISE_S = 0.3  # a refused launch raises in this time, or other code does
ASKED, STALLED, LEAVING = 1, 2, 3  # why the referee is asked who waits
ERROR_CHARS = 200
_set_handler = signal.signal  # Python's, which takes no lock that another thread may have at a fork
explain = functools.partial(words.explain, part="script")


class Job:
    """One process of the job.

    Args:
      rank: JAX's process id.
      stall_s: after how long a process reports a wait unasked.
      leaves_alone: JAX's coordination service is no process's own, so nobody waits for its end.

    Attributes:
      files: of the script, for messages.
    """

    def __init__(self, rank: int, num_ranks: int, stall_s: float, leaves_alone: bool) -> None:
        from jaxcluster.rank.given import Given  # it imports jax: ``import jaxcluster`` must not

        self._rank, self._num_ranks, self._stall_s = rank, num_ranks, stall_s
        self._leaves_alone = leaves_alone
        self.given, self.files = Given(), dict[str, int]()
        where = functools.partial(place_of, number_of=self.files.get)
        self.agreement = Agreement(rank, where, self.given.take, explain)
        self._base: socket.socket | None = None
        self._has_failed = self._is_closed = False
        self._over_at, self._outcome = 0.0, ""
        self._stop_at = 0.0  # when this process was first told to stop
        self._all_over = threading.Event()  # or nothing more is launched
        self._connected: list[int] = []

    def connect(self, path: str) -> None:
        """Connect to the referee, by its socket on this host. The main thread.

        Raises:
          OSError: it can't be reached.
        """
        self._base = self.agreement.connect(path)

    def begin(self) -> None:
        """Begin the script together with all other processes. The main thread.

        Raises:
          RuntimeError: other processes did not call this in time.
        """
        assert self._base is not None
        self.agreement.tell("arrive", CellSpec(1, tuple(range(self._num_ranks))))
        self._base.settimeout(START_S)
        if not receive(self._base):
            raise RuntimeError(
                f"Not all processes have called jaxcluster.agree() in {START_S:g} s."
            )
        self._base.settimeout(None)
        self.agreement.begin(1)
        threading.Thread(target=self._watch, name="jaxcluster-agreement", daemon=True).start()
        signal.signal(signal.SIGUSR1, lambda *_: self._look(ASKED))
        if (handler := signal.getsignal(signal.SIGINT)) is signal.default_int_handler:
            self.stop_on(signal.SIGINT)
        elif callable(handler):
            signal.signal(signal.SIGINT, handler)  # it is guarded now
        atexit.register(self._leave)
        os.register_at_fork(after_in_child=self._become_child)

    def stop_on(self, number: int) -> None:
        """Have this signal stop all processes, each before the same launch."""

        def handle(pythons: Any, number: int, frame: FrameType | None) -> None:
            self.agreement.handle(self._on_stop, number, frame)

        # Code that looks for it, such as asyncio, finds Python's own handler.
        guard = Guard(handle, signal.default_int_handler)
        self.agreement.stops[number] = guard  # asyncio puts Python's back at its end
        signal.signal(number, guard)
        give_back_in_children(number)

    def _on_stop(self, number: int, frame: FrameType | None) -> None:
        now = time.monotonic()
        self._stop_at = self._stop_at or now
        # No launch has come before which to raise it, or the referee has not answered.
        if self._is_closed or now > self._stop_at + STOP_S:
            raise KeyboardInterrupt
        self.agreement.stop(1)

    # -------------------------------------------------------------------- end

    def end_by(self, error: BaseException) -> None:
        """This ends the script here, and the others hear of it at once. It loses our frames."""
        last = at = error.__traceback__
        while at is not None:
            last = last if at.tb_frame.f_code.co_filename.startswith(f"{OURS}/") else at
            at = at.tb_next
        if last is not None:
            last.tb_next = None
        if not isinstance(error, SystemExit):
            outcome = f"{type(error).__name__}: {error}"
            self._end(textwrap.shorten(outcome, ERROR_CHARS, placeholder="..."))
        else:
            told = error.code if isinstance(error.code, str) else f"exit status {error.code}"
            self._end(told if error.code else "ok")

    def _end(self, outcome: str) -> None:
        """The main thread makes no more launches."""
        if not self._over_at:
            self._over_at, self._outcome = time.monotonic(), outcome
            self.agreement.end(outcome)

    def _leave(self) -> None:
        """At the end of the process, before JAX shuts down, which waits for all processes."""
        self._end("ok")
        self._all_over.wait()
        if self._has_failed or self._leaves_alone:
            coordination.leave_without_others()
        if not self._has_failed or self._leaves_alone:
            return
        # Without process 0 JAX aborts the others.
        for _ in ends.wait(LEAVE_S, lambda: self._rank == 0 and self._connected != [0]):
            self._look(LEAVING)
            time.sleep(POLL_S)
        if self._outcome == "ok":  # others failed
            log.end_process(1)

    def _become_child(self) -> None:
        """In a process that the script has forked."""
        atexit.unregister(self._leave)
        coordination.leave_without_others()

    # ------------------------------------------------------------------ watch

    def _watch(self) -> None:
        """A thread's loop: hears the referee."""
        assert self._base is not None
        patience_s = STUCK_S * (2 if self._rank == 0 else 1)  # process 0 ends last
        told = 0.0  # when the wait began that was told of
        while True:
            if select.select([self._base], [], [], LOOK_S)[0]:
                if not (frame := receive(self._base)):
                    if not self._all_over.is_set():
                        say("The referee, a child of process 0, has ended. No launch is possible.")
                    self._is_closed = True  # a stop is this process's own then
                    self._all_over.set()
                    return
                self._hear(frame)
            now = time.monotonic()
            if self._has_failed and 0 < self._over_at < now - patience_s:
                say("Threads of this process do not end, so jaxcluster ends it.")
                log.end_process(1)
            record = self.agreement.begun.get(threading.main_thread().ident or 0)
            if record is not None and record[-1] and told != record[2] < now - self._stall_s:
                told = record[2]
                self._look(STALLED)

    def _look(self, why: int) -> None:
        self.agreement.tell("look", why, 0)

    def _hear(self, frame: bytes) -> None:
        match unpack(frame):
            case "closed" | "over", _, refusal, _:
                if refusal is not None and not self._has_failed:
                    self._has_failed = True
                    self._close(refusal)
                self._all_over.set()
            case "looked", why, looked:
                self._connected = looked.connected
                first = min((wait.rank for wait in looked.waits), default=None)
                if why == ASKED or (why == STALLED and first == self._rank):
                    say(describe(looked))

    def _close(self, refusal: Refusal) -> None:
        """Nothing more is launched: say why, or interrupt code that makes no launch."""
        is_stop = refusal.kind == "stopped"  # which no other thread raises in place of this one

        def is_raised() -> bool:
            return bool(self.agreement.refusals if is_stop else self.agreement.is_refused)

        for _ in ends.wait(RAISE_S, lambda: not is_raised()):
            time.sleep(POLL_S)
        self._is_closed = True
        if is_raised():
            return
        if not is_stop:
            say(explain(refusal))
        elif not self._over_at:
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)


def give_back_in_children(number: int) -> None:
    """Have processes that the script forks take this signal as Python has it.

    ``terminate()`` and then ``join()`` of multiprocessing count on it, also where C code is stuck.
    Python forgets signals that came before a child begins, so an early one is blocked till then.
    """
    masks = list[Any]()

    def block() -> None:
        masks.append(signal.pthread_sigmask(signal.SIG_BLOCK, [number]))

    def unblock() -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, masks.pop())

    def give_back() -> None:
        if signal.getsignal(number) is signal.default_int_handler:  # else it is the script's own
            is_int = number == signal.SIGINT
            _set_handler(number, signal.default_int_handler if is_int else signal.SIG_DFL)
        unblock()

    os.register_at_fork(before=block, after_in_parent=unblock, after_in_child=give_back)


def describe(looked: Looked) -> str:
    """Who waits for whom, as the referee tells it: main threads, or else other threads."""
    from jaxcluster.model import waiting  # as long as all else to import, and rarely needed

    mains = [wait for wait in looked.waits if not wait.lane]
    waits = mains or [replace(wait, lane="", seq=1) for wait in looked.waits]
    told = waiting.line(1, {}, (), replace(looked, waits=waits), {})
    return told or "No rank waits for another rank."


def say(text: str) -> None:
    print(f"jaxcluster: {text}", file=sys.stderr, flush=True)

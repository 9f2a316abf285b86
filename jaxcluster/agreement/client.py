"""A rank's side: announces each launch, and lets it go once the referee says so.

From the announcement to the launch no bytecode of Python runs: it is a chain of C callables. So no
signal handler, tracer or collector comes between "go" and the launch. If a signal handler
raises meanwhile, the referee decides, since "go" may be on its way: see ``Agreement.guarded``.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import operator
import os
import re
import signal
import socket
import sys
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Container, Iterator
from dataclasses import replace
from threading import get_ident
from types import CodeType, FrameType
from typing import Any

from jaxcluster.agreement.messages import (
    BASE,
    BUFFER,
    LAUNCH,
    MAIN,
    NOWHERE,
    End,
    Hashes,
    Place,
    Program,
    Refusal,
    pack,
    unpack,
)

FOLDS = 64  # launches without collectives up to an announcement, by which a stop reaches them
KEPT = 128  # launches, for reports
ORDER_S = 0.0002  # between looks whether another thread has made its launch
AGAIN_S = 0.02  # before a signal comes again whose handler could not raise
SOON_S = 0.001  # ... and one that came in a launch
SIGNATURE_CHARS = 1 << 12  # of a program's inputs
NAME_CHARS = 500  # ... and of its name
HASH = (1 << 64) - 1

Handler = Callable[[int, FrameType | None], Any]
_signals = threading.RLock()  # while a signal comes again, its handler stays
# A launch: program, place, when it was announced, the frame that makes it (by id) with its
# instruction, and whether it needs the referee's word.
Record = tuple[Program, Place, float, int, int, bool]


class Divergence(RuntimeError):
    """The processes were about to launch different programs. Nothing was launched."""

    def __init__(self, message: str, refusal: Refusal | None = None) -> None:
        super().__init__(message)
        self.refusal = refusal


class Stopped(KeyboardInterrupt):
    """Somebody stopped the cell. It is raised before a launch, the same one on all ranks."""


class Lane:
    """One thread's connection to the referee.

    Attributes:
      answers: each ``next`` sends a message, waits for its answer, and gives True for "go"; in C.
      folds: by processes, the count and hash of launches without collectives.
      unmade: a hash of agreed launches that XLA has refused.
      heard: the last answer, in the way to ``answers``; none before it came.
      deferred: what a signal handler raised while a launch was on its way, and is still to be.
      signal: whose handler that was.

    Raises:
      OSError: the referee can't be reached.
    """

    def __init__(self, agreement: Agreement, name: str, seq: int) -> None:
        self._agreement, self.ident, self._pid = agreement, get_ident(), os.getpid()
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.socket.connect(agreement.path)
        self.say("hello", agreement.rank, name, seq)
        self.messages: deque[bytes] = deque()
        self.folds: dict[tuple[int, ...], tuple[int, int]] = {}
        self.unmade: Hashes = {}
        self.heard: dict[str, bytes] = {}
        self.deferred: BaseException | None = None
        self.signal = 0
        self._sites: dict[tuple[Program, Place], int] = {}
        sent = map(self.socket.send, iter(self.messages.popleft, None))
        received, noted = itertools.tee(map(self.socket.recv, map(BUFFER.__or__, sent)))
        kept = map(self.heard.__setitem__, itertools.repeat("frame"), noted)
        frames = map(operator.itemgetter(0), zip(received, kept, strict=False))
        self.answers: Iterator[bool] = map(_Answers(agreement.hear).__getitem__, frames)

    def __del__(self) -> None:
        if not hasattr(self, "socket"):
            return
        if self._pid == os.getpid():  # not where a fork ends its parent's threads
            self._agreement.note_failed(self)  # or other threads would wait for its launch
        self.socket.close()

    def say(self, word: str, *arguments: Any) -> None:
        """Tell the referee something that is no launch."""
        with contextlib.suppress(OSError):  # it is gone
            self.socket.send(pack(word, *arguments))

    def announcement(self, program: Program, place: Place, given: int, folded: int) -> bytes:
        """A launch's message; what it refers to is sent before it is returned."""
        site = self._sites.get((program, place))
        if site is None:  # an error here only sends it once more
            site = len(self._sites)
            name, signature = program.name[:NAME_CHARS], program.signature[:SIGNATURE_CHARS]
            what = replace(program, name=name, signature=signature)
            self.socket.send(pack("site", site, what, place))
            self._sites[program, place] = site
        return LAUNCH.pack(b"L", site, given, folded)


class Guard(functools.partial[Any]):
    """A signal handler that heeds launches: see ``Agreement.guarded``."""


class _Answers(dict[bytes, bool]):
    def __init__(self, hear: Callable[[bytes], bool]) -> None:
        super().__init__({b"g0": True})
        self._hear = hear

    def __missing__(self, frame: bytes) -> bool:
        return self._hear(frame)


class Agreement:
    """The launches of one process.

    Args:
      rank: of this process.
      place_of: tells where a frame launches.
      given: tells a hash of what the host has given to launches of these processes since it was
        asked; 0 for nothing.
      explain: makes a message of a refusal.

    Attributes:
      begun: by thread, the launch that it makes, or has failed to make.
      made: the last launches, oldest first.
      stops: by signal, what handles it where Python's own handler is set.
      converts: code that JAX's C++, by one more function, calls right before a launch.
      seq: the cell that the main thread runs; 0: none.
      is_refused: whether a launch was refused.
      refusals: how many the main thread has heard since its cell began, or was interrupted.
    """

    def __init__(
        self,
        rank: int,
        place_of: Callable[[FrameType | None], Place] = lambda frame: NOWHERE,
        given: Callable[[tuple[int, ...]], int] = lambda processes: 0,
        explain: Callable[[Refusal], str] = repr,
    ) -> None:
        self.rank, self._explain = rank, explain
        self.begun: dict[int, Record] = {}
        self.made: list[Record] = []
        self.seq = 0
        self.is_refused, self.refusals = False, 0
        self.path, self._place_of, self._given = "", place_of, given
        self._lanes = threading.local()
        self._tasks: Counter[str] = Counter()  # threads that the cell has started
        self._taken = 0
        self.stops: dict[int, Guard] = {}
        self.converts: CodeType | None = None
        self._coming: set[int] = set()  # signals that come again, since they came in a launch
        self._base: Lane | None = None
        self._main: Lane | None = None
        self._is_child = False

    def connect(self, path: str) -> socket.socket:
        """Connect the main thread, which calls it; returns the control thread's connection.

        Args:
          path: of the referee's Unix socket, or of its relay's on this host.

        Raises:
          OSError: the referee can't be reached.
        """
        self.path = path
        self._base = Lane(self, BASE, 0)
        self._main = self._lanes.lane = Lane(self, MAIN, 0)
        os.register_at_fork(after_in_child=self._become_child)
        return self._base.socket

    def tell(self, word: str, *arguments: Any) -> None:
        """Say something that is answered, if at all, on the control thread's connection."""
        if self._base is not None:
            self._base.say(word, *arguments)

    def stop(self, seq: int | None) -> None:
        """Stop this cell, or all that run. Any thread.

        The referee hears it before what an interrupt makes the main thread say: see ``handle``.
        """
        if self._main is not None:
            self._main.say("stop", seq)

    def begin(self, seq: int) -> None:
        """The main thread, which calls it, begins a cell."""
        self.seq, self.refusals = seq, 0
        self._tasks.clear()
        lane = self._lane()
        lane.folds.clear()
        lane.unmade.clear()

    def end(self, outcome: str, at_work: str = "") -> None:
        """The main thread, which calls it, makes no more launches in its cell.

        Args:
          outcome, at_work: see ``End``.
        """
        lane = self._lane()
        self.note_failed(lane)
        self.seq, lane.deferred = 0, None
        folded = {processes: value for processes, (_, value) in lane.folds.items()}
        given = {processes: self._given(processes) for processes in folded}
        lane.say("end", End(outcome, at_work, folded, lane.unmade, given))

    # --------------------------------------------------------------- launches

    def preparations(self, program: Program, result: Any) -> Iterator[Any]:
        """Each ``next`` of it waits for "go" and gives ``result``: JAX launches right after it."""
        agreed = map(next, map(self._prepare, itertools.repeat(program)))
        return itertools.compress(itertools.repeat(result), agreed)

    def confirmations(self) -> Iterator[None]:
        """Each ``next`` of it counts a launch of this thread as made; in C."""
        idents = itertools.starmap(get_ident, itertools.repeat(()))
        return map(self.made.append, map(self.begun.pop, idents))

    def launch(self, program: Program, call: Callable[..., Any], *arguments: Any) -> Any:
        """The result of ``call(*arguments)``, which launches ``program`` once that is agreed."""
        agreed = map(next, map(self._prepare, (program,)))
        made = itertools.starmap(call, (arguments,))
        confirmed = itertools.islice(self.confirmations(), 1)
        return list(itertools.chain(agreed, made, confirmed))[1]

    @contextlib.contextmanager
    def limited(self, seconds: float, error: BaseException) -> Iterator[None]:
        """Within, a launch of this thread that is not agreed in time is left, and raises this."""
        lane = self._lane()

        def leave() -> None:
            lane.deferred, lane.signal = error, 0
            lane.say("withdraw")  # it has no effect if "go" is on its way

        timer = _start_timer(seconds, leave)
        try:
            yield
        finally:
            timer.cancel()
            if lane.deferred is error:
                lane.deferred = None

    def place(self) -> Place:
        """The place of the caller's caller."""
        return self._place_of(sys._getframe(2))

    def launching(self, frames: Container[tuple[int, int]]) -> tuple[str, float] | None:
        """The launch that the main thread is in, or announces, and for how long. Any thread.

        Args:
          frames: of the main thread now: the id and the instruction of each.
        """
        record = self.begun.get(threading.main_thread().ident or 0)
        if record is None or (record[3], record[4]) not in frames:
            return None
        return record[0].name, time.monotonic() - record[2]

    def taken(self) -> int:
        """How many agreed launches this process has made, or XLA has refused."""
        return self._taken + sum(record[-1] for record in self.made)

    def _lane(self) -> Lane:
        """This thread's connection."""
        lane: Lane | None = getattr(self._lanes, "lane", None)
        if lane is None:
            thread = threading.current_thread()
            task, seq = getattr(thread, "jaxcluster_task", (_task_of(thread), 0))
            lane = self._lanes.lane = Lane(self, task, seq)
        return lane

    def _prepare(self, program: Program) -> Iterator[Any]:
        """An iterator whose next item is the answer to the launch that the caller makes."""
        ident, caller, lane = get_ident(), sys._getframe().f_back, self._lane()
        if caller is not None and caller.f_code is self.converts:
            caller = caller.f_back and caller.f_back.f_back
        if ident in self.begun:
            if self._is_begun(program, self.begun[ident], caller):
                return itertools.repeat(True)
            self.note_failed(lane)
        if self._is_child:
            raise RuntimeError(
                f"This process was forked from rank {self.rank}, so it can't launch {program.name},"
                " which spans processes: it shares the rank's connections. Launch it on the rank, "
                "and give the child numpy arrays."
            )
        while len(self.made) > KEPT:
            record = self.made.pop(0)
            self._taken += record[-1]
        place, is_agreed = self._place_of(caller), True
        count, value = lane.folds.get(program.processes, (0, 0))
        if not program.collective:
            value = _hash(value, program)
            lane.folds[program.processes] = count + 1, value
            is_agreed = not (count + 1) % FOLDS
        if is_agreed:
            folded = value if lane is self._main else 0
            folded ^= lane.unmade.get(program.processes, 0)
            given = 0 if program.meets_all else self._given(program.processes)
            message = lane.announcement(program, place, given, folded)
            lane.messages.clear()  # one that was not sent: something has raised here
            lane.heard.clear()
            lane.messages.append(message)
        instruction = caller.f_lasti if caller is not None else -1
        self.begun[ident] = program, place, time.monotonic(), id(caller), instruction, is_agreed
        return lane.answers if is_agreed else itertools.repeat(True)

    def _is_begun(self, program: Program, before: Record, caller: FrameType | None) -> bool:
        """Whether JAX's fast path has prepared this launch, and left it to its Python path.

        Raises:
          RuntimeError: another launch of this thread is being made.
        """
        inner = None
        while caller is not None and not _is_at(caller, before):
            inner, caller = caller, caller.f_back
        if caller is None or inner is None:
            return False
        if inner.f_code.co_name == "cache_miss" and before[0] is program:
            return True
        if inner.f_code.co_name == "cache_miss":
            return False
        raise RuntimeError(f"{program.name} can't be launched while {before[0].name} is launched.")

    def note_failed(self, lane: Lane) -> None:
        """A launch of this thread was not made: XLA has refused it, or it ended in an error."""
        record = self.begun.pop(lane.ident, None)
        # Else it was not announced, or was refused, and something raised in hearing that.
        if record is not None and record[-1] and lane.heard.get("frame", b"").startswith(b"g"):
            if not (program := record[0]).meets_all:  # a rendezvous is over, however it ended
                processes = program.processes
                lane.unmade[processes] = _hash(lane.unmade.get(processes, 0), program)
                lane.say("unmade", processes)
            self._taken += 1

    def hear(self, frame: bytes) -> bool:
        """Take this thread's answer, if it is not a plain "go".

        Raises:
          Divergence, Stopped: nothing is to be launched.
          BaseException: what a signal handler has raised meanwhile.
        """
        if frame[:1] == b"g":
            number = int(frame[1:])
            while self.taken() < number - 1:  # another thread's launch comes first
                time.sleep(ORDER_S)
            return True
        lane = self._lane()
        self.begun.pop(get_ident(), None)
        deferred, lane.deferred = lane.deferred, None
        if deferred is not None:
            raise deferred
        if not frame:
            raise ConnectionError("jaxcluster's referee process has ended. No launch is possible.")
        refusal: Refusal = unpack(frame)[1]
        self.is_refused = True
        if lane is self._main:
            self.refusals += 1
        if refusal.kind == "stopped":
            raise Stopped
        raise Divergence(self._explain(refusal), refusal)

    # ---------------------------------------------------------------- signals

    def guarded(self, handler: Handler) -> Guard:
        """A signal handler that raises nothing between an announcement and its launch.

        If ``handler`` raises there, the error waits, and the rank asks the referee to drop the
        launch. It is raised in the launch's place, or after it, if "go" was on its way. In a launch
        its results have no name yet, and inputs may be donated. So signals wait a moment there.
        """
        return Guard(self.handle, handler)

    def guard_signals(self) -> None:
        """From now on handlers that are set are guarded; who reads one gets it as it was set."""
        set_handler, get_handler = signal.signal, signal.getsignal

        def plain(handler: Any) -> Any:
            return handler.args[0] if type(handler) is Guard else handler

        @functools.wraps(set_handler)
        def set_guarded(signalnum: int, handler: Any) -> Any:
            if handler is signal.default_int_handler:
                handler = self.stops.get(signalnum, handler)
            is_bare = callable(handler) and type(handler) is not Guard
            with _signals:
                old = set_handler(signalnum, self.guarded(handler) if is_bare else handler)
                if self._main is not None and self._main.signal == signalnum:
                    self._main.deferred = None  # the launch was made in time
            return plain(old)

        @functools.wraps(get_handler)
        def get_plain(signalnum: int) -> Any:
            return plain(get_handler(signalnum))

        signal.signal, signal.getsignal = set_guarded, get_plain

    def handle(self, handler: Handler, number: int, frame: FrameType | None) -> Any:
        """Handle a signal as ``guarded`` says."""
        lane = self._main
        if lane is None or get_ident() != lane.ident:
            return handler(number, frame)
        if self.is_launching(frame):
            if lane.deferred is None:
                try:
                    return handler(number, frame)
                except BaseException as error:
                    lane.deferred, lane.signal = error, number
            lane.say("withdraw")
            return _start_timer(AGAIN_S, _signal_again, number, lane, lane.deferred)
        if lane.deferred is not None:
            deferred, lane.deferred = lane.deferred, None
            raise deferred
        has_result_to_store = frame and self.made and _is_at(frame, self.made[-1])
        if number in self._coming or not has_result_to_store:
            self._coming.discard(number)
            return handler(number, frame)
        self._coming.add(number)
        return _start_timer(SOON_S, _signal_again, number, lane, None)

    def is_launching(self, frame: FrameType | None) -> bool:
        """Whether the main thread, which calls it, is between announcement and launch."""
        record = self.begun.get(threading.main_thread().ident or 0)
        while frame is not None:
            if frame.f_code in _OURS or (record is not None and _is_at(frame, record)):
                return True
            frame = frame.f_back
        return False

    # ---------------------------------------------------------------- threads

    def watch_threads(self) -> None:
        """From now on threads know which cell has started them, and for what."""
        start = threading.Thread.start

        def start_known(thread: threading.Thread) -> None:
            _, seq = getattr(threading.current_thread(), "jaxcluster_task", ("", self.seq))
            task = _task_of(thread)
            self._tasks[task] += 1
            thread.jaxcluster_task = f"{task} {self._tasks[task]}", seq  # type: ignore[attr-defined]
            start(thread)

        threading.Thread.start = start_known  # type: ignore[assignment, method-assign]

    def _become_child(self) -> None:
        """In a process that was forked: else its parent's death would not show."""
        self._is_child = True
        if self._base is not None and self._main is not None:
            self._base.socket.close()
            self._main.socket.close()


def _start_timer(seconds: float, function: Callable[..., None], *arguments: Any) -> threading.Timer:
    """A thread of ours: its name keeps it apart from threads that a cell starts."""
    timer = threading.Timer(seconds, function, arguments)
    timer.name, timer.daemon = "jaxcluster-timer", True
    timer.start()
    return timer


def _signal_again(number: int, lane: Lane, deferred: BaseException | None) -> None:
    """A thread: unless that was raised meanwhile, or the handler is gone, which saves the process.

    To know where the main thread is would take a look at its frames, which may crash the process.
    """
    with _signals:
        if deferred in (None, lane.deferred) and callable(signal.getsignal(number)):
            signal.pthread_kill(lane.ident, number)


def _hash(value: int, program: Program) -> int:
    """``value``, which hashes launches, with one more."""
    return (value * 1_000_003 + program.fingerprint + 1) & HASH


def _task_of(thread: threading.Thread) -> str:
    """A thread's purpose, the same on all ranks: its name without numbers, and its function."""
    target = getattr(thread, "_target", None)
    name = getattr(target, "__qualname__", type(thread).__qualname__)
    return f"{re.sub('[0-9]+', '', thread.name)} {name}"


def _is_at(frame: FrameType, record: Record) -> bool:
    return id(frame) == record[3] and frame.f_lasti == record[4]


_OURS = {Agreement._prepare.__code__, Agreement.hear.__code__, Agreement.launch.__code__}

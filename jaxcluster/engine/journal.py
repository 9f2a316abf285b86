"""A rank's flight recorder: the cells that it ran and the multi-process programs it launched.

JAX's one rule is that the processes which share a program launch the same programs in the same
order. So for every set of processes the journal keeps a count and a rolling hash of the launches
that the set shares: equal on all its members as long as they are in lockstep.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import linecache
import operator
import os
import sys
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from threading import get_ident
from types import CodeType, FrameType
from typing import Any

from jaxcluster import wire
from jaxcluster.engine.crossings import Crossings
from jaxcluster.engine.foreign import is_telling_file, short_name

_HASH_MODULUS = wire.HASH_MODULUS
_HASH_FACTOR = wire.HASH_FACTOR
KEPT_PROGRAMS = 512
LATEST = 256  # launches that are entered at once
SOURCE_CHARS = 80  # of a line that has launched something

# The code and instruction of the cell's line that launched a program, and those of the innermost
# line that is not JAX's, where that is not in a cell.
_Place = tuple[CodeType | None, int, CodeType | None, int]
NOWHERE: _Place = (None, 0, None, 0)
_CELL = 2  # kinds of files: a cell's, 1 of another file whose lines are told, 0 of any other


@dataclass(frozen=True)
class CellEntry:
    """A cell as it began; ``seconds`` is None while it runs."""

    seq: int
    execution_count: int
    at_ns: int
    seconds: float | None = None
    status: str = "running"


@dataclass(frozen=True, slots=True)
class Program:
    """A compiled multi-process program.

    ``fingerprint`` is equal on all processes that compiled the same program; ``processes`` are
    those whose devices take part; ``executable`` is JAX's, to run it again; ``shipped`` says that
    it came as bytes from another rank; ``waits`` that it may wait for others, or for what can't be
    told; ``collective`` that it has collectives, or may have; ``told`` is what is said of it, made
    once, so that a launch keeps no executable alive.
    """

    name: str
    fingerprint: int
    processes: str
    signature: str
    executable: Any
    shipped: bool = False
    waits: bool = True
    collective: bool = True
    told: tuple[str, str, int, str, bool] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        told = (self.processes, self.name, self.fingerprint, self.signature, self.collective)
        object.__setattr__(self, "told", told)


class Journal:
    """Bounded, so that it costs the same after a day as after a minute.

    Attributes:
      before_launch: in strict mode: called before a program is issued, may raise.
      announced: in strict mode: the launch that waits for the other ranks to announce it too.
      broken: set of processes -> marks of the launches that were made and not carried out.
      refused: the launches of this cell that were not made after all.
      interrupted: an interrupt came between count and launch, and is still to be raised.
      recording: whether JAX's launches reach this journal.
    """

    def __init__(self, size: int = 4096) -> None:
        self.cells: deque[CellEntry] = deque(maxlen=size)
        # (seq, Program.told, the place that launched it, the seq of the cell that ran)
        self._ring: deque[tuple[int, tuple[str, str, int, str, bool], _Place, int]]
        self._ring = deque(maxlen=size)
        # What is done at once for each launch is little, since caches are cold then.
        self._latest: deque[tuple[Program, _Place, int]] = deque()
        self._lock = threading.RLock()
        self._entering = False
        self._counts: dict[str, list[int]] = {}
        self._crossings = Crossings()
        self.broken: dict[str, set[int]] = {}
        self._programs: OrderedDict[int, Program] = OrderedDict()
        self.cell_numbers: dict[str, int] = {}
        self._kinds: dict[str, int] = {}  # of files, while there are as many cells as below
        self._num_cells = 0
        self.before_launch: Callable[[Program], None] | None = None
        self.announced: wire.Launch | None = None
        self.recording = False
        self.refused = 0
        self.interrupted = False
        self._main_thread = threading.main_thread().ident
        self._running = 0  # the seq of the cell that the main thread is in

    def enter(self, seq: int, execution_count: int) -> None:
        self.cells.append(CellEntry(seq, execution_count, time.time_ns()))
        self.refused = 0
        self._running = seq

    def leave(self, status: str, seconds: float) -> None:
        self._running = 0
        entry = self.cells.pop()
        self.cells.append(CellEntry(entry.seq, entry.execution_count, entry.at_ns, seconds, status))

    @property
    def cell_seq(self) -> int:
        """The seq of the cell that runs, or ran last."""
        return self.cells[-1].seq if self.cells else 0

    def launches(self) -> dict[str, list[int]]:
        """Set of processes -> [launches so far, hash of them and of what became of them].

        Pairs of sets that overlap have theirs too, see ``Crossings``.
        """
        told = {}
        for processes, (count, value) in list(self.counts.items()):
            marks = list(self.broken.get(processes, ()))
            told[processes] = [count, functools.reduce(operator.xor, marks, value)]
        return told | self._crossings.told()

    @contextlib.contextmanager
    def unannounced(self) -> Iterator[None]:
        """Inside it this thread's launches are announced to nobody, in strict mode either.

        Those of other threads are, and strict mode is never off: a program that is called
        meanwhile would get a fast path, which asks nobody.
        """
        announce, own = self.before_launch, get_ident()
        if announce is None:
            yield
            return

        def announce_others(program: Program) -> None:
            if get_ident() != own:
                announce(program)

        self.before_launch = announce_others
        try:
            yield
        finally:
            self.before_launch = announce

    def launched(self, program: Program, children: Any = None) -> None:
        """Count a launch: a microsecond, on whichever thread; ``_enter_latest`` does the rest.

        Args:
          children: given where JAX's fast path calls this, after the launch: then an interrupt
            that came during the launch is raised here.
        """
        place = self._place_of(sys._getframe(1))
        running = self._running if get_ident() == self._main_thread else 0
        self._latest.append((program, place, running))
        if len(self._latest) >= LATEST:
            self._enter_latest()
        if self.interrupted and children is not None:
            self.raise_if_interrupted()

    def _place_of(self, frame: FrameType | None) -> _Place:
        if len(self.cell_numbers) != self._num_cells:
            self._kinds, self._num_cells = {}, len(self.cell_numbers)
        kinds, inner = self._kinds, None
        while frame is not None:
            code = frame.f_code
            try:
                kind = kinds[code.co_filename]
            except KeyError:
                kind = self._kind_of(code.co_filename)
            if kind:
                if kind == _CELL:
                    if inner is None:
                        return code, frame.f_lasti, None, 0
                    return code, frame.f_lasti, inner.f_code, inner.f_lasti
                if inner is None:
                    inner = frame
            frame = frame.f_back
        if inner is None:
            return NOWHERE
        return None, 0, inner.f_code, inner.f_lasti

    def _kind_of(self, file: str) -> int:
        kind = _CELL if file in self.cell_numbers else is_telling_file(file)
        self._kinds[file] = kind
        return kind

    def _enter_latest(self) -> None:
        """Enter the latest launches into counts, ring and programs, in their order."""
        with self._lock:
            if self._entering:  # a finalizer of this thread's launches, in the lines below
                return
            self._entering = True
            try:
                # No loop stands here: since Python 3.12 its jump is outside of what ``try`` and
                # ``with`` cover, and what a signal's handler raises there leaves the lock held.
                self._enter_all()
            finally:
                self._entering = False

    def _enter_all(self) -> None:
        while self._latest:
            program, place, running = self._latest.popleft()
            counts = self._counts.get(program.processes)
            if counts is None:
                self._crossings.begin(program.processes, self._counts)
                counts = self._counts[program.processes] = [0, 0]
            self._ring.append((counts[0], program.told, place, running))
            value = counts[1] * _HASH_FACTOR + program.fingerprint
            counts[:] = [counts[0] + 1, value % _HASH_MODULUS]
            self._crossings.launched(program.processes, program.fingerprint)
            self._programs[program.fingerprint] = program
            if len(self._programs) > KEPT_PROGRAMS:
                self._programs.popitem(last=False)

    @property
    def counts(self) -> dict[str, list[int]]:
        """Set of processes -> [launches so far, rolling hash of them]. Any thread."""
        self._enter_latest()
        return self._counts

    @property
    def programs(self) -> OrderedDict[int, Program]:
        """The programs launched last, by fingerprint. Any thread."""
        self._enter_latest()
        return self._programs

    def take_back(self, program: Program, count: int, value: int) -> None:
        """The launch of ``program`` that was counted last was not made.

        Args:
          count: the program's processes' count before it.
          value: their hash before it.
        """
        counts = self.counts[program.processes]
        at = self._last_entry(program)
        if counts[0] != count + 1 or at is None:  # another thread, or a finalizer, has launched
            self.broke_off(program, "by an error before it", for_good=True)
            return
        counts[:] = [count, value]
        self._crossings.take_back(program.processes)
        self.refused += 1
        del self._ring[at]

    def broke_off(self, program: Program, why: str, for_good: bool, seq: int | None = None) -> None:
        """A launch of ``program`` was made, and the devices did not carry it out. Any thread.

        What follows from that is not known here, so this rank's hash becomes another one.

        Args:
          why: a few words that end "broken off".
          for_good: its collectives may have been left halfway, so that this rank agrees with no
            other any more. Else it still agrees with those on which it broke off too.
          seq: the launch. Nothing is done where it is known to have broken off.
        """
        at = self._last_entry(program)
        if seq is not None and (at is None or self._ring[at][0] != seq):
            return
        processes, name, fingerprint, signature, collective = program.told
        mark = hash((fingerprint, self.cell_seq)) % _HASH_MODULUS
        if for_good:
            mark = int.from_bytes(os.urandom(7), "little")
        self.broken.setdefault(processes, set()).add(mark)
        if at is not None:
            launched, _, place, running = self._ring[at]
            name = f"{name}{wire.BROKEN_OFF} {why}"
            told = (processes, name, fingerprint ^ mark, signature, collective)
            self._ring[at] = (launched, told, place, running)

    def _last_entry(self, program: Program) -> int | None:
        self._enter_latest()
        entries = list(self._ring)
        latest = (at for at in reversed(range(len(entries))) if entries[at][1] == program.told)
        return next(latest, None)

    def raise_if_interrupted(self) -> None:
        """Raise the interrupt that came between count and launch: both are done now.

        It is the main thread's alone.
        """
        if self.interrupted and threading.current_thread() is threading.main_thread():
            self.interrupted = False
            raise KeyboardInterrupt

    def between_count_and_launch(self, frame: FrameType | None) -> bool:
        """Whether an exception raised in ``frame`` now would part a launch from its count.

        A signal that came during the launch is handled at the first instruction after it, which is
        in the code that counts, or in what runs on top of that: the handler of an earlier signal,
        a finalizer, a callback of the program.
        """
        while frame is not None:
            if frame.f_code in COUNTING:
                return True
            frame = frame.f_back
        return False

    def place(self) -> tuple[int | None, int | None]:
        """The cell and line that the caller's caller is in."""
        cells = self.cell_numbers
        frame: FrameType | None = sys._getframe(2)
        while frame is not None:
            number = cells.get(frame.f_code.co_filename)
            if number is not None:
                return number, frame.f_lineno
            frame = frame.f_back
        return None, None

    def within(self) -> str:
        """The line of a script, module or library that the caller's caller is in; "" in a cell."""
        return self._tell(self._place_of(sys._getframe(2)))[2]

    def tail(self, count: int) -> list[wire.Launch]:
        """The last ``count`` launches, oldest first. Any thread."""
        return wire.unpacked(*self.packed_tail(count))

    def packed_tail(self, count: int) -> tuple[list[wire.Launch], list[list[int]]]:
        """The same as a ``PollReply`` has it, without an object for each launch."""
        self._enter_latest()
        # By identity: code of two files with the same text is equal.
        numbers: dict[tuple[Any, ...], int] = {}
        kinds: list[wire.Launch] = []
        made = []
        for seq, told, place, running in list(self._ring)[-count:]:
            key = told, id(place[0]), place[1], id(place[2]), place[3], running
            number = numbers.get(key)
            if number is None:
                number = numbers[key] = len(kinds)
                processes, name, fingerprint, signature, collective = told
                cell, line, within = self._tell(place)
                kinds.append(
                    wire.Launch(
                        0,
                        processes,
                        name,
                        fingerprint,
                        cell,
                        line,
                        signature,
                        running,
                        collective,
                        within,
                    )
                )
            made.append([seq, number])
        return kinds, made

    def _tell(self, place: _Place) -> tuple[int | None, int | None, str]:
        """Cell, line, and the line of a script, module or library that the cell has called."""
        code, instruction, inner, at = place
        cell = line = None
        if code is not None:
            cell, line = self.cell_numbers[code.co_filename], _line(code, instruction)
        within = ""
        if inner is not None and (number := _line(inner, at)) is not None:
            source = linecache.getline(inner.co_filename, number).strip()
            within = f"{short_name(inner.co_filename)} line {number}"
            within += f": {source[:SOURCE_CHARS]}" if source else ""
        return cell, line, within

    def restart(self) -> None:
        """Forget all launches: the ranks are back in lockstep and count from here."""
        self.counts.clear()
        self._ring.clear()
        self._crossings.clear()
        self.broken.clear()


def _line(code: CodeType, instruction: int) -> int | None:
    """The line of the instruction at this offset, as ``frame.f_lineno`` has it."""
    positions = itertools.islice(code.co_positions(), instruction // 2, None)
    return next(positions, (None,))[0]


# The code in which a launch is counted; the hooks that call it add theirs.
COUNTING: set[CodeType] = {
    Journal.launched.__code__,
    Journal._place_of.__code__,
    Journal._kind_of.__code__,
    Journal._enter_latest.__code__,
    Journal._enter_all.__code__,
}

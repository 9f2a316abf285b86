"""A rank's flight recorder: the cells that it ran and the multi-process programs it launched.

JAX's one rule is that the processes which share a program launch the same programs in the same
order. So for every set of processes the journal keeps a count and a rolling hash of the launches
that the set shares: equal on all its members as long as they are in lockstep.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import itertools
import linecache
import operator
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from threading import get_ident
from time import monotonic
from types import CodeType, FrameType
from typing import TYPE_CHECKING, Any

from jaxcluster import wire
from jaxcluster.engine import stacks
from jaxcluster.engine.blackbox import NO_BOX, SLOT_SIZE, SLOTS, BlackBox, ours, write_slot
from jaxcluster.engine.counted import (
    LATEST,
    NOWHERE,
    CountedLaunches,
    Entry,
    Launch,
    Place,
    Program,
    Site,
    Told,
    count_launch,
)
from jaxcluster.engine.crossings import Crossings
from jaxcluster.engine.library_code import installed_name, is_telling_file, short_name
from jaxcluster.engine.replicas import HostValues

if TYPE_CHECKING:
    from jaxcluster.engine.first_launches import FirstLaunches

KEPT_ENDS = 8  # cells of which it is known what they launched themselves
SOURCE_CHARS = 80  # of a line that has launched something

_Cell = tuple[int]  # the seq of the cell that the main thread is in
_Noted = tuple[CodeType, _Cell, Site, Any, Iterator[int], list[int], int, int]  # as the box does
# Launches in flight, and counts, pairs of sets and last entries without these.
_Moment = tuple[list[Launch], dict[str, list[int]], Crossings, list[Entry]]
_ANYWHERE = -1  # in that frame
SETTLING = 3  # looks, at most, until no launch ends while it is looked
_CELL = 2  # kinds of files: a cell's, 1 of another file whose lines are told, 0 of any other


class Journal(CountedLaunches):
    """Bounded, so that it costs the same after a day as after a minute.

    Attributes:
      cell_seq: the seq of the cell that runs, or ran last.
      before_launch: in strict mode: called before a program is issued, may raise.
      taken_back: in strict mode: called where XLA has refused what was announced last.
      first: announces first launches, where others might meet them; may refuse one.
      waiting: the launches, of any threads, that wait for the other ranks: in strict mode for their
        announcements; on GPU where a program is compiled.
      refused: the one that ``first`` has refused in the cell.
      given_up: in strict mode, by its set, what the cell that runs, or ran last, has announced and
        not launched: it was interrupted.
      box: what is left of it when the process has died.
      interrupted: an interrupt came while a launch called Python, and is still to be raised.
      recording: whether JAX's launches reach this journal.
      guard: the thread that alone may launch, by ``jax.thread_guard``; 0: any may.
      host_values: what cells give to programs, and read, of which each process has a copy.
    """

    def __init__(self, size: int = 4096) -> None:
        super().__init__(size)
        self.cell_seq = 0
        # What is done at once for each launch is little, since caches are cold then.
        self._begun: dict[int, Launch] = {}  # by thread: also what was not made after all
        self._ended: dict[int, tuple[Launch, object]] = {}  # in _begun, and in an error; by whom
        self.cell_numbers: dict[str, int] = {}
        self._kinds: dict[str, int] = {}  # of files, while there are as many cells as below
        self._num_cells = 0
        self.before_launch: Callable[[Program], None] | None = None
        self.taken_back: Callable[[Program], None] | None = None
        self.box: BlackBox | None = None
        self.first: FirstLaunches | None = None
        self.waiting: list[wire.Launch] = []
        self.refused: wire.Launch | None = None
        self.given_up: dict[str, wire.Launch] = {}
        self.recording = False
        self.guard = 0
        self.host_values = HostValues(self.place)
        self.interrupted = False
        self._main_thread = threading.main_thread().ident
        self.cell_ranks: tuple[int, ...] = ()  # those that were sent the last cell too
        self._running = 0  # the seq of the cell that the main thread is in
        # The same, where all that the main thread launches is that cell's; else None. It is another
        # tuple as soon as what is noted of a launch does not hold for the next one.
        self._plain: list[_Cell | None] = [(0,)]
        self._task: asyncio.Future[Any] | None = None
        self._child_of: int | None = None  # a rank, whose forked child this process is
        self._ours = 0  # the thread whose launches are replays or checks

    def keep_in(self, path: str) -> None:
        """Keep the last launches in a file, for whoever asks after this process's death."""
        with contextlib.suppress(OSError):  # no room, or a file system that can't: then nobody can
            self.box = BlackBox(path, self._tell, self._set_plain)

    def enter(self, seq: int, ranks: tuple[int, ...] = ()) -> None:
        self.cell_seq = seq
        self.cell_ranks = ranks
        self.refused = None
        self.given_up = {}
        if self.box is not None:
            self.box.correct(self.launches() if self._begun else self.counts)
        self._enter_latest()
        self._own[seq] = {}
        for old in list(self._own)[:-KEPT_ENDS]:
            del self._own[old]
        self.host_values.begin()
        self._running = seq
        self._set_plain()

    def leave(self) -> None:
        self._running, self.task = 0, None
        if self.first is not None:
            self.first.end_cell()

    @property
    def announced(self) -> wire.Launch | None:
        """What is to be told of those: what waits, or was refused. Any thread."""
        return next(reversed(self.waiting[-1:]), self.refused)

    def launches(self) -> dict[str, list[int]]:
        """Set of processes -> [launches so far, hash of them and of what became of them].

        Pairs of sets that overlap have theirs too, see ``Crossings``.
        """
        flights, counts, crossings, _ = self._at_one_moment()
        for (program, *_), *_ in flights:
            count_launch(counts, crossings, program.processes, program.fingerprint)
        told = {}
        for processes, (count, value) in list(counts.items()):
            marks = list(self.broken.get(processes, ()))
            told[processes] = [count, functools.reduce(operator.xor, marks, value)]
        return told | crossings.told()

    def own(self, seq: int) -> dict[str, list[int]]:
        """Set of processes -> [launches of the main thread in cell ``seq``, their hash]."""
        self._hear()
        self._enter_latest()
        return {processes: list(held) for processes, held in self._own.get(seq, {}).items()}

    @property
    def foreign(self) -> list[str]:
        """The sets of which something else than cells has launched: threads, tasks, timers."""
        self._enter_latest()
        return sorted(self._foreign)

    def set_guard(self, is_set: bool) -> None:
        """From now on this thread alone may launch, or all may again."""
        self._hear()  # what was refused until now
        self.guard = get_ident() if is_set else 0

    @property
    def task(self) -> asyncio.Future[Any] | None:
        """Where the cell awaits, its own task: what others launch meanwhile is not the cell's."""
        return self._task

    @task.setter
    def task(self, task: asyncio.Future[Any] | None) -> None:
        self._task = task
        self._set_plain()

    def _set_plain(self) -> None:
        is_plain = self._task is None and not self._ours and self._child_of is None
        self._plain[0] = (self._running,) if is_plain else None

    def become_child(self, rank: int) -> None:
        """In a process that was forked from a rank: nothing that spans processes is launched.

        What it would send on the connections that it shares ends its parent's or others' processes,
        and what it notes of it would be the rank's.
        """
        self._child_of, self.before_launch = rank, lambda program: self.check_own(program.name)
        self._set_plain()

    def check_own(self, name: str) -> None:
        """Whether this process may compile and launch a program that spans processes.

        Raises:
          RuntimeError: it was forked from a rank.
        """
        if self._child_of is not None:
            raise RuntimeError(
                f"This process was forked from rank {self._child_of}, so it can't launch {name}, "
                "which spans processes: it shares the rank's connections. Launch it on the rank, "
                "and give the child numpy arrays."
            )

    @contextlib.contextmanager
    def unannounced(self) -> Iterator[None]:
        """Inside it this thread's launches are nobody's, and announced to nobody.

        Those of other threads are, and strict mode is never off: a program that is called
        meanwhile would get a fast path, which asks nobody.
        """
        announce, own = self.before_launch, get_ident()

        def announce_others(program: Program) -> None:
            if announce is not None and get_ident() != own:
                announce(program)

        self._ours = own
        self._set_plain()
        if announce is not None:
            self.before_launch = announce_others
        try:
            yield
        finally:
            self._ours, self.before_launch = 0, announce
            self._set_plain()

    # ------------------------------------------------------------------------- launch and count

    def preparations(self, program: Program, result: Any) -> Iterator[Any]:
        """Each ``next`` of it, which gives ``result``: JAX's fast path launches ``program`` next.

        A microsecond, on whichever thread. The launch counts once its thread has taken the next of
        ``confirmations``. If it never does, the launch was not made, or has ended in an error.

        All that takes Python comes first, where an error does no harm: nothing is launched. It goes
        deeper than the confirmation, so that a RecursionError comes here too. That the launch has
        begun is noted by C alone, with nothing in between but JAX's C++.
        """
        plain, begun, made = self._plain, self._begun, self._made
        main_thread, with_care = self._main_thread, self._prepare_with_care
        noted: dict[int, _Noted] = {}  # how a launch by this instruction was noted last

        # In the way of each launch, where caches are cold: so it is short, and looks up little.
        def prepare(
            program: Program,
            noted: dict[int, _Noted] = noted,
            plain: list[_Cell | None] = plain,
            begun: dict[int, Launch] = begun,
            made: list[Any] = made,
            main_thread: int | None = main_thread,
            get_ident: Callable[[], int] = get_ident,
            get_frame: Callable[[int], FrameType] = sys._getframe,
            monotonic: Callable[[], float] = monotonic,
            write: Callable[..., None] = write_slot,
        ) -> tuple[int, Launch]:
            """A thread, and the launch that it is about to make from the caller's frame."""
            ident = get_ident()
            caller: FrameType | None
            try:
                caller = get_frame(1)
                code, cell, site, file, numbers, seqs, number, line = noted[caller.f_lasti]
            except (KeyError, ValueError):  # not launched by this before, or by no Python
                caller = None
            if (
                caller is None
                or caller.f_code is not code
                or plain[0] is not cell
                or ident != main_thread
                or begun
                or len(made) >= LATEST
            ):
                # Not in ``except``: what is raised there was not raised because of it.
                return with_care(program, ident, get_frame(0).f_back, noted)
            if file is not None:
                n, seq = next(numbers), seqs[0]
                seqs[0] = seq + 1
                write(file, n % SLOTS * SLOT_SIZE, n, seq, number, line, cell[0])
            return ident, (site, monotonic(), id(caller))

        prepared = map(prepare, itertools.repeat(program))
        begin = itertools.starmap(begun.__setitem__, prepared)
        return itertools.compress(itertools.repeat(result), map(operator.not_, begin))

    def _prepare_with_care(
        self, program: Program, ident: int, caller: FrameType | None, noted: dict[int, _Noted]
    ) -> tuple[int, Launch]:
        self.check_own(program.name)
        if ident in self._begun:
            self._settle(ident, self._begun[ident], caller)
        place, running = self._place_of(caller), self.origin()
        if len(self._made) >= LATEST:
            self._enter_latest()
        in_box = self.box.note(program, place, running) if self.box is not None else NO_BOX
        now = monotonic()
        if caller is None:
            return ident, ((program, place, running, 0), now, 0)
        code, at, cell = caller.f_code, caller.f_lasti, self._plain[0]
        site = program, place, running, at
        if place[0] is code and cell is not None and ident == self._main_thread:
            noted[at] = (code, cell, site, *in_box)
        return ident, (site, now, id(caller))

    def confirmations(self, program: Program) -> Iterator[None]:
        """Each ``next`` of it counts a launch of ``program``, which this thread has just made.

        In C alone: no bytecode runs, so no signal's handler, trace function or asynchronous
        exception can raise.
        """
        idents = itertools.starmap(get_ident, itertools.repeat(()))
        begun = map(self._begun.pop, idents, itertools.repeat(program))
        return map(self._made.append, begun)

    def launch(
        self,
        program: Program,
        refused: Callable[[BaseException], bool],
        call: Callable[..., Any],
        *arguments: Any,
    ) -> Any:
        """What ``call`` returns, which launches ``program``, and may wait for others. Any thread.

        Args:
          refused: whether an error of ``call`` says that it has launched nothing. After any other
            the launch counts, as one that broke off.
        """
        frame, ident = sys._getframe(), get_ident()
        if ident in self._begun:
            self._settle(ident, self._begun[ident], frame.f_back)
        place, running = self._place_of(frame.f_back), self.origin()
        if len(self._made) >= LATEST:
            self._enter_latest()
        if (box := self.box) is not None:
            box.note(program, place, running)
        launch = (program, place, running, _ANYWHERE), monotonic(), id(frame)
        begin = map(self._begun.__setitem__, (ident,), (launch,))
        check = map(self._begun.__getitem__, (get_ident(),))  # as deep a recursion as to confirm
        confirm = itertools.islice(self.confirmations(program), 1)
        results: list[Any] = []
        try:
            # Begun, launched and counted by one call of C: see ``confirmations``.
            made = itertools.starmap(call, (arguments,))
            results.extend(itertools.chain(begin, check, made, confirm))
        except BaseException as error:
            # With all results it was a signal's handler, or the like, that raised after the call.
            if len(results) < 3 and self._begun.get(ident) is launch:
                if len(results) == 2 and not refused(error):
                    self._break_off(launch, f"by {type(error).__name__}")
                else:
                    self._not_made(launch)
                    if self.taken_back is not None:
                        self.taken_back(program)
                del self._begun[ident]
            raise
        return results[2]

    def _not_made(self, launch: Launch) -> None:
        self._old.pop(id(launch), None)
        if self.box is not None:
            self.box.take_back(launch[0][0].processes)

    def origin(self) -> int:
        """The seq of the cell whose own launch is made now; 0: it is not a cell's."""
        ident = get_ident()
        if ident == self._ours:
            return wire.OURS
        if ident != self._main_thread:
            return 0
        task = self.task
        if task is not None and asyncio.tasks.current_task() is not task:
            return 0
        return self._running

    def _settle(self, ident: int, launch: Launch, frame: FrameType | None) -> None:
        """This thread has begun ``launch``, has not confirmed it, and launches from ``frame``."""
        above = None
        while frame is not None and not _is_at(frame, launch):
            above, frame = frame, frame.f_back
        (program, *_), *_ = launch
        if above is not None and above.f_code.co_name == "cache_miss":  # JAX has left its fast path
            self._not_made(launch)
        elif frame is None or above is None:  # or JAX's fast path has raised, and is tried again
            self._end(ident, launch)
        else:
            # A finalizer, or a signal's handler, launches in the middle of it.
            if not program.calls_python:
                why = "or launched after a finalizer's program"
                self._mark(program, why, True, self.cell_seq, launch)
            self._outer[id(program)] = launch

    def _end(self, ident: int, launch: Launch) -> None:
        """A launch that a thread has begun has ended in an error, which only the user's code sees.

        Where nothing can break off in a launch, XLA has refused it. Else it counts as broken off,
        except where it is known what has refused it.
        """
        if id(launch) in self._ended:
            return
        (program, *_, instruction), *_ = launch
        is_refused = self.guard not in (0, ident)
        if is_refused or not (instruction == _ANYWHERE or program.may_break_off):
            if self._claim(launch):
                self._not_made(launch)
            return
        self._note_break(launch, "by an error")
        if self._claim(launch):
            self._made.append(launch)

    def _claim(self, launch: Launch) -> bool:
        """Whether the caller is the first of all threads to see that this launch has ended."""
        begun = set(map(id, self._begun.values()))
        for key in self._ended.keys() - begun:
            self._ended.pop(key, None)
        caller = object()
        return self._ended.setdefault(id(launch), (launch, caller))[1] is caller

    def _hear(self) -> None:
        """Find the launches that have ended in their program's error. Any thread."""
        for ident, launch in self._unheard():
            self._end(ident, launch)

    def _unheard(self) -> list[tuple[int, Launch]]:
        """The threads whose launch has ended so, and that launch; nobody has found it yet."""
        return [
            (ident, launch)
            for ident, launch in list(self._begun.items())
            if launch[0][0].may_break_off
            and launch[0][3] != _ANYWHERE
            and id(launch) not in self._ended
            and not _is_within(ident, launch)
            and self._begun.get(ident) is launch  # else it was confirmed, or replaced, meanwhile
        ]

    def _break_off(self, launch: Launch, why: str) -> None:
        self._note_break(launch, why)
        self._made.append(launch)

    def _note_break(self, launch: Launch, why: str) -> None:
        (program, *_), *_ = launch
        for_good = program.executable is None  # a transfer, which no check of sums sees
        if id(launch) not in self._breaks:  # else heard of where it happened
            self._mark(program, why, for_good, self.cell_seq, launch)

    def _in_flight(self) -> list[Launch]:
        """The launches that have begun, and have neither been confirmed nor failed. Any thread.

        What a rank waits in is among them.
        """
        if not self._begun:
            return []
        begun = list(self._begun.items())
        return [launch for ident, launch in begun if _is_within(ident, launch)]

    def _settled(self) -> list[Launch]:
        """The launches in flight, at a moment when all that are made are entered."""
        flights: list[Launch] = []
        for _ in range(SETTLING):
            self._hear()
            self._enter_latest()
            flights = self._in_flight()
            if not self._made and not self._unheard():
                break
        return flights

    def _at_one_moment(self, last: int = 0) -> _Moment:
        """The launches in flight, and copies of the counts and the ``last`` entries without them.

        Read one by one, they may be of before and after a launch: a pair of sets that is behind
        its sets looks like another order.
        """
        for _ in range(SETTLING):
            flights = self._settled()
            before = self._entered[:], self.restarts
            counts, crossings = self._counts.copy(), self._crossings.copy()
            entries = list(self._ring)[-last:] if last else []
            still = self._in_flight()
            alike = len(flights) == len(still) and all(map(operator.is_, flights, still))
            flights = [launch for launch in flights if id(launch) not in self._old]
            if alike and before == (self._entered, self.restarts):
                break
        return flights, counts, crossings, entries

    def _place_of(self, frame: FrameType | None) -> Place:
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

    @property
    def counts(self) -> dict[str, list[int]]:
        """Set of processes -> [launches so far, rolling hash of them]. Any thread."""
        self._hear()
        self._enter_latest()
        return self._counts

    def program(self, fingerprint: int) -> Program | None:
        """One of the programs launched last, also one that this rank waits in. Any thread."""
        flights = self._settled()
        begun = (program for (program, *_), *_ in flights if program.fingerprint == fingerprint)
        return self._programs.get(fingerprint) or next(begun, None)

    def broke_off(self, program: Program, why: str, for_good: bool) -> None:
        """A launch of ``program`` was made, and the devices did not carry it out. Any thread.

        What follows from that is not known here, so this rank's hash becomes another one.

        Args:
          why: a few words that follow "aborted".
          for_good: this rank agrees with no other any more. Else it still agrees with those on
            which it broke off alike; that nothing of it is left over in a collective is to be
            checked then.
        """
        flights = [launch for launch in self._settled() if launch[0][0] is program]
        told = self._mark(program, why, for_good, self.cell_seq, *flights[:1])
        entries = list(self._ring) if not flights else []
        latest = (at for at in reversed(range(len(entries))) if entries[at][1] == program.told)
        if (at := next(latest, None)) is not None:
            seq, _, place, running, when = entries[at]
            self._ring[at] = (seq, told, place, running, when)

    def raise_if_interrupted(self) -> None:
        """Raise the interrupt that came while a launch called Python: it has ended now.

        It is the main thread's alone.
        """
        if self.interrupted and threading.current_thread() is threading.main_thread():
            self.interrupted = False
            raise KeyboardInterrupt

    def has_just_launched(self, frame: FrameType) -> bool:
        """Whether ``frame``, the main thread's, stands where its last launch has returned."""
        last = self._made[-1:]
        return bool(last) and type(last[0]) is tuple and _is_at(frame, last[0])

    def may_hold_results(self, frame: FrameType) -> bool:
        """Whether what the last launch has given may have no name yet: ``frame`` is in it."""
        if (place := self._last_place()) is None:
            return False
        return place[0] is None or place == self._place_of(frame)

    def _last_place(self) -> Place | None:
        """Where the last launch was made; None where there was none."""
        if not (made := self._made[-1:]):
            return self._ring[-1][2] if self._ring else None
        if not isinstance(made[0], tuple):
            return NOWHERE  # another was launched in the middle of it
        (_, place, *_), _, _ = made[0]
        return place

    def stands_at(self, places: Iterable[tuple[CodeType, int, int]]) -> str:
        """Cell or file, line and instruction of each of these ``places``: ``3:12:40``.

        Args:
          places: code, line and instruction, innermost first.

        Of cells and of the user's own files; and of what is installed, if that has launched last:
        it may have the results, as a library's loop.
        """
        _, _, inner, _ = self._last_place() or NOWHERE
        is_whole = inner is not None and installed_name(inner.co_filename) is not None
        where = []
        for code, line, instruction in places:
            file = code.co_filename
            is_own = is_telling_file(file) and (is_whole or installed_name(file) is None)
            if file in self.cell_numbers or is_own:
                told = self.cell_numbers.get(file) or short_name(file)
                where.append(f"{told}:{line}:{instruction}")
        return "/".join(where)

    def is_launching(self, frame: FrameType | None) -> bool:
        """Whether an exception raised in ``frame`` now would break off a program that runs.

        It would where the program calls Python on the thread that launched it.
        """
        return any(each.f_code in LAUNCHING for each in outward(frame))

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

    def upcoming(self, program: Program) -> wire.Launch:
        """A launch of ``program`` by the caller's caller, as it would be told of."""
        cell, line = self.place()
        *_, within = self._tell(self._place_of(sys._getframe(2)))
        seq, _ = self.counts.get(program.processes, (0, 0))
        return _launch(seq, program.told, cell, line, self.cell_seq, within)

    @contextlib.contextmanager
    def announcing(self, upcoming: wire.Launch) -> Iterator[None]:
        """Inside it this launch waits for the other ranks, and the control channel says so.

        Not where the thread's launches are nobody's.
        """
        origin = self.origin()
        if origin == wire.OURS:
            yield
            return
        upcoming = replace(upcoming, cell_seq=origin)
        self.waiting.append(upcoming)
        try:
            yield
        finally:
            self.waiting.remove(upcoming)

    def tail(self, count: int) -> list[wire.Launch]:
        """The last ``count`` launches, oldest first. Any thread."""
        return wire.unpacked(*self.packed_tail(count))

    def packed_tail(self, count: int) -> tuple[list[wire.Launch], list[list[int]]]:
        """The same as a ``PollReply`` has it, without an object for each launch."""
        kinds, made = self.timed_tail(count)
        return kinds, [row[:2] for row in made]

    def timed_tail(self, count: int) -> tuple[list[wire.Launch], list[list[int]]]:
        """The same as ``LaunchTimes`` has it: with when each was begun, in microseconds."""
        flights, latest, _, entries = self._at_one_moment(count)
        counts = {processes: count for processes, (count, _) in latest.items()}
        for launch in flights:
            (program, place, running, _), when, _ = launch
            seq = counts.get(program.processes, 0)
            counts[program.processes] = seq + 1
            told = self._breaks.get(id(launch), (launch, program.told))[1]
            entries.append((seq, told, place, running, when))
        # By identity: code of two files with the same text is equal.
        numbers: dict[tuple[Any, ...], int] = {}
        kinds: list[wire.Launch] = []
        made = []
        for seq, told, place, running, when in entries[-count:]:
            key = told, id(place[0]), place[1], id(place[2]), place[3], running
            number = numbers.get(key)
            if number is None:
                number = numbers[key] = len(kinds)
                cell, line, within = self._tell(place)
                if running == wire.OURS:  # no line of anybody's has asked for it
                    within = ours(told[1])
                kinds.append(_launch(0, told, cell, line, running, within))
            made.append([seq, number, int(1e6 * when)])
        return kinds, made

    def _tell(self, place: Place) -> tuple[int | None, int | None, str]:
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

    # ------------------------------------------------------------------------ counts from zero

    def restart(self, number: int | None = None, since: Mapping[str, int] | None = None) -> None:
        """Forget launches: the ranks are back in lockstep and count from zero.

        Args:
          number: which time it is; nothing is done where this rank has been told already. None:
            the next one.
          since: set of processes -> how many launches of it all its members had made by then: what
            a thread has launched since is counted. None: nothing is.
        """
        number = self.restarts + 1 if number is None else number
        if number <= self.restarts:
            return
        if since is None:  # all that is entered
            since = {p: count for p, (count, _) in self.counts.items()}
        self._settled()
        while not self._count_anew(number, since, self._in_flight):
            self._settled()
        if self.box is not None:
            self.box.restart()
            self.box.correct(self._counts)


def _launch(
    seq: int, told: Told, cell: int | None, line: int | None, running: int, within: str
) -> wire.Launch:
    processes, name, fingerprint, signature, collective = told
    launch = wire.Launch(seq, processes, name, fingerprint, cell, line, signature)
    return replace(launch, cell_seq=running, collective=collective, within=within)


def _line(code: CodeType, instruction: int) -> int | None:
    """The line of the instruction at this offset, as ``frame.f_lineno`` has it."""
    positions = itertools.islice(code.co_positions(), instruction // 2, None)
    return next(positions, (None,))[0]


def outward(frame: FrameType | None) -> Iterator[FrameType]:
    """``frame``, and those that have called it."""
    while frame is not None:
        yield frame
        frame = frame.f_back


def _is_at(frame: FrameType, launch: Launch) -> bool:
    (*_, instruction), _, made_by = launch
    return id(frame) == made_by and instruction in (_ANYWHERE, frame.f_lasti)


def _is_within(ident: int, launch: Launch) -> bool:
    """Whether a thread is in a launch yet."""
    (*_, instruction), _, made_by = launch
    # Without an id no Python has called it.
    return not made_by or any(
        frame == made_by and instruction in (_ANYWHERE, at) for frame, at in stacks.frames_of(ident)
    )


# The code that calls XLA.
LAUNCHING: set[CodeType] = {Journal.launch.__code__}

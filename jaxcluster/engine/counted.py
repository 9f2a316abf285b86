"""The launches that a rank has made, entered one after the other: counts, hashes, what came last.

What is entered comes from any thread, and is asked for on any: so all changes at once, or nothing
does, and who finds that another has been quicker begins again.
"""

from __future__ import annotations

import functools
import hashlib
import operator
import os
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from time import monotonic
from types import CodeType
from typing import Any

from jaxcluster import wire
from jaxcluster.engine.crossings import Crossings

_HASH_MODULUS = wire.HASH_MODULUS
_HASH_FACTOR = wire.HASH_FACTOR
KEPT_PROGRAMS = 512
LATEST = 128  # launches that are entered at once

# The code and instruction of the cell's line that launched a program, and those of the innermost
# line that is not JAX's, where that is not in a cell.
Place = tuple[CodeType | None, int, CodeType | None, int]
NOWHERE: Place = (None, 0, None, 0)
Told = tuple[str, str, int, str, bool]  # Program.told
# What a line's launches in a cell have in common, which is made once: their program, their place,
# the seq of the cell that the main thread was in (0 on another thread), and the instruction that
# makes them.
Site = tuple["Program", Place, int, int]
# A launch: that, when it was begun (a host's processes share that clock), and the frame that makes
# it, which with the instruction says whether it still does.
Launch = tuple[Site, float, int]
Entry = tuple[int, Told, Place, int, float]  # its place in its set's sequence, its cell and time
Own = dict[int, dict[str, list[int]]]  # a cell's seq -> set -> [launches of it, hash]
# By which the hash of LATEST launches in a row has each of them.
_FACTORS = [pow(_HASH_FACTOR, k, _HASH_MODULUS) for k in reversed(range(LATEST))]
_told_of, _fingerprint_of = operator.attrgetter("told"), operator.attrgetter("fingerprint")


@dataclass(frozen=True, slots=True)
class Program:
    """A compiled multi-process program.

    ``fingerprint`` is equal on all processes that compiled the same program; ``processes`` are
    those whose devices take part; ``executable`` is JAX's, to run it again; ``shipped`` says that
    it came as bytes from another rank; ``collective`` that it has collectives, or may have;
    ``calls_python`` that it calls Python functions while it runs; ``inline`` that the thread that
    launches it may also run it, so that a launch ends in its error; ``told`` is what is said of it,
    made once, so that a launch keeps no executable alive.
    """

    name: str
    fingerprint: int
    processes: str
    signature: str
    executable: Any
    shipped: bool = False
    collective: bool = True
    calls_python: bool = False
    inline: bool = False
    told: Told = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        told = (self.processes, self.name, self.fingerprint, self.signature, self.collective)
        object.__setattr__(self, "told", told)

    @property
    def may_break_off(self) -> bool:
        """Whether a launch of it may end in an error of its collectives."""
        return self.inline and self.collective


class CountedLaunches:
    """Bounded, so that it costs the same after a day as after a minute.

    Attributes:
      restarts: how often the ranks have begun to count from zero.
      broken: set of processes -> marks of the launches that were made and not carried out.
      unchecked: one of these had collectives, and no check has been made since.
    """

    def __init__(self, size: int) -> None:
        self._ring: deque[Entry] = deque(maxlen=size)
        self._made: list[Launch | Program] = []  # not entered yet; a program: see _outer
        self._outer: dict[int, Launch] = {}  # begun, and another was launched in the middle
        self._breaks: dict[int, tuple[Launch, Told]] = {}  # broken off before they were entered
        self._old: dict[int, Launch] = {}  # of before the ranks counted from zero: not counted
        self._entered = [0]  # how often counts have changed
        self._counts: dict[str, list[int]] = {}
        self._crossings = Crossings()
        self._programs: OrderedDict[int, Program] = OrderedDict()
        self._own: Own = {}
        self._foreign: set[str] = set()
        self.broken: dict[str, set[int]] = {}
        self.unchecked = False
        self.restarts = 0

    def _mark(
        self, program: Program, why: str, for_good: bool, cell: int, *launches: Launch
    ) -> Told:
        """How a launch is told of that was not carried out; ``launches``: it, if not entered yet.

        Args:
          cell: the seq of the one that runs, or ran last.
        """
        processes, name, fingerprint, signature, collective = program.told
        alike = f"{fingerprint} {cell} {why}".encode()
        mark = int.from_bytes(hashlib.blake2b(alike, digest_size=7).digest(), "little")
        if for_good:
            mark = int.from_bytes(os.urandom(7), "little")
        name = f"{name}{wire.BROKEN_OFF} {why}"
        told = processes, name, fingerprint ^ mark, signature, collective
        for launch in launches:  # first, so that it is known whose mark it is
            self._breaks[id(launch)] = launch, told
        self.broken.setdefault(processes, set()).add(mark)
        self._entered[0] += 1
        self.unchecked |= collective
        return told

    def _enter_latest(self) -> None:
        """Enter the latest launches into counts, ring and programs, in their order.

        Each time all or nothing, so what raises in it on the main thread loses none. Who finds that
        another has been quicker, a thread or a finalizer in the middle of it, begins again.
        """
        while True:
            # In this order: what was entered between the two is found at the end of this.
            (entered,) = self._entered
            if not (made := self._made[:LATEST]):
                return
            counts, crossings = self._counts.copy(), self._crossings.copy()
            own: Own = {}
            unusual: list[dict[int, Any]] = [self._outer, self._breaks, self._old]
            had = [list(each) for each in unusual]
            left = outer, breaks, old = [each.copy() for each in unusual]
            is_plain = not (crossings or outer or breaks or old)
            is_plain &= set(map(type, made)) == {tuple}
            entries = self._enter_rows(made, counts, own) if is_plain else None
            if entries is None:
                entries = []
                for each in made:
                    launch = (
                        each if isinstance(each, tuple) else outer.pop(id(each), _nowhere(each))
                    )
                    (program, place, running, _), when, _ = launch
                    told = program.told
                    if breaks:
                        told = breaks.pop(id(launch), (launch, told))[1]
                    self._keep_program(program)
                    if old.pop(id(launch), None) is not None:
                        continue
                    seq = count_launch(counts, crossings, program.processes, program.fingerprint)
                    entries.append((seq, told, place, running, when))
                    self._add_own(own, program.processes, running, 1, program.fingerprint)
            steps: list[Callable[[], Any]] = [
                functools.partial(self._counts.update, counts),
                functools.partial(setattr, self, "_crossings", crossings),
                functools.partial(self._own.update, own),
                functools.partial(self._ring.extend, entries),
                functools.partial(operator.delitem, self._made, slice(len(made))),
            ]
            for one, keys, kept in zip(unusual, had, left, strict=True):
                steps += [functools.partial(one.pop, key) for key in keys if key not in kept]
            self._at_once(entered, steps)

    def _at_once(self, entered: int, steps: Iterable[Callable[[], Any]]) -> bool:
        """Take these steps in one call of C, see ``confirmations``.

        False, and nothing is done, where counts have changed since ``entered`` was read.
        """
        first = functools.partial(self._entered.remove, entered)
        second = functools.partial(self._entered.append, entered + 1)
        calls: list[Callable[[], Any]] = [first, second, *steps]
        try:
            deque(map(operator.call, calls), maxlen=0)
        except ValueError:
            if entered in self._entered:
                raise
            return False
        return True

    def _enter_rows(
        self, made: list[Any], counts: dict[str, list[int]], own: Own
    ) -> list[Entry] | None:
        """Enter launches, those in a row of one set and cell at once, into ``counts`` and ``own``.

        None, and nothing is entered, where a set has its first launch: it may share ranks with
        others.
        """
        sites, times, _ = zip(*made, strict=True)
        programs, places, cells, _ = zip(*sites, strict=True)
        distinct = dict(zip(map(id, programs), programs, strict=True)).values()
        if len(set(cells)) == 1 and len({program.processes for program in distinct}) == 1:
            # So it mostly is, and then the launches need no bytecode each.
            processes, cell, number = programs[0].processes, cells[0], len(made)
            if processes not in counts:
                return None
            for program in distinct:
                self._keep_program(program)
            seq = counts[processes][0]
            terms = map(operator.mul, map(_fingerprint_of, programs), _FACTORS[-number:])
            value = sum(terms) % _HASH_MODULUS
            _add(counts, processes, number, value)
            self._add_own(own, processes, cell, number, value)
            told_of = map(_told_of, programs)
            return list(zip(range(seq, seq + number), told_of, places, cells, times, strict=True))
        entries: list[Entry] = []
        rows: list[tuple[str, int, int, int]] = []  # set, cell, launches, their hash
        last, processes, cell = None, "", 0
        seq = begin = value = 0
        begun: dict[str, int] = {}
        for (program, place, running, _), when, _ in made:
            if program is not last:
                last, told, fingerprint = program, program.told, program.fingerprint
                if self._programs.get(fingerprint) is not program:
                    self._keep_program(program)
            if running != cell or program.processes != processes or not entries:
                if entries:
                    rows.append((processes, cell, seq - begin, value))
                    begun[processes] = seq
                processes, cell, value = program.processes, running, 0
                if processes not in counts:
                    return None
                begin = seq = begun.get(processes, counts[processes][0])
            entries.append((seq, told, place, running, when))
            seq += 1
            value = (value * _HASH_FACTOR + fingerprint) % _HASH_MODULUS
        rows.append((processes, cell, seq - begin, value))
        for processes, cell, number, value in rows:
            _add(counts, processes, number, value)
            self._add_own(own, processes, cell, number, value)
        return entries

    def _add_own(
        self,
        own: dict[int, dict[str, list[int]]],
        processes: str,
        cell: int,
        number: int,
        value: int,
    ) -> None:
        if cell > 0:
            if cell not in own:
                own[cell] = self._own.get(cell, {}).copy()
            _add(own[cell], processes, number, value)
        elif cell != wire.OURS:
            self._foreign.add(processes)

    def _keep_program(self, program: Program) -> None:
        programs = self._programs
        if programs.get(program.fingerprint) is not program:
            programs[program.fingerprint] = program
            if len(programs) > KEPT_PROGRAMS:
                programs.popitem(last=False)

    def _made_by_all(
        self, since: Mapping[str, int], in_flight: Callable[[], Iterable[Launch]]
    ) -> dict[int, Launch]:
        """Those of the launches under way, and of those not entered yet, that ``since`` counts."""
        owed = {p: number - self._counts.get(p, (0, 0))[0] for p, number in since.items()}
        # In this order: one that is confirmed meanwhile is in both.
        under_way = {id(launch): launch for launch in in_flight()}
        under_way |= {id(made): made for made in self._made if isinstance(made, tuple)}
        old = {key: launch for key, launch in under_way.items() if key in self._old}
        for key, launch in sorted(under_way.items(), key=lambda item: item[1][1]):
            (program, *_), *_ = launch
            if key not in old and owed.get(program.processes, 0) > 0:
                owed[program.processes] -= 1
                old[key] = launch
        return old

    def _count_anew(
        self, number: int, since: Mapping[str, int], in_flight: Callable[[], Iterable[Launch]]
    ) -> bool:
        """Count from zero; False, and nothing is done, where a launch is entered meanwhile.

        Args:
          number: which time it is.
          since: set of processes -> how many launches of it all ranks had made: not counted.
          in_flight: gives the launches that have begun and are not made yet.
        """
        (entered,) = self._entered
        ring = list(self._ring)
        old = self._made_by_all(since, in_flight)
        counts: dict[str, list[int]] = {}
        crossings, own, foreign, entries = Crossings(), Own(), set[str](), list[Entry]()
        marks = {processes: each.copy() for processes, each in self.broken.copy().items()}
        breaks = {key: one for key, one in self._breaks.copy().items() if key not in old}
        for ((program, *_), *_), told in breaks.values():
            marks.get(told[0], set()).discard(told[2] ^ program.fingerprint)
        for before, told, place, running, when in ring:
            processes, name, fingerprint, *_ = told
            if before < since.get(processes, 0):
                continue
            if wire.BROKEN_OFF in name:
                candidates = marks.get(processes, set())
                mark = next((m for m in candidates if fingerprint ^ m in self._programs), 0)
                candidates.discard(mark)
                fingerprint ^= mark
            seq = count_launch(counts, crossings, processes, fingerprint)
            entries.append((seq, told, place, running, when))
            if running > 0:
                _add(own.setdefault(running, {}), processes, 1, fingerprint)
            elif running != wire.OURS:
                foreign.add(processes)
        forgotten = [(self.broken[processes], each) for processes, each in marks.items()]
        are_left = any(has - each for has, each in forgotten)
        held = self._counts, self._own, self._ring, self._foreign, self._breaks
        steps: list[Callable[[], Any]] = [each.clear for each in (*held, self._outer, self._old)]
        steps += [functools.partial(has.difference_update, each) for has, each in forgotten]
        steps += [
            functools.partial(self._counts.update, counts),
            functools.partial(self._own.update, own),
            functools.partial(self._ring.extend, entries),
            functools.partial(self._foreign.update, foreign),
            functools.partial(self._breaks.update, breaks),
            functools.partial(self._old.update, old),
            functools.partial(setattr, self, "_crossings", crossings),
            functools.partial(setattr, self, "unchecked", self.unchecked and are_left),
            functools.partial(setattr, self, "restarts", number),
        ]
        return self._at_once(entered, steps)


def _nowhere(program: Program) -> Launch:
    return (program, NOWHERE, 0, 0), monotonic(), 0


def count_launch(
    counts: dict[str, list[int]], crossings: Crossings, processes: str, fingerprint: int
) -> int:
    """Count a launch; its place in the sequence of its set."""
    if processes not in counts:
        crossings.begin(processes, counts)
    if crossings:
        crossings.launched(processes, fingerprint)
    return _add(counts, processes, 1, fingerprint)


def _add(counts: dict[str, list[int]], processes: str, number: int, value: int) -> int:
    """Add so many launches in a row, with their hash; the place of the first in the sequence."""
    seq, before = counts.get(processes, (0, 0))
    factor = _HASH_FACTOR if number == 1 else pow(_HASH_FACTOR, number, _HASH_MODULUS)
    counts[processes] = [seq + number, (before * factor + value) % _HASH_MODULUS]
    return seq

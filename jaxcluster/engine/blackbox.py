"""A rank's last launches, kept where its death does not reach them.

A small file beside the rank's log, mapped into its memory: each launch is some bytes in a ring,
also where the next moment is the process's last, and the kernel keeps them. What they stand for,
programs and lines, is written behind the ring when it is first met. The fork server reads it when
the process has ended (``read``), and tells it with the exit.

Which launch of its set one is, is counted here too; the journal's own counts put that right at each
cell's begin. This is evidence for a report, and nothing else is decided by it.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import mmap
import os
import struct
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import CodeType
from typing import Any

from jaxcluster import wire

SLOTS = 256  # launches that are kept
TOLD = 128  # of them that are told: a cell's ranks are seldom so far apart
NAMES = 4096  # programs and lines, until it begins again
_SLOT = struct.Struct("<QQIIi4x")  # number from 1 on, place in its set, program, line, cell's seq
SLOT_SIZE, write_slot = _SLOT.size, _SLOT.pack_into
_RING = SLOTS * SLOT_SIZE

CHECK = "jaxcluster_check"  # in the name of the program by which ranks check themselves

_Place = tuple[CodeType | None, int, CodeType | None, int]
_Names = dict[Any, int]
# How a launch like one before is noted: the file, the numbers of slots, the next place in its set,
# and the numbers of its program and its line.
_Noted = tuple[mmap.mmap | None, Iterator[int], list[int], int, int]
NO_BOX: _Noted = (None, iter(()), [], 0, 0)


def path_of(log_path: str) -> str:
    """Where the rank with this log keeps its last launches."""
    return os.path.splitext(log_path)[0] + ".launches"


def ours(name: str) -> str:
    """The place of a program that no line of anybody's has asked for."""
    return f"jaxcluster's {'check' if CHECK in name else 'replay'}"


class BlackBox:
    """Writes one rank's launches.

    Args:
      path: of its file, which is made, or emptied.
      tell: cell, line, and line of a script, module or library, of a place.
      forget: is called where what ``note`` returned does not hold any more.

    Raises:
      OSError: there can be no such file.
    """

    def __init__(
        self, path: str, tell: Callable[[_Place], Sequence[Any]], forget: Callable[[], None]
    ) -> None:
        flags = os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
        self._file = os.open(path, flags, 0o600)
        self._tell = tell
        self._lock = threading.RLock()
        self._numbers = itertools.count(1)
        self._seqs: dict[str, list[int]] = {}  # the next of each set
        self._forget = forget
        self._programs: _Names = {}
        self._lines: _Names = {}
        self._held: list[_Place] = []  # or another code might get the id of one
        # Not a hole: to write into one where the disk is full ends the process.
        os.posix_fallocate(self._file, 0, _RING)
        self._map = mmap.mmap(self._file, _RING)
        forget()

    def note(self, program: Any, place: _Place, running: int) -> _Noted:
        """A launch is made; how the next one like it is noted. Any thread."""
        code, at, inner, inner_at = place
        try:
            number = self._programs[program.fingerprint]
            line = self._lines[id(code), at, id(inner), inner_at]
        except KeyError:
            number, line = self._meet(program, place)
        seqs = self._seqs.setdefault(program.processes, [0])
        n, seq = next(self._numbers), seqs[0]
        seqs[0] = seq + 1
        write_slot(self._map, n % SLOTS * SLOT_SIZE, n, seq, number, line, running)
        return self._map, self._numbers, seqs, number, line

    def _meet(self, program: Any, place: _Place) -> tuple[int, int]:
        """The numbers of a program and a place, of which one at least is new."""
        with self._lock:
            if len(self._programs) + len(self._lines) > NAMES:
                self._begin()
            number = self._number(self._programs, program.fingerprint, program.told)
            code, at, inner, inner_at = place
            key = id(code), at, id(inner), inner_at
            if key not in self._lines:
                self._held.append(place)
            return number, self._number(self._lines, key, self._tell(place))

    def _number(self, names: _Names, key: Any, told: Sequence[Any]) -> int:
        if key not in names:
            kind = "program" if names is self._programs else "line"
            line = json.dumps([kind, len(names), *told]) + "\n"
            with contextlib.suppress(OSError):  # the disk is full: it stays unknown
                os.write(self._file, line.encode())
            names[key] = len(names)
        return names[key]

    def _begin(self) -> None:
        self._programs.clear()
        self._lines.clear()
        self._held.clear()
        self._forget()
        with contextlib.suppress(OSError):
            os.ftruncate(self._file, _RING)
        self._map[:] = bytes(_RING)

    def take_back(self, processes: str) -> None:
        """The launch of this set that was noted last was not made: another one takes its place."""
        seqs = self._seqs.setdefault(processes, [0])
        seqs[0] = max(0, seqs[0] - 1)

    def correct(self, counts: Mapping[str, Sequence[int]]) -> None:
        """Set of processes -> how many launches of it have been made."""
        for processes, (count, _) in counts.items():
            self._seqs.setdefault(processes, [0])[0] = count

    def restart(self) -> None:
        """All ranks count from zero."""
        with self._lock:
            self._seqs.clear()
            self._begin()


def read(path: str) -> wire.LastLaunches:
    """The last launches in a file; none where there is no such file."""
    try:
        with open(path, "rb") as file:
            content = file.read()
    except OSError:
        return wire.LastLaunches()
    names: dict[str, dict[int, Sequence[Any]]] = {"program": {}, "line": {}}
    for line in content[_RING:].splitlines():
        with contextlib.suppress(ValueError, KeyError, TypeError):
            kind, number, *told = json.loads(line)
            names[kind][number] = told
    if len(content) < _RING:
        return wire.LastLaunches()
    slots = sorted(slot for slot in _SLOT.iter_unpack(content[:_RING]) if slot[0])
    kinds: list[wire.Launch] = []
    known: dict[tuple[int, int, int], int] = {}
    made = []
    for _, seq, number, line, running in slots[-TOLD:]:
        if number not in names["program"] or line not in names["line"]:
            continue
        if (number, line, running) not in known:
            known[number, line, running] = len(kinds)
            processes, name, fingerprint, signature, collective = names["program"][number]
            cell, at, within = names["line"][line]
            within = ours(name) if running == wire.OURS else within
            program = (0, processes, name, fingerprint)
            kinds.append(wire.Launch(*program, cell, at, signature, running, collective, within))
        made.append([seq, known[number, line, running]])
    return wire.LastLaunches(kinds, made)

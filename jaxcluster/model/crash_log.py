"""What the log of a rank that crashed in native code says of it. Pure.

Each rank has faulthandler on, which writes the Python stacks of all threads when the process gets
SIGSEGV, SIGABRT, SIGBUS, SIGFPE or SIGILL. They are folded to what is the user's: cells and lines.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

KEPT_LINES = 6  # of what else the log ends in
TOP_FRAMES = 4  # where none is a cell's

_FATAL = re.compile(r"^Fatal Python error: (.+)$", re.MULTILINE)
_THREAD = re.compile(r"^(Current thread|Thread) 0x[0-9a-f]+ .*\(most recent call first\):$")
_FRAME = re.compile(r'^  File "(.*)", line (\d+|\?\?\?) in (.*)$')
_CELL = re.compile(r"/ipykernel_jaxcluster/(\d+)-[0-9a-f]+\.py$")
# What faulthandler calls them, before any comma or colon.
_NAMES = {
    "segmentation fault": "SIGSEGV",
    "aborted": "SIGABRT",
    "bus error": "SIGBUS",
    "floating point exception": "SIGFPE",
    "floating-point exception": "SIGFPE",
    "illegal instruction": "SIGILL",
}


@dataclass(frozen=True)
class Frame:
    file: str
    line: str
    function: str

    @property
    def cell(self) -> int | None:
        found = _CELL.search(self.file)
        return int(found[1]) if found else None

    def __str__(self) -> str:
        if self.cell is not None:
            inside = "" if self.function == "<module>" else f", in {self.function}"
            return f"cell [{self.cell}] line {self.line}{inside}"
        return f"{self.function} ({'/'.join(self.file.split('/')[-2:])}:{self.line})"


@dataclass(frozen=True)
class Crash:
    """A native crash.

    Attributes:
      error: as faulthandler has it: ``Segmentation fault``.
      signal: ``SIGSEGV``; an error of the interpreter's own ends in SIGABRT.
      frames: the Python stack of the thread that crashed, innermost first; empty where that ran no
        Python.
      beside: else the stack of the thread that was in a cell.
      before: the log's lines before it.
    """

    error: str
    signal: str
    frames: tuple[Frame, ...]
    beside: tuple[Frame, ...]
    before: tuple[str, ...]

    @property
    def place(self) -> str:
        """Where, briefly: ``at cell [7] line 3, in string_at (ctypes/__init__.py:519)``."""
        own = next((frame for frame in self.frames if frame.cell is not None), None)
        if own is not None:
            top = self.frames[0]
            return f"at {own}" + (f", in {top}" if top is not own else "")
        if self.frames:
            return f"in {self.frames[0]}"
        beside = next((frame for frame in self.beside if frame.cell is not None), None)
        thread = "in a thread that runs no Python"
        return f"{thread}, during {beside}" if beside is not None else thread

    def lines(self) -> list[str]:
        """The stack, innermost first: the cells' frames, and the one that crashed."""
        shown = [f for k, f in enumerate(self.frames) if k == 0 or f.cell is not None]
        if not any(frame.cell is not None for frame in shown):
            shown = list(self.frames[:TOP_FRAMES])
        return [f"{self.error} {self.place}"] + [f"  {frame}" for frame in shown]


def find_crash(log: str) -> Crash | None:
    """The last native crash that a log tells of."""
    found = list(_FATAL.finditer(log))
    if not found:
        return None
    error = found[-1][1].strip()
    before = log[: found[-1].start()].splitlines()
    stacks: list[tuple[bool, list[Frame]]] = []
    for line in log[found[-1].end() :].splitlines():
        if (thread := _THREAD.match(line)) is not None:
            stacks.append((thread[1] == "Current thread", []))
        elif stacks and (frame := _FRAME.match(line)) is not None:
            stacks[-1][1].append(Frame(frame[1], frame[2], frame[3]))
    crashed = next((frames for is_it, frames in stacks if is_it), [])
    beside = next((f for _, f in stacks if any(frame.cell is not None for frame in f)), [])
    name = re.split(r"[,:]", error.lower())[0].strip()
    return Crash(error, _NAMES.get(name, "SIGABRT"), tuple(crashed), tuple(beside), tuple(before))


def explain(why: str, log: str) -> str:
    """How a process has ended, with the place where its log has that crash.

    Args:
      why: as in ``killed by SIGSEGV``. A log may tell of another process's crash: one that the user
        started, or one that a rank has outlived.
    """
    crash = find_crash(log)
    if crash is None or crash.signal not in why:
        return why
    named = why.replace(crash.signal, f"{crash.signal} ({crash.error.lower()})", 1)
    return f"{named} {crash.place}"


def excerpt(log: str) -> str:
    """The end of a log, for people: a crash's stack folded, and what was written before it."""
    crash = find_crash(log)
    lines: Sequence[str] = log.splitlines() if crash is None else crash.before
    kept = [line for line in lines if "[Gloo]" not in line][-KEPT_LINES:]
    while kept and not kept[-1].strip():
        kept.pop()
    return "\n".join([*kept, *(crash.lines() if crash is not None else [])])

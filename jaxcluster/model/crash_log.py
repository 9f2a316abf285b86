"""The native crash that a rank's log shows. Pure.

Each rank has faulthandler on. It writes the Python stacks of all threads when the process gets
SIGSEGV, SIGABRT, SIGBUS, SIGFPE or SIGILL. They are folded to the user's cells and lines.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

KEPT_LINES = 6  # last lines of the rest of the log
TOP_FRAMES = 4  # shown if none is a cell's

_FATAL = re.compile(r"^Fatal Python error: (.+)$", re.MULTILINE)
_THREAD = re.compile(r"^(?:(Current thread)|Thread) 0x[0-9a-f]+ .*$", re.MULTILINE)
_FRAME = re.compile(r'^  File "(.*)", line (\d+|\?\?\?) in (.*)$', re.MULTILINE)
_CELL = re.compile(r"/ipykernel_jaxcluster/(\d+)-[0-9a-f]+\.py$")
# How what faulthandler calls them begins; any other error of the interpreter ends in SIGABRT.
_SIGNALS = {"seg": "SIGSEGV", "bus": "SIGBUS", "flo": "SIGFPE", "ill": "SIGILL"}


@dataclass(frozen=True)
class Crash:
    """A native crash.

    Attributes:
      error: as faulthandler has it: ``Segmentation fault``.
      place: where, briefly: ``at cell [7] line 3, in string_at (ctypes/__init__.py:519)``.
      stack: of the thread that crashed, innermost first: the cells' frames, and the one that
        crashed.
      before: the log's lines before it.
    """

    error: str
    place: str
    stack: list[str]
    before: list[str]


def find_crash(log: str) -> Crash | None:
    """The last native crash that a log tells of."""
    found = list(_FATAL.finditer(log))
    if not found:
        return None
    _, *threads = _THREAD.split(log[found[-1].end() :])  # whether it is the current one, its frames
    stacks = [[_told(*at.groups()) for at in _FRAME.finditer(frames)] for frames in threads[1::2]]
    crashed = next((s for s, is_it in zip(stacks, threads[::2], strict=True) if is_it), [])
    own = [frame for frame in crashed if frame.startswith("cell ")]
    beside = next((f for stack in stacks for f in stack if f.startswith("cell ")), "")
    if own:
        place = f"at {own[0]}" + (f", in {crashed[0]}" if crashed[0] != own[0] else "")
        shown = [crashed[0]] * (crashed[0] not in own) + own
    else:
        place = f"in {crashed[0]}" if crashed else "in a thread that runs no Python"
        place += f", during {beside}" if beside and not crashed else ""
        shown = crashed[:TOP_FRAMES]
    before = log[: found[-1].start()].splitlines()
    return Crash(found[-1][1].strip(), place, shown, before)


def _told(file: str, line: str, function: str) -> str:
    if cell := _CELL.search(file):
        inside = "" if function == "<module>" else f", in {function}"
        return f"cell [{cell[1]}] line {line}{inside}"
    return f"{function} ({'/'.join(file.split('/')[-2:])}:{line})"


def explain(why: str, log: str) -> str:
    """How a process has ended, with the place where its log has that crash.

    Args:
      why: as in ``killed by SIGSEGV``. A log may tell of another process's crash: one that the user
        started, or one that a rank has outlived.
    """
    crash = find_crash(log)
    signal = _SIGNALS.get(crash.error[:3].lower(), "SIGABRT") if crash is not None else ""
    if crash is None or signal not in why:
        return why
    named = why.replace(signal, f"{signal} ({crash.error.lower()})", 1)
    return f"{named} {crash.place}"


def excerpt(log: str) -> str:
    """The end of a log, for people: a crash's stack folded, and what was written before it."""
    crash = find_crash(log)
    lines = log.splitlines() if crash is None else crash.before
    kept = [line for line in lines if "[Gloo]" not in line][-KEPT_LINES:]
    while kept and not kept[-1].strip():
        kept.pop()
    if crash is not None:
        kept += [f"{crash.error} {crash.place}", *(f"  {frame}" for frame in crash.stack)]
    return "\n".join(kept)

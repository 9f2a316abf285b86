"""Answers about a rank for people: where it is, what its names are, how a line may go on."""

from __future__ import annotations

import linecache
import os
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import FrameType
from typing import Any, TypeVar

from jaxcluster import wire
from jaxcluster.engine.cells import CellRunner
from jaxcluster.engine.journal import outward
from jaxcluster.engine.library_code import is_folded
from jaxcluster.engine.pending_calls import call_on_main_thread
from jaxcluster.engine.resources import rss_nbytes
from jaxcluster.engine.stacks import Place, stack_of
from jaxcluster.wire.ops.cells import Complete, Completions, Inspect, Inspection
from jaxcluster.wire.ops.lockstep import Rest

ASK_S = 0.02  # for what the main thread alone can say, while it runs Python
WAITS_S = 0.7  # for another completion; then who has asked listens no more
# IPython's completer is not made for threads: jedi, where two import it at once, finds nothing
# ever after, and a filter of warnings that one sets is taken away by another.
_completing = threading.Lock()
READINGS = 4  # at most, until two are alike

_T = TypeVar("_T")
_U = TypeVar("_U")


@dataclass(frozen=True)
class Process:
    """What does not change while a rank runs cells."""

    hostname: str
    devices: list[str]
    is_starting: bool


def rank_state(runner: CellRunner, process: Process) -> wire.RankState:
    """What this rank's main thread is doing, read from another thread in microseconds."""
    runner.background.ask()
    standing, _ = _at_one_moment(lambda: _standing(runner), list)
    return _located(runner, process, standing)


def _located(runner: CellRunner, process: Process, standing: wire.RankState) -> wire.RankState:
    """With where it is by now."""
    running = runner.current
    where: dict[str, Any] = {}
    if running is not None and running.cell.seq == standing.seq:
        numbers, own = runner.cell_numbers, running.cell.execution_count
        own_files = {file for file in list(numbers) if numbers[file] == own}
        where = _where(stack_of(runner.main_thread_id), own_files)
        where["seconds"] = time.perf_counter() - running.started
        if (since := running.stop_waits_since) > 0:
            where["stop_waits_s"] = time.monotonic() - since
    if process.is_starting:
        where["state"] = "starting"
    hostname, devices = process.hostname, process.devices
    return replace(standing, hostname=hostname, devices=devices, rss_nbytes=rss_nbytes(), **where)


def _standing(runner: CellRunner) -> wire.RankState:
    """What is compared between ranks, in no call that lets the main thread run on."""
    running = runner.current
    return wire.RankState(
        rank=runner.rank,
        pid=os.getpid(),
        hostname="",
        state="running" if running else "idle",
        seq=running.cell.seq if running else 0,
        cell=running.cell.execution_count if running else None,
        queued=len(runner.queue),
        ended=runner.ended,
        taken=runner.queue.taken,
        launches=runner.journal.launches(),
        has_left=running is not None and running.has_left,
        background=runner.background.look(),
        probes=runner.background.probes,
        paused=runner.paused.kind,
        gate=runner.gate.waits_for,
        is_cut_short=runner.gate.is_cut_short,
        restarts=runner.journal.restarts,
        strict=runner.journal.host_values.announced is not None,
    )


def _at_one_moment(read: Callable[[], _T], between: Callable[[], _U]) -> tuple[_T, _U]:
    """What is read, twice alike, and what is read in between: the main thread may run meanwhile.

    Reports whose parts are of before and after a launch, or a cell's end, are found to differ
    between ranks that do the same.
    """
    for _ in range(READINGS):
        found, more = read(), between()
        if read() == found:
            break
    return found, more


def rest(runner: CellRunner) -> Rest:
    """Whether a cell runs or waits here, or may yet turn out to have gone wrong."""

    def read() -> Rest:
        # In this order: a cell is the running one before it waits no longer.
        is_free = not len(runner.queue) and runner.current is None
        launches = runner.journal.launches()
        return Rest(is_free, runner.queue.taken, launches, runner.gate.unsettled())

    found, _ = _at_one_moment(read, list)
    return found


def _where(stack: Sequence[Place], own_files: Collection[str]) -> dict[str, Any]:
    """The innermost line of the cell that runs, and the innermost frame that is not folded.

    A function of another cell may be further in: its line is not in this cell.
    """
    if not stack:
        return {}
    code, line = next((place for place in stack if not is_folded(place[0])), stack[0])
    innermost = f"{code.co_qualname} ({code.co_filename}:{line})"
    user = _in_a_cell(stack, own_files)
    if user is None:
        return {"frame": innermost}
    return {"line": user[1], "frame": innermost}


def _in_a_cell(stack: Sequence[Place], files: Collection[str]) -> Place | None:
    """The innermost place in one of these cells' files."""
    return next((place for place in stack if place[0].co_filename in files), None)


def told_stack(stack: Sequence[Place], cells: Mapping[str, int]) -> list[list[Any]]:
    """A stack, outermost first: [file, line, function, source line, cell or None, is folded]."""
    told = []
    for file in {code.co_filename for code, _ in stack}:
        linecache.checkcache(file)
    for code, line in reversed(stack):
        file = code.co_filename
        source = linecache.getline(file, line).strip() if line else ""
        told.append([file, line, code.co_name, source, cells.get(file), is_folded(code)])
    return told


def small_values(
    runner: CellRunner, names: Sequence[str], stack: Sequence[Place]
) -> dict[str, str]:
    """Numbers and short strings among ``names``, of the cell's innermost frame or the rank.

    Those of a function are known to the main thread alone: while it is in C code they are missing.
    """
    found = _small(runner.shell.user_ns, names) if runner.shell is not None else {}
    user = _in_a_cell(stack, runner.cell_numbers)
    if user is not None:
        code = user[0]
        own = {*code.co_varnames, *code.co_cellvars, *code.co_freevars}.intersection(names)

        def of_innermost(frame: FrameType | None) -> dict[str, str]:
            """Those of the innermost frame of a cell, on the thread that runs it."""
            cells = (f for f in outward(frame) if f.f_code.co_filename in runner.cell_numbers)
            return next((_small(one.f_locals, own) for one in cells), {})

        if own:
            found.update(call_on_main_thread(of_innermost, ASK_S) or {})
    return found


def _small(scope: Mapping[str, Any], names: Iterable[str]) -> dict[str, str]:
    """By the exact type: not even ``isinstance`` may run code of the user's here."""
    found: dict[str, str] = {}
    for name in names:
        value: Any = scope.get(name)
        kind: Any = type(value)
        if (
            kind is bool
            or kind is float
            or (kind is int and value.bit_length() < 128)
            or (kind is str and len(value) < 40)
        ):
            found[name] = repr(value)
    return found


def report(runner: CellRunner, process: Process, names: list[str], count: int) -> wire.PollReply:
    """What is needed to find out why a cell does not end. Microseconds, or ``ASK_S``; any thread.

    Args:
      names: whose small values are wanted.
      count: how many of the last launches.
    """
    journal = runner.journal

    def read() -> tuple[wire.RankState, wire.Launch | None, list[wire.Launch]]:
        return _standing(runner), journal.announced, list(journal.given_up.values())

    runner.background.ask()
    (standing, announced, given_up), tail = _at_one_moment(read, lambda: journal.packed_tail(count))
    stack = stack_of(runner.main_thread_id)
    report = wire.RankReport(
        state=_located(runner, process, standing),
        stack=told_stack(stack, runner.cell_numbers),
        launches=[],
        locals=small_values(runner, names, stack),
        announced=announced,
        given_up=given_up,
        thread_error=runner.thread_errors.latest(),
    )
    return wire.PollReply(report, *tail)


def complete(runner: CellRunner, body: Complete) -> Completions:
    """``complete``: how the cell may go on at the cursor, from this rank's names."""
    code, cursor = body.code, body.cursor
    shell = runner.shell
    if shell is None:
        return Completions([], cursor, cursor)
    if not _completing.acquire(timeout=WAITS_S):
        return Completions([], cursor, cursor)
    try:
        from IPython.core.completer import provisionalcompleter, rectify_completions

        with provisionalcompleter():
            found = list(rectify_completions(code, shell.Completer.completions(code, cursor)))
    finally:
        _completing.release()
    if not found:
        return Completions([], cursor, cursor)
    return Completions([[c.text, c.type or ""] for c in found], found[0].start, found[0].end)


def inspect(runner: CellRunner, body: Inspect) -> Inspection:
    """``inspect``: what ``name?`` shows, as a MIME bundle; an empty one for an unknown name."""
    from IPython.utils.tokenutil import token_at_cursor

    name = body.name or token_at_cursor(body.code, body.cursor)
    if not name or runner.shell is None:
        return Inspection(False, name, {})
    try:
        data = runner.shell.object_inspect_mime(name, detail_level=body.detail)
    except KeyError:
        return Inspection(False, name, {})
    return Inspection(True, name, {k: str(v) for k, v in data.items()})

"""Answers about a rank for people: where it is, what its names are, how a line may go on."""

from __future__ import annotations

import os
import sys
import time
import traceback
from types import FrameType
from typing import Any

from jaxcluster import wire
from jaxcluster.engine.beacon import Request
from jaxcluster.engine.cells import CellRunner


def rank_state(
    runner: CellRunner, hostname: str, devices: list[str], starting: bool
) -> wire.RankState:
    """What this rank's main thread is doing, read from another thread in microseconds."""
    running = runner.current
    where: dict[str, Any] = {}
    if running is not None:
        frame = sys._current_frames().get(runner.main_thread_id)
        where = _place(frame, runner.cell_numbers)
    return wire.RankState(
        rank=runner.rank,
        pid=os.getpid(),
        hostname=hostname,
        state="starting" if starting else "running" if running else "idle",
        devices=devices,
        seq=running.cell.seq if running else 0,
        cell=running.cell.execution_count if running else None,
        seconds=time.perf_counter() - running.started if running else 0.0,
        queued=runner.queued,
        ended=runner.ended,
        launches={k: list(v) for k, v in list(runner.journal.counts.items())},
        rss_nbytes=_rss_nbytes(),
        **where,
    )


def _place(frame: FrameType | None, cells: dict[str, int]) -> dict[str, Any]:
    """The innermost line of a cell, and the innermost frame of all."""
    if frame is None:
        return {}
    innermost = f"{frame.f_code.co_qualname} ({frame.f_code.co_filename}:{frame.f_lineno})"
    user: FrameType | None = frame
    while user is not None and user.f_code.co_filename not in cells:
        user = user.f_back
    if user is None:
        return {"frame": innermost}
    return {"line": user.f_lineno, "function": user.f_code.co_qualname, "frame": innermost}


def _rss_nbytes() -> int:
    try:
        with open("/proc/self/statm") as statm:
            return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0


def stack(runner: CellRunner) -> list[list[Any]]:
    """The main thread's stack, outermost first: [file, line, function, source line]."""
    frame = sys._current_frames().get(runner.main_thread_id)
    return [[f.filename, f.lineno, f.name, f.line] for f in traceback.extract_stack(frame)]


def small_values(runner: CellRunner, names: list[str]) -> dict[str, str]:
    """Numbers and short strings among ``names``, of the cell's innermost frame or the rank."""
    frame = sys._current_frames().get(runner.main_thread_id)
    while frame is not None and frame.f_code.co_filename not in runner.cell_numbers:
        frame = frame.f_back
    found: dict[str, str] = {}
    scopes = [runner.shell.user_ns] if runner.shell is not None else []
    if frame is not None and frame.f_locals is not frame.f_globals:
        scopes.append(frame.f_locals)
    for scope in scopes:
        for name in names:
            value = scope.get(name)
            if isinstance(value, (bool, int, float)) or (
                isinstance(value, str) and len(value) < 40
            ):
                found[name] = repr(value)
    return found


def report(
    runner: CellRunner, state: wire.RankState, names: list[str], count: int
) -> wire.RankReport:
    """What is needed to find out why a cell does not end. Microseconds; any thread."""
    cells = runner.cell_numbers
    frames = [[*row, cells.get(row[0])] for row in stack(runner)]
    return wire.RankReport(
        state=state,
        stack=frames,
        launches=runner.journal.tail(count),
        locals=small_values(runner, names),
        announced=runner.journal.announced,
    )


def complete(runner: CellRunner, request: Request) -> Any:
    """``complete``: how the cell may go on at the cursor, from this rank's names."""
    code, cursor = request.body["code"], request.body["cursor"]
    shell = runner.shell
    if shell is None:
        return {"matches": [], "start": cursor, "end": cursor}
    from IPython.core.completer import provisionalcompleter, rectify_completions

    with provisionalcompleter():
        found = list(rectify_completions(code, shell.Completer.completions(code, cursor)))
    if not found:
        return {"matches": [], "start": cursor, "end": cursor}
    return {
        "matches": [[c.text, c.type or ""] for c in found],
        "start": found[0].start,
        "end": found[0].end,
    }


def inspect(runner: CellRunner, request: Request) -> Any:
    """``inspect``: what ``name?`` shows, as a MIME bundle; an empty one for an unknown name."""
    from IPython.utils.tokenutil import token_at_cursor

    body = request.body
    name = body.get("name") or token_at_cursor(body["code"], body["cursor"])
    if not name or runner.shell is None:
        return {"found": False, "name": name, "data": {}}
    try:
        data = runner.shell.object_inspect_mime(name, detail_level=body["detail"])
    except KeyError:
        return {"found": False, "name": name, "data": {}}
    return {"found": True, "name": name, "data": {k: str(v) for k, v in data.items()}}

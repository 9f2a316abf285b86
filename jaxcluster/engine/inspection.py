"""Answers about a rank for people: where it is, what its names are, how a line may go on."""

from __future__ import annotations

import linecache
import os
import threading
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from jaxcluster import wire
from jaxcluster.engine.cells import CellRunner, Running
from jaxcluster.engine.library_code import is_folded, is_telling_file
from jaxcluster.engine.stacks import Place, frames_of, stack_of
from jaxcluster.host.facts import host_gpus
from jaxcluster.host.gpus import gpu_uses
from jaxcluster.wire.ops.cells import Complete, Completions, Inspect, Inspection

WAITS_S = 0.7  # for another completion; then who has asked listens no more
# IPython's completer is not made for threads: jedi, where two import it at once, finds nothing
# ever after, and a filter of warnings that one sets is taken away by another.
_completing = threading.Lock()


@dataclass(frozen=True)
class Process:
    """What does not change while a rank runs cells."""

    hostname: str
    devices: list[str]
    is_starting: bool


def rank_state(runner: CellRunner, process: Process) -> wire.RankState:
    """What this rank's main thread is doing, read from another thread in microseconds."""
    running = runner.current
    where: dict[str, Any] = {}
    if running is not None:
        numbers, own = runner.cell_numbers, running.cell.execution_count
        own_files = {file for file in list(numbers) if numbers[file] == own}
        # A function of another cell may be further in: its line is not in this cell.
        if (place := _in_a_cell(stack_of(runner.main_thread_id), own_files)) is not None:
            where["line"] = place[1]
        where["seconds"] = time.perf_counter() - running.started
    if (launching := runner.agreement.launching(frames_of(runner.main_thread_id))) is not None:
        where["launching"], where["launching_s"] = launching
    state = "running" if running is not None else "idle"
    return wire.RankState(
        rank=runner.rank,
        pid=os.getpid(),
        hostname=process.hostname,
        state="starting" if process.is_starting else state,
        devices=process.devices,
        seq=running.cell.seq if running is not None else 0,
        cell=running.cell.execution_count if running is not None else None,
        heard=running is not None and _has_heard(runner, running),
        queued=len(runner.turns),
        rss_nbytes=rss_nbytes(),
        paused=runner.paused.kind,
        **where,
    )


def _has_heard(runner: CellRunner, running: Running) -> bool:
    """Whether its code was told that it is closed, and has not come to another launch since."""
    refusals = runner.agreement.refusals
    return refusals == 1 or (running.heard and not refusals)


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


def report(runner: CellRunner, process: Process) -> wire.RankReport:
    """Where this rank is. Any thread; microseconds."""
    numbers, stack = runner.cell_numbers, stack_of(runner.main_thread_id)
    others = {
        thread.name: stack_of(thread.ident)
        for thread in threading.enumerate()
        if thread.ident not in (None, runner.main_thread_id, threading.get_ident())
        and not thread.name.startswith("jaxcluster")
    }
    threads = {
        name: told_stack(places, numbers)
        for name, places in others.items()
        if any(is_telling_file(code.co_filename) for code, _ in places)  # else it is the kernel's
    }
    return wire.RankReport(rank_state(runner, process), told_stack(stack, numbers), threads)


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


def rss_nbytes() -> int:
    """This process's memory; 0 where that can't be told."""
    try:
        with open("/proc/self/statm") as statm:
            return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0


def resources(rank: int, gpus: Sequence[str]) -> wire.RankResources:
    """What the process has used so far, and uses now. Some 20 us, with GPUs about a millisecond.

    Args:
      gpus: those that are the rank's, as CUDA_VISIBLE_DEVICES has them.
    """
    return wire.RankResources(
        rank, time.monotonic(), time.process_time(), rss_nbytes(), gpu_uses(gpus)
    )


def own_gpus(devices: Sequence[wire.DeviceInfo]) -> list[str]:
    """The GPUs behind JAX's local devices, as CUDA_VISIBLE_DEVICES has them.

    ``local_hardware_id`` counts the devices that the process may see.
    """
    visible = host_gpus(os.environ)
    ids = [d.local_hardware_id for d in devices if d.platform in ("cuda", "gpu")]
    return [visible[id] for id in ids if id is not None and id < len(visible)]

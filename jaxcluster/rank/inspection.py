"""Answers about a rank for people: where it is, what its names are, how a line may go on."""

from __future__ import annotations

import linecache
import math
import os
import threading
import time
from collections.abc import Sequence
from typing import Any

from jaxcluster import wire
from jaxcluster.host.facts import host_gpus
from jaxcluster.host.gpus import gpu_uses
from jaxcluster.rank.cells import CellRunner
from jaxcluster.rank.places import TELLING, cell_number, is_folded, owner
from jaxcluster.rank.stacks import Place, frames_of, stack_of
from jaxcluster.wire.ops.cells import Help

READING_S = 1.0  # between two readings of what the process uses
OLD_S = 5.0  # an older reading is not compared with the next one
WINDOW_S = 0.1  # a reading without an earlier one takes so long
WAITS_S = 0.7  # for another completion; later nobody listens any more
# IPython's completer is not made for threads. If two threads import jedi at once, it finds nothing
# ever after. Besides, one thread removes another's filter of warnings.
_completing = threading.Lock()


def rank_state(runner: CellRunner, is_starting: bool = False) -> wire.RankState:
    """The state of this rank's main thread, read from another thread in microseconds."""
    running, refusals = runner.current, runner.agreement.refusals
    launching = runner.agreement.launching(frames_of(runner.main_thread_id)) or ("", 0.0)
    known = dict[str, Any](state="starting" if is_starting else "idle")
    if running is not None:
        own = running.cell.execution_count
        # A function of another cell may be further in: its line is not in this cell.
        stack = stack_of(runner.main_thread_id)
        known = {
            "state": "running",
            "seq": running.cell.seq,
            "cell": own,
            "line": next((at for code, at in stack if cell_number(code.co_filename) == own), None),
            "seconds": time.perf_counter() - running.started,
            # Its code has met the refusal, and has made no other launch since.
            "heard": refusals == 1 or (running.heard and not refusals),
        }
    return wire.RankState(
        rank=runner.rank,
        queued=len(runner.turns),
        paused=runner.asking.kind,
        launching=launching[0],
        launching_s=launching[1],
        **known,
    )


def told_stack(stack: Sequence[Place]) -> list[list[Any]]:
    """A stack, outermost first: [file, line, function, source line, cell or None, is folded]."""
    told = []
    for file in {code.co_filename for code, _ in stack}:
        linecache.checkcache(file)
    for code, line in reversed(stack):
        file = code.co_filename
        source = linecache.getline(file, line).strip() if line else ""
        told.append([file, line, code.co_name, source, cell_number(file), is_folded(file)])
    return told


def report(runner: CellRunner, state: str) -> wire.RankReport:
    """The stacks of this rank. Any thread; microseconds."""
    stack = stack_of(runner.main_thread_id)
    threads = {}
    for thread in threading.enumerate():
        if thread.ident in (None, runner.main_thread_id, threading.get_ident()):
            continue
        places = stack_of(thread.ident or 0)
        is_ours = thread.name.startswith("jaxcluster")
        # Else it is the kernel's.
        if not is_ours and any(owner(code.co_filename) in TELLING for code, _ in places):
            threads[thread.name] = told_stack(places)
    return wire.RankReport(state, told_stack(stack), threads)


def help_with(runner: CellRunner, body: Help) -> dict[str, Any]:
    """``help``: what the rank's kernel replies; {} where it is not there, or busy with another."""
    if runner.shell is None:
        return {}
    kernel = runner.shell.kernel
    if body.detail is not None:
        return dict(kernel.do_inspect(body.code, body.cursor, body.detail))
    # Else one that never ends would hold all of the rank's side threads.
    if not _completing.acquire(timeout=WAITS_S):
        return {}
    try:
        return dict(kernel.do_complete(body.code, body.cursor))
    finally:
        _completing.release()


class Meter:
    """Reads what the process uses, once a second at most, for all who ask.

    Attributes:
      gpus: those that are the rank's, as CUDA_VISIBLE_DEVICES has them.
    """

    def __init__(self) -> None:
        self.gpus: list[str] = []
        self._last = wire.RankResources(0.0, 0)
        self._at, self._cpu_s = -math.inf, 0.0

    def read(self, request: object = None) -> wire.RankResources:
        """The last reading. Some 20 us, with GPUs about a millisecond; after a pause 0.1 s."""
        if (age_s := time.monotonic() - self._at) > READING_S:
            if age_s > OLD_S:
                self._at, self._cpu_s = time.monotonic(), time.process_time()
                time.sleep(WINDOW_S)
            now, cpu_s = time.monotonic(), time.process_time()
            percent = 100.0 * (cpu_s - self._cpu_s) / (now - self._at)
            self._at, self._cpu_s = now, cpu_s
            with open("/proc/self/statm") as statm:
                rss_nbytes = int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
            uses = gpu_uses(self.gpus)
            known = [use.percent for use in uses if use.percent is not None]
            self._last = wire.RankResources(
                percent,
                rss_nbytes,
                sum(known) / len(known) if known else None,
                sum(use.used_nbytes for use in uses),
                sum(use.total_nbytes for use in uses),
            )
        return self._last


def own_gpus(devices: Sequence[wire.DeviceInfo]) -> list[str]:
    """The GPUs of JAX's local devices, as CUDA_VISIBLE_DEVICES names them.

    ``local_hardware_id`` counts the devices that the process may see.
    """
    visible = host_gpus(os.environ)
    ids = [d.local_hardware_id for d in devices if d.platform in ("cuda", "gpu")]
    return [visible[id] for id in ids if id is not None and id < len(visible)]

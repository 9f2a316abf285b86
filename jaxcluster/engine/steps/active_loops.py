"""The loops that a rank is in, and what is told of them."""

from __future__ import annotations

import contextlib
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

from jaxcluster import wire
from jaxcluster.engine.steps.checkpoints import LoopCheckpoints
from jaxcluster.engine.steps.curve import Curve
from jaxcluster.wire.ops.state import KeptStep, KeptSteps

if TYPE_CHECKING:
    from jaxcluster.engine.cells import CellRunner
    from jaxcluster.engine.steps.loop import Steps

LAST_S = 30.0
REPORT_S = 1.0  # between two reports of how far a loop is

active: ActiveLoops | None = None  # of this process, where it is a rank


class ActiveLoops:
    """Those of one rank.

    Args:
      folder: for what is kept; None: there is no place for it.

    Attributes:
      loops: those that run, the innermost last.
      checkpoints: what is kept of them.
      curve: what they log.
    """

    def __init__(self, runner: CellRunner, folder: Path | None) -> None:
        self.runner = runner
        self.checkpoints = LoopCheckpoints(folder, runner.rank) if folder is not None else None
        self.loops: list[Steps] = []
        self.curve = Curve(self)
        self._seq = self._count = 0
        self._last: threading.Thread | None = None
        self._reporting = threading.Lock()
        self._next_report = 0.0
        self._has_reported = False

    def count(self, seq: int) -> int:
        """Which of the kept loops of a cell another one is."""
        self._count = self._count + 1 if self._seq == seq else 0
        self._seq = seq
        return self._count

    @property
    def share(self) -> int:
        """Of how many ranks a host's memory may be."""
        import jax

        return int(jax.process_count())

    def add(self, loop: Steps, worker: threading.Thread) -> None:
        """A loop begins, with its thread."""
        self.loops.append(loop)
        if loop.checkpointer is not None:
            self._last = worker

    def wait_for_last(self) -> None:
        """Until what the last loop has kept is written: the next one may go on from it."""
        if self._last is not None:
            self._last.join(LAST_S)

    def remove(self, loop: Steps) -> None:
        with contextlib.suppress(ValueError):
            self.loops.remove(loop)
        running = self.runner.current
        if self._has_reported and not self.loops and running is not None:
            self._has_reported = False
            running.request.send("steps", wire.StepsReport(self.runner.rank, []))

    def end_cell(self, cell: wire.CellRequest, status: str) -> None:
        """On the main thread: the cell is over."""
        seq = cell.seq
        self.loops.clear()
        self.curve.end()
        if status == "ok" and self._seq == seq and self.checkpoints is not None:
            loops = {f"{seq}-{n}" for n in range(self._count + 1)}
            self.checkpoints.over(loops, self.runner.end_of(cell, status))

    # ------------------------------------------------------------------ what is told

    def report(self) -> None:
        """How far it is, to the notebook; not more often than each ``REPORT_S``. Any thread."""
        running, loops = self.runner.current, list(self.loops)
        if running is None or not loops:
            return
        with self._reporting:
            now = time.monotonic()
            if now < self._next_report:
                return
            self._next_report = now + REPORT_S * 0.9
            self._has_reported = True
        places = [[loop.done, -1 if loop.total is None else loop.total] for loop in loops]
        running.request.send("steps", wire.StepsReport(self.runner.rank, places))

    def kept(self, seq: int, step: int) -> None:
        """All ranks have kept this step of cell ``seq``. Any thread."""
        running = self.runner.current
        if running is not None and running.cell.seq == seq:
            running.request.send("steps", wire.StepsReport(self.runner.rank, [], step))

    def say(self, text: str) -> None:
        """A line under the cell. Any thread."""
        running = self.runner.current
        if running is not None:
            name = "stdout" if running.cell.script is None else "stderr"
            self.runner.output.print(name, f"{text}\n")

    def on_request(self, body: KeptSteps) -> list[KeptStep]:
        """``steps``: what was kept; with ``forget`` nothing is from now on."""
        found = [
            KeptStep(one.loop, one.number, one.step, one.cell, one.at, one.ranks, one.over)
            for one in (self.checkpoints.entries if self.checkpoints is not None else ())
        ]
        if body.forget and self.checkpoints is not None and not self.loops:
            self.checkpoints.forget(self.share)
        return found

"""What ``jaxcluster.log`` is given: a file of JSON lines, and a picture that follows it.

Values that are still being computed are waited for by a thread: a step costs no more for it.
"""

from __future__ import annotations

import contextlib
import json
import queue
import threading
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from jaxcluster import wire
from jaxcluster.engine import log as own_log
from jaxcluster.engine.arrays import base_array, host_values, is_array, is_ready
from jaxcluster.engine.background import is_own
from jaxcluster.engine.steps import plot

if TYPE_CHECKING:
    from jaxcluster.engine.running import Running
    from jaxcluster.engine.steps.active_loops import ActiveLoops

FILE = "jaxcluster-log.jsonl"
DRAW_S = 1.0  # between two pictures, and
DRAW_SHARE = 50  # ... of the time since the first, one part in so many
FLUSH_S = 0.5
POLL_S = 0.002
END_S = 2.0  # that values get to be computed at the cell's end
MOST_POINTS = 1000  # of a series, in the picture


@dataclass(frozen=True)
class Line:
    """What one call has logged."""

    file: Path
    run: str
    cell: int
    step: int
    at: float
    values: Mapping[str, Any]
    running: Running


def check(values: Mapping[str, Any]) -> dict[str, Any]:
    """The values as numbers, or as what will be one. On the thread that has them.

    Raises:
      TypeError: one is not a number.
    """
    found: dict[str, Any] = {}
    for name, value in values.items():
        if is_array(value):
            if value.size != 1 or not (value.is_fully_addressable or value.is_fully_replicated):
                raise TypeError(f"{name} is not one number that this rank has: log its mean, say")
            found[name] = value.addressable_data(0)
        elif isinstance(value, bool | int | float):
            found[name] = value
        elif isinstance(value, np.ndarray | np.generic) and value.size == 1:
            found[name] = value.item()
        else:
            raise TypeError(f"{name} is not a number: {type(value).__name__}")
    return found


class Curve:
    """That of one rank; the first rank of a cell alone has one."""

    def __init__(self, active: ActiveLoops) -> None:
        self._active = active
        self._lines: wire.Inbox[Line | threading.Event] = wire.Inbox()
        self._thread: threading.Thread | None = None
        self._series: dict[str, list[tuple[float, float]]] = {}
        self._run = ""
        self._count = 0
        self._display = ""
        self._began = self._drawn_at = 0.0
        self._is_new = False
        self._texts: dict[Path, list[str]] = {}

    def log(self, values: Mapping[str, Any], step: int | None) -> None:
        """On the thread that calls it."""
        running, active = self._active.runner.current, self._active
        if running is None or not self._leads():
            return
        loop = active.loops[-1] if active.loops else None
        if step is None:
            step = loop.done if loop is not None else self._count
            self._count = step + 1
        run = loop.run if loop is not None else self._run or uuid.uuid4().hex[:8]
        cell = running.cell.execution_count
        line = Line(Path.cwd() / FILE, run, cell, step, time.time(), check(values), running)
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="jaxcluster-log", daemon=True)
            self._thread.start()
        self._lines.put(line)

    def go_on(self, run: str, step: int) -> None:
        """A loop goes on at a step: what it had logged of later ones goes. On the main thread."""
        if not self._leads():
            return
        self.write_until_now()
        path = Path.cwd() / FILE
        with contextlib.suppress(FileNotFoundError):
            lines = path.read_text().splitlines(keepends=True)
            kept = [line for line in lines if not _is_after(line, run, step)]
            if len(kept) < len(lines):
                draft = path.with_suffix(".part")
                draft.write_text("".join(kept))
                draft.replace(path)
            for line in kept:
                if (told := _read(line)).get("run") == run:
                    numbers = {k: v for k, v in told.items() if k not in OURS}
                    self._add(run, told["step"], numbers)

    def _leads(self) -> bool:
        running = self._active.runner.current
        return running is not None and running.cell.ranks[0] == self._active.runner.rank

    def write_until_now(self) -> None:
        """What was logged by now is in the file, or its values take too long. Any thread."""
        if self._thread is not None:
            through = threading.Event()
            self._lines.put(through)
            through.wait(END_S)

    def end(self) -> None:
        """On the main thread: the cell is over."""
        if self._thread is None:
            return
        self.write_until_now()
        self._draw()
        self._series, self._run, self._display, self._count = {}, "", "", 0
        self._drawn_at = 0.0

    # ------------------------------------------------------------------ its thread

    def _work(self) -> None:
        is_own.set(True)
        while True:
            try:
                self._take()
            except Exception as error:  # a full disk, say
                own_log.error(error)

    def _take(self) -> None:
        try:
            what = self._lines.get(timeout=FLUSH_S if self._texts or self._is_new else None)
        except queue.Empty:
            self._flush()
            self._draw_if_due()
            return
        if isinstance(what, threading.Event):
            try:
                self._flush()
            finally:
                what.set()
            return
        runner, running = self._active.runner, what.running
        numbers = {
            name: _number(value, lambda: runner.current is running)
            for name, value in what.values.items()
        }
        told = {"run": what.run, "cell": what.cell, "step": what.step, "time": round(what.at, 3)}
        self._texts.setdefault(what.file, []).append(json.dumps({**told, **numbers}) + "\n")
        self._add(what.run, what.step, numbers)
        self._draw_if_due()

    def _draw_if_due(self) -> None:
        now = time.monotonic()
        if now > self._drawn_at + max(DRAW_S, (now - self._began) / DRAW_SHARE):
            self._flush()
            self._draw()

    def _flush(self) -> None:
        texts, self._texts = self._texts, {}
        for path, lines in texts.items():
            with open(path, "a") as file:
                file.write("".join(lines))

    def _add(self, run: str, step: int, numbers: Mapping[str, float | None]) -> None:
        if run != self._run:
            self._series, self._run, self._began = {}, run, time.monotonic()
        for name, number in numbers.items():
            if number is not None:
                points = self._series.setdefault(name, [])
                points.append((step, number))
                if len(points) > MOST_POINTS:
                    del points[1::2]
        self._is_new = True

    def _draw(self) -> None:
        runner, series = self._active.runner, {k: list(v) for k, v in self._series.items()}
        running = runner.current
        is_new, self._is_new = self._is_new, False
        if not is_new or running is None or running.cell.script is not None:
            return
        self._drawn_at = time.monotonic()
        is_first, self._display = not self._display, self._display or uuid.uuid4().hex
        told = plot.text(series)
        content = {
            "data": {"text/plain": told, "text/html": plot.draw(series)},
            "metadata": {},
            "transient": {"display_id": self._display},
        }
        runner.output.emit("display_data" if is_first else "update_display_data", content)


OURS = ("run", "cell", "step", "time")


def _number(value: Any, is_wanted: Callable[[], bool]) -> float | None:
    """A value once it is computed; None: it never will be, or nobody waits for it any more."""
    if not is_array(value):
        return value  # type: ignore[no-any-return]
    try:
        while not is_ready(value):
            if base_array(value).is_deleted() or not is_wanted():
                return None
            time.sleep(POLL_S)
        return host_values(value).item()  # type: ignore[no-any-return]
    except Exception:  # its computation has failed, which the cell's own code will hear
        return None


def _read(line: str) -> dict[str, Any]:
    try:
        found = json.loads(line)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _is_after(line: str, run: str, step: int) -> bool:
    told = _read(line)
    return told.get("run") == run and told.get("step", -1) >= step

"""The output of a rank's cell, on its way to the notebook: text, displays, tracebacks, pages."""

from __future__ import annotations

import contextlib
import sys
import threading
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

from jaxcluster import wire
from jaxcluster.engine import tracebacks
from jaxcluster.engine.arrays import describe, spans_processes
from jaxcluster.engine.capture import LogTail, mime_bundle
from jaxcluster.host import kernel_private

if TYPE_CHECKING:
    from jaxcluster.engine.cells import CellRunner


class CellOutput:
    """That of one rank's cells.

    Attributes:
      log: what C code and subprocesses write to the rank's log.
    """

    def __init__(self, runner: CellRunner, log: LogTail) -> None:
        self._runner = runner
        self.log = log
        self._showing = threading.Lock()  # held from the log's being read until it is sent

    def is_heard(self) -> bool:
        """Whether what is displayed now goes to a notebook of ours."""
        return self._runner.current is not None or self._runner.diverts()

    def emit(self, kind: str, content: dict[str, Any]) -> None:
        if self._runner.divert(kind, content):
            return
        running = self._runner.current
        if running is None:
            return
        if kind == "execute_result" and spans_processes(self._runner.last_result):
            with contextlib.suppress(Exception):  # its text alone is shown
                content["array"] = asdict(replace(describe(self._runner.last_result), shards=[]))
        self._runner.history.add(kind, content)
        output = wire.RankOutput(self._runner.rank, running.cell.seq, kind, content)
        running.request.send("output", output)

    def take_traceback(self, error: BaseException, lines: list[str]) -> None:
        """IPython renders an error: the cell's own, or one that the cell itself has shown."""
        running = self._runner.current
        if running is not None:
            kernel_private.set_last_traceback(self._runner.shell, lines)
            if running.cell.message is None and not self._runner.in_a_cell(sys._getframe(1)):
                return
        told = {"ename": wire.type_name(type(error)), "evalue": tracebacks.message_of(error)}
        if self._runner.divert("error", {**told, "traceback": lines}) or running is None:
            return
        if running.cell.message is not None:  # of what observes a widget
            info = tracebacks.error_info(
                error, self._own_lines(error, lines), self._runner.cell_numbers
            )
            if running.error is None:
                running.error, running.raised = info, error
        else:
            self.print("stderr", "\n".join([*lines, ""]))
            running.printed = error

    def _own_lines(self, error: BaseException, lines: list[str]) -> list[str]:
        """A traceback from the cell's own line on, without the library that has called it."""
        at = tracebacks.in_a_cell(error.__traceback__, self._runner.cell_numbers)
        try:
            made = self._runner.shell.InteractiveTB.structured_traceback(
                type(error), error, at, tb_offset=0
            )
            return list(made)
        except Exception:  # IPython's renderer, on the user's exception
            return lines

    def print(self, name: str, text: str) -> bool:
        if self._runner.diverts() and self._runner.divert("stream", {"name": name, "text": text}):
            return True
        running = self._runner.current
        if running is None:
            return False
        self._runner.history.text(name, text)
        self._runner.control.stream(
            running.request, self._runner.rank, running.cell.seq, name, text
        )
        return True

    def show_pages(self) -> None:
        """What ``name?`` and pagers have left for the frontend."""
        payloads = self._runner.shell.payload_manager
        if not (pages := payloads.read_payload()):
            return
        payloads.clear_payload()
        for payload in pages:
            if payload.get("source") == "page":
                data = mime_bundle(payload["data"])
                self.emit("display_data", {"data": data, "metadata": {}, "transient": {}})

    def tick(self) -> bool:
        """On the control thread, while a cell runs: show what has come to the log.

        It waits for nobody: the main thread may wait for this one to send what was printed. What
        is not read now is read later. Returns whether there was, or may be, something to show.
        """
        running, control = self._runner.current, self._runner.control
        if running is None:
            return False
        if control.is_behind(running.request.ident) or not self._showing.acquire(blocking=False):
            return True
        try:  # a cell that ticks no longer has shown its rest, and may be over
            return control.ticking and self._show_log(last=False)
        except OSError:  # the cell has used up the file descriptors: another time
            return False
        finally:
            self._showing.release()

    def show_rest(self) -> None:
        """At a cell's end: all that the log has of it, after what the control thread shows now."""
        with self._showing:
            self._show_log(last=True)

    def _show_log(self, last: bool) -> bool:
        """Whether there was something to show."""
        running = self._runner.current
        if running is None or not running.shown or not (text := self.log.read(last)):
            return False
        self.print("stdout", text)
        return True

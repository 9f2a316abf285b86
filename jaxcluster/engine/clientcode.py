"""Interrupts of code that ipyparallel's own clients run on a rank: ``%%px`` cells and ``apply``.

ipykernel puts Python's own SIGINT handler in place while it handles a request. It raises wherever
the signal comes: between a launch and its count, which puts the rank out of step, or in ipykernel's
code, and then the client's answer never comes. Here the handler stays the runner's, and raises in
the client's code alone.
"""

from __future__ import annotations

from types import FrameType
from typing import Any

from ipyparallel.engine.kernel import IPythonParallelKernel

from jaxcluster.engine.cells import CellRunner

_APPLY = IPythonParallelKernel.do_apply.__code__


class ClientCode:
    """Whether a client's request is handled now, and what SIGINT does meanwhile."""

    def __init__(self, runner: CellRunner) -> None:
        self.runner = runner
        self._depth = 0
        self._request = 0  # counts them: an interrupt is for the one in which it came

    def attach(self, kernel: Any) -> None:
        kernel.pre_handler_hook = self._enter
        kernel.post_handler_hook = self._leave
        self.runner.on_idle_sigint = self._on_sigint

    def _enter(self) -> None:
        self._depth += 1
        self._request += 1

    def _leave(self) -> None:
        self._depth -= 1

    def _on_sigint(self, frame: FrameType | None) -> None:
        if not self._depth:
            return
        journal, request = self.runner.journal, self._request
        launching = journal.between_count_and_launch(frame)
        if not launching and self._in_client_code(frame):
            raise KeyboardInterrupt
        if launching:
            journal.interrupted = True  # raised by the hook when both are done
        self.runner.signal_again(lambda: self._is_to_be_raised(request, launching))

    def _is_to_be_raised(self, request: int, launching: bool) -> bool:
        journal = self.runner.journal
        if launching and not journal.interrupted:
            return False  # the hook has raised it
        if launching:
            journal.interrupted = False
        return self._depth > 0 and self._request == request

    def _in_client_code(self, frame: FrameType | None) -> bool:
        """Whether ``frame`` is in a client's cell, or in a function that it applies."""
        if self.runner.in_a_cell(frame):
            return True
        while frame is not None:
            if frame.f_back is not None and frame.f_back.f_code is _APPLY:
                return frame.f_code.co_filename == "<string>"  # what do_apply executes
            frame = frame.f_back
        return False

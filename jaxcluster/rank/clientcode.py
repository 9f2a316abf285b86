"""Interrupts of code that ipyparallel's own clients run on a rank: ``%%px`` cells and ``apply``.

ipykernel puts Python's own SIGINT handler in place while it handles a request. It raises at any
place: between a launch and its agreement, or in ipykernel's code. Then the client gets no answer.
Here the handler stays the runner's, and raises in the client's code alone.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from types import FrameType
from typing import Any as AnyType

from ipyparallel import error
from ipyparallel.engine.kernel import IPythonParallelKernel
from traitlets import Any

from jaxcluster.host import kernel_private
from jaxcluster.rank.places import in_a_cell, outward

_APPLY = IPythonParallelKernel.do_apply.__code__


class _NoChannelThread:
    """Stands for the thread that ipykernel's subshells need, and engines do not have."""

    parent_thread = threading.main_thread()

    def __bool__(self) -> bool:
        return False


class RankKernel(IPythonParallelKernel):
    """ipyparallel's kernel, which answers cells with top-level ``await`` too.

    Before it interrupts, ipykernel asks the thread of its subshells for the main thread. An engine
    has none, so the answer never comes (ipykernel 7, ipyparallel 9).
    """

    shell_channel_thread = Any(_NoChannelThread())
    _supports_kernel_subshells = False
    control_msg_types = [*IPythonParallelKernel.control_msg_types, "signal_request"]  # noqa: RUF012

    def __init__(self, **options: AnyType) -> None:
        super().__init__(**options)
        self._depth = 0  # of client's requests that are handled
        self._awaited: list[asyncio.Future[AnyType]] = []  # cells with top-level await
        kernel_private.replace_cancelling(self, self._cancelled_on_sigint)

    async def signal_request(self, stream: AnyType, ident: AnyType, parent: AnyType) -> None:
        """Send this process a signal that a client asks for. On the kernel's control thread."""
        try:
            number = parent["content"]["sig"]  # or its name
            os.kill(os.getpid(), getattr(signal, str(number), number))
            content = {"status": "ok"}
        except Exception:
            content = error.wrap_exception()
        metadata = {"engine": self.ident, "status": content["status"]}
        self.session.send(stream, "signal_reply", content, parent, ident, metadata=metadata)

    def is_running(self) -> bool:
        """Whether this thread handles a client's request."""
        return self._depth > 0 and threading.current_thread() is threading.main_thread()

    def pre_handler_hook(self) -> None:
        self._depth += 1

    def post_handler_hook(self) -> None:
        self._depth -= 1

    @contextlib.contextmanager
    def _cancelled_on_sigint(self, cell: asyncio.Future[AnyType]) -> Iterator[None]:
        """ipykernel's own takes SIGINT from all other code for as long as the cell awaits."""
        self._awaited.append(cell)
        try:
            yield
        finally:
            self._awaited.remove(cell)

    def on_sigint(self, frame: FrameType | None) -> None:
        """Raise in a client's cell, or in the function that it applies; end what it awaits."""
        is_applied = any(one.f_code is _APPLY for one in outward(frame and frame.f_back))
        if self._depth and (is_applied or in_a_cell(frame)):
            raise KeyboardInterrupt
        for cell in self._awaited:
            cell.get_loop().call_soon_threadsafe(cell.cancel)

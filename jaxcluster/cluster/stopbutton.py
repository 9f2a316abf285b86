"""The stop button, while a KeyboardInterrupt would leave something half done."""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # see ``held``
import contextlib
import signal
import threading
from collections.abc import Callable, Iterator


@contextlib.contextmanager
def held(press: Callable[[], object] | None = None) -> Iterator[list[None]]:
    """Yields what is not empty once stop was pressed: within, no KeyboardInterrupt is raised.

    Raised there, it would leave a cell that runs on the ranks without anybody who waits for it. Not
    on the main thread it does nothing, since none is raised there. The code within takes
    microseconds, but some 100 ms with a debugger in this process.

    Args:
      press: called instead, each time that it is pressed.
    """
    pressed: list[None] = []
    # ``signal``'s own functions look for the handlers in an enum first: 5 us more for each cell.
    handler = _signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or handler is None:
        yield pressed
        return
    _signal.signal(signal.SIGINT, lambda *_: press() if press else pressed.append(None))
    try:
        yield pressed
    finally:
        _signal.signal(signal.SIGINT, handler)

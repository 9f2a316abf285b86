"""A queue whose waits end in time.

``queue.SimpleQueue.get`` may wait for ever, whatever its timeout (seen on CPython 3.11 and 3.13).
It takes its lock and finds nothing. If the time is over by then, the time that remains is negative,
and that means no limit. It takes the lock at once if it waits for the first time, or if
another thread was faster. So a short timeout on a busy machine is enough. ``queue.Queue`` does not
help: a signal handler that calls its ``put`` deadlocks where it has interrupted a ``get``.
"""

from __future__ import annotations

import queue
import threading
import time
from collections import deque
from typing import Generic, TypeVar

T = TypeVar("T")


class Inbox(Generic[T]):
    """Items in the order of their arrival, as ``queue.SimpleQueue`` has them, for one reader.

    Any number of threads puts; one gets. ``put`` never waits, and may be called in a signal
    handler. A handler may also raise in it, or in ``get``: what is in the queue is still found.
    """

    def __init__(self) -> None:
        self._items: deque[T] = deque()
        self._arrival = threading.Lock()  # free: an item may be there

    def put(self, item: T) -> None:
        # Python looks for signals when a call of C returns, and when a function of Python begins.
        # So one that raises after the first call here leads to the second, and then both are made.
        try:
            self._items.append(item)
        finally:
            try:
                self._arrival.release()
            except RuntimeError:
                pass  # nobody waits

    def get(self, timeout: float | None = None) -> T:
        """The next item, which is waited for for so many seconds; None: without limit.

        Raises:
          queue.Empty: nothing has come in that time.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            try:
                return self._items.popleft()  # at once: an interrupt must not lose it
            except IndexError:
                pass
            left = -1.0 if deadline is None else deadline - time.monotonic()
            if deadline is not None and left <= 0:
                raise queue.Empty
            self._arrival.acquire(timeout=left)

    def empty(self) -> bool:
        return not self._items

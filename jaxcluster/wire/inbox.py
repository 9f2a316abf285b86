"""A queue whose waits end in time.

``queue.SimpleQueue.get`` may wait for ever, whatever its timeout (seen on CPython 3.11 and 3.13).
It takes its lock and finds nothing, and where the time is over by then, what is left of it is
negative, which means without end. It takes that lock at once where it waits for the first time, and
where another thread was faster: a short timeout on a busy machine is enough. ``queue.Queue`` is no
way out: a signal handler that calls its ``put`` waits for ever where it has interrupted a ``get``.
"""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections import deque
from typing import Generic, TypeVar

T = TypeVar("T")


class Inbox(Generic[T]):
    """Items in the order of their arrival, as ``queue.SimpleQueue`` has them.

    Any number of threads puts and gets; ``put`` never waits, and may be called in a signal handler.
    """

    def __init__(self) -> None:
        self._items: deque[T] = deque()
        # Free: an item may be there. Whoever waits has it taken.
        self._arrival = threading.Lock()

    def put(self, item: T) -> None:
        self._items.append(item)
        self._tell()

    def get(self, timeout: float | None = None) -> T:
        """The next item, which is waited for for so many seconds; None: without end.

        Raises:
          queue.Empty: none has come in that time.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            try:
                item = self._items.popleft()
            except IndexError:
                left = -1.0 if deadline is None else deadline - time.monotonic()
                if deadline is not None and left <= 0:
                    raise queue.Empty from None
                self._arrival.acquire(timeout=left)
            else:
                if self._items:
                    self._tell()  # whoever else waits
                return item

    def get_nowait(self) -> T:
        """The next item.

        Raises:
          queue.Empty: there is none yet.
        """
        return self.get(0.0)

    def empty(self) -> bool:
        return not self._items

    def _tell(self) -> None:
        if self._arrival.locked():
            with contextlib.suppress(RuntimeError):  # another thread was faster
                self._arrival.release()

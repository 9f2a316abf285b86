"""One loop, one owner, a way to be found: what all supervising processes have in common."""

from __future__ import annotations

import os
import selectors
import time
from collections.abc import Iterable

from jaxcluster.supervision.folders import is_still, touch
from jaxcluster.supervision.processes import is_alive

LOOK_S = 0.5  # how often it is looked whether the owner lives, and whether it can be found
REST_S = 5.0  # ... where the system tells of the owner's end
TOUCH_S = 3600.0


class SupervisionLoop:
    """A process of one thread that has others, and ends with its owner, however that ends.

    That is watched for twice, by the end of its standard input and by the owner's pid and start
    time: a process that the owner has forked may hold the input open. Detached, it has no owner and
    outlives it; when nobody can find the way to it any more, nobody could stop it, so it ends.

    Attributes:
      owner: the token of the process that it ends with.
      found_by: files and folders by which others find it, as they were; None of one that had gone.
      leaving: it ends what it has, and then itself.
      selector: has as data of each file what to call.
      look_s: how long there may be between two turns.
    """

    def __init__(self, owner: str) -> None:
        self.owner = owner
        self.detached = self.leaving = False
        self.found_by: dict[str, os.stat_result | None] = {}
        self.selector = selectors.DefaultSelector()
        self.look_s = LOOK_S
        self._inbox = b""
        self._missed = 0  # how often in a row it could not be found
        self._looked_at = self._touched_at = time.monotonic()

    def turn(self, timeout_s: float) -> int:
        """Do what there is, or comes within ``timeout_s``, and look around. Returns how much came.

        ``leaving`` says afterwards whether there is a reason to end.
        """
        events = self.selector.select(timeout_s)
        for key, _ in events:
            key.data()
        now = time.monotonic()
        # Only ever set: a signal's handler may set it while this looks around.
        if not self.detached and self.owner_is_gone:
            self.leaving = True
        if now - self._looked_at > LOOK_S:
            self._looked_at = now
            is_lost = not self.can_be_found()  # twice: it may be changing
            self._missed = self._missed + 1 if is_lost and self.detached else 0
            if self._missed > 1:
                self.leaving = True
        if now - self._touched_at > TOUCH_S:
            self._touched_at = now
            touch(self.own_files())
        return len(events)

    @property
    def owner_is_gone(self) -> bool:
        return not is_alive(self.owner)

    def can_be_found(self) -> bool:
        """Whether there is a way to it still."""
        return all(was is not None and is_still(path, was) for path, was in self.found_by.items())

    def own_files(self) -> Iterable[str]:
        """What is to be kept from those who clear /tmp."""
        return self.found_by

    def watch_owner(self) -> None:
        """Have the system tell of the owner's end: an idle process then wakes less often."""
        try:
            owner = os.pidfd_open(int(self.owner.partition(":")[0]))
        except (OSError, ValueError):  # it has ended already
            return

        def ended() -> None:
            self.selector.unregister(owner)
            os.close(owner)
            self.look_s = LOOK_S

        self.selector.register(owner, selectors.EVENT_READ, ended)
        self.look_s = REST_S

    # -- the owner's end of its input

    def hear_owner(self) -> None:
        """Take what the owner writes to its standard input, and that this ends."""
        self.selector.register(0, selectors.EVENT_READ, self._read_input)

    def _read_input(self) -> None:
        try:
            data = os.read(0, 1 << 16)
        except OSError:
            data = b""
        *lines, self._inbox = (self._inbox + data).split(b"\n")
        for line in lines:
            self.told(line)
        if not data:
            self.selector.unregister(0)
            self.left()

    def told(self, line: bytes) -> None:
        """Do what a line of the owner's says."""

    def left(self) -> None:
        """Its input has ended."""
        if not self.detached:
            self.leaving = True

"""The loop of a process of one thread that ends with its owner, however that ends."""

from __future__ import annotations

import os
import selectors

from jaxcluster.supervision.processes import is_alive

LOOK_S = 0.5  # how often it is looked whether the owner lives
REST_S = 5.0  # ... where the system tells of the owner's end


class SupervisionLoop:
    """A process of one thread that has others.

    The owner's end is watched for twice, by the end of this process's standard input and by the
    owner's pid and start time: a process that the owner has forked may hold the input open.

    Attributes:
      owner: the token of the process that it ends with.
      leaving: it ends what it has, and then itself.
      selector: has as data of each file what to call.
      look_s: how long there may be between two turns.
    """

    def __init__(self, owner: str) -> None:
        self.owner = owner
        self.leaving = False
        self.selector = selectors.DefaultSelector()
        self.look_s = LOOK_S
        self._inbox = b""

    def turn(self, timeout_s: float) -> int:
        """Do what there is, or comes within ``timeout_s``, and look around. Returns how much came.

        ``leaving`` says afterwards whether there is a reason to end.
        """
        events = self.selector.select(timeout_s)
        for key, _ in events:
            key.data()
        if not is_alive(self.owner):
            self.leaving = True
        return len(events)

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

    def hear_owner(self) -> None:
        """Take what the owner writes to the standard input, and that this ends."""
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
            self.leaving = True

    def told(self, line: bytes) -> None:
        """Do what a line of the owner's says."""

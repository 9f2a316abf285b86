"""What notebooks are told of this rank's variables that have not changed them, and when.

Whoever gives the ranks new processes must know what a rank had that has died, also where another
notebook has run its last cell, has pushed to it or has undone a cell, and where ``%%px`` has run
code on it. What a cell has changed is told at its end. Whatever else is about to change variables
first tells that nothing holds any more that was told before; what holds then is told soon after.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, Protocol

from jaxcluster import wire
from jaxcluster.engine.control import ControlChannel
from jaxcluster.engine.names import Names

TELL_S = 0.1  # after a change: clients of ipyparallel may have many small ones
HOLD_S = 600.0  # that who has the replies held has to end the rank, or to have them sent


class Timer(Protocol):
    """What is called later."""

    def cancel(self) -> None: ...


class ChangeNotices:
    """They are told by way of ``control``.

    Args:
      is_busy: whether a cell runs, which tells them at its end.
    """

    def __init__(self, control: ControlChannel, names: Names, is_busy: Callable[[], bool]) -> None:
        self._control, self._names, self._is_busy = control, names, is_busy
        self._namespace: Mapping[str, Any] = {}
        self._seq = 0
        self._codes = 0  # of clients, that run
        self._timer: Timer | None = None
        self._holder = b""
        self._holds = 0  # how often it was asked to hold replies: a late timer must end no other
        self._held: list[Callable[[], object]] = []
        self._call_later: Callable[[float, Callable[[], object]], Timer]

    def attach(
        self,
        namespace: Mapping[str, Any],
        call_later: Callable[[float, Callable[[], object]], Timer],
    ) -> None:
        """What is told of, and how the main thread is told to do something in some seconds."""
        self._namespace, self._call_later = namespace, call_later

    def hold(self, whose: bytes, is_on: bool) -> None:
        """Hold the replies to all other notebooks' cells back, or send them. Any thread.

        Who is about to save the rank and to end it does so: a cell that ended after it was saved
        has changed nothing that comes back, and must not be said to have ended well.
        """
        self._holder = whose if is_on else b""
        if is_on:
            self._holds += 1
            self._control.call_main(partial(self._release_later, self._holds))
        self._send_held()

    def _release_later(self, number: int) -> None:
        def release() -> None:
            if self._holds == number:
                self.hold(b"", False)

        self._call_later(HOLD_S, release)

    def answer(self, whose: bytes, send: Callable[[], object]) -> None:
        """Send the reply to a notebook's cell, unless such replies are held back."""
        if not self._holder or whose == self._holder:
            send()
            return
        self._held.append(send)
        self._send_held()  # it may have been let go just now

    def _send_held(self) -> None:
        while self._held and not self._holder:
            with contextlib.suppress(IndexError):  # the other thread has taken it
                self._held.pop(0)()

    def cell_ended(self, whose: bytes, seq: int) -> None:
        """Tell what a cell has changed. On the main thread.

        Args:
          whose: the notebook that has sent it, and is told with the reply.
        """
        self._seq = seq
        self._tell(self._control.others(whose))

    def spoil(self, whose: bytes, undone: int = 0) -> None:
        """A notebook changes variables by something else than a cell. Any thread.

        Args:
          whose: the notebook, which knows what it does.
          undone: the cell that it takes back, if it is that.
        """
        others = self._control.others(whose)
        for client in others:
            if undone or client not in self._names.spoiled:  # else it knows, or lacks a cell's end
                self._names.spoiled.add(client)
                self._control.post(client, wire.encode("spoiled", "", wire.Spoiled(undone)))
        if others:
            self._control.call_main(self._tell_soon)

    def enter(self) -> None:
        """A client's code begins, and nobody knows what it does. On the main thread."""
        self._codes += 1
        self._names.values.is_spoiled = True
        self.spoil(b"")

    def leave(self) -> None:
        self._codes -= 1
        self._tell_soon()

    def _tell_soon(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._call_later(TELL_S, self._tell_spoiled)

    def _tell_spoiled(self) -> None:
        self._timer = None
        if not (self._codes or self._is_busy()):
            self._names.values.note(None, self._namespace)
            self._tell(self._names.spoiled.intersection(self._control.others(b"")))

    def _tell(self, clients: Iterable[bytes]) -> None:
        for client in clients:
            if self._control.is_behind(client):  # perhaps stopped: what it is sent would pile up
                self._names.spoiled.add(client)
                continue
            changes = self._names.changes(client, self._namespace)
            if changes is not None:
                told = wire.encode("named", "", wire.Named(self._seq, changes))
                self._control.post(client, told)

"""In place of ``threading`` and ``zmq`` for threads of the product's own: on the virtual clock."""

from __future__ import annotations

import json
import math
import queue
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

from jaxcluster.agent.mirrors import Mirrors
from sim.hub import Actor, Hub

ANSWER_S = 1.0  # a mirror waits for its agent
DELAYS_S = (0.0005, 0.002, 0.01, 0.05)


class Event:
    """As ``threading.Event``."""

    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        self._is_set = False
        self._waiting: list[Actor] = []

    def is_set(self) -> bool:
        return self._is_set

    def set(self) -> None:
        self._is_set = True
        for actor in self._waiting:
            self._hub.wake(actor)

    def clear(self) -> None:
        self._is_set = False

    def wait(self, timeout: float | None = None) -> bool:
        hub, own = self._hub, self._hub.running
        until = math.inf if timeout is None else hub.now + timeout
        while not self._is_set and hub.now < until and own is not None:
            self._waiting.append(own)
            hub.block(None, None if timeout is None else until - hub.now)
            self._waiting.remove(own)
        return self._is_set


class Threads:
    """As the module ``threading``: what is started belongs to the rank that is being set up."""

    def __init__(self, hub: Hub) -> None:
        self.hub = hub
        self.of: list[Actor] = []

    def Event(self) -> Event:
        return Event(self.hub)

    def Thread(self, target: Callable[[], object], name: str, daemon: bool) -> Any:
        threads = self

        class Started:
            def start(self) -> None:
                threads.of.append(threads.hub.start(name, target))

        return Started()

    class Lock:
        """Nobody else runs before it is let go."""

        def __enter__(self) -> None: ...
        def __exit__(self, *raised: object) -> None: ...


class Jobs:
    """What a copier has its rank's main thread do: see ``wire.Inbox``."""

    def __init__(self, hub: Hub) -> None:
        self._came = Event(hub)
        self._items: deque[Any] = deque()

    def put(self, item: Any) -> None:
        self._items.append(item)
        self._came.set()

    def get(self, timeout: float) -> Any:
        if not self._items:
            self._came.clear()
            self._came.wait(timeout)
        return self.get_nowait()

    def get_nowait(self) -> Any:
        if not self._items:
            raise queue.Empty
        return self._items.popleft()


class Again(Exception):
    """Nothing has come in time."""


class Sockets:
    """As the module ``zmq``, for mirrors.

    Args:
      agents: by endpoint, what takes copies in there; None: that host is lost.
      cut: how often a message is lost, and with it the connection.
    """

    DEALER = LINGER = IPV6 = SNDTIMEO = RCVTIMEO = 0
    Again = Again

    def __init__(
        self, hub: Hub, agents: Mapping[str, Callable[[], Mirrors | None]], cut: float
    ) -> None:
        self.hub, self.agents, self.cut = hub, agents, cut

    def Context(self) -> Sockets:
        return self

    def socket(self, kind: int) -> Socket:
        return Socket(self)

    def term(self) -> None:
        """Nothing is on its way."""


class Socket:
    """A connection: late, in order, and at times cut."""

    def __init__(self, sockets: Sockets) -> None:
        self._sockets, self._hub = sockets, sockets.hub
        self._came = Event(self._hub)
        self._answers: deque[bytes] = deque()
        self._endpoint = ""
        self._is_cut = False
        self._due = 0.0

    def setsockopt(self, option: int, value: int) -> None:
        """It is as it is."""

    def connect(self, endpoint: str) -> None:
        self._endpoint = endpoint

    def close(self, linger: int) -> None:
        """What is on its way arrives."""

    def send_multipart(self, message: list[bytes], copy: bool) -> None:
        hub, (head, data) = self._hub, message
        self._due = max(self._due, hub.now) + DELAYS_S[int(4 * hub.chance.random())]
        self._is_cut = self._is_cut or hub.chance.random() < self._sockets.cut
        if not self._is_cut:
            hub.at(self._due, lambda: self._arrive(json.loads(head), data))

    def _arrive(self, request: dict[str, Any], data: bytes) -> None:
        agent = self._sockets.agents[self._endpoint]()
        if agent is None or agent._is_late(request):
            return
        answer = {**agent._answer(request, data), "id": request["id"]}
        self._is_cut = self._is_cut or self._hub.chance.random() < self._sockets.cut
        if not self._is_cut:
            self._answers.append(json.dumps(answer).encode())
            self._came.set()

    def recv(self) -> bytes:
        if not self._answers:
            self._came.clear()
            self._came.wait(ANSWER_S)
        if not self._answers:
            raise Again
        return self._answers.popleft()

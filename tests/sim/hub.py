"""A virtual clock and what runs by it, one after another: each schedule is the same every time.

Actors are greenlets. Whatever would wait on a real machine (a queue, a sleep, a lock) blocks its
actor here until a condition holds or a time has come; the clock moves on only when nobody can run.
"""

from __future__ import annotations

import heapq
import itertools
import math
import queue
import random
from collections import deque
from collections.abc import Callable
from typing import Any

import greenlet

CALM = "nobody can go on by this"
LOOK_S = 0.11  # between looks of who counts how long nothing has been written


class Stuck(Exception):
    """Nothing can ever run again, and somebody waits."""


class Actor:
    """Something that runs, and waits."""

    def __init__(self, hub: Hub, name: str, work: Callable[[], object]) -> None:
        self.hub, self.name = hub, name
        self.rank: Any = None  # whose main thread it is
        self.of: int | None = None  # the rank whose thread it is
        self.ready: Callable[[], object] | None = None
        self.deadline = 0.0
        self.is_over = False
        self._work = work
        self._greenlet: greenlet.greenlet | None = None  # once it runs, until it is over

    def run(self) -> None:
        try:
            self._work()
        except greenlet.GreenletExit:
            pass
        finally:
            self.is_over, self._greenlet = True, None

    def resume(self) -> None:
        if self._greenlet is not None:
            self._greenlet.switch()
            return
        made = _RESTING.pop() if _RESTING else greenlet.greenlet(_serve, self.hub.greenlet)
        self._greenlet = made
        made.switch(self)

    def kill(self) -> None:
        self.is_over = True
        if self._greenlet is not None and self._greenlet is not greenlet.getcurrent():
            self._greenlet.throw(greenlet.GreenletExit)


# Greenlets that have nothing to do: to make one, with a stack of its own, takes longer than what
# most actors do.
_RESTING: list[greenlet.greenlet] = []


def _serve(actor: Actor) -> None:
    """Run one actor after the other."""
    own, hub = greenlet.getcurrent(), actor.hub.greenlet
    while True:
        actor.run()
        del actor
        _RESTING.append(own)
        actor = hub.switch()


class Hub:
    """The clock, and all that runs by it."""

    def __init__(self, chance: random.Random) -> None:
        self.now = 0.0
        self.chance = chance
        self.greenlet = greenlet.getcurrent()
        self.actors: list[Actor] = []
        self._events: list[tuple[float, int, Callable[[], object]]] = []
        self._numbers = itertools.count()
        self.running: Actor | None = None
        self.is_over = False  # nothing is waited for any more
        self.ranks = range(0)
        self.stirred: set[int] = set()  # ranks whose threads may find what they wait for
        self.writes = 0  # to JAX's coordination service

    def start(self, name: str, work: Callable[[], object], of: int | None = None) -> Actor:
        actor = Actor(self, name, work)
        actor.of = of
        self.actors.append(actor)
        return actor

    def at(self, when: float, job: Callable[[], object]) -> None:
        """Do it then. It returns ``CALM`` where it has changed nothing that an actor waits for."""
        heapq.heappush(self._events, (when, next(self._numbers), job))

    def wake(self, actor: Actor) -> None:
        """Have it go on, whatever it waits for."""
        actor.deadline = 0.0

    def stir_all(self) -> None:
        """Something has changed that all ranks see."""
        self.stirred.update(self.ranks)

    def block(self, ready: Callable[[], object] | None, seconds: float | None = None) -> None:
        """Have the running actor wait until ``ready``, or for so long."""
        actor = self.running
        if actor is None:  # it is over, and this is somebody's last will
            raise greenlet.GreenletExit
        actor.ready = ready
        actor.deadline = math.inf if seconds is None else self.now + seconds
        self.greenlet.switch()

    def run(self, limit: float) -> None:
        """Let everything run until it ``is_over``.

        What a rank's thread waits for is looked at only when something has stirred that rank: it
        stays once it has come. What others wait for may be gone before their turn.

        Raises:
          Stuck: it never will be, or not before ``limit``.
        """
        actors, stirred = self.actors, self.stirred
        while not self.is_over:
            now, able, soonest = self.now, [], math.inf
            for each in actors:
                deadline = each.deadline
                if deadline <= now:
                    able.append(each)
                    continue
                if (ready := each.ready) is not None:
                    if (of := each.of) is None:
                        if ready():
                            able.append(each)
                            continue
                    elif of in stirred and ready():
                        each.deadline = 0.0
                        able.append(each)
                        continue
                if deadline < soonest:
                    soonest = deadline
            stirred.clear()
            if able:
                actor = able[0 if len(able) == 1 else int(len(able) * self.chance.random())]
                self.running = actor
                actor.resume()
                self.running = None
                if actor.is_over:
                    actors.remove(actor)
                if actor.of is not None:
                    stirred.add(actor.of)
                continue
            self._let_time_pass(soonest, limit)

    def _let_time_pass(self, deadline: float, limit: float) -> None:
        """Until the first actor's deadline, or something happens that one may wait for."""
        events, is_calm = self._events, True
        while is_calm and self.now < deadline:
            soonest = min(deadline, events[0][0]) if events else deadline
            if soonest > limit:
                raise Stuck(f"at {self.now:.3f} s nobody can go on")
            self.now = now = max(self.now, soonest)
            while events and events[0][0] <= now:
                is_calm = heapq.heappop(events)[2]() is CALM and is_calm

    def end(self) -> None:
        for actor in self.actors:
            if not actor.is_over:
                actor.kill()
        self.actors.clear()
        self._events.clear()


class Time:
    """In place of the module ``time``."""

    def __init__(self, hub: Hub) -> None:
        self._hub = hub

    def monotonic(self) -> float:
        return self._hub.now

    perf_counter = time = monotonic

    def time_ns(self) -> int:
        return int(self._hub.now * 1e9)

    def sleep(self, seconds: float) -> None:
        self._hub.block(None, seconds)


class PatientTime(Time):
    """Where a rank waits in Python for what others write: before that it would look in vain.

    An interrupt ends it on a main thread.
    """

    def sleep(self, seconds: float) -> None:
        hub = self._hub
        rank, before = hub.running and hub.running.rank, hub.writes
        hub.block(
            lambda: hub.writes != before or (rank is not None and rank.is_interrupted), LOOK_S
        )
        if rank is not None:
            rank.heed()


class Sink:
    """In place of ``wire.link.Sink``."""

    hub: Hub

    def __init__(self) -> None:
        self._items: deque[Any] = deque()
        self._wanted = math.inf  # so many are waited for
        self._waits: Any = None  # by this actor

    def put(self, item: Any) -> str | None:
        self._items.append(item)
        if len(self._items) < self._wanted:
            return CALM
        self.hub.wake(self._waits)
        return None

    def empty(self) -> bool:
        return not self._items

    def get(self, timeout: float | None = None) -> Any:
        if not self._items:
            self._wait(1, timeout)
        if not self._items:
            raise queue.Empty
        return self._items.popleft()

    def gather(self, number: int, timeout: float) -> list[Any]:
        """As many items, or those that have come in this time."""
        if len(self._items) < number:
            self._wait(number, timeout)
        return list(self._items)

    def _wait(self, number: int, timeout: float | None) -> None:
        self._wanted, self._waits = number, self.hub.running
        self.hub.block(None, timeout)
        self._wanted = math.inf

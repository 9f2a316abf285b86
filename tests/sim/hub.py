"""A virtual clock and what runs by it, one after another: each schedule is the same every time.

Actors are greenlets. Whatever would wait on a real machine (a queue, a sleep, a lock) blocks its
actor here until a condition holds or a time has come; the clock moves on only when nobody can run.
"""

from __future__ import annotations

import bisect
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

    __slots__ = (
        "_back",
        "_greenlet",
        "_work",
        "deadline",
        "hub",
        "is_over",
        "name",
        "of",
        "rank",
        "ready",
    )

    def __init__(self, hub: Hub, name: str, work: Callable[[], object]) -> None:
        self.hub, self.name = hub, name
        self.rank: Any = None  # whose main thread it is
        self.of: int | None = None  # the rank whose thread it is
        self.ready: Callable[[], object] | None = None
        self.deadline = 0.0
        self.is_over = False
        self._work: Callable[[], object] | None = work
        self._greenlet: greenlet.greenlet | None = None  # once it runs, until it is over
        self._back = hub.greenlet  # who goes on when it is over

    def run(self) -> None:
        try:
            self._work()
        except greenlet.GreenletExit:
            pass
        finally:
            self.is_over, self._greenlet = True, None
            self._work = self.ready = None  # it may hold what holds this actor

    def resume(self) -> None:
        if self._greenlet is not None:
            self._greenlet.switch()
            return
        made = _RESTING.pop() if _RESTING else greenlet.greenlet(_serve, self.hub.greenlet)
        self._greenlet = made
        made.switch(self)

    def kill(self) -> None:
        """End it; its last will is heard before this returns, and waits for nothing."""
        self.is_over, self._work = True, None
        if self._greenlet is not None and self._greenlet is not greenlet.getcurrent():
            own, self.hub.running = self.hub.running, None
            self._back = greenlet.getcurrent()
            self._greenlet.throw(greenlet.GreenletExit)
            self.hub.running = own


# Greenlets that have nothing to do: to make one, with a stack of its own, takes longer than what
# most actors do.
_RESTING: list[greenlet.greenlet] = []


def _serve(actor: Actor) -> None:
    """Run one actor after the other."""
    own = greenlet.getcurrent()
    while True:
        actor.run()
        back = actor._back
        del actor
        _RESTING.append(own)
        actor = back.switch()


class Hub:
    """The clock, and all that runs by it."""

    def __init__(self, chance: random.Random) -> None:
        self.now = 0.0
        self.chance = chance
        self.greenlet = greenlet.getcurrent()
        self.actors: list[Actor] = []
        self._events: list[tuple[float, int, Callable[[], object]]] = []
        self.numbers = itertools.count()  # of events, in their order
        self.running: Actor | None = None
        self._soonest = math.inf  # the first actor's deadline
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
        heapq.heappush(self._events, (when, next(self.numbers), job))

    def wake(self, actor: Actor, when: float = 0.0) -> None:
        """Have it go on then at the latest, whatever it waits for."""
        if when < actor.deadline:
            actor.deadline = when
            self._soonest = min(self._soonest, when)

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

    def block_until(self, when: float) -> None:
        """Have the running actor wait until then, or until somebody hurries it."""
        actor = self.running
        if actor is None:
            raise greenlet.GreenletExit
        actor.ready, actor.deadline = None, when
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
            self._soonest = soonest
            self._let_time_pass(limit)

    def _let_time_pass(self, limit: float) -> None:
        """Until the first actor's deadline, or something happens that one may wait for."""
        events, is_calm, now = self._events, True, self.now
        while is_calm and now < self._soonest:
            when = self._soonest
            if events and events[0][0] < when:
                when = events[0][0]
            if when > limit:
                raise Stuck(f"at {now:.3f} s nobody can go on")
            if when > now:
                self.now = now = when
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
    """In place of ``wire.link.Sink``.

    What is on its way to it is here already, with its time: so that it comes is no event, and who
    waits for it sleeps until then.
    """

    hub: Hub
    _waits: Actor | None = None

    def __init__(self) -> None:
        self._items: deque[Any] = deque()
        self._coming: list[tuple[float, int, Any]] = []

    def put(self, item: Any) -> None:
        self._take()
        self._items.append(item)
        if self._waits is not None:
            self._hurry()

    def bring(self, when: float, item: Any) -> None:
        """Put it then."""
        bisect.insort(self._coming, (when, next(self.hub.numbers), item))
        if self._waits is not None:
            self._hurry()

    def drop(self, item: Any) -> None:
        """It is on its way, and nobody waits for it any more."""
        self._coming = [one for one in self._coming if one[2] is not item]

    def empty(self) -> bool:
        self._take()
        return not self._items

    def get(self, timeout: float | None = None) -> Any:
        self._wait(1, timeout)
        if not self._items:
            raise queue.Empty
        return self._items.popleft()

    def gather(self, number: int, timeout: float) -> list[Any]:
        """As many items, or those that have come in this time."""
        self._wait(number, timeout)
        return list(self._items)

    def _take(self) -> None:
        """What is here by now."""
        while self._coming and self._coming[0][0] <= self.hub.now:
            self._items.append(self._coming.pop(0)[2])

    def _wait(self, number: int, timeout: float | None) -> None:
        hub = self.hub
        until = math.inf if timeout is None else hub.now + timeout
        self._take()
        while len(self._items) < number:
            self._wanted, self._waits = number, hub.running
            hub.block_until(min(until, self._complete_at()))
            self._waits = None
            self._take()
            if hub.now >= until:
                return

    def _complete_at(self) -> float:
        """When as many are here as are waited for, as far as is known now."""
        missing = self._wanted - len(self._items)
        if missing <= 0:
            return 0.0
        return self._coming[missing - 1][0] if missing <= len(self._coming) else math.inf

    def _hurry(self) -> None:
        assert self._waits is not None
        self.hub.wake(self._waits, self._complete_at())

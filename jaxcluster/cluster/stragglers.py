"""Asks the ranks when they began their last launches: who keeps the others waiting, and where.

The journal has these times anyway. Clocks of other hosts are read a few times over the ranks' own
sockets: the offset is known to half of the shortest way there and back.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace

from jaxcluster import wire
from jaxcluster.cluster.world import World
from jaxcluster.model import stragglers
from jaxcluster.model.stragglers import Made, Straggler
from jaxcluster.wire.link import replies
from jaxcluster.wire.ops import lockstep as requests

ASK_S = 2.0
LEAST_LAUNCHES, MOST_LAUNCHES = 64, 512  # that each rank is asked for
ALL_LAUNCHES = 1 << 15  # of all ranks together, so that many ranks take no longer
CLOCK_READS = 5  # of each other host
LOOKS, LOOK_EVERY_S = 16, 0.012  # where the straggler is, while its cell runs
FEW_LOOKS = 4  # by those who ask again and again
EVERY_S = 10.0  # how often these ask
SHARE = 50  # of their time, at most


class Watch:
    """What ``find`` says now and then while a cell runs, for all who show it.

    Attributes:
      found: what it has said last.
    """

    def __init__(self, world: World) -> None:
        self.found: Straggler | None = None
        self._world = world
        self._due = 0.0
        self._lock = threading.Lock()

    def keep_up(self) -> None:
        """Ask if that is due: whoever shows it calls this while some rank runs a cell. Any thread.

        One that comes while another asks goes on with what was known.
        """
        if time.monotonic() < self._due or not self._lock.acquire(blocking=False):
            return
        try:
            began = time.monotonic()
            self.found = find(self._world, FEW_LOOKS)
            took = time.monotonic() - began
            self._due = began + max(EVERY_S, SHARE * took)
        finally:
            self._lock.release()


def find(world: World, looks: int = LOOKS) -> Straggler | None:
    """Who keeps the others waiting in the last cell; None if nobody does for certain.

    Args:
      looks: how often it is looked where that one is, while its cell runs.
    """
    if world.num_processes == 1:
        return None
    count = min(MOST_LAUNCHES, max(LEAST_LAUNCHES, ALL_LAUNCHES // world.num_processes))
    told = replies(world.link.gather(world.link.ranks, requests.Times(count), timeout_s=ASK_S))
    hosts = {rank: facts.host_key for rank, facts in enumerate(world.record.facts)}
    offsets = _offsets(world, {hosts[rank]: rank for rank in sorted(told, reverse=True)})
    kinds: dict[wire.Launch, wire.Launch] = {}  # equal ones of several ranks are one object
    made = {rank: _made(one, offsets[hosts[rank]][0], kinds) for rank, one in told.items()}
    error_s = max((error for _, error in offsets.values()), default=0.0)
    found = stragglers.find(made, hosts, error_s)
    return found and replace(found, spent=_spent(world, found, looks))


def _made(
    told: wire.LaunchTimes, offset_s: float, kinds: dict[wire.Launch, wire.Launch]
) -> list[Made]:
    own = [kinds.setdefault(kind, kind) for kind in told.kinds]
    return [
        Made(own[kind].processes, seq, at_us / 1e6 - offset_s, own[kind])
        for seq, kind, at_us in told.made
    ]


def _offsets(world: World, ranks: Mapping[str, int]) -> dict[str, tuple[float, float]]:
    """By host: how far its clock is ahead of this process's, and how well that is known.

    Of one host alone nothing has to be known: all its processes have one clock.

    Args:
      ranks: one of each host.
    """
    if len(ranks) < 2:
        return dict.fromkeys(ranks, (0.0, 0.0))
    found: dict[str, tuple[float, float]] = {}
    for host, rank in ranks.items():
        reads = [_clock(world, rank) for _ in range(CLOCK_READS)]
        known = min((one for one in reads if one is not None), key=lambda one: one[1], default=None)
        found[host] = known or (0.0, ASK_S)
    return found


def _clock(world: World, rank: int) -> tuple[float, float] | None:
    """(how far a rank's clock is ahead, how well that is known); None if it does not answer."""
    asked = time.monotonic()
    answers = world.link.gather([rank], requests.Times(0), timeout_s=ASK_S)
    heard = time.monotonic()
    if (told := replies(answers).get(rank)) is None:
        return None
    at = told.now_us / 1e6
    return at - (asked + heard) / 2, (heard - asked) / 2


def _spent(world: World, found: Straggler, looks: int) -> str:
    """On which line the straggler mostly is where it is not in JAX; "" if its cell has ended."""
    places: Counter[tuple[int | None, int, str]] = Counter()
    rank = found.ranks[0]
    for _ in range(looks):
        polled = replies(world.link.gather([rank], requests.Poll([], 0), timeout_s=ASK_S))
        if rank not in polled:
            break
        report = polled[rank].report
        if report.state.seq != found.launch.cell_seq:
            break
        inner = report.stack[-1] if report.stack else None
        if inner is not None and not inner[5]:  # not in JAX, nor in what is ours
            cells = [row for row in report.stack if row[4] is not None]
            places.update((row[4], row[1], row[2]) for row in cells[-1:])
        time.sleep(LOOK_EVERY_S)
    if not places:
        return ""
    ((cell, line, function), _), *_ = places.most_common(1)
    where = f"at line {line}" if cell == found.launch.cell else f"at cell [{cell}] line {line}"
    return f"{where} ({function})" if function.isidentifier() else where

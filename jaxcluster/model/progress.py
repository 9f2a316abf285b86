"""The one line that says what a cell waits for while it runs, and what remains of it. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from jaxcluster.ranks import begin_ranks, name_ranks
from jaxcluster.text import format_seconds

RARER = 3  # how much longer a cell has run when a log is told again
SHARE = 50  # of a cell's time, one part in so many passes between two lines that differ in it alone
LEAST_S = 1.0  # that ranks have waited, to be worth a line at the end
_TIME = re.compile(r"\b\d+ (s|min)\b")


@dataclass(frozen=True)
class Line:
    """What is to be shown in the place of the last one; "" takes it away.

    Attributes:
      for_logs: it is also told where nothing can be written over: now and then, and never "".
    """

    text: str
    for_logs: bool = False


class Progress:
    """Which lines of one cell are shown: at once what differs, and its time ever more rarely.

    Args:
      started: when the cell was sent, by the clock of all the lines.
    """

    def __init__(self, started: float) -> None:
        self._started = started
        self._bare = ""
        self._again_at = self._log_at = started

    def say(self, text: str, now: float, for_logs: bool = False) -> Line | None:
        """``text`` is true now; "" if nothing is to be said. None: what is shown is good enough."""
        bare, before = _TIME.sub("", text), self._bare
        ran = now - self._started
        if bare == before and (not bare or now < self._again_at):
            return None
        self._bare, self._again_at = bare, now + ran / SHARE
        for_logs = bool(text) and (for_logs or now >= self._log_at)
        if for_logs:
            self._log_at = self._started + RARER * ran
        return Line(text, for_logs)


@dataclass(frozen=True)
class Wait:
    """Ranks sit in a launch that others have not made, at one look.

    Attributes:
      launch: which launch of which set of processes.
      awaited: the ranks that have not made it, and where each is ("" if that is not known).
    """

    launch: object
    waiting: tuple[int, ...]
    awaited: Mapping[int, str]


@dataclass
class _Total:
    seconds: float = 0.0
    times: int = 0
    place: str = ""
    is_told: bool = False


@dataclass
class _Open:
    wait: Wait
    began: float
    awaited: Mapping[int, str] = field(default_factory=dict)
    is_told: bool = False


class Waits:
    """How long ranks of a cell have waited for others.

    The ranks are looked at once a second: what has changed between two looks is taken to have done
    so in the middle.
    """

    def __init__(self, started: float) -> None:
        self._looked_at = started
        self._open: _Open | None = None
        self._totals: dict[tuple[tuple[int, ...], tuple[int, ...]], _Total] = {}

    def look(self, wait: Wait | None, now: float) -> None:
        """What is to be seen now; None where nobody waits, or the cell has ended."""
        middle = (self._looked_at + now) / 2
        self._looked_at = now
        if self._open is not None and (wait is None or wait.launch != self._open.wait.launch):
            self._close(self._open, middle)
            self._open = None
        if wait is not None:
            self._open = self._open or _Open(wait, middle)
            self._open.awaited = wait.awaited

    def told(self) -> None:
        """A line has told of what is seen now."""
        if self._open is not None:
            self._open.is_told = True

    def remains(self) -> str:
        """What is told of it when all is over: who was waited for longest; "" for nothing."""
        told = {who: total for who, total in self._totals.items() if total.is_told}
        if not told:
            return ""
        (waiting, awaited), most = max(told.items(), key=lambda one: one[1].seconds)
        if most.seconds < LEAST_S:
            return ""
        times = f" ({most.times} times)" if most.times > 1 else ""
        return (
            f"{begin_ranks(waiting)} waited {format_seconds(most.seconds)} for "
            f"{name_ranks(awaited)}{most.place and ', ' + most.place}{times}.\n"
        )

    def _close(self, over: _Open, now: float) -> None:
        # Who has waited from its begin, and who came last.
        awaited = tuple(sorted(over.awaited))
        waiting = tuple(rank for rank in over.wait.waiting if rank not in over.awaited)
        total = self._totals.setdefault((waiting, awaited), _Total())
        total.seconds += now - over.began
        total.times += 1
        total.is_told |= over.is_told
        places = set(over.awaited.values())
        total.place = places.pop() if len(places) == 1 else ""

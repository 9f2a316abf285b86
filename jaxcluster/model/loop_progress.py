"""How far a cell's loops are, by what its ranks say: the line that stands under it. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from jaxcluster import wire
from jaxcluster.text import format_seconds

WIDTH = 20  # of the bar
# By how much a rank must be behind the first one, to be named: reports take their time.
BEHIND, BEHIND_S = 2, 0.5
RATE_S = 10.0  # over which it is measured


@dataclass
class _Pace:
    """Where a rank was, and when, at two reports."""

    at: float
    done: int
    since: float
    since_done: int
    places: list[list[int]]

    @property
    def rate(self) -> float:
        """Iterations of the innermost loop per second; 0: not known."""
        passed = self.at - self.since
        return (self.done - self.since_done) / passed if passed > 0 else 0.0

    def hear(self, places: list[list[int]], now: float) -> None:
        done = places[-1][0]
        if places[:-1] != self.places[:-1] or done < self.done:  # another loop
            self.since, self.since_done = now, done
        elif now - self.since > RATE_S:
            self.since, self.since_done = self.at, self.done
        self.at, self.done, self.places = now, done, places


class LoopProgress:
    """What is known of the loops of one cell.

    Args:
      first: the rank whose loop is shown.

    Attributes:
      kept: after how many iterations all ranks have kept it last; None: they have not.
    """

    def __init__(self, first: int) -> None:
        self.kept: int | None = None
        self._first = first
        self._paces: dict[int, _Pace] = {}

    def hear(self, report: wire.StepsReport, now: float) -> None:
        """A rank has told something."""
        if report.kept >= 0:
            self.kept = max(report.kept, self.kept or 0)
        elif not report.places:
            self._paces.pop(report.rank, None)
        elif (pace := self._paces.get(report.rank)) is not None:
            pace.hear(report.places, now)
        else:
            done = report.places[-1][0]
            self._paces[report.rank] = _Pace(now, done, now, done, report.places)

    def line(self) -> str:
        """What is shown; "" where there is no loop."""
        pace = self._paces.get(self._first)
        if pace is None:
            return ""
        *outer, (done, total) = pace.places
        parts = [f"{_of(at + 1, most)} · " for at, most in outer]
        if total > 0:
            full = round(WIDTH * min(1.0, done / total))
            parts.append("█" * full + "░" * (WIDTH - full) + " ")
        parts.append(f"step {_of(done, total)}")
        if (rate := pace.rate) > 0:
            per = f"{rate:,.1f}/s" if rate >= 1 else f"{1 / rate:.1f} s each"
            parts.append(f", {per}")
            if total > done:
                parts.append(f", {format_seconds((total - done) / rate)} left")
        if self.kept is not None:
            parts.append(f", kept at step {self.kept:,}")
        parts.append(self._slowest(pace))
        return "".join(parts)

    def _slowest(self, pace: _Pace) -> str:
        """Who is behind the rank that is shown, had all gone on at their pace since they told."""
        behind = {self._first: 0.0}
        for rank, other in self._paces.items():
            if other.places[:-1] == pace.places[:-1] and other.rate > 0:
                behind[rank] = pace.done - other.done - other.rate * (pace.at - other.at)
        rank, most = max(behind.items(), key=lambda one: one[1])
        is_notable = most >= max(BEHIND, pace.rate * BEHIND_S)
        return f", rank {rank} is {most:.0f} behind" if is_notable else ""

    def told(self) -> str:
        """What is said of it where the cell has not come to its end; "" for nothing."""
        if self.kept is None:
            return ""
        return f"Kept at step {self.kept:,}: run the cell again to go on there."


def _of(done: int, total: int) -> str:
    return f"{done:,} of {total:,}" if total > 0 else f"{done:,}"

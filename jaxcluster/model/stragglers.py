"""Who keeps the others waiting: the rank that comes last into launches, again and again. Pure.

All ranks of a set launch the same programs in the same order, so the times of one launch on all of
them say who came last, and by how much. Most of that is chance: a busy machine, a page fault. So
somebody is named only where chance can't explain it, all through a cell.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from jaxcluster import wire
from jaxcluster.ranks import begin_ranks, by_value

LEAST_S = 0.005  # what is less is not worth a word
OF_STEP = 0.05  # nor what is less than this part of the time between two launches
OF_TIME = 0.03  # nor what all of it together is less of the time than
SURE = math.log(1e6)  # that chance alone makes one come last so often: once in a million
PARTS = 4  # of a cell's launches, in each of which it must be so
PART_SHARE = 0.6  # of the delays in each part
PART_EVENTS = 3


@dataclass(frozen=True)
class Made:
    """A launch of one rank: which one of which set, when by a clock of all ranks, from where."""

    processes: str
    seq: int
    at_s: float
    launch: wire.Launch


@dataclass(frozen=True)
class Straggler:
    """Ranks that come last, and the others wait for them.

    Attributes:
      share: of the launches into which they come last.
      behind_s: the median of how much later than the others, where they do.
      count: how many launches were looked at.
      lost_s: all that the others have waited for them, of ``span_s``.
      launch: where most of that was.
      spent: where they were meanwhile, in words; "" if that is not known.
    """

    ranks: tuple[int, ...]
    share: float
    behind_s: float
    count: int
    lost_s: float
    span_s: float
    launch: wire.Launch
    spent: str = ""


@dataclass(frozen=True)
class _Delay:
    """Somebody came last into a launch, and this much of that was not so before."""

    who: Hashable
    row: int
    seconds: float


_Row = Mapping[Hashable, float]  # who came into one launch when


def find(
    made: Mapping[int, Sequence[Made]],
    hosts: Mapping[int, str] | None = None,
    error_s: float = 0.0,
) -> Straggler | None:
    """Who keeps the others waiting in the last cell; None if nobody does for certain.

    Args:
      made: the last launches of each rank, oldest first.
      hosts: of each rank: where no rank is slow by itself, a host may be, with all its ranks.
      error_s: how far the ranks' clocks may be apart.
    """
    cell = max((one.launch.cell_seq for own in made.values() for one in own), default=0)
    if cell <= 0:
        return None
    found = []
    for processes in {one.processes for own in made.values() for one in own}:
        members = [int(rank) for rank in processes.split(",")]
        if len(members) > 1 and all(rank in made for rank in members):
            found.append(_in_set(processes, members, made, cell, hosts or {}, error_s))
    return max((one for one in found if one), key=lambda one: one.lost_s, default=None)


def _in_set(
    processes: str,
    members: Sequence[int],
    made: Mapping[int, Sequence[Made]],
    cell: int,
    hosts: Mapping[int, str],
    error_s: float,
) -> Straggler | None:
    own = {
        rank: {
            one.seq: one
            for one in made[rank]
            if one.processes == processes and one.launch.cell_seq == cell
        }
        for rank in members
    }
    seqs = sorted(set.intersection(*(set(known) for known in own.values())))
    groups: list[dict[Hashable, list[int]]] = [{rank: [rank] for rank in members}]
    by_host: dict[Hashable, list[int]] = by_value({r: hosts.get(r, "") for r in members})
    groups += [by_host] if 1 < len(by_host) < len(members) else []
    for units in groups:
        rows = [
            {who: max(own[rank][seq].at_s for rank in ranks) for who, ranks in units.items()}
            for seq in seqs
        ]
        if (named := _named(rows, error_s)) is not None:
            who, delays = named
            return _straggler(units[who], who, rows, delays, [own[units[who][0]][s] for s in seqs])
    return None


def _named(rows: Sequence[_Row], error_s: float) -> tuple[Hashable, list[_Delay]] | None:
    """Who delays the others by more than chance would, and where."""
    delays = list(_delays(rows, error_s))
    if not delays:
        return None
    ((who, count),) = Counter(one.who for one in delays).most_common(1)
    own = [one for one in delays if one.who == who]
    if not _is_beyond_chance(count, len(delays), len(rows[0])):
        return None
    for part in range(PARTS):
        low, high = (at * len(rows) // PARTS for at in (part, part + 1))
        here = [one.who == who for one in delays if low <= one.row < high]
        if sum(here) < max(PART_EVENTS, PART_SHARE * len(here)):
            return None
    if sum(one.seconds for one in own) < OF_TIME * _span(rows):
        return None
    return who, own


def _delays(rows: Sequence[_Row], error_s: float) -> Iterator[_Delay]:
    """For each launch the delay by whoever came last, where it is worth a word.

    Ranks that run ahead stay ahead: what somebody was behind already in an earlier launch is not
    counted again, unless the others have waited for it since.
    """
    typical = [_others(row, None) for row in rows]
    steps = [new - old for old, new in itertools.pairwise(typical)]
    least = max(LEAST_S, 2 * error_s, OF_STEP * statistics.median(steps or [0.0]))
    known: dict[Hashable, float] = {}  # how far behind, since the others have waited last
    for at, (before, row) in enumerate(itertools.pairwise(rows), 1):
        last = max(row, key=row.__getitem__)
        others = _others(row, last)
        late = row[last] - others
        has_waited = others >= before[last]
        behind = 0.0 if has_waited else known.get(last, before[last] - _others(before, last))
        known[last] = max(late, behind)
        delay = min(late - behind, row[last] - before[last])
        if delay >= least:
            yield _Delay(last, at, delay)


def _others(row: _Row, but: Hashable) -> float:
    """When the others came, by their median."""
    if len(row) == 2 and but in row:
        return next(at for who, at in row.items() if who != but)
    times = sorted(row.values())
    if but in row:
        times.remove(row[but])
    return times[len(times) // 2]


def _span(rows: Sequence[_Row]) -> float:
    return max(rows[-1].values()) - min(rows[0].values())


def _is_beyond_chance(count: int, of: int, among: int) -> bool:
    """Whether one of so many has so many of all delays otherwise than by chance (Chernoff)."""
    share, even = count / of, 1 / among
    if share <= even:
        return False
    distance = share * math.log(share / even)
    if share < 1:
        distance += (1 - share) * math.log((1 - share) / (1 - even))
    return of * distance >= SURE


def _straggler(
    ranks: Sequence[int],
    who: Hashable,
    rows: Sequence[_Row],
    delays: Sequence[_Delay],
    made: Sequence[Made],
) -> Straggler:
    lost: dict[wire.Launch, float] = {}
    for one in delays:
        key = replace(made[one.row].launch, seq=0)
        lost[key] = lost.get(key, 0.0) + one.seconds
    last = sum(max(row, key=row.__getitem__) == who for row in rows)
    return Straggler(
        ranks=tuple(ranks),
        share=last / len(rows),
        behind_s=statistics.median(one.seconds for one in delays),
        count=len(rows),
        lost_s=sum(lost.values()),
        span_s=_span(rows),
        launch=max(lost, key=lambda key: lost[key]),
    )


def of_running(found: Straggler | None, states: Iterable[wire.RankState]) -> Straggler | None:
    """It, if its cell runs."""
    runs = {state.seq for state in states if state.state == "running"}
    return found if found is not None and found.launch.cell_seq in runs else None


def told(found: Straggler | None, states: Iterable[wire.RankState]) -> str:
    """It in a sentence, as of a cell that runs or has ended; "" for nobody."""
    return "" if found is None else tell(found, is_over=of_running(found, states) is None)


def note(found: Straggler) -> str:
    """It beside the rank's own row."""
    share, place = f"{100 * found.share:.0f} %", f", {found.spent}" if found.spent else ""
    return f"Comes last into {share} of the launches, {_late(found)} behind{place}."


def _late(found: Straggler) -> str:
    behind = found.behind_s
    return f"{1000 * behind:.0f} ms" if behind < 1 else f"{behind:.1f} s"


def tell(found: Straggler, *, is_over: bool = False) -> str:
    """It in a sentence."""
    verb = "came" if is_over else "comes" if len(found.ranks) == 1 else "come"
    launch = found.launch
    where = f" of cell [{launch.cell}]" if launch.cell is not None else ""
    if found.spent:
        place = f", {found.spent}"
    elif launch.line is not None:
        place = f", before the launch at line {launch.line}"
    else:
        place = f", before the launch in {launch.within}" if launch.within else ""
    return (
        f"{begin_ranks(found.ranks)} {verb} last into {100 * found.share:.0f} % of the launches"
        f"{where}, {_late(found)} behind{place}."
    )

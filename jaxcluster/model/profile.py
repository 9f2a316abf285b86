"""The profiles of all ranks put together: one clock, one trace, who keeps whom waiting. Pure."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from jaxcluster import wire
from jaxcluster.model import perfetto, stragglers
from jaxcluster.model.arrivals import (
    Arrivals,
    Clocks,
    Key,
    Known,
    RankProfile,
    align,
    arrivals,
    known_of,
)
from jaxcluster.model.perfetto import Array
from jaxcluster.model.stragglers import Made, Straggler
from jaxcluster.text import plural

ALL_SLICES = 2_000_000  # of all ranks together
MOST_SLICES = 200_000  # of one rank
ALL_ROWS = 1 << 15  # arrivals that are looked at, of all ranks together
LAUNCHES = "launches"  # the track of the journal's own times


@dataclass(frozen=True)
class Collective:
    """An operation in which ranks wait for each other.

    Attributes:
      operation: as the compiled program names it.
      place: the line of the user's that it comes from, or of the launch.
      times: how often the ranks were in it.
      seconds: how long each rank was in it, in all.
      last: who comes last beyond chance, by rank; None for nobody.
      share: of the times, in which that is so.
      behind_s: the median of how much later than the others.
    """

    operation: str
    program: str
    place: str
    times: int
    seconds: dict[int, float]
    last: int | None = None
    share: float = 0.0
    behind_s: float = 0.0

    @property
    def typical_s(self) -> float:
        """How long the middle rank was in it."""
        return statistics.median(self.seconds.values())


@dataclass(frozen=True)
class Steps:
    """What was done again and again: ``name`` is the user's annotation, or a program."""

    name: str
    count: int
    median_s: float


@dataclass(frozen=True)
class Profile:
    """What the profiles of all ranks say.

    Attributes:
      span_s: from the first slice to the last.
      steps: None where nothing was repeated.
      collectives: the longest first.
      in_collectives_s: how long each rank was in any.
      straggler: who keeps the others waiting, beyond chance.
      into: into what it comes last: ``launches`` or ``collectives``.
      error_s: how far the ranks' clocks may be apart.
      folder, files, trace: where it all is: a file for each rank, one for Perfetto.
      missing: why ranks have none.
      notes: what else is to be known of it.
    """

    span_s: float
    steps: Steps | None
    collectives: tuple[Collective, ...]
    in_collectives_s: dict[int, float]
    straggler: Straggler | None
    into: str
    error_s: float
    folder: str = ""
    files: dict[int, str] = field(default_factory=dict)
    trace: str = ""
    missing: dict[int, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


def most_slices(num_ranks: int) -> int:
    """How many a rank is asked for."""
    return min(MOST_SLICES, ALL_SLICES // num_ranks)


def put_together(
    found: Mapping[int, RankProfile],
    clocks: Clocks,
    made: Mapping[int, Sequence[Made]],
    names: Mapping[int, str],
    cell_seq: int | None,
) -> tuple[Profile, list[perfetto.Process]]:
    """What all ranks' profiles say, and what Perfetto is to show of them.

    Args:
      made: the last launches of each rank, by one clock.
      names: of the ranks, with their hosts where that matters.
      cell_seq: of the cell that was profiled; None for what ran meanwhile.
    """
    known = known_of(found)
    together = arrivals(found, known)
    shifts, error_s = align(together, clocks)
    together = [one.shifted(shifts) for one in together]
    found = {rank: one.shifted(shifts[rank]) for rank, one in found.items()}
    made = {rank: _meanwhile(made.get(rank, ()), one, cell_seq) for rank, one in found.items()}
    told = table(found, together, known, made, clocks.hosts, error_s)
    return told, processes(found, made, names)


def _meanwhile(made: Sequence[Made], one: RankProfile, cell_seq: int | None) -> list[Made]:
    """The launches of the cell, or of the time, that was profiled."""
    if cell_seq is not None:
        return [each for each in made if each.launch.cell_seq == cell_seq]
    _, _, starts, nanos = one.slices
    if not len(starts):
        return []
    low, high = int(starts.min()), int((starts + nanos).max())
    return [each for each in made if low <= 1e9 * each.at_s <= high]


# --------------------------------------------------------------------------- what it says


def table(
    found: Mapping[int, RankProfile],
    together: Sequence[Arrivals],
    known: Mapping[Key, Known],
    made: Mapping[int, Sequence[Made]],
    hosts: Mapping[int, str],
    error_s: float,
) -> Profile:
    """Steps, time in collectives, and who comes last.

    Args:
      together: by one clock.
      made: the launches of each rank while it was profiled, by the same one.
    """
    launches = _launches(made)
    keys = {(m, op): None for one in found.values() for m, op in one.told.operations}
    rows = [
        _row(key, found, [one for one in together if one.key == key], launches, known.get(key))
        for key in keys
    ]
    straggler, into = _straggler(together, made, launches, hosts, error_s)
    slices = [one.slices for one in found.values() if len(one.slices[2])]
    starts = [int(start.min()) for _, _, start, _ in slices]
    ends = [int((start + nanos).max()) for _, _, start, nanos in slices]
    return Profile(
        span_s=(max(ends) - min(starts)) / 1e9 if starts else 0.0,
        steps=_steps(found, made),
        collectives=tuple(sorted(rows, key=lambda row: -row.typical_s)),
        in_collectives_s={rank: _in_any(one) for rank, one in sorted(found.items())},
        straggler=straggler,
        into=into,
        error_s=error_s,
        notes=_notes(found),
    )


def _notes(found: Mapping[int, RankProfile]) -> tuple[str, ...]:
    notes = []
    if left := sum(one.told.left_out for one in found.values()):
        longest = max(one.told.shortest_ns for one in found.values()) / 1000
        notes.append(
            f"{plural(left, 'short slice')} (up to {longest:.0f} µs) are left out of Perfetto's "
            "file; each rank's own file has all."
        )
    if left := max(one.told.uncounted for one in found.values()):
        collectives = plural(left, "collective")
        notes.append(f"The table ends before the profile does: {collectives} of a rank came later.")
    return tuple(notes)


def _launches(made: Mapping[int, Sequence[Made]]) -> dict[str, wire.Launch]:
    """Of each program the launch that was made most often, by XLA's name of it."""
    counted: dict[str, Counter[wire.Launch]] = {}
    for own in made.values():
        for one in own:
            module = wire.module_name(one.launch.name)
            counted.setdefault(module, Counter())[replace(one.launch, seq=0)] += 1
    return {module: counts.most_common(1)[0][0] for module, counts in counted.items()}


def _row(
    key: Key,
    found: Mapping[int, RankProfile],
    groups: Sequence[Arrivals],
    launches: Mapping[str, wire.Launch],
    known: Known | None,
) -> Collective:
    module, operation = key
    launch = launches.get(wire.module_name(module))
    chosen = {
        rank: one.runs[0] == one.told.operations.index([*key])
        for rank, one in found.items()
        if [*key] in one.told.operations
    }
    own = {rank: found[rank].runs for rank in chosen}
    times = [
        np.unique(np.stack([own[rank][1][which], own[rank][3][which]]), axis=1).shape[1]
        for rank, which in chosen.items()
    ]
    row = Collective(
        operation=operation,
        program=launch.name if launch is not None else module,
        place=(known.place if known is not None else "") or _line(launch),
        times=max(times),
        seconds={rank: _of(found[rank], which) for rank, which in chosen.items()},
    )
    late = [each for each in map(_last, groups) if each is not None]
    if not late:
        return row
    behind_s, rank, share = max(late)
    return replace(row, last=rank, share=share, behind_s=behind_s)


def _last(one: Arrivals) -> tuple[float, int, float] | None:
    """(how late, who, how often) of the rank that comes last beyond chance."""
    late, last = _late(one)
    (who, count), *_ = Counter(last.tolist()).most_common(1)
    behind_s = float(np.median(late[last == who])) / 1e9
    every_s = float(np.median(np.diff(one.ends.max(1)))) / 1e9 if len(one.runs) > 1 else 0.0
    least = max(stragglers.LEAST_S, stragglers.OF_STEP * every_s)
    if behind_s < least or not stragglers.is_beyond_chance(count, len(last), len(one.ranks)):
        return None
    return behind_s, one.ranks[who], count / len(last)


def _late(one: Arrivals) -> tuple[Array, Array]:
    """(how much later the last rank comes than the others, by their median; which column it is)."""
    ordered = np.sort(one.starts, 1)
    return ordered[:, -1] - ordered[:, (ordered.shape[1] - 1) // 2], one.starts.argmax(1)


def _line(launch: wire.Launch | None) -> str:
    if launch is None:
        return ""
    own = f"cell [{launch.cell}] line {launch.line}" if launch.cell is not None else ""
    inner = launch.within.partition(":")[0]
    return f"{own} ({inner})" if own and inner else own or inner


def _of(one: RankProfile, chosen: Array) -> float:
    """Seconds that its devices were in these, on average."""
    devices, starts, ends = (one.runs[at][chosen] for at in (2, 4, 5))
    total = 0
    known = np.unique(one.runs[2])
    for device in known:
        own = devices == device
        order = np.argsort(starts[own], kind="stable")
        start, end = starts[own][order], ends[own][order]
        if len(start):
            before = np.concatenate([start[:1], np.maximum.accumulate(end)[:-1]])
            total += int(np.maximum(0, end - np.maximum(start, before)).sum())
    return total / 1e9 / max(1, len(known))


def _in_any(one: RankProfile) -> float:
    return _of(one, np.ones(len(one.runs[0]), bool))


def _steps(found: Mapping[int, RankProfile], made: Mapping[int, Sequence[Made]]) -> Steps | None:
    """As the user has annotated them; else the launches of the program that is launched most."""
    first = found[min(found)].told.steps
    if len(first) > 1:
        return Steps(
            "", len(first), statistics.median(end - start for _, start, end in first) / 1e9
        )
    own = made.get(min(made), ()) if made else ()
    counted = Counter(one.launch.name for one in own)
    if not counted or counted.most_common(1)[0][1] < 2:
        return None
    ((name, count),) = counted.most_common(1)
    times = [one.at_s for one in own if one.launch.name == name]
    # The journal has the last ones alone.
    count = max(count, _runs(found[min(found)], wire.module_name(name)))
    return Steps(name, count, statistics.median(np.diff(times).tolist()))


def _runs(one: RankProfile, module: str) -> int:
    """How often a program with collectives has run."""
    own = [
        at for at, (name, _) in enumerate(one.told.operations) if wire.module_name(name) == module
    ]
    return len(np.unique(one.runs[1][np.isin(one.runs[0], own) & (one.runs[1] >= 0)]))


def _straggler(
    together: Sequence[Arrivals],
    made: Mapping[int, Sequence[Made]],
    launches: Mapping[str, wire.Launch],
    hosts: Mapping[int, str],
    error_s: float,
) -> tuple[Straggler | None, str]:
    """Who keeps the others waiting: by launches, which know the line, else by collectives."""
    if (named := stragglers.find(made, hosts, error_s)) is not None:
        return named, "launches"
    for only_first in (True, False):
        rows = _made(together, launches, only_first)
        if (named := stragglers.find(rows, hosts, error_s)) is not None:
            return named, "collectives"
    return None, ""


def _made(
    together: Sequence[Arrivals], launches: Mapping[str, wire.Launch], only_first: bool
) -> dict[int, list[Made]]:
    """Arrivals as if they were launches. ``only_first``: of each run only the first collective."""
    found: dict[int, list[Made]] = {}
    for ranks in sorted({one.ranks for one in together}):
        processes = ",".join(map(str, sorted(ranks)))
        rows: list[tuple[int, int, str, list[int], wire.Launch]] = []
        for one in together:
            known = launches.get(wire.module_name(one.module))
            if one.ranks != ranks or known is None:
                continue
            launch = replace(known, processes=processes)
            for run, starts in zip(one.runs.tolist(), one.starts.tolist(), strict=True):
                rows.append((min(starts), run, one.module, starts, launch))
        rows.sort(key=lambda row: row[0])
        if only_first:
            firsts: dict[tuple[str, int], Any] = {}
            for at, row in enumerate(rows):
                firsts.setdefault((row[2], row[1] if row[1] >= 0 else -at - 1), row)
            rows = list(firsts.values())
        for seq, (_, _, _, starts, launch) in enumerate(rows[-ALL_ROWS // len(ranks) :]):
            for rank, start in zip(ranks, starts, strict=True):
                found.setdefault(rank, []).append(Made(processes, seq, start / 1e9, launch))
    return found


# --------------------------------------------------------------------------- one trace


def processes(
    found: Mapping[int, RankProfile],
    made: Mapping[int, Sequence[Made]],
    names: Mapping[int, str],
) -> list[perfetto.Process]:
    """A process for each rank, as Perfetto shows it; times begin at the first of all.

    Args:
      names: of the ranks, with their hosts where that matters.
    """
    times = [int(one.slices[2].min()) for one in found.values() if len(one.slices[2])]
    times += [round(1e9 * own[0].at_s) for own in made.values() if own]
    zero = min(times, default=0)
    return [
        _process(rank, one, made.get(rank, ()), zero, names[rank])
        for rank, one in sorted(found.items())
    ]


def _process(
    rank: int, one: RankProfile, made: Sequence[Made], zero: int, name: str
) -> perfetto.Process:
    labels = [*one.told.names]
    known: dict[str, int] = {}
    marks = []
    for each in made:
        line = _line(each.launch)
        label = f"{each.launch.name}, {line}" if line else each.launch.name
        marks.append(known.setdefault(label, len(labels) + len(known)))
    track, label_of, starts, nanos = one.slices
    at = np.array([round(1e9 * each.at_s) - zero for each in made], np.int64)
    return perfetto.Process(
        pid=rank + 1,
        name=name,
        tracks=[*one.told.tracks, LAUNCHES],
        names=[*labels, *known],
        track=np.concatenate([track, np.full(len(made), len(one.told.tracks), np.int64)]),
        label=np.concatenate([label_of, np.array(marks, np.int64)]),
        start=np.concatenate([starts - zero, at]),
        nanos=np.concatenate([nanos, np.zeros(len(made), np.int64)]),
    )

"""Ranks that wait for each other in a circle, over all sets of processes. Pure.

Each device makes its collectives in the order in which its process launched them, and a program is
done when all its processes have come to it. So a rank's launches, over all the sets that it belongs
to, are a queue: what it launches later comes later. A program at the head of one rank's queue waits
for each other rank that has something else at its head, whether that rank has launched it already
or not. Where this goes round in a circle, nothing ever completes: rank 0 launched a program
of all ranks and then one of ranks 0 and 1, rank 1 the other way round. No count need be uneven.

Two looks are not needed: a queue only gets longer, so a circle of heads is one for ever. Ranks that
merely come late have made what is at their head with the others, and are in no circle.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence

from jaxcluster import wire
from jaxcluster.model import lockstep
from jaxcluster.model.findings import Report
from jaxcluster.ranks import MOST_GROUPS, begin_ranks, name_ranks

Counts = Mapping[str, Sequence[int]]
_Key = tuple[str, int]


def circle(
    counts: Mapping[int, Counts], launches: Mapping[int, Sequence[wire.Launch]]
) -> dict[int, wire.Launch]:
    """The ranks that wait for each other, in the order of the circle, with what each waits in.

    Args:
      counts: how many launches each rank has made, for each set of processes.
      launches: each rank's last launches, oldest first. What is older is done, or this looks for
        nothing: a rank whose own part does not reach back as far as others' is taken at its word.

    Returns:
      Empty where there is no circle. Each rank waits for the next one, the last for the first.
    """
    # A rank also calls what others' devices compute alone: none of it runs there, or waits.
    kinds = {(e.processes, e.collective) for made in launches.values() for e in made}
    if len(kinds) < 2:  # of one set in one order, as it mostly is
        return {}
    members = {processes: frozenset(lockstep.members(processes)) for processes, _ in kinds}
    known = {
        r: {_key(e): e for e in made if r in members[e.processes]} for r, made in launches.items()
    }
    queues = {r: deque(e for e in own.values() if e.collective) for r, own in known.items()}

    def is_past(rank: int, entry: wire.Launch) -> bool:
        """Whether a rank has made it before the part of its journal that is known."""
        made = counts.get(rank, {}).get(entry.processes, (0, 0))[0]
        return rank in queues and entry.seq < made and _key(entry) not in known[rank]

    _complete(queues, is_past)
    heads = {rank: queue[0] for rank, queue in queues.items() if queue}
    waits_for = {
        rank: [
            m
            for m in _members(head)
            if m in heads and _key(heads[m]) != _key(head) and not is_past(m, head)
        ]
        for rank, head in heads.items()
    }
    return {rank: heads[rank] for rank in _cycle(waits_for)}


def _complete(
    queues: dict[int, deque[wire.Launch]], is_past: Callable[[int, wire.Launch], bool]
) -> None:
    """Take from the queues all that can complete: each launch is looked at once on each rank."""
    wanted: dict[_Key, int] = {}  # of how many ranks it is to be the first, to complete
    come: dict[_Key, list[int]] = {}
    arrived = deque(rank for rank, queue in queues.items() if queue)
    while arrived:
        rank = arrived.popleft()
        head = queues[rank][0]
        key = _key(head)
        if key not in wanted:
            wanted[key] = sum(not is_past(m, head) for m in _members(head))
            come[key] = []
        come[key].append(rank)
        if len(come[key]) == wanted[key]:
            del wanted[key]
            for m in come.pop(key):
                queues[m].popleft()
                if queues[m]:
                    arrived.append(m)


def _cycle(edges: Mapping[int, Sequence[int]]) -> list[int]:
    """A circle in a graph, its smallest rank first; empty where there is none."""
    for start in sorted(edges):
        before: dict[int, int] = {}
        todo = deque([start])
        while todo:
            rank = todo.popleft()
            for other in edges[rank]:
                if other == start:
                    path = [rank]
                    while path[-1] != start:
                        path.append(before[path[-1]])
                    return path[::-1]
                if other not in before and other in edges:
                    before[other] = rank
                    todo.append(other)
    return []


def _key(entry: wire.Launch) -> _Key:
    return entry.processes, entry.seq


def _members(entry: wire.Launch) -> tuple[int, ...]:
    return lockstep.members(entry.processes)


def tell(found: Mapping[int, wire.Launch], is_over: bool = False) -> list[str]:
    """Who waits, or waited, for whom in which program, a line for each rank, and what to do."""
    ranks = list(found)
    wait, waits = ("waited", "waited") if is_over else ("wait", "waits")
    lines = [
        f"Deadlock: the ranks {wait} for each other, since they launched programs in different "
        "orders:"
    ]
    for rank, other in zip(ranks, [*ranks[1:], ranks[0]], strict=True):
        entry = found[rank]
        place = f" at cell [{entry.cell}] line {entry.line}" if entry.cell is not None else ""
        whole = f"a program of {name_ranks(_members(entry))}"
        lines.append(f"  Rank {rank} {waits} in {entry.name}{place}, {whole}, for rank {other}.")
    lines.append("Hint: ranks that share programs must launch them in the same order.")
    return lines


def find(reports: Mapping[int, wire.RankReport]) -> tuple[Report | None, list[str]]:
    """(ranks that wait for each other for certain, what to say where that is not certain)."""
    # What others have compiled, too, waits for nobody.
    reports = lockstep.with_announced(reports, compiled=False)
    counts = {rank: report.state.launches for rank, report in reports.items()}
    found = circle(counts, {r: report.launches for r, report in reports.items()})
    if not found:
        return None, []
    states = [reports[rank].state for rank in found]
    # Another thread may launch what is missing, and other devices than CPUs may run programs side
    # by side that are on different devices of a process.
    if any(s.background or _may_run_side_by_side(s.devices) for s in states):
        first, *waits, hint = tell(found)
        more = [f"... and {len(waits) - MOST_GROUPS} more."] if len(waits) > MOST_GROUPS else []
        return None, [first, *waits[:MOST_GROUPS], *more, hint]
    # In strict mode nothing was launched. But who compiles hears no interrupt.
    can_leave = may_hear_more(reports, found) and not any(map(wire.is_compiling, found.values()))
    hopeless = "" if can_leave else "they wait for each other"
    processes = next(iter(found.values())).processes
    others = tuple(sorted(set(reports) - set(found)))
    lines = tuple(tell(found, is_over=True))
    cells = frozenset(entry.cell_seq for entry in found.values())
    return Report(
        "circle", processes, None, tuple(found), others, lines, max(cells), cells,
        hopeless=hopeless, title=f"{begin_ranks(found)} wait for each other",
    ), []  # fmt: skip


def may_hear_more(reports: Mapping[int, wire.RankReport], ranks: Iterable[int]) -> bool:
    """Whether some of these ranks have announced a launch, and wait for what others announce."""
    told = (reports[rank].announced for rank in ranks)
    return any(one is not None and not wire.is_compiling(one) for one in told)


def _may_run_side_by_side(devices: Sequence[str]) -> bool:
    return len(devices) > 1 and any(not device.startswith("cpu") for device in devices)

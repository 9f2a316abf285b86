"""What each rank has skipped, and in which order it must be replayed. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from jaxcluster import wire
from jaxcluster.model.lockstep import Counts, crossed, members, sets_of, uneven
from jaxcluster.ranks import by_value, name_ranks

_Key = tuple[str, int]  # a launch: the processes that share it, and its place among theirs


def to_replay(
    counts: Mapping[int, Counts], launches: Mapping[int, Sequence[wire.Launch]]
) -> dict[int, list[wire.Launch]] | None:
    """What each rank must still launch to be in lockstep, in order; None where that can't be known.

    It can't where ranks launched different programs, where the journals no longer reach back, and
    where programs that several ranks share came in another order on them.
    """
    todo: dict[int, dict[_Key, wire.Launch]] = {}
    for processes in sets_of(counts):
        if crossed(counts, processes):
            return None
        if wire.CROSSING in processes or not uneven(counts, processes):
            continue
        group = [r for r in members(processes) if r in counts]
        held = {r: tuple(counts[r].get(processes, (0, 0))) for r in group}
        leader = max(group, key=lambda r: held[r][0])
        lead = {e.seq: e for e in launches[leader] if e.processes == processes}
        for rank in group:
            own = {e.seq: e for e in launches[rank] if e.processes == processes}
            if any(seq in lead and lead[seq].fingerprint != e.fingerprint
                   for seq, e in own.items()):  # fmt: skip
                return None
            count = held[rank][0]
            if count == held[leader][0] and held[rank][1] != held[leader][1]:
                return None
            needed = range(count, held[leader][0])
            if any(seq not in lead for seq in needed):
                return None
            todo.setdefault(rank, {}).update({(processes, seq): lead[seq] for seq in needed})
    ordered = {}
    for rank, entries in todo.items():
        if entries and len(sets_of(counts)) == 1:  # as most clusters have it
            ordered[rank] = list(entries.values())
        elif entries:
            others = [[_key(e) for e in launches[r]] for r in launches if r != rank]
            # A rank that launches meanwhile may tell of more than it has counted.
            done = [_key(e) for e in launches[rank] if _key(e) not in entries]
            # Of those that nothing orders, what an earlier cell lacks comes first.
            missing = sorted(entries, key=lambda key: entries[key].cell_seq)
            order = _order(missing, done, others)
            if order is None:
                return None
            ordered[rank] = [entries[key] for key in order]
    return ordered


def _key(entry: wire.Launch) -> _Key:
    return entry.processes, entry.seq


def _order(
    missing: Iterable[_Key], own: Iterable[_Key], others: Sequence[Sequence[_Key]]
) -> list[_Key] | None:
    """``missing`` in the order of all that have launched some of it; None if they contradict.

    What the rank has launched itself is done: on no other may it come after what is missing.
    """
    left, done = dict.fromkeys(missing), set(own)
    queues = []
    for sequence in others:
        queue = [key for key in sequence if key in left or key in done]
        began = next((i for i, key in enumerate(queue) if key in left), len(queue))
        if any(key in done for key in queue[began:]):
            return None
        queues.append(queue[began:])
    order = []
    while left:
        # One that is first wherever it is: what waits behind another is not.
        behind = {key for queue in queues for key in queue[1:]}
        ready = next((key for key in left if key not in behind), None)
        if ready is None:
            return None
        order.append(ready)
        del left[ready]
        queues = [[key for key in queue if key != ready] for queue in queues]
    return order


def differing(reports: Mapping[int, wire.RankReport]) -> list[dict[int, int]]:
    """The launches in which ranks with equally many differ: fingerprint by rank, for each of them.

    Empty where they are in lockstep, have not launched equally many, or differ in what the journals
    no longer reach back to.
    """
    counts = {rank: report.state.launches for rank, report in reports.items()}
    found = []
    for processes in sets_of(counts):
        if crossed(counts, processes):
            return []
        if wire.CROSSING in processes or not uneven(counts, processes):
            continue
        group = [r for r in members(processes) if r in counts]
        if len({held[0] for r in group for held in [counts[r].get(processes, (0, 0))]}) > 1:
            return []
        prints: dict[int, dict[int, int]] = {}
        for rank in group:
            for entry in reports[rank].launches:
                if entry.processes == processes:
                    prints.setdefault(entry.seq, {})[rank] = entry.fingerprint
        here = [entry for _, entry in sorted(prints.items()) if len(set(entry.values())) > 1]
        if not here or any(len(entry) < len(group) for entry in here):
            return []
        found += here
    return found


def tell(ran: Mapping[int, int], seconds: float, kept: str) -> str:
    """One line: what was done, and what of the variables is ``kept``.

    Args:
      ran: how many programs ranks have run in place of real ones.
    """
    done = ", ".join(
        f"{name_ranks(ranks)} ran {n} skipped program{'s' if n != 1 else ''} with zeros"
        for n, ranks in by_value(ran).items()
    )
    return f"Back in lockstep after {seconds:.1f} s ({done or 'nothing was missing'}). {kept}"

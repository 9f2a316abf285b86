"""What ranks have launched alike, and perhaps not meant alike. Pure.

A stop ends a cell somewhere on each rank. Where one of them has skipped a launch, the stop may have
kept the others from as many: then all have launched the same program as often, and no count, no
fingerprint tells. Their lines do.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from jaxcluster import wire
from jaxcluster.model import lockstep
from jaxcluster.ranks import by_value, name_ranks

THREADS = "Don't trust what threads, tasks, timers and %%px cells have assigned since."


def from_other_lines(reports: Mapping[int, wire.RankReport], seq: int) -> str:
    """What to say where ranks have made a launch of the cell ``seq`` on different lines; else "".

    It may be meant: a branch by the rank may launch one program on either side.
    """
    made: dict[tuple[str, int], dict[int, wire.Launch]] = {}
    for rank, report in reports.items():
        for entry in report.launches:
            if entry.cell_seq == seq and entry.line is not None:
                made.setdefault((entry.processes, entry.seq), {})[rank] = entry
    for (_, place), here in sorted(made.items()):
        lines = by_value({rank: entry.line for rank, entry in here.items()})
        if len(lines) > 1:
            first, *others = lines.items()
            where = [f"{name_ranks(first[1])} launched {here[first[1][0]].name} on line {first[0]}"]
            where += [f"{name_ranks(ranks)} on line {line}" for line, ranks in others]
            return (
                f"Launch {place + 1} came from different lines: {', '.join(where)}. If you did not "
                "intend that, a rank had skipped or repeated a launch before the stop. Don't trust "
                "what this cell has assigned then.\n"
            )
    return ""


def from_elsewhere(reports: Mapping[int, wire.RankReport], seq: int) -> str:
    """What to say where launches of the cell ``seq`` have met others than its own; else "".

    Or none yet, so that they will meet what comes: those of cells behind it, of threads, or zeros.
    It was stopped, or left to whoever brings the ranks back.
    """
    made: dict[tuple[str, int], dict[int, wire.Launch]] = {}
    for rank, report in reports.items():
        for entry in report.launches:
            made.setdefault((entry.processes, entry.seq), {})[rank] = entry
    for (processes, place), here in sorted(made.items()):
        own = {rank: entry for rank, entry in here.items() if entry.cell_seq == seq}
        others = here.keys() - own.keys()
        lacking = [
            rank
            for rank in lockstep.members(processes)
            if rank in reports and _made(reports[rank], processes) <= place
        ]
        if own and (others or lacking):
            entry = own[min(own)]
            met = [f"another one on {name_ranks(others)}"] if others else []
            met += [f"none yet on {name_ranks(lacking)}"] if lacking else []
            line = f" (line {entry.line})" if entry.line else ""
            return (
                f"Launch {place + 1} of {name_ranks(lockstep.members(processes))} was this cell's "
                f"{entry.name}{line} on {name_ranks(own)}, {' and '.join(met)}. If you did not "
                "intend that, it has met the wrong ones. Don't trust what this cell has assigned "
                "then.\n"
            )
    return ""


def _made(report: wire.RankReport, processes: str) -> int:
    return report.state.launches.get(processes, (0, 0))[0]


def from_threads(
    reports: Mapping[int, wire.RankReport], seq: int | None = None, apart: Collection[str] = ()
) -> str:
    """What to say where ranks are uneven, and cells' launches have met what threads launched.

    ``seq``: only where this cell's have; else since the ranks were last brought back, when it was
    told. ``apart``: sets of which the ranks have not launched the
    same in the cell, so that threads may have made them even. "" where there is nothing to say.

    It may be meant: what one rank's cell launches another one's thread may. Else one of the ranks
    has skipped a launch, or made one more, and its thread's next one has hidden that.
    """
    made: dict[str, dict[int, dict[int, wire.Launch]]] = {}
    for rank, report in reports.items():
        for entry in report.launches:
            made.setdefault(entry.processes, {}).setdefault(entry.seq, {})[rank] = entry
    counts = {rank: report.state.launches for rank, report in reports.items()}
    for processes, places in sorted(made.items()):
        if processes not in apart and not lockstep.uneven(counts, processes):
            continue
        ours = [n for n, here in places.items() if wire.OURS in {e.cell_seq for e in here.values()}]
        since = max(ours, default=-1) if seq is None else -1
        met = {
            place: here
            for place, here in sorted(places.items())
            if place > since and _met_thread(here.values(), seq)
        }
        if not met:
            continue
        (place, here), *_ = met.items()
        thread = [rank for rank, entry in here.items() if entry.cell_seq == 0]
        own = {rank: entry for rank, entry in here.items() if entry.cell_seq > 0}
        entry = own[min(own)]
        cells = {e.cell or 0 for here in met.values() for e in here.values() if e.cell_seq > 0}
        named = " and ".join(f"cell [{cell}]" for cell in sorted(cells))
        return (
            f"Launch {place + 1} of {name_ranks(lockstep.members(processes))} was {entry.name}, at "
            f"cell [{entry.cell}] line {entry.line}, on {name_ranks(own)}, and one of a thread, "
            f"task or timer on {name_ranks(thread)}. If you did not intend that, one of these "
            "ranks has skipped a launch, or made one more. Don't trust what "
            f"{named} assigned then."
        )
    return ""


def _met_thread(here: Iterable[wire.Launch], seq: int | None) -> bool:
    cells = {entry.cell_seq for entry in here}
    return 0 in cells and (max(cells) > 0 if seq is None else seq in cells)


def threads_met_cells(reports: Mapping[int, wire.RankReport]) -> bool:
    """Whether a launch of a thread, a task or a timer has met one that belongs to a cell."""
    return any(0 in cells and len(cells) > 1 for cells in _whose(reports))


def met_zeros(reports: Mapping[int, wire.RankReport]) -> set[int]:
    """The cells of which a launch was met by a replay; 0 for one of a thread, a task or a timer."""
    return {seq for cells in _whose(reports) if wire.OURS in cells for seq in cells} - {wire.OURS}


def met_by(reports: Mapping[int, wire.RankReport], seqs: Collection[int]) -> set[int]:
    """The other cells of which a launch has met one of these cells."""
    met = {other for cells in _whose(reports) if not cells.isdisjoint(seqs) for other in cells}
    return {other for other in met if other > 0 and other not in seqs}


def numbers_of(
    seqs: Iterable[int], reports: Mapping[int, wire.RankReport]
) -> dict[int, int | None]:
    """For each of these cells the number that its notebook gives it, where a launch tells it."""
    told = {
        e.cell_seq: e.cell
        for report in reports.values()
        for e in report.launches
        if e.cell is not None
    }
    return {seq: told.get(seq) for seq in seqs}


def tell_met(cells: Iterable[int], *looks: Mapping[int, wire.RankReport]) -> str:
    """That these cells have met the wrong launches, by their notebooks' numbers, where known."""
    numbers = {n for look in looks for n in numbers_of(cells, look).values() if n}
    told = " and ".join(f"cell [{n}]" for n in sorted(numbers))
    return f"Don't trust what {told} assigned." if told else ""


def _whose(reports: Mapping[int, wire.RankReport]) -> list[set[int]]:
    """Of each launch, the cells that it belongs to on its ranks."""
    whose: dict[tuple[str, int], set[int]] = {}
    for report in reports.values():
        for entry in report.launches:
            whose.setdefault((entry.processes, entry.seq), set()).add(entry.cell_seq)
    return list(whose.values())

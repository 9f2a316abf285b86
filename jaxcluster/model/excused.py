"""Launches that a rank ended its cell without, while a thread of the user's may make them. Pure.

Nothing is interrupted for such a launch, since it is not known to be missing. It is remembered: a
thread makes it outside of any cell, so if that rank's main thread makes it in a later cell, it was
skipped, and that rank's launches have met others than theirs ever since.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from jaxcluster import wire
from jaxcluster.model import lockstep
from jaxcluster.model.explain import hosts_of
from jaxcluster.model.findings import Report
from jaxcluster.ranks import begin_ranks

ON_MAIN_THREAD = ("task", "a timer of the event loop")  # how their names begin


@dataclass(frozen=True)
class Excused:
    """One of them.

    Attributes:
      rank: that has ended the cell without it.
      maker: a rank whose cell made it.
      launch: as that rank's journal has it.
      threads: of the user's on ``rank``.
    """

    rank: int
    maker: int
    launch: wire.Launch
    threads: tuple[str, ...]

    def tell(self, hosts: Mapping[int, str]) -> str:
        """What is said of it at the cell's end."""
        made = self.launch
        return (
            f"{begin_ranks([self.maker], hosts)} launched {made.name} at cell [{made.cell}] line "
            f"{made.line}. {begin_ranks([self.rank], hosts)} ended the cell without it; its "
            f"{', '.join(self.threads[:3])} may still make it. If not, the next collective hangs "
            "or is wrong, which is told then."
        )


def find(reports: Mapping[int, wire.RankReport], seq: int, ranks: Iterable[int]) -> list[Excused]:
    """What ranks have ended the cell ``seq`` without, that other ranks' cells have launched.

    Args:
      ranks: that ran the cell.
    """
    counts = {rank: report.state.launches for rank, report in reports.items()}
    found = []
    for processes in lockstep.sets_of(counts):
        if wire.CROSSING in processes:
            continue
        members = [r for r in lockstep.members(processes) if r in reports]
        held = {r: counts[r].get(processes, (0, 0))[0] for r in members}
        maker = max(members, key=lambda r: held[r])
        for rank in sorted(set(members) & set(ranks)):
            state = reports[rank].state
            launch = _entry(reports[maker], processes, held[rank])
            has_ended = state.state == "idle" and state.ended >= seq
            threads = tuple(state.background)
            if launch is None or launch.cell_seq != seq or not (has_ended and threads):
                continue
            if not any(name.startswith(ON_MAIN_THREAD) for name in threads):
                found.append(Excused(rank, maker, launch, threads))
    return found


def made_elsewhere(
    excused: Iterable[Excused], reports: Mapping[int, wire.RankReport]
) -> tuple[list[Excused], Report | None]:
    """(those that are still open, the certain finding if a later cell has made one of them)."""
    left = []
    for one in excused:
        if (report := reports.get(one.rank)) is None:
            left.append(one)
            continue
        made = one.launch
        own = _entry(report, made.processes, made.seq)
        if own is None:
            if report.state.launches.get(made.processes, (0, 0))[0] <= made.seq:
                left.append(one)
        elif own.cell_seq not in (0, made.cell_seq):
            return [], _report(one, own, reports)
    return left, None


def _entry(report: wire.RankReport, processes: str, seq: int) -> wire.Launch | None:
    return next((e for e in report.launches if (e.processes, e.seq) == (processes, seq)), None)


def _report(one: Excused, own: wire.Launch, reports: Mapping[int, wire.RankReport]) -> Report:
    made, hosts = one.launch, hosts_of(reports)
    maker, rank = begin_ranks([one.maker], hosts), begin_ranks([one.rank], hosts)
    lines = (
        f"{maker} launched {made.name} at cell [{made.cell}] line {made.line} (launch "
        f"{made.seq + 1}).",
        f"{rank} ended that cell without it, its {', '.join(one.threads[:3])} has not made it, and "
        f"its own launch {made.seq + 1} is that of cell [{own.cell}] line {own.line}: what it has "
        "launched since has met other launches. Don't trust a number of these cells.",
    )
    at = [e for rep in reports.values() for e in rep.launches if e.processes == made.processes]
    cells = frozenset(e.cell_seq for e in at if e.seq >= made.seq)
    ranks = (one.rank,), (one.maker,)
    return Report("mismatch", made.processes, made.seq, *ranks, lines, made.cell_seq, cells)

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
from jaxcluster.model.findings import Report, made_in
from jaxcluster.ranks import begin_ranks, name_ranks

ON_MAIN_THREAD = ("task", "callback", "timer", "reader", "handler")  # how their names begin


@dataclass(frozen=True)
class PendingLaunch:
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
            f"{', '.join(self.threads[:3])} may still launch it. Don't trust what cell "
            f"[{made.cell}] assigned if you did not intend that. If nothing launches it, the next "
            "collective hangs or gives wrong numbers, which is reported when it happens."
        )

    @property
    def can_be_looked_for(self) -> bool:
        """Whether what a later cell launches is its own: a task may launch in its course."""
        return not _launch_on_main_thread(self.threads)


def find(
    reports: Mapping[int, wire.RankReport], seq: int, ranks: Iterable[int]
) -> list[PendingLaunch]:
    """What ranks have ended the cell ``seq`` without, that other ranks' cells have launched.

    A later cell may have made it in its place already: ``look`` tells.

    Args:
      ranks: that ran the cell.
    """
    counts = {rank: report.state.launches for rank, report in reports.items()}
    found = []
    for processes in lockstep.sets_of(counts):
        members = [r for r in lockstep.members(processes) if r in reports]
        # By the cell's own launches: a later cell may have made up for the number by now.
        made_by = {r: made_in(reports[r], processes, seq) for r in members}
        maker = max(members, key=lambda r: len(made_by[r]))
        made = made_by[maker]
        for rank in sorted(set(members) & set(ranks)):
            state = reports[rank].state
            threads = tuple(state.background)
            if state.ended < seq or not threads:
                continue
            own = {e.seq: e for e in reports[rank].launches if e.processes == processes}
            count = _count(reports[rank], processes)
            lacks = (e for e in made if e.seq >= count or _is_anothers(own.get(e.seq), seq))
            if (launch := next(lacks, None)) is not None:
                found.append(PendingLaunch(rank, maker, launch, threads))
    return found


def look(
    pending: Iterable[PendingLaunch], reports: Mapping[int, wire.RankReport]
) -> tuple[list[PendingLaunch], Report | None]:
    """(those that are settled, the certain finding if a later cell has made one of them)."""
    settled, found = [], None
    for one in pending:
        if one.rank not in reports or one.maker not in reports:
            continue
        made, late = one.launch, reports[one.rank]
        makers = _entry(reports[one.maker], made.processes, made.seq)
        own = _entry(late, made.processes, made.seq)
        counts = {r: rep.state.launches for r, rep in reports.items()}
        is_even = not lockstep.uneven(counts, made.processes)
        # The ranks count from zero again. (The same launch may have broken off since.)
        has_restarted = makers is not None and makers.cell_seq != made.cell_seq
        if has_restarted or (own is None and is_even) or (own is not None and own.cell_seq <= 0):
            settled.append(one)
        elif own is not None and _is_anothers(own, made.cell_seq):
            if _launch_on_main_thread(late.state.background):
                continue  # it may have been that task's, in a cell that awaits
            found = found or _report(one, own, reports)
    return settled, found


def _is_anothers(own: wire.Launch | None, seq: int) -> bool:
    """Whether a launch is one of another cell than ``seq``: not of a thread, nor unknown."""
    return own is not None and own.cell_seq not in (0, wire.OURS, seq)


def _launch_on_main_thread(names: Iterable[str]) -> bool:
    return any(name.startswith(ON_MAIN_THREAD) for name in names)


def _count(report: wire.RankReport, processes: str) -> int:
    return report.state.launches.get(processes, [0, 0])[0]


def _entry(report: wire.RankReport, processes: str, seq: int) -> wire.Launch | None:
    return next((e for e in report.launches if (e.processes, e.seq) == (processes, seq)), None)


def _report(one: PendingLaunch, own: wire.Launch, reports: Mapping[int, wire.RankReport]) -> Report:
    made, hosts = one.launch, hosts_of(reports)
    maker, rank = begin_ranks([one.maker], hosts), begin_ranks([one.rank], hosts)
    lines = (
        f"{maker} launched {made.name} at cell [{made.cell}] line {made.line} (launch "
        f"{made.seq + 1}).",
        f"{rank} ended that cell without it, and its {', '.join(one.threads[:3])} has not "
        f"launched it since. Instead its launch {made.seq + 1} came from cell [{own.cell}] line "
        f"{own.line}, so from there on its launches met the wrong ones. Don't trust any number "
        "from these cells.",
    )
    at = [e for rep in reports.values() for e in rep.launches if e.processes == made.processes]
    cells = frozenset(e.cell_seq for e in at if e.seq >= made.seq)
    ranks = (one.rank,), (one.maker,)
    title = f"Launch skipped on {name_ranks([one.rank], hosts)}"
    seqs = made.cell_seq, cells
    return Report("mismatch", made.processes, made.seq, *ranks, lines, *seqs, title=title)

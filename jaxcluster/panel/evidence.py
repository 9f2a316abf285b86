"""Where the ranks were, as a report marks it in the cells' lines. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from jaxcluster import wire
from jaxcluster.panel import protocol

Line = tuple[int, int]  # a cell's number, and one of its lines


def places(
    reports: Mapping[int, wire.RankReport],
    kind: protocol.ReportKind,
    culprits: Collection[int],
    at: tuple[str, int] | None = None,
    errors: Mapping[int, Line] | None = None,
    last_seen: Mapping[int, Line] | None = None,
) -> list[protocol.Place]:
    """The lines of cells at which ranks were, those of the same kind together.

    Args:
      reports: what the ranks said when it was found.
      kind: the finding's.
      culprits: the ranks that differ from the others, or that have died.
      at: the set of processes and the place in its sequence at which ranks parted.
      errors: where culprits raised an error.
      last_seen: where ranks that can't be asked any more were before.
    """
    found: dict[tuple[int, int, protocol.PlaceKind], list[int]] = {}
    for rank in sorted({*reports, *(errors or {}), *(last_seen or {})}):
        if (place := _place(rank, reports, kind, rank in culprits, at, errors or {})) is not None:
            found.setdefault(place, []).append(rank)
        elif rank in culprits and last_seen is not None and rank in last_seen:
            found.setdefault((*last_seen[rank], "died"), []).append(rank)
    return [
        protocol.Place(cell, line, ranks, what)
        for (cell, line, what), ranks in sorted(found.items())
    ]


def _place(
    rank: int,
    reports: Mapping[int, wire.RankReport],
    kind: protocol.ReportKind,
    is_culprit: bool,
    at: tuple[str, int] | None,
    errors: Mapping[int, Line],
) -> tuple[int, int, protocol.PlaceKind] | None:
    if rank in errors and is_culprit:
        return (*errors[rank], "differs")
    report = reports.get(rank)
    if report is None:
        return None
    entry = _made_at(report, at) if at is not None else None
    if kind == "mismatch" and entry is not None and entry.cell is not None and entry.line:
        return entry.cell, entry.line, "differs" if is_culprit else "launched"
    state = report.state
    if state.state == "running" and state.cell is not None and state.line:
        if kind in ("missing", "circle"):
            return state.cell, state.line, "differs" if is_culprit else "waited"
        return state.cell, state.line, "differs" if kind == "mismatch" else "was"
    if entry is not None and entry.cell is not None and entry.line and not is_culprit:
        return entry.cell, entry.line, "launched"  # it went past it, and has ended the cell
    return None


def _made_at(report: wire.RankReport, at: tuple[str, int]) -> wire.Launch | None:
    processes, seq = at
    made = (e for e in report.launches if e.processes == processes and e.seq == seq)
    return next(made, None)

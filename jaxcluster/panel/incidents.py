"""What went wrong last on a cluster, as the page shows it: a cell's end, or dead ranks."""

from __future__ import annotations

from collections.abc import Sequence

from jaxcluster.cluster import Cluster
from jaxcluster.model import crash_log, deaths
from jaxcluster.model.availability import advice
from jaxcluster.ranks import begin_ranks
from jaxcluster.views.report import Report, document


def report(current: Cluster | None, now: int) -> Report | None:
    """The last of this kernel's reports on a cluster, or who is dead now; None: nothing."""
    if current is None:
        return None
    if not current.closed and (current.dead or current.coordinator_died):
        return _of_deaths(current, now)
    last = current.past_reports.last_own
    return None if last is None else document(last, current.name)


def _of_deaths(current: Cluster, now: int) -> Report:
    dead = sorted(current.dead)
    cell_id, cell = _cell_of(current, dead)
    return Report(
        kind="dead",
        cluster=current.name,
        cell_id=cell_id,
        cell=cell,
        at=now,
        title=_title(current, dead),
        lines=_lines(current, dead, cell or None),
        culprits=[rank for rank in dead if not deaths.meant([current.dead[rank].why])],
        open=True,
    )


def _cell_of(current: Cluster, dead: Sequence[int]) -> tuple[str, int]:
    """The cell in which they died: its id and its number; ("", 0): none."""
    for running in current.cells:
        if {*running.record.ranks} & {*dead}:
            return running.record.cell_id, running.record.execution_count
    last = current.past_reports.last_own
    # An older report tells of processes before these.
    is_theirs = last is not None and last.at_ns > current.record.created_ns
    if last and is_theirs and last.kind == "RankDied" and {*last.culprits} & {*dead}:
        return last.cell_id, last.cell
    return "", 0


def _title(current: Cluster, dead: Sequence[int]) -> str:
    if not dead:
        return "JAX's coordinator died"
    return current.condition.ended_by_others.capitalize() or f"{begin_ranks(dead)} died"


def _lines(current: Cluster, dead: Sequence[int], cell: int | None) -> list[str]:
    """Of what they died, what to type, and the end of the first one's log."""
    if not dead:
        return [f"JAX's coordinator died: {current.coordinator_died}."]
    lines = deaths.tell({rank: current.dead[rank].why for rank in dead}, cell)
    if current.condition.ended_by_others:
        return [*lines, advice(current.condition) or ""]
    log = current.world.log_excerpt(dead[0])
    if log == crash_log.EMPTY:
        return lines
    return [*lines, f"The end of rank {dead[0]}'s log:", *log.splitlines()]

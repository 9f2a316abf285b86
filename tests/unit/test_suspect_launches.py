"""Launches of a stopped cell that are alike, and were made on different lines."""

from __future__ import annotations

from jaxcluster import wire
from jaxcluster.model import suspect_launches


def report(rank: int, *lines: int | None, cell_seq: int = 5) -> wire.RankReport:
    made = [
        wire.Launch(seq, "0,1,2", "jit(f)", 11, 7, line, "", cell_seq)
        for seq, line in enumerate(lines)
    ]
    return wire.RankReport(wire.RankState(rank, 100 + rank, "here", "idle"), [], made)


def told(*reports: wire.RankReport) -> str:
    return suspect_launches.from_other_lines(dict(enumerate(reports)), 5)


def test_the_first_launch_that_met_another_line_is_told() -> None:
    text = told(report(0, 3, 4), report(1, 3, 6), report(2, 3, 4))
    assert text.startswith(
        "Launch 2 came from different lines: ranks 0, 2 launched jit(f) on line 4, rank 1 on "
        "line 6. "
    )
    assert text.endswith("Don't trust what this cell has assigned then.\n")


def test_what_met_its_own_line_another_cell_or_nobody_is_not() -> None:
    assert told(report(0, 3, 4), report(1, 3, 4), report(2, 3)) == ""
    assert told(report(0, 3), report(1, 4, cell_seq=4), report(2, 3)) == ""
    assert told(report(0, None), report(1, None), report(2, 3)) == ""


def test_a_threads_launch_that_met_a_cells_is_known() -> None:
    cells, thread = report(0, 3, 4), report(1, 3, 4, cell_seq=0)
    assert suspect_launches.threads_met_cells({0: cells, 1: thread})
    assert not suspect_launches.threads_met_cells({0: cells, 1: report(1, 3, 6)})
    assert not suspect_launches.threads_met_cells({0: thread, 1: report(1, 3, 6, cell_seq=0)})
    assert not suspect_launches.threads_met_cells({})

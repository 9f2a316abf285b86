"""Launches that are alike, and were made on different lines, or of a cell and by threads."""

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


def counted(*reports: wire.RankReport) -> dict[int, wire.RankReport]:
    for made in reports:
        made.state.launches["0,1,2"] = [len(made.launches), 1]
    return dict(enumerate(reports))


def from_elsewhere(*reports: wire.RankReport) -> str:
    return suspect_launches.from_elsewhere(counted(*reports), 5)


def test_what_a_stopped_cells_launch_has_met_or_may_yet_meet_is_told() -> None:
    cell, thread = report(0, 3, 4), report(1, 3, cell_seq=0)
    first = "Launch 1 of ranks 0-2 was this cell's jit(f) (line 3) on rank 0"
    assert from_elsewhere(cell, thread).startswith(f"{first}, another one on rank 1. If ")
    told = from_elsewhere(cell, thread, report(2))
    assert told.startswith(f"{first}, another one on rank 1 and none yet on rank 2. If ")
    assert told.endswith("Don't trust what this cell has assigned then.\n")
    lacks = from_elsewhere(cell, report(1, 3), report(2, None, 4))
    assert lacks.startswith("Launch 2 of ranks 0-2 was this cell's jit(f) (line 4) on ranks 0, 2,")


def test_a_stopped_cells_launches_that_have_met_its_own_or_are_of_others_are_not_told() -> None:
    assert from_elsewhere(report(0, 3), report(1, 3), report(2, 4)) == ""
    assert from_elsewhere(report(0, 3, cell_seq=4), report(1, 3, cell_seq=0), report(2)) == ""
    older = report(1)  # its journal does not go back so far
    reports = counted(report(0, 3), older, report(2, 3))
    older.state.launches["0,1,2"] = [1, 1]
    assert suspect_launches.from_elsewhere(reports, 5) == ""


def from_threads(*reports: wire.RankReport, seq: int | None = None, apart: bool = False) -> str:
    sets = ["0,1,2"] if apart else []
    return suspect_launches.from_threads(counted(*reports), seq, sets)


def test_a_launch_that_met_one_of_a_thread_is_told_with_its_line_where_ranks_are_uneven() -> None:
    ahead, thread = report(0, 3, 4), report(1, 3, cell_seq=0)
    told = from_threads(ahead, thread)
    first = "Launch 1 of ranks 0-2 was jit(f), at cell [7] line 3, on rank 0, and one of a thread,"
    assert told.startswith(f"{first} task or timer on rank 1. If you did not intend that, ")
    assert told.endswith("Don't trust what cell [7] assigned then.")
    assert told == from_threads(ahead, thread, seq=5)
    both = from_threads(ahead, thread, report(2, 3))
    assert "on ranks 0, 2, and one of a thread, task or timer on rank 1." in both


def test_what_is_even_or_met_another_cell_or_nobody_met_no_thread() -> None:
    cell, thread = report(0, 3, 4), report(1, 3, cell_seq=0)
    for others in ([report(1, 3)], [report(1, 3, cell_seq=4)], [report(1, 3, 4, cell_seq=0)], []):
        assert from_threads(cell, *others) == ""
    assert from_threads(report(0, 3, 4, cell_seq=0), thread) == ""
    assert from_threads(cell, thread, seq=6) == "", "it is another cell's"


def test_what_met_a_thread_before_the_ranks_were_brought_back_is_told_no_more() -> None:
    """It was told then, and the cell is undone."""

    def course(rank: int, *cells: int) -> wire.RankReport:
        made = [wire.Launch(n, "0,1,2", "f", 11, 7, 3, "", seq) for n, seq in enumerate(cells)]
        return wire.RankReport(wire.RankState(rank, 100, "here", "idle"), [], made)

    assert from_threads(course(0, 5, 6, 8, 9), course(1, 0, wire.OURS, 8)) == ""
    later = from_threads(course(0, 5, 6, 8, 9), course(1, 0, wire.OURS, 0))
    assert later.startswith("Launch 3 of ranks 0-2 was ")


def test_threads_that_have_made_a_cells_ranks_even_are_told() -> None:
    cell, thread = report(0, 3), report(1, 3, cell_seq=0)
    assert from_threads(cell, thread, seq=5) == ""
    told = from_threads(cell, thread, seq=5, apart=True)
    assert told.endswith("Don't trust what cell [7] assigned then.")
    assert from_threads(cell, report(1, 3), seq=5, apart=True) == ""


def test_the_cells_that_others_have_met_are_known() -> None:
    own, late = report(0, 3, 4), report(1, 3, cell_seq=6)
    assert suspect_launches.met_by({0: own, 1: late}, {5}) == {6}
    assert suspect_launches.met_by({0: own, 1: late}, {5, 6}) == set()
    assert suspect_launches.met_by({0: own, 1: report(1, 3, cell_seq=0)}, {5}) == set()
    assert suspect_launches.met_by({0: late, 1: report(1, 3, cell_seq=7)}, {5}) == set()

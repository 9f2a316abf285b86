"""Where a report says that ranks were, and the launches that it shows side by side."""

from __future__ import annotations

from typing import Any

from jaxcluster import wire
from jaxcluster.panel.evidence import AFTER, LAUNCHES, MOST_LANES, places, timelines
from jaxcluster.panel.protocol import Place


def launches(processes: str, programs: str, cell: int = 7) -> list[wire.Launch]:
    """A launch for each letter, each on a line of its own."""
    return [
        wire.Launch(seq, processes, f"jit({letter})", ord(letter), cell, seq + 1)
        for seq, letter in enumerate(programs)
    ]


def report(
    rank: int, made: list[wire.Launch] | None = None, line: int | None = None, **more: Any
) -> wire.RankReport:
    """A rank that runs line ``line`` of cell [7], or is idle."""
    what = "idle" if line is None else "running"
    cell = None if line is None else 7
    state = wire.RankState(rank, 100 + rank, "h", what, cell=cell, line=line, **more)
    return wire.RankReport(state, [], made or [])


# ------------------------------------------------------------------------------------------ places


def test_those_that_waited_are_at_their_lines_and_who_raised_at_the_errors() -> None:
    reports = {0: report(0, line=3), 1: report(1), 2: report(2, line=3), 3: report(3, line=5)}
    assert places(reports, "missing", [1], errors={1: (7, 2)}) == [
        Place(7, 2, [1], "differs"),
        Place(7, 3, [0, 2], "waited"),
        Place(7, 5, [3], "waited"),
    ]


def test_an_error_of_a_rank_that_is_not_to_blame_marks_no_line() -> None:
    assert places({0: report(0)}, "missing", [1], errors={0: (7, 2)}) == []


def test_ranks_that_have_ended_the_cell_are_where_they_launched_it() -> None:
    made = launches("0,1", "AB")
    reports = {0: report(0, made), 1: report(1, made[:1])}
    assert places(reports, "missing", [1], at=("0,1", 1)) == [Place(7, 2, [0], "launched")]


def test_different_programs_are_where_each_was_launched() -> None:
    reports = {
        0: report(0, launches("0,1,2", "AB"), line=9),
        1: report(1, [launches("0,1,2", "A")[0], wire.Launch(1, "0,1,2", "jit(C)", 5, 7, 4)]),
        2: report(2, launches("0,1,2", "AB"), line=9),
    }
    assert places(reports, "mismatch", [1], at=("0,1,2", 1)) == [
        Place(7, 2, [0, 2], "launched"),
        Place(7, 4, [1], "differs"),
    ]


def test_nobody_is_said_to_have_waited_where_a_rank_has_died() -> None:
    reports = {0: report(0, line=4), 1: report(1, line=4)}
    assert places(reports, "dead", [2], last_seen={2: (7, 3)}) == [
        Place(7, 3, [2], "died"),
        Place(7, 4, [0, 1], "was"),
    ]
    assert places(reports, "dead", [2]) == [Place(7, 4, [0, 1], "was")]


# --------------------------------------------------------------------------------------- timelines


def test_ranks_with_the_same_launches_share_a_lane_and_a_gap_is_none() -> None:
    reports = {
        rank: report(rank, launches("0,1,2", programs))
        for rank, programs in enumerate(["ABA", "AB", "ABA"])
    }
    (shown,) = timelines(reports, "0,1,2", 2)
    assert (shown.processes, shown.first, shown.hidden) == ([0, 1, 2], 1, [])
    programs = {
        tuple(lane.ranks): [one and one.program for one in lane.launches] for lane in shown.lanes
    }
    assert programs == {(0, 2): [0, 1, 0], (1,): [0, 1, None]}
    first = shown.lanes[0].launches[0]
    assert first is not None
    assert (first.name, first.cell, first.line) == ("jit(A)", 7, 1)


def test_the_first_difference_is_in_view_however_much_came_after_it() -> None:
    long = "A" * 40
    reports = {0: report(0, launches("0,1", long)), 1: report(1, launches("0,1", long[:10]))}
    (shown,) = timelines(reports, "0,1", 10)
    assert shown.first == 10 + AFTER - LAUNCHES + 2
    assert [one is None for one in shown.lanes[1].launches] == [False] * 8 + [True] * 4


def test_what_all_journals_have_forgotten_is_no_difference() -> None:
    made = launches("0,1", "ABCDEF")
    reports = {0: report(0, made[2:]), 1: report(1, made[3:])}
    (shown,) = timelines(reports)
    assert shown.first == 4
    assert [lane.ranks for lane in shown.lanes] == [[0, 1]]


def test_a_rank_that_launched_nothing_has_a_lane_and_a_dead_one_has_none() -> None:
    reports = {0: report(0, launches("0,1,2", "AB")), 1: report(1)}
    (shown,) = timelines(reports)
    assert [lane.ranks for lane in shown.lanes] == [[0], [1]]
    assert shown.lanes[1].launches == [None, None]


def test_of_crossing_sets_both_are_shown_and_of_no_launches_nothing() -> None:
    made = launches("0,1", "AB") + launches("1,2", "C") + launches("3,4", "D")
    reports = {rank: report(rank, made) for rank in range(3)}
    assert [one.processes for one in timelines(reports, "0,1&1,2")] == [[0, 1], [1, 2]]
    assert len(timelines(reports)) == 2  # of a set none of whose ranks answered there is nothing
    assert timelines({0: report(0)}) == []


def test_many_lanes_are_bounded_and_the_rest_is_named() -> None:
    everybody = ",".join(map(str, range(40)))
    reports = {r: report(r, launches(everybody, chr(65 + r))) for r in range(40)}
    (shown,) = timelines(reports)
    assert len(shown.lanes) == MOST_LANES
    assert shown.hidden == list(range(MOST_LANES, 40))

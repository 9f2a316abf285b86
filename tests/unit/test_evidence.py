"""Where a report says that ranks were."""

from __future__ import annotations

from journals import launches, report

from jaxcluster import wire
from jaxcluster.panel.evidence import places
from jaxcluster.panel.protocol import Place

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

"""The last launches of ranks side by side."""

from __future__ import annotations

from journals import launches, report

from jaxcluster import wire
from jaxcluster.model.postmortem import reports_of
from jaxcluster.model.timeline import AFTER, LAUNCHES, MOST_LANES, journal, timelines
from jaxcluster.views import text


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


# ----------------------------------------------------------------------------------------- journal


def test_what_a_rank_may_still_launch_is_no_difference() -> None:
    reports = {
        0: report(0, launches("0,1,2", "ABA")),
        1: report(1, launches("0,1,2", "A"), line=3),
        2: report(2, launches("0,1,2", "AB"), line=3),
    }
    (shown,) = journal(reports, 20)
    assert [lane.under_way for lane in shown.lanes] == [False, True, True]
    assert shown.difference() is None
    assert "not yet" in text.journal([shown])
    assert "first difference" not in text.journal([shown])
    (then,) = timelines(reports, "0,1,2", 1, culprits=[1])  # in a later cell by now
    assert (then.difference(), then.odd) == (1, [1])
    assert "2       1      -        " in text.journal([then])


def test_another_program_is_a_difference_also_while_a_rank_is_under_way() -> None:
    reports = {0: report(0, launches("0,1", "ABA")), 1: report(1, launches("0,1", "AC"), line=3)}
    (shown,) = journal(reports, 20)
    assert shown.difference() == 1
    rows = text.journal([shown]).splitlines()[2:]
    assert [row.split()[:3] for row in rows] == [
        ["1", "0,", "1"],
        ["2", "0", "jit(B)"],
        ["2", "1", "jit(C)"],
        ["3", "0", "jit(A)"],
        ["3", "1", "not"],
    ]
    assert [row.endswith("<- first difference") for row in rows] == [
        False,
        True,
        True,
        False,
        False,
    ]


def test_only_those_are_marked_that_differ_from_the_most_and_only_where_they_first_do() -> None:
    made = {0: "AB", 1: "ABC", 2: "AXB", 3: "ABC"}
    reports = {r: report(r, launches("0,1,2,3", programs)) for r, programs in made.items()}
    (shown,) = timelines(reports, "0,1,2,3", 1, culprits=[2])
    assert (shown.difference(), shown.odd) == (1, [2])
    marked = [line for line in text.journal([shown]).splitlines() if "first difference" in line]
    assert [line.split()[:3] for line in marked] == [["2", "2", "jit(X)"]]


def test_where_two_and_two_differ_the_finding_says_who_does() -> None:
    reports = {r: report(r, launches("0,1,2,3", "AB" if r < 2 else "AC")) for r in range(4)}
    (shown,) = timelines(reports, "0,1,2,3", 1, culprits=[0, 1])
    assert shown.odd == [0, 1]
    (unsure,) = journal(reports, 20)
    assert unsure.odd == [0, 1, 2, 3]


def test_a_rank_that_had_no_time_yet_is_told_from_one_that_skipped_it() -> None:
    reports = {
        0: report(0, launches("0,1,2", "AB"), line=2),
        1: report(1, launches("0,1,2", "A"), line=1),
        2: report(2, launches("0,1,2", "A")),
    }
    (shown,) = timelines(reports, "0,1,2", 1, culprits=[2])
    assert shown.odd == [2]
    rows = [line.split()[:3] for line in text.journal([shown]).splitlines()]
    assert rows[-3:] == [["2", "0", "jit(B)"], ["2", "1", "not"], ["2", "2", "-"]]


def test_a_dead_rank_has_a_row_that_says_so() -> None:
    reports = {0: report(0, launches("0,1", "AB")), **reports_of([1], {1: launches("0,1", "A")})}
    (shown,) = timelines(reports, culprits=[1])
    assert (shown.difference(), shown.odd) == (None, [])
    assert text.journal([shown]).splitlines()[-1].split() == ["2", "1", "died"]


def test_who_was_interrupted_as_another_died_is_not_marked() -> None:
    broken = wire.Launch(1, "0,1,2,3", f"jit(B){wire.BROKEN_OFF} by X", 99, 7, 2)
    reports = {
        0: report(0, launches("0,1,2,3", "AB")),
        1: report(1, launches("0,1,2,3", "A")),
        2: report(2, [*launches("0,1,2,3", "A"), broken]),
    }
    reports |= reports_of([3], {3: launches("0,1,2,3", "A")})
    (shown,) = timelines(reports, culprits=[3], is_cut=True)
    assert (shown.difference(), shown.odd) == (None, [])
    assert [(lane.ranks, lane.under_way, lane.died) for lane in shown.lanes] == [
        ([0, 2], True, False),
        ([1], True, False),
        ([3], False, True),
    ]
    (certain,) = timelines(reports, "0,1,2,3", 1, culprits=[1])
    assert certain.difference() == 1


def test_the_journal_shows_as_many_launches_as_it_was_asked_for_and_each_rank() -> None:
    everybody = ",".join(map(str, range(40)))
    reports = {r: report(r, launches(everybody, chr(65 + r) * 30)) for r in range(40)}
    (shown,) = journal(reports, 7)
    assert (shown.first, shown.length, len(shown.lanes), shown.hidden) == (24, 7, 40, [])


def test_a_rank_that_is_under_way_is_neither_odd_nor_the_measure() -> None:
    everybody = "0,1,2,3,4,5,6"
    idle = {0: "ABA", 1: "AC", 2: "A", 5: "ABA"}
    reports = {r: report(r, launches(everybody, made)) for r, made in idle.items()}
    reports |= {r: report(r, launches(everybody, "A"), line=3) for r in (3, 4, 6)}
    (shown,) = journal(reports, 20)
    assert (shown.difference(), shown.odd) == (1, [1, 2])


def test_equal_ranks_share_a_row_that_says_which_line_launched_it() -> None:
    everybody = ",".join(map(str, range(64)))
    made = [wire.Launch(0, everybody, "jit(<lambda>)", 1, 7, 1, within="train.py line 2: f()")]
    reports = {rank: report(rank, made if rank != 9 else []) for rank in range(64)}
    one, none = text.journal(journal(reports, 20)).splitlines()[2:]
    assert one.split("  ")[-1].strip() == "[7] line 1, train.py line 2"
    assert "0-8, 10-63" in one and "jit(<lambda>)" in one
    assert none.split()[1:] == ["9", "-", "<-", "first", "difference"]


def test_of_no_launches_it_is_said_that_there_are_none() -> None:
    shown = text.journal(journal({0: report(0)}, 20))
    assert shown.startswith("No program that spans processes has been launched")

"""What ranks have skipped, from recorded journals."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from jaxcluster import wire
from jaxcluster.model.skipped import differing, to_replay

SUM, MAX, MUL = 11, 22, 33
ALL, PAIR = "0,1,2", "0,1"


def report(rank: int, *programs: int | tuple[str, int]) -> wire.RankReport:
    """A rank that has launched these (fingerprints; of all ranks, or of a named set)."""
    launches: list[wire.Launch] = []
    counts: dict[str, list[int]] = {}
    for program in programs:
        processes, fingerprint = program if isinstance(program, tuple) else (ALL, program)
        held = counts.setdefault(processes, [0, 0])
        launches.append(wire.Launch(held[0], processes, "jit(f)", fingerprint, 7, 1, ""))
        held[:] = [held[0] + 1, held[1] * 1000003 + fingerprint]
    state = wire.RankState(rank, 100 + rank, "here", "idle", launches=counts)
    return wire.RankReport(state, [], launches)


def missing(*reports: wire.RankReport) -> dict[int, list[tuple[str, int]]] | None:
    """What each rank gets to do, as (processes, fingerprint)."""
    counts = {r.state.rank: r.state.launches for r in reports}
    todo = to_replay(counts, {r.state.rank: r.launches for r in reports})
    if todo is None:
        return None
    return {r: [(e.processes, e.fingerprint) for e in entries] for r, entries in todo.items()}


def of_all(*programs: int) -> Sequence[tuple[str, int]]:
    return [(ALL, program) for program in programs]


def test_a_lagging_rank_gets_the_missing_programs_in_order() -> None:
    found = missing(report(0, SUM, MAX, MUL), report(1, SUM), report(2, SUM, MAX, MUL))
    assert found == {1: of_all(MAX, MUL)}


def test_different_programs_can_not_be_replayed() -> None:
    assert missing(report(0, SUM, MAX), report(1, MAX), report(2, SUM, MAX)) is None
    assert missing(report(0, SUM), report(1, MAX), report(2, SUM)) is None


def test_launches_that_the_journal_has_forgotten_can_not_be_replayed() -> None:
    reports = {0: report(0, SUM, MAX, MUL), 1: report(1, SUM)}
    counts = {r: rep.state.launches for r, rep in reports.items()}
    launches = {0: reports[0].launches[2:], 1: reports[1].launches}
    assert to_replay(counts, launches) is None


def test_programs_of_several_sets_are_replayed_in_the_order_in_which_others_launched_them() -> None:
    for first, second in (((ALL, SUM), (PAIR, MAX)), ((PAIR, MAX), (ALL, SUM))):
        found = missing(report(0, first, second), report(1), report(2, SUM))
        assert found == {1: [first, second]}


def test_orders_that_different_ranks_know_are_put_together() -> None:
    a, b, c = ("0,3", 1), ("0,1,3", 2), ("1,3", 3)
    found = missing(report(0, a, b), report(1, b, c), report(3))
    assert found == {3: [a, b, c]}
    assert missing(report(0, b, a), report(1, c, b), report(3)) == {3: [c, b, a]}


def test_of_what_no_rank_orders_an_earlier_cells_comes_first() -> None:
    """The later cell may wait on the rank that lacks it, and will launch its own."""
    later, earlier = report(0, (PAIR, MAX)), report(2, SUM)
    entry = dataclasses.replace(later.launches[0], cell_seq=3)
    later = dataclasses.replace(later, launches=[entry])
    earlier.launches[:] = [dataclasses.replace(earlier.launches[0], cell_seq=2)]
    found = missing(later, report(1), earlier)
    assert found is not None
    assert found[1] == [(ALL, SUM), (PAIR, MAX)]


def test_orders_that_contradict_each_other_can_not_be_followed() -> None:
    found = missing(report(0, SUM, (PAIR, MAX)), report(1, (PAIR, MAX), SUM), report(2, SUM))
    assert found == {}  # nothing is missing
    a, b = ("0,1,2", 1), ("0,1,3", 2)
    assert missing(report(0, a, b), report(1), report(2, a), report(3, b)) == {1: [a, b]}
    a, b = ("0,1,2", 1), ("0,1,2,3", 2)
    assert missing(report(0, a, b), report(1), report(2, b, a), report(3, b)) is None


def test_what_others_launched_before_a_ranks_own_last_launch_comes_too_late() -> None:
    found = missing(report(0, (PAIR, MAX), SUM), report(1, SUM), report(2, SUM))
    assert found is None


def test_what_others_launched_after_all_of_a_ranks_own_does_not() -> None:
    found = missing(report(0, SUM, (PAIR, MAX)), report(1, SUM), report(2, SUM))
    assert found == {1: [(PAIR, MAX)]}


# --------------------------------------------------------------------------- different programs


def find_differing(*reports: wire.RankReport) -> list[dict[int, int]]:
    return differing({r.state.rank: r for r in reports})


def test_each_launch_in_which_ranks_differ_is_found() -> None:
    found = find_differing(
        report(0, SUM, MAX, MUL), report(1, SUM, MUL, MAX), report(2, SUM, MAX, MUL)
    )
    assert found == [{0: MAX, 1: MUL, 2: MAX}, {0: MUL, 1: MAX, 2: MUL}]


def test_ranks_in_step_differ_in_nothing() -> None:
    assert find_differing(*[report(rank, SUM, MAX) for rank in range(3)]) == []


def test_another_number_of_launches_is_no_difference_of_programs() -> None:
    assert find_differing(report(0, SUM, MAX), report(1, MAX), report(2, SUM, MAX)) == []


def test_a_difference_that_the_journals_have_forgotten_is_not_known() -> None:
    reports = {0: report(0, SUM, MUL), 1: report(1, MAX, MUL), 2: report(2, SUM, MUL)}
    for each in reports.values():
        each.launches.pop(0)
    assert differing(reports) == []


def test_a_difference_that_one_journal_has_forgotten_is_not_known() -> None:
    reports = {0: report(0, SUM, MUL), 1: report(1, MAX, MUL), 2: report(2, SUM, MUL)}
    reports[2].launches.pop(0)
    assert differing(reports) == []


def test_a_rank_that_launches_while_it_is_asked_may_tell_of_more_than_it_has_counted() -> None:
    """Its count is read before its journal: in between it has run the first that it lacked."""
    ahead = report(0, ("0,1", 9), *of_all(1, 2, 3))
    counted, told = report(1, ("0,1", 9)), report(1, ("0,1", 9), *of_all(1, 2))
    torn = dataclasses.replace(counted, launches=told.launches)
    rest = [report(r, *of_all(1, 2, 3)) for r in (2, 3)]
    assert missing(ahead, torn, *rest) == missing(ahead, counted, *rest)
    assert missing(ahead, torn, *rest) is not None

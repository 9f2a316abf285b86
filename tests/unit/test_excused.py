"""Launches that a thread might yet make, and those that a later cell has made in their place."""

from __future__ import annotations

from dataclasses import replace

from jaxcluster import wire
from jaxcluster.model import excused

LOADER = ("thread 'loader'",)


def report(
    rank: int, cells: list[int], threads: tuple[str, ...] = (), ended: int = 5
) -> wire.RankReport:
    """A rank that has made one launch of ranks 0 and 1 in each of these cells (0: in a thread)."""
    made = [wire.Launch(n, "0,1", "jit(f)", 7, seq, 2, "", seq) for n, seq in enumerate(cells)]
    state = wire.RankState(
        rank=rank,
        pid=100 + rank,
        hostname="here",
        state="idle",
        ended=ended,
        launches={"0,1": [len(cells), 1]},
        background=list(threads),
    )
    return wire.RankReport(state, [], made)


def reports(first: list[int], second: list[int], **of_first: object) -> dict[int, wire.RankReport]:
    return {0: report(0, first, LOADER, **of_first), 1: report(1, second)}  # type: ignore[arg-type]


def test_what_the_cell_launched_elsewhere_is_excused_by_a_thread_and_told() -> None:
    [found] = excused.find(reports([4], [4, 5]), 5, [0, 1])
    assert (found.rank, found.maker, found.launch.seq, found.threads) == (0, 1, 1, LOADER)
    assert found.tell({}).startswith(
        "Rank 1 launched jit(f) at cell [5] line 2. Rank 0 ended the cell without it; its "
        "thread 'loader' may still make it."
    )


def test_what_is_not_the_cells_or_not_skipped_for_a_thread_is_not() -> None:
    behind = reports([4], [4, 5])
    assert excused.find(reports([4, 5], [4, 5]), 5, [0, 1]) == []
    assert excused.find(reports([4], [4, 0]), 5, [0, 1]) == []  # a thread's on the other too
    assert excused.find(behind, 6, [0, 1]) == []  # of an earlier cell
    assert excused.find(behind, 5, [1]) == []  # it was not to run it
    assert excused.find(reports([4], [4, 5], ended=4), 5, [0, 1]) == []  # it has yet to end it
    assert excused.find({0: report(0, [4]), 1: report(1, [4, 5])}, 5, [0, 1]) == []
    for name in ("task 'Task-1'", "a timer of the event loop"):  # they launch on the main thread
        late = {0: report(0, [4], (*LOADER, name)), 1: report(1, [4, 5])}
        assert excused.find(late, 5, [0, 1]) == []


def test_a_thread_that_makes_it_settles_it() -> None:
    remembered = excused.find(reports([4], [4, 5]), 5, [0, 1])
    assert excused.made_elsewhere(remembered, reports([4], [4, 5])) == (remembered, None)
    assert excused.made_elsewhere(remembered, {}) == (remembered, None)
    assert excused.made_elsewhere(remembered, reports([4, 0], [4, 5])) == ([], None)


def test_a_later_cell_that_makes_it_has_met_the_wrong_launch() -> None:
    remembered = excused.find(reports([4], [4, 5]), 5, [0, 1])
    left, found = excused.made_elsewhere(remembered, reports([4, 6], [4, 5, 6]))
    assert left == []
    assert found is not None
    assert (found.kind, found.seq, found.culprits, found.others) == ("mismatch", 1, (0,), (1,))
    assert found.concerns(6)
    assert found.concerns(5)
    assert not found.concerns(7)
    assert str(found) == (
        "Rank 1 launched jit(f) at cell [5] line 2 (launch 2).\n"
        "Rank 0 ended that cell without it, its thread 'loader' has not made it, and its own "
        "launch 2 is that of cell [6] line 2: what it has launched since has met other launches. "
        "Don't trust a number of these cells."
    )


def test_where_the_journal_no_longer_reaches_back_nothing_is_said() -> None:
    remembered = excused.find(reports([4], [4, 5]), 5, [0, 1])
    later = reports([4, 6, 7], [4, 5, 6])
    later[0] = replace(later[0], launches=later[0].launches[2:])
    assert excused.made_elsewhere(remembered, later) == ([], None)

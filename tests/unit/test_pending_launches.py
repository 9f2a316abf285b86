"""Launches that a thread might yet make, and those that a later cell has made in their place."""

from __future__ import annotations

from dataclasses import replace

from jaxcluster import wire
from jaxcluster.model import pending_launches

LOADER = ("thread 'loader'",)
ON_MAIN_THREAD = ("task 'Task-1'", "timer of the event loop", "timer of signal")


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
    [found] = pending_launches.find(reports([4], [4, 5]), 5, [0, 1])
    assert (found.rank, found.maker, found.launch.seq, found.threads) == (0, 1, 1, LOADER)
    assert found.tell({}).startswith(
        "Rank 1 launched jit(f) at cell [5] line 2. Rank 0 ended the cell without it; its "
        "thread 'loader' may still launch it."
    )


def test_what_is_not_the_cells_or_not_skipped_for_a_thread_is_not() -> None:
    behind = reports([4], [4, 5])
    assert pending_launches.find(reports([4, 5], [4, 5]), 5, [0, 1]) == []
    assert (
        pending_launches.find(reports([4], [4, 0]), 5, [0, 1]) == []
    )  # a thread's on the other too
    assert pending_launches.find(behind, 6, [0, 1]) == []  # of an earlier cell
    assert pending_launches.find(behind, 5, [1]) == []  # it was not to run it
    assert (
        pending_launches.find(reports([4], [4, 5], ended=4), 5, [0, 1]) == []
    )  # it has yet to end it
    assert pending_launches.find(reports([4, 0], [4, 5]), 5, [0, 1]) == []  # the thread has made it
    assert pending_launches.find({0: report(0, [4]), 1: report(1, [4, 5])}, 5, [0, 1]) == []
    for name in ON_MAIN_THREAD:
        late = {0: report(0, [4], (*LOADER, name)), 1: report(1, [4, 5])}
        [found] = pending_launches.find(late, 5, [0, 1])
        assert not found.can_be_looked_for


def remember() -> list[pending_launches.PendingLaunch]:
    return pending_launches.find(reports([4], [4, 5]), 5, [0, 1])


def test_a_thread_that_makes_it_settles_it() -> None:
    remembered = remember()
    assert pending_launches.look(remembered, reports([4], [4, 5])) == ([], None)
    assert pending_launches.look(remembered, {}) == ([], None)
    assert pending_launches.look(remembered, reports([4, 0], [4, 5])) == (remembered, None)


def test_a_later_cell_that_makes_it_has_met_the_wrong_launch() -> None:
    settled, found = pending_launches.look(remember(), reports([4, 6], [4, 5, 6]))
    assert settled == []  # until the ranks are brought back: another cell may be the one to say it
    assert found is not None
    assert (found.kind, found.seq, found.culprits, found.others) == ("mismatch", 1, (0,), (1,))
    assert found.concerns(6)
    assert found.concerns(5)
    assert not found.concerns(7)
    assert not found.concerns(4)  # before it
    assert str(found) == (
        "Rank 1 launched jit(f) at cell [5] line 2 (launch 2).\n"
        "Rank 0 ended that cell without it, and its thread 'loader' has not launched it "
        "since. Instead its launch 2 came from cell [6] line 2, so from there on its launches met "
        "the wrong ones. Don't trust any number from these cells."
    )


def test_a_queued_cell_may_have_made_it_before_it_was_looked_for() -> None:
    late = reports([4, 6], [4, 5, 6], ended=6)
    [found] = pending_launches.find(late, 5, [0, 1])
    assert found.launch.seq == 1
    assert pending_launches.look([found], late)[1] is not None
    even = reports([4, 6], [4, 5], ended=6)  # and before the other one has begun that cell
    [found] = pending_launches.find(even, 5, [0, 1])
    assert (found.rank, found.maker) == (0, 1)
    assert pending_launches.look([found], even)[1] is not None


def test_a_task_on_the_main_thread_may_be_what_has_made_it_in_a_later_cell() -> None:
    for name in ON_MAIN_THREAD:
        late = {0: report(0, [4, 6], (*LOADER, name)), 1: report(1, [4, 5, 6])}
        assert pending_launches.look(remember(), late) == ([], None)


def test_where_the_journal_no_longer_reaches_back_it_stays_open_while_counts_are_uneven() -> None:
    later = reports([4, 6, 7], [4, 5, 6, 7])
    cut = {r: replace(rep, launches=rep.launches[2:]) for r, rep in later.items()}
    assert pending_launches.look(remember(), cut) == ([], None)
    even = reports([4, 6, 7], [4, 5, 6])
    cut = {r: replace(rep, launches=rep.launches[2:]) for r, rep in even.items()}
    assert pending_launches.look(remember(), cut)[0] == remember()


def test_ranks_that_count_from_zero_again_owe_nothing() -> None:
    again = reports([8, 9], [8, 9])  # brought back by another notebook
    assert pending_launches.look(remember(), again) == (remember(), None)


def test_a_launch_that_has_broken_off_since_is_still_owed() -> None:
    """It is told by another name then, as where stop ended the wait for it."""
    later = reports([4, 6], [4, 5, 6])
    made = later[1].launches
    made[1] = replace(made[1], name="jit(f), aborted by KeyboardInterrupt", fingerprint=9)
    settled, found = pending_launches.look(remember(), later)
    assert settled == []
    assert found is not None

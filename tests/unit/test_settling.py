"""What is done at a cell's end, step by step, where somebody else answers what is asked."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from settledranks import EVEN, HANG, LESS, REPORT, SEQ, SET, T0, Ranks, ended, given_up, states

from jaxcluster import wire
from jaxcluster.errors import Divergence
from jaxcluster.lockstep import actions, events
from jaxcluster.lockstep.cell import Cell
from jaxcluster.lockstep.facts import Recovered, Replayed, Why
from jaxcluster.lockstep.settling import UNEVEN_S, Settling
from jaxcluster.lockstep.states import Impossible, State
from jaxcluster.lockstep.undone import Undone
from jaxcluster.model import findings, verdict
from jaxcluster.model.outputs import CellRecord
from jaxcluster.wire.forks import RESTARTED, STOPPED


def test_a_cell_that_ended_alike_asks_nothing_of_its_ranks() -> None:
    cell, settling = ended()
    ranks = Ranks()
    ranks.carry(settling.settle())
    assert [type(one) for one in ranks.done] == [actions.KeepCounts, actions.LookAround]
    assert states(cell) == [State.RUNNING, State.ENDED, State.SETTLED]


def test_a_cell_in_which_a_rank_launched_less_is_found_brought_back_and_undone() -> None:
    cell, settling = ended((EVEN, LESS))
    ranks = Ranks()
    ranks.answers[actions.BringBack] = lambda _: Replayed("replayed", "", {1: 1}, ranks.launches)
    ranks.carry(settling.settle())
    assert cell.polls.report is not None and cell.polls.report.culprits == (1,)
    assert ranks.kinds() == [
        *["Found", "BringBack", "DropPending", "Undo"],
        *["WithdrawBehind", "OpenGates"],
    ]
    assert states(cell)[2:] == [State.RETURNING, State.SETTLED]
    assert "rank 1 ran 1 skipped program with zeros" in cell.recovered
    assert "This cell is undone. Removed y." in cell.recovered


def test_ranks_that_can_not_be_brought_back_are_given_new_processes() -> None:
    cell, settling = ended((EVEN, LESS))
    ranks = Ranks(gives_new=True)
    ranks.answers[actions.BringBack] = lambda _: Replayed("", "it can't be run with zeros")

    def recover(_: object) -> Recovered:
        ranks._set(divergence=None)
        return Recovered("New processes.", is_replaced=True)

    ranks.answers[actions.Recover] = recover
    ranks.carry(settling.settle())
    assert ranks.kinds()[2:] == ["Diverge", "Undo", "Recover"]  # no gate of the new processes
    assert states(cell)[2:] == [State.RETURNING, State.DIVERGED, State.SETTLED]
    assert cell.recovered.startswith("New processes. This cell is undone")


def test_where_new_processes_are_not_wanted_no_gate_is_opened() -> None:
    cell, settling = ended((EVEN, LESS))
    ranks = Ranks()
    ranks.answers[actions.BringBack] = lambda _: Replayed("", "it can't be run with zeros")
    ranks.carry(settling.settle())
    assert cell.course.state is State.DIVERGED
    assert ranks.kinds()[-1] == "WithdrawBehind"
    ending = ranks.carry(settling.end())
    assert ending.is_diverged and ending.undone.startswith("This cell is undone")


@pytest.mark.parametrize("why", [STOPPED, RESTARTED])
def test_ranks_that_a_person_has_ended_are_not_said_to_have_died(why: str) -> None:
    cell, settling = ended((None, None))
    for rank in (0, 1):
        cell.feed(events.Died(T0, rank, why))
    ending = Ranks().carry(settling.end())
    assert ending.death is not None and ending.death.message == f"Cell [3] was ended: {why}."


@pytest.mark.parametrize("why", [STOPPED, RESTARTED])
@pytest.mark.parametrize("report", [None, REPORT])
def test_a_cell_whose_ranks_are_ended_while_they_are_brought_back_says_so(
    why: str, report: findings.Report | None
) -> None:
    cell, settling = ended()
    cell.watch.interrupted = (1,)
    cell.polls.report = report
    ranks = Ranks()
    dead = dict.fromkeys((0, 1), wire.Death(why))
    ranks.answers[actions.BringBack] = lambda _: ranks._set(dead=dead) or Replayed(stuck="died")
    ranks.carry(settling.settle())
    assert cell.course.state is State.LEFT
    assert "Diverge" not in ranks.kinds()
    ending = ranks.carry(settling.end())
    told = f"Don't trust what this cell assigned: y (not undone: {why})."
    if report is None:
        assert ending.death.message == f"Cell [3] was ended: {why}."
        assert ending.death.done.endswith(told)
    else:
        assert ending.report is report
        assert ending.recovered == f"Meanwhile {why}. {told}"


@pytest.mark.parametrize(
    ("how", "died", "told"),
    [
        ("", None, "Cell [3] was ended: the cluster was restarted."),
        ("replayed", None, None),  # it was known to be right by then
        ("", "killed by SIGKILL", "Rank 1 died in cell [3]: killed by SIGKILL."),
    ],
)
def test_what_a_restart_ends_has_not_ended_else(how: str, died: str | None, told: str) -> None:
    cell, settling = ended(unchecked=True)
    if died:
        cell.record.records[1].died = died
    ranks = Ranks()
    dead = dict.fromkeys((0, 1), wire.Death(RESTARTED))
    counts = {0: EVEN, 1: EVEN}
    ranks.answers[actions.BringBack] = lambda _: (
        ranks._set(dead=dead) or Replayed(how, counts=counts)
    )
    ranks.carry(settling.settle())
    death = ranks.carry(settling.end()).death
    assert (death and death.message) == told


@pytest.mark.parametrize("own", [EVEN, {}], ids=["has launched", "has launched nothing"])
def test_a_cell_that_may_have_met_others_is_not_right_where_its_ranks_are_ended(own: Any) -> None:
    """Ranks were uneven before it, by a thread's launches or not: nobody can look any more."""
    _, settling = ended((EVEN, LESS), own=own, background=True)
    ranks = Ranks(dead=dict.fromkeys((0, 1), wire.Death(RESTARTED)))
    ranks.carry(settling.settle())
    death = ranks.carry(settling.end()).death
    told = "Cell [3] was ended: the cluster was restarted."
    assert (death and death.message) == (told if own else None)


def test_ranks_that_are_being_replaced_have_not_diverged() -> None:
    """They are not called dead yet."""
    cell, settling = ended(unchecked=True)
    ranks = Ranks()
    ranks.answers[actions.BringBack] = lambda _: ranks._set(is_over=True) or Replayed(stuck="gone")
    ranks.carry(settling.settle())
    assert cell.course.state is State.LEFT
    assert "Diverge" not in ranks.kinds()


def test_a_cell_that_has_ended_alike_is_right_also_where_its_ranks_are_ended_then() -> None:
    cell, settling = ended((EVEN, LESS), own={}, background=True, foreign=[SET])
    ranks = Ranks(dead=dict.fromkeys((0, 1), wire.Death(RESTARTED)))
    ranks.carry(settling.settle())
    assert cell.course.state is State.LEFT
    assert ranks.carry(settling.end()).death is None


def test_ranks_that_wait_for_each_other_are_not_replayed() -> None:
    cell, settling = ended((EVEN, EVEN))
    cell.polls.report = HANG
    ranks = Ranks()
    ranks.carry(settling.settle())
    assert "BringBack" not in ranks.kinds()
    assert cell.course.state is State.DIVERGED


def test_a_cell_whose_ranks_died_is_left_to_who_gives_them_new_processes() -> None:
    cell, settling = ended((EVEN, None))
    cell.feed(events.Died(T0, 1, "killed by SIGKILL", -9))
    ranks = Ranks(dead={1: wire.Death("killed by SIGKILL")})
    ranks.carry(settling.settle())
    assert cell.course.state is State.LEFT
    assert ranks.kinds() == ["Undo"]
    other, others_end = ended((EVEN, None))
    other.feed(events.Died(T0, 1, "killed by SIGKILL", -9))
    other.polls.report = replace(REPORT, cell_seq=SEQ - 1, cells=frozenset({SEQ - 1}))
    left = Ranks(dead={1: wire.Death("killed by SIGKILL")})
    left.carry(others_end.settle())
    assert "TakeBackOthers" not in left.kinds(), "who brings the ranks back does"
    ranks.answers[actions.Recover] = lambda _: ranks._set(dead={}) or Recovered("New processes.")
    ending = ranks.carry(settling.end())
    assert ending.death.message == "Rank 1 died in cell [3]: killed by SIGKILL."
    assert ending.death.done == "New processes. This cell is undone. Removed y."
    assert cell.course.state is State.SETTLED
    assert ranks.kinds().count("Undo") == 1


@pytest.mark.parametrize(
    ("whys", "told", "dead"),
    [
        (
            {0: RESTARTED, 1: "killed by SIGKILL"},
            "Rank 1 died in cell [3]: killed by SIGKILL.",
            [1],
        ),
        (
            {0: "killed by SIGSEGV", 1: "killed by SIGKILL"},
            "Rank 0 died in cell [3]: killed by SIGSEGV.\n"
            "Rank 1 died in cell [3]: killed by SIGKILL.",
            [0, 1],
        ),
        ({0: RESTARTED, 1: RESTARTED}, f"Cell [3] was ended: {RESTARTED}.", [0, 1]),
    ],
)
def test_each_rank_is_said_to_have_died_of_its_own_death(
    whys: dict[int, str], told: str, dead: list[int]
) -> None:
    """Another notebook, which has started the cluster, restarts it while this one is told."""
    cell = Cell(CellRecord(SEQ, 3, "y = f(x)", [0, 1]), T0 - 1)
    for rank, why in whys.items():
        cell.feed(events.Died(T0, rank, why))
    ranks = Ranks(dead={rank: wire.Death(why) for rank, why in whys.items()})
    settling = Settling(cell)
    ranks.answers[actions.Recover] = lambda _: Recovered("New processes.")
    ranks.carry(settling.settle())
    death = ranks.carry(settling.end()).death
    assert (death.message, death.ranks) == (told, dead)


@pytest.mark.parametrize("is_undone", [True, False])
def test_only_a_cell_that_new_processes_took_back_is_said_to_be_undone_by_them(
    is_undone: bool,
) -> None:
    """They may have come for a later cell: what this one has made is back with them."""
    cell, settling = ended((EVEN, None))
    cell.feed(events.Died(T0, 1, "killed by SIGKILL", -9))
    ranks = Ranks(dead={1: wire.Death("killed by SIGKILL")})
    ranks.answers[actions.Undo] = lambda _: Undone("all of its ranks have died")
    ranks.answers[actions.Recover] = lambda _: Recovered(
        "New processes.", is_undone=is_undone, kept=frozenset({"y"})
    )
    ranks.carry(settling.settle())
    done = ranks.carry(settling.end()).death.done
    assert ("This cell is undone. Restored y" in done) is is_undone
    assert ("Don't trust what this cell assigned" in done) is not is_undone


@pytest.mark.parametrize("source", ["y = f(x)", ""])
def test_a_death_in_another_notebooks_cell_is_not_said_to_be_of_one_that_waited(
    source: str,
) -> None:
    """No rank has begun it. The empty cell goes behind others, and nobody has typed it."""
    cell = Cell(CellRecord(SEQ, 3, source, [0, 1]), T0 - 1)
    cell.feed(events.Replied(T0 - 0.5, wire.CellReply(0, SEQ, "interrupted", 0.0)))
    cell.feed(events.Died(T0, 1, "killed by SIGKILL", -9))
    settling, ranks = Settling(cell), Ranks(dead={1: wire.Death("killed by SIGKILL")})
    asked: list[actions.Recover] = []
    ranks.answers[actions.Recover] = lambda it: asked.append(it) or Recovered("New processes.")
    ranks.carry(settling.settle())
    death = ranks.carry(settling.end()).death
    begun = "before another rank had begun cell [3]"
    assert death.message == f"Rank 1 died {begun}: killed by SIGKILL."
    assert death.done == f"New processes.{' This cell was not run.' if source else ''}"
    assert asked[0].when == "when ranks died"


def test_nothing_is_brought_back_on_ranks_that_were_replaced_under_the_cell() -> None:
    cell, settling = ended((EVEN, LESS))
    ranks = Ranks(is_over=True)
    ranks.answers[actions.Undo] = lambda _: Undone("none of its ranks lives")
    ranks.carry(settling.settle())
    assert cell.course.state is State.LEFT
    assert ranks.kinds() == ["Found", "Undo"]


def test_what_threads_made_uneven_is_looked_at_until_it_is_even() -> None:
    cell, settling = ended((EVEN, LESS), own={}, background=True, foreign=[SET])
    ranks = Ranks()
    ranks.launches = {0: EVEN, 1: LESS}
    ranks.answers[actions.Rest] = lambda _: ranks.launches.update({1: EVEN})
    ranks.carry(settling.settle())
    assert ranks.kinds() == ["Rest"]
    assert cell.course.story[-1][1:] == (State.SETTLED, "its ranks have launched the same by now")


def test_what_stays_uneven_without_a_word_is_brought_back() -> None:
    _, settling = ended((EVEN, LESS), own={}, background=True, foreign=[SET])
    ranks = Ranks()
    ranks.launches = {0: EVEN, 1: LESS}
    ranks.carry(settling.settle())
    assert ranks.facts.now > T0 + UNEVEN_S
    assert "BringBack" in ranks.kinds()


def test_it_is_waited_for_a_rank_that_runs_a_later_cell_however_long() -> None:
    cell, settling = ended((EVEN, LESS), own={}, background=True, foreign=[SET])
    ranks = Ranks()
    ranks.launches, ranks.busy = {0: EVEN, 1: LESS}, {1}

    def rest(_: object) -> None:
        ranks._set(now=ranks.facts.now + 1)
        if ranks.facts.now > T0 + 3 * UNEVEN_S:
            ranks.launches, ranks.busy = {0: EVEN, 1: EVEN}, set()

    ranks.answers[actions.Rest] = rest
    ranks.carry(settling.settle())
    assert cell.course.story[-1][1:] == (State.SETTLED, "its ranks have launched the same by now")


def test_a_cell_that_was_stopped_at_its_very_end_is_compared_all_the_same() -> None:
    cell = Cell(CellRecord(SEQ, 3, "y = f(x)", [0, 1]), T0 - 1)
    cell.feed(events.Stopped(T0 - 0.6))
    for rank, counts in enumerate((EVEN, LESS)):
        reply = wire.CellReply(rank, SEQ, "ok", 0.1, launches=counts, own=counts)
        cell.feed(events.Replied(T0 - 0.5, reply))
    Ranks().carry(Settling(cell).settle())
    assert cell.polls.report is not None and cell.polls.report.kind == "missing"


def test_what_waits_for_ranks_that_have_not_left_does_not_begin() -> None:
    cell, ranks = given_up(), Ranks()
    ranks.answers[actions.AskSilent] = lambda _: {}
    ranks.answers[actions.BringBack] = lambda _: Replayed(is_under_way=True)
    ranks.carry(Settling(cell).settle())
    assert cell.course.state is State.LEFT
    assert "OpenGates" not in ranks.kinds()


def test_ranks_that_took_part_in_the_check_are_not_called_hung() -> None:
    cell, ranks = given_up(), Ranks()
    ranks.answers[actions.AskSilent] = lambda _: {}
    ranks.answers[actions.BringBack] = lambda _: Replayed("completed")
    ranks.carry(Settling(cell).settle())
    assert cell.silent == ()
    assert cell.recovered.startswith("All of them have completed")


def test_what_has_completed_is_settled_also_where_a_thread_was_to_launch_more_before() -> None:
    cell, ranks = given_up(), Ranks()
    ranks.answers[actions.AskSilent] = lambda _: {}
    ranks.answers[actions.BringBack] = lambda _: Replayed("completed", is_under_way=True)
    ranks.carry(Settling(cell).settle())
    assert cell.course.state is State.SETTLED


def test_a_cell_that_never_began_lets_others_begin_also_those_of_other_notebooks() -> None:
    cell, settling = ended((LESS, LESS), "interrupted")
    for reply in cell.record.replies.values():
        object.__setattr__(reply, "seconds", 0.0)
    ranks = Ranks()
    ranks.carry(settling.settle())
    assert ranks.kinds() == ["OpenGates"]
    assert cell.course.state is State.LEFT
    cell.withdrawn = "cell [2], which it waited for, did not complete"
    again = Ranks()
    cell.course.story = cell.course.story[:2]
    again.carry(Settling(cell).settle())
    assert again.kinds() == ["OpenGates"]


LEFT_OUT = findings.Report("missing", "0,1,2", 0, (2,), (0, 1), ("Rank 2 skipped it.",), SEQ)


@pytest.mark.parametrize("stopped", [False, True])
def test_a_cell_that_never_began_brings_back_what_an_earlier_one_has_left(stopped: bool) -> None:
    cell, settling = ended((LESS, LESS), "interrupted")
    for reply in cell.record.replies.values():
        object.__setattr__(reply, "seconds", 0.0)
    lines = ("Rank 1 skipped it.",)
    cell.polls.report = findings.Report("missing", "0,1", 0, (1,), (0,), lines, SEQ - 1)
    ranks = Ranks(stopped=frozenset({SEQ - 1}) if stopped else frozenset())
    ranks.carry(settling.settle())
    assert "BringBack" in ranks.kinds()
    ending = ranks.carry(settling.end())
    assert "undone" not in ending.recovered + ending.undone
    assert bool(ending.withdrawn) is stopped


def test_what_its_notebook_leaves_as_it_is_is_taken_back_by_who_brings_the_ranks_back() -> None:
    """Where the other notebook is gone, nobody else names what that cell made of zeros."""
    left = replace(REPORT, cell_seq=SEQ - 1, cells=frozenset({SEQ - 2, SEQ - 1}))
    for facts, undone in (({}, [SEQ - 1, SEQ - 2]), ({"own": frozenset({SEQ - 1})}, [SEQ - 2])):
        cell, settling = ended((LESS, LESS), "interrupted")
        for reply in cell.record.replies.values():
            object.__setattr__(reply, "seconds", 0.0)
        cell.polls.report = left
        ranks = Ranks(**facts)
        ranks.carry(settling.settle())
        ending = ranks.carry(settling.end())
        (asked,) = [it for it in ranks.done if isinstance(it, actions.TakeBackOthers)]
        assert sorted(asked.cells, reverse=True) == undone
        told = " ".join(f"{seq} is undone." for seq in undone)
        assert ending.recovered.endswith(f"This cell was not run. {told}")
        assert actions.OpenGates(frozenset({SEQ, *undone})) in ranks.done  # what waits for them


@pytest.mark.parametrize("how", ["replayed", "completed", ""])
def test_cells_that_its_own_finding_is_about_are_taken_back_where_none_can_judge_them_later(
    how: str,
) -> None:
    cell = given_up()
    mine, theirs = SEQ - 1, SEQ - 2
    settling = Settling(cell)
    stopped = SEQ - 3  # of this notebook: its own stop says what became of it
    cell.polls.report = replace(REPORT, cells=frozenset({0, SEQ, mine, theirs, stopped}))
    ranks = Ranks(own=frozenset({mine}), stopped=frozenset({stopped}))
    ranks.answers[actions.BringBack] = lambda _: Replayed(how, "" if how else "they hang")
    ranks.carry(settling.settle())
    asked = [[*it.cells] for it in ranks.done if isinstance(it, actions.TakeBackOthers)]
    assert asked == ([] if how == "replayed" else [[theirs]])
    if asked:
        ending = ranks.carry(settling.end())
        assert f"{theirs} is undone." in ending.recovered + ending.undone


def test_a_replay_that_has_met_a_cell_is_found_though_a_stop_came_when_all_had_ended_it() -> None:
    """The rank that has made it with zeros did not run the cell, so its end does not tell."""
    cell = Cell(CellRecord(SEQ, 3, "y = f(x)", [0]), T0 - 1)
    cell.feed(events.Stopped(T0 - 0.8))
    cell.feed(events.Replied(T0 - 0.5, wire.CellReply(0, SEQ, "ok", 0.1, launches=EVEN, own=EVEN)))
    ranks, settling = Ranks(), Settling(cell)
    ranks.launches = {0: EVEN, 1: LESS}

    def bring_back(_: object) -> Replayed:
        ranks.met = {0: SEQ, 1: wire.OURS}
        return Replayed("replayed", counts={0: EVEN, 1: EVEN})

    ranks.answers[actions.BringBack] = bring_back
    ranks.carry(settling.settle())
    assert cell.polls.report is not None and cell.polls.report.culprits == (1,)
    error = verdict.verdict(ranks.carry(settling.end()))
    assert "This cell is undone. Removed y." in str(error)


@pytest.mark.parametrize("whose", [wire.OURS, SEQ])
def test_a_stopped_cell_that_another_notebooks_replay_has_met_is_undone(whose: int) -> None:
    """By then all ranks have launched as often, and nothing is left to bring back."""
    cell = Cell(CellRecord(SEQ, 3, "y = f(x)", [0, 1]), T0 - 1)
    cell.feed(events.Stopped(T0 - 0.8))
    for rank in (0, 1):
        reply = wire.CellReply(rank, SEQ, "interrupted", 0.1, launches=EVEN)
        cell.feed(events.Replied(T0 - 0.5, reply))
    ranks = Ranks()
    ranks.met = {0: SEQ, 1: whose}
    ranks.carry(Settling(cell).settle())
    if whose == SEQ:
        assert not cell.recovered and cell.undone is None
    else:
        assert cell.recovered.startswith("Other ranks have met its launches with zeros")
        assert cell.recovered.endswith("This cell is undone. Removed y.")


def test_where_it_went_wrong_a_dead_rank_that_did_not_run_it_is_replaced() -> None:
    """Else nobody does it before this notebook's next cell, and others' cells wait behind it."""
    for report, done in ((None, 0), (LEFT_OUT, 1)):
        cell, settling = ended()
        cell.polls.report = report
        ranks = Ranks(dead={2: wire.Death("killed by SIGKILL")}, gives_new=True, can_give_new=True)
        ranks.carry(settling.settle())
        assert ranks.kinds().count("Recover") == done


@pytest.mark.parametrize("new", [True, False], ids=["new processes", "by hand"])
@pytest.mark.parametrize(("rank", "where"), [(0, " after the end of cell [3] there"), (2, "")])
def test_a_skip_and_the_death_of_a_rank_that_was_not_in_the_cell_are_told_together(
    rank: int, where: str, new: bool
) -> None:
    """A rank waits for the one that skips: it is not to blame, and gone with the restart."""
    cell, settling = ended((EVEN, None))
    cell.polls.report, cell.silent = replace(REPORT, others=(1,)), (1,)
    dead = {rank: wire.Death("killed by SIGKILL")}
    ranks = Ranks((0, 1, 2), dead=dead, gives_new=new, can_give_new=new)
    ranks.answers[actions.Recover] = lambda _: ranks._set(dead={}) or Recovered("New processes.")
    ranks.carry(settling.settle())
    error = verdict.verdict(ranks.carry(settling.end()))
    assert isinstance(error, Divergence)
    assert str(error).splitlines() == [
        "Rank 1 left it out.",
        f"Rank {rank} died{where}: killed by SIGKILL.",
        "New processes. This cell is undone. Removed y.",
    ]
    assert ranks.kinds().count("Recover") == 1


@pytest.mark.parametrize("elsewhere", [False, True])
def test_ranks_still_in_a_stopped_cell_are_not_left_to_one_that_waits_for_its_end(
    elsewhere: bool,
) -> None:
    cell, ranks = given_up(), Ranks(gives_new=True, can_give_new=True)
    ranks.answers[actions.BringBack] = lambda _: Replayed(stuck="a program has not ended")
    later = wire.RankState(1, 9, "here", "running", seq=SEQ + 1)
    queues = wire.RankState(1, 9, "here", "idle", seq=SEQ, ended=SEQ, queued=1)
    ranks.answers[actions.AskStates] = lambda _: [
        wire.RankState(0, 9, "here", "running", seq=SEQ, queued=1),
        later if elsewhere else queues,
    ]
    ranks.carry(Settling(cell).settle())
    assert ("Recover" in ranks.kinds()) is not elsewhere
    assert (cell.course.state is State.LEFT) is elsewhere


def test_ranks_that_will_never_answer_are_ended_where_new_ones_are_wanted() -> None:
    cell = given_up()
    ranks = Ranks(gives_new=True, can_give_new=True)
    ranks.answers[actions.AskSilent] = lambda _: {1: Why("is stopped", is_hung=True)}
    ranks.answers[actions.EndRank] = lambda it: ranks._set(dead={it.rank: wire.Death(it.why)})
    ranks.carry(Settling(cell).settle())
    assert actions.EndRank(1, "ended by jaxcluster: it is stopped") in ranks.done
    assert cell.killed == {1: "is stopped"}
    assert cell.course.state is State.LEFT


def test_ranks_are_not_ended_where_nobody_wants_to_wait_for_them() -> None:
    cell, ranks = given_up(), Ranks(gives_new=True, can_give_new=True)
    cell.left_early = True
    ranks.answers[actions.AskSilent] = lambda _: {1: Why("is stopped", is_hung=True)}
    ranks.carry(Settling(cell).settle())
    assert "EndRank" not in ranks.kinds()


def test_nothing_is_settled_with_ranks_that_hang_for_good() -> None:
    cell, ranks = given_up(), Ranks()
    ranks.answers[actions.AskSilent] = lambda _: {1: Why("is stopped", is_hung=True)}
    settling = Settling(cell)
    ranks.carry(settling.settle())
    assert ranks.kinds() == ["AskSilent"]
    ending = ranks.carry(settling.end())
    assert ending.silent == (0, 1)
    assert ending.unanswered[0] == "Ranks 0, 1 are not responding."


def test_stop_while_ranks_are_brought_back_lets_no_cell_run() -> None:
    cell, settling = ended((EVEN, LESS))
    ranks = Ranks()
    with pytest.raises(KeyboardInterrupt):
        ranks.carry(settling.settle(), until=actions.BringBack)
    assert cell.course.state is State.RETURNING
    ranks.carry(settling.leave_unsettled())
    assert cell.course.state is State.DIVERGED
    assert ranks.facts.divergence is cell.polls.report
    assert ranks.kinds()[-2:] == ["Diverge", "WithdrawBehind"]


def test_stop_before_ranks_are_checked_lets_no_cell_run_though_they_seem_even() -> None:
    cell, settling = ended(unchecked=True)
    ranks = Ranks()
    with pytest.raises(KeyboardInterrupt):
        ranks.carry(settling.settle(), until=actions.BringBack)
    ranks.carry(settling.leave_unsettled())
    assert cell.course.state is State.DIVERGED


def test_stop_while_ranks_are_in_lockstep_changes_nothing() -> None:
    cell, settling = ended(unchecked=True)
    ranks = Ranks()
    with pytest.raises(KeyboardInterrupt):
        ranks.carry(settling.settle(), until=actions.Ask)
    ranks.carry(settling.leave_unsettled())
    assert cell.course.state is State.LEFT
    assert "Diverge" not in ranks.kinds()


def test_stop_beside_what_threads_made_uneven_keeps_no_later_cell_from_running() -> None:
    """The cell has ended alike: its own launches are right, and a later cell looks again."""
    cell, settling = ended((EVEN, LESS), own={}, background=True, foreign=[SET])
    ranks = Ranks()
    ranks.launches = {0: EVEN, 1: LESS}
    with pytest.raises(KeyboardInterrupt):
        ranks.carry(settling.settle(), until=actions.Ask)
    ranks.carry(settling.leave_unsettled())
    assert cell.course.state is State.LEFT
    assert "Diverge" not in ranks.kinds()


def test_the_failure_of_a_script_names_ranks_that_had_ended_before() -> None:
    """Their process says nothing, and what fails on the others is often a lost connection."""
    cell, settling = ended((EVEN, None), "error")
    cell.left = [1]
    ending = Ranks().carry(settling.end())
    assert [line.partition(":")[0] for line in ending.unanswered] == ["Rank 1"]


def test_a_certain_finding_can_not_be_settled_by_a_cells_mere_end() -> None:
    cell, settling = ended()
    cell.polls.report = REPORT
    with pytest.raises(Impossible, match="despite this finding: Rank 1 left it out"):
        settling._become(State.SETTLED, "so it seems")


def test_no_gate_is_opened_before_the_ranks_are_settled() -> None:
    _, settling = ended()
    with pytest.raises(Impossible, match="can't begin"):
        Ranks().carry(settling._open_gates())


def test_a_stopped_cell_says_which_of_its_launches_no_other_rank_has_made() -> None:
    cell = Cell(CellRecord(SEQ, 3, "y = f(x)", [0, 1]), T0 - 1)
    cell.feed(events.Stopped(T0 - 0.6))
    for rank, counts in enumerate((EVEN, LESS)):
        cell.feed(
            events.Replied(T0 - 0.5, wire.CellReply(rank, SEQ, "interrupted", 0.1, None, counts))
        )
    ranks = Ranks()
    ranks.busy, ranks.launches, ranks.met = {1}, {0: EVEN, 1: LESS}, {0: SEQ, 1: SEQ}
    ranks.answers[actions.BringBack] = lambda _: Replayed("", "rank 1 runs another cell")
    ranks.carry(Settling(cell).settle())
    assert cell.course.state is State.LEFT
    (told,) = [it.text for it in ranks.done if isinstance(it, actions.Notice)]
    assert "on ranks 0, 1, none yet on rank 1." in told


def test_cells_before_it_that_a_finding_is_about_are_named_as_well() -> None:
    """They have ended without a word: a thread lived that might have made what ranks lacked."""
    cell, settling = ended((EVEN, LESS))
    cell.polls.report = replace(REPORT, cells=frozenset({SEQ - 1, SEQ, SEQ + 1}))
    made = wire.Launch(0, SET, "f", 1, 4, 2, cell_seq=SEQ - 1)
    state = wire.RankState(0, 9, "here", "idle", launches=EVEN)
    cell.polls.evidence = {0: wire.RankReport(state, [], [made])}
    ranks = Ranks()
    ranks.answers[actions.BringBack] = lambda _: Replayed("replayed", "", {1: 1})
    ranks.carry(settling.settle())
    assert cell.recovered.endswith("Don't trust what cell [4] assigned.")


def test_only_a_cell_that_went_wrong_itself_waits_for_ranks_in_other_cells() -> None:
    """Those in the cell that has gone wrong may never leave it; nor do those in a circle."""
    for report, waits in (
        (REPORT, True),
        (replace(REPORT, cell_seq=SEQ - 1, cells=frozenset({SEQ - 1})), False),
        (replace(REPORT, kind="circle"), False),
    ):
        cell, settling = ended((EVEN, LESS))
        cell.polls.report = report
        ranks = Ranks()
        ranks.carry(settling.settle())
        (asked,) = (one for one in ranks.done if isinstance(one, actions.BringBack))
        assert asked.is_patient == waits


def test_a_cell_that_nobody_brings_back_is_brought_back_by_the_next() -> None:
    earlier = SEQ - 1
    for own, state in ((frozenset({earlier}), State.LEFT), (frozenset(), State.SETTLED)):
        cell, settling = ended((EVEN, LESS))
        cell.polls.report = replace(REPORT, cell_seq=earlier, cells=frozenset({earlier}))
        ranks = Ranks(gives_new=True, own=own)
        inside = wire.RankState(0, 9, "here", "running", seq=earlier)
        ranks.answers[actions.AskStates] = lambda _, inside=inside: [inside]
        ranks.answers[actions.BringBack] = lambda _: Replayed("", "they are stuck")

        def recover(_: object, of: Ranks = ranks) -> Recovered:
            of._set(divergence=None)
            return Recovered("New processes.", is_replaced=True)

        ranks.answers[actions.Recover] = recover
        ranks.carry(settling.settle())
        assert cell.course.state is state


def test_a_cell_that_went_on_after_a_stop_says_why_its_ranks_are_new() -> None:
    cell, settling = ended()
    cell.ran = 1
    ranks = Ranks(gives_new=True)
    ranks.answers[actions.BringBack] = lambda _: Replayed("", "a sum did not end", {1: 1})
    ranks.carry(settling.settle())
    assert cell.polls.report is not None
    assert "a sum did not end" in str(cell.polls.report)


@pytest.mark.parametrize("comes", ["never", "too late"])
def test_ranks_that_have_not_connected_get_new_processes_though_a_thread_lives(comes: str) -> None:
    """One that waited for others in vain keeps its error for all programs of these devices."""
    error = wire.ErrorInfo("JaxRuntimeError", "no", [], 1, unconnected=True)
    cell, settling = ended((EVEN, None), "error", error=error, unchecked=True)
    cell.feed(events.Replied(T0 - 0.4, wire.CellReply(1, SEQ, "ok", 0.1, background=True)))
    ranks = Ranks(gives_new=True, can_give_new=True)
    ranks.launches = {0: EVEN, 1: LESS if comes == "never" else EVEN}
    entry = wire.Launch(0, SET, "jit(f), aborted", 5, 3, 1, cell_seq=SEQ)
    look = ranks._look

    def looked(ask: actions.Ask) -> events.Looked:
        seen = look(ask)
        state = replace(seen.reports[1].state, background=["thread 'loader'"])
        told = {0: [entry], 1: [] if comes == "never" else [entry]}
        states = {0: seen.reports[0].state, 1: state}
        return replace(seen, reports={r: wire.RankReport(states[r], [], told[r]) for r in states})

    ranks.answers[actions.Ask] = looked
    ranks.carry(settling.settle())
    assert cell.polls.report is not None and cell.polls.report.culprits == (1,)
    assert cell.polls.report.title == "Ranks not connected in 30 s"
    assert "Recover" in ranks.kinds() and "BringBack" not in ranks.kinds()

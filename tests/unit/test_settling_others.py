"""What is found, at a cell's end, of threads and of other cells beside it."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
from settledranks import EVEN, LESS, REPORT, SEQ, SET, T0, Ranks, ended

from jaxcluster import wire
from jaxcluster.lockstep import actions, events
from jaxcluster.lockstep.cell import Cell
from jaxcluster.lockstep.facts import Replayed
from jaxcluster.lockstep.settling import Settling
from jaxcluster.lockstep.states import State
from jaxcluster.model import notices
from jaxcluster.model.outputs import CellRecord


def test_what_threads_have_made_of_launches_that_went_wrong_is_warned_of() -> None:
    for cells, warns in ((frozenset({SEQ}), False), (frozenset({0, SEQ}), True)):
        cell, settling = ended((EVEN, LESS))
        cell.polls.report = replace(REPORT, cells=cells)
        ranks = Ranks()
        ranks.answers[actions.BringBack] = lambda _, of=ranks: Replayed("replayed", "", {1: 1})
        ranks.carry(settling.settle())
        assert ("Don't trust what threads" in cell.recovered) == warns
    cell, settling = ended((EVEN, LESS))
    cell.polls.report = replace(REPORT, cells=frozenset({0, SEQ}))
    met = wire.Launch(0, SET, "f", 1, 4, 2, cell_seq=SEQ)
    states = [wire.RankState(r, 9, "here", "idle", launches=[EVEN, LESS][r]) for r in (0, 1)]
    made = [[met], [replace(met, cell_seq=0)]]
    cell.polls.evidence = {r: wire.RankReport(states[r], [], made[r]) for r in (0, 1)}
    ranks = Ranks()
    ranks.answers[actions.BringBack] = lambda _: Replayed("replayed", "", {1: 1})
    ranks.carry(settling.settle())
    assert "Don't trust what cell [4] assigned then. Don't trust what threads" in cell.recovered


@pytest.mark.parametrize(
    ("whose", "is_new", "told"),
    [
        (0, True, " Don't trust what threads, tasks, timers and %%px cells have assigned since."),
        (SEQ - 1, True, " Don't trust what cell [5] assigned."),
        (SEQ - 1, False, ""),  # as was said then
        (SEQ, True, ""),  # its own: it is undone
    ],
)
def test_what_a_replay_has_met_of_others_is_warned_of(whose: int, is_new: bool, told: str) -> None:
    """They had launched it in an earlier cell, as a stop had kept a rank from doing."""
    cell, settling = ended((EVEN, LESS))
    ranks = Ranks()

    def look(ask: actions.Ask) -> events.Looked:
        found = Ranks._look(ranks, ask)
        has_met = is_replayed or not is_new
        made = {0: whose, 1: wire.OURS} if has_met else {}
        for rank, seq in made.items():
            found.reports[rank].launches.append(wire.Launch(9, SET, "g", 2, cell=5, cell_seq=seq))
        return found

    def replay(_: object) -> Replayed:
        nonlocal is_replayed
        is_replayed = True
        return Replayed("replayed", "", {1: 1}, ranks.launches)

    is_replayed = False
    ranks.answers[actions.Ask], ranks.answers[actions.BringBack] = look, replay
    ranks.carry(settling.settle())
    assert cell.recovered.endswith(f"This cell is undone. Removed y.{told}")


def test_a_launch_too_many_that_met_threads_is_told_where_they_may_yet_launch() -> None:
    cell, settling = ended((EVEN, LESS), own={}, background=True, foreign=[SET])
    ranks = Ranks()
    ranks.launches, ranks.met = {0: {SET: [2, 9]}, 1: EVEN}, {0: SEQ, 1: 0}
    look = ranks._look

    def looked(ask: actions.Ask) -> events.Looked:
        seen = look(ask)
        lives = replace(seen.reports[1].state, background=["thread 'loader'"])
        reports = {**seen.reports, 1: replace(seen.reports[1], state=lives)}
        return replace(seen, reports=reports)

    ranks.answers[actions.Ask] = looked
    ranks.carry(settling.settle())
    (told,) = [it.text for it in ranks.done if isinstance(it, actions.Notice)]
    assert isinstance(told, notices.Warned) and "and one of a thread" in told
    assert cell.course.state is State.SETTLED


TRIO = "0,1,2"
F = wire.Launch(0, TRIO, "jit(f)", 5, 3, 1, cell_seq=SEQ)
G = replace(F, name="jit(g)", fingerprint=6)


def beside_a_thread(
    third: wire.Launch, own: bool = True, answers_after: int = 0, status: str = "ok"
) -> tuple[Cell, Ranks]:
    """Rank 0 has launched f and rank 1 nothing, whose thread lives; rank 2 may be late to say what.

    ``own``: it was the cell that launched these.
    """
    cell = Cell(CellRecord(SEQ, 3, "y = f(x)", [0, 1, 2]), T0 - 1)
    if status == "interrupted":
        cell.feed(events.Stopped(T0 - 0.7))
    made = {0: [F], 1: [], 2: [third]}
    counts = {
        r: {TRIO: [1, e.fingerprint]} if (e := next(iter(made[r]), None)) else {} for r in made
    }
    for rank in made:
        more = {"background": rank == 1, "foreign": [] if own else [TRIO]}
        reply = wire.CellReply(rank, SEQ, status, 0.1, launches=counts[rank], **more)
        cell.feed(events.Replied(T0 - 0.5, replace(reply, own=counts[rank] if own else {})))
    ranks, looks = Ranks(ranks=(0, 1, 2)), itertools.count()

    def look(ask: actions.Ask) -> events.Looked:
        probes = next(looks)
        reports = {}
        for rank in (0, 1, 2) if probes >= answers_after else (0, 1):
            lives = ["thread 'loader'"] if rank == 1 else []
            state = wire.RankState(
                rank, 9, "here", "idle", seq=SEQ, ended=SEQ, taken=SEQ, launches=counts[rank],
                probes=probes, background=lives,
            )  # fmt: skip
            told = made[rank] if own else [replace(e, cell_seq=0) for e in made[rank]]
            reports[rank] = wire.RankReport(state, [], told)
        facts = ranks._now()
        return events.Looked(facts.now, ask, reports, facts)

    ranks.answers[actions.Ask] = look
    ranks.carry(Settling(cell).settle())
    return cell, ranks


@pytest.mark.parametrize("answers_after", [0, 5])
def test_no_thread_excuses_a_cell_whose_other_ranks_launched_different_programs(
    answers_after: int,
) -> None:
    """Also where it might have shown which of them most ranks launch; nor before all have said."""
    cell, ranks = beside_a_thread(G, answers_after=answers_after)
    assert cell.polls.report is not None and cell.polls.report.kind == "mismatch"
    assert "Undo" in ranks.kinds()


def test_different_programs_are_found_of_a_stopped_cell_though_a_rank_has_launched_neither() -> (
    None
):
    cell, _ = beside_a_thread(G, status="interrupted")
    assert cell.polls.report is not None and cell.polls.report.kind == "mismatch"


def test_what_a_thread_may_yet_launch_as_the_others_did_is_no_finding() -> None:
    cell, ranks = beside_a_thread(F)
    assert cell.course.state is State.SETTLED
    assert ranks.kinds() == ["Rest", "AddPending", "Notice", "OpenGates"]


def test_what_threads_may_yet_launch_waits_for_no_late_rank_where_the_cell_ended_alike() -> None:
    cell, ranks = beside_a_thread(G, own=False, answers_after=1000)
    assert cell.course.state is State.SETTLED
    assert "BringBack" not in ranks.kinds()


def test_a_launch_too_many_that_met_threads_is_told_though_these_made_the_ranks_even() -> None:
    cell = Cell(CellRecord(SEQ, 3, "y = f(x)", [0, 1]), T0 - 1)
    for rank, own in enumerate((EVEN, {})):
        reply = wire.CellReply(rank, SEQ, "ok", 0.1, launches=EVEN, own=own, foreign=[SET])
        cell.feed(events.Replied(T0 - 0.5, reply))
    ranks = Ranks()
    ranks.met = {0: SEQ, 1: 0}
    ranks.carry(Settling(cell).settle())
    (told,) = [it.text for it in ranks.done if isinstance(it, actions.Notice)]
    assert isinstance(told, notices.Warned) and "and one of a thread" in told
    assert cell.course.state is State.SETTLED

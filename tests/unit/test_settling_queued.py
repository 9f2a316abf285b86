"""What is said of cells that were queued behind one in which ranks have died, in one notebook."""

from __future__ import annotations

from dataclasses import replace

import pytest
from settledranks import EVEN, LESS, SEQ, SET, T0, Ranks, ended

from jaxcluster import wire
from jaxcluster.lockstep import actions, events
from jaxcluster.lockstep.cell import Cell
from jaxcluster.lockstep.facts import Recovered, Replayed
from jaxcluster.lockstep.settling import Settling
from jaxcluster.lockstep.undone import Undone
from jaxcluster.model import findings, verdict
from jaxcluster.model.outputs import CellRecord
from jaxcluster.wire.forks import RESTARTED

KILLED = "killed by SIGKILL"


def before(ranks: list[int], ended_on: list[int], replaced: bool = False) -> CellRecord:
    """A cell that has ended on these of its ranks, and whose others have died in it."""
    made = CellRecord(SEQ - 1, 2, "f(x)", ranks, replaced=replaced)
    for rank in ranks:
        if rank in ended_on:
            made.add_reply(wire.CellReply(rank, SEQ - 1, "interrupted", 1.0))
        else:
            made.records[rank].died = KILLED
    return made


def queued(behind: CellRecord, whys: dict[int, str]) -> verdict.Death:
    """How a cell of ranks 0 and 1 ends behind that one, whose ranks have ended so."""
    cell = Cell(CellRecord(SEQ, 3, "y = f(x)", [0, 1], earlier=[behind]), T0 - 1)
    for rank, why in whys.items():
        cell.feed(events.Died(T0, rank, why))
    ranks = Ranks(dead={rank: wire.Death(why) for rank, why in whys.items()}, is_over=True)
    ranks.answers[actions.Undo] = lambda _: Undone("all of its ranks have died")
    ranks.answers[actions.Recover] = lambda _: Recovered(
        "New processes.", is_replaced=True, is_undone=True, kept=frozenset({"y"})
    )
    settling = Settling(cell)
    ranks.carry(settling.settle())
    return ranks.carry(settling.end()).death


@pytest.mark.parametrize(
    ("behind", "whys", "told"),
    [
        (
            before([0, 1], [0]),
            {0: RESTARTED, 1: KILLED},
            f"Rank 1 died before it had begun cell [3]: {KILLED}.",
        ),
        (
            before([0, 1], []),
            {0: RESTARTED, 1: RESTARTED},
            "The cluster was restarted before cell [3] had begun.",
        ),
        (
            before([0, 1], [0, 1], replaced=True),
            {0: RESTARTED, 1: RESTARTED},
            "The cluster was restarted before cell [3] had begun.",
        ),
    ],
    ids=["a rank died", "all were ended", "its ranks were replaced"],
)
def test_what_waits_behind_a_cell_that_did_not_end_was_not_run(
    behind: CellRecord, whys: dict[int, str], told: str
) -> None:
    death = queued(behind, whys)
    assert death.message == told
    assert death.done == "New processes. This cell was not run."


def test_ranks_that_did_not_wait_may_have_begun_a_cell() -> None:
    """The cell before was not one of rank 1: that has begun the next one. It did not die."""
    death = queued(before([0], []), {0: KILLED, 1: RESTARTED})
    assert death.message == f"Rank 0 died before it had begun cell [3]: {KILLED}."
    assert death.done == "New processes. This cell is undone. Restored y."


def test_ranks_that_a_restart_has_ended_did_not_die() -> None:
    cell, settling = ended((EVEN, None))
    cell.feed(events.Died(T0, 1, RESTARTED))
    ranks = Ranks(dead=dict.fromkeys((0, 1), wire.Death(RESTARTED)))
    ranks.answers[actions.Undo] = lambda _: Undone("all of its ranks have died")
    ranks.carry(settling.settle())
    done = ranks.carry(settling.end()).death.done
    assert done.endswith(f"assigned: y (not undone: {RESTARTED}).")


def test_what_is_queued_waits_for_cells_of_its_ranks_alone() -> None:
    """Only where the cell runs on all ranks of the one before does it wait for its end on all."""

    def kept_from(behind: CellRecord, ranks: list[int]) -> set[int]:
        return CellRecord(SEQ, 3, "", ranks, earlier=[behind]).kept_from

    assert kept_from(before([0, 1], [0]), [0, 1, 2]) == {0, 1}
    assert kept_from(before([0, 1], [0]), [0, 2]) == set()
    assert kept_from(before([0, 1], [0]), [1, 2]) == {1}
    assert kept_from(before([0, 1], [0, 1]), [0, 1]) == set()
    it = CellRecord(SEQ, 3, "", [0, 1], earlier=[before([0, 1], [0])])
    it.end(None)
    assert (it.kept_from, it.earlier) == ({0, 1}, ()), "no cell keeps all those before it"


def test_a_cell_of_this_notebook_is_not_said_to_be_anothers_once_it_has_ended() -> None:
    """It says itself what has become of it."""
    cell, settling = ended((EVEN, LESS))
    both = frozenset({SEQ, SEQ + 1})
    cell.polls.report = findings.Report(
        "mismatch", SET, 0, (1,), (0,), ("Different programs.",), SEQ, both
    )
    ranks = Ranks(gives_new=True, own=both)
    ranks.answers[actions.BringBack] = lambda _: Replayed("", "they launched different programs")

    def recover(_: object) -> Recovered:
        ranks._set(divergence=None, own=frozenset())
        return Recovered("New processes.", is_replaced=True)

    ranks.answers[actions.Recover] = recover
    ranks.carry(settling.settle())
    assert "TakeBackOthers" not in ranks.kinds()
    assert cell.recovered == "New processes. This cell is undone. Removed y."


def test_a_cell_that_began_where_it_had_not_to_wait_was_run_there() -> None:
    cell, settling = ended((None, EVEN), "interrupted")
    cell.feed(events.Replied(T0, wire.CellReply(0, SEQ, "interrupted", 0.0)))
    cell.withdrawn = "cell [2], which it waited for, did not complete"
    ranks = Ranks()
    ranks.carry(settling.settle())
    ending = ranks.carry(settling.end())
    told = "Cell [3] was ended on rank 1, and not run on rank 0: cell [2], which it waited for, "
    assert str(verdict.verdict(ending)).startswith(told)
    alone = verdict.verdict(replace(ending, begun=[]))
    assert str(alone).startswith("Cell [3] was not run: cell [2], which it waited for, ")

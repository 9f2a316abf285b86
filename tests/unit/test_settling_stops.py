"""What is said at the end of a cell that was stopped, of what it has left of different steps."""

from __future__ import annotations

from typing import Any

import pytest
from settledranks import EVEN, SEQ, SET, T0, Ranks

from jaxcluster import wire
from jaxcluster.lockstep import actions, events
from jaxcluster.lockstep.cell import Cell
from jaxcluster.lockstep.facts import Recovered, Replayed
from jaxcluster.lockstep.settling import Settling
from jaxcluster.lockstep.undone import Undone
from jaxcluster.model.outputs import CellRecord

ALIKE: dict[str, Any] = {"own": EVEN, "stopped_at": "3:1:20"}


def out_of_time(first: dict[str, Any], second: dict[str, Any]) -> tuple[Cell, Settling]:
    """A cell whose time was up; of its ranks, what their replies say."""
    cell = Cell(CellRecord(SEQ, 3, "y = f(x)", [0, 1]), T0 - 1, timeout_s=0.1)
    cell.feed(events.Tick(T0 - 0.7))
    for rank, more in enumerate((first, second)):
        reply = wire.CellReply(rank, SEQ, "interrupted", 0.1, launches=EVEN, **more)
        cell.feed(events.Replied(T0 - 0.5, reply))
    return cell, Settling(cell)


def stays_but(ranks: Ranks) -> frozenset[str] | None:
    (undo,) = [one for one in ranks.done if isinstance(one, actions.Undo)]
    return undo.stays_but


def test_what_ranks_have_done_alike_as_their_time_was_up_may_stay() -> None:
    _, settling = out_of_time({**ALIKE, "deleted": ["z"]}, ALIKE)
    ranks = Ranks()
    kept = Undone("they did the same", ("w",))
    ranks.answers[actions.Undo] = lambda _: kept
    ranks.carry(settling.settle())
    assert stays_but(ranks) == {"z"}
    assert ranks.kinds()[-2:] == ["WithdrawBehind", "OpenGates"]
    ending = ranks.carry(settling.end())
    assert ending.undone == kept.told("This cell")
    assert ending.left == "Lost, since donated or deleted: z."


@pytest.mark.parametrize(
    "other",
    [
        {"own": EVEN, "stopped_at": "3:2:30"},  # rank 0 may not have bound what rank 1 has
        {"own": EVEN, "stopped_at": ""},
        {**ALIKE, "foreign": [SET]},
        {**ALIKE, "own": {SET: [1, 6]}},
        {**ALIKE, "unchecked": True},
    ],
)
def test_what_ranks_may_not_have_done_alike_is_undone(other: dict[str, Any]) -> None:
    for first, second in ((ALIKE, other), (other, ALIKE)):
        _, settling = out_of_time(first, second)
        ranks = Ranks()
        ranks.carry(settling.settle())
        assert stays_but(ranks) is None


@pytest.mark.parametrize("whose", [{0: SEQ, 1: wire.OURS}, {0: SEQ, 1: 0}, {0: SEQ, 1: SEQ - 1}])
def test_what_has_met_other_launches_is_undone(whose: dict[int, int]) -> None:
    _, settling = out_of_time(ALIKE, ALIKE)
    ranks = Ranks()
    ranks.met = whose
    ranks.carry(settling.settle())
    assert stays_but(ranks) is None


STOP, TIMEOUT, NOTHING = events.Stopped(T0 - 0.7), events.Tick(T0 - 0.7), events.Tick(T0 - 0.7)


def left(
    *replies: dict[str, Any],
    source: str = "y = f(x)",
    how: events.Event = NOTHING,
    is_last: bool = False,
) -> str:
    """What is said of names at the end of a cell; of each rank, what its reply says."""
    record = CellRecord(SEQ, 3, source, [0, 1])
    cell = Cell(record, T0 - 1, timeout_s=0.2 if how is TIMEOUT else None, is_last=is_last)
    cell.feed(how)
    for rank, more in enumerate(replies):
        given = {"status": "interrupted", "launches": EVEN, "own": EVEN, **more}
        cell.feed(events.Replied(T0 - 0.5, wire.CellReply(rank, SEQ, seconds=0.1, **given)))
    ranks, settling = Ranks(), Settling(cell)
    ranks.carry(settling.settle())
    return str(ranks.carry(settling.end()).left)


@pytest.mark.parametrize(
    ("replies", "is_told"),
    [
        ([{"stopped_at": "3:1:20"}, {"stopped_at": "3:1:20"}], False),
        ([{"stopped_at": "3:1:20"}, {"stopped_at": "3:2:30"}], True),
        ([{"stopped_at": ""}, {"stopped_at": ""}], True),  # one of them may have bound its results
        ([{"stopped_at": "3:1:20"}, {}], True),  # it has not come to the same
        ([{"stopped_at": "3:1:20", "status": "ok"}, {"status": "ok"}], True),  # who caught it
        ([{"stopped_at": "3:1:20"}, {"status": "ok"}], False),  # the verdict says that
        ([{"stopped_at": "3:1:20", "own": {}}, {"stopped_at": "3:2:30", "own": {}}], False),
        ([{"stopped_at": "3:1:20", "own": {}}, {"stopped_at": "3:2:30"}], True),
        ([{"status": "ok"}, {"status": "ok"}], False),
    ],
)
def test_a_stop_in_different_places_behind_a_launch_is_told(
    replies: list[dict[str, Any]], is_told: bool
) -> None:
    told = (
        "The ranks were stopped in different places, so what this cell assigns may be of different "
        "steps on them: y."
    )
    assert left(*replies, how=STOP) == (told if is_told else "")


@pytest.mark.parametrize(
    ("replies", "is_told"),
    [
        ([{"stopped_at": "3:1:20"}, {"status": "ok"}], True),
        ([{"stopped_at": "3:1:20"}, {"stopped_at": "3:1:40"}], True),
        ([{"stopped_at": "3:1:20"}, {"stopped_at": "2:4:6/3:1:20"}], True),
        ([{"stopped_at": "3:1:20"}, {"stopped_at": "3:1:20"}], False),
        ([{"stopped_at": "3:1:20"}, {"status": "interrupted", "stopped_at": "3:1:20"}], False),
        ([{"stopped_at": "3:1:20", "own": {}}, {"status": "ok", "own": {}}], False),
    ],
)
def test_an_error_in_different_places_behind_a_launch_is_told(
    replies: list[dict[str, Any]], is_told: bool
) -> None:
    told = (
        "The ranks have ended this cell in different places, so what it assigns may be of "
        "different steps on them: y."
    )
    assert left(*({"status": "error", **more} for more in replies)) == (told if is_told else "")


STATEMENTS = """
def later():
    global far
    near = far = 0
x = f(x)
for i in range(3):
    y = f(x)
z = f(y)
"""


@pytest.mark.parametrize(
    ("places", "told"),
    [
        (["3:9:20", None], " from line 9 on may be of different steps on them: far, z."),
        (["3:9:20", "other.py:3:4/3:8:40"],
         " from line 7 on may be of different steps on them: far, i, y, z."),
        (["3:9:20", ""], " may be of different steps on them: far, i, near, x, y, z."),
        (["3:9:20", "other.py:3:4"], " may be of different steps on them: far, i, near, x, y, z."),
    ],
)  # fmt: skip
def test_what_all_ranks_have_come_past_is_of_the_same_step(
    places: list[str | None], told: str
) -> None:
    replies = [{"stopped_at": at, "status": "ok" if at is None else "error"} for at in places]
    assert left(*replies, source=f"\n{STATEMENTS}").endswith(f"so what it assigns{told}")


@pytest.mark.parametrize("how", [STOP, TIMEOUT, NOTHING], ids=["stop", "timeout", "elsewhere"])
def test_a_stop_in_different_places_is_told_that_the_code_has_caught(how: events.Event) -> None:
    """From elsewhere: by a signal, or another notebook."""
    caught = [{"stopped_at": "3:1:20", "status": "ok"}, {"stopped_at": "3:2:30", "status": "ok"}]
    assert left(*caught, how=how)
    assert not left(*caught, how=how, is_last=True), "no more cells come"


def test_where_ranks_were_interrupted_since_another_one_failed_is_told() -> None:
    cell = Cell(CellRecord(SEQ, 3, "y = f(x)", [0, 1]), T0 - 9)
    made: dict[str, Any] = {"seconds": 0.1, "launches": EVEN, "own": EVEN}
    error = wire.ErrorInfo("ValueError", "no", [], 1)
    cell.feed(events.Replied(T0 - 8, wire.CellReply(0, SEQ, "error", error=error, **made)))
    cell.feed(events.Tick(T0 - 2))
    assert cell.watch.interrupted == (1,)
    stopped = wire.CellReply(1, SEQ, "interrupted", stopped_at="3:1:20", **made)
    cell.feed(events.Replied(T0 - 1, stopped))
    ranks, settling = Ranks(), Settling(cell)
    ranks.carry(settling.settle())
    left = ranks.carry(settling.end()).left
    assert left.startswith("The ranks have ended this cell in different places")


@pytest.mark.parametrize("undone", [Undone(made=("y",)), Undone("a rank gave no answer", ("y",))])
def test_what_the_undo_says_of_names_is_not_said_twice(undone: Undone) -> None:
    _, settling = out_of_time({**ALIKE, "deleted": ["z"]}, {**ALIKE, "stopped_at": "3:2:30"})
    ranks = Ranks()
    ranks.answers[actions.Undo] = lambda _: undone
    ranks.carry(settling.settle())
    left = ranks.carry(settling.end()).left
    assert left == ("Lost, since donated or deleted: z." if undone.refused else "")


def test_what_a_stop_has_left_is_gone_with_the_ranks_that_had_it() -> None:
    cell, settling = out_of_time({**ALIKE, "deleted": ["z"]}, ALIKE)
    ranks = Ranks(gives_new=True)
    ranks.answers[actions.BringBack] = lambda _: Replayed("", "a program has not ended")
    ranks.answers[actions.Undo] = lambda _: Undone("a rank gave no answer", ("y",))
    ranks.answers[actions.Recover] = lambda _: Recovered("New processes.", is_replaced=True)
    ranks.carry(settling.settle())
    assert "New processes." in cell.recovered
    assert ranks.carry(settling.end()).left == ""


def test_a_rank_that_has_not_begun_a_cell_loses_what_others_lose_by_its_undo() -> None:
    cell = Cell(CellRecord(SEQ, 3, "y = f(x)", [0, 1]), T0 - 1, timeout_s=0.1)
    cell.feed(events.Tick(T0 - 0.7))
    cell.feed(events.Replied(T0 - 0.5, wire.CellReply(0, SEQ, "interrupted", 0.1, launches=EVEN)))
    cell.feed(events.Replied(T0 - 0.5, wire.CellReply(1, SEQ, "interrupted", 0.0)))
    ranks = Ranks()
    ranks.carry(Settling(cell).settle())
    (undo,) = [one for one in ranks.done if isinstance(one, actions.Undo)]
    assert (undo.ranks, undo.unbegun) == ((0,), (1,))


def test_what_was_replayed_is_undone() -> None:
    _, settling = out_of_time(ALIKE, ALIKE)
    ranks = Ranks()
    ranks.answers[actions.BringBack] = lambda _: Replayed("replayed", "", {1: 1}, ranks.launches)
    ranks.carry(settling.settle())
    assert stays_but(ranks) is None

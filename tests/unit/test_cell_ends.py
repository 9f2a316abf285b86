"""How a cell has ended on its ranks: what differs for certain, and whether the next may begin."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from jaxcluster import wire
from jaxcluster.engine import gate as gates
from jaxcluster.wire import cell_ends
from jaxcluster.wire.cell_ends import CellEnd

ALL = "0,1,2"


def end(count: int = 0, value: int = 0, so_far: int | None = None, **more: Any) -> CellEnd:
    total = count if so_far is None else so_far
    return CellEnd("ok", {ALL: [count, value]}, {ALL: [total, value]}, **more)


def test_ranks_that_launched_the_same_do_not_differ() -> None:
    assert cell_ends.differing({r: end(2, 7) for r in range(3)}) == []
    assert cell_ends.may_go_on({r: end(2, 7) for r in range(3)})


def test_one_launch_less_differs_for_certain_whatever_came_since() -> None:
    found = {0: end(2, 7, 5), 1: end(1, 3, 5), 2: end(2, 7, 5)}
    assert cell_ends.differing(found) == [ALL]
    assert cell_ends.is_certain(ALL, found)
    assert not cell_ends.may_go_on(found)


def test_another_program_differs() -> None:
    found = {0: end(1, 7), 1: end(1, 8), 2: end(1, 7)}
    assert cell_ends.differing(found) == [ALL]
    assert cell_ends.is_certain(ALL, found)


@pytest.mark.parametrize("more", [{"foreign": [ALL]}, {"background": True}])
def test_what_a_thread_has_made_or_may_make_is_not_certain(more: dict[str, Any]) -> None:
    made_by_a_thread = CellEnd("ok", {ALL: [1, 3]}, {ALL: [2, 7]}, **more)
    found = {0: end(2, 7), 1: made_by_a_thread, 2: end(2, 7)}
    assert cell_ends.differing(found) == [ALL]
    assert not cell_ends.is_certain(ALL, found)


def test_once_no_thread_lives_all_launches_so_far_tell() -> None:
    found = {0: end(2, 7), 1: end(1, 3, foreign=[ALL]), 2: end(2, 7)}
    assert cell_ends.is_certain(ALL, found)
    assert not cell_ends.is_certain(ALL, {**found, 2: end(2, 7, background=True)})


def test_what_differed_before_is_this_cells_only_if_it_launched_on_that_set() -> None:
    idle = {r: end(0, 0, so_far=r) for r in range(3)}
    assert cell_ends.differing(idle) == [ALL]
    assert not cell_ends.is_certain(
        ALL, {r: CellEnd("ok", {}, e.launches) for r, e in idle.items()}
    )
    shifted = {0: end(1, 7, 2), 1: end(1, 7, 1), 2: end(1, 7, 2)}
    assert cell_ends.is_certain(ALL, shifted)
    assert cell_ends.launched_alike(ALL, shifted)


def test_a_set_of_which_a_process_did_not_run_the_cell_is_left_out() -> None:
    found = {0: end(2, 7), 1: end(1, 3)}
    assert cell_ends.differing(found) == []
    assert not cell_ends.covers([0, 1], found)
    assert cell_ends.covers([0, 1, 2], found)


def test_after_an_interrupt_or_a_program_that_broke_off_the_notebook_says_when() -> None:
    even = {r: end(1, 7) for r in range(3)}
    assert not cell_ends.may_go_on(
        {**even, 1: CellEnd("interrupted", even[1].own, even[1].launches)}
    )
    assert not cell_ends.may_go_on({**even, 1: end(1, 7, unchecked=True)})


def failed(status: str, stopped_at: str | None = None, launched: int = 1) -> CellEnd:
    own = {ALL: [launched, 7]} if launched else {}
    return CellEnd(status, own, own, stopped_at=stopped_at)


def test_after_an_error_in_different_places_the_notebook_says_when() -> None:
    """Behind launches: so one rank may have a name for what another one has not come to."""
    alone = {0: failed("ok"), 1: failed("error", "5:2:14"), 2: failed("ok")}
    assert not cell_ends.may_go_on(alone)
    apart = {r: failed("error", f"5:{2 + r}:14") for r in range(3)}
    assert not cell_ends.may_go_on(apart)
    unknown = {r: failed("error", "") for r in range(3)}
    assert not cell_ends.may_go_on(unknown)
    alike = {r: failed("error", "5:2:14") for r in range(3)}
    assert cell_ends.may_go_on(alike)
    nothing = {r: failed("ok" if r else "error", None, 0) for r in range(3)}
    assert cell_ends.may_go_on(nothing)


def test_ranks_that_were_uneven_before_may_have_met_other_cells() -> None:
    """Whatever threads live: ``differing`` leaves it to these."""
    shifted = {r: end(1, 7, 2 - (r == 1), background=True) for r in range(3)}
    assert cell_ends.differing(shifted) == []
    assert cell_ends.may_be_shifted(shifted)
    assert not cell_ends.may_be_shifted({r: end(1, 7, 2) for r in range(3)})
    assert not cell_ends.may_be_shifted({r: shifted[r] for r in (0, 1)})  # one did not run it
    idle = {r: CellEnd("ok", {}, e.launches, background=True) for r, e in shifted.items()}
    assert not cell_ends.may_be_shifted(idle)


@pytest.mark.parametrize(
    ("ranks", "later", "guards"),
    [([0, 1], [0, 1], True), ([0, 1], [0, 1, 2], True), ([0, 1], [1], False), ([1], [0, 1], False)],
)
def test_which_cells_wait_for_the_end_of_which(
    ranks: list[int], later: list[int], guards: bool
) -> None:
    assert cell_ends.guards(ranks, later) == guards


# --------------------------------------------------------------------------- the gate


class Store:
    def __init__(self) -> None:
        self.found: dict[str, str] = {}

    def write(self, key: str, value: str) -> None:
        self.found[key] = value

    def read(self, folder: str) -> dict[str, str]:
        return {k.partition("/")[2]: v for k, v in self.found.items() if k.startswith(folder + "/")}

    def delete(self, key: str) -> None:
        self.found.pop(key, None)


def cell(seq: int, ranks: tuple[int, ...] = (0, 1), settled: int = 0) -> wire.CellRequest:
    return wire.CellRequest(seq, "pass", seq, list(ranks), [0], settled=settled)


def passes(gate: gates.Gate, request: wire.CellRequest, seconds: float = 0.05) -> bool:
    """Whether a cell may begin now."""

    async def wait() -> bool:
        waiting = asyncio.ensure_future(gate.wait(request, b"me", lambda: not stop.is_set()))
        stop = asyncio.Event()
        done, _ = await asyncio.wait([waiting], timeout=seconds)
        stop.set()
        await waiting
        return bool(done)

    return asyncio.run(wait())


@pytest.mark.parametrize("status", ["ok", "interrupted", "error"])
def test_who_waits_says_whether_that_cell_was_cut_short(status: str) -> None:
    """Not where its ranks have launched different programs: a thread may explain these."""
    store = Store()
    gate, other = (gates.Gate(rank, lambda: store) for rank in range(2))

    async def wait() -> bool:
        stopped = asyncio.Event()
        waiting = asyncio.ensure_future(gate.wait(cell(2), b"me", lambda: not stopped.is_set()))
        await asyncio.sleep(0.05)
        told = gate.is_cut_short
        assert gate.waits_for == [1, 0, 1]
        stopped.set()
        await waiting
        return told

    gate.ended(cell(1), b"me", even(1))
    other.ended(cell(1), b"me", CellEnd(status, even(2 if status == "ok" else 1).own))
    assert not passes(other, cell(2))  # it has told how it ended
    assert asyncio.run(wait()) is (status != "ok")
    assert not gate.is_cut_short


@pytest.fixture
def pair() -> list[gates.Gate]:
    store = Store()
    return [gates.Gate(rank, lambda: store) for rank in range(2)]


def both(pair: list[gates.Gate], request: wire.CellRequest, *told: CellEnd) -> None:
    for gate, one in zip(pair, told, strict=True):
        gate.ended(request, b"me", one)


def even(count: int) -> CellEnd:
    return CellEnd("ok", {"0,1": [count, count]}, {"0,1": [count, count]})


def test_a_cell_begins_once_the_one_before_has_ended_alike_on_all_ranks(
    pair: list[gates.Gate],
) -> None:
    pair[0].ended(cell(1), b"me", even(1))
    assert not passes(pair[0], cell(2))
    pair[1].ended(cell(1), b"me", even(1))
    assert passes(pair[1], cell(2))
    assert passes(pair[0], cell(2))


def test_a_cell_waits_while_the_ranks_differ_and_until_that_is_cleared(
    pair: list[gates.Gate],
) -> None:
    both(pair, cell(1), even(1), even(2))
    assert [passes(gate, cell(2)) for gate in (*pair, pair[0])] == [False] * 3
    for gate in pair:
        gate.clear([1])
    assert [passes(gate, cell(2)) for gate in pair] == [True, True]


def test_what_was_cleared_before_a_rank_came_to_it_holds_up_nothing(
    pair: list[gates.Gate],
) -> None:
    pair[0].clear([1])
    pair[0].ended(cell(1), b"me", even(1))
    assert passes(pair[0], cell(2))


def test_a_notebook_that_says_that_its_cells_are_settled_waits_for_nothing(
    pair: list[gates.Gate],
) -> None:
    both(pair, cell(1), even(1), even(2))
    assert passes(pair[0], cell(2, settled=1))


def test_a_rank_that_hears_that_a_cell_is_settled_tells_those_that_do_not(
    pair: list[gates.Gate],
) -> None:
    """Another notebook's cell waits on rank 0 for a cell whose notebook has gone on with rank 1."""
    both(pair, cell(1), even(1), even(1))
    assert passes(pair[1], cell(2, ranks=(1,), settled=1))
    other = wire.CellRequest(3, "pass", 3, [0, 1], [0])

    async def wait() -> None:
        await asyncio.wait_for(pair[0].wait(other, b"another", lambda: True), 5)

    asyncio.run(wait())


def test_a_rank_tells_its_end_also_where_its_own_next_cell_need_not_wait(
    pair: list[gates.Gate],
) -> None:
    both(pair, cell(1), even(1), even(1))
    assert passes(pair[1], cell(2, ranks=(1,)))
    assert passes(pair[0], cell(3))


def test_without_a_store_every_cell_begins_at_once() -> None:
    gate = gates.Gate(0, lambda: None)
    gate.ended(cell(1), b"me", even(1))
    assert passes(gate, cell(2))


def test_how_cells_have_ended_is_told_until_somebody_calls_them_settled() -> None:
    gate = gates.Gate(0, lambda: None)
    for seq in (1, 2):
        gate.ended(cell(seq), b"me", even(seq))
    assert gate.unsettled() == {1: even(1), 2: even(2)}
    gate.clear([1])
    assert gate.unsettled() == {2: even(2)}


def test_who_waits_says_for_which_cell_and_ranks(pair: list[gates.Gate]) -> None:
    pair[0].ended(cell(1), b"me", even(1))

    async def look() -> list[int]:
        stop = asyncio.Event()
        waiting = asyncio.ensure_future(pair[0].wait(cell(2), b"me", lambda: not stop.is_set()))
        await asyncio.sleep(0.01)
        found = pair[0].waits_for
        stop.set()
        await waiting
        return found

    assert asyncio.run(look()) == [1, 0, 1]
    assert pair[0].waits_for == []

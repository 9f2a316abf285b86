"""In strict mode ranks launch what all have announced; who has skipped a launch is waited for."""

from __future__ import annotations

import contextlib
import re
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any
from unittest.mock import Mock

import pytest
from helpers import until

from jaxcluster.engine.counted import Program
from jaxcluster.engine.failures import Divergence
from jaxcluster.engine.journal import Journal
from jaxcluster.engine.strict import KEPT, REFUSED_S, Strict

ALL = "0,1,2"
ENDS_S = 20.0


def program(name: str, signature: str = "f32[4]") -> Program:
    """``name`` may say which ranks': ``f@0,1``."""
    _, _, ranks = name.partition("@")
    return Program(name, sum((name + signature).encode()), ranks or ALL, signature, None)


class Store:
    """The coordination service's."""

    def __init__(self) -> None:
        self.values: dict[str, str] = {}

    def key_value_set(self, key: str, value: str, allow_overwrite: bool) -> None:
        self.values[key] = value

    def key_value_dir_get(self, folder: str) -> list[tuple[str, str]]:
        return [(k, v) for k, v in list(self.values.items()) if k.startswith(folder)]

    def key_value_delete(self, key: str) -> None:
        del self.values[key]


class Rank:
    def __init__(self, rank: int, store: Store) -> None:
        self.journal = Journal()
        self.journal._main_thread = 0  # each rank's is the one that runs its program
        self.strict = Strict(self.journal, rank, store, "e")
        self.journal.taken_back = self.strict.taken_back
        self.launched: list[str] = []
        self.told: list[str] = []

    def launch(self, name: str, signature: str = "f32[4]", refused: bool = False) -> None:
        one = program(name, signature)
        self.strict.before_launch(one)
        if refused:
            with pytest.raises(ZeroDivisionError):
                self.journal.launch(one, lambda error: True, lambda: 1 // 0)
            return
        self.journal.launch(one, lambda error: False, int)
        self.launched.append(name)

    def cell(self, seq: int, *names: str) -> None:
        """A cell that launches these, and ends at an error."""
        self.journal._main_thread = threading.get_ident()
        self.journal.cell_numbers[__file__] = seq
        self.journal.enter(seq, (0, 1, 2))
        try:
            for name in names:
                self.launch(name)
        except Divergence as error:
            self.told.append(f"{seq}: {error}")
        self.journal.leave()


def run(*programs: Callable[[Rank], Any]) -> list[Rank]:
    """All ranks at once, each its program."""
    store = Store()
    ranks = [Rank(number, store) for number in range(len(programs))]
    threads = [
        threading.Thread(target=each, args=(rank,), daemon=True)
        for each, rank in zip(programs, ranks, strict=True)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(ENDS_S)
        assert not thread.is_alive(), "it waits for ever"
    assert len(store.values) <= len(ranks) * (KEPT + 1)
    return ranks


def test_what_all_announce_is_launched() -> None:
    def cells(rank: Rank) -> None:
        for seq in range(1, 6):
            rank.cell(seq, "f", "g")

    for rank in run(cells, cells, cells):
        assert rank.launched == ["f", "g"] * 5
        assert rank.told == []


def test_different_programs_raise_on_all_ranks_and_what_comes_after_meets_again() -> None:
    def cells(*names: str) -> Callable[[Rank], None]:
        def run_all(rank: Rank) -> None:
            for seq, name in enumerate(names, 1):
                rank.cell(seq, name)

        return run_all

    ranks = run(cells("f", "g", "h"), cells("f", "x", "h"), cells("f", "g", "h"))
    for rank in ranks:
        assert rank.launched == ["f", "h"]
        (told,) = rank.told
        assert "launched none: ranks 0, 2: g(f32[4]), cell [2] line" in told
        assert "; rank 1: x(f32[4]), cell [2] line" in told


def test_what_was_announced_before_a_divergence_is_not_met_after_it() -> None:
    """The same place of the same cell comes again: nothing was launched, so its count is equal."""

    def launch(*names: str) -> Callable[[Rank], None]:
        def in_one_cell(rank: Rank) -> None:
            for name in names:
                with pytest.raises(Divergence) as raised:
                    rank.launch(name)
                rank.told.append(str(raised.value))
            rank.launch("f")

        return in_one_cell

    ranks = run(launch("f", "x"), launch("g", "y"), launch("f", "y"))
    for rank in ranks:
        assert rank.launched == ["f"]
        assert re.search(r"ranks 0, 2: f\(.*; rank 1: g\(", rank.told[0])
        assert re.search(r"rank 0: x\(.*; ranks 1, 2: y\(", rank.told[1])


def test_what_an_interrupted_cell_had_announced_is_known_until_it_is_launched_after_all() -> None:
    def cell(rank: Rank) -> None:
        journal, wait = rank.journal, rank.strict._wait
        journal._main_thread = threading.get_ident()
        journal.enter(1, (0, 1, 2))
        if rank.strict.rank == 0:
            rank.strict._wait = Mock(side_effect=KeyboardInterrupt)  # type: ignore[method-assign]
            with pytest.raises(KeyboardInterrupt):
                rank.launch("f")
            [given_up] = journal.given_up.values()
            assert (given_up.processes, given_up.seq, given_up.cell_seq) == (ALL, 0, 1)
            rank.strict._wait = wait  # type: ignore[method-assign]
        rank.launch("f")
        assert not journal.given_up

    for rank in run(cell, cell, cell):
        assert rank.launched == ["f"]


@pytest.mark.parametrize("by_thread", [False, True])
def test_only_what_a_cells_own_launch_was_to_be_is_given_up_and_until_the_next(
    by_thread: bool,
) -> None:
    rank = Rank(0, Store())
    rank.journal._main_thread = 0 if by_thread else threading.get_ident()
    rank.journal.enter(1, (0, 1, 2))
    rank.strict._wait = Mock(side_effect=KeyboardInterrupt)  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        rank.launch("f")
    assert bool(rank.journal.given_up) is not by_thread
    rank.journal.leave()
    rank.journal.enter(2, (0, 1, 2))
    assert not rank.journal.given_up


def test_what_a_thread_waits_with_is_known_while_cells_begin_and_launch() -> None:
    rank = Rank(0, Store())
    journal, seen = rank.journal, []
    began, goes_on = threading.Event(), threading.Event()

    def wait(*_: Any) -> None:
        if threading.current_thread() is loader:
            began.set()
            assert goes_on.wait(ENDS_S)
        seen.append(journal.announced and journal.announced.name)

    rank.strict._wait = wait  # type: ignore[method-assign]
    loader = threading.Thread(target=rank.launch, args=("batch",))
    loader.start()
    assert began.wait(ENDS_S)
    rank.cell(1, "f@0,1")
    assert journal.announced is not None
    assert journal.announced.name == "batch"
    goes_on.set()
    loader.join(ENDS_S)
    assert seen == ["f@0,1", "batch"]
    assert journal.announced is None


def test_after_threads_that_launch_in_another_order_all_meet_again() -> None:
    """Of two that come to a launch at once on a rank the first is refused, then the second."""
    both_wait, all_over = threading.Event(), threading.Barrier(3)

    def launch(rank: Rank, name: str) -> None:
        with contextlib.suppress(Divergence):
            rank.launch(name)

    def two_at_once(rank: Rank) -> None:
        threads = []
        for name in ("f", "g"):
            threads.append(threading.Thread(target=launch, args=(rank, name), daemon=True))
            threads[-1].start()
            until(lambda: rank.strict.client.values, "the first one is announced")
        time.sleep(0.2)
        both_wait.set()
        for thread in threads:
            thread.join(ENDS_S)
        all_over.wait(ENDS_S)
        rank.cell(1, "h")

    def one_by_one(rank: Rank) -> None:
        assert both_wait.wait(ENDS_S)
        launch(rank, "g")
        launch(rank, "f")
        all_over.wait(ENDS_S)
        rank.cell(1, "h")

    for rank in run(one_by_one, two_at_once, one_by_one):
        assert rank.launched == ["h"]


def test_one_skip_in_a_queue_is_told_once_and_in_its_cell() -> None:
    """Rank 1 comes to the later cells first, and is met there."""

    def cells(rank: Rank, skips: bool) -> None:
        rank.cell(1, *(["f"] * (not skips)))
        for seq in range(2, 6):
            rank.cell(seq, "f", "g")

    ranks = run(
        lambda rank: cells(rank, False),
        lambda rank: cells(rank, True),
        lambda rank: cells(rank, False),
    )
    for rank in ranks:
        assert rank.launched == ["f", "g"] * 4
    assert ranks[1].told == []
    for rank in (ranks[0], ranks[2]):
        (told,) = rank.told
        assert told.startswith("1: ")
        assert "rank 1: f(f32[4]), cell [2]" in told
        assert "(it has ended this cell)" in told


def test_a_threads_launches_meet_whatever_cells_run_meanwhile() -> None:
    def launch_beside_cells(rank: Rank, cells: int) -> None:
        for seq in range(1, cells):
            rank.journal.enter(seq, (0, 1, 2))
            rank.launch("f")
            rank.journal.leave()

    def alone(rank: Rank) -> None:
        for _ in range(8):
            rank.launch("f")

    ranks = run(lambda rank: launch_beside_cells(rank, 9), alone, alone)
    assert all(rank.launched == ["f"] * 8 for rank in ranks)


def test_a_thread_that_waits_in_vain_gives_up_where_the_ranks_count_anew() -> None:
    """What it has announced would meet what the next cell launches."""
    left: list[str] = []
    announced = threading.Event()

    def alone(rank: Rank) -> None:
        def thread() -> None:
            with pytest.raises(Divergence, match="back into lockstep without f") as caught:
                rank.launch("f")
            left.append(str(caught.value))

        waits = threading.Thread(target=thread)
        waits.start()
        until(lambda: rank.journal.waiting, "the thread waits")
        announced.set()
        rank.journal.restart(1)
        waits.join(ENDS_S)
        rank.cell(2, "f")

    def others(rank: Rank) -> None:
        assert announced.wait(ENDS_S)
        rank.journal.restart(1)
        rank.cell(2, "f")

    ranks = run(alone, others, others)
    assert all(rank.launched == ["f"] for rank in ranks)
    assert len(left) == 1


def test_what_xla_refuses_on_all_ranks_is_followed_by_anything() -> None:
    def cells(rank: Rank) -> None:
        rank.launch("f", refused=True)
        rank.launch("g")

    assert all(rank.launched == ["g"] for rank in run(cells, cells, cells))


def test_what_xla_refuses_on_one_rank_does_not_hang_it_where_it_tries_again() -> None:
    def others(rank: Rank) -> None:
        rank.launch("f")
        rank.launch("g")

    def refused(rank: Rank) -> None:
        rank.launch("f", refused=True)
        rank.launch("f")
        rank.launch("g")

    assert all(rank.launched == ["f", "g"] for rank in run(others, refused, others))


def test_what_xla_refuses_on_one_rank_is_known_while_the_others_wait_in_it() -> None:
    """They announce nothing meanwhile, and would have by now if it had been refused to them too."""
    launched = threading.Barrier(3)

    def others(rank: Rank) -> None:
        rank.launch("f")
        launched.wait(ENDS_S)

    def refused(rank: Rank) -> None:
        rank.launch("f", refused=True)
        with pytest.raises(Divergence, match=r"rank 1: x\(f32\[4\]\)"):
            rank.launch("x")
        rank.launch("f")
        launched.wait(ENDS_S)

    assert all(rank.launched == ["f"] for rank in run(others, refused, others))


def test_a_rank_that_is_slow_after_a_refusal_of_all_is_waited_for() -> None:
    def cells(seconds: float) -> Callable[[Rank], None]:
        def run_it(rank: Rank) -> None:
            rank.launch("f", refused=True)
            time.sleep(seconds)
            rank.launch("g")

        return run_it

    ranks = run(cells(0), cells(1.3 * REFUSED_S), cells(0))
    assert all(rank.launched == ["g"] for rank in ranks)


def test_shapes_tell_programs_of_one_line_apart() -> None:
    def launch(signature: str) -> Callable[[Rank], None]:
        def run_it(rank: Rank) -> None:
            with pytest.raises(Divergence) as raised:
                rank.launch("f", signature)
            rank.told.append(str(raised.value))

        return run_it

    for rank in run(launch("f32[4]"), launch("f32[5]"), launch("f32[4]")):
        assert "ranks 0, 2: f(f32[4])" in rank.told[0]
        assert "rank 1: f(f32[5])" in rank.told[0]


def test_programs_that_read_alike_are_told_apart() -> None:
    """As where a constant differs."""

    def launch(fingerprint: int) -> Callable[[Rank], None]:
        def run_it(rank: Rank) -> None:
            with pytest.raises(Divergence) as raised:
                rank.strict.before_launch(replace(program("f"), fingerprint=fingerprint))
            rank.told.append(str(raised.value))

        return run_it

    for rank in run(launch(7), launch(8), launch(7)):
        assert re.search(r"ranks 0, 2: f\(.*; rank 1: f\(", rank.told[0])


def test_a_rank_whose_wait_was_interrupted_is_waited_for() -> None:
    class Stop(BaseException):
        pass

    def interrupted(rank: Rank) -> None:
        get, calls = rank.strict.client.key_value_dir_get, []

        def stop_once(folder: str) -> list[tuple[str, str]]:
            calls.append(folder)
            if len(calls) == 1:
                raise Stop
            return list(get(folder))

        rank.strict.client = store = Store()
        store.values = get.__self__.values
        store.key_value_dir_get = stop_once  # type: ignore[method-assign]
        with pytest.raises(Stop):
            rank.launch("f")
        rank.launch("g")

    def other(rank: Rank) -> None:
        rank.launch("g")

    ranks = run(other, interrupted, other)
    assert all(rank.launched == ["g"] for rank in ranks)

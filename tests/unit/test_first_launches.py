"""Of two ranks that are about to launch different programs never both do, and nobody waits."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from journals import launched

from jaxcluster.engine.counted import Program
from jaxcluster.engine.failures import Divergence
from jaxcluster.engine.first_launches import KEPT, FirstLaunches
from jaxcluster.engine.journal import Journal


class Service:
    """The coordination service's store; ``before_get`` comes between two calls of a rank."""

    def __init__(self) -> None:
        self.kept: dict[str, str] = {}
        self.before_get: Callable[[], None] | None = None
        self.is_down = False
        self.withdraw: Callable[[str], object] = self.kept.pop

    def key_value_set(self, key: str, value: str, allow_overwrite: bool = False) -> None:
        if self.is_down:
            raise RuntimeError("UNAVAILABLE")
        assert allow_overwrite
        self.kept[key] = value

    def key_value_dir_get(self, folder: str) -> list[tuple[str, str]]:
        between, self.before_get = self.before_get, None
        if between is not None:
            between()
        return [(key, value) for key, value in self.kept.items() if key.startswith(folder)]

    def key_value_delete(self, key: str) -> None:
        self.withdraw(key)


def program(fingerprint: int, processes: str = "0,1,2", collective: bool = True) -> Program:
    name, shape = f"jit(p{fingerprint})", f"float32[{fingerprint},3]"
    return Program(name, fingerprint, processes, shape, None, collective=collective)


class Rank:
    def __init__(self, rank: int, service: Service) -> None:
        self.journal = Journal()
        self.first = self.journal.first = FirstLaunches(self.journal, rank, service)
        self.journal.enter(5)

    def launch(self, one: Program) -> bool:
        try:
            self.first.before_launch(one)
        except Divergence:
            return False
        launched(self.journal, one)
        return True

    def is_refused_by_xla(self, one: Program) -> None:
        self.first.before_launch(one)
        self.first.taken_back()


@pytest.fixture
def service() -> Service:
    return Service()


@pytest.fixture
def ranks(service: Service) -> list[Rank]:
    return [Rank(rank, service) for rank in range(3)]


def test_equal_programs_are_launched_in_whatever_order_ranks_come(ranks: list[Rank]) -> None:
    for order in ([0, 1, 2], [2, 1, 0]):
        for fingerprint in (4, 5, 6):
            assert all(ranks[rank].launch(program(fingerprint)) for rank in order)
    for rank in ranks:  # each as far ahead as it likes
        assert all(rank.launch(program(fingerprint)) for fingerprint in range(7, 20))


def test_who_comes_later_with_another_program_is_refused_and_told_of_both(
    ranks: list[Rank],
) -> None:
    assert ranks[0].launch(program(4))
    assert ranks[1].launch(program(4))
    with pytest.raises(Divergence) as refused:
        ranks[2].first.before_launch(program(5))
    told = str(refused.value)
    assert told.startswith("the ranks were about to launch different programs: ")
    assert ": rank 2: jit(p5)(float32[5,3]), in unit/test_first_launches.py line " in told
    assert ", which it did not launch; ranks 0, 1: jit(p4)(float32[4,3]), in unit" in told
    announced = ranks[2].journal.announced
    assert announced is not None
    assert (announced.seq, announced.fingerprint) == (0, 5)
    assert ranks[2].launch(program(4))  # as a replay does
    assert all(rank.launch(program(6)) for rank in ranks)


def test_never_do_both_launch_however_they_come_between_each_other(
    ranks: list[Rank], service: Service
) -> None:
    launched: list[bool] = []
    service.before_get = lambda: launched.append(ranks[1].launch(program(5)))
    launched.append(ranks[0].launch(program(4)))
    assert launched == [False, True]


def test_what_nobody_has_launched_is_in_nobodys_way(ranks: list[Rank], service: Service) -> None:
    """Both are refused where each sees the other's; then they launch the same one."""
    withdrawn: list[str] = []
    service.withdraw = withdrawn.append
    launched: list[bool] = []
    service.before_get = lambda: launched.append(ranks[1].launch(program(5)))
    launched.append(ranks[0].launch(program(4)))
    assert launched == [False, False]
    for key in withdrawn:
        del service.kept[key]
    assert all(rank.launch(program(6)) for rank in ranks)


def test_what_xla_has_refused_on_all_ranks_alike_is_followed_by_anything(
    ranks: list[Rank],
) -> None:
    for fingerprint in (4, 5):
        for rank in ranks:
            rank.is_refused_by_xla(program(fingerprint))
    assert all(rank.launch(program(6)) for rank in ranks)
    assert all(rank.launch(program(7)) for rank in ranks)


def test_what_one_rank_alone_was_refused_does_not_blame_the_others(ranks: list[Rank]) -> None:
    ranks[0].is_refused_by_xla(program(4))
    assert ranks[0].launch(program(5))
    assert all(rank.launch(program(5)) for rank in ranks[1:])


def test_what_an_interrupt_left_announced_is_in_nobodys_way(
    ranks: list[Rank], service: Service
) -> None:
    """It comes after the announcement and before the launch, on all ranks or on some."""
    for rank in ranks[:2]:
        rank.first.before_launch(program(4))
    assert ranks[1].launch(program(5))  # rank 0's is still there
    assert ranks[0].launch(program(5))
    assert ranks[2].launch(program(5))
    ranks[0].first.before_launch(program(6))
    ranks[0].journal.leave()
    assert all(rank.launch(program(7)) for rank in ranks[::-1])
    for rank in ranks:
        rank.journal.enter(6)
        rank.journal.leave()
    assert len(service.kept) == 6


def test_launches_are_compared_again_when_all_count_from_zero(ranks: list[Rank]) -> None:
    assert all(rank.launch(program(4)) for rank in ranks)
    for rank in ranks:
        rank.journal.restart()
    assert ranks[0].launch(program(5))
    assert ranks[1].launch(program(5))
    assert not ranks[2].launch(program(6))


def test_sets_of_processes_have_orders_of_their_own(ranks: list[Rank]) -> None:
    assert ranks[0].launch(program(4, "0,1"))
    assert all(rank.launch(program(5)) for rank in ranks)
    assert ranks[1].launch(program(4, "0,1"))
    assert not ranks[2].journal.announced


def test_what_is_not_compared_is_launched(ranks: list[Rank], service: Service) -> None:
    assert ranks[0].launch(program(4))
    assert ranks[1].launch(program(5, collective=False))  # it meets nothing
    assert ranks[2].launch(program(6, "0,1"))  # none of it runs there
    service.is_down = True
    assert ranks[1].launch(program(7))


def test_announcements_are_bounded(ranks: list[Rank], service: Service) -> None:
    for fingerprint in range(3 * KEPT):
        assert ranks[0].launch(program(fingerprint))
    assert len(service.kept) == KEPT

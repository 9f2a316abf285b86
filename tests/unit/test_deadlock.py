"""Circles of ranks that wait for each other, and many orders that are none."""

from __future__ import annotations

import dataclasses
import itertools
import random
from collections.abc import Iterable

import pytest

from jaxcluster import wire
from jaxcluster.lockstep.polls import Facts, Polls
from jaxcluster.model.deadlock import (
    _cycle,
    _may_run_side_by_side,
    circle,
    find,
    may_hear_more,
    tell,
)
from jaxcluster.model.health import CellWatch
from jaxcluster.model.outputs import CellRecord


class Journals:
    """What ranks have launched, each in its own order: ``A012`` is a program of ranks 0, 1, 2."""

    def __init__(self, *orders: str) -> None:
        self.counts: dict[int, dict[str, list[int]]] = {}
        self.launches: dict[int, list[wire.Launch]] = {}
        for rank, order in enumerate(orders):
            self.counts[rank], self.launches[rank] = {}, []
            for word in order.split():
                self.launch(rank, word)

    def launch(self, rank: int, word: str) -> None:
        processes = ",".join(word[1:])
        count = self.counts[rank].setdefault(processes, [0, 0])
        self.launches[rank].append(
            wire.Launch(count[0], processes, f"jit({word[0]})", ord(word[0]), 7, rank + 1)
        )
        count[0] += 1

    def circle(self, depth: int | None = None) -> list[int]:
        launches = {r: e[-depth:] if depth else e for r, e in self.launches.items()}
        return list(circle(self.counts, launches))


def test_two_sets_in_another_order_are_a_circle() -> None:
    journals = Journals("A012 B01", "B01 A012", "A012")
    found = circle(journals.counts, journals.launches)
    assert {rank: entry.name for rank, entry in found.items()} == {0: "jit(A)", 1: "jit(B)"}
    assert tell(found, is_over=True) == [
        "Deadlock: the ranks waited for each other, since they launched programs in different "
        "orders:",
        "  Rank 0 waited in jit(A) at cell [7] line 1, a program of ranks 0-2, for rank 1.",
        "  Rank 1 waited in jit(B) at cell [7] line 2, a program of ranks 0, 1, for rank 0.",
        "Hint: ranks that share programs must launch them in the same order.",
    ]


def test_it_is_one_before_the_second_programs_are_launched() -> None:
    """With one device a process can't launch its second one while it waits in the first."""
    assert Journals("A012", "B01", "A012").circle() == [0, 1]


def test_in_one_set_alone_a_program_without_collectives_can_hold_up_another() -> None:
    journals = Journals("A01", "A01 B01")
    journals.launches[1][0] = dataclasses.replace(journals.launches[1][0], collective=False)
    assert journals.circle() == [0, 1]
    assert Journals("A01", "B01 A01").circle() == []


def test_who_calls_a_program_of_others_devices_is_not_one_of_those_who_make_it() -> None:
    """As in JAX's guide to shard_map, whose meshes of 4 devices leave ranks 2 and 3 out."""
    assert Journals("A12 B012", "A12 B012", "A12 B012").circle() == []
    assert Journals("B012 A12", "A12 B012", "A12 B012").circle() == []
    assert Journals("A12 B012", "B012 A12", "A12 B012").circle() == [1, 2]


def test_a_circle_may_go_over_three_ranks_and_sets() -> None:
    assert Journals("A01 C02", "B12 A01", "C02 B12").circle() == [0, 1, 2]
    assert Journals("A01", "B12", "C02").circle() == [0, 1, 2]


def test_it_may_begin_after_much_that_went_well() -> None:
    good = "S012 A01 S012 "
    assert Journals(good + "S012 A01", good + "A01 S012", "S012 S012 S012").circle() == [0, 1]


def test_a_rank_that_comes_late_is_in_no_circle() -> None:
    assert Journals("A012 B01", "", "A012").circle() == []
    assert Journals("A012 B01", "A012", "A012").circle() == []
    assert Journals("B01 A012", "B01", "A012").circle() == []


def test_the_same_order_of_several_sets_is_none() -> None:
    assert Journals("A01 B012 C02", "A01 B012", "B012 C02").circle() == []


def test_programs_without_collectives_wait_for_nobody() -> None:
    journals = Journals("A012 B01", "B01 A012", "A012")
    for entries in journals.launches.values():
        entries[:] = [wire.Launch(**{**vars(e), "collective": False}) for e in entries]
    assert journals.circle() == []


def test_a_rank_that_says_nothing_is_not_guessed_about() -> None:
    journals = Journals("A012 B01", "B01 A012", "A012")
    del journals.counts[1], journals.launches[1]
    assert journals.circle() == []


def legal(chance: random.Random, ranks: int, length: int) -> list[str]:
    """One order of programs of random sets: any order that all ranks follow can be carried out."""
    sets = [
        "".join(map(str, s))
        for n in range(2, ranks + 1)
        for s in itertools.combinations(range(ranks), n)
    ]
    return [chance.choice("ABC") + chance.choice(sets) for _ in range(length)]


@pytest.mark.parametrize("seeds", range(4))
def test_legal_interleavings_are_never_called_a_circle(seeds: int) -> None:
    """Each rank has got anywhere in the common order, and its journal may have forgotten parts."""
    for seed in range(100 * seeds, 100 * seeds + 100):
        try_legal(random.Random(seed))


def try_legal(chance: random.Random) -> None:
    ranks, length = chance.randint(2, 5), chance.randint(1, 30)
    words = legal(chance, ranks, length)
    journals = Journals(*[""] * ranks)
    reached = [chance.randint(0, length) for _ in range(ranks)]
    for number, word in enumerate(words):
        for rank in range(ranks):
            if str(rank) in word[1:] and number < reached[rank]:
                journals.launch(rank, word)
    assert journals.circle() == []
    for depth in (1, 2, 5, 20):
        assert journals.circle(depth) == []


def completes(orders: Iterable[list[str]]) -> bool:
    """Carry the launches out, by brute force: whether all come to their end."""
    queues = [list(order) for order in orders]
    while any(queues):
        for queue in queues:
            if queue and all(queues[int(m)][:1] == queue[:1] for m in queue[0][1:]):
                for m in queue[0][1:]:
                    queues[int(m)].pop(0)
                break
        else:
            return False
    return True


@pytest.mark.parametrize("seeds", range(4))
def test_full_journals_are_a_circle_exactly_if_they_can_not_be_carried_out(seeds: int) -> None:
    """Two neighbours of one rank are swapped, as a branch on the rank does."""
    found = [try_swapped(random.Random(seed)) for seed in range(100 * seeds, 100 * seeds + 100)]
    assert found.count(True) > 5
    assert found.count(False) > 5


def try_swapped(chance: random.Random) -> bool | None:
    ranks, length = chance.randint(2, 4), chance.randint(2, 10)
    words = [f"{'ABCDEFGHIJ'[n]}{w[1:]}" for n, w in enumerate(legal(chance, ranks, length))]
    orders = [[w for w in words if str(rank) in w[1:]] for rank in range(ranks)]
    own = chance.choice([o for o in orders if len(o) > 1] or [orders[0]])
    if len(own) > 1:
        at = chance.randrange(len(own) - 1)
        if own[at][1:] == own[at + 1][1:]:
            return None  # of one set: that is a mismatch, which the counts' hashes show
        own[at], own[at + 1] = own[at + 1], own[at]
    journals = Journals(*(" ".join(order) for order in orders))
    found = bool(journals.circle())
    assert found == (not completes(orders))
    return found


# --------------------------------------------------------------------------- what is made of it


def reports(*orders: str, **state: object) -> dict[int, wire.RankReport]:
    """What ranks say that launched these, in these orders; ``state``: of rank 1."""
    journals = Journals(*orders)
    made = {}
    for rank, launches in journals.launches.items():
        more = state if rank == 1 else {}
        counts = journals.counts[rank]
        said = wire.RankState(rank, 9, "here", "running", ["cpu:0"], launches=counts)
        made[rank] = wire.RankReport(dataclasses.replace(said, **more), [], launches)  # type: ignore[arg-type]
    return made


def test_a_circle_on_cpu_devices_is_certain_and_no_replay_helps() -> None:
    one_gpu, _ = find(reports("A012 B01", "B01 A012", "A012", devices=["gpu:0"]))
    assert one_gpu is not None  # all of it in one order
    found, unsure = find(reports("A012 B01", "B01 A012", "A012"))
    assert found is not None
    assert (found.kind, found.culprits, found.others) == ("circle", (0, 1), (2,))
    assert found.is_hopeless
    assert found.cells and found.cell_seq == max(found.cells)
    assert found.lines[0].startswith("Deadlock: the ranks waited for each other")
    assert unsure == []


def test_a_rank_in_the_compiler_waits_for_the_others_as_in_a_launch() -> None:
    """Rank 0 waits in a launch of all for rank 1, which compiles one of both."""
    made = reports("A012 A012", "A012", "A012 A012")
    announced = wire.Launch(0, "0,1", "jit(b)", wire.compiling_fingerprint(7))
    found, _ = find({**made, 1: dataclasses.replace(made[1], announced=announced)})
    assert found is not None
    assert (found.kind, found.culprits, found.hopeless) == (
        "circle",
        (0, 1),
        "they wait for each other",
    )
    assert find(made) == (None, [])


@pytest.mark.parametrize("compiles", [True, False])
def test_who_announces_can_leave_a_circle_and_who_compiles_can_not(compiles: bool) -> None:
    """Rank 0 has announced a launch of all, and rank 1 is to make one of both, or compiles it."""
    made = reports("A012", "A012", "A012")
    fingerprint = wire.compiling_fingerprint(7) if compiles else 7
    waits = {
        0: wire.Launch(1, "0,1,2", "jit(a)", 5),
        1: wire.Launch(0, "0,1", "jit(b)", fingerprint),
    }
    told = {r: dataclasses.replace(one, announced=waits.get(r)) for r, one in made.items()}
    found, _ = find(told)
    assert found is not None
    assert (found.culprits, found.is_hopeless) == ((0, 1), compiles)
    assert may_hear_more(told, found.culprits)
    polls = Polls(CellRecord(1, 1, "", [0, 1, 2]), CellWatch([0, 1, 2], 100.0))
    assert polls.find(told, Facts(101.0, ranks=(0, 1, 2))) == []  # it may hear of another one
    polls.find(told, Facts(102.0, ranks=(0, 1, 2)))
    assert polls.report == found


def test_where_something_else_may_launch_a_circle_is_told_and_nothing_is_ended() -> None:
    for doubt in ({"background": ["thread 'loader'"]}, {"devices": ["cuda:0", "cuda:1"]}):
        found, unsure = find(reports("A012 B01", "B01 A012", "A012", **doubt))
        assert found is None
        assert unsure[0].startswith("Deadlock: the ranks wait for each other")


def test_a_circle_of_many_ranks_is_told_briefly_where_it_is_not_certain() -> None:
    letters = "ABCDEFGH"
    sets = [f"{letters[n]}{n}{(n + 1) % 8} {letters[n - 1]}{(n - 1) % 8}{n}" for n in range(8)]
    _, unsure = find(reports(*sets, background=["thread 'loader'"]))
    first, *lines, more, hint = unsure
    assert len(lines) == 3 and more == "... and 5 more."
    assert first.endswith("in different orders:") and hint.startswith("Hint: ")


def test_ranks_in_lockstep_have_no_circle() -> None:
    assert find(reports("A01", "A01")) == (None, [])


def test_a_rank_that_waits_for_nobody_closes_no_circle() -> None:
    assert _cycle({0: [1], 2: [0]}) == []
    assert _cycle({0: [3, 1], 1: [0]}) == [0, 1]


def test_a_cpu_runs_its_programs_in_one_order() -> None:
    assert not _may_run_side_by_side(["cpu:0", "cpu:1"])
    assert not _may_run_side_by_side(["cuda:0"])
    assert _may_run_side_by_side(["cuda:0", "cuda:1"])

"""What journals tell after a death: who launched another program, and when nobody did."""

from __future__ import annotations

from dataclasses import replace

from jaxcluster import wire
from jaxcluster.model import postmortem

SMALL, LARGE, OTHER = 11, 22, 33
SHAPES = {SMALL: "float32[4,3]", LARGE: "float32[5,3]", OTHER: "int32[]"}


def launches(
    made: list[int], *, first: int = 0, cell_seq: int = 5, broken: bool = False
) -> list[wire.Launch]:
    found = [
        wire.Launch(seq, "0,1,2", "jit(gather)", fingerprint, 7, 3, SHAPES[fingerprint], cell_seq)
        for seq, fingerprint in enumerate(made, first)
    ]
    if broken:
        last = found[-1]
        name = f"{last.name}{wire.BROKEN_OFF} by JaxRuntimeError"
        found[-1] = replace(last, name=name, fingerprint=last.fingerprint ^ 0xFFFF)
    return found


def report(rank: int, made: list[wire.Launch]) -> wire.RankReport:
    state = wire.RankState(rank, 100 + rank, "here", "running")
    return wire.RankReport(state, [], made)


def cause(living: dict[int, list[wire.Launch]], dead: dict[int, list[wire.Launch]]):
    return postmortem.cause({r: report(r, m) for r, m in living.items()}, dead, 7, 5, {})


def test_an_innocents_death_names_who_launched_another_program() -> None:
    same = launches([SMALL, SMALL])
    found = cause({0: same, 2: launches([SMALL, LARGE])}, {1: same})
    assert found is not None
    assert (found.kind, found.seq, found.culprits, found.others) == ("mismatch", 1, (2,), (0, 1))
    shapes = "rank 2: float32[5,3]; ranks 0, 1: float32[4,3], cell [7] line 3."
    assert shapes in str(found)
    assert "with different shapes" in str(found)


def test_what_the_dead_rank_launched_is_known_too() -> None:
    same = launches([SMALL, SMALL])
    found = cause({0: same, 2: same}, {1: launches([SMALL, LARGE])})
    assert found is not None
    assert found.culprits == (1,)


def test_a_rank_that_died_before_it_launched_as_many_is_no_finding() -> None:
    same = launches([SMALL, LARGE])
    assert cause({0: same, 2: same}, {1: launches([SMALL])}) is None
    assert cause({0: same, 2: same}, {1: []}) is None
    assert cause({}, {0: same, 1: same, 2: same}) is None


def test_what_a_death_has_broken_off_is_the_program_that_it_was() -> None:
    same, broken = launches([SMALL, LARGE]), launches([SMALL, LARGE], broken=True)
    assert cause({0: broken, 2: broken}, {1: same}) is None
    assert cause({0: broken, 2: same}, {1: same}) is None
    found = cause({0: broken, 2: launches([SMALL, SMALL], broken=True)}, {1: same})
    assert found is not None
    assert found.culprits == (2,)
    assert "aborted" not in str(found)


def test_what_differed_in_earlier_cells_is_not_this_cells() -> None:
    earlier = launches([OTHER], cell_seq=4)
    living = {0: earlier + launches([SMALL], first=1)}
    dead = {1: launches([SMALL], cell_seq=4) + launches([SMALL], first=1)}
    assert cause(living, dead) is None


def test_what_a_rank_calls_and_others_compute_is_no_evidence() -> None:
    same = launches([SMALL])
    other = [replace(entry, fingerprint=OTHER) for entry in same]
    assert cause({0: same, 3: other}, {1: same}) is None


def test_each_set_has_an_order_of_its_own() -> None:
    pair = [wire.Launch(0, "0,1", "jit(f)", OTHER, 7, 2, "", 5)]
    same = launches([SMALL])
    assert cause({0: pair + same, 2: same}, {1: same + pair}) is None


def test_what_threads_launch_is_no_evidence() -> None:
    """They launch by their order alone: at one place it is another thread's turn."""
    loader = launches([SMALL, OTHER, SMALL], cell_seq=0)
    shifted = launches([OTHER, SMALL, OTHER], cell_seq=0)
    own = launches([LARGE], first=3)
    assert cause({0: loader + own, 2: loader + own}, {1: shifted + own}) is None
    late = launches([OTHER]), launches([SMALL], cell_seq=0)  # it was the thread's turn there
    assert cause({0: late[0], 2: late[0]}, {1: late[1]}) is None
    found = cause({0: loader + own, 2: loader + own}, {1: shifted + launches([SMALL], first=3)})
    assert found is not None
    assert found.seq == 3

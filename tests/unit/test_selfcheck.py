"""The check after a recovery: what is summed, and that only all ranks' right answers count."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from jaxcluster.cluster import selfcheck
from jaxcluster.engine.selfcheck import MODULUS, _is_right, divide, expected
from jaxcluster.wire import Death, Failure
from jaxcluster.wire.link import Event, Sink
from jaxcluster.wire.ops.lockstep import Checked


def as_key(divisions: list[list[list[int]]]) -> tuple[Any, ...]:
    return tuple(tuple(tuple(group) for group in groups) for groups in divisions)


def test_without_other_communicators_all_devices_are_summed_once() -> None:
    assert divide([], 4) == [[[0, 1, 2, 3]]]
    assert divide([[0, 1, 2, 3]], 4) == [[[0, 1, 2, 3]]]


def test_communicators_that_share_no_device_are_summed_together() -> None:
    groups = [[2, 3], [0, 1], [0, 2], [1, 3]]
    assert divide(groups, 4) == [[[0, 1, 2, 3]], [[0, 1], [2, 3]], [[0, 2], [1, 3]]]


def test_each_communicator_is_in_a_division_in_its_own_order() -> None:
    groups = [[3, 2, 1, 0], [0, 1], [2, 3, 1], [1, 0]]
    divisions = divide(groups, 5)
    for group in groups:
        assert sum(group in division for division in divisions) == 1
    for division in divisions:
        assert sorted(i for group in division for i in group) == [0, 1, 2, 3, 4]


def test_the_order_in_which_they_are_told_changes_nothing() -> None:
    groups = [[0, 1], [2, 3], [0, 2], [3, 2, 1, 0]]
    assert divide(groups, 4) == divide(groups[::-1], 4)


def test_sums_go_on_from_the_sums_before() -> None:
    divisions = as_key([[[0, 1, 2]], [[0, 1], [2]]])
    assert expected(divisions, 10).tolist() == [[33, 66], [33, 66], [33, 33]]


def test_sums_stay_within_32_bits() -> None:
    divisions = as_key([[list(range(4096))]] * 5)
    sums = expected(divisions, MODULUS - 1)
    assert sums.dtype == np.int32
    assert (sums >= 0).all()


def test_another_number_gives_another_sum_in_every_division() -> None:
    divisions = as_key(divide([[0, 1], [1, 2], [3, 1]], 4))
    assert (expected(divisions, 5) != expected(divisions, 6)).all()


def test_one_wrong_sum_on_one_device_makes_it_wrong() -> None:
    """A rank has several devices, and each of them a sum for every division."""
    wanted = np.arange(12).reshape(4, 3)

    def sums(wrong: tuple[int, int] | None) -> Any:
        found = wanted.copy()
        if wrong is not None:
            found[wrong] += 1
        shards = [
            SimpleNamespace(data=found[at : at + 1], index=(slice(at, at + 1), slice(None)))
            for at in (1, 2)
        ]
        return SimpleNamespace(addressable_shards=shards)

    assert _is_right(sums(None), wanted)
    assert _is_right(sums((0, 0)), wanted)  # another rank's
    for device in (1, 2):
        for division in range(3):
            assert not _is_right(sums((device, division)), wanted)


# ------------------------------------------------------------------------------ the notebook's part


class Ranks:
    """Answers as three ranks would, except for what a test says of one of them."""

    ranks = (0, 1, 2)

    def __init__(self, **odd: Any) -> None:
        self.odd = odd  # op -> what rank 1 answers; None: nothing
        self.asked: list[tuple[str, Any]] = []
        self.computed = 0.0

    def _answer(self, rank: int, op: str, body: Any) -> Event[Any] | None:
        if rank == 1 and op in self.odd:
            answer = self.odd[op]
            return None if answer is None else Event(rank, *answer[:1], "", answer[1])
        if op == "busy":
            return Event(rank, "reply", "", self.computed)
        divisions = [[[0, 1, 2]]]
        right = Checked(True, "", {"0,1,2": [7, 7]})
        return Event(rank, "reply", "", divisions if op == "prepare_check" else right)

    def gather(self, ranks: Any, request: Any, **rest: Any) -> dict[int, Event[Any]]:
        self.asked.append((request.op, request))
        answers = {rank: self._answer(rank, request.op, request) for rank in ranks}
        return {rank: event for rank, event in answers.items() if event is not None}

    def request_each(self, each: Any, *, sink: Sink) -> list[str]:
        for rank, request in each.items():
            self.asked.append((request.op, request))
            if (event := self._answer(rank, request.op, request)) is not None:
                sink.put(event)
        return [str(rank) for rank in each]

    def forget(self, ids: Any) -> None:
        pass


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(selfcheck, "CHECK_S", 0.01)
    monkeypatch.setattr(selfcheck, "PATIENCE_S", 0.05)


def test_right_sums_on_all_ranks_are_in_step_with_the_counts_of_then() -> None:
    verdict = selfcheck.verify(Ranks())
    assert verdict.why == ""
    assert verdict.counts == {rank: {"0,1,2": [7, 7]} for rank in range(3)}


@pytest.mark.parametrize(
    ("op", "answer", "why"),
    [
        ("self_check", ("reply", Checked(False, "came out wrong", {})), "came out wrong"),
        ("self_check", ("error", Failure("E", "Gloo all-reduce failed\nat..")), "failed (Gloo all"),
        ("self_check", ("died", Death("killed by SIGKILL")), "killed by SIGKILL"),
        ("self_check", None, "did not end within"),
        ("prepare_check", None, "was not ready within"),
        ("prepare_check", ("error", Failure("E", "no jax")), "failed (no jax)"),
        ("prepare_check", ("error", Failure("AssertionError", "")), "failed (AssertionError)"),
    ],
)
def test_one_rank_alone_makes_it_wrong(op: str, answer: Any, why: str) -> None:
    verdict = selfcheck.verify(Ranks(**{op: answer}))
    assert why in verdict.why
    assert "on rank 1" in verdict.why


def test_no_two_checks_sum_the_same_numbers() -> None:
    ranks = Ranks()
    for _ in range(5):
        selfcheck.verify(ranks)
    numbers = [body.number for op, body in ranks.asked if op == "self_check"]
    assert len(numbers) == 15
    assert len(set(numbers)) == 5


def test_all_ranks_take_the_divisions_that_one_has_found() -> None:
    ranks = Ranks(prepare_check=("reply", [[[2, 1, 0]]]))
    selfcheck.verify(ranks)
    bodies = [body for op, body in ranks.asked if op == "self_check"]
    assert [body.divisions for body in bodies] == [[[[0, 1, 2]]]] * 3

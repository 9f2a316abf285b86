"""What notebooks are told of a rank's variables that have not changed them."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from jaxcluster import wire
from jaxcluster.engine import change_notices
from jaxcluster.engine.names import Names

A, B = b"a", b"b"


class Rank:
    """With two notebooks, and a loop whose timers are rung by hand."""

    def __init__(self) -> None:
        self.namespace: dict[str, Any] = {}
        self.names = Names()
        self.is_busy = False
        self.behind: set[bytes] = set()
        self.clients = [A, B]
        self.said: list[tuple[bytes, str, Any]] = []
        self.timers: list[SimpleNamespace] = []
        control: Any = SimpleNamespace(
            others=lambda ident: [one for one in self.clients if one != ident],
            is_behind=self.behind.__contains__,
            post=self.post,
            call_main=lambda do: do(),
        )
        self.others = change_notices.ChangeNotices(control, self.names, lambda: self.is_busy)
        self.others.attach(self.namespace, self.call_later)

    def post(self, ident: bytes, message: bytes) -> None:
        told = wire.decode(message)
        self.said.append((ident, told["op"], told["body"]))

    def call_later(self, seconds: float, do: Callable[[], object]) -> Any:
        timer = SimpleNamespace(do=do, seconds=seconds, is_off=False)
        timer.cancel = lambda: setattr(timer, "is_off", True)
        self.timers.append(timer)
        return timer

    def ring(self) -> None:
        timers, self.timers = self.timers, []
        for timer in timers:
            if not timer.is_off:
                timer.do()

    def run(self, whose: bytes, seq: int, **bound: Any) -> None:
        """A cell that binds names."""
        self.namespace.update(bound)
        self.names.values.note(None, self.namespace)
        self.names.changes(whose, self.namespace)  # with its reply
        self.others.cell_ended(whose, seq)

    def heard(self) -> list[tuple[bytes, str, Any]]:
        said, self.said = self.said, []
        return said


@pytest.fixture
def rank() -> Rank:
    return Rank()


def test_the_other_notebook_hears_what_a_cell_has_bound(rank: Rank) -> None:
    rank.run(A, 1, x=5)
    ((who, op, body),) = rank.heard()
    assert (who, op, body["seq"]) == (B, "named", 1)
    assert body["changes"] == {"bound": ["x"], "gone": [], "is_first": True, "values": {"x": "=5"}}
    rank.run(B, 2, x=6)
    assert [(who, op) for who, op, _ in rank.heard()] == [(A, "named")]
    rank.run(B, 3)
    assert rank.heard() == []  # nothing is new


def test_what_was_told_holds_no_more_when_something_else_changes_variables(rank: Rank) -> None:
    rank.run(A, 1, x=5)
    rank.heard()
    rank.others.spoil(B, undone=1)
    assert rank.heard() == [(A, "spoiled", {"undone": 1})]
    rank.namespace["x"] = 7
    rank.ring()
    ((who, op, body),) = rank.heard()
    assert (who, op) == (A, "named")
    assert body["changes"]["is_first"]
    assert body["changes"]["values"] == {"x": "=7"}


def test_while_a_clients_code_runs_nothing_is_told(rank: Rank) -> None:
    """It may change what has just been told."""
    rank.run(A, 1, x=5)
    rank.heard()
    rank.others.enter()
    assert {(who, op) for who, op, _ in rank.heard()} == {(A, "spoiled"), (B, "spoiled")}
    rank.ring()
    assert rank.heard() == []
    rank.namespace["x"] = 8
    rank.others.leave()
    rank.ring()
    assert [(who, body["changes"]["values"]) for who, _, body in sorted(rank.heard())] == [
        (A, {"x": "=8"}),
        (B, {"x": "=8"}),
    ]


def test_while_a_cell_runs_nothing_is_told_before_its_end(rank: Rank) -> None:
    rank.run(A, 1, x=5)
    rank.others.spoil(B)
    rank.heard()
    rank.is_busy = True
    rank.ring()
    assert rank.heard() == []
    rank.run(B, 2, x=9)
    ((_, _, body),) = rank.heard()
    assert body["changes"]["is_first"]


def test_many_changes_are_told_once(rank: Rank) -> None:
    rank.run(A, 1, x=5)
    rank.heard()
    for _ in range(5):
        rank.others.spoil(B)
    assert [(who, op) for who, op, _ in rank.heard()] == [(A, "spoiled")]
    rank.others.spoil(B, undone=1)
    assert rank.heard() == [(A, "spoiled", {"undone": 1})]
    assert [timer.is_off for timer in rank.timers] == [True] * 5 + [False]


def test_a_stopped_notebooks_messages_do_not_pile_up(rank: Rank) -> None:
    rank.run(A, 1, x=5)
    rank.heard()
    rank.behind.add(B)
    rank.run(A, 2, x=6)
    assert rank.heard() == []
    rank.behind.clear()
    rank.run(A, 3, y=1)
    ((_, _, body),) = rank.heard()
    assert body["changes"]["is_first"]
    assert set(body["changes"]["bound"]) == {"x", "y"}


def test_a_reply_waits_while_another_notebook_saves_the_rank(rank: Rank) -> None:
    sent: list[bytes] = []
    rank.others.hold(A, True)
    rank.others.answer(A, lambda: sent.append(A))
    rank.others.answer(B, lambda: sent.append(B))
    assert sent == [A]
    rank.others.hold(A, False)
    assert sent == [A, B]
    rank.others.answer(B, lambda: sent.append(B))
    assert sent == [A, B, B]


def test_it_does_not_wait_for_ever(rank: Rank) -> None:
    """Who holds it back may have been killed, and the ranks be kept by another."""
    sent: list[bytes] = []
    rank.others.hold(A, True)
    rank.others.answer(B, lambda: sent.append(B))
    assert [timer.seconds for timer in rank.timers] == [change_notices.HOLD_S]
    rank.ring()
    assert sent == [B]


def test_the_limit_of_one_that_was_given_up_ends_no_later_one(rank: Rank) -> None:
    sent: list[bytes] = []
    rank.others.hold(A, True)
    rank.others.hold(A, False)
    first = rank.timers.pop()
    rank.others.hold(A, True)
    rank.others.answer(B, lambda: sent.append(B))
    first.do()
    assert sent == []
    rank.ring()
    assert sent == [B]


def test_one_that_is_let_go_at_that_moment_is_sent(rank: Rank) -> None:
    sent: list[bytes] = []
    rank.others.hold(A, True)
    held = rank.others._held = LetGo(rank)  # type: ignore[assignment]
    rank.others.answer(B, lambda: sent.append(B))
    assert (sent, held) == ([B], [])


class LetGo(list[Callable[[], object]]):
    """The other thread has let go just before something is added."""

    def __init__(self, rank: Rank) -> None:
        self._rank = rank

    def append(self, send: Callable[[], object]) -> None:
        self._rank.others._holder = b""
        super().append(send)

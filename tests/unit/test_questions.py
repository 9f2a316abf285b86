"""Whose turn it is, where several ranks ask, and how a question looks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from jaxcluster import wire
from jaxcluster.cluster.questions import (
    GATHER_S,
    CannotAsk,
    Conversation,
    Prompt,
)

T0 = 100.0


def question(rank: int, id: int = 1, prompt: str = "? ", **more: Any) -> wire.Question:
    return wire.Question(rank, id, prompt, **more)


def pdb(rank: int, id: int = 1) -> wire.Question:
    return question(rank, id, debugger=True)


def test_the_lowest_rank_is_first_if_ranks_ask_at_about_the_same_time() -> None:
    talk, person, _ = conversation(None, "go on", "go on")
    talk.add(pdb(2), T0)
    talk.step(T0 + GATHER_S / 2, [0, 1, 2])
    talk.add(pdb(0), T0 + GATHER_S / 2)
    for at in (GATHER_S / 2, 10, 10, 10 + GATHER_S):
        talk.step(T0 + at, [0, 1, 2])
    assert person.asked == ["rank 0> ? ", "rank 2> ? "]


@pytest.mark.parametrize(("at", "running"), [(T0 + GATHER_S, [0, 1, 2]), (T0, [2])])
def test_a_rank_alone_does_not_wait_for_others_for_long(at: float, running: list[int]) -> None:
    talk, person, _ = conversation(None)
    talk.add(pdb(2), T0)
    talk.step(at, running)
    assert person.asked == ["rank 2> ? "]


def test_a_rank_that_asks_again_soon_keeps_its_turn() -> None:
    talk, person, _ = conversation("n", "c", "n")
    for rank in (0, 1):
        talk.add(pdb(rank), T0)
    talk.step(T0, [0, 1])
    talk.step(T0 + 0.1, [0, 1])
    talk.add(pdb(0, 2), T0 + 0.1)
    talk.step(T0 + 0.1, [0, 1])
    talk.step(T0 + 0.1 + GATHER_S, [0, 1])
    assert person.asked == ["rank 0> ? ", "rank 0> ? ", "rank 1> ? "]


def test_who_has_ended_the_cell_asks_no_longer_and_holds_up_nobody() -> None:
    talk, person, _ = conversation(None, "c")
    for rank in (0, 1):
        talk.add(pdb(rank), T0)
    talk.step(T0, [0, 1])
    talk.withdraw(3)
    talk.withdraw(0)
    talk.step(T0, [1])
    assert person.asked == ["rank 0> ? ", "rank 1> ? "]
    assert talk.look_s is None


# ----------------------------------------------------------------------------------- conversation


class Link:
    def __init__(self) -> None:
        self.sent: list[tuple[int, Any]] = []

    def request_each(self, each: Mapping[int, Any], sink: Any) -> None:
        self.sent += each.items()


class Person(Prompt):
    def __init__(self, *answers: Any) -> None:
        self.shown: list[int] = []
        super().__init__(lambda output: self.shown.append(output.rank))
        self.answers = list(answers)
        self.asked: list[str] = []

    def open(self, question: wire.Question, text: str) -> None:
        if self.answers[0] is CannotAsk:
            raise CannotAsk("nobody is here")
        self.asked.append(text)

    def poll(self) -> Any:
        answer = self.answers.pop(0)
        if answer is EOFError:
            raise EOFError
        return answer


def conversation(*answers: Any) -> tuple[Conversation, Person, Link]:
    person, link = Person(*answers), Link()
    return Conversation(link, person), person, link  # type: ignore[arg-type]


def test_after_an_interrupt_nothing_is_asked() -> None:
    talk, _, link = conversation(None, None)
    talk.add(question(0), T0)
    talk.step(T0, [0])
    talk.end()
    talk.add(question(0, 2), T0)
    talk.step(T0, [0])
    assert (link.sent, talk.look_s) == ([], None)


def test_who_asks_stands_above_with_what_its_debugger_has_put_out(
    capsys: pytest.CaptureFixture[str],
) -> None:
    talk, person, _ = conversation("", "", "")
    said = wire.RankOutput(2, 1, "stream", {"name": "stdout", "text": "> cell"})
    talk.hear(said)  # before it was in the debugger
    talk.paused(2, "debugger")
    talk.hear(said)
    talk.add(question(0), T0)
    talk.add(pdb(2), T0)
    talk.step(T0, [0, 2])
    assert capsys.readouterr().out == "── rank 0 asks (rank 2 too, in turn) ──\n"
    assert person.shown == []
    talk.step(T0 + GATHER_S, [0, 2])
    assert capsys.readouterr().out == "── rank 2 asks ──\n"
    assert person.shown == [2]
    talk.paused(2, "")
    talk.hear(said)
    talk.add(pdb(2, 2), T0 + GATHER_S)
    talk.step(T0 + GATHER_S, [0, 2])
    assert (person.shown, capsys.readouterr().out) == ([2], "")

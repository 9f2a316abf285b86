"""Whose turn it is, where several ranks ask, and how a question looks."""

from __future__ import annotations

from typing import Any

import pytest

from jaxcluster import wire
from jaxcluster.cluster.questions import (
    GATHER_S,
    NOBODY,
    CannotAsk,
    Conversation,
    KernelPrompt,
    Prompt,
)
from jaxcluster.wire.ops.cells import Answer

T0 = 100.0


def question(rank: int, id: int = 1, prompt: str = "? ", **more: Any) -> wire.Question:
    return wire.Question(rank, 1, id, prompt, **more)


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


def test_ranks_that_ask_the_same_are_asked_once() -> None:
    talk, person, link = conversation("a", "b", "c")
    for rank in (0, 2):
        talk.add(question(rank, 7 + rank), T0)
    talk.step(T0, [0, 1, 2])
    assert person.asked == []  # rank 1 runs the same cell
    talk.step(T0 + GATHER_S, [0, 1, 2])
    talk.add(question(1, 3), T0 + 60)  # it came later
    for rank in (0, 1):
        talk.add(question(rank, 20, f"{rank}? "), T0 + 90)  # something else
    for at in (T0 + 90, T0 + 90 + GATHER_S):
        talk.step(at, [0, 1])
    assert person.asked == ["ranks 0, 2> ? ", "rank 0> 0? ", "rank 1> 1? "]
    answers = {(0, 7): "a", (2, 9): "a", (1, 3): "a", (0, 20): "b", (1, 20): "c"}
    assert link.sent == [(rank, Answer(id, text)) for (rank, id), text in answers.items()]


# ----------------------------------------------------------------------------------- conversation


class Link:
    def __init__(self) -> None:
        self.sent: list[tuple[int, Any]] = []

    def request(self, rank: int, request: Any, sink: Any) -> None:
        self.sent.append((rank, request))


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


def test_an_answer_goes_to_the_rank_that_has_asked() -> None:
    talk, person, link = conversation(None, "yes", EOFError)
    assert talk.look_s is None
    talk.add(question(1, 7), T0)
    for _ in range(2):
        talk.step(T0, [1])
    assert person.asked == ["rank 1> ? "]
    assert link.sent == [(1, Answer(7, "yes"))]
    talk.add(question(1, 8), T0)
    talk.step(T0, [1])
    assert link.sent[1:] == [(1, Answer(8, eof=True))]


def test_what_can_not_be_asked_is_refused_with_the_reason() -> None:
    talk, _, link = conversation(CannotAsk)
    talk.add(question(0, debugger=True), T0)
    talk.step(T0, [0])
    assert link.sent == [(0, Answer(1, refused="a debugger on rank 0: nobody is here"))]
    talk.prompt = None
    talk.add(question(0, 2), T0)
    assert "Run it without --async" in link.sent[1][1].refused


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


# ------------------------------------------------------------------------------------- the kernel


class Kernel:
    """The parts of ipykernel's kernel that a prompt uses."""

    def __init__(self, allow_stdin: bool = True) -> None:
        self._allow_stdin = allow_stdin
        self._parent_ident = {"shell": b"page"}
        self.stdin_socket = self
        self.session = self
        self.sent: list[Any] = []
        self.replies: list[Any] = []

    def get_parent(self, channel: str) -> str:
        return "the cell"

    def recv_multipart(self, flags: int) -> Any:
        import zmq

        raise zmq.Again

    def send(self, socket: Any, kind: str, content: Any, parent: Any, ident: Any) -> Any:
        self.sent.append((kind, content, parent, ident))
        return {"header": {"msg_id": f"q{len(self.sent)}"}}

    def recv(self, socket: Any, mode: int) -> Any:
        return (b"page", self.replies.pop(0)) if self.replies else (None, None)


def kernel_prompt(kernel: Kernel) -> KernelPrompt:
    prompt = KernelPrompt(lambda output: None)
    prompt.kernel = kernel
    return prompt


def reply(value: str, to: str | None = None) -> dict[str, Any]:
    header = {"parent_header": {"msg_id": to}} if to else {}
    return {"content": {"value": value}, **header}


def test_a_kernel_asks_its_frontend_as_input_does() -> None:
    kernel = Kernel()
    prompt = kernel_prompt(kernel)
    prompt.open(question(3, secret=True), "rank 3> name? ")
    content = {"prompt": "rank 3> name? ", "password": True}
    assert kernel.sent == [("input_request", content, "the cell", b"page")]
    assert prompt.poll() is None
    kernel.replies = [reply("late", "q0"), reply("bob", "q1")]
    assert prompt.poll() is None  # the answer to a question that was taken back
    assert prompt.poll() == "bob"
    kernel.replies = [reply("\x04")]
    with pytest.raises(EOFError):
        prompt.poll()


def test_a_kernel_whose_frontend_can_not_ask_says_what_to_do() -> None:
    with pytest.raises(CannotAsk, match="nbconvert"):
        kernel_prompt(Kernel(allow_stdin=False)).open(question(0), "")
    assert "Set the value" in NOBODY

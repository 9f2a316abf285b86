"""The questions of the ranks of one cell, put to the user one after another, and the answers.

Ranks that run the same cell ask the same: one answer serves all of them. Questions are the same if
each is its rank's nth in the cell, with the same prompt. A debugger's are its own rank's alone. A
rank that asks again soon after an answer, as a debugger does, keeps its turn. Else the lowest rank
that asks is next.
"""

from __future__ import annotations

import contextlib
import functools
import getpass
import sys
import threading
from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import replace
from typing import Any

from jaxcluster import wire
from jaxcluster.host import kernel_private
from jaxcluster.ranks import name_ranks
from jaxcluster.wire.link import Link, Sink
from jaxcluster.wire.ops.cells import Answer

GATHER_S = 0.3  # for other ranks to ask too, and for an answered one to ask again
LOOK_S = 0.02  # between two looks whether there is an answer
IN_BACKGROUND = (
    "this cell runs in the background (--async, or on a thread) and can't ask. Run it without "
    "--async, or set the value in an earlier cell"
)
NOBODY = (
    "this notebook runs without a prompt (as in nbconvert or papermill). Set the value in a cell "
    "instead"
)
END_OF_FILE = "\x04"  # a frontend sends this

# Which one of its rank's, its prompt, whether it is secret; of a debugger its rank and number.
Key = tuple[int, str, bool] | tuple[int, int]


class CannotAsk(Exception):
    """Why nobody can be asked."""


class Prompt:
    """The prompt for questions: a terminal, or this process's input. It waits for the answer.

    Args:
      show: shows an output of a rank in a debugger, whose output is not shown otherwise.
      before: called before a rank asks, so that half-shown output makes room.
    """

    def __init__(
        self, show: Callable[[wire.RankOutput], None], before: Callable[[], None] = lambda: None
    ) -> None:
        self.show, self.before = show, before
        self._ask: Callable[[], str] | None = None

    def open(self, question: wire.Question, text: str) -> None:
        """Ask it; ``text`` is the prompt as it is shown.

        Raises:
          CannotAsk: nobody can be asked.
        """
        self._ask = functools.partial(getpass.getpass if question.secret else input, text)

    def poll(self) -> str | None:
        """The answer; None while there is none.

        Raises:
          EOFError: there will be none.
        """
        ask, self._ask = self._ask, None
        return ask() if ask is not None else None


class KernelPrompt(Prompt):
    """A notebook's: the frontend shows a field below the cell that runs.

    ipykernel's own ``input`` would wait only for the answer, and hear nothing else from ranks. So
    this sends the same message, and looks for the answer now and then.
    """

    kernel: Any
    _asked = ""

    def open(self, question: wire.Question, text: str) -> None:
        import zmq

        kernel = self.kernel
        if (asker := kernel_private.asker(kernel)) is None:
            raise CannotAsk(NOBODY)
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        with contextlib.suppress(zmq.ZMQError):  # answers that came too late
            while True:
                kernel.stdin_socket.recv_multipart(zmq.NOBLOCK)
        sent = kernel.session.send(
            kernel.stdin_socket,
            "input_request",
            {"prompt": text, "password": question.secret},
            kernel.get_parent("shell"),
            ident=asker,
        )
        self._asked = sent["header"]["msg_id"]

    def poll(self) -> str | None:
        import zmq

        _, reply = self.kernel.session.recv(self.kernel.stdin_socket, zmq.NOBLOCK)
        if reply is None:
            return None
        asked = (reply.get("parent_header") or {}).get("msg_id", self._asked)
        if asked != self._asked:  # the answer to a question that was taken back
            return None
        answer = str(reply["content"]["value"])
        if answer == END_OF_FILE:
            raise EOFError
        return answer


def here(
    show: Callable[[wire.RankOutput], None], before: Callable[[], None] = lambda: None
) -> Prompt | None:
    """This process's prompt; None on a thread that may not ask."""
    if threading.current_thread() is not threading.main_thread():
        return None
    ipython = sys.modules.get("IPython")
    kernel = getattr(ipython.get_ipython(), "kernel", None) if ipython is not None else None
    if kernel is None:
        return Prompt(show, before)
    prompt = KernelPrompt(show, before)
    prompt.kernel = kernel
    return prompt


class Conversation:
    """The questions of one cell.

    The first rank's output is shown as it comes. That of a rank in a debugger is shown when it is
    that rank's turn.

    Attributes:
      prompt: where they are put; None in the background, where nobody can be asked.
    """

    def __init__(self, link: Link, prompt: Prompt | None = None) -> None:
        self.prompt, self._link = prompt, link
        self._waiting: list[tuple[Key, wire.Question]] = []
        self._open: Key | None = None
        self._speaker: int | None = None  # who was asked last
        self._changed_at = 0.0  # when the last question or answer came
        self._counts: Counter[int] = Counter()
        self._answers: dict[Key, Answer] = {}  # also for ranks that ask the same later
        self._heard: dict[int, list[wire.RankOutput]] = {}  # of ranks in a debugger
        self._is_over = False

    @property
    def look_s(self) -> float | None:
        """How soon ``step`` is due; None while nobody asks."""
        return LOOK_S if self._waiting else None

    def add(self, question: wire.Question, now: float) -> None:
        """A rank asks."""
        if self.prompt is None:
            self._send(question, Answer(0, refused=IN_BACKGROUND))
        elif not self._is_over:
            key: Key = (question.rank, question.id)
            if not question.debugger:
                self._counts[question.rank] += 1
                key = (self._counts[question.rank], question.prompt, question.secret)
            if key in self._answers:
                self._send(question, self._answers[key])
            else:
                self._waiting.append((key, question))
                self._changed_at = now

    def step(self, now: float, running: Collection[int]) -> None:
        """Ask the next question, and pass on the answer.

        Args:
          running: the ranks that have not ended the cell.

        Raises:
          KeyboardInterrupt: the stop button was pressed in place of an answer.
        """
        if self.prompt is None or not self._waiting:
            return
        try:
            if self._open is None:
                self._ask_next(self.prompt, now, running)
            if self._open is None or (text := self.prompt.poll()) is None:
                return
            answer = Answer(0, text)
        except EOFError:
            answer = Answer(0, eof=True)
        except Exception as why:  # CannotAsk, or this process has no terminal
            answer = Answer(0, refused=str(why))
        assert self._open is not None
        answered, self._open, self._changed_at = self._open, None, now
        same = [question for key, question in self._waiting if key == answered]
        self._waiting = [one for one in self._waiting if one[0] != answered]
        if answer.refused is None:
            self._answers[answered] = answer
        for question in same:
            self._send(question, answer)

    def _ask_next(self, prompt: Prompt, now: float, running: Collection[int]) -> None:
        asking = {question.rank for _, question in self._waiting}
        is_again = self._speaker in asking
        rank = self._speaker if is_again else min(asking)
        key, question = next(one for one in self._waiting if one[1].rank == rank)
        may_come = not (is_again and question.debugger) and not asking.issuperset(running)
        if may_come and now < self._changed_at + GATHER_S:
            return
        same = {one.rank for other, one in self._waiting if other == key}
        self._open, self._speaker = key, question.rank
        prompt.before()
        heard = self._heard.get(question.rank, [])
        if not is_again and (asking - same or heard):
            also = f" ({name_ranks(asking - same)} too, in turn)" if asking - same else ""
            print(f"── rank {rank} asks{also} ──")
        for output in heard:
            prompt.show(output)
        heard.clear()
        prompt.open(question, f"{name_ranks(same)}> {question.prompt}")

    def _send(self, question: wire.Question, answer: Answer) -> None:
        if answer.refused is not None:
            what = "a debugger" if question.debugger else "input()"
            answer = replace(answer, refused=f"{what}: {answer.refused}")
        self._link.request_each({question.rank: replace(answer, id=question.id)}, sink=Sink())

    def paused(self, rank: int, kind: str) -> None:
        """A rank is held by a person from now on, in ``kind``; "" if it is not any more."""
        if kind == "debugger":
            self._heard.setdefault(rank, [])
        else:
            self._heard.pop(rank, None)

    def hear(self, output: wire.RankOutput) -> None:
        """A rank has put this out."""
        if output.rank in self._heard:
            self._heard[output.rank].append(output)

    def withdraw(self, rank: int) -> None:
        """A rank asks no longer: it has ended the cell, or died."""
        self._waiting = [one for one in self._waiting if one[1].rank != rank]
        if self._open not in {key for key, _ in self._waiting}:
            self._open = None

    def end(self) -> None:
        """The cell is over, or interrupted: nobody answers its questions now."""
        self._is_over, self._open = True, None
        self._waiting.clear()

"""What a rank asks a person: ``input()``, ``getpass()``, and whether somebody holds it.

A question is answered in the notebook whose cell asks. Whoever asks waits, however long the answer
takes, on whatever thread it is. The stop button ends the wait: on the main thread as it ends all
else, on others by taking the question back.

A rank that is held, by a question or a debugger, is neither hung nor diverged, and those that wait
for it aren't either. Its notebook hears of it at once (``paused``), all others at their next poll.
"""

from __future__ import annotations

import builtins
import contextlib
import getpass
import itertools
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from IPython.core.error import StdinNotImplementedError

from jaxcluster import wire
from jaxcluster.wire.ops.cells import Answer

if TYPE_CHECKING:
    from jaxcluster.rank.cells import CellRunner
    from jaxcluster.rank.control import Request

PROMPT_CHARS = 20_000
INPUT, DEBUGGER = "input", "debugger"  # by what a rank is held


class Asking:
    """The questions of one rank, and whether a person holds it.

    A signal handler may use it: it takes no lock.
    """

    def __init__(self, runner: CellRunner) -> None:
        self._runner = runner
        self._ids = itertools.count(1)
        self._open: dict[int, tuple[int, wire.Inbox[Answer | None]]] = {}
        self._holds: list[str] = []

    @property
    def kind(self) -> str:
        """``debugger``, ``input``, or "" while nobody holds the rank."""
        return DEBUGGER if DEBUGGER in self._holds else "".join(self._holds[:1])

    @contextlib.contextmanager
    def held_by(self, kind: str) -> Iterator[None]:
        """Hold it within the block, or until the cell is over."""
        holds = self._holds
        holds.append(kind)
        self._tell()
        try:
            yield
        finally:
            holds.remove(kind)
            self._tell()

    def _tell(self) -> None:
        """The notebook whose cell this is stops its clocks, and says who waits for whom."""
        if (running := self._runner.current) is not None and not self._runner.is_child():
            running.request.send("paused", wire.Paused(self.kind))

    def input(self, prompt: object = "", /) -> str:
        """``builtins.input``."""
        return self._ask(str(prompt), is_secret=False)

    def getpass(self, prompt: object = "Password: ", stream: Any = None, **more: Any) -> str:
        """``getpass.getpass``."""
        return self._ask(str(prompt), is_secret=True)

    def _ask(self, prompt: str, is_secret: bool) -> str:
        runner = self._runner
        running = runner.current
        if running is None or runner.is_child():
            raise StdinNotImplementedError(
                "input() can only be answered while a %%spmd cell runs, and not in a forked process"
            )
        answers: wire.Inbox[Answer | None] = wire.Inbox()
        number = next(self._ids)
        text = wire.clean(wire.shorten(prompt, PROMPT_CHARS))
        question = wire.Question(runner.rank, number, text, is_secret, self.kind == DEBUGGER)
        try:
            with self.held_by(INPUT):
                self._open[number] = (threading.get_ident(), answers)
                running.request.send("ask", question)
                answer = answers.get()
        finally:
            self._open.pop(number, None)
        if answer is None:
            raise KeyboardInterrupt
        if answer.eof:
            raise EOFError
        if answer.refused is not None:
            raise StdinNotImplementedError(answer.refused)
        return answer.text

    def on_answer(self, request: Request[Answer]) -> None:
        """``answer``: one that is late is dropped."""
        if (found := self._open.get(request.body.id)) is not None:
            found[1].put(request.body)

    def stop(self) -> None:
        """The cell is interrupted: threads that ask are told. The main thread gets its signal."""
        for ident, answers in list(self._open.values()):
            if ident != self._runner.main_thread_id:
                answers.put(None)

    def end(self) -> None:
        """The cell is over, and so is what held it: nobody will answer its threads any more."""
        self._holds = []
        for number, (_, answers) in list(self._open.items()):
            answers.put(Answer(number, refused="the cell that asked has ended"))

    def guard(self, shell: Any) -> None:
        """Have ``input`` ask, and ``exit`` end no process that others need."""
        shell.ask_exit = say_how_to_stop  # which IPython's exit and quit call
        # ipykernel puts its own there while ipyparallel's clients run code.
        builtins.input = self.input
        getpass.getpass = self.getpass


def say_how_to_stop() -> None:
    print(
        "exit and quit do nothing on a rank: the others need it. %jaxcluster stop ends the cluster."
    )

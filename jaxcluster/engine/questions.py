"""``input()`` and ``getpass()`` on a rank: answered in the notebook whose cell asks.

Whoever asks waits, however long the answer takes, on whatever thread it is. The stop button ends
the wait: on the main thread as it ends all else, on others by taking the question back.
"""

from __future__ import annotations

import cmd
import itertools
import sys
import threading
from types import FrameType
from typing import TYPE_CHECKING, Any

from IPython.core.error import StdinNotImplementedError

from jaxcluster import wire
from jaxcluster.engine.paused import INPUT
from jaxcluster.wire.ops.cells import Answer

if TYPE_CHECKING:
    from jaxcluster.engine.cells import CellRunner
    from jaxcluster.engine.control import Request

PROMPT_CHARS = 20_000
_CMDLOOP = cmd.Cmd.cmdloop.__code__


class Asking:
    """The questions of one rank."""

    def __init__(self, runner: CellRunner) -> None:
        self._runner = runner
        self._ids = itertools.count(1)
        self._open: dict[int, tuple[int, wire.Inbox[Answer | None]]] = {}

    def input(self, prompt: object = "", /) -> str:
        """``builtins.input``."""
        return self._ask(str(prompt), is_secret=False)

    def getpass(self, prompt: object = "Password: ", stream: Any = None, **more: Any) -> str:
        """``getpass.getpass``."""
        return self._ask(str(prompt), is_secret=True)

    def _ask(self, prompt: str, is_secret: bool) -> str:
        runner = self._runner
        running = runner.current
        is_debugger = _is_of_a_debugger(sys._getframe(2))
        if running is None or runner.is_child():
            raise StdinNotImplementedError(
                "a process forked by a cell can't ask: ask before the fork"
                if running is not None
                else "input() can only be answered while a %%spmd cell runs on this rank"
            )
        answers: wire.Inbox[Answer | None] = wire.Inbox()
        number, hold = next(self._ids), 0
        text = wire.clean(wire.shorten(prompt, PROMPT_CHARS))
        question = wire.Question(
            runner.rank, running.cell.seq, number, text, is_secret, is_debugger
        )
        try:
            hold = runner.paused.begin(INPUT)
            self._open[number] = (threading.get_ident(), answers)
            running.request.send("ask", question)
            answer = answers.get()
        finally:
            self._open.pop(number, None)
            runner.paused.end(hold)
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
        """The cell is over: nobody will answer its threads any more."""
        for number, (_, answers) in list(self._open.items()):
            answers.put(Answer(number, refused="the cell that asked has ended"))


def _is_of_a_debugger(frame: FrameType | None) -> bool:
    """Whether it is the prompt of a debugger, or of another shell made of ``cmd``, that asks."""
    return frame is not None and frame.f_code is _CMDLOOP

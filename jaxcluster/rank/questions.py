"""A person's work at a rank: answers to ``input()`` and ``getpass()``, and debugging.

A question is answered in the notebook whose cell asks. The thread that asks waits for the answer
without a limit. The stop button ends the wait: it interrupts the main thread, and takes back
questions of other threads.

A rank that a question or a debugger holds is neither hung nor diverged. Nor are the ranks that wait
for it. Its notebook hears of it at once (``paused``), all others at their next poll.

Debuggers are IPython's, with three differences. If the stop button leaves it, the cell ends too, as
on the other ranks. It stops in the user's code alone: neither in JAX's frames nor in those around
the cell. And it never takes SIGINT's handler, which is the runner's.
"""

from __future__ import annotations

import bdb
import builtins
import contextlib
import getpass
import itertools
import os
import pdb  # noqa: T100
import sys
import threading
from collections.abc import Iterator
from types import FrameType
from typing import TYPE_CHECKING, Any

from IPython.core import debugger
from IPython.core.error import StdinNotImplementedError

from jaxcluster import wire
from jaxcluster.rank import interrupts
from jaxcluster.rank.places import JAX, KERNEL, cell_number, is_folded
from jaxcluster.wire.ops.cells import Answer

if TYPE_CHECKING:
    from jaxcluster.rank.cells import CellRunner
    from jaxcluster.rank.control import Request

PROMPT_CHARS = 20_000
INPUT, DEBUGGER = "input", "debugger"  # by what a rank is held
QUIT = bdb.BdbQuit.__name__  # what leaving the debugger by ``q`` raises in the cell
# Packages in which no step stops. JAX calls numpy and its like all the time.
_PASSED = sys.stdlib_module_names | {"jaxcluster", "numpy", "ml_dtypes", "opt_einsum"}
_PASSED |= {*JAX, *KERNEL}

_asking: Asking  # whose ``guard`` has been called


class Asking:
    """The questions of one rank, and whether a person holds it.

    A signal handler may use it: it takes no lock.
    """

    def __init__(self, runner: CellRunner) -> None:
        self.runner = runner
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
        if (running := self.runner.current) is not None and not self.runner.is_child():
            running.request.send("paused", wire.Paused(self.kind))

    def input(self, prompt: object = "", /) -> str:
        """``builtins.input``."""
        return self._ask(str(prompt), is_secret=False)

    def getpass(self, prompt: object = "Password: ", stream: Any = None, **more: Any) -> str:
        """``getpass.getpass``."""
        return self._ask(str(prompt), is_secret=True)

    def _ask(self, prompt: str, is_secret: bool) -> str:
        runner = self.runner
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
        """End the questions of an interrupted cell's threads. The main thread gets its signal."""
        for ident, answers in list(self._open.values()):
            if ident != self.runner.main_thread_id:
                answers.put(None)

    def end(self) -> None:
        """The cell is over, and so is what held it: nobody will answer its threads any more."""
        if isinstance(getattr(sys.gettrace(), "__self__", None), bdb.Bdb):
            sys.settrace(None)  # none of its debuggers follows what comes now
        self._holds = []
        for number, (_, answers) in list(self._open.items()):
            answers.put(Answer(number, refused="the cell that asked has ended"))

    def guard(self, shell: Any) -> None:
        """Have ``input`` ask, ``exit`` end no process that others need, and debuggers be these."""
        global _asking
        _asking = self
        shell.ask_exit = say_how_to_stop  # which IPython's exit and quit call
        # ipykernel puts its own there while ipyparallel's clients run code.
        builtins.input = self.input
        getpass.getpass = self.getpass
        ipythons: Any = debugger
        ipythons.Pdb = ipythons.InterruptiblePdb = RankPdb
        pythons: Any = pdb
        pythons.Pdb, pythons.set_trace = RankPdb, debugger.set_trace
        shell.InteractiveTB.debugger_cls = RankPdb  # %debug and %pdb
        sys.breakpointhook = sys.__breakpointhook__  # which calls pdb.set_trace


def say_how_to_stop() -> None:
    print(
        "exit and quit do nothing on a rank: the others need it. %jaxcluster stop ends the cluster."
    )


# --------------------------------------------------------------------------- debuggers


class RankPdb(debugger.InterruptiblePdb):
    """The debugger of a rank."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **{**kwargs, "nosigint": True})

    def interaction(self, frame: FrameType | None, tb_or_exc: Any) -> None:
        """Talk to the user, however long that takes."""
        with _asking.held_by(DEBUGGER):
            super().interaction(frame, tb_or_exc)  # type: ignore[no-untyped-call]
        running = _asking.runner.current
        if running is not None and running.interrupted:  # IPython leaves the debugger alone
            sys.settrace(None)
            raise KeyboardInterrupt

    def postcmd(self, stop: bool, line: str) -> bool:
        """Whether to leave after a command: after the stop button, whatever has caught it there."""
        running = _asking.runner.current
        if running is not None and running.interrupted:
            return True
        return super().postcmd(stop, line)

    def get_stack(self, f: Any, t: Any) -> Any:
        """The frames, and where to begin: after an error in the innermost that is not JAX's."""
        stack, at = super().get_stack(f, t)  # type: ignore[no-untyped-call]
        if t is not None:
            files = [frame.f_code.co_filename for frame, _ in stack]
            at = max((i for i, file in enumerate(files) if not is_folded(file)), default=at)
        return stack, at

    def _hidden_predicate(self, frame: FrameType) -> Any:
        if is_folded(frame.f_code.co_filename) and frame is not self.curframe:
            return True
        return super()._hidden_predicate(frame)  # type: ignore[no-untyped-call]

    def stop_here(self, frame: FrameType) -> bool:
        """In a cell and in modules that are no part of Python, JAX or a kernel.

        A step past the end of a statement goes to the cell's next one.
        """
        package = str(frame.f_globals.get("__name__")).partition(".")[0]
        is_of_a_file = os.path.isabs(frame.f_code.co_filename)  # else it was made at run time
        if package in _PASSED or not (is_of_a_file or package == "__main__"):
            return False
        return bool(super().stop_here(frame))  # type: ignore[no-untyped-call]

    def user_call(self, frame: FrameType, argument_list: Any) -> None:
        if not _is_statement(frame):
            super().user_call(frame, argument_list)

    def user_return(self, frame: FrameType, return_value: Any) -> None:
        """Each statement of a cell has its own frame: its end is no place to stop at."""
        if _is_statement(frame):
            self.set_step()
        else:
            super().user_return(frame, return_value)


def _is_statement(frame: FrameType) -> bool:
    """Whether it is a statement of a cell at its top level."""
    caller = frame.f_back
    is_run = caller is not None and caller.f_code in interrupts.RUNS
    return is_run and cell_number(frame.f_code.co_filename) is not None

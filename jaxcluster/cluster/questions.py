"""What the ranks of one cell ask, put to the user one after another, and what he answers.

Ranks that run the same cell ask the same: one answer serves all of them. Questions are the same if
each is its rank's nth in the cell, with the same prompt. A debugger's are its own rank's alone. A
rank that was just answered may ask again at once, as a debugger does, and keeps its turn. Else the
lowest rank that asks is next.
"""

from __future__ import annotations

import contextlib
import functools
import getpass
import os
import re
import sys
import threading
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from jaxcluster import wire
from jaxcluster.host import kernel_private
from jaxcluster.ranks import name_ranks
from jaxcluster.wire.link import Link, Sink
from jaxcluster.wire.ops.cells import Answer

GATHER_S = 0.2  # that other ranks get to ask, too: they run the same cell
AGAIN_S = 0.4  # that a rank gets to ask again before it is another's turn
LOOK_S = 0.02  # between two looks whether there is an answer
WAIT_S = 0.05  # ... whether it is another rank's turn
IN_BACKGROUND = (
    "this cell runs in the background (--async, or on a thread) and can't ask. Run it without "
    "--async, or set the value in an earlier cell"
)
NO_TERMINAL = (
    "jaxcluster run has no terminal here. Read the value from the script's arguments or from a file"
)

Key = tuple[int, str, bool]  # which one of its rank's, its prompt, whether it is secret
NOBODY = (
    "this notebook runs without a prompt (as in nbconvert or papermill). Set the value in a cell "
    "instead"
)
END_OF_FILE = "\x04"  # what a frontend sends for it


class Conversation:
    """The questions of one cell.

    Attributes:
      prompt: where they are put; None where nobody can be asked.
      why_nobody: said to who asks then.
    """

    def __init__(
        self, link: Link, prompt: Labelled | None = None, why_nobody: str = IN_BACKGROUND
    ) -> None:
        self.prompt, self.why_nobody = prompt, why_nobody
        self._link = link
        self._waiting: dict[tuple[int, int], tuple[wire.Question, float]] = {}  # by rank and id
        self._open: wire.Question | None = None
        self._speaker: int | None = None
        self._answered_at = 0.0
        self._counts: Counter[int] = Counter()
        self._keys: dict[tuple[int, int], Key] = {}
        self._answers: dict[Key, Answer] = {}  # also for ranks that ask the same later
        self._is_over = False

    @property
    def is_open(self) -> bool:
        """Whether any rank asks."""
        return bool(self._waiting)

    @property
    def look_s(self) -> float | None:
        """How soon ``step`` is due; None while nobody asks."""
        if self._open is not None:
            return LOOK_S
        return WAIT_S if self._waiting else None

    def add(self, question: wire.Question, now: float) -> None:
        """A rank asks."""
        if self.prompt is None:
            self._refuse(question, self.why_nobody)
        elif not self._is_over:
            at = question.rank, question.id
            if not question.debugger:
                self._counts[question.rank] += 1
                key = self._counts[question.rank], question.prompt, question.secret
                if (known := self._answers.get(key)) is not None:
                    self._send(question, known)
                    return
                self._keys[at] = key
            self._waiting[at] = question, now

    def step(self, now: float, running: Collection[int]) -> None:
        """Ask what is to be asked, and pass on what was answered.

        Args:
          running: the ranks that have not ended the cell.

        Raises:
          KeyboardInterrupt: the stop button was pressed in place of an answer.
        """
        if (prompt := self.prompt) is None or not self._waiting:
            return
        try:
            if self._open is None and (question := self._next(now, running)) is not None:
                self._speaker, self._open = question.rank, question
                same = sorted(one.rank for one in self._same(question))
                asking = sorted({rank for rank, _ in self._waiting} - {question.rank, *same})
                prompt.open(question, same, asking)
            if self._open is None or (text := prompt.poll()) is None:
                return
            answer = Answer(0, text)
        except EOFError:
            answer = Answer(0, eof=True)
        except Exception as why:  # CannotAsk, or this process has no terminal
            answer = Answer(0, refused=str(why))
        self._answer(answer, now)

    def _next(self, now: float, running: Collection[int]) -> wire.Question | None:
        """The question to ask now; None: not yet."""
        asking = {rank for rank, _ in self._waiting}
        speaker, is_new = self._speaker, self._speaker not in asking
        if is_new and speaker in running and now < self._answered_at + AGAIN_S:
            return None
        rank = min(asking) if speaker is None or is_new else speaker
        first, since = next(one for one in self._waiting.values() if one[0].rank == rank)
        may_ask = [r for r in running if not first.debugger or (is_new and r < rank)]
        return first if now >= since + GATHER_S or asking.issuperset(may_ask) else None

    def _same(self, question: wire.Question) -> list[wire.Question]:
        """What other ranks ask that is the same."""
        at = question.rank, question.id
        key = self._keys.get(at)
        found = [one for one in self._waiting if one != at and self._keys.get(one) == key]
        return [self._waiting[one][0] for one in found] if key is not None else []

    def _answer(self, answer: Answer, now: float) -> None:
        assert self._open is not None
        question, self._open, self._answered_at = self._open, None, now
        key = self._keys.get((question.rank, question.id))
        if key is not None and answer.refused is None:
            self._answers[key] = answer
        for one in [question, *self._same(question)]:
            del self._waiting[one.rank, one.id]
            if answer.refused is not None:
                self._refuse(one, answer.refused)
            else:
                self._send(one, answer)

    def _refuse(self, question: wire.Question, why: str) -> None:
        what = "a debugger" if question.debugger else "input()"
        why = f"{what} on rank {question.rank}: {why}"
        self._send(question, Answer(question.id, refused=why))

    def _send(self, question: wire.Question, answer: Answer) -> None:
        self._link.request(question.rank, replace(answer, id=question.id), sink=Sink())

    def withdraw(self, rank: int) -> None:
        """A rank asks no longer: it has ended the cell, or died."""
        self._waiting = {at: one for at, one in self._waiting.items() if at[0] != rank}
        if self._open is not None and self._open.rank == rank:
            self._close()

    def end(self) -> None:
        """The cell is over, or interrupted: what is asked now is not answered."""
        self._is_over = True
        self._waiting.clear()
        self._close()

    def _close(self) -> None:
        self._open = None
        if self.prompt is not None:
            self.prompt.close()


# --------------------------------------------------------------------------- where they are put


class CannotAsk(Exception):
    """Why nobody can be asked."""


def text_of(question: wire.Question, same: Sequence[int] = ()) -> str:
    """The prompt as it is shown: ``ranks 0-3> name? ``."""
    return f"{name_ranks([question.rank, *same])}> {question.prompt}"


class Prompt:
    """A terminal's, or whatever this process reads its input from. It waits for the answer.

    It asks one question at a time, on the main thread.
    """

    def __init__(self) -> None:
        self._question: wire.Question | None = None
        self._same: Sequence[int] = ()

    def open(self, question: wire.Question, same: Sequence[int]) -> None:
        """Ask it; ``same`` are other ranks that ask the same, and get the same answer.

        Raises:
          CannotAsk: nobody can be asked.
        """
        self._question, self._same = question, same

    def poll(self) -> str | None:
        """The answer; None while there is none.

        Raises:
          EOFError: there will be none.
        """
        question, self._question = self._question, None
        if question is None:
            return None
        ask = getpass.getpass if question.secret else input
        return ask(text_of(question, self._same))

    def close(self) -> None:
        """The question is taken back."""
        self._question = None


class KernelPrompt(Prompt):
    """A notebook's: the frontend shows a field below the cell that runs.

    ipykernel's own ``input`` would wait for the answer alone, and nothing else that ranks say would
    be heard meanwhile; so this sends what it sends, and looks for the answer now and then.
    """

    def __init__(self, kernel: Any) -> None:
        super().__init__()
        self._kernel, self._asked = kernel, ""

    def open(self, question: wire.Question, same: Sequence[int]) -> None:
        import zmq

        kernel = self._kernel
        if not kernel_private.allows_stdin(kernel):
            raise CannotAsk(NOBODY)
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        with contextlib.suppress(zmq.ZMQError):  # answers that came too late
            while True:
                kernel.stdin_socket.recv_multipart(zmq.NOBLOCK)
        content = {"prompt": text_of(question, same), "password": question.secret}
        sent = kernel.session.send(
            kernel.stdin_socket,
            "input_request",
            content,
            kernel.get_parent("shell"),
            ident=kernel_private.shell_ident(kernel),
        )
        self._asked = sent["header"]["msg_id"]

    def poll(self) -> str | None:
        import zmq

        _, reply = self._kernel.session.recv(self._kernel.stdin_socket, zmq.NOBLOCK)
        if reply is None:
            return None
        asked = (reply.get("parent_header") or {}).get("msg_id", self._asked)
        if asked != self._asked:  # the answer to a question that was taken back
            return None
        answer = str(reply["content"]["value"])
        if answer == END_OF_FILE:
            raise EOFError
        return answer


class Labelled:
    """Asks for several ranks in turn: who asks stands above, with the output of its debugger.

    The first rank's output is shown as it comes, that of others is not; of those that are
    in a debugger it is shown when it is their turn.

    Args:
      prompt: where they ask.
      show: shows an output.
      before: called before a rank asks, so that what is half shown makes room.
    """

    def __init__(
        self,
        prompt: Prompt,
        show: Callable[[wire.RankOutput], None],
        before: Callable[[], None] = lambda: None,
    ) -> None:
        self._prompt, self._show, self._before = prompt, show, before
        self.poll, self.close = prompt.poll, prompt.close
        self._speaker: int | None = None
        self._heard: dict[int, list[wire.RankOutput]] = {}

    def open(self, question: wire.Question, same: Sequence[int], others: Sequence[int]) -> None:
        """Ask it; ``others`` are ranks that wait for their turn to ask something else."""
        self._before()
        rank = question.rank
        is_new, self._speaker = rank != self._speaker, rank
        heard = self._heard.get(rank, [])
        if is_new and (others or heard):
            also = f" ({name_ranks(others)} too, in turn)" if others else ""
            print(f"── rank {rank} asks{also} ──")
        for output in heard:
            self._show(output)
        heard.clear()
        self._prompt.open(question, same)

    def paused(self, rank: int, kind: str) -> None:
        """A rank is held by a person from now on, in ``kind``; "" if it is not any more."""
        if kind == "debugger":
            self._heard.setdefault(rank, [])
        else:
            self._heard.pop(rank, None)

    def hear(self, output: wire.RankOutput) -> None:
        """The output of a rank whose output is not shown otherwise."""
        if output.rank in self._heard:
            self._heard[output.rank].append(output)


@functools.cache
def is_console() -> bool:
    """Whether this kernel's page is a terminal (jupyter console), which updates no displays.

    It says so nowhere; but the kernel is its child.
    """
    try:
        words = Path(f"/proc/{os.getppid()}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return False
    return any(re.search(rb"(^|/)jupyter[-_]console$|^console$", word) for word in words[:4])


def here() -> Prompt | None:
    """This process's prompt; None on a thread that may not ask."""
    if threading.current_thread() is not threading.main_thread():
        return None
    kernel = None
    if (ipython := sys.modules.get("IPython")) is not None:
        kernel = getattr(ipython.get_ipython(), "kernel", None)
    return KernelPrompt(kernel) if kernel is not None else Prompt()

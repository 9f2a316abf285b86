"""Where a question of a rank is put: the notebook's own prompt, or a terminal's."""

from __future__ import annotations

import contextlib
import functools
import getpass
import os
import re
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from jaxcluster import wire
from jaxcluster.host import kernel_private
from jaxcluster.model.paused import DEBUGGER
from jaxcluster.ranks import name_ranks

NOBODY = (
    "this notebook runs without a prompt (as in nbconvert or papermill). Set the value in a cell "
    "instead"
)
END_OF_FILE = "\x04"  # what a frontend sends for it


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
        if kind == DEBUGGER:
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

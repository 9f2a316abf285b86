"""A launcher's commands: plain children of this process, read line by line, ended in order.

However a command comes to its end, the others of its process group end after it; then, exactly
once, its cancel command runs. ``keeper`` sees to the ends when this process is gone.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, fields
from io import FileIO
from typing import Any

from jaxcluster.supervision.ends import KILLED_S, end_group, signal_token, wait
from jaxcluster.supervision.processes import is_alive, process_token
from jaxcluster.supervision.starting import ROOT

LINE = 1 << 16  # of output; longer ones come in parts
LAST_READS = 16  # of as much: a pipe holds 1 MiB at most
CANCEL_S = 20.0  # a cancel command has so long
LOOK_S = 0.5  # how often it is looked whether a command has ended whose output goes on
ENDING_S = 0.05  # from the end of a command's output to its own
# Neither a user's site-packages nor the environment's settings are the keeper's.
SOURCE = (
    f"import sys; sys.path.append({ROOT!r}); from jaxcluster.supervision.keeper import main; main()"
)

OnLine = Callable[[str, str], None]
OnEnd = Callable[[int, int | None, str], None]


@dataclass(frozen=True)
class Task:
    """A command and how it is ended.

    Attributes:
      argv: run without a shell.
      env: variables for it, beside this process's.
      drop: variables of those that it does not get.
      keeps_stdin: whether its standard input stays open until it is to end. Else it has none.
      cancel: a command that is run once when this one has ended, however that came.
      stdin_s: how long it may take to end after its standard input has.
      term_s: how long it may take after SIGTERM.
      socket: a Unix socket that it makes, by which alone it can be reached; may be empty.
    """

    argv: tuple[str, ...]
    _: KW_ONLY
    env: tuple[tuple[str, str], ...] = ()
    drop: tuple[str, ...] = ()
    keeps_stdin: bool = False
    cancel: tuple[str, ...] = ()
    stdin_s: float = 1.0
    term_s: float = 1.0
    socket: str = ""

    def environ(self) -> dict[str, str]:
        """The command's environment."""
        return {k: v for k, v in os.environ.items() if k not in self.drop} | dict(self.env)


class Running:
    """One command, from its start until all of it is over. Made by ``Commands.run``.

    Attributes:
      streams: what it writes to, by ``out`` and ``err``.
    """

    def __init__(self, task: Task, on_line: OnLine, on_end: OnEnd, outlives: bool) -> None:
        self.task, self.on_line, self.on_end = task, on_line, on_end
        self._rests = {"out": b"", "err": b""}
        with contextlib.ExitStack() as theirs:
            stdin, out, err = (_pipe(theirs, outlives) for _ in range(3))
            stdin[1].close()
            self.streams = {"out": out[1], "err": err[1]}
            kept_open = stdin[0] if outlives else subprocess.PIPE
            try:
                self.process = subprocess.Popen(
                    task.argv,
                    stdin=kept_open if task.keeps_stdin else subprocess.DEVNULL,
                    stdout=out[0],
                    stderr=err[0],
                    env=task.environ(),
                    start_new_session=True,
                )
            except OSError:
                for stream in self.streams.values():
                    stream.close()
                raise
        self.token = process_token(self.process.pid)
        self.finishing = threading.Thread(target=self._finish, name="jaxcluster-end", daemon=True)
        self.is_over = threading.Event()

    def take(self, name: str) -> bool | None:
        """Pass on the lines that have come; returns False at their end, and None if none have."""
        if (data := self.streams[name].read(1 << 16)) is None:
            return None
        *lines, rest = (self._rests[name] + data).split(b"\n")
        if len(rest) > LINE:
            lines, rest = [*lines, rest], b""
        self._rests[name] = rest
        for line in lines:
            self.on_line(name, line.decode(errors="replace").rstrip("\r"))
        return bool(data)

    def _finish(self) -> None:
        for name in self.streams:
            for _ in range(LAST_READS):  # somebody else may hold the other end, and write for ever
                if not self.take(name):
                    break
            if rest := self._rests[name]:
                self.on_line(name, rest.decode(errors="replace"))
        end_group(self.process.pid, self.task.term_s)
        # Not before: who writes to a closed one is killed.
        for stream in filter(None, (*self.streams.values(), self.process.stdin)):
            stream.close()
        self.on_end(self.process.returncode, *cancel(self.task))
        self.is_over.set()


class Commands:
    """Commands of this process, and the keeper that sees to their ends when it is gone.

    One thread reads what all of them say.

    Args:
      outlives: whether they go on without this process, once they are detached.
    """

    def __init__(self, outlives: bool = False) -> None:
        self._outlives = outlives
        self._running: list[Running] = []
        self._selector = selectors.DefaultSelector()
        self._lock = threading.Lock()
        self._reader: threading.Thread | None = None
        self._keeper: subprocess.Popen[bytes] | None = None

    def keep(
        self, folder: str, at_end: Sequence[Sequence[str]] = (), kept_open: Sequence[int] = ()
    ) -> None:
        """Have a keeper, before any of them is run.

        Args:
          folder: the cluster's; its files are kept from those who clear /tmp.
          at_end: what it runs when the cluster is over and this process gone.
          kept_open: descriptors that stay open for as long as it runs.
        """
        about = (process_token(os.getpid()), folder, json.dumps(at_end))
        self._keeper = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", SOURCE, *about],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            pass_fds=kept_open,
        )
        # Not once it is left: Python 3.12 starts no thread at its own exit.
        threading.Thread(target=self._keeper.wait, name="jaxcluster-keeper", daemon=True).start()

    def run(self, task: Task, on_line: OnLine, on_end: OnEnd) -> Running:
        """Start a command.

        Args:
          on_line: called with (``out`` or ``err``, a line), on the reader's thread.
          on_end: called on another thread when it is over, with its exit status, the cancel
            command's or None, and the last line of that if it failed.

        Raises:
          OSError: it can't be run.
        """

        def ended(*end: Any) -> None:
            self._tell(over=one.token)
            on_end(*end)
            with self._lock:
                self._running.remove(one)

        one = Running(task, on_line, ended, self._outlives)
        about = {one.name: getattr(task, one.name) for one in fields(Task) if one.name != "argv"}
        self._tell(command=about, token=one.token)
        for name, stream in one.streams.items():
            self._selector.register(stream, selectors.EVENT_READ, (one, name))
        with self._lock:
            self._running.append(one)
            if self._reader is None:
                name = "jaxcluster-commands"
                self._reader = threading.Thread(target=self._read, name=name, daemon=True)
                self._reader.start()
        return one

    def _read(self) -> None:
        """On a thread, while there are commands."""
        looked_at = 0.0
        while self._reader is threading.current_thread():
            ends = False
            for key, _ in self._selector.select(LOOK_S):
                one, name = key.data
                if one.take(name) is False:
                    self._selector.unregister(key.fileobj)
                    ends = True
                    with contextlib.suppress(subprocess.TimeoutExpired):  # as a rule it is ending
                        one.process.wait(ENDING_S)
            if ends or time.monotonic() - looked_at > LOOK_S:
                looked_at = time.monotonic()
                self._look()

    def _look(self) -> None:
        """Finish with those that have ended."""
        with self._lock:
            running = [one for one in self._running if one.finishing.ident is None]
        for one in [one for one in running if one.process.poll() is not None]:
            for stream in one.streams.values():
                with contextlib.suppress(KeyError):  # it ended before
                    self._selector.unregister(stream)
            one.finishing.start()
        with self._lock:
            if all(one.finishing.ident for one in self._running):
                self._reader = None

    def end(self) -> None:
        """End all of them, and the keeper; returns when all of that is over."""
        with self._lock:
            running = list(self._running)
        for one in running:
            if one.process.stdin is not None:
                with contextlib.suppress(OSError):
                    one.process.stdin.close()
        end_leaders({one.token: one.task for one in running})
        for one in running:
            if one.finishing is not threading.current_thread():
                one.is_over.wait(one.task.term_s + KILLED_S + CANCEL_S)
        if self._keeper is not None:
            self.leave()
            self._keeper.kill()
            self._keeper.wait()

    def detach(self, found_by: Sequence[str]) -> None:
        """Let them outlive this process, for as long as these paths are what they are."""
        self._tell(detach=list(found_by))

    def leave(self) -> None:
        """Start no more of them: detached, the keeper ends with the last one."""
        if self._keeper is not None and self._keeper.stdin is not None:
            with contextlib.suppress(OSError):
                self._keeper.stdin.close()

    def _tell(self, **message: object) -> None:
        if self._keeper is not None and self._keeper.stdin is not None:
            with contextlib.suppress(OSError, ValueError):  # it was killed, or is left
                self._keeper.stdin.write(json.dumps(message).encode() + b"\n")
                self._keeper.stdin.flush()


def end_leaders(commands: Mapping[str, Task]) -> None:
    """End the processes of these tokens, whose standard input has ended. The late are killed."""
    stdin_s = max([task.stdin_s for task in commands.values() if task.keeps_stdin], default=0.0)
    term_s = max([task.term_s for task in commands.values()], default=0.0)
    for most_s, number in ((stdin_s, signal.SIGTERM), (term_s, signal.SIGKILL), (KILLED_S, 0)):
        for _ in wait(most_s, lambda: any(map(is_alive, commands))):
            time.sleep(0.02)
        for token in commands:
            signal_token(token, number)


def cancel(task: Task) -> tuple[int | None, str]:
    """Run a task's cancel command.

    Returns its status (None: there is no such command), and its last line where it has failed.
    """
    if not task.cancel:
        return None, ""
    with tempfile.TemporaryFile() as said:
        try:
            code = subprocess.run(
                task.cancel,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=said,
                env=task.environ(),
                start_new_session=True,
                timeout=CANCEL_S,
                check=False,
            ).returncode
        except subprocess.TimeoutExpired:
            return -signal.SIGKILL, ""
        except OSError as error:
            return 127, f"{task.cancel[0]}: {error.strerror}"
        said.seek(0)
        lines = [line for line in said.read().decode(errors="replace").splitlines() if line.strip()]
    return code, lines[-1][:LINE] if code and lines else ""


def _pipe(theirs: contextlib.ExitStack, outlives: bool) -> tuple[int, FileIO]:
    """(the end that a command writes to, ours).

    The end of one that outlives this process can be read as well: so it meets no end of its input,
    and no closed output, when this process is gone.
    """
    reading, writing = os.pipe()
    if outlives:
        os.close(writing)
        writing = os.open(f"/proc/self/fd/{reading}", os.O_RDWR | os.O_CLOEXEC)
    theirs.callback(os.close, writing)
    os.set_blocking(reading, False)
    return writing, open(reading, "rb", 0)

"""A launcher's commands: plain children of this process, read line by line, ended in order.

When a command ends, the others of its process group end after it. Then its cancel command runs,
exactly once. ``keeper`` sees to the ends when this process is gone.
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

from jaxcluster.supervision.ends import KILLED_S, end_group, signal_token, wait
from jaxcluster.supervision.processes import is_alive, process_token
from jaxcluster.supervision.starting import ROOT

LINE = 1 << 16  # of output; longer ones come in parts
READ_S = 0.3  # from a command's end until its last lines are read: somebody may write on for ever
CANCEL_S = 20.0  # a cancel command may take so long
# The keeper uses neither a user's site-packages nor the environment's settings.
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


class _Lines:
    """The lines that a command writes to one end of a pipe.

    Attributes:
      is_over: nobody writes to it any more.
    """

    def __init__(self, name: str, pipe: int, on_line: OnLine) -> None:
        self._name, self._pipe, self._on_line = name, pipe, on_line
        self._rest = b""
        self.is_over = threading.Event()

    def take(self) -> bool:
        """Pass on the lines that have come; returns whether more may come."""
        data = os.read(self._pipe, LINE)
        *lines, self._rest = (self._rest + data).split(b"\n")
        if self._rest and (not data or len(self._rest) >= LINE):
            lines, self._rest = [*lines, self._rest], b""
        for line in lines:
            self._on_line(self._name, line.decode(errors="replace").rstrip("\r"))
        if not data:
            self.is_over.set()
        return bool(data)


class Commands:
    """Commands of this process, and the keeper that sees to their ends when it is gone.

    One thread reads what all of them say, and hears their ends: hundreds of hosts have one each.

    Args:
      outlives: whether they go on without this process, once they are detached.
    """

    def __init__(self, outlives: bool = False) -> None:
        self._outlives = outlives
        # By their processes' tokens: commands, and the thread that sees each to its end.
        self._running: dict[str, tuple[Task, subprocess.Popen[bytes], threading.Thread]] = {}
        self._selector, self._lock = selectors.DefaultSelector(), threading.Lock()
        self._is_read = False
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

    def run(self, task: Task, on_line: OnLine, on_end: OnEnd) -> None:
        """Start a command.

        Args:
          on_line: called with (``out`` or ``err``, a line), on the thread that reads.
          on_end: called on another thread at the end. It gets the exit status, the cancel command's
            or None, and the last line of a cancel command that failed.

        Raises:
          OSError: it can't be run.
        """
        with contextlib.ExitStack() as theirs, contextlib.ExitStack() as ours:
            (out, its_out), (err, its_err) = _pipe(theirs), _pipe(theirs)
            ours.callback(os.close, out)
            ours.callback(os.close, err)
            stdin = subprocess.PIPE if task.keeps_stdin else subprocess.DEVNULL
            if task.keeps_stdin and self._outlives:
                unused, stdin = _pipe(theirs)
                theirs.callback(os.close, unused)
            process = subprocess.Popen(
                task.argv,
                stdin=stdin,
                stdout=its_out,
                stderr=its_err,
                env=task.environ(),
                start_new_session=True,
            )
            ours.pop_all()
        token = process_token(process.pid)
        about = {one.name: getattr(task, one.name) for one in fields(Task) if one.name != "argv"}
        self._tell(command=about, token=token)
        said = {out: _Lines("out", out, on_line), err: _Lines("err", err, on_line)}

        def see_to_its_end() -> None:
            process.wait()
            end_group(process.pid, task.term_s)
            for lines in said.values():
                lines.is_over.wait(READ_S)
            if process.stdin is not None:
                process.stdin.close()
            end = process.returncode, *cancel(task)
            self._tell(over=token)
            on_end(*end)
            del self._running[token]

        ending = threading.Thread(target=see_to_its_end, name="jaxcluster-end", daemon=True)
        self._running[token] = task, process, ending
        with self._lock:
            self._selector.register(os.pidfd_open(process.pid), selectors.EVENT_READ, ending.start)
            for pipe, lines in said.items():
                self._selector.register(pipe, selectors.EVENT_READ, lines.take)
            if not self._is_read:
                self._is_read = True
                threading.Thread(target=self._read, name="jaxcluster-commands", daemon=True).start()

    def _read(self) -> None:
        """On a thread, while there is something to read."""
        while self._is_read:
            for key, _ in self._selector.select():
                if not key.data():
                    self._selector.unregister(key.fileobj)
                    os.close(key.fd)
            with self._lock:
                self._is_read = bool(self._selector.get_map())

    def end(self) -> None:
        """End all of them, and the keeper; returns when all of that is over."""
        running = dict(self._running)
        for _, process, _ in running.values():
            if process.stdin is not None:
                with contextlib.suppress(OSError):
                    process.stdin.close()
        end_leaders({token: task for token, (task, _, _) in running.items()})
        others = [t for t, one in running.items() if one[-1] is not threading.current_thread()]
        most_s = max((task.term_s for task, *_ in running.values()), default=0.0)
        for _ in wait(
            most_s + KILLED_S + CANCEL_S, lambda: not self._running.keys().isdisjoint(others)
        ):
            time.sleep(0.01)
        if self._keeper is not None:
            self._keeper.kill()  # before its input ends: else it tidies a folder that is gone
            self._keeper.wait()
            self.leave()

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


def _pipe(theirs: contextlib.ExitStack) -> tuple[int, int]:
    """(our end, from which is read; a command's).

    It can be read as well. So a command that outlives this process finds its input and output open.
    """
    ours, writing = os.pipe()
    os.close(writing)
    its = os.open(f"/proc/self/fd/{ours}", os.O_RDWR | os.O_CLOEXEC)
    theirs.callback(os.close, its)
    return ours, its

"""A small process that runs a launcher's commands, and ends them when the notebook is gone.

Its one argument is its owner's token. Its input and output are JSON lines:

    {"run": ID, "task": Task}     {"stop": ID}
    {"folders": [PATH, ...]}      removed at its end, unless its owner lives or has said
    {"closed": true}
    {"detach": [PATH, ...]}       found by these folders, and by its commands' sockets. It ends with
                                  its last command, once its owner is gone or has said
    {"left": true}                until then it may get others, in the place of lost hosts
    {"id": ID, "started": PID}    {"id": ID, "out": LINE}     {"id": ID, "err": LINE}
    {"id": ID, "ended": STATUS, "cancelled": STATUS, "said": LINE}   of its cancel command: its
                                  status or null, and its last line where it has failed, else ""

However a command comes to its end: its standard input is closed if it was kept open, then it gets
SIGTERM; when it has ended, the others of its process group do; those that are late get SIGKILL.
Then, exactly once, its cancel command runs. With the last command all that any of them has started
in a session of its own ends as well: this process is their subreaper. If this process is killed
itself, the kernel sends the commands SIGTERM.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Generator, Iterable, Iterator
from dataclasses import KW_ONLY, dataclass, fields
from functools import partial
from typing import Any

from jaxcluster.supervision.ends import KILLED_S, end_children, end_group, reap, signal_pid, wait
from jaxcluster.supervision.folders import remove
from jaxcluster.supervision.loop import SupervisionLoop
from jaxcluster.supervision.processes import adopt_orphans, die_with_parent, processes

LINE = 1 << 16  # of output; longer ones come in parts
UNREAD = 1 << 20  # so much output is kept for a notebook that does not read; then commands wait
CANCEL_S = 20.0  # a cancel command has so long
DRAIN_S = 0.5  # what a command wrote last; somebody else may hold its pipes open
OTHERS_S = 1.0  # for what commands have put into sessions of their own to end by SIGTERM


@dataclass(frozen=True)
class Task:
    """A command and how it is ended.

    Attributes:
      argv: run without a shell.
      env: variables for it, beside the guard's own, which are the notebook's.
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

    def told(self) -> dict[str, Any]:
        """As a guard reads it, without what others know of it besides."""
        return {one.name: getattr(self, one.name) for one in fields(Task)}


class Running:
    """One command, from its start to its last word.

    Attributes:
      stopping: its end was asked for.
      runs: its end has not begun.
      life: yields until all of it is over; each step is a turn of the guard's loop.
    """

    life: Iterator[None]

    def __init__(self, id: int, task: Task) -> None:
        self.id = id
        self.task = task
        self.runs = True
        self.stopping = self.was_reachable = False
        self.partial: dict[str, bytes] = {"out": b"", "err": b""}
        self.streams: dict[int, str] = {}
        guard = os.getpid()

        def in_child() -> None:
            for number in (signal.SIGINT, signal.SIGHUP):  # ignored by the guard
                signal.signal(number, signal.SIG_DFL)
            die_with_parent(guard, signal.SIGTERM)

        self.process = subprocess.Popen(
            task.argv,
            stdin=subprocess.PIPE if task.keeps_stdin else subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=task.environ(),
            start_new_session=True,
            preexec_fn=in_child,  # noqa: PLW1509 - the guard has one thread
        )
        assert self.process.stdout is not None and self.process.stderr is not None
        for stream, name in ((self.process.stdout, "out"), (self.process.stderr, "err")):
            os.set_blocking(stream.fileno(), False)
            self.streams[stream.fileno()] = name

    def is_reachable(self) -> bool:
        """False where it made a socket that is gone. An ending command removes its own."""
        is_there = bool(self.task.socket) and os.path.lexists(self.task.socket)
        self.was_reachable = self.was_reachable or is_there
        return is_there or not (self.runs and self.was_reachable)

    def lines(self, fd: int) -> tuple[str, list[str]]:
        """(``out`` or ``err``, the lines that have come); the last time there is something."""
        name = self.streams[fd]
        try:
            data = os.read(fd, 1 << 16)
        except BlockingIOError:
            return name, []
        except OSError:
            data = b""
        if not data:
            del self.streams[fd]
        *lines, rest = (self.partial[name] + data).split(b"\n")
        while len(rest) > LINE or (rest and not data):
            lines.append(rest[:LINE])
            rest = rest[LINE:]
        self.partial[name] = rest
        return name, [line.decode(errors="replace").rstrip("\r") for line in lines]


def cancel(task: Task) -> Generator[None, None, tuple[int | None, str]]:
    """Run a task's cancel command; yields until it has ended.

    Returns its status (None: there is no such command), and its last line where it has failed.
    """
    if not task.cancel:
        return None, ""
    try:
        process = subprocess.Popen(
            task.cancel,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            env=task.environ(),
            start_new_session=True,
        )
    except OSError as error:
        return 127, f"{task.cancel[0]}: {error.strerror}"
    yield from wait(CANCEL_S, lambda: process.poll() is None)
    process.kill()
    yield from wait(KILLED_S, lambda: process.poll() is None)
    assert process.stderr is not None
    with process.stderr as stream:
        os.set_blocking(stream.fileno(), False)  # what it has started may hold it open
        lines = (stream.read() or b"").decode(errors="replace").splitlines()
    said = next((line for line in reversed(lines) if line.strip()), "")[:LINE]
    return process.returncode, said if process.returncode else ""


class Guard(SupervisionLoop):
    """The process itself."""

    def __init__(self, owner: str) -> None:
        super().__init__(owner)
        self.running: dict[int, Running] = {}
        self.folders: dict[str, int] = {}  # path to descriptor: it is that one, whatever comes
        self.nobody_reads = False
        self.is_left = False  # its notebook has no more commands for it
        self.is_closed = False  # and ends it on purpose
        self.outbox = b""
        self._groups: dict[int, list[int]] | None = None

    def run(self) -> None:
        adopt_orphans()
        os.set_blocking(1, False)
        self.hear_owner()
        while not self.leaving or self.running:
            self._listen()
            self.turn(0.2 if all(one.runs for one in self.running.values()) else 0.02)
            self._step_all()
            if self.detached and not self.running and (self.is_left or self.owner_is_gone):
                self.leaving = True
        end_children(OTHERS_S + 5.0, OTHERS_S)
        # Of a detached cluster too: without its commands it is over. A killed process's pipes are
        # closed before it counts as gone.
        if self.owner_is_gone or (self.is_left and not (self.is_closed or self.detached)):
            for path, folder in self.folders.items():
                remove(path, folder)
        for _ in wait(1.0, lambda: self.outbox):
            time.sleep(0.01)
            self._write()

    # -- the notebook's and the commands' pipes

    def _listen(self) -> None:
        """Listen to the commands, unless the notebook does not read what they have written."""
        wanted = {}
        if len(self.outbox) < UNREAD:
            wanted = {fd: one for one in self.running.values() for fd in one.streams}
        listened = set(self.selector.get_map()) - {0, 1}
        for fd in listened - set(wanted):
            self.selector.unregister(fd)
        for fd in set(wanted) - listened:
            self.selector.register(fd, selectors.EVENT_READ, partial(self._pass_on, wanted[fd], fd))

    def _pass_on(self, one: Running, fd: int) -> None:
        name, lines = one.lines(fd)
        if fd not in one.streams:
            self.selector.unregister(fd)
        for line in lines:
            self._say(one, **{name: line})

    def told(self, line: bytes) -> None:
        message = json.loads(line)
        if "run" in message:
            self._run(message["run"], message["task"])
        elif "stop" in message:
            for one in self.running.values():
                one.stopping = one.stopping or one.id == message["stop"]
        elif "folders" in message:
            self.folders |= self._open(message["folders"])
        elif "detach" in message:
            opened = self._open(message["detach"]).items()
            self.found_by = {path: os.fstat(fd) if fd >= 0 else None for path, fd in opened}
            self.detached = True
        elif "left" in message:
            self.is_left = True
        elif "closed" in message:
            self.is_closed = True

    def left(self) -> None:
        self.is_left = True
        super().left()

    @staticmethod
    def _open(paths: Iterable[str]) -> dict[str, int]:
        """Descriptors that stay open: no other folder can get the identity of one of these."""
        opened = {}
        for path in paths:
            try:
                opened[path] = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
            except OSError:  # it has gone already
                opened[path] = -1
        return opened

    def can_be_found(self) -> bool:
        reachable = [one.is_reachable() for one in self.running.values()]
        return all(reachable) and super().can_be_found()

    def own_files(self) -> Iterator[str]:
        for folder in self.folders:
            for path, _, files in os.walk(folder):
                yield from (path, *(f"{path}/{name}" for name in files))

    def _say(self, one: Running, **event: object) -> None:
        self._put({"id": one.id, **event})

    def _put(self, event: dict[str, object]) -> None:
        if self.nobody_reads or (self.detached and len(self.outbox) > UNREAD):
            return
        self.outbox += json.dumps(event).encode() + b"\n"
        self._write()

    def _write(self) -> None:
        try:
            if self.outbox:
                self.outbox = self.outbox[os.write(1, self.outbox) :]
        except BlockingIOError:
            pass
        except OSError:
            self.nobody_reads, self.outbox = True, b""
        listened = 1 in self.selector.get_map()
        if self.outbox and not listened:
            self.selector.register(1, selectors.EVENT_WRITE, self._write)
        elif listened and not self.outbox:
            self.selector.unregister(1)

    # -- a command

    def _run(self, id: int, task: dict[str, Any]) -> None:
        try:
            one = self.running[id] = Running(id, Task(**task))
        except OSError as error:
            code = 127 if isinstance(error, FileNotFoundError) else 126
            self._put({"id": id, "err": f"{task['argv'][0]}: {error.strerror}"})
            self._put({"id": id, "ended": code, "cancelled": None})
            return
        one.life = self._life(one)
        self._say(one, started=one.process.pid)

    def _step_all(self) -> None:
        """One step for each command. The machine's processes are read once for all of them, after
        it is known which commands have ended: whatever those have started is there to be seen.
        """
        self._groups = None
        for one in self.running.values():
            one.process.poll()
        for one in list(self.running.values()):
            next(one.life, None)

    def _members(self, group: int) -> list[int]:
        if self._groups is None:
            self._groups = {}
            for pid, (_, its) in processes().items():
                self._groups.setdefault(its, []).append(pid)
        return self._groups.get(group, [])

    def _life(self, one: Running) -> Iterator[None]:
        process, task = one.process, one.task

        def has_ended() -> bool:
            return process.returncode is not None

        while not (has_ended() or one.stopping or self.leaving):
            yield
        one.runs = False
        if process.stdin is not None:
            with contextlib.suppress(OSError):
                process.stdin.close()
            yield from wait(task.stdin_s, lambda: not has_ended())
        if not has_ended():
            signal_pid(process.pid, signal.SIGTERM)
        yield from end_group(process.pid, task.term_s, has_ended, self._members)
        reap(-process.pid)
        yield from wait(DRAIN_S, lambda: one.streams)
        for name, rest in one.partial.items():
            if rest:
                self._say(one, **{name: rest.decode(errors="replace")})
        cancelled, said = yield from cancel(task)
        if cancelled == 127:
            self._say(one, err=said)
        del self.running[one.id]
        self._listen()
        for stream in (process.stdout, process.stderr):
            if stream is not None:
                stream.close()
        self._say(one, ended=process.returncode, cancelled=cancelled, said=said)


def main() -> None:
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # a terminal's: they are the notebook's
    guard = Guard(sys.argv[1])
    signal.signal(signal.SIGTERM, lambda *_: setattr(guard, "leaving", True))
    guard.run()

"""A small process that runs a launcher's commands, and ends them when the notebook is gone.

It imports the standard library and ``host.processes`` alone, and is there in some 30 ms. Its one
argument is its owner's pid. What it reads are JSON lines: ``{"run": ID, "task": Task}``,
``{"stop": ID}``, ``{"folders": [PATH, ...]}``, which it removes at its end unless that process
lives or has said ``{"closed": true}``, and ``{"detach": [PATH, ...]}``: from then on it outlives
that process, and ends everything when one of these folders is gone or a command's own socket, since
nobody can find what runs any more, or with the last command once that process is gone or has said
``{"left": true}``: until then it may be given others, in the place of hosts that are lost. What it
prints are JSON lines, too: ``{"id": ID, "started": PID}``; ``"out"`` and ``"err"`` with a line
of the command's; and as a command's last one ``"ended"`` with its exit status and ``"cancelled"``
with that of its cancel command, or null, and what that has ``"said"`` where it has failed.

A command ends

- by itself;
- by ``stop``, or when this process's standard input ends: the notebook lets go of it;
- when the notebook's process is gone, ``kill -9`` included: then this process has another parent.
  (The end of the input alone does not tell it: a process that the notebook has forked may hold the
  pipe open.)

In every case: its standard input is closed if it was kept open, then it gets SIGTERM; when it has
ended, the others of its process group do; those that are late get SIGKILL. Then, exactly once, its
cancel command runs. With the last command everything that any of them has started in a session of
its own ends as well: this process is their subreaper. If this process is killed itself, the kernel
sends the commands SIGTERM.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import json
import os
import selectors
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field

from jaxcluster.host.processes import adopt_orphans, is_still, processes, touch

LINE = 1 << 16  # of output; longer ones come in parts
UNREAD = 1 << 20  # so much output is kept for a notebook that does not read; then commands wait
CANCEL_S = 20.0  # a cancel command has so long
LOCK_S = 2.0  # for a name that is just changing hands
DRAIN_S = 0.5  # what a command wrote last; somebody else may hold its pipes open
LOOK_S = 0.5  # how often it is looked whether what is detached can be found
TOUCH_S = 3600.0

_PR_SET_PDEATHSIG = 1


@dataclass(frozen=True)
class Task:
    """A command and how it is ended.

    Attributes:
      argv: the command.
      env: variables for it, beside the guard's own.
      drop: variables of the guard's that it does not get.
      keeps_stdin: whether its standard input is kept open; else it is empty.
      cancel: what is run once when the command has ended; may be empty.
      stdin_s: how long it may go on after its input's end, before SIGTERM.
      term_s: how long after SIGTERM, before SIGKILL.
      socket: a Unix socket that it makes, by which alone it can be reached; may be empty.
    """

    argv: list[str]
    env: dict[str, str] = field(default_factory=dict)
    drop: list[str] = field(default_factory=list)
    keeps_stdin: bool = False
    cancel: list[str] = field(default_factory=list)
    stdin_s: float = 1.0
    term_s: float = 1.0
    socket: str = ""

    def environ(self) -> dict[str, str]:
        """The command's environment."""
        return {k: v for k, v in os.environ.items() if k not in self.drop} | self.env

    def line(self, id: int) -> bytes:
        """The message that has a guard run it."""
        return json.dumps({"run": id, "task": asdict(self)}).encode() + b"\n"


class Running:
    """One command, from its start to its last word. ``phase`` says how far its end has come."""

    def __init__(self, id: int, task: Task) -> None:
        self.id = id
        self.task = task
        self.stopping = self.was_reachable = False
        self.phase = "runs"
        self.deadline = 0.0
        self.partial: dict[str, bytes] = {"out": b"", "err": b""}
        self.streams: dict[int, str] = {}
        self.cancelling: subprocess.Popen[bytes] | None = None
        guard = os.getpid()
        libc = ctypes.CDLL(None)

        def in_child() -> None:
            libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
            for number in (signal.SIGINT, signal.SIGHUP):  # ignored by the guard
                signal.signal(number, signal.SIG_DFL)
            if os.getppid() != guard:
                os._exit(1)

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

    def has_lost_its_socket(self) -> bool:
        """Whether it made one, and that is gone. An ending command removes its own."""
        is_there = bool(self.task.socket) and os.path.lexists(self.task.socket)
        self.was_reachable = self.was_reachable or is_there
        return self.phase == "runs" and self.was_reachable and not is_there

    def enter(self, phase: str, most_s: float) -> None:
        self.phase, self.deadline = phase, time.monotonic() + most_s

    @property
    def late(self) -> bool:
        return time.monotonic() > self.deadline

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

    def signal_group(self, number: int, members: Sequence[int]) -> bool:
        """Whether somebody of its process group is there, or was, to be signalled."""
        for pid in members:
            _kill(pid, number)
        return bool(members)

    def cancel(self) -> str:
        """Start the cancel command; what kept it from being started."""
        try:
            self.cancelling = subprocess.Popen(
                self.task.cancel,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                env=self.task.environ(),
                start_new_session=True,
            )
        except OSError as error:
            return f"{self.task.cancel[0]}: {error.strerror}"
        return ""

    def cancel_said(self) -> str:
        """The last line that the cancel command has said, once it has ended; it may be empty."""
        assert self.cancelling is not None and self.cancelling.stderr is not None
        with self.cancelling.stderr as stream:
            os.set_blocking(stream.fileno(), False)  # what it has started may hold it open
            said = (stream.read() or b"").decode(errors="replace")
        return next((line for line in reversed(said.splitlines()) if line.strip()), "")[:LINE]


class Guard:
    """The process itself: one thread, one loop."""

    def __init__(self, owner: int) -> None:
        self.owner = owner
        self.running: dict[int, Running] = {}
        self.folders: dict[str, int] = {}  # path to descriptor: it is that one, whatever comes
        self.found_by: dict[str, int] = {}  # the same, of what is detached
        self.missed = 0  # how often in a row it could not be found
        self.looked_at = self.touched_at = time.monotonic()
        self.leaving = self.detached = self.nobody_reads = False
        self.is_left = False  # its notebook has no more commands for it
        self.is_closed = False  # and ends it on purpose
        self.inbox = self.outbox = b""
        self.selector = selectors.DefaultSelector()

    def run(self) -> None:
        adopt_orphans()
        for fd in (0, 1):
            os.set_blocking(fd, False)
        self.selector.register(0, selectors.EVENT_READ)
        while not self.leaving or self.running:
            self._turn(0.02 if any(r.phase != "runs" for r in self.running.values()) else 0.2)
            self._step_all()
            self._look_for_itself(time.monotonic())
            if self.detached and not self.running and (self.is_left or self._owner_is_gone):
                self.leaving = True
            if time.monotonic() - self.touched_at > TOUCH_S:
                self._touch()
        self._end_others()
        # Of a detached cluster too: without its commands it is over. A killed process's pipes are
        # closed before its children have another parent.
        if self._owner_is_gone or (self.is_left and not (self.is_closed or self.detached)):
            for path, folder in self.folders.items():
                remove(path, folder)
        self._flush(1.0)

    # -- one turn of the loop

    def _turn(self, timeout_s: float) -> None:
        """Wait for something, at most ``timeout_s``, and pass it on."""
        owners = {fd: one for one in self.running.values() for fd in one.streams}
        self._listen(owners if len(self.outbox) < UNREAD else {})
        for key, _ in self.selector.select(timeout_s):
            if key.fd == 0:
                self._read_input()
            elif key.fd == 1:
                self._write()
            elif key.fd in owners:
                self._pass_on(owners[key.fd], key.fd)
        if not self.detached and self._owner_is_gone:
            self.leaving = True

    @property
    def _owner_is_gone(self) -> bool:
        return os.getppid() != self.owner

    def _look_for_itself(self, now: float) -> None:
        """End what is detached when nobody can find the way to it: twice, it may be changing."""
        if now - self.looked_at < LOOK_S:
            return
        self.looked_at = now
        lost = [one for one in self.running.values() if one.has_lost_its_socket()]
        is_gone = lost or any(not is_there(*found) for found in self.found_by.items())
        self.missed = self.missed + 1 if is_gone and self.detached else 0
        self.leaving = self.leaving or self.missed > 1

    def _touch(self) -> None:
        self.touched_at = time.monotonic()
        for folder in self.folders:
            for path, _, files in os.walk(folder):
                touch([path, *(f"{path}/{name}" for name in files)])

    def _listen(self, wanted: dict[int, Running]) -> None:
        listened = set(self.selector.get_map()) - {0, 1}
        for fd in listened - set(wanted):
            self.selector.unregister(fd)
        for fd in set(wanted) - listened:
            self.selector.register(fd, selectors.EVENT_READ)

    def _pass_on(self, one: Running, fd: int) -> None:
        name, lines = one.lines(fd)
        if fd not in one.streams:
            self.selector.unregister(fd)
        for line in lines:
            self._say(one, **{name: line})

    def _read_input(self) -> None:
        try:
            data = os.read(0, 1 << 16)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        *lines, self.inbox = (self.inbox + data).split(b"\n")
        for line in lines:
            self._do(json.loads(line))
        if not data:
            self.selector.unregister(0)
            self.is_left = True
            self.leaving = self.leaving or not self.detached

    def _do(self, message: dict[str, object]) -> None:
        if "run" in message:
            id, task = message["run"], message["task"]
            assert isinstance(id, int) and isinstance(task, dict)
            try:
                one = self.running[id] = Running(id, Task(**task))
            except OSError as error:
                code = 127 if isinstance(error, FileNotFoundError) else 126
                self._put({"id": id, "err": f"{task['argv'][0]}: {error.strerror}"})
                self._put({"id": id, "ended": code, "cancelled": None})
                return
            self._say(one, started=one.process.pid)
        elif "stop" in message:
            for one in self.running.values():
                one.stopping = one.stopping or one.id == message["stop"]
        elif "folders" in message:
            self._open(message["folders"], self.folders)
        elif "detach" in message:
            self._open(message["detach"], self.found_by)
            self.detached = True
        elif "left" in message:
            self.is_left = True
        elif "closed" in message:
            self.is_closed = True

    @staticmethod
    def _open(paths: object, into: dict[str, int]) -> None:
        assert isinstance(paths, list)
        for path in paths:
            try:
                into[path] = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
            except OSError:  # it has gone already
                into[path] = -1

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
            self.selector.register(1, selectors.EVENT_WRITE)
        elif listened and not self.outbox:
            self.selector.unregister(1)

    def _flush(self, most_s: float) -> None:
        deadline = time.monotonic() + most_s
        while self.outbox and time.monotonic() < deadline:
            time.sleep(0.01)
            self._write()

    # -- the end of a command

    def _step_all(self) -> None:
        """One step for each command. The machine's processes are read once for all of them, after
        it is known which commands have ended: whatever those have started is there to be seen.
        """
        ended = {one.id: one.process.poll() is not None for one in self.running.values()}
        groups: dict[int, list[int]] | None = None

        def members(group: int) -> list[int]:
            nonlocal groups
            if groups is None:
                groups = {}
                for pid, (_, its) in processes().items():
                    groups.setdefault(its, []).append(pid)
            return groups.get(group, [])

        for one in list(self.running.values()):
            one.stopping = one.stopping or self.leaving
            self._step(one, ended[one.id], members)

    def _step(self, one: Running, ended: bool, members: Callable[[int], list[int]]) -> None:
        """One step of a command's end, as far as it is due."""
        if one.phase in ("runs", "asked", "termed", "killed"):
            if ended:
                one.enter("others", one.task.term_s)
                one.signal_group(signal.SIGTERM, members(one.process.pid))
            elif one.phase == "runs" and one.stopping:
                if one.process.stdin is not None:
                    one.process.stdin.close()
                one.enter("asked", one.task.stdin_s if one.process.stdin is not None else 0.0)
            elif one.phase == "asked" and one.late:
                # It alone at first: mpiexec whose logins were killed leaves its folder behind.
                _kill(one.process.pid, signal.SIGTERM)
                one.enter("termed", one.task.term_s)
            elif one.phase == "termed" and one.late:
                one.signal_group(signal.SIGKILL, members(one.process.pid))
                one.enter("killed", one.task.term_s)
        if one.phase == "others":  # of its group
            _reap(-one.process.pid)
            left = members(one.process.pid)
            if not one.signal_group(signal.SIGKILL if one.late else 0, left):
                one.enter("drains", DRAIN_S)
        if one.phase == "drains" and (one.late or not one.streams):
            for name, rest in one.partial.items():
                if rest:
                    self._say(one, **{name: rest.decode(errors="replace")})
            one.enter("cancels", CANCEL_S)
            if one.task.cancel and (why := one.cancel()):
                self._say(one, err=why)
                self._finish(one, 127, why)
                return
        if one.phase == "cancels":
            code = one.cancelling.poll() if one.cancelling is not None else None
            if one.cancelling is not None and code is None:
                if one.late:
                    one.cancelling.kill()
                return
            self._finish(one, code, one.cancel_said() if code is not None else "")

    def _finish(self, one: Running, cancelled: int | None, said: str) -> None:
        del self.running[one.id]
        self._listen({fd: r for r in self.running.values() for fd in r.streams})
        for stream in (one.process.stdout, one.process.stderr):
            if stream is not None:
                stream.close()
        told = {"said": said} if cancelled else {}
        self._say(one, ended=one.process.returncode, cancelled=cancelled, **told)

    def _end_others(self) -> None:
        """What commands have put into sessions of their own."""
        number, deadline = signal.SIGTERM, time.monotonic() + 1.0
        signalled: set[int] = set()
        while left := descendants(os.getpid()):
            if time.monotonic() > deadline:
                if number == signal.SIGKILL:
                    return  # in the kernel's hands
                number, deadline, signalled = signal.SIGKILL, time.monotonic() + 5.0, set()
            for pid in set(left) - signalled:
                _kill(pid, number)
                signalled.add(pid)
            _reap(-1)
            time.sleep(0.02)


def descendants(pid: int) -> list[int]:
    """The living processes below ``pid``."""
    parents = {child: parent for child, (parent, _) in processes().items()}
    found, level = [], {pid}
    while level := {child for child, parent in parents.items() if parent in level}:
        found += sorted(level)
    return found


def is_there(path: str, folder: int) -> bool:
    """Whether a folder that was opened has its name still."""
    return folder >= 0 and is_still(path, os.fstat(folder))


def remove(path: str, folder: int) -> None:
    """Remove a folder, if it is still the one that was opened: another start may have its name."""
    parent = os.path.dirname(path)
    away = f"{parent}/.dead-guard-{os.getpid()}-{folder}"
    with contextlib.suppress(OSError), _names_kept(parent):
        if os.path.samestat(os.stat(path), os.fstat(folder)):
            os.rename(path, away)
    deadline = time.monotonic() + LOCK_S
    while os.path.isdir(away) and time.monotonic() < deadline:  # a job may write its last there
        shutil.rmtree(away, ignore_errors=True)


@contextlib.contextmanager
def _names_kept(parent: str) -> Iterator[None]:
    """While no name of a cluster's changes hands there (``claims``); or after ``LOCK_S``."""
    try:
        lock = os.open(f"{parent}/.lock", os.O_RDWR)
    except OSError:  # no folder of clusters'
        yield
        return
    deadline = time.monotonic() + LOCK_S
    try:
        while time.monotonic() < deadline:
            with contextlib.suppress(OSError):
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            time.sleep(0.01)
        yield
    finally:
        os.close(lock)


def _kill(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        pass


def _reap(whom: int) -> None:
    """Take the ends of processes that were left to us (as ``waitpid`` names them)."""
    try:
        while os.waitpid(whom, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        pass


def main() -> None:
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # a terminal's: they are the notebook's
    guard = Guard(int(sys.argv[1]))
    signal.signal(signal.SIGTERM, lambda *_: setattr(guard, "leaving", True))
    guard.run()

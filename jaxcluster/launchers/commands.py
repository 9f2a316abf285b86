"""Carries a launch plan out: its commands run under a guard, until their agents are there.

    launch = Launch(launcher, plan, on_end=...)
    agents = launch.start(timeout_s=60)     # one for each host, in order
    ...
    launch.stop()

No thread of the caller is used; ``on_end`` is called on a reader's thread.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import math
import os
import queue
import sys
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from jaxcluster import wire
from jaxcluster.agent.report import AgentFacts
from jaxcluster.errors import LaunchError
from jaxcluster.launchers.base import (
    AT_ONCE,
    STOPPED,
    Command,
    End,
    Launcher,
    LaunchPlan,
    Reason,
    announcements,
)
from jaxcluster.supervision import guard, starting
from jaxcluster.supervision.ends import end_group, let_go
from jaxcluster.supervision.processes import start_time

TRIES = 3
TRY_AGAIN_S = 0.5  # before the second try; each further one waits twice as long
KEPT_LINES = 60  # of a command's output
LOOK_S = 0.1  # how often a file of announcements is read
OTHERS_S = 1.0  # after the first host that can't be used, for others to be told with it
MOST_NAMES = 8  # of hosts in one message
STOP_S = 30.0
ASK_S = 2.0  # how often the launcher is asked what is waited for
GUARD_KILLED = "The process that watches over the launcher's commands was killed."


@dataclass(frozen=True)
class StartedAgent:
    """An agent that has announced itself.

    Attributes:
      host: its number in the plan; None where the launcher chose the host (the caller orders them
        by what the agents say).
      facts: what its line said.
      via: the Unix socket here through which it is reached; empty where ``facts`` say how.
    """

    host: int | None
    facts: Mapping[str, Any]
    via: str = ""

    @cached_property
    def said(self) -> AgentFacts:
        """What is known of all agents in it."""
        return wire.parse(AgentFacts, self.facts)


@dataclass
class _Run:
    """One run of a command."""

    command: Command
    number: int  # of the command in the plan
    tries: int = 1
    host: str = ""  # as messages call it, where it is a single one
    pid: int | None = None
    agents: list[StartedAgent] = field(default_factory=list)
    out: deque[str] = field(default_factory=lambda: deque(maxlen=KEPT_LINES))
    err: deque[str] = field(default_factory=lambda: deque(maxlen=KEPT_LINES))
    file_at: int = 0
    trouble: Reason | None = None  # what an agent has said of itself
    lost: list[tuple[int, Reason]] = field(default_factory=list)  # hosts, of one that goes on

    @property
    def is_ready(self) -> bool:
        return len(self.agents) >= len(self.command.hosts)

    def end(self, code: int | None) -> End:
        return End(self.command, code, tuple(self.err), tuple(self.out), self.is_ready)


class GuardedCommands:
    """A guard process and the commands it runs for us.

    Args:
      on_event: called with (id, event) for each event of a command, on the reader's thread. The
        last one of a command has ``"ended"``; its value is None if the guard itself was killed.
      kept_open: descriptors that the guard holds for as long as it is there.
    """

    def __init__(
        self, on_event: Callable[[int, Mapping[str, Any]], None], kept_open: Sequence[int] = ()
    ) -> None:
        self._on_event = on_event
        self._lock = threading.Lock()
        self._tasks: dict[int, guard.Task] = {}
        self._pids: dict[int, int] = {}
        self._ids = itertools.count(1)
        self._process = starting.guard(kept_open)
        self._reader = threading.Thread(target=self._read, name="jaxcluster-guard", daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        return self._process.pid

    def run(self, task: guard.Task) -> int:
        """Start a command; returns its id.

        Raises:
          LaunchError: the guard is gone.
        """
        id = next(self._ids)
        with self._lock:
            self._tasks[id] = task
        if not self._send(run=id, task=task.told()):
            with self._lock:
                self._tasks.pop(id, None)
            raise LaunchError(GUARD_KILLED, "Start again: %jaxcluster start")
        return id

    def stop(self, id: int) -> None:
        """Have a command end; ``on_event`` tells when it has."""
        self._send(stop=id)

    def look_after(self, folders: Sequence[Path]) -> None:
        """Have these folders removed when this process is gone, and all commands have ended."""
        self._send(folders=[str(path) for path in folders])

    def detach(self, found_by: Sequence[Path] = ()) -> None:
        """Let the commands outlive this process, until one of these folders is gone."""
        self._send(detach=[str(path) for path in found_by])

    def leave(self) -> None:
        """Have no more commands for it: detached, it ends with the last one."""
        self._send(left=True)

    def close(self, timeout_s: float = STOP_S) -> None:
        """End all commands; returns when they have ended."""
        self._send(closed=True)
        let_go(self._process, timeout_s)
        if threading.current_thread() is not self._reader:
            self._reader.join(5)

    def _send(self, **message: object) -> bool:
        assert self._process.stdin is not None
        with self._lock:
            try:
                self._process.stdin.write(json.dumps(message).encode() + b"\n")
                self._process.stdin.flush()
            except (OSError, ValueError):  # gone, or closed
                return False
        return True

    def _read(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as lines:
            for line in lines:
                try:
                    event = json.loads(line)
                except ValueError:  # its last line, incomplete
                    continue
                id = event["id"]
                if "started" in event:
                    self._pids[id] = event["started"]
                if "ended" in event:
                    with self._lock:
                        self._tasks.pop(id, None)
                self._on_event(id, event)
        self._process.wait()
        with self._lock, contextlib.suppress(OSError):
            orphans, self._tasks = self._tasks, {}
            assert self._process.stdin is not None
            self._process.stdin.close()
        for id, task in orphans.items():
            cancelled, said = self._end_orphan(self._pids.get(id), task)
            self._on_event(id, {"ended": None, "cancelled": cancelled, "said": said})

    @staticmethod
    def _end_orphan(pid: int | None, task: guard.Task) -> tuple[int | None, str]:
        """The guard was killed: do what it would have done, and say of it what that would say."""
        if pid is not None:  # the command has had its SIGTERM, from the kernel
            for _ in end_group(pid, task.term_s, lambda: start_time(pid) is None):
                time.sleep(0.05)
        steps = guard.cancel(task)
        while True:
            try:
                next(steps)
            except StopIteration as end:
                cancelled, said = end.value
                return cancelled, said
            time.sleep(0.05)


class Launch:
    """The commands of one plan.

    Args:
      launcher: explains how they end.
      plan: what to run.
      on_end: called with (numbers of the hosts, why) when a command ends whose agents had come,
        unless it was stopped; on a reader's thread.
      on_notice: called with what a user should know of the agents' future, such as a time limit;
        on a thread of ours.
      folders: what is removed when this process is gone: nobody is left to do it.
      kept_open: descriptors that stay open for as long as the commands run, detached too.
    """

    def __init__(
        self,
        launcher: Launcher,
        plan: LaunchPlan,
        on_end: Callable[[tuple[int, ...], Reason], None] | None = None,
        on_notice: Callable[[str], None] | None = None,
        folders: Sequence[Path] = (),
        kept_open: Sequence[int] = (),
    ) -> None:
        self.folders, self._kept_open = folders, kept_open
        self.launcher, self.plan, self.on_end, self.on_notice = launcher, plan, on_end, on_notice
        self._events: wire.Inbox[tuple[int, Mapping[str, Any]]] = wire.Inbox()
        self._runs: dict[int, _Run] = {}
        self._lock = threading.RLock()
        self._starting = threading.Lock()
        self._guarded: GuardedCommands | None = None
        self._is_up = self._stopped = False
        self._left_behind: list[Reason] = []
        self._over = threading.Event()

    def start(
        self,
        timeout_s: float,
        progress: Callable[[str], None] | None = None,
        stopped: threading.Event | None = None,
    ) -> list[StartedAgent]:
        """Run everything and wait until every agent has announced itself.

        Commands with hosts of their own give the agents in the hosts' order. ``progress`` is told
        how many are there.

        Raises:
          LaunchError: a command ended before, or not all came within ``timeout_s``, or until it was
            ``stopped``. All have been ended again.
        """
        try:
            for file in self.plan.files:
                write(Path(file.path), file.text, file.mode)
            self._guarded = GuardedCommands(self._on_event, self._kept_open)
            self._guarded.look_after(self.folders)
            wanted = list(enumerate(self.plan.commands))
            found = _BringUp(self, wanted, timeout_s, progress, stopped).run()
        except BaseException:
            self.stop()
            raise
        self._is_up = True
        if self.on_notice is not None:
            threading.Thread(target=self._watch, name="jaxcluster-launch", daemon=True).start()
        return sorted(found, key=lambda agent: -1 if agent.host is None else agent.host)

    def can_succeed(self, number: int, name: str) -> bool:
        """Whether there is a way to a new agent on a host. May be slow."""
        return self.launcher.successor(self.plan, number, name) is not None

    def successor(
        self, number: int, name: str, timeout_s: float, stopped: threading.Event | None = None
    ) -> StartedAgent | None:
        """A new agent on a host whose old one is known to be gone; None if there is no way to one.

        Raises:
          LaunchError: it did not come up.
        """
        command = self.launcher.successor(self.plan, number, name)
        if command is None:
            return None
        (agent,) = _BringUp(self, [(number, command)], timeout_s, None, stopped).run()
        return agent

    def stop(self) -> None:
        """End every command; returns when they have ended and what they need is cancelled.

        What could not be removed is told on standard error.
        """
        self._stopped = True
        self._over.set()
        if self._guarded is not None:
            self._guarded.close(max(map(stop_s, self.plan.commands), default=STOP_S))
        while self._left_behind:
            print(self._left_behind.pop(), file=sys.stderr)
        for command in self.plan.commands:
            if command.tunnel is not None:
                Path(command.tunnel.here).unlink(missing_ok=True)
        for file in self.plan.files:
            Path(file.path).unlink(missing_ok=True)

    @property
    def guarded(self) -> GuardedCommands:
        """The guard of its commands, once it is started."""
        assert self._guarded is not None
        return self._guarded

    def _watch(self) -> None:
        """Pass on what the launcher has to say while the agents run."""
        wait_s = 0.001
        while wait_s and not self._over.wait(wait_s):
            text, wait_s = self.launcher.warning(self.plan)
            if text and self.on_notice is not None:
                self.on_notice(text)

    def explain(self, number: int) -> Reason | None:
        """What is known of a host that has announced itself and can't be talked to.

        None: its command has ended, and ``on_end`` has been told; or it started others, too.
        """
        with self._lock:
            runs = [run for run in self._runs.values() if run.command.hosts == (number,)]
        if not runs:
            return None
        return self.explain_run(runs[-1])

    def explain_run(self, run: _Run, code: int | None = None) -> Reason:
        """What is known of a command, which has ended with ``code``, or not."""
        end = run.end(code)
        end = replace(end, evidence=self.launcher.evidence(self.plan, end))
        return self.launcher.explain(end, self.plan.hosts)

    def _run(self, number: int, command: Command, tries: int) -> tuple[int, _Run]:
        names, hosts = self.plan.hosts, command.hosts
        host = names[hosts[0]] if names and len(hosts) == 1 else ""
        with self._lock:  # its first event may come before we know its id
            id = self.guarded.run(command)
            run = self._runs[id] = _Run(command, number, tries, host)
        return id, run

    def _on_event(self, id: int, event: Mapping[str, Any]) -> None:
        """On the reader's thread: note it, and tell who waits."""
        with self._lock:
            run = self._runs[id]
        if "out" in event:
            self._note(run, event["out"])
            while run.lost:
                number, why = run.lost.pop()
                if self._is_up and not self._stopped and self.on_end is not None:
                    self.on_end((number,), why)
        elif "err" in event:
            run.err.append(event["err"])
        elif "ended" in event:
            with self._lock:
                del self._runs[id]
            end = replace(run.end(event["ended"]), cancel_said=event.get("said", ""))
            if (left := self.launcher.left_behind(end, event.get("cancelled"))) is not None:
                self._left_behind.append(left)
            if run.is_ready and self._is_up and not self._stopped and self.on_end is not None:
                self.on_end(run.command.hosts, self._reason(run, event["ended"]))
        if self._starting.locked():
            self._events.put((id, {**event, "run": run}))

    def _reason(self, run: _Run, code: int | None) -> Reason:
        """Why a run ended; ``code`` None means that the guard was killed."""
        if code is None:
            return Reason(GUARD_KILLED, "Start again: %jaxcluster start")
        if run.trouble is not None:
            return run.trouble
        return self.explain_run(run, code)

    @staticmethod
    def _note(run: _Run, line: str) -> None:
        facts, rest = announcements(line)
        for one in facts:
            where = f"The agent on {run.host or one.get('host', 'a host')}"
            if "error" in one:
                run.trouble = Reason(
                    f"{where} can't work: {one['error']}", str(one.get("hint", ""))
                )
                continue
            if "jaxcluster-agent-ended" in one:
                told = one.get("message", f"{where} has ended: {one['jaxcluster-agent-ended']}")
                ended = Reason(f"{told}.", has_ended=True)
                if "number" in one and run.is_ready:  # its launcher says so, and looks after others
                    run.lost.append((one["number"], ended))
                else:
                    run.trouble = ended
                continue
            alone = run.command.hosts[0] if len(run.command.hosts) == 1 else None
            tunnel = run.command.tunnel
            via = tunnel.here if tunnel is not None else one.get("via", "")
            run.agents.append(StartedAgent(alone, one, via))
        if rest.strip():
            run.out.append(rest)


class _BringUp:
    """Waiting for the agents of some commands: few logins at once, some tried again."""

    def __init__(
        self,
        launch: Launch,
        wanted: Sequence[tuple[int, Command]],
        timeout_s: float,
        progress: Callable[[str], None] | None,
        stopped: threading.Event | None,
    ) -> None:
        self.launch, self.timeout_s = launch, timeout_s
        self.deadline = time.monotonic() + timeout_s
        self.progress, self.stopped = progress, stopped or threading.Event()
        self.expected = sum(len(command.hosts) for _, command in wanted)
        # (not before, number, command, which try)
        self.due = [(0.0, number, command, 1) for number, command in wanted]
        self.current: dict[int, _Run] = {}
        self.ready: list[_Run] = []
        self.failed: list[tuple[_Run, Reason]] = []
        self.give_up_at = 0.0

    def run(self) -> list[StartedAgent]:
        with self.launch._starting:
            return self._run()

    def _run(self) -> list[StartedAgent]:
        while not self.launch._events.empty():  # of what was before us
            self.launch._events.get()
        told, asked = "", time.monotonic()
        while True:
            if self.failed and (not self.current or time.monotonic() > self.give_up_at):
                raise self._refusal()
            if not self.failed:
                self._begin_those_due()
            there = sum(len(r.agents) for r in (*self.ready, *self.current.values()))
            text = f"{there} of {self.expected} hosts"
            if time.monotonic() > asked + ASK_S:
                waiting = self.launch.launcher.waiting(self.launch.plan)
                text += f" ({waiting})" if waiting else ""
                asked = time.monotonic()
            elif text in told:
                text = told
            if text != told and self.progress is not None:
                self.progress(text)
            told = text
            if not (self.current or self.due or self.failed):
                return [agent for run in self.ready for agent in run.agents]
            self._wait()
            if self.stopped.is_set():
                raise LaunchError(STOPPED)
            if time.monotonic() > self.deadline:
                raise self._refusal() if self.failed else self._too_late()

    def _begin_those_due(self) -> None:
        busy = Counter(run.command.through for run in self.current.values())
        later = []
        for when, number, command, tries in self.due:
            full = command.through and busy[command.through] >= AT_ONCE
            if full or time.monotonic() < when:
                later.append((when, number, command, tries))
                continue
            busy[command.through] += 1
            id, run = self.launch._run(number, command, tries)
            self.current[id] = run
        self.due = later

    def _wait(self) -> None:
        """For one event, or until something may be due."""
        try:
            id, event = self.launch._events.get(timeout=LOOK_S)
        except queue.Empty:
            id, event = 0, {}
        for one, run in list(self.current.items()):
            self._read_file(run)
            if run.trouble is not None:
                self._fail(self.current.pop(one), run.trouble)
            elif run.is_ready:
                self.ready.append(self.current.pop(one))
            elif one == id and "ended" in event:
                del self.current[id]
                self._failed(run, event["ended"])
        # One that was ready may have ended while others were waited for.
        if "ended" in event and any(run is event["run"] for run in self.ready):
            reason = self.launch._reason(event["run"], event["ended"])
            raise LaunchError(reason.message, reason.hint)

    def _failed(self, run: _Run, code: int | None) -> None:
        reason = self.launch._reason(run, code)
        again = run.command.may_be_tried_again and reason.may_pass and run.tries < TRIES
        if not again:
            self._fail(run, reason)
            return
        wait = TRY_AGAIN_S * 2 ** (run.tries - 1)
        self.due.append((time.monotonic() + wait, run.number, run.command, run.tries + 1))

    def _fail(self, run: _Run, reason: Reason) -> None:
        """It is over; who fails in the same moment is told with it, instead of at the next try."""
        if not self.failed:
            self.give_up_at = time.monotonic() + OTHERS_S
        self.failed.append((run, reason))

    def _refusal(self) -> LaunchError:
        """What the first of them has failed of, and which others have."""
        names = self.launch.plan.hosts
        (first, reason), *others = sorted(self.failed, key=lambda one: one[0].command.hosts)
        if not (others and names):
            return LaunchError(reason.message, reason.hint)
        name = names[first.command.hosts[0]]
        same: list[str] = []
        different: list[str] = []
        for run, why in others:
            its = names[run.command.hosts[0]]
            equal = why.message.replace(its, name) == reason.message
            (same if equal else different).append(its)
        whose = [f"{_few(same)} for the same reason"] if same else []
        if different:
            whose.append(f"{_few(different)} for {'others' if same else 'another'}")
        told = reason.message + ("" if reason.message.endswith((".", "!", "?")) else ".")
        told += f" {len(self.failed)} of {self.expected} hosts can't be used: {', '.join(whose)}."
        return LaunchError(told, reason.hint)

    def _too_late(self) -> LaunchError:
        there = sum(len(r.agents) for r in (*self.ready, *self.current.values()))
        run = next(iter(self.current.values()), None)
        told = f"{there} of {self.expected} hosts were ready within {math.ceil(self.timeout_s)} s."
        if run is None:
            return LaunchError(told, "Wait longer: --timeout 180")
        reason = self.launch.explain_run(run)
        return LaunchError(f"{told} {reason.message}", reason.hint)

    @staticmethod
    def _read_file(run: _Run) -> None:
        """New lines of the file in which a command's agents announce themselves.

        It is opened each time: a shared file system shows a file as it is when it is opened.
        """
        if not run.command.announces_in:
            return
        try:
            with open(run.command.announces_in, "rb") as file:
                file.seek(run.file_at)
                data = file.read(1 << 20)
        except OSError:
            return
        whole = data[: data.rfind(b"\n") + 1]
        run.file_at += len(whole)
        for line in whole.decode(errors="replace").splitlines():
            Launch._note(run, line)


def _few(names: Sequence[str]) -> str:
    """Names of hosts; of very many the first ones."""
    more = f" and {len(names) - MOST_NAMES} more" if len(names) > MOST_NAMES else ""
    return ", ".join(names[:MOST_NAMES]) + more


def stop_s(command: Command) -> float:
    """How long the guard may need to end a command: as long as it lets it, and a little more."""
    cancel_s = guard.CANCEL_S if command.cancel else 0.0
    return max(STOP_S, command.stdin_s + command.term_s + cancel_s + 5.0)


def write(path: Path, text: str, mode: int) -> None:
    """A file of exactly this mode from its first moment."""
    path.unlink(missing_ok=True)
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    with os.fdopen(fd, "w") as file:
        os.fchmod(fd, mode)
        file.write(text)

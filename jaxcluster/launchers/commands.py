"""Carries a launch plan out: runs its commands until their agents are there.

    launch = launcher.launch(plan, on_end=...)
    agents = launch.start(timeout_s=60)     # one for each host, in order
    ...
    launch.stop()

No thread of the caller is used; ``on_end`` is called on a command's thread.
"""

from __future__ import annotations

import math
import random
import re
import shlex
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from jaxcluster import wire
from jaxcluster.errors import LaunchError
from jaxcluster.host.facts import AgentFacts
from jaxcluster.launchers.base import STOPPED, Command, Launcher, LaunchPlan, announcements
from jaxcluster.launchers.failures import Reason, how_it_ended
from jaxcluster.ranks import name_hosts
from jaxcluster.supervision import commands
from jaxcluster.supervision.starting import ROOT

TRIES = 5
TRY_AGAIN_S, MOST_S = 0.5, 2.0  # before the second try, and each further one
KEPT_LINES = 60  # of a command's output
LOOK_S = 0.1  # how often a start that waits looks whether it is stopped
OTHERS_S = 1.0  # after the first unusable host, so that others are named with it
WARN_S = 300.0  # before the agents' time is over
ASK_S = 2.0  # how often the launcher is asked why agents are missing
# Removes the remains of a killed notebook's cluster folders.
TIDY = (
    f"import sys; sys.path.append({ROOT!r}); "
    "from jaxcluster.hosts.records.claims import tidy; tidy()"
)
OnEnd = Callable[[tuple[int, ...], Reason], None]


@dataclass(frozen=True)
class StartedAgent:
    """An agent that has announced itself."""

    host: int | None  # its number in the plan; None where the launcher chose the host
    facts: Mapping[str, Any]  # what its line said
    via: str = ""  # the local Unix socket that leads to it, if ``facts`` don't say how

    @cached_property
    def said(self) -> AgentFacts:
        """The facts that are known of all its agents."""
        return wire.parse(AgentFacts, self.facts)


@dataclass
class Run:
    """One run of a command."""

    command: Command
    tries: int = 1
    host: str = ""  # as messages call it, where it is a single one
    agents: list[StartedAgent] = field(default_factory=list)
    out: deque[str] = field(default_factory=lambda: deque(maxlen=KEPT_LINES))
    err: deque[str] = field(default_factory=lambda: deque(maxlen=KEPT_LINES))
    trouble: Reason | None = None  # what an agent has said of itself
    has_ended: bool = False
    code: int | None = None  # its exit status; None: it runs

    @property
    def is_ready(self) -> bool:
        return len(self.agents) >= len(self.command.hosts)

    @property
    def has_failed(self) -> bool:
        return self.trouble is not None or self.has_ended

    def may_be_tried_again(self) -> bool:
        """Whether it may run again: it ended with an error that may pass."""
        if not self.has_ended or self.is_ready or self.trouble or not self.command.tried_again:
            return False
        said = "\n".join(self.err)
        return self.tries < TRIES and re.search(self.command.tried_again, said) is not None

    def take(self, line: str) -> None:
        """A line of its output."""
        facts, rest = announcements(line)
        for one in facts:
            where = f"The agent on {self.host or one.get('host', 'a host')}"
            if "error" in one:
                told = f"{where} can't work: {one['error']}"
                self.trouble = Reason(told, str(one.get("hint", "")))
            elif "jaxcluster-agent-ended" in one:
                why = one["jaxcluster-agent-ended"]
                if self.trouble is None or self.trouble.has_ended:  # else it has said more
                    self.trouble = Reason(f"{where} has ended: {why}.")
                self.trouble = replace(self.trouble, has_ended=True)
            else:
                alone = self.command.hosts[0] if len(self.command.hosts) == 1 else None
                self.agents.append(StartedAgent(alone, one, self.command.socket))
        if rest.strip():
            self.out.append(rest)


class Launch:
    """The commands of one plan.

    Args:
      launcher: explains how they end.
      plan: what to run.
      on_end: called if a command ends unasked after its agents have come. The command's thread
        passes (numbers of the hosts, why).
      folder: the cluster's.
      shared: the launcher's own folder, if the hosts share it; removed if this process is killed.
      kept_open: descriptors that stay open for as long as the commands run, detached too.
      outlives: whether the commands outlive this process, once they are detached.
    """

    has_keeper = True  # which ends them when this process is killed

    def __init__(
        self,
        launcher: Launcher,
        plan: LaunchPlan,
        on_end: OnEnd | None = None,
        folder: Path | None = None,
        shared: Path | None = None,
        kept_open: Sequence[int] = (),
        outlives: bool = False,
    ) -> None:
        at_end = [(sys.executable, "-P", "-c", TIDY)] if folder is not None else []
        at_end += [("rm", "-rf", "--", str(shared))] if shared is not None else []
        self.launcher, self.plan, self.on_end = launcher, plan, on_end
        self._stirred, self._over = threading.Event(), threading.Event()
        self._runs: list[Run] = []
        self._lock = threading.RLock()
        self._commands = commands.Commands(outlives)
        self._kept = str(folder or ""), at_end, kept_open
        self._is_up = False

    def start(
        self,
        timeout_s: float,
        progress: Callable[[str], None] | None = None,
        stopped: threading.Event | None = None,
    ) -> list[StartedAgent]:
        """Run everything and wait until every agent has announced itself.

        Commands that name their hosts give the agents in the hosts' order. ``progress`` is told
        how many are there.

        Raises:
          LaunchError: a command ended before, or not all came within ``timeout_s``, or until it was
            ``stopped``. All have been ended again.
        """
        try:
            if self.has_keeper:
                self._commands.keep(*self._kept)
            found = self._bring_up(timeout_s, stopped, progress)
        except BaseException:
            self.stop()
            raise
        self._is_up = True
        threading.Thread(target=self._watch, name="jaxcluster-limit", daemon=True).start()
        return sorted(found, key=lambda agent: -1 if agent.host is None else agent.host)

    def _bring_up(self, *wait: Any) -> list[StartedAgent]:
        return self._await(self._coming(self.plan.commands), self.plan.num_hosts, *wait)

    def _coming(self, wanted: Sequence[Any]) -> Iterator[list[StartedAgent]]:
        """The agents of these commands so far; some commands are tried again.

        Raises:
          LaunchError: a command has failed.
        """
        due, runs = [(0.0, Run(command)) for command in wanted], list[Run]()
        failed_at = math.inf
        while True:
            now = time.monotonic()
            for one in [one for one in due if one[0] <= now]:
                due.remove(one)
                runs.append(self._run(one[1]))
            for run in [run for run in runs if run.may_be_tried_again()]:
                runs.remove(run)
                pause_s = min(TRY_AGAIN_S * 2**run.tries, MOST_S) * random.uniform(0.5, 1)
                due.append((now + pause_s, Run(run.command, run.tries + 1)))
            if failed := [run for run in runs if run.has_failed]:
                failed_at = min(failed_at, now)
                # Hosts that fail in the same moment are named with it.
                if now > failed_at + OTHERS_S or all(r.is_ready or r.has_failed for r in runs):
                    raise self._refusal(failed)
            yield [agent for run in runs for agent in run.agents]

    def _waits_for(self) -> str:
        """The reason why agents are missing; raises LaunchError if they will never come."""
        return self.launcher.waiting(self.plan)

    def _late(self) -> Reason:
        """Why an agent is not there in time."""
        with self._lock:
            late = [run for run in self._runs if not run.is_ready]
        return self.reason(late[0]) if late else Reason("", "--timeout 180")

    def _await(
        self,
        coming: Iterator[list[StartedAgent]],
        expected: int,
        timeout_s: float,
        stopped: threading.Event | None = None,
        progress: Callable[[str], None] | None = None,
    ) -> list[StartedAgent]:
        """All agents, once as many as ``expected`` have come.

        Raises:
          LaunchError: they did not come in time, or before it was stopped.
        """
        begun = asked = time.monotonic()
        told, waits = "", ""
        while True:
            found = next(coming)
            if time.monotonic() > asked + ASK_S:
                asked, waits = time.monotonic(), self._waits_for()
            there = f"{len(found)} of {expected} hosts"
            before, told = told, there + (f" ({waits})" if waits else "")
            if told != before and progress is not None:
                progress(told)
            if len(found) >= expected:
                return found
            if time.monotonic() > begun + timeout_s:
                reason = self._late()
                told = f"{there} were ready within {math.ceil(timeout_s)} s. {reason.message}"
                raise LaunchError(told.rstrip(), reason.hint)
            if stopped is not None and stopped.is_set():
                raise LaunchError(STOPPED)
            self._stirred.wait(LOOK_S)
            self._stirred.clear()

    def _refusal(self, failed: Sequence[Run]) -> LaunchError:
        """The reason of the first failure, and the names of other hosts that failed."""
        first, *others = sorted(failed, key=lambda run: run.command.hosts)
        reason, names = self.reason(first), self.plan.hosts
        told = reason.message
        if others and names:
            told += f" Others failed, too: {name_hosts(names[r.command.hosts[0]] for r in others)}."
        return LaunchError(told, reason.hint)

    def successor(self, number: int, name: str) -> Callable[..., StartedAgent] | None:
        """A function that starts a new agent on a host whose old one is gone; None if it can't.

        It may ask a queue. The result takes ``timeout_s`` and ``stopped``, and raises LaunchError.
        """
        command = self.launcher.successor(self.plan, number, name)
        if command is None:
            return None
        return lambda *wait: self._await(self._coming([command]), 1, *wait)[0]

    def stop(self) -> None:
        """End every command; returns when they have ended and what they need is cancelled.

        A failure to cancel is printed on standard error.
        """
        self._over.set()
        self._commands.end()
        for command in self.plan.commands:
            if command.socket:
                Path(command.socket).unlink(missing_ok=True)

    def detach(self, found_by: Sequence[Path]) -> None:
        """Let the agents outlive this process, until one of these folders is gone.

        Raises:
          LaunchError: they can't be reached without it.
        """
        self._commands.detach([str(path) for path in found_by])

    def leave(self) -> None:
        """Start no more agents: detached, it ends with the last one."""
        self._over.set()
        self._commands.leave()

    def _watch(self) -> None:
        """Tell of the agents' end while there is time; that may be put off meanwhile."""
        while limit := self.launcher.ends_in(self.plan):
            who, left_s = limit
            if left_s <= WARN_S:
                told = f"{who} in {left_s:.0f} s, at its time limit (--time). To keep the variables"
                print(f"{told}: %jaxcluster checkpoint NAME", file=sys.stderr)
            if left_s <= WARN_S or self._over.wait(left_s - WARN_S):
                return

    def explain(self, number: int) -> Reason | None:
        """The reason why a host that has announced itself can't be reached.

        None: its command has ended, and ``on_end`` was called; or it started others, too.
        """
        with self._lock:
            runs = [r for r in self._runs if r.command.hosts == (number,) and not r.has_ended]
        return self.reason(runs[-1]) if runs else None

    def reason(self, run: Run) -> Reason:
        """Why a run has ended, or is not ready."""
        found = self.launcher.explain(self.plan, run)
        # One agent's last words don't say why others are gone, or why its job is.
        is_own = not (run.is_ready and (len(run.command.hosts) > 1 or found.has_ended))
        return run.trouble if run.trouble is not None and is_own else found

    def _run(self, run: Run) -> Run:
        names, hosts = self.plan.hosts, run.command.hosts
        run.host = names[hosts[0]] if names and len(hosts) == 1 else ""

        def line(name: str, text: str) -> None:
            if name == "out":
                run.take(text)
            else:
                run.err.append(text)
            self._stirred.set()

        def ended(code: int, cancelled: int | None = None, said: str = "") -> None:
            with self._lock:  # once it is in ``_runs``
                run.code, run.has_ended = code, True
            _tell_left_behind(run, cancelled, said)
            with self._lock:
                self._runs.remove(run)
            if run.is_ready and self._is_up and not self._over.is_set() and self.on_end is not None:
                self.on_end(run.command.hosts, self.reason(run))
            self._stirred.set()

        try:
            with self._lock:
                self._runs.append(run)
                self._commands.run(run.command, line, ended)
        except OSError as error:  # as a shell shows it
            line("err", f"{run.command.argv[0]}: {error.strerror}")
            ended(127 if isinstance(error, FileNotFoundError) else 126)
        return run


def _tell_left_behind(run: Run, cancelled: int | None, said: str) -> None:
    """Say what a command has left if its cancel command has failed."""
    refused = run.code and run.code > 0 and not run.agents and not run.out  # has started nothing
    if not cancelled or refused:
        return
    cancel, late = run.command.cancel, f"did not answer for {commands.CANCEL_S:g} s"
    how = how_it_ended(cancelled) if cancelled > 0 else late
    says = f' It says: "{said}"' if said else ""
    print(f"Something of this cluster may be left over: {cancel[0]} {how}.{says}\n"
          f"To end it: {shlex.join(cancel)}", file=sys.stderr)  # fmt: skip

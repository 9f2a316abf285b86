"""This machine's agents: children of this process, and the idle one that waits for a next start."""

from __future__ import annotations

import json
import os
import socket
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence

from jaxcluster.agent.client import WAIT_LONGER
from jaxcluster.agent.transport import Keys, new_keys
from jaxcluster.errors import LaunchError
from jaxcluster.launchers.base import STOPPED
from jaxcluster.launchers.commands import StartedAgent
from jaxcluster.launchers.failures import Reason
from jaxcluster.records.runtimefolder import VARIABLE
from jaxcluster.supervision.commands import Commands, Task
from jaxcluster.supervision.processes import process_token
from jaxcluster.supervision.starting import findable

LOOK_S = 0.1  # between looks whether a start was stopped
QUIT_S = 5.0  # for one to end all that it has

# How names begin that would make a child believe that it is part of another job or kernel.
DROPPED_ENV = ("JPY_PARENT_PID", "JPY_INTERRUPT_EVENT", "IPP_")


def own_environment(env: Mapping[str, str] = os.environ) -> dict[str, str]:
    """This process's environment, for what it starts on this machine."""
    return {name: value for name, value in env.items() if not name.startswith(DROPPED_ENV)}


class AgentHere:
    """An agent of this machine that ends with this process, as a ``Launch`` has those of others.

    Args:
      env: its environment, and of what it imports for ranks.

    Attributes:
      on_end: called with why, when it has ended though nobody here asked for it; on a thread.
      is_used: whether it had a cluster before this one; so it may be ending.
      is_detached: whether its cluster was: it ends with that one.
    """

    def __init__(self, env: Mapping[str, str]) -> None:
        self.keys: Keys = new_keys()
        self.on_end: Callable[[Reason], None] | None = None
        self.is_used = self.is_detached = False
        self._found: StartedAgent | None = None
        self._trouble = ""
        self._is_asked_to_end = False
        self._said = threading.Event()
        self._last: deque[str] = deque(maxlen=12)
        self._env = dict(env)
        argv = [sys.executable, "-P", "-m", "jaxcluster.agent", "--owner-key", self.keys.public]
        argv += ["--bind", "ipc", "--owner-stdin", "--owner", process_token(os.getpid())]
        theirs = tuple(findable(env, os.getcwd()).items())
        task = Task(
            tuple(argv), env=theirs, drop=tuple(os.environ), keeps_stdin=True, stdin_s=QUIT_S
        )
        self._commands = Commands()
        self._process = self._commands.run(task, self._take, self._ended).process

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def alive(self) -> bool:
        return self._process.poll() is None and not self._is_asked_to_end

    @property
    def may_wait(self) -> bool:
        """Whether it is kept for the next cluster when its own has ended."""
        return self.alive and not self.is_detached and _idle is None

    def lies_where(self, env: Mapping[str, str]) -> bool:
        """Whether one with this environment would have its folder in the same place."""
        return all(self._env.get(name) == env.get(name) for name in (VARIABLE, "TMPDIR"))

    def found(self, timeout_s: float, stopped: threading.Event) -> tuple[str, StartedAgent]:
        """(this host's name, the agent), once that says its address and what the host has.

        Raises:
          LaunchError: it can't work, or does not say so within ``timeout_s``.
        """
        deadline = time.monotonic() + timeout_s
        while not self._said.wait(LOOK_S):
            if stopped.is_set():
                raise LaunchError(STOPPED)
            if time.monotonic() > deadline:
                raise LaunchError("This machine's agent does not answer.", WAIT_LONGER)
        if self._found is None:
            raise LaunchError(f"This machine's agent can't work: {self._trouble}")
        return socket.gethostname(), self._found

    def quit(self) -> None:
        """End it, with all that it has."""
        self._is_asked_to_end = True
        self._commands.end()

    def stop(self) -> None:
        """After the end of its cluster: it waits for the next one, or ends."""
        global _idle
        self.on_end = None
        if self.may_wait:
            self.is_used, _idle = True, self
        else:
            self.quit()

    def detach(self, found_by: Sequence[object]) -> None:
        """Its cluster is to outlive this process."""
        self.is_detached = True

    def leave(self) -> None:
        """It is detached, and does not end with this process."""
        self.on_end = None

    def _take(self, name: str, text: str) -> None:
        try:
            line = json.loads(text)
            if "error" in line:
                self._trouble = " ".join(filter(None, [line["error"], line["hint"]]))
            elif "jaxcluster-agent-ended" in line:
                self._trouble = self._trouble or line["jaxcluster-agent-ended"]
            else:
                self._found = StartedAgent(0, line)
                self._said.set()
        except (ValueError, TypeError):  # an error of Python's
            self._last.append(text)

    def _ended(self, code: int, *_: object) -> None:
        said = self._trouble or "\n".join([f"it ended with code {code}", *self._last])
        self._trouble = said.rstrip()
        self._said.set()
        if self.on_end is not None and not self._is_asked_to_end:
            self.on_end(Reason(f"its agent has ended: {self._trouble}.", has_ended=True))


_idle: AgentHere | None = None


def take_agent(env: Mapping[str, str]) -> AgentHere:
    """An agent for one cluster: the idle one if there is one.

    One is kept for the life of the process (it ends by itself after 10 idle minutes), so that the
    second start of a cluster costs no import. One that carries a cluster is not shared: its end
    is the end of all that is on it.
    """
    global _idle
    agent, _idle = _idle, None
    if agent is not None and agent.alive and agent.lies_where(env):
        return agent
    if agent is not None:
        agent.quit()
    return AgentHere(env)


def quit_warm() -> bool:
    """End this process's idle agent, if there is one. Returns whether there was."""
    global _idle
    agent, _idle = _idle, None
    was_alive = agent is not None and agent.alive
    if agent is not None:
        agent.quit()
    return was_alive

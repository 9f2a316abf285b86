"""This machine's agents: children of this process, and the idle one that waits for a next start."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

from jaxcluster.agent.client import WAIT_LONGER
from jaxcluster.agent.transport import Keys, new_keys
from jaxcluster.errors import LaunchError
from jaxcluster.launchers.base import STOPPED
from jaxcluster.launchers.commands import StartedAgent
from jaxcluster.launchers.failures import Reason
from jaxcluster.records.runtimefolder import VARIABLE
from jaxcluster.supervision.ends import let_go
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
    """An agent of this machine that ends with this process.

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
        self._env = dict(env)
        cwd = os.getcwd()
        argv = [sys.executable, "-P", "-m", "jaxcluster.agent", "--owner-key", self.keys.public]
        argv += ["--bind", "ipc", "--owner-stdin", "--owner", process_token(os.getpid())]
        self._process = subprocess.Popen(
            argv,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=findable(env, cwd),
            cwd=cwd,
            start_new_session=True,  # the notebook's stop button is not for it
        )
        self._last: deque[str] = deque(maxlen=12)
        threading.Thread(target=self._read, name="jaxcluster-agent", daemon=True).start()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def alive(self) -> bool:
        return self._process.poll() is None and not self._is_asked_to_end

    def lies_where(self, env: Mapping[str, str]) -> bool:
        """Whether one with this environment would have its folder in the same place."""
        return all(self._env.get(name) == env.get(name) for name in (VARIABLE, "TMPDIR"))

    def found(self, timeout_s: float, stopped: threading.Event) -> StartedAgent:
        """Wait until the agent says its address and what the host has.

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
        return self._found

    def quit(self) -> None:
        """End it, with all that it has."""
        self._is_asked_to_end = True
        let_go(self._process, QUIT_S)

    def leave(self) -> None:
        """It is detached, and does not end with this process."""
        self.on_end = None
        _left.append(self._process)

    def _read(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as lines:
            for line in lines:
                try:
                    self._take(json.loads(line))
                except (ValueError, TypeError):  # an error of Python's
                    self._last.append(line.decode(errors="replace").rstrip())
        code = self._process.wait()
        said = self._trouble or "\n".join([f"it ended with code {code}", *self._last])
        self._trouble = said.rstrip()
        self._said.set()
        if self.on_end is not None and not self._is_asked_to_end:
            self.on_end(Reason(f"its agent has ended: {self._trouble}.", has_ended=True))

    def _take(self, line: Mapping[str, Any]) -> None:
        if "error" in line:
            self._trouble = " ".join(filter(None, [line["error"], line["hint"]]))
        elif "jaxcluster-agent-ended" in line:
            self._trouble = self._trouble or line["jaxcluster-agent-ended"]
        else:
            self._found = StartedAgent(0, line)
            self._said.set()


_idle: AgentHere | None = None
_left: list[subprocess.Popen[bytes]] = []  # Popen would warn of a process that goes on


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


def may_wait(agent: AgentHere) -> bool:
    """Whether it is kept for the next cluster when its own has ended."""
    return agent.alive and not agent.is_detached and _idle is None


def retire(agent: AgentHere) -> None:
    """After the end of its cluster."""
    global _idle
    agent.on_end = None
    if may_wait(agent):
        agent.is_used, _idle = True, agent
    else:
        agent.quit()


def quit_warm() -> bool:
    """End this process's idle agent, if there is one. Returns whether there was."""
    global _idle
    agent, _idle = _idle, None
    if agent is None:
        return False
    was_alive = agent.alive
    agent.quit()
    return was_alive

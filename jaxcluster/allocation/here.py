"""This machine's agents: children of this process, and the idle one that waits for a next start."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import threading
import time
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
SAID_S = 1.0  # for what an ending one says last

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
      in_use: a cluster of this process is on it, or will be again.
      on_end: called with why, when it has ended though nobody here asked for it; on a thread.
    """

    def __init__(self, env: Mapping[str, str]) -> None:
        self.keys: Keys = new_keys()
        self.in_use = False
        self.on_end: Callable[[Reason], None] | None = None
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
            stderr=subprocess.PIPE,
            env=findable(env, cwd),
            cwd=cwd,
            start_new_session=True,  # the notebook's stop button is not for it
        )
        self._last: list[str] = []
        self._errors = threading.Thread(target=self._read_errors, daemon=True)
        self._errors.start()
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

    @property
    def is_kept(self) -> bool:
        """Whether it will wait for a next cluster."""
        return self is _warm and self.alive

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
                with contextlib.suppress(ValueError):
                    self._take(json.loads(line))
        code = self._process.wait()
        self._errors.join(SAID_S)
        said = self._trouble or f"it ended with code {code}\n" + "\n".join(self._last[-12:])
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

    def _read_errors(self) -> None:
        assert self._process.stderr is not None
        with self._process.stderr as lines:
            for line in lines:
                self._last = [*self._last[-50:], line.decode(errors="replace").rstrip()]


_warm: AgentHere | None = None
_left: list[subprocess.Popen[bytes]] = []  # Popen would warn of a process that goes on


def warm_agent(env: Mapping[str, str]) -> AgentHere:
    """This process's agent, for one cluster: the idle one if there is one.

    One is kept for the life of the process (it ends by itself after 10 idle minutes), so that the
    second start of a cluster costs no import. One that carries a cluster is not shared: its end
    is the end of all that is on it.
    """
    global _warm
    if _warm is not None and not _warm.in_use:
        if _warm.alive and _warm.lies_where(env):
            _warm.in_use = True
            return _warm
        _warm.quit()
    _warm = AgentHere(env)
    _warm.in_use = True
    return _warm


def release_warm(agent: AgentHere) -> None:
    """Forget ``agent``: the cluster on it is detached and takes it along."""
    global _warm
    if _warm is agent:
        _warm = None


def retire(agent: AgentHere) -> None:
    """After the end of its cluster: it is kept for the next one, unless there is another."""
    agent.on_end, agent.in_use = None, False
    if not agent.is_kept:
        agent.quit()


def quit_warm() -> bool:
    """End this process's idle agent, if there is one. Returns whether there was."""
    global _warm
    if _warm is None or _warm.in_use:
        return False
    agent, _warm = _warm, None
    was_alive = agent.alive
    agent.quit()
    return was_alive

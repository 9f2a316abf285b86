"""This machine's agent: a child of this process. An idle one waits for the next start."""

from __future__ import annotations

import os
import socket
import sys
import threading
from collections.abc import Mapping

from jaxcluster.hosts.agent.transport import new_keys
from jaxcluster.hosts.records.runtimefolder import VARIABLE
from jaxcluster.launchers.base import AgentOptions, Command, Launcher, LaunchPlan
from jaxcluster.launchers.commands import Launch, StartedAgent
from jaxcluster.supervision.processes import is_alive, process_token
from jaxcluster.supervision.starting import findable

QUIT_S = 5.0  # until an agent has ended its processes
# Prefixes of variables that would make a child believe it is part of another job or kernel.
DROPPED_ENV = ("JPY_PARENT_PID", "JPY_INTERRUPT_EVENT", "IPP_")


def own_environment(env: Mapping[str, str] = os.environ) -> dict[str, str]:
    """This process's environment, for what it starts on this machine."""
    return {name: value for name, value in env.items() if not name.startswith(DROPPED_ENV)}


class Here(Launcher):
    """Starts the agent of this machine; ``env`` is its own, and that of what it imports."""

    name, start = "here", ""

    def __init__(self, env: Mapping[str, str]) -> None:
        self.env = env

    def render(self, agent: AgentOptions, folder: str) -> LaunchPlan:
        argv = [agent.python, "-P", "-m", "jaxcluster.hosts.agent", "--owner-key", agent.owner_key]
        argv += ["--bind", "ipc", "--owner-stdin", "--owner", process_token(os.getpid())]
        env = tuple(findable(self.env, os.getcwd()).items())
        command = Command(
            tuple(argv), hosts=(0,), env=env, drop=tuple(os.environ), keeps_stdin=True,
            stdin_s=QUIT_S,
        )  # fmt: skip
        return LaunchPlan(self.name, 1, (command,), (socket.gethostname(),))


class AgentHere(Launch):
    """An agent of this machine, which sees itself that it ends with this process.

    It carries one cluster at a time: its end is the end of all that is on it.

    Attributes:
      keys: its owner's.
      agent: what it says of itself, once it is started.
    """

    has_keeper = False

    def __init__(self, env: Mapping[str, str]) -> None:
        self.keys, self.env, launcher = new_keys(), dict(env), Here(env)
        options = AgentOptions("", self.keys.public, sys.executable)
        super().__init__(launcher, launcher.render(options, ""))
        self.agent: StartedAgent

    @property
    def alive(self) -> bool:
        """Whether it runs: the end of a process is seen before that of its command is heard."""
        return self.explain(0) is not None and is_alive(self.agent.said.token)


def started(env: Mapping[str, str], timeout_s: float, stopped: threading.Event) -> AgentHere:
    """A new agent of this machine.

    Raises:
      LaunchError: it can't work, or did not say within ``timeout_s`` how it is reached.
    """
    made = AgentHere(env)
    (made.agent,) = made.start(timeout_s, stopped=stopped)
    return made


_idle: AgentHere | None = None


def take_idle(env: Mapping[str, str]) -> AgentHere | None:
    """The idle agent, where there is one with its folder in the place that ``env`` names.

    One is kept for the life of the process, so that the second start of a cluster costs no import.
    It ends after 10 idle minutes.
    """
    global _idle
    agent, _idle = _idle, None
    places = (VARIABLE, "TMPDIR")
    if agent is None or (agent.alive and all(agent.env.get(n) == env.get(n) for n in places)):
        return agent
    agent.stop()
    return None


def keep_idle(agent: AgentHere) -> bool:
    """Keep an agent for the next cluster. Returns whether it is kept: if it lives, and is alone."""
    global _idle
    if _idle is None and agent.alive:
        agent.on_end, _idle = None, agent
    return _idle is agent


def quit_warm() -> bool:
    """End this process's idle agent, if there is one. Returns whether there was."""
    agent = take_idle(_idle.env) if _idle is not None else None
    if agent is not None:
        agent.stop()
    return agent is not None

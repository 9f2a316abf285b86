"""Launches by the real launchers, whose agents are stand-ins that announce themselves."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from helpers import processes_with, until

from jaxcluster.errors import LaunchError
from jaxcluster.launchers.base import AgentOptions, Launcher
from jaxcluster.launchers.commands import Launch, StartedAgent
from jaxcluster.launchers.failures import Reason

MARK = "JAXCLUSTER_TEST_LAUNCH"  # a variable that all processes of a test have
KEY = "key'!$"
# It shouts back what it is sent. It ends with its input where it is told to, and with signals.
AGENT = """#!{python}
import json, os, signal, socket, sys, threading, time
argv = sys.argv[1:]
signal.signal(signal.SIGTERM, lambda *_: os._exit(143 if "--signalled-status=143" in argv else 0))
signal.signal(signal.SIGUSR1, lambda *_: os._exit(0))  # as at the end of a lease
(listen,) = [a.removeprefix("--bind=ipc://") for a in argv if a.startswith("--bind=")] or [""]
server = socket.socket(socket.AF_UNIX if listen else socket.AF_INET)
server.bind(listen or ("127.0.0.1", 0))
server.listen()
def shout(client):
    while data := client.recv(1 << 16):
        client.sendall(data.upper())
def serve():
    while True:
        threading.Thread(target=shout, args=server.accept()[:1], daemon=True).start()
threading.Thread(target=serve, daemon=True).start()
facts = {{"argv": argv, "pid": os.getpid(), "key": str(os.getpid()), "env": dict(os.environ)}}
if not listen:
    facts["endpoint"] = "tcp://127.0.0.1:%d" % server.getsockname()[1]
print("module loaded", file=sys.stderr)
print("Welcome to the node. ", end="")
print(json.dumps({{"jaxcluster-agent": 1, **facts}}), flush=True)
if "--owner-stdin" in argv:
    sys.stdin.read()
else:
    time.sleep(1000)
if listen:
    os.unlink(listen)
"""
BARE = '#!/bin/sh\ncd /\nexec {python} -I -S "$@"\n'  # a Python without jaxcluster
NOTEBOOK = """
import os, time
from jaxcluster.launchers.base import AgentOptions
from jaxcluster.launchers.commands import Launch
from jaxcluster.launchers.hosts import Host
from {module} import {name}
launcher = {launcher!r}.prepared(os.environ)
launch = Launch(launcher, launcher.render(AgentOptions("main", "key", {python!r}), {folder!r}))
agents = launch.start(600, lambda text: print(text, flush=True))
print("up", *(agent.facts["pid"] for agent in agents), flush=True)
time.sleep(1000)
"""


@dataclass
class Site:
    """A folder of a test, and its launches."""

    path: Path
    launches: list[Launch] = field(default_factory=list)

    def program(self, source: str = AGENT, name: str = "python") -> str:
        path = self.path / name
        path.write_text(source.format(python=sys.executable, path=self.path))
        path.chmod(0o755)
        return str(path)

    def launch(
        self, launcher: Launcher, python: str = "", folder: Path | None = None, **agent: Any
    ) -> Launch:
        ready = launcher.prepared(os.environ)
        options = AgentOptions("main", KEY, python or self.program(), **agent)
        where = folder or tempfile.mkdtemp(dir=self.path)
        made = ready.launch(ready.render(options, str(where)))
        self.launches.append(made)
        return made

    def notebook(self, launcher: Launcher, folder: Path | None = None) -> subprocess.Popen[str]:
        """A process that starts agents, prints how far it is, then ``up`` and their pids."""
        source = NOTEBOOK.format(
            module=type(launcher).__module__, name=type(launcher).__name__, launcher=launcher,
            python=self.program(), folder=str(folder or self.path),
        )  # fmt: skip
        return subprocess.Popen([sys.executable, "-c", source], stdout=subprocess.PIPE, text=True)


@contextlib.contextmanager
def launching(monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    """A site; at the end everything is stopped, and no process of the test is left."""
    mark = uuid.uuid4().hex
    monkeypatch.setenv(MARK, mark)
    made = Site(Path(tempfile.mkdtemp(prefix="jcsite", dir="/tmp")))
    made.path.chmod(0o755)
    try:
        yield made
    finally:
        for launch in made.launches:
            launch.stop()
        monkeypatch.delenv(MARK)
        until(lambda: not processes_with(MARK, mark), "all have ended", 20)
        shutil.rmtree(made.path)


def refused(launch: Launch, timeout_s: float = 60) -> str:
    with pytest.raises(LaunchError) as caught:
        launch.start(timeout_s)
    return str(caught.value)


def successor(launch: Launch, number: int, timeout_s: float = 60, name: str = "") -> StartedAgent:
    """A new agent on a host."""
    start = launch.successor(number, name)
    assert start is not None
    return start(timeout_s)


def ends_of(launch: Launch) -> list[tuple[tuple[int, ...], Reason]]:
    """What is going to be told of the ends of its agents."""
    ends: list[tuple[tuple[int, ...], Reason]] = []
    launch.on_end = lambda hosts, why: ends.append((hosts, why))
    return ends


def is_alive(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()

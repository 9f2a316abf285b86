"""The mpi launcher with the mpiexec that is here, on this host alone.

Open MPI 5 and MPICH come from their wheels: JAXCLUSTER_TEST_MPIEXEC names further commands,
separated by colons. Hosts that differ are the matter of the rig's tests.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
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

from jaxcluster.errors import LaunchError, LauncherUnavailable, UsageError
from jaxcluster.launchers.base import AgentOptions
from jaxcluster.launchers.commands import Launch
from jaxcluster.launchers.failures import Reason
from jaxcluster.launchers.hosts import Host, parse_hosts
from jaxcluster.launchers.mpi import MPI

FOUND = [shutil.which("mpiexec"), *os.environ.get("JAXCLUSTER_TEST_MPIEXEC", "").split(":")]
COMMANDS = [command for command in FOUND if command]
pytestmark = [
    pytest.mark.any_jax,
    pytest.mark.skipif(not COMMANDS, reason="there is no mpiexec: apt-get install openmpi-bin"),
]
HERE = socket.gethostname()
MARK = "JAXCLUSTER_TEST_MPI"
AGENT = """#!{python}
import json, os, sys, time
facts = {{"argv": sys.argv[1:], "pid": os.getpid(), "env": dict(os.environ)}}
print(json.dumps({{"jaxcluster-agent": 1, **facts}}), flush=True)
assert sys.stdin.read() == ""
time.sleep(1000)
"""


@dataclass
class Site:
    path: Path
    mpiexec: str
    launches: list[Launch] = field(default_factory=list)

    def python(self, source: str = AGENT) -> str:
        path = self.path / "python"
        path.write_text(source.format(python=sys.executable))
        path.chmod(0o755)
        return str(path)

    def launch(self, hosts: str = HERE, python: str | None = None, **agent: Any) -> Launch:
        mpi = MPI(parse_hosts(hosts), mpiexec=self.mpiexec).prepared(os.environ)
        options = AgentOptions("main", "key'!$", python or self.python(), **agent)
        launch = Launch(mpi, mpi.render(options, str(self.path)))
        self.launches.append(launch)
        return launch


@pytest.fixture(params=COMMANDS)
def site(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    mark = uuid.uuid4().hex
    monkeypatch.setenv(MARK, mark)
    made = Site(Path(tempfile.mkdtemp(prefix="jcmpi", dir="/tmp")), request.param)
    yield made
    for launch in made.launches:
        launch.stop()
    monkeypatch.delenv(MARK)
    until(lambda: not processes_with(MARK, mark), "all have ended", 20)
    shutil.rmtree(made.path)


def refused(launch: Launch) -> str:
    with pytest.raises(LaunchError) as caught:
        launch.start(60)
    return str(caught.value)


def test_an_agent_comes_up_and_ends_with_mpiexec(site: Site) -> None:
    value = 'it\'s "$HOME" \\ !;\nsecond line'
    launch = site.launch(env=(("XLA_FLAGS", value),))
    assert launch.launcher.flavour in ("openmpi4", "openmpi5", "mpich")  # type: ignore[attr-defined]
    (agent,) = launch.start(60)
    assert "--owner-key=key'!$" in agent.facts["argv"]
    assert agent.facts["env"]["XLA_FLAGS"] == value
    assert agent.facts["env"]["PATH"]
    launch.stop()
    until(lambda: not Path(f"/proc/{agent.facts['pid']}").exists(), "it ends", 10)


def test_an_agent_that_ends_takes_the_job_along_and_is_told(site: Site) -> None:
    launch = site.launch()
    ends: list[Reason] = []
    launch.on_end = lambda hosts, why: ends.append(why)
    (agent,) = launch.start(60)
    os.kill(agent.facts["pid"], signal.SIGKILL)
    until(lambda: ends, "the end is told", 20)
    assert re.match(rf"The agent on {HERE} is lost: mpiexec\S* ended with code", ends[0].message)
    assert launch.successor(0, HERE, 5) is None


def test_a_host_that_is_not_there(site: Site) -> None:
    told = refused(site.launch("nosuch.invalid"))
    assert "No agent on nosuch.invalid: mpiexec" in told and "resolve" in told


def test_a_python_that_is_not_there_or_has_no_jaxcluster(site: Site) -> None:
    bare = site.python('#!/bin/sh\ncd /\nexec {python} -I -S "$@"\n')
    for python in ("/no/such/python", bare):
        told = refused(site.launch(python=python))
        assert told.startswith(f"No agent on {HERE}: mpiexec"), told
        assert told.endswith(f"--python PATH (now {python})"), told


def test_a_notebook_killed_leaves_nothing(site: Site) -> None:
    source = f"""
import os, time
from jaxcluster.launchers.base import AgentOptions
from jaxcluster.launchers.commands import Launch
from jaxcluster.launchers.failures import Reason
from jaxcluster.launchers.hosts import Host
from jaxcluster.launchers.mpi import MPI
mpi = MPI((Host({HERE!r}),), mpiexec={site.mpiexec!r}).prepared(os.environ)
launch = Launch(mpi, mpi.render(AgentOptions("main", "key", {site.python()!r}), {str(site.path)!r}))
print(launch.start(60)[0].facts["pid"], flush=True)
time.sleep(1000)
"""
    with subprocess.Popen(
        [sys.executable, "-c", source], stdout=subprocess.PIPE, text=True
    ) as notebook:
        assert notebook.stdout is not None
        assert int(notebook.stdout.readline())
        notebook.kill()
        mark = os.environ[MARK]
        until(lambda: not processes_with(MARK, mark), "all have ended", 10)


def test_what_is_no_mpi_is_refused(tmp_path: Path) -> None:
    with pytest.raises(LauncherUnavailable, match="is not a known mpiexec"):
        MPI((Host("h1"),), mpiexec="true").prepared(os.environ)
    with pytest.raises(LauncherUnavailable, match="There is no /no/mpiexec on this machine"):
        MPI((Host("h1"),), mpiexec="/no/mpiexec").prepared(os.environ)
    with pytest.raises(UsageError, match="--launcher mpi needs hosts"):
        MPI(mpiexec=COMMANDS[0]).prepared({"PATH": os.environ["PATH"]})

"""Agents by ipyparallel's engine launchers: those that run here, and PBS with a stand-in qsub."""

from __future__ import annotations

import os
import shutil
import signal
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

from jaxcluster.errors import LaunchError, LauncherUnavailable
from jaxcluster.launchers.base import AgentOptions
from jaxcluster.launchers.commands import Launch
from jaxcluster.launchers.failures import Reason
from jaxcluster.launchers.ipp import IPP

pytestmark = pytest.mark.any_jax
MARK = "JAXCLUSTER_TEST_IPP"
AGENT = """#!{python}
import json, os, sys, time
facts = {{"argv": sys.argv[1:], "pid": os.getpid(), "env": dict(os.environ)}}
print(json.dumps({{"jaxcluster-agent": 1, **facts}}), flush=True)
time.sleep(1000)
"""
# A queue: jobs are lines of a file until a test lets them run.
QSUB = """#!/bin/sh
cd {path}
if [ -e refuse ]; then echo "qsub: Unknown queue" >&2; exit 3; fi
if [ -e run ]; then setsid sh "$1" </dev/null >job.out 2>&1 & fi
echo "$!" > job.pid
echo "$1" >> submitted
echo 42.head
"""
QDEL = """#!/bin/sh
cd {path}
echo "$1" >> deleted
[ -s job.pid ] && kill -TERM -$(cat job.pid) 2>/dev/null
exit 0
"""


@dataclass
class Site:
    path: Path
    launches: list[Launch] = field(default_factory=list)

    def program(self, name: str, source: str) -> str:
        path = self.path / name
        path.write_text(source.format(python=sys.executable, path=self.path))
        path.chmod(0o755)
        return str(path)

    def launch(self, launcher: IPP, python: str = "", **agent: Any) -> Launch:
        launcher = launcher.prepared(os.environ)  # type: ignore[assignment]
        options = AgentOptions("main", "key'!$", python or self.program("py", AGENT), **agent)
        folder = self.path / "shared"
        folder.mkdir(exist_ok=True)
        launch = Launch(launcher, launcher.render(options, str(folder)))
        self.launches.append(launch)
        return launch

    def profile(self, name: str, *lines: str) -> None:
        folder = self.path / "ipython" / f"profile_{name}"
        folder.mkdir(parents=True)
        (folder / "ipcluster_config.py").write_text("\n".join(["c = get_config()", *lines]))

    def words(self, name: str) -> list[str]:
        path = self.path / name
        return path.read_text().split() if path.exists() else []


@pytest.fixture
def site(monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    mark = uuid.uuid4().hex
    monkeypatch.setenv(MARK, mark)
    made = Site(Path(tempfile.mkdtemp(prefix="jcipp", dir="/tmp")))
    monkeypatch.setenv("IPYTHONDIR", str(made.path / "ipython"))
    monkeypatch.setenv("PATH", f"{made.path}:{os.environ['PATH']}")
    made.program("qsub", QSUB)
    made.program("qdel", QDEL)
    yield made
    for launch in made.launches:
        launch.stop()
    monkeypatch.delenv(MARK)
    until(lambda: not processes_with(MARK, mark), "all have ended", 20)
    shutil.rmtree(made.path)


def refused(launch: Launch, timeout_s: float = 60) -> str:
    with pytest.raises(LaunchError) as caught:
        launch.start(timeout_s)
    return str(caught.value)


def is_alive(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


@pytest.mark.parametrize("engines", ["local", "mpi"])
def test_what_ipyparallel_starts_is_an_agent(site: Site, engines: str) -> None:
    if engines == "mpi":
        if shutil.which("mpiexec") is None:
            pytest.skip("there is no mpiexec")
        args = ["--allow-run-as-root", "--oversubscribe"]
        site.profile("mine", f"c.MPIEngineSetLauncher.mpi_args = {args}")
    value = 'it\'s "$HOME"\nsecond line'
    profile = "mine" if engines == "mpi" else ""
    launch = site.launch(
        IPP(engines, profile, nodes=2, ntasks_per_node=2), env=(("XLA_FLAGS", value),)
    )
    agents = launch.start(60)
    assert len({agent.facts["pid"] for agent in agents}) == 2
    for agent in agents:
        assert agent.facts["argv"][:2] == ["-P", "-m"]
        assert "--owner-key=key'!$" in agent.facts["argv"]
        assert agent.facts["env"]["XLA_FLAGS"] == value
    launch.stop()
    until(lambda: not any(is_alive(agent.facts["pid"]) for agent in agents), "they end", 20)


def test_a_profile_s_template_is_used_and_its_job_is_deleted(site: Site) -> None:
    site.profile(
        "mine",
        "c.PBSEngineSetLauncher.queue = 'gpu'",
        "c.PBSEngineSetLauncher.batch_template = '''#!/bin/sh",
        "#PBS -q {queue}",
        "for i in $(seq {n}); do {program_and_args} & done; wait'''",
    )
    (site.path / "run").touch()
    launch = site.launch(IPP("pbs", "mine", nodes=2))
    agents = launch.start(60)
    assert len(agents) == 2
    (job,) = site.words("submitted")
    assert "#PBS -q gpu" in (site.path / "shared" / "pbs_engines").read_text(), job
    launch.stop()
    assert site.words("deleted") == ["42"]
    until(lambda: not any(is_alive(agent.facts["pid"]) for agent in agents), "they end", 20)


def test_a_job_that_stays_in_the_queue_is_deleted_at_the_timeout(site: Site) -> None:
    told = refused(site.launch(IPP("pbs")), timeout_s=6)
    assert told.startswith("0 of 1 hosts were ready within 6 s. No agent on the hosts yet")
    assert "ipcluster start --engines pbs" in told
    assert site.words("deleted") == ["42"]


def test_a_notebook_killed_leaves_no_job_in_the_queue(site: Site) -> None:
    (site.path / "shared").mkdir()
    source = f"""
import os
from jaxcluster.launchers.base import AgentOptions
from jaxcluster.launchers.commands import Launch
from jaxcluster.launchers.failures import Reason
from jaxcluster.launchers.ipp import IPP
ipp = IPP("pbs")
agent = AgentOptions("main", "key", "python")
Launch(ipp, ipp.render(agent, {str(site.path / "shared")!r})).start(600)
"""
    with subprocess.Popen([sys.executable, "-c", source]) as notebook:
        until(lambda: site.words("submitted"), "it is queued", 60)
        notebook.kill()
        until(lambda: site.words("deleted"), "it is deleted", 20)
    mark = os.environ[MARK]
    until(lambda: not processes_with(MARK, mark), "all have ended", 20)
    assert site.words("deleted") == ["42"]


def test_what_qsub_says_is_told(site: Site) -> None:
    (site.path / "refuse").touch()
    told = refused(site.launch(IPP("pbs")))
    assert "ended with code 1" in told and "qsub" in told and "exit status 3" in told
    assert "ipcluster start --engines pbs" in told


def test_engines_that_end_are_told(site: Site) -> None:
    launch = site.launch(IPP("local", nodes=1))
    ends: list[Reason] = []
    launch.on_end = lambda hosts, why: ends.append(why)
    (agent,) = launch.start(60)
    os.kill(agent.facts["pid"], signal.SIGKILL)
    until(lambda: ends, "the end is told", 30)
    assert "local has ended" in ends[0].message


def test_a_python_that_is_not_there(site: Site) -> None:
    told = refused(site.launch(IPP("local"), python="/no/such/python"))
    assert told.endswith("--python PATH (now /no/such/python)")


def test_names_that_are_not_known(site: Site) -> None:
    with pytest.raises(LauncherUnavailable) as caught:
        IPP("nosuch").prepared(os.environ)
    assert "ipyparallel has no engine launcher 'nosuch'." in str(caught.value)
    assert "ipp:pbs" in str(caught.value) and "ipp:jaxcluster" not in str(caught.value)
    told = refused(site.launch(IPP("local", "nosuch")))
    assert "nosuch" in told and "profile" in told

"""Agents by ipyparallel's engine launchers: those that run here, and PBS with a stand-in qsub."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from typing import Any

import pytest
from helpers import processes_with, until
from rig.launches import KEY, MARK, Site, ends_of, is_alive, launching, refused

from jaxcluster.errors import LauncherUnavailable
from jaxcluster.launchers.commands import Launch
from jaxcluster.launchers.ipp import IPP

pytestmark = pytest.mark.any_jax
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


@pytest.fixture
def site(monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    with launching(monkeypatch) as made:
        monkeypatch.setenv("IPYTHONDIR", str(made.path / "ipython"))
        monkeypatch.setenv("PATH", f"{made.path}:{os.environ['PATH']}")
        made.program(QSUB, "qsub")
        made.program(QDEL, "qdel")
        (made.path / "shared").mkdir()
        yield made


def launched(site: Site, launcher: IPP, python: str = "", **agent: Any) -> Launch:
    return site.launch(launcher, python, site.path / "shared", **agent)


def profile(site: Site, name: str, *lines: str) -> None:
    folder = site.path / "ipython" / f"profile_{name}"
    folder.mkdir(parents=True)
    (folder / "ipcluster_config.py").write_text("\n".join(["c = get_config()", *lines]))


def words(site: Site, name: str) -> list[str]:
    path = site.path / name
    return path.read_text().split() if path.exists() else []


def test_what_ipyparallel_starts_is_an_agent(site: Site) -> None:
    value = 'it\'s "$HOME"\nsecond line'
    launch = launched(site, IPP("local", nodes=2), env=(("XLA_FLAGS", value),))
    agents = launch.start(60)
    assert len({agent.facts["pid"] for agent in agents}) == 2
    for agent in agents:
        assert agent.facts["argv"][:2] == ["-P", "-m"]
        assert f"--owner-key={KEY}" in agent.facts["argv"]
        assert agent.facts["env"]["XLA_FLAGS"] == value
    launch.stop()
    until(lambda: not any(is_alive(agent.facts["pid"]) for agent in agents), "they end", 20)


def test_a_profile_s_template_is_used_and_its_job_is_deleted(site: Site) -> None:
    profile(
        site,
        "mine",
        "c.PBSEngineSetLauncher.queue = 'gpu'",
        "c.PBSEngineSetLauncher.batch_template = '''#!/bin/sh",
        "#PBS -q {queue}",
        "for i in $(seq {n}); do {program_and_args} & done; wait'''",
    )
    (site.path / "run").touch()
    launch = launched(site, IPP("pbs", "mine", nodes=2))
    agents = launch.start(60)
    assert len(agents) == 2
    (job,) = words(site, "submitted")
    assert "#PBS -q gpu" in (site.path / "shared" / "pbs_engines").read_text(), job
    launch.stop()
    assert words(site, "deleted") == ["42"]
    until(lambda: not any(is_alive(agent.facts["pid"]) for agent in agents), "they end", 20)


def test_a_job_that_stays_in_the_queue_is_deleted_at_the_timeout(site: Site) -> None:
    told = refused(launched(site, IPP("pbs")), timeout_s=6)
    assert told.startswith("0 of 1 hosts were ready within 6 s. No agent on the hosts yet")
    assert "ipcluster start --engines pbs" in told
    assert words(site, "deleted") == ["42"]


def test_a_notebook_killed_leaves_no_job_in_the_queue(site: Site) -> None:
    with site.notebook(IPP("pbs"), site.path / "shared") as notebook:
        until(lambda: words(site, "submitted"), "it is queued", 60)
        notebook.kill()
        until(lambda: words(site, "deleted"), "it is deleted", 20)
    mark = os.environ[MARK]
    until(lambda: not processes_with(MARK, mark), "all have ended", 20)
    assert words(site, "deleted") == ["42"]


def test_what_qsub_says_is_told(site: Site) -> None:
    (site.path / "refuse").touch()
    told = refused(launched(site, IPP("pbs")))
    assert "ended with code 1" in told and "qsub" in told and "exit status 3" in told
    assert "ipcluster start --engines pbs" in told


def test_engines_that_end_are_told(site: Site) -> None:
    launch = launched(site, IPP("local", nodes=1))
    ends = ends_of(launch)
    (agent,) = launch.start(60)
    os.kill(agent.facts["pid"], signal.SIGKILL)
    until(lambda: ends, "the end is told", 30)
    assert "local has ended" in ends[0][1].message


def test_names_that_are_not_known(site: Site) -> None:
    with pytest.raises(LauncherUnavailable) as caught:
        IPP("nosuch").prepared(os.environ)
    assert "ipyparallel has no engine launcher 'nosuch'." in str(caught.value)
    assert "ipp:pbs" in str(caught.value) and "ipp:jaxcluster" not in str(caught.value)
    told = refused(launched(site, IPP("local", "nosuch")))
    assert "nosuch" in told and "profile" in told

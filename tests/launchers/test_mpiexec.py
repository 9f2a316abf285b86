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
from collections.abc import Callable, Iterator

import pytest
from helpers import until
from rig.launches import BARE, Site, ends_of, launching, refused

from jaxcluster.errors import LauncherUnavailable, UsageError
from jaxcluster.launchers.hosts import Host, parse_hosts
from jaxcluster.launchers.mpi import MPI

FOUND = [shutil.which("mpiexec"), *os.environ.get("JAXCLUSTER_TEST_MPIEXEC", "").split(":")]
COMMANDS = [command for command in FOUND if command]
pytestmark = [
    pytest.mark.any_jax,
    pytest.mark.skipif(not COMMANDS, reason="there is no mpiexec: apt-get install openmpi-bin"),
]
HERE = socket.gethostname()


@pytest.fixture
def site(monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    with launching(monkeypatch) as made:
        yield made


@pytest.fixture(params=COMMANDS)
def mpi(request: pytest.FixtureRequest) -> Callable[..., MPI]:
    return lambda hosts=HERE: MPI(parse_hosts(hosts), mpiexec=request.param)


def test_an_agent_that_ends_takes_the_job_along_and_is_told(
    site: Site, mpi: Callable[..., MPI]
) -> None:
    value = 'it\'s "$HOME" \\ !;\nsecond line'
    launch = site.launch(mpi(), env=(("XLA_FLAGS", value),))
    ends = ends_of(launch)
    (agent,) = launch.start(60)
    assert agent.facts["env"]["XLA_FLAGS"] == value
    os.kill(agent.facts["pid"], signal.SIGKILL)
    until(lambda: ends, "the end is told", 20)
    told = ends[0][1].message
    assert re.match(rf"The agent on {HERE} is lost: mpiexec\S* ended with code", told)
    assert launch.successor(0, HERE) is None


def test_a_host_or_a_python_that_is_not_there(site: Site, mpi: Callable[..., MPI]) -> None:
    told = refused(site.launch(mpi("nosuch.invalid")))
    assert "No agent on nosuch.invalid: mpiexec" in told and "resolve" in told
    for python in ("/no/such/python", site.program(BARE, "bare")):
        told = refused(site.launch(mpi(), python))
        assert told.startswith(f"No agent on {HERE}: mpiexec"), told
        assert told.endswith(f"--python PATH (now {python})"), told


def test_what_is_no_mpi_is_refused() -> None:
    with pytest.raises(LauncherUnavailable, match="is not a known mpiexec"):
        MPI((Host("h1"),), mpiexec="true").prepared(os.environ)
    with pytest.raises(LauncherUnavailable, match="There is no /no/mpiexec on this machine"):
        MPI((Host("h1"),), mpiexec="/no/mpiexec").prepared(os.environ)
    with pytest.raises(UsageError, match="--launcher mpi needs hosts"):
        MPI(mpiexec=COMMANDS[0]).prepared({"PATH": os.environ["PATH"]})

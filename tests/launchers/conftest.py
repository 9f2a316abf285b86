"""Hosts for the tests of this folder, and the proof that each test leaves nothing on any of them.

Tests skip where root or a package is missing, and say what; with JAXCLUSTER_REQUIRE_RIG=1, as CI
sets it where it could install all, that is a failure.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from typing import TypeVar

import pytest
from helpers import GONE_S, until
from rig import HostNotebook, Missing, Mpi, Rig, find_mpi, start_slurm, start_ssh

T = TypeVar("T")


def provided(make: Callable[[], T]) -> T:
    """What ``make`` makes; else the test is skipped, or fails where nothing may be missing."""
    try:
        return make()
    except Missing as missing:
        reason = f"no rig: {missing}"
    if os.environ.get("JAXCLUSTER_REQUIRE_RIG") == "1":
        pytest.fail(reason, pytrace=False)
    pytest.skip(reason)


@pytest.fixture(scope="session")
def hosts() -> Iterator[Rig]:
    """h0, h1 and h2 on a switch of their own; h0 is the notebook's."""
    with provided(Rig) as rig:
        yield rig


@pytest.fixture(scope="session")
def ssh(hosts: Rig) -> Rig:
    """The hosts, with sshd on each, and on h0 a user whose ``ssh h1`` works."""
    provided(lambda: start_ssh(hosts))
    return hosts


@pytest.fixture(scope="session")
def slurm(hosts: Rig) -> Rig:
    """The hosts, with Slurm: h0 is the login node, h1 and h2 are idle."""
    provided(lambda: start_slurm(hosts))
    return hosts


@pytest.fixture(scope="session", params=["openmpi4", "openmpi5", "mpich"])
def mpi(request: pytest.FixtureRequest, ssh: Rig) -> Mpi:
    """Each MPI in turn, for command lines of h0's."""
    return provided(lambda: find_mpi(request.param))


@pytest.fixture
def open_notebook(hosts: Rig) -> Iterator[Callable[..., HostNotebook]]:
    """Opens notebooks on h0 (or ``host=``) that are closed after the test."""
    opened: list[HostNotebook] = []

    def open_one(host: str = "h0", directory: str = "", **env: str) -> HostNotebook:
        opened.append(HostNotebook(hosts[host], directory, env))
        return opened[-1]

    yield open_one
    for one in opened:
        one.close()


@pytest.fixture(autouse=True)
def nothing_left_over(request: pytest.FixtureRequest) -> Iterator[None]:
    """No process, file, socket or shared memory that a test has made is on any host after it."""
    if "hosts" not in request.fixturenames:
        yield
        return
    rig: Rig = request.getfixturevalue("hosts")
    before = {name: host.look() for name, host in rig.hosts.items()}
    yield

    def left() -> list[str]:
        return [
            f"{name}: {line}"
            for name, host in rig.hosts.items()
            for line in host.leftovers(before[name])
        ]

    with contextlib.suppress(AssertionError):
        until(lambda: not left(), "end of all that the test has made", GONE_S)
    if found := left():
        for name, host in rig.hosts.items():  # that the next test may have the hosts to itself
            for pid, _ in host.look().processes.keys() - before[name].processes.keys():
                host.run("kill", "-KILL", str(pid), check=False)
        pytest.fail("left over:\n" + "\n".join(found), pytrace=False)

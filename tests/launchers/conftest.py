"""Hosts for the tests of this folder, and the proof that each test leaves nothing on any of them.

Tests skip where root or a package is missing, and say what; with JAXCLUSTER_REQUIRE_RIG=1, as CI
sets it where it could install all, that is a failure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from rig import (
    HostNotebook,
    Rig,
    leaving_nothing,
    provided,
    revive,
    start_slurm,
    start_ssh,
)


@pytest.fixture(scope="session")
def hosts() -> Iterator[Rig]:
    """h0 to h3 on a switch of their own; h0 is the notebook's."""
    with provided(lambda: Rig(("h0", "h1", "h2", "h3"))) as rig:
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


@pytest.fixture
def open_notebook(hosts: Rig) -> Iterator[Callable[..., HostNotebook]]:
    """Opens notebooks on h0 that are closed after the test."""
    opened: list[HostNotebook] = []

    def open_one(directory: str = "", **env: str) -> HostNotebook:
        opened.append(HostNotebook(hosts["h0"], directory, env))
        return opened[-1]

    yield open_one
    for one in opened:
        one.close()


@pytest.fixture(scope="module")
def shared_notebook(ssh: Rig) -> Iterator[HostNotebook]:
    """A notebook on h0 for all tests of a module, which leave no cell that runs."""
    with leaving_nothing(ssh):
        notebook = HostNotebook(ssh["h0"])
        try:
            notebook.ok("%load_ext jaxcluster")
            yield notebook
        finally:
            notebook.close()


@pytest.fixture
def two_hosts(shared_notebook: HostNotebook) -> HostNotebook:
    """The shared one, with two ranks each on h1 and h2: those of the test before, if they live."""
    if shared_notebook.run("%spmd 1").error:
        shared_notebook.run("%jaxcluster stop")
        shared_notebook.ok("%jaxcluster start --launcher ssh --hosts h1:2,h2:2")
    return shared_notebook


@pytest.fixture(autouse=True)
def nothing_left_over(request: pytest.FixtureRequest) -> Iterator[None]:
    """No process, file, socket or shared memory that a test has made is on any host after it.

    What tests leave of a notebook that they share is looked at once it is closed.
    """
    if "hosts" not in request.fixturenames or "shared_notebook" in request.fixturenames:
        yield
        return
    if "slurm" in request.fixturenames:
        revive(request.getfixturevalue("slurm"))
    with leaving_nothing(request.getfixturevalue("hosts")):
        yield

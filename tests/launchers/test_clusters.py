"""Real clusters on two hosts, by every launcher: what a notebook types, and what it gets.

The notebook is on h0, two ranks each are on h1 and h2. The tests of one launcher share a cluster,
which each takes over as the one before has left it, and which ends with the notebook's shutdown.
Tests with a cluster of their own come first, so that the hosts' daemons are there when a shared one
begins.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import pytest
from helpers import until
from rig import Host, HostNotebook, Rig, find_mpi, leaving_nothing, provided
from rig.leftovers import Seen

pytestmark = pytest.mark.any_jax

KILLED_S = 3.0  # the last process on any host, after kill -9 of the notebook's
HOSTS = "--hosts h1:2,h2:2"
SLURM = "--launcher slurm --nodes 2 --ntasks-per-node 2"
SETUP = """%%spmd
import os, sys, time, socket, numpy as np, jax, jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec as P
mesh = jax.make_mesh((4,), ("i",))
x = jax.make_array_from_callback(
    (4,), NamedSharding(mesh, P("i")), lambda at: np.arange(1.0, 5.0)[at])
total = jax.jit(jax.shard_map(
    lambda v: jax.lax.psum(v.sum(), "i"), mesh=mesh, in_specs=P("i"), out_specs=P()))
same, mine = [1.0, 2.0], jax.process_index()
"""
CHECK = """%%spmd
y = jax.make_array_from_callback((4,), NamedSharding(mesh, P("i")), lambda at: np.ones(4)[at])
print(float(total(y)), same)
"""
IN_PSUM = """%%spmd
print("into the sum", flush=True)
if jax.process_index() == 1:
    time.sleep(1000)
print(float(total(x)))
"""
PROFILE = """
c = get_config()
c.SSHEngineSetLauncher.engines = {{"h1": 1, "h2": 1}}
c.SSHEngineSetLauncher.remote_python = c.SSHEngineLauncher.remote_python = "{python}"
c.SlurmEngineSetLauncher.batch_template = '''#!/bin/sh
#SBATCH --nodes={{n}} --ntasks={{n}} --ntasks-per-node=1 --output=/dev/null
srun {{program_and_args}}
'''
c.MPIEngineSetLauncher.mpi_cmd = ["mpiexec.openmpi"]
c.MPIEngineSetLauncher.mpi_args = ["--allow-run-as-root", "--host", "h1:1,h2:1"]
"""


@dataclass(frozen=True)
class Way:
    """One way to start a cluster of ranks 0-1 on h1 and 2-3 on h2.

    Attributes:
        words: what stands behind ``%jaxcluster start``.
        env: the notebook's.
        before: what was on the hosts before any cluster.
    """

    name: str
    rig: Rig
    words: str
    env: dict[str, str] = field(default_factory=dict)
    before: dict[Host, Seen] = field(default_factory=dict)

    def open(self) -> HostNotebook:
        """A notebook on h0, without a cluster."""
        notebook = HostNotebook(self.rig["h0"], env=self.env)
        notebook.ok("%load_ext jaxcluster\nimport jaxcluster, numpy as np")
        return notebook

    def start(self, notebook: HostNotebook) -> None:
        notebook.ok(f"%jaxcluster start {self.words} --timeout 90", 100)


def make_way(name: str, request: pytest.FixtureRequest) -> Way:
    """A way, with all that it needs set up."""
    kind = name.removeprefix("ipp:").partition("-")[0]
    rig: Rig = request.getfixturevalue("slurm" if kind == "slurm" else "ssh")
    shared = {"JAXCLUSTER_SHARED_DIR": str(rig.shared)}
    (rig.shared / f"jaxcluster-{os.getuid()}").mkdir(mode=0o700, exist_ok=True)
    if name == "ssh":
        return Way(name, rig, f"--launcher ssh {HOSTS}")
    if name == "ssh-direct":
        return Way(name, rig, f"--launcher ssh --direct {HOSTS}")
    if name == "slurm":
        return Way(name, rig, SLURM, shared)
    if not name.startswith("ipp:"):
        mpi = provided(lambda: find_mpi(name))
        return Way(name, rig, f"--launcher mpi --mpiexec {mpi.mpiexec} {HOSTS}")
    profile = PROFILE.format(python=rig.python)
    rig["h0"].write("~/.ipython/profile_rig/ipcluster_config.py", profile)
    words = f"--launcher {name} --ipp-profile rig --nodes 2 --ntasks-per-node 2"
    return Way(name, rig, words, shared)


@pytest.fixture(scope="module", params=["ssh", "ssh-direct", "slurm", "openmpi4"])
def way(request: pytest.FixtureRequest) -> Way:
    found = make_way(request.param, request)
    found.before.update({host: host.look() for host in found.rig.hosts.values()})
    return found


@pytest.fixture(scope="module")
def shared(way: Way) -> Iterator[HostNotebook]:
    """A notebook with a cluster, for the tests of one launcher."""
    with leaving_nothing(way.rig):
        notebook = way.open()
        try:
            yield notebook
        finally:
            notebook.close()


@pytest.fixture
def notebook(way: Way, shared: HostNotebook) -> HostNotebook:
    """The shared one, whose cluster works: what a test before has broken is begun again."""
    if shared.run("%spmd float(total(x)) + mine").error:
        shared.run("%jaxcluster stop")
        way.start(shared)
        shared.ok(SETUP)
    return shared


@pytest.fixture(autouse=True)
def nothing_left_over(request: pytest.FixtureRequest) -> Iterator[None]:
    """As everywhere, but what a shared notebook leaves is looked at once it is closed."""
    if "shared" in request.fixturenames or "way" not in request.fixturenames:
        yield
        return
    with leaving_nothing(request.getfixturevalue("way").rig):
        yield


def said(notebook: HostNotebook) -> list[str]:
    """What each rank has printed in the last cell."""
    found = notebook.ok("[jaxcluster.current().last.stdout(rank) for rank in range(4)]")
    printed = eval(found.result)
    assert isinstance(printed, list)
    return printed


def pids(notebook: HostNotebook) -> list[int]:
    """Each rank's, as its own host counts."""
    notebook.ok("%%spmd\nprint(os.getpid())")
    return [int(line) for line in said(notebook)]


def host_of(way: Way, rank: int) -> Host:
    return way.rig[f"h{1 + rank // 2}"]


def check_whole(notebook: HostNotebook) -> None:
    """Collectives give the right number on every rank, and what all have is there on all."""
    notebook.ok(CHECK)
    assert said(notebook) == ["4.0 [1.0, 2.0]\n"] * 4


# -------------------------------------------------- those that are started, restarted and stopped


@pytest.mark.parametrize("name", ["openmpi5", "mpich", "ipp:ssh", "ipp:slurm", "ipp:mpi"])
def test_start_sum_restart_and_stop(request: pytest.FixtureRequest, name: str) -> None:
    way = make_way(name, request)
    with leaving_nothing(way.rig):
        notebook = way.open()
        try:
            way.start(notebook)
            notebook.ok(SETUP)
            notebook.ok("%%spmd\nprint(socket.gethostname(), float(total(x)))")
            assert said(notebook) == ["h1 10.0\n", "h1 10.0\n", "h2 10.0\n", "h2 10.0\n"]
            notebook.ok("%jaxcluster restart")
            notebook.ok("%%spmd\nprint(mine, float(total(x)))")
            assert said(notebook) == [f"{rank} 10.0\n" for rank in range(4)]
            notebook.ok("%jaxcluster stop")
        finally:
            notebook.close()


# -------------------------------------------------------------------------------------- cells


def test_stop_leaves_nothing_on_any_host(way: Way, notebook: HostNotebook) -> None:
    """First, so that all others have a cluster that was started after a stop."""
    notebook.ok("%jaxcluster stop")
    until_ended({host: seen for host, seen in way.before.items() if host.name != "h0"})


def test_the_stop_button_reaches_the_ranks_of_both_hosts(notebook: HostNotebook) -> None:
    cell = notebook.begin("%%spmd\nprint('begun', flush=True)\nwhile True: time.sleep(0.01)")
    notebook.until(lambda: "begun" in cell.text, "the cell's begin")
    notebook.press_stop()
    notebook.wait(cell, 30)
    assert cell.ename == "CellInterrupted", cell.text
    check_whole(notebook)


# ------------------------------------------------------------------------------- ranks that end


def test_a_restart_keeps_the_variables(notebook: HostNotebook) -> None:
    before = pids(notebook)
    cell = notebook.ok("%jaxcluster restart")
    assert "New processes after" in cell.text
    assert not set(before) & set(pids(notebook))
    notebook.ok("%%spmd\nprint(mine, float(total(x)))")
    assert said(notebook) == [f"{rank} 10.0\n" for rank in range(4)]


@pytest.mark.parametrize("killed", [[2, 3], [0]], ids=["all of a host", "rank 0"])
def test_ranks_that_are_killed_are_replaced(
    way: Way, notebook: HostNotebook, killed: list[int]
) -> None:
    there = pids(notebook)
    for rank in killed:
        host_of(way, rank).kill(there[rank])
    until(
        lambda: all(there[rank] not in host_of(way, rank).processes() for rank in killed), "death"
    )
    notebook.ok(
        f"import time\nwhile len(jaxcluster.current().dead) < {len(killed)}: time.sleep(0.01)"
    )
    cell = notebook.run("%spmd 1")
    assert cell.ename == "RankDied", cell.text
    host = host_of(way, killed[0]).name
    assert f"died (killed by SIGKILL on host {host})" in cell.text
    assert "x (parts of it were on a rank that is gone)" in cell.text
    notebook.ok(SETUP)  # x is lost with the rank that had a part of it
    check_whole(notebook)
    now = pids(notebook)
    assert all(now[rank] != there[rank] for rank in killed)


# ------------------------------------------------------------------------------- the end


def test_a_notebook_that_is_killed_in_a_sum_leaves_nothing(way: Way) -> None:
    before = {host: host.look() for host in way.rig.hosts.values()}
    notebook = way.open()
    try:
        way.start(notebook)
        notebook.ok(SETUP)
        cell = notebook.begin(IN_PSUM)
        notebook.until(lambda: "into the sum" in cell.text, "the sum's begin")
        notebook.kill()
        until_ended(before)
    finally:
        notebook.close()


def until_ended(before: Mapping[Host, Seen]) -> None:
    """Wait for the end of all processes since, on all hosts, as long as that may take."""

    def left() -> list[str]:
        return [
            f"{host.name}: {line}"
            for host, seen in before.items()
            for line in host.leftovers(seen)
            if line.startswith("process ")
        ]

    busy = max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))
    begun = time.monotonic()
    try:
        until(lambda: not left(), "the end of the last process on any host", KILLED_S * busy)
    except AssertionError as error:
        raise AssertionError(f"{error}: {left()}") from None
    print(f"all gone after {time.monotonic() - begun:.2f} s")

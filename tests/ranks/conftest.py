"""Real clusters for the tests of this folder, and the proof that they leave no process."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import overhosts
import psutil
import pytest
from helpers import GONE_S, Home, Notebook, until

import jaxcluster
from jaxcluster.cluster import live_records
from jaxcluster.hosts.here import quit_warm

# --------------------------------------------------------------------------------- several hosts


def pytest_configure(config: pytest.Config) -> None:
    if overhosts.hosts():
        overhosts.install()
        config.option.basetemp = config.option.basetemp or overhosts.shared_folder() / "pytest"


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what depends on one machine, where the tests run over several."""
    if overhosts.hosts():
        out = [item for item in items if item.get_closest_marker("one_machine")]
        config.hook.pytest_deselected(items=out)
        items[:] = [item for item in items if item not in out]


# --------------------------------------------------------------------------------------- fixtures


@pytest.fixture(scope="session", autouse=True)
def home() -> Iterator[Home]:
    """Folders of this session's own, so that no cluster or profile of the user's is in the way."""
    home = Home.make()
    with overhosts.nothing_left(GONE_S), pytest.MonkeyPatch.context() as patch:
        for name, value in (home.variables | overhosts.variables()).items():
            patch.setenv(name, value)
        with home:
            yield home
            quit_warm()
            home.wait_until_empty()


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder with a short path: a socket's may have 107 characters."""
    with tempfile.TemporaryDirectory(prefix="jobs-") as name:
        yield Path(name)


@pytest.fixture
def private_home(monkeypatch: pytest.MonkeyPatch) -> Iterator[Home]:
    """Folders of one test's own: it sees no other cluster, and must leave no process."""
    home = Home.make()
    for name, value in home.variables.items():
        monkeypatch.setenv(name, value)
    with overhosts.nothing_left(GONE_S), home:
        yield home
        home.wait_until_empty()


@pytest.fixture(scope="session")
def shared_cluster(home: Home) -> Iterator[jaxcluster.Cluster]:
    with jaxcluster.start(4, devices_per_process=2, name="shared") as running:
        yield running


@pytest.fixture(scope="module")
def cluster(shared_cluster: jaxcluster.Cluster) -> jaxcluster.Cluster:
    """4 ranks with 2 devices each. Tests leave it in lockstep and idle; modules clear it."""
    shared_cluster.run(CLEAR + SETUP)
    return shared_cluster


@pytest.fixture(scope="session")
def shared_pair(home: Home) -> Iterator[jaxcluster.Cluster]:
    with jaxcluster.start(2, devices_per_process=1, name="pair") as running:
        yield running


@pytest.fixture(scope="module")
def pair(shared_pair: jaxcluster.Cluster) -> jaxcluster.Cluster:
    """2 ranks with 1 device each, where collectives run inline."""
    shared_pair.run(CLEAR + SETUP)
    return shared_pair


CLEAR = """
for _ in [n for n in globals() if n[0] != "_" and n not in get_ipython().user_ns_hidden]:
    del globals()[_]
"""
SETUP = """
import jax, jax.numpy as jnp, numpy as np, os, sys, time
from jax.sharding import NamedSharding, PartitionSpec as P
rank = jax.process_index()
mesh = jax.make_mesh((jax.process_count(), jax.local_device_count()), ("i", "j"))
x = jax.device_put(np.arange(32).reshape(4, 8), NamedSharding(mesh, P("i", "j")))
"""


@pytest.fixture
def start(home: Home) -> Iterator[Callable[..., jaxcluster.Cluster]]:
    """Starts clusters of 2 ranks (or more) that end with the test."""
    started = []

    def start(num_processes: int = 2, **options: object) -> jaxcluster.Cluster:
        started.append(jaxcluster.start(num_processes, **options))
        return started[-1]

    yield start
    for running in started:
        running.stop()


@pytest.fixture(scope="module")
def notebook(home: Home, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Notebook]:
    """A notebook of the module's own, with the extension loaded."""
    opened = Notebook(tmp_path_factory.mktemp("notebook"))
    opened.ok("%load_ext jaxcluster")
    yield opened
    opened.close()


@pytest.fixture
def open_notebook(home: Home, tmp_path: Path) -> Iterator[Callable[..., Notebook]]:
    """Opens notebooks that are closed after the test."""
    opened: list[Notebook] = []

    def open_one(**env: str) -> Notebook:
        opened.append(Notebook(tmp_path, env))
        opened[-1].ok("%load_ext jaxcluster")
        return opened[-1]

    yield open_one
    for one in opened:
        one.close()


# ------------------------------------------------------------------------------------------ leaks


@pytest.fixture(scope="module", autouse=True)
def nothing_left_over(home: Home) -> Iterator[None]:
    """No process that a module's tests have started is there after them.

    What belongs to a session's cluster may be; and an idle agent of this process waits for the
    next start, with its fork server, as in any notebook.
    """
    yield

    def left() -> list[str]:
        clusters = {record.name for record in live_records()}
        own = {child.pid for child in psutil.Process().children(recursive=True)}
        # A browser of other tests has had this home, too.
        found = {pid: line for pid, line in home.processes().items() if "/chrom" not in line}
        others = [line for pid, line in found.items() if pid not in own]
        if clusters:
            return [*others, *(clusters - {"shared", "pair"})]
        forked = [line for pid, line in found.items() if pid in own and "forkserver" in line]
        agents = [
            line for pid, line in found.items() if pid in own and "jaxcluster.hosts.agent" in line
        ]
        return others + forked[len(agents) :]

    with contextlib.suppress(AssertionError):
        until(lambda: not left(), "end of all processes", GONE_S)
    assert not left()

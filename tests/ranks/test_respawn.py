"""Stop, pressed at every moment of a recovery or restart: nothing is lost, and it is said."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import overhosts
import pytest
from helpers import Home, until
from overhosts import place, saved_folders, send_signal

import jaxcluster
from jaxcluster.errors import ClusterExists, NoCluster, RankDied
from jaxcluster.hosts.records import registry

pytestmark = pytest.mark.any_jax

SETUP = """
import jax, jax.numpy as jnp, numpy as np
from jax.sharding import NamedSharding, PartitionSpec as P
from jax.experimental import multihost_utils as mhu
mesh = jax.make_mesh((jax.device_count(),), ("i",))
g = jax.make_array_from_callback((16,), NamedSharding(mesh, P("i")), lambda i: np.arange(16.0)[i])
history = [1.0, 2.0]
r = jax.process_index()
"""
STEPS = [
    "saving the ranks'",
    "starting 2 processes",
    "engines 1/2",
    "initializing JAX",
    "connecting engines",
    "restoring the variables",
]
LATER = STEPS[1:]
SOME = [STEPS[0], STEPS[2], STEPS[5]]
DIES = "import os, jax\nif jax.process_index(): os.kill(os.getpid(), 9)"
LEFT = (
    "Cluster 'respawn' has no processes now: their start was stopped.\n"
    "The variables of ranks 0, 1 are saved: %jaxcluster restart restores them; %jaxcluster "
    "stop discards them."
)


@pytest.fixture(scope="module")
def started(home: Home) -> Iterator[list[jaxcluster.Cluster]]:
    """The last one that is started for a test."""
    clusters: list[jaxcluster.Cluster] = []
    yield clusters
    for cluster in clusters:
        cluster.stop()


@pytest.fixture
def ranks(started: list[jaxcluster.Cluster]) -> Iterator[jaxcluster.Cluster]:
    before = saved_folders()
    if started and started[0].closed:
        started.pop().stop()
    if not started:
        started.append(jaxcluster.start(2, devices_per_process=2, name="respawn"))
    started[0].run(SETUP, show=False)
    yield started[0]
    assert saved_folders() == before


def check_whole(cluster: jaxcluster.Cluster) -> None:
    record = cluster.run("print(float(jnp.sum(g)), history, r)", show=False)
    assert [record.stdout(rank) for rank in range(2)] == [
        f"120.0 [1.0, 2.0] {rank}\n" for rank in range(2)
    ]


def stop_at(step: str) -> Callable[[str], None]:
    """A listener to progress that presses the stop button when ``step`` is said."""
    left = [step]

    def listen(line: str) -> None:
        if left and line.startswith(left[0]):
            left.clear()
            os.kill(os.getpid(), signal.SIGINT)

    return listen


def kill(cluster: jaxcluster.Cluster, rank: int) -> None:
    send_signal(cluster, rank)
    until(lambda: rank in cluster.dead, "word of the death", 5)


# --------------------------------------------------------------------------- one stop


@pytest.mark.promise("What needs new processes")
def test_a_stop_while_the_variables_are_saved_ends_nothing(ranks: jaxcluster.Cluster) -> None:
    pids = list(ranks.record.pids)
    with pytest.raises(KeyboardInterrupt, match="Nothing was ended or lost") as stop:
        ranks.restart(stop_at(STEPS[0]))
    assert str(stop.value).endswith("%jaxcluster restart tries again.")
    assert ranks.record.pids == pids
    assert saved_folders() == set()
    check_whole(ranks)
    assert "variables kept" in ranks.restart()
    check_whole(ranks)


@pytest.mark.parametrize("step", LATER)
def test_a_later_stop_leaves_a_cluster_that_says_what_it_is_and_comes_back(
    ranks: jaxcluster.Cluster, step: str
) -> None:
    with pytest.raises(KeyboardInterrupt) as stop:
        ranks.restart(stop_at(step))
    assert str(stop.value) == LEFT
    assert jaxcluster.current() is ranks
    for use in (lambda: ranks.run("1"), ranks.status, lambda: ranks["r"]):
        with pytest.raises(NoCluster) as refused:
            use()
        assert str(refused.value) == LEFT
    with pytest.raises(ClusterExists) as exists:
        jaxcluster.start(2, name="respawn")
    assert str(exists.value) == LEFT
    full = [s for s in saved_folders() if overhosts.hosts() or [*Path(s).glob("rank-*")]]
    assert len(full) == len(overhosts.hosts() or ["this machine"])
    assert "variables kept" in ranks.restart()
    check_whole(ranks)
    assert saved_folders() == set()


def test_what_was_left_survives_another_stop_and_can_be_given_up(
    ranks: jaxcluster.Cluster,
) -> None:
    with pytest.raises(KeyboardInterrupt):
        ranks.restart(stop_at(LATER[1]))
    with pytest.raises(KeyboardInterrupt) as stop:  # there is nothing that it could lose
        ranks.restart(stop_at(LATER[2]))
    assert str(stop.value) == LEFT
    assert "variables kept" in ranks.restart()
    check_whole(ranks)
    with pytest.raises(KeyboardInterrupt) as stop:
        ranks.restart(stop_at(LATER[1]), clean=True)
    assert "%jaxcluster restart starts them again, with empty ranks" in str(stop.value)
    ranks.restart()
    assert ranks.run("print('g' in globals())", show=False).stdout() == "False\n"
    with pytest.raises(KeyboardInterrupt):
        ranks.restart(stop_at(LATER[1]))
    ranks.stop()
    assert saved_folders() == set()
    with pytest.raises(NoCluster, match="Cluster 'respawn' is stopped"):
        ranks.run("1")
    with jaxcluster.start(2, name="respawn") as other:
        assert other.run("print(1)", show=False).stdout() == "1\n"


def test_a_cell_that_a_restart_ends_says_so(ranks: jaxcluster.Cluster) -> None:
    cell = ranks.submit("import time; time.sleep(60)")
    until(lambda: all(state.state == "running" for state in ranks.status()), "it runs", 10)
    assert "variables kept" in ranks.restart()
    with pytest.raises(RankDied, match="The cluster was restarted"):
        cell.wait()
    check_whole(ranks)


# --------------------------------------------------------------------------- in a cell


@pytest.mark.parametrize("step", SOME)
def test_stops_in_the_recovery_of_a_cell(
    ranks: jaxcluster.Cluster, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The recovery that a death brings about by itself is the same, and says what had happened."""
    carry = jaxcluster.Cluster.restart
    listen = stop_at(step)
    monkeypatch.setattr(
        jaxcluster.Cluster, "restart", lambda self, *_, **more: carry(self, listen, **more)
    )
    killed = f"killed by SIGKILL{place(ranks, 1)}"
    kill(ranks, 1)
    with pytest.raises(KeyboardInterrupt) as stop:
        ranks.run("print(1)", show=False)
    assert str(stop.value).startswith(f"Rank 1 died ({killed}), so the cell was not run.\n")
    if step == STEPS[0]:
        assert "Nothing was ended or lost." in str(stop.value)
        assert ranks.status()[0].state == "idle"
    else:
        assert "The variables of rank 0 are saved" in str(stop.value)
    assert "rank 1 replaced" in ranks.restart()
    record = ranks.run("print(mesh.devices.size)", show=False)
    assert [record.stdout(rank) for rank in range(2)] == ["4\n"] * 2


def test_stops_at_random_moments(
    ranks: jaxcluster.Cluster, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    """Whenever it comes, the variables are there, or are saved and come back."""
    chance = random.Random(7)
    raises = False

    def press(*_: object) -> None:
        # A late press must not hit the test itself, nor whoever runs it.
        nonlocal raises
        was, raises = raises, False
        if was:
            raise KeyboardInterrupt

    monkeypatch.setattr(signal, "default_int_handler", press)  # a restart looks who handles it
    before = signal.signal(signal.SIGINT, press)
    request.addfinalizer(lambda: signal.signal(signal.SIGINT, before))
    for _ in range(6):
        pressed = [chance.uniform(0, 1.2) for _ in range(chance.choice((1, 2)))]
        timers = [threading.Timer(s, os.kill, (os.getpid(), signal.SIGINT)) for s in pressed]
        with contextlib.suppress(KeyboardInterrupt):
            try:
                raises = True
                for timer in timers:
                    timer.start()
                ranks.restart()
            finally:
                raises = False
        for timer in timers:
            if timer.ident is not None:
                timer.join()
        if ranks.closed:
            assert ranks.down
            ranks.restart()
        check_whole(ranks)
    assert saved_folders() == set()


# --------------------------------------------------------------------------- other threads


@pytest.mark.parametrize("step", SOME)
def test_a_stop_of_the_cluster_by_another_thread_ends_its_restart(
    ranks: jaxcluster.Cluster, step: str
) -> None:
    other = threading.Thread(target=ranks.stop)

    def listen(line: str) -> None:
        if line.startswith(step):
            other.start()
            until(lambda: ranks._stopped is None or ranks._stopped.is_set(), "the stop", 5)

    with pytest.raises(NoCluster, match="Cluster 'respawn' was stopped meanwhile"):
        ranks.restart(listen)
    other.join()
    assert ranks.closed and not ranks.down
    assert saved_folders() == set()
    assert "respawn" not in jaxcluster.cluster.connected()


def test_a_background_cells_recovery_can_be_stopped(
    ranks: jaxcluster.Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    reached = threading.Event()
    carry = jaxcluster.Cluster.restart

    def listen(line: str) -> None:
        if line.startswith("initializing"):
            cell.stop()
            cell.stop()
            reached.set()

    monkeypatch.setattr(
        jaxcluster.Cluster, "restart", lambda self, *_, **more: carry(self, listen, **more)
    )
    cell = ranks.submit(DIES)
    cell.run_in_background(lambda record: None)
    until(reached.is_set, "the recovery", 30)
    until(lambda: cell.done, "its end", 10)
    assert ranks.down
    with pytest.raises(KeyboardInterrupt, match="their start was stopped"):
        cell.wait()
    monkeypatch.setattr(jaxcluster.Cluster, "restart", carry)  # the memory stays our own
    assert "rank 1 replaced" in ranks.restart()
    assert ranks.run("print(history, r)", ranks=[0], show=False).stdout() == "[1.0, 2.0] 0\n"


# --------------------------------------------------------------------------- failures


KILLED = """
import time, jaxcluster
from overhosts import saved_folders
cluster = jaxcluster.start(1, name="killed", detach={detach})
cluster.run("x = 1")
def listen(line):
    if line.startswith("initializing"):
        print(*saved_folders(), flush=True)
        time.sleep(1000)
cluster.restart(listen)
"""


@pytest.mark.one_machine("looks for folders of this machine")
@pytest.mark.parametrize("detach", [False, True])
def test_a_kernel_that_is_killed_in_a_restart_leaves_nothing_that_was_saved(
    private_home: Home, detach: bool
) -> None:
    source = KILLED.format(detach=detach)
    with subprocess.Popen(
        [sys.executable, "-c", source],
        stdout=subprocess.PIPE,
        text=True,
        env=private_home.environ() | {"PYTHONPATH": os.pathsep.join(sys.path)},
    ) as kernel:
        assert kernel.stdout is not None
        folders = [Path(path) for path in kernel.stdout.readline().split()]
        try:
            assert any((path / "rank-0.state").exists() for path in folders)
        finally:
            kernel.kill()
    until(lambda: not any(path.exists() for path in folders), "end of what was saved", 10)


def test_a_restarted_cluster_is_held_once_and_let_go_of(home: Home) -> None:
    """Who looks whether anybody is connected (the sidebar's list) must see the last one go."""
    cluster = jaxcluster.start(1, name="held", detach=True)
    try:
        cluster.restart()
        assert registry.is_held("held")
        cluster.close()
        assert not registry.is_held("held")
    finally:
        jaxcluster.cluster.stop_by_name("held")

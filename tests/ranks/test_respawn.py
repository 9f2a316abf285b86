"""Stop, pressed at every moment of a recovery or restart: nothing is lost, and it is said."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import overhosts
import pytest
from helpers import Home, until
from overhosts import place, saved_states, send_signal

import jaxcluster
from jaxcluster.cluster.starting import Starting
from jaxcluster.errors import ClusterExists, LaunchError, NoCluster, RankDied
from jaxcluster.records import kept, registry

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
LEFT = (
    "Cluster 'respawn' has no processes now: their start was stopped.\n"
    "The variables of ranks 0, 1 are saved: %jaxcluster restart brings them back, "
    "%jaxcluster stop gives them up."
)


@pytest.fixture(autouse=True)
def memory(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    """A place of the test's own: others on this machine may save and restore meanwhile."""
    place = home.path / "memory"
    place.mkdir(exist_ok=True)
    monkeypatch.setattr(kept, "SHARED_MEMORY", place)


@pytest.fixture
def ranks(home: Home) -> Iterator[jaxcluster.Cluster]:
    before = saved_states()
    with jaxcluster.start(2, devices_per_process=2, name="respawn") as cluster:
        cluster.run(SETUP, show=False)
        yield cluster
    assert saved_states() == before


def check_whole(cluster: jaxcluster.Cluster) -> None:
    record = cluster.run("print(float(jnp.sum(g)), history, r)", show=False)
    assert [record.stdout(rank) for rank in range(2)] == [
        f"120.0 [1.0, 2.0] {rank}\n" for rank in range(2)
    ]


def stop_at(step: str, presses: int = 1) -> Callable[[str], None]:
    """A listener to progress that presses the stop button when ``step`` is said."""
    left = [step]

    def listen(line: str) -> None:
        if left and line.startswith(left[0]):
            left.clear()
            for press in range(presses):
                time.sleep(0.2 * (press > 0))  # two at once are one to Python
                os.kill(os.getpid(), signal.SIGINT)

    return listen


def kill(cluster: jaxcluster.Cluster, rank: int) -> None:
    send_signal(cluster, rank)
    until(lambda: rank in cluster.dead, "word of the death", 5)


def server_of(cluster: jaxcluster.Cluster) -> int | None:
    """The pid of its fork server, on this machine."""
    return getattr(cluster.world.supervisor, "pid", None)


# --------------------------------------------------------------------------- one stop


def test_a_stop_while_the_variables_are_saved_ends_nothing(ranks: jaxcluster.Cluster) -> None:
    pids = list(ranks.record.pids)
    with pytest.raises(KeyboardInterrupt, match="Nothing was ended and nothing is lost") as stop:
        ranks.restart(stop_at(STEPS[0]))
    assert str(stop.value).endswith("%jaxcluster restart does it again.")
    assert ranks.record.pids == pids
    assert saved_states() == set()
    check_whole(ranks)
    assert "variables kept" in ranks.restart()
    check_whole(ranks)


@pytest.mark.parametrize("step", LATER)
def test_a_later_stop_is_told_what_goes_on_and_nothing_is_lost(
    ranks: jaxcluster.Cluster, step: str, capsys: pytest.CaptureFixture[str]
) -> None:
    pids = list(ranks.record.pids)
    assert "variables kept" in ranks.restart(stop_at(step))
    assert (
        "The old processes have ended, and their variables are saved: new ones are on their way. "
        "Stop again to leave it at that.\n"
    ) in capsys.readouterr().err
    assert not set(pids) & set(ranks.record.pids)
    check_whole(ranks)


# --------------------------------------------------------------------------- two stops


@pytest.mark.parametrize("step", LATER)
def test_two_stops_leave_a_cluster_that_says_what_it_is_and_comes_back(
    ranks: jaxcluster.Cluster, step: str
) -> None:
    with pytest.raises(KeyboardInterrupt) as stop:
        ranks.restart(stop_at(step, presses=2))
    assert str(stop.value) == LEFT
    assert jaxcluster.current() is ranks
    for use in (lambda: ranks.run("1"), ranks.status, lambda: ranks["r"]):
        with pytest.raises(NoCluster) as refused:
            use()
        assert str(refused.value) == LEFT
    with pytest.raises(ClusterExists) as exists:
        jaxcluster.start(2, name="respawn")
    assert str(exists.value) == LEFT
    assert len(saved_states()) == len(overhosts.hosts() or ["this machine"])
    line = ranks.restart() if step != "engines 1/2" else ranks.resync()
    assert "variables kept" in line
    check_whole(ranks)
    assert saved_states() == set()


def test_a_stop_of_the_second_try_leaves_what_the_first_has_left(
    ranks: jaxcluster.Cluster,
) -> None:
    with pytest.raises(KeyboardInterrupt):
        ranks.restart(stop_at(LATER[1], presses=2))
    with pytest.raises(KeyboardInterrupt) as stop:  # there is nothing that it could lose
        ranks.restart(stop_at(LATER[2]))
    assert str(stop.value) == LEFT
    assert "variables kept" in ranks.restart()
    check_whole(ranks)


def test_what_was_left_can_be_given_up(ranks: jaxcluster.Cluster) -> None:
    with pytest.raises(KeyboardInterrupt):
        ranks.restart(stop_at(LATER[1], presses=2))
    ranks.stop()
    assert saved_states() == set()
    with pytest.raises(NoCluster, match="Cluster 'respawn' is stopped"):
        ranks.run("1")
    with jaxcluster.start(2, name="respawn") as other:
        assert other.run("print(1)", show=False).stdout() == "1\n"


def test_a_clean_restart_that_was_left_starts_empty_ranks_the_next_time(
    ranks: jaxcluster.Cluster,
) -> None:
    with pytest.raises(KeyboardInterrupt) as stop:
        ranks.restart(stop_at(LATER[1], presses=2), clean=True)
    assert "%jaxcluster restart starts them again, with empty ranks" in str(stop.value)
    ranks.restart()
    assert ranks.run("print('g' in globals())", show=False).stdout() == "False\n"


# --------------------------------------------------------------------------- in a cell


@pytest.mark.parametrize("step", STEPS)
def test_stops_in_the_recovery_of_a_cell(
    ranks: jaxcluster.Cluster, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The recovery that a death brings about by itself is the same, and says what had happened."""
    carry = jaxcluster.Cluster.restart
    listen = stop_at(step, presses=2)
    monkeypatch.setattr(
        jaxcluster.Cluster, "restart", lambda self, *_, **more: carry(self, listen, **more)
    )
    killed = f"killed by SIGKILL{place(ranks, 1)}"
    kill(ranks, 1)
    with pytest.raises(KeyboardInterrupt) as stop:
        ranks.run("print(1)", show=False)
    assert str(stop.value).startswith(f"Rank 1 died ({killed}), so the cell was not run.\n")
    if step == STEPS[0]:
        assert "the processes that live run on with their variables" in str(stop.value)
        assert ranks.status()[0].state == "idle"
    else:
        assert "The variables of rank 0 are saved" in str(stop.value)
    assert "rank 1 replaced" in ranks.restart()
    record = ranks.run("print(mesh.devices.size)", show=False)
    assert [record.stdout(rank) for rank in range(2)] == ["4\n"] * 2


def test_stops_at_random_moments(ranks: jaxcluster.Cluster) -> None:
    """Whenever it comes, the variables are there, or are saved and come back."""
    chance = random.Random(7)
    for _ in range(12):
        pressed = [chance.uniform(0, 1.2) for _ in range(chance.choice((1, 2)))]
        timers = [threading.Timer(s, os.kill, (os.getpid(), signal.SIGINT)) for s in pressed]
        done = False
        try:
            for timer in timers:
                timer.start()
            ranks.restart()
            done = True
            for timer in timers:
                timer.join()
        except KeyboardInterrupt as stop:
            assert done or str(stop), "not a KeyboardInterrupt of ours"
        for timer in timers:  # one may hit here, with nothing to stop
            while timer.is_alive():
                try:
                    timer.join()
                except KeyboardInterrupt:
                    pass
        if ranks.closed:
            assert ranks.down
            ranks.restart()
        check_whole(ranks)
    assert saved_states() == set()


# --------------------------------------------------------------------------- other threads


@pytest.mark.parametrize("step", STEPS)
def test_a_stop_of_the_cluster_by_another_thread_ends_its_restart(
    ranks: jaxcluster.Cluster, step: str
) -> None:
    other = threading.Thread(target=ranks.stop)

    def listen(line: str) -> None:
        if line.startswith(step):
            other.start()
            until(lambda: ranks._respawn is None or ranks._respawn._is_given_up, "the stop", 5)

    with pytest.raises(NoCluster, match="Cluster 'respawn' was stopped meanwhile"):
        ranks.restart(listen)
    other.join()
    assert ranks.closed and not ranks.down
    assert saved_states() == set()
    assert "respawn" not in jaxcluster.cluster.connected()


def test_a_stop_of_the_cluster_by_whoever_listens_ends_its_restart(
    ranks: jaxcluster.Cluster,
) -> None:
    with pytest.raises(NoCluster, match="was stopped meanwhile"):
        ranks.restart(lambda line: ranks.stop() if line.startswith("initializing") else None)
    assert ranks.closed and not ranks.down


def test_an_error_of_whoever_listens_loses_nothing(ranks: jaxcluster.Cluster) -> None:
    def listen(line: str) -> None:
        if line.startswith("initializing"):
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        ranks.restart(listen)
    assert "variables kept" in ranks.restart()
    check_whole(ranks)


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
    cell = ranks.submit(
        "if r: print(jnp.sum(g))\nelse: print(mhu.process_allgather(np.ones(1000)).sum())"
    )
    cell.run_in_background(lambda record: None)
    until(reached.is_set, "the recovery", 30)
    until(lambda: cell.done, "its end", 10)
    assert ranks.down
    with pytest.raises(KeyboardInterrupt, match="their start was stopped"):
        cell.wait()
    monkeypatch.setattr(jaxcluster.Cluster, "restart", carry)  # the memory stays our own
    assert "variables kept" in ranks.restart()
    check_whole(ranks)


# --------------------------------------------------------------------------- failures


def test_processes_that_do_not_come_up_cost_nothing_that_was_saved(
    ranks: jaxcluster.Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise LaunchError("No process today.", "Come back tomorrow.")

    with monkeypatch.context() as patch:
        patch.setattr(Starting, "run", fail)
        with pytest.raises(LaunchError) as caught:
            ranks.restart()
    assert str(caught.value) == (
        "No process today.\nCome back tomorrow.\n"
        "Cluster 'respawn' has no processes now: new ones did not come up. The variables of ranks "
        "0, 1 are saved: %jaxcluster restart brings them back, %jaxcluster stop gives them up."
    )
    assert "variables kept" in ranks.restart()
    check_whole(ranks)


def test_a_saved_state_of_a_dead_process_is_swept_and_nobody_elses(home: Home) -> None:
    mine = kept.Folder()
    source = (
        f"import pathlib, time; from jaxcluster.records import kept;"
        f"kept.SHARED_MEMORY = pathlib.Path({str(kept.SHARED_MEMORY)!r}); folder = kept.Folder();"
        "print(folder.path, flush=True); time.sleep(1000)"
    )
    with subprocess.Popen(
        [sys.executable, "-c", source], stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout is not None
        theirs = Path(other.stdout.readline().strip())
        (theirs / "rank-0.state").touch()
        kept.sweep()
        assert theirs.is_dir()
        other.kill()
        other.wait(30)
    kept.sweep()
    assert not theirs.exists()
    assert mine.path.is_dir()
    mine.remove()
    assert not mine.path.exists()


def test_a_dead_ranks_death_is_still_told_when_its_recovery_was_given_up(
    ranks: jaxcluster.Cluster,
) -> None:
    kill(ranks, 1)
    with pytest.raises(KeyboardInterrupt):
        ranks.restart(stop_at(STEPS[0]))
    with pytest.raises(RankDied, match="rank 1 replaced"):
        ranks.run("print(1)", show=False)
    assert ranks.run("print(mesh.devices.size)", show=False).stdout() == "4\n"


def test_a_restarted_cluster_is_held_once_and_let_go_of(home: Home) -> None:
    """Who looks whether anybody is connected (the sidebar's list) must see the last one go."""
    cluster = jaxcluster.start(1, name="held", detach=True)
    server = server_of(cluster)
    try:
        cluster.restart()
        assert server_of(cluster) == server  # it has not ended with its first processes
        assert registry.is_held("held")
        cluster.close()
        assert not registry.is_held("held")
    finally:
        jaxcluster.cluster.stop("held")

"""Ranks that die or hang: told with the reason, replaced, and the variables come back."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import overhosts
import pytest
from helpers import DEVICES, Home, until
from overhosts import (
    Process,
    coordinator_of,
    place,
    process_of,
    processes_of,
    saved_folders,
    send_signal,
    started_by,
)

import jaxcluster
from jaxcluster.allocation.local import LocalProcesses
from jaxcluster.allocation.processes import HostProcesses
from jaxcluster.cluster import lifecycle
from jaxcluster.errors import (
    CellFailed,
    Divergence,
    EnginesMissing,
    JaxClusterError,
    NoCluster,
    RankDied,
)

SETUP = """
import jax, jax.numpy as jnp, numpy as np, time
from jax.sharding import NamedSharding, PartitionSpec as P
from jax.experimental import multihost_utils as mhu
mesh = jax.make_mesh((jax.device_count(),), ("i",))
split, whole = NamedSharding(mesh, P("i")), NamedSharding(mesh, P())
def spread(values, where=split):
    return jax.make_array_from_callback(values.shape, where, lambda index: values[index])
g = spread(np.arange(16.0))
w = spread(np.arange(5.0), whole)
total = jax.jit(lambda v: v.sum())
key = jax.random.key(7)
history = [1.0, 2.0]
r = jax.process_index()
float(total(g))
"""
CHECK = "print(float(total(w)), history, jax.process_index(), mesh.devices.size)"


@pytest.fixture(params=DEVICES)
def ranks(request: pytest.FixtureRequest, home: Home) -> Iterator[jaxcluster.Cluster]:
    with jaxcluster.start(4, devices_per_process=request.param, name="deaths") as cluster:
        cluster.run(SETUP)
        yield cluster


def check_whole(cluster: jaxcluster.Cluster) -> None:
    """What all ranks share is there on all of them, and collectives compute right."""
    record = cluster.run(CHECK, show=False)
    devices = len(cluster.record.devices[0].devices) * 4
    assert [record.stdout(rank) for rank in range(4)] == [
        f"10.0 [1.0, 2.0] {rank} {devices}\n" for rank in range(4)
    ]
    record = cluster.run("print(float(total(spread(np.arange(16.0)))))", show=False)
    assert [record.stdout(rank) for rank in range(4)] == ["120.0\n"] * 4


@pytest.mark.promise("New processes")
@pytest.mark.parametrize("rank", [0, 2])
def test_an_idle_rank_that_is_killed_is_replaced(ranks: jaxcluster.Cluster, rank: int) -> None:
    killed = f"killed by SIGKILL{place(ranks, rank)}"
    send_signal(ranks, rank)
    until(lambda: rank in ranks.dead, "word of the death", 5)
    with pytest.raises(RankDied) as caught:
        ranks.run("print(1)", show=False)
    assert f"Rank {rank} died ({killed})" in str(caught.value)
    assert "g (its only copy died with the rank)" in str(caught.value)
    check_whole(ranks)
    assert all_print(ranks, "r") == [f"{r}\n" for r in range(4)]  # each rank's number is known


def all_print(cluster: jaxcluster.Cluster, expression: str) -> list[str]:
    record = cluster.run(f"print({expression})", show=False)
    return [record.stdout(rank) for rank in range(cluster.num_processes)]


OWN = """
import dataclasses
@dataclasses.dataclass
class Model:
    size: int = 3
is_main, path, odd = r == 0, f"shard-{r}", 5 if r == 0 else 6
model, rng, seen, data = Model(), np.random.default_rng(0), [0], np.zeros(1 << 20)
cfg, mine, lr = {"lr": 0.1}, [r], 0.5
step = jax.jit(lambda v: v * lr)
"""


@pytest.mark.promise("New processes")
def test_a_successor_gets_what_the_dead_rank_had_and_no_other_ranks_value(
    ranks: jaxcluster.Cluster,
) -> None:
    """All survivors have ``is_main = False``: rank 0 had True, and nobody has its ``cfg``."""
    ranks.run(OWN, show=False)
    ranks.run("seen[0] += 1\nif r == 0: cfg['lr'] = 7", show=False)
    for victim in (0, 2):
        send_signal(ranks, victim)
        until(lambda victim=victim: victim in ranks.dead, "word of the death", 5)
        with pytest.raises(RankDied) as caught:
            ranks.run("print(1)", show=False)
        if victim == 0:
            assert "cfg (each rank had its own, and one rank died)" in str(caught.value)
            assert "data (rank 0, which died, may have had another value)" in str(caught.value)
        told = "r, is_main, path, odd, model.size, seen, rng.random() < 2, float(step(2.0)), lr"
        assert all_print(ranks, told) == [
            f"{r} {r == 0} shard-{r} {5 if r == 0 else 6} 3 [1] True 1.0 0.5\n" for r in range(4)
        ]
        for name in ("cfg", "mine", "data"):
            with pytest.raises(JaxClusterError, match=f"name '{name}' was lost"):
                ranks.run(f"print({name})", show=False)


def replaced(cluster: jaxcluster.Cluster, rank: int) -> str:
    """What is said of the death of an idle rank."""
    send_signal(cluster, rank)
    until(lambda: rank in cluster.dead, "word of the death", 5)
    with pytest.raises(RankDied) as caught:
        cluster.run("pass", show=False)
    return " ".join(str(caught.value).split())


def test_what_was_undone_or_pushed_is_what_a_successor_gets(ranks: jaxcluster.Cluster) -> None:
    """Nothing is taken for known that was so in between."""
    ranks.run("lr, cfg = 0.5, {'lr': 0.1}", show=False)
    ranks.run("if r == 0: lr = 5.0; cfg['lr'] = 7", show=False)
    ranks.undo()
    replaced(ranks, 0)
    assert all_print(ranks, "lr, cfg") == ["0.5 {'lr': 0.1}\n"] * 4
    ranks.run("if r == 1: lr = 5.0", show=False)
    ranks.undo()
    ranks.run("if r == 1: lr = 5.0", show=False)
    replaced(ranks, 1)
    assert all_print(ranks, "lr") == ["0.5\n", "5.0\n", "0.5\n", "0.5\n"]
    ranks.push({"lr": 2.0, "seen": [1, 2]})
    ranks.push({"only": 1}, ranks=[2])
    assert "only (only rank 2 had it, and died)" in replaced(ranks, 2)
    assert all_print(ranks, "lr, seen") == ["2.0 [1, 2]\n"] * 4


@pytest.mark.promise("New processes")
@pytest.mark.parametrize("rank", [0, 3])
def test_a_rank_that_is_killed_in_a_collective(ranks: jaxcluster.Cluster, rank: int) -> None:
    timer = threading.Timer(0.7, send_signal, (ranks, rank))
    timer.start()
    notices: list[str] = []
    with pytest.raises(RankDied) as caught:
        ranks.run(
            "for step in range(10**6): s = float(total(g * step))",
            show=False,
            on_notice=notices.append,
        )
    timer.join()
    assert caught.value.ranks[0] == rank or rank in caught.value.ranks
    assert str(caught.value).count("killed by SIGKILL") == 1
    assert not any("SIGKILL" in notice for notice in notices)  # it is said once
    # How far each rank came is its own affair: what it has bound is named, whatever became of it.
    named = re.search(r"\bs\b[ ,].*\bstep\b[ ,.]", str(caught.value).partition("replaced")[2])
    assert named, str(caught.value)
    check_whole(ranks)


def test_twice_in_a_row(ranks: jaxcluster.Cluster) -> None:
    for rank in (1, 3):
        send_signal(ranks, rank)
        until(lambda rank=rank: rank in ranks.dead, "word of the death", 5)
        with pytest.raises(RankDied):
            ranks.run("print(1)", show=False)
        check_whole(ranks)


def test_all_ranks_in_different_collectives_get_their_variables_on_new_processes(
    ranks: jaxcluster.Cluster,
) -> None:
    pids = list(ranks.record.pids)
    both = "jnp.sum(g)", "mhu.process_allgather(np.ones(1000)).sum()"
    ranks.run("\n".join(both), show=False)  # first launches would be refused
    started = time.monotonic()
    with pytest.raises(Divergence) as caught:
        ranks.run(f"if r % 2: print({both[0]})\nelse: print({both[1]})", show=False)
    assert time.monotonic() - started < 20
    assert "launched different programs" in str(caught.value)
    assert "New processes after" in str(caught.value)
    assert set(pids).isdisjoint(ranks.record.pids)
    check_whole(ranks)
    record = ranks.run("print(float(total(g)), r)", show=False)
    assert [record.stdout(rank) for rank in range(4)] == [f"120.0 {rank}\n" for rank in range(4)]


def test_recovery_waits_when_it_is_set_to_ask(ranks: jaxcluster.Cluster) -> None:
    ranks.recovery = "ask"
    send_signal(ranks, 1)
    until(lambda: 1 in ranks.dead, "word of the death", 5)
    with pytest.raises(RankDied) as caught:
        ranks.run("print(1)", show=False)
    assert "%jaxcluster restart gives it new processes" in str(caught.value)
    assert "rank 1 replaced" in ranks.restart()
    check_whole(ranks)


def test_a_restart_keeps_variables_and_a_clean_one_does_not(ranks: jaxcluster.Cluster) -> None:
    assert "variables kept" in ranks.restart()
    check_whole(ranks)
    ranks.restart(clean=True)
    with pytest.raises(JaxClusterError, match="history"):
        ranks.run(CHECK.replace("float(total(w)), ", ""), show=False)


def test_a_stopped_rank_is_told_and_the_cell_goes_on_when_it_does(
    ranks: jaxcluster.Cluster,
) -> None:
    stopped = process_of(ranks, 1)
    stopped.send(signal.SIGSTOP)
    notices: list[str] = []

    def wake(notice: str) -> None:
        notices.append(notice)
        stopped.send(signal.SIGCONT)

    record = ranks.run("print(float(total(w)))", show=False, on_notice=wake)
    assert [record.stdout(rank) for rank in range(4)] == ["10.0\n"] * 4
    told = f"Rank 1 was stopped by a signal (`kill -CONT {stopped.pid}` lets its process go on)"
    assert told in notices[0]


@pytest.mark.promise("New processes")
def test_what_is_queued_behind_a_death_was_not_run(ranks: jaxcluster.Cluster) -> None:
    ranks.run("import os\nkept = 0")
    dies = "time.sleep(0.5)\nif r == 1: os.kill(os.getpid(), 9)\ntime.sleep(30)"
    first, *later = [ranks.submit(source) for source in (dies, "kept += 1", "kept += 1")]
    with pytest.raises(RankDied, match=r"^Rank 1 died in cell \[\d+\]: killed by SIGKILL"):
        first.wait()
    for cell in later:
        with pytest.raises(RankDied, match=r"^Rank 1 died before it had begun cell") as caught:
            cell.wait()
        assert str(caught.value).endswith("This cell was not run.")
        assert "undone" not in str(caught.value)
    record = ranks.run("print(kept)", show=False)
    assert [record.stdout(rank) for rank in range(4)] == ["0\n"] * 4


def test_a_skip_is_told_with_the_death_of_a_rank_that_had_skipped(
    ranks: jaxcluster.Cluster,
) -> None:
    cell = ranks.submit("if r == 1: float(total(g))")
    seq = cell.record.seq
    until(lambda: [s.ended == seq for s in ranks.status()].count(True) == 3, "the others' ends")
    send_signal(ranks, 3)
    with pytest.raises(Divergence) as caught:
        cell.wait()
    told = str(caught.value)
    assert told.startswith("Line 1 runs total only `if r == 1`.")
    assert "\nRanks 0, 2 finished the cell without launch" in told
    assert "\nRank 3 finished the cell without launch" in told
    assert "Rank 3 died after the end of cell [2] there: killed by SIGKILL." in told
    assert "rank 3 replaced" in told
    assert "not answered" not in told and "%jaxcluster restart" not in told


@pytest.mark.parametrize("num_processes", [2, 8])
def test_a_skip_and_a_death_on_fewer_and_more_ranks(home: Home, num_processes: int) -> None:
    with jaxcluster.start(num_processes, devices_per_process=1, name="sizes") as cluster:
        cluster.run(SETUP)
        with pytest.raises(Divergence) as caught:
            cluster.run("if r != 1: print(float(total(g)))", show=False)
        assert caught.value.report.culprits == (1,)
        record = cluster.run("print(float(total(g)))", show=False)
        assert [record.stdout(r) for r in range(num_processes)] == ["120.0\n"] * num_processes
        send_signal(cluster, num_processes - 1)
        until(lambda: cluster.dead, "word of the death", 5)
        with pytest.raises(RankDied):
            cluster.run("print(1)", show=False)
        source = "import jax\nprint(jax.process_count())"
        record = cluster.run(source, show=False)
        assert record.stdout(num_processes - 1) == f"{num_processes}\n"


def test_a_single_survivor_gives_what_the_dead_rank_is_known_to_have_had(home: Home) -> None:
    with jaxcluster.start(2, devices_per_process=2, name="alone") as cluster:
        cluster.run(SETUP, show=False)
        cluster.run(
            "class Model:\n    def size(self): return int(mesh.devices.size)\n"
            "def where(value, rank=r): return rank\n"
            "def scale(value): return lambda v: v * value\n"
            "twice = scale(r)\n"
            "here = jax.sharding.Mesh(np.array(jax.local_devices()), ('h',))\n"
            "import functools, typing\n"
            "class State(typing.NamedTuple):\n    step: int = 3\n"
            "class Slots:\n    __slots__ = ('a',)\n"
            "class Cached:\n    @functools.cached_property\n    def size(self): return 5\n"
            "slots = Slots(); slots.a = State(4)",
            show=False,
        )
        send_signal(cluster, 1)
        until(lambda: 1 in cluster.dead, "word of the death", 5)
        with pytest.raises(RankDied) as caught:
            cluster.run("print(1)", show=False)
        assert "where (each rank had its own, and one rank died)" in str(caught.value)
        record = cluster.run("print(float(total(w)), Model().size(), time.time() > 0)", show=False)
        assert [record.stdout(rank) for rank in range(2)] == ["10.0 4 True\n"] * 2
        record = cluster.run("print(float(total(spread(np.arange(16.0)))))", show=False)
        assert [record.stdout(rank) for rank in range(2)] == ["120.0\n"] * 2
        record = cluster.run("print(r, history, here.devices.flat[0].process_index)", show=False)
        assert [record.stdout(rank) for rank in range(2)] == [
            f"{rank} [1.0, 2.0] {rank}\n" for rank in range(2)
        ]
        record = cluster.run("print(State(), slots.a, Cached().size)", show=False)
        assert [record.stdout(rank) for rank in range(2)] == ["State(step=3) State(step=4) 5\n"] * 2
        for name in ("where", "twice"):
            with pytest.raises(JaxClusterError, match=f"name '{name}' was lost when rank 1 died"):
                cluster.run(f"print({name})", show=False)


# ------------------------------------------------------------------------------- out of memory


class MemoryGroup:
    """A memory cgroup of this test's own, of version 1 or 2."""

    def __init__(self, nbytes: int) -> None:
        name = f"jaxcluster-test-{os.getpid()}"
        old = Path("/sys/fs/cgroup/memory")
        self.path = (old if old.is_dir() else Path("/sys/fs/cgroup")) / name
        self.path.mkdir()
        try:
            limit = "memory.limit_in_bytes" if old.is_dir() else "memory.max"
            (self.path / limit).write_text(str(nbytes))
            with contextlib.suppress(OSError):  # without it there may be swap to go to
                (self.path / "memory.swap.max").write_text("0")
        except OSError:
            self.path.rmdir()
            raise

    def take(self, pid: int) -> None:
        (self.path / "cgroup.procs").write_text(str(pid))

    def remove(self) -> None:
        until(lambda: not (self.path / "cgroup.procs").read_text(), "its processes have ended", 10)
        self.path.rmdir()


@pytest.fixture
def memory_group() -> Iterator[MemoryGroup]:
    try:
        group = MemoryGroup(256 << 20)
    except OSError as error:
        pytest.skip(f"no memory cgroup can be made here: {error}")
    yield group
    group.remove()


@pytest.mark.one_machine("it puts a rank into a cgroup from outside")
def test_a_rank_that_runs_out_of_memory_is_told_so_and_replaced(
    ranks: jaxcluster.Cluster, memory_group: MemoryGroup
) -> None:
    memory_group.take(ranks.record.pids[2])
    hog = "hog = []\nwhile r == 2 and len(hog) < 100:\n    hog.append(np.ones(1 << 21))"
    with pytest.raises(RankDied) as caught:
        ranks.run(hog, show=False)
    assert "Rank 2 died in cell [2]: killed by SIGKILL by the kernel: out of memory." in str(
        caught.value
    )
    assert caught.value.ranks == (2,)
    check_whole(ranks)
    # The kernel's count is no reason to call the next death one of these.
    send_signal(ranks, 1)
    until(lambda: 1 in ranks.dead, "word of the death", 5)
    assert ranks.dead[1].why == "killed by SIGKILL"
    with pytest.raises(RankDied):
        ranks.run("print(1)", show=False)


# ---------------------------------------------------------------------- during start and recovery


@pytest.fixture
def newest(monkeypatch: pytest.MonkeyPatch) -> list[Process]:
    """The ranks' processes, as soon as they are started."""
    newest: list[Process] = []
    of: type[Any] = HostProcesses if overhosts.hosts() else LocalProcesses
    start = of.start

    def remember(processes: Any) -> list[int]:
        pids: list[int] = start(processes)
        newest[:] = started_by(processes, pids)
        return pids

    monkeypatch.setattr(of, "start", remember)
    return newest


def killer(processes: list[Process], rank: int, step: str, times: int = 1) -> Callable[[str], Any]:
    """A listener to progress that kills a rank as soon as ``step`` is said."""
    left = [step] * times

    def listen(line: str) -> None:
        if left and line.startswith(left[-1]):
            left.pop()
            processes[rank].send()

    return listen


def nothing_is_saved_but(before: set[str]) -> None:
    """Other clusters of this machine may save and restore meanwhile."""
    until(lambda: not saved_folders() - before, "the saved state is removed", 10)


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("step", ["engines 2/2", "initializing JAX", "connecting engines"])
def test_a_rank_that_dies_during_the_start_is_named_with_signal_and_log(
    home: Home, newest: list[Process], step: str, rank: int
) -> None:
    spec = jaxcluster.cluster.make_spec(2, name="stillborn")
    started = time.monotonic()
    with pytest.raises(EnginesMissing) as caught:
        jaxcluster.cluster.start_spec(spec, killer(newest, rank, step))
    assert time.monotonic() - started < 15  # not the 60 s that a start may take
    host = f" on host {newest[rank].host}" if overhosts.hosts() else ""
    told = f"Rank {rank} died while the cluster started (killed by SIGKILL{host}). "
    assert str(caught.value).startswith(told)
    assert "log" in str(caught.value)
    assert "%jaxcluster doctor" in caught.value.hint
    assert caught.value.missing == (rank,)
    with jaxcluster.start(2, name="stillborn") as again:
        assert again.run("print(1)", show=False).stdout() == "1\n"


@pytest.mark.parametrize("step", ["saving", "initializing JAX", "restoring"])
def test_a_rank_that_dies_during_a_recovery_costs_a_second_try_and_no_more(
    ranks: jaxcluster.Cluster, newest: list[Process], step: str
) -> None:
    newest[:] = processes_of(ranks)
    before = saved_folders()
    kept = ranks.restart(killer(newest, 3, step))
    assert "variables kept" in kept
    if step == "saving":
        assert "rank 3 replaced" in kept
        assert "r (" not in kept
        assert "history" not in kept
    else:
        assert "Lost" not in kept
        record = ranks.run("print(float(total(g)), r)", show=False)
        assert [record.stdout(rank) for rank in range(4)] == [f"120.0 {r}\n" for r in range(4)]
    check_whole(ranks)
    nothing_is_saved_but(before)


def test_a_recovery_that_fails_keeps_what_was_saved_for_the_next_restart(
    ranks: jaxcluster.Cluster, newest: list[Process], monkeypatch: pytest.MonkeyPatch
) -> None:
    before = saved_folders()
    start_world = lifecycle.start_world
    dying = killer(newest, 1, "initializing JAX", times=2)
    monkeypatch.setattr(
        lifecycle, "start_world", lambda spec, say, *rest: start_world(spec, dying, *rest)
    )
    send_signal(ranks, 2)
    until(lambda: 2 in ranks.dead, "word of the death", 5)
    with pytest.raises(RankDied) as caught:
        ranks.run("print(1)", show=False)
    assert "Recovery failed: Rank 1 died while the cluster started" in str(caught.value)
    down = "Cluster 'deaths' has no processes now: new ones did not start."
    hint = "The variables of ranks 0, 1, 3 are saved: %jaxcluster restart restores them"
    assert f"{down} {hint}" in str(caught.value)
    with pytest.raises(NoCluster, match="has no processes now: new ones did not") as refused:
        ranks.run("print(1)", show=False)
    assert hint in str(refused.value)
    assert jaxcluster.current() is ranks
    monkeypatch.undo()
    assert "rank 2 replaced" in ranks.restart()
    check_whole(ranks)
    nothing_is_saved_but(before)


def test_the_death_of_all_ranks_ends_in_empty_ones(ranks: jaxcluster.Cluster) -> None:
    for rank in range(4):
        send_signal(ranks, rank)
    until(lambda: len(ranks.dead) == 4, "word of the deaths", 5)
    with pytest.raises(RankDied) as caught:
        ranks.run("print(1)", show=False)
    assert "Ranks 0-3 died" in str(caught.value)
    said = " ".join(str(caught.value).split())  # it is wrapped
    told = "no rank survived, so all variables are lost. They were "
    assert re.search(rf"{told}.*\bhistory\b.* To make them again, run cell \[1\]\.", said)
    again = r"name 'history' was lost .*\(no rank survived\); run cell \[1\] again"
    with pytest.raises(CellFailed, match=again):
        ranks.run("print(history)", show=False)
    record = ranks.run(SETUP + "print(float(total(g)))", show=False)
    assert [record.stdout(rank) for rank in range(4)] == ["120.0\n"] * 4


# ------------------------------------------------------------------------------- the coordinator


@pytest.mark.parametrize("when", ["idle", "in a cell"])
def test_the_death_of_the_coordinator_is_told_and_the_ranks_are_replaced(
    ranks: jaxcluster.Cluster, when: str
) -> None:
    coordinator = coordinator_of(ranks)
    killed = f"killed by SIGKILL{place(ranks, 0)}"
    if when == "idle":
        coordinator.send()
        until(lambda: len(ranks.dead) == 4, "word of the ranks' deaths", 10)
        assert f"JAX's coordinator died ({killed})" in ranks.summary()
        with pytest.raises(RankDied) as caught:
            ranks.run("print(1)", show=False)
    else:
        timer = threading.Timer(0.7, coordinator.send)
        timer.start()
        with pytest.raises(RankDied) as caught:
            ranks.run("for step in range(10**6): s = float(total(g * step))", show=False)
        timer.join()
    assert f"ended by JAX, whose coordinator had died: {killed}" in str(caught.value)
    assert not ranks.coordinator_died
    assert "coordinator" not in ranks.summary()
    record = ranks.run(SETUP + "print(float(total(g)))", show=False)
    assert [record.stdout(rank) for rank in range(4)] == ["120.0\n"] * 4

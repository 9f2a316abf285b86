"""A cluster's life beside its cells: status, list, attach, detach, restart, logs, stop, its end."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from helpers import GONE_S, Home, Notebook, until
from overhosts import Process, process_of, processes_of

import jaxcluster
from jaxcluster.cluster import attach, live_records
from jaxcluster.errors import NoCluster, UsageError
from jaxcluster.hosts.here import quit_warm
from jaxcluster.hosts.records import registry

pytestmark = pytest.mark.any_jax

Start = Callable[..., jaxcluster.Cluster]


class Owner:
    """Another Python process, which starts a cluster and does what it is told in ``source``."""

    def __init__(self, home: Home, source: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-u", "-c", source],
            env=home.environ(),
            stdout=subprocess.PIPE,
            stdin=subprocess.PIPE,
            text=True,
        )

    def wait_for(self, word: str) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.strip() == word:
                return
        raise AssertionError(f"the other process ended before it said {word!r}")

    def close(self) -> None:
        self.process.kill()
        for pipe in (self.process.stdout, self.process.stdin):
            if pipe is not None:
                pipe.close()
        self.process.wait(30)


@pytest.fixture
def other(private_home: Home) -> Iterator[Callable[[str], Owner]]:
    made: list[Owner] = []

    def make(source: str) -> Owner:
        made.append(Owner(private_home, source))
        return made[-1]

    yield make
    for owner in made:
        owner.close()


# --------------------------------------------------------------------------- status


def test_no_thread_of_an_idle_rank_wakes_more_than_30_times_a_second(
    cluster: jaxcluster.Cluster,
) -> None:
    cluster.run("_ = jnp.sum(jnp.ones(jax.device_count()))")

    def wakes() -> dict[Path, int]:
        counts = "voluntary_ctxt_switches:"
        files = [f for p in cluster.record.pids for f in Path(f"/proc/{p}/task").glob("*/status")]
        return {file: int(file.read_text().split(counts)[1].split()[0]) for file in files}

    before, began = wakes(), time.monotonic()
    time.sleep(1.5)
    took = time.monotonic() - began
    assert max(count - before.get(file, 0) for file, count in wakes().items()) < 30 * took


def test_status_tells_during_a_cell_where_each_rank_is(
    cluster: jaxcluster.Cluster, tmp_path: Path
) -> None:
    go_on = tmp_path / "go"
    running = cluster.submit(
        f"import pathlib\nwhile not pathlib.Path({str(go_on)!r}).exists():\n    time.sleep(0.01)",
        execution_count=77,
    )
    waiting = cluster.submit("pass")
    try:
        until(lambda: all(s.queued for s in cluster.status()), "the next cell waits on all ranks")
        until(lambda: all(s.line for s in cluster.status()), "all run the cell's own lines")
        states = cluster.status()
        assert {s.state for s in states} == {"running"}
        assert {s.cell for s in states} == {77}
        assert {s.line for s in states} <= {2, 3}
        assert all(s.seconds > 0 for s in states)
        assert [s.pid for s in states] == cluster.record.pids
        assert {s.hostname for s in states} == {socket.gethostname()}
    finally:
        go_on.touch()
        running.wait()
        waiting.wait()
    assert {s.state for s in cluster.status()} == {"idle"}


# --------------------------------------------------------------------------- list and attach


def test_attaching_without_a_name_takes_the_only_one(private_home: Home) -> None:
    with jaxcluster.start(1, name="a") as first:
        assert attach() is first
        with jaxcluster.start(1, name="b"), pytest.raises(UsageError) as caught:
            attach()
    assert "Several clusters are running: a, b." in str(caught.value)
    quit_warm()


# --------------------------------------------------------------------------- detach


@pytest.mark.one_machine("it is about this machine's agent")
def test_a_start_after_the_stop_of_a_detached_cluster_lives_on(start: Start) -> None:
    start(1, name="kept", detach=True).stop()
    following = start(1, name="following")
    time.sleep(3.0)  # an agent that nobody finds has ended by then
    assert following.run("print(1)", show=False).stdout() == "1\n"


# --------------------------------------------------------------------------- logs


def test_the_logs_hold_what_c_code_and_the_engine_have_written(
    cluster: jaxcluster.Cluster,
) -> None:
    cluster.run("os.system(f'echo from the shell of rank {rank}')", show=False)
    cluster.run("jnp.sum(x)", show=False)
    for rank in range(4):
        assert f"from the shell of rank {rank}\n" in cluster.logs(rank)
    assert "[Gloo] Rank 0 is connected to 3 peer ranks" in cluster.logs(0)
    assert len(cluster.logs(0, lines=1).splitlines()) == 1
    with pytest.raises(UsageError, match="There is no rank 9"):
        cluster.logs(9)


# --------------------------------------------------------------------------- the end


def test_a_stop_waits_for_no_rank_and_leaves_nothing(start: Start) -> None:
    running = start(2, name="short", devices_per_process=2)
    record = running.run(
        "import subprocess\nimport jax.experimental.multihost_utils as m\n"
        "child = subprocess.Popen(['sleep', '1000'])\nprint(child.pid)",
        show=False,
    )
    pids = [int(record.stdout(rank)) for rank in range(2)]
    children = [Process(process_of(running, rank).host, pid) for rank, pid in enumerate(pids)]
    assert all(child.lives for child in children)
    running.submit("m.sync_global_devices('never')", ranks=[1])
    until(lambda: running.status()[1].state == "running", "rank 1 is in the barrier")
    processes = processes_of(running)
    assert running.stop() < 10  # the issue: 3 s
    assert not any(process.state for process in processes)
    assert not registry.folder("short").exists()
    until(lambda: not any(child.lives for child in children), "end of the children", GONE_S)
    assert running.stop() == 0.0
    with pytest.raises(NoCluster, match="Cluster 'short' is stopped"):
        running.run("1")
    assert repr(running) == "<jaxcluster 'short': stopped>"


START = "import jaxcluster\ncluster = jaxcluster.start(2, devices_per_process={devices})\n"
IDLE = START.format(devices=2) + "print('ready')\ninput()"
COLLECTIVE = """
cluster.run('''
import jax, jax.numpy as jnp, numpy as np
from jax.sharding import NamedSharding, PartitionSpec as P
mesh = jax.make_mesh((jax.device_count(),), ("i",))
x = jax.make_array_from_callback(
    (8,), NamedSharding(mesh, P("i")), lambda i: np.arange(8.0)[i])
''')
cluster.submit("print(float(jnp.sum(x)))", ranks=[1])  # it waits: more cells may be sent
while cluster.status()[1].state != "running": pass
print('ready')
input()
"""


@pytest.mark.quick
@pytest.mark.parametrize(
    ("source", "sign"),
    [(IDLE, signal.SIGTERM), (START.format(devices=2) + COLLECTIVE, signal.SIGKILL)],
    ids=["SIGTERM while idle", "kill -9 in a collective"],
)
def test_nothing_outlives_its_owner(
    other: Callable[[str], Owner], private_home: Home, source: str, sign: signal.Signals
) -> None:
    owner = other(source)
    owner.wait_for("ready")
    assert len(private_home.processes()) > 3
    owner.process.send_signal(sign)
    private_home.wait_until_empty(GONE_S)  # the issue: 10 s
    assert live_records() == []


def test_an_owners_end_is_noticed_though_its_child_holds_the_pipe(
    other: Callable[[str], Owner], private_home: Home
) -> None:
    """As when the kernel has forked: the fork server's standard input does not end then."""
    owner = other(
        START.format(devices=1) + "import os, time\nchild = os.fork()\n"
        "if not child:\n    time.sleep(1000)\n"
        "print(child)\nprint('ready')\ninput()"
    )
    assert owner.process.stdout is not None
    child = int(owner.process.stdout.readline())
    owner.wait_for("ready")
    try:
        owner.process.send_signal(signal.SIGKILL)
        until(lambda: set(private_home.processes()) == {child}, "end of all but the child", GONE_S)
    finally:
        os.kill(child, signal.SIGKILL)
    assert live_records() == []


@pytest.mark.one_machine("one fork server has all ranks")
def test_the_fork_servers_death_is_the_ranks_death_too(start: Start) -> None:
    running = start(name="orphans")
    pids = running.record.pids
    os.kill(psutil.Process(pids[0]).ppid(), signal.SIGKILL)
    until(lambda: not any(psutil.pid_exists(pid) for pid in pids), "end of all ranks", GONE_S)
    with pytest.raises(jaxcluster.JaxClusterError, match="killed with its fork server"):
        until(lambda: running.dead, "the notebook is told")
        running.run("1")
    assert running.run("print(1)", show=False).stdout() == "1\n"  # from another fork server


# --------------------------------------------------------------------------- a dead kernel


def test_starts_and_stops_leave_no_thread_and_no_file_in_the_kernel(
    open_notebook: Callable[..., Notebook],
) -> None:
    notebook = open_notebook()

    def left() -> tuple[str, int]:
        notebook.ok("%jaxcluster start -n 1")
        notebook.ok("%jaxcluster restart --clean")
        notebook.ok("%jaxcluster stop")
        notebook.ok("import threading, psutil; names = [t.name for t in threading.enumerate()]")
        return notebook.ok("sorted(names)").result, int(
            notebook.ok("psutil.Process().num_fds()").result
        )

    threads, files = left()
    for _ in range(3):
        again, more_files = left()
    assert again == threads
    assert more_files < files + 6  # a cluster has left 3 behind at each start

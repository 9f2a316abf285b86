"""A stop ends all ranks before the same launch, and a death is told to those who wait."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from helpers import DEVICES, Home, until
from overhosts import send_signal

import jaxcluster
from jaxcluster.errors import CellFailed, CellInterrupted, RankDied

SOON_S = 8.0  # what comes at once comes within this; other work may run on the machine

SETUP = """
import jax, jax.numpy as jnp, numpy as np, os, time
from jax.sharding import NamedSharding, PartitionSpec as P
r = jax.process_index()
mesh = jax.make_mesh((jax.device_count(),), ("i",))
split = NamedSharding(mesh, P("i"))
x = jax.make_array_from_callback((16,), split, lambda at: np.arange(16.0)[at])
total = jax.jit(lambda v: jnp.sum(v))
train = jax.jit(lambda p, v: (p * 0.9 + jnp.sum(v), p.sum()), donate_argnums=0)
params = jax.jit(lambda: jnp.zeros(16), out_shardings=split)()
params, loss = train(params, x)
params, loss = train(params, x)
steps = 0
float(total(x))
"""
FOREVER = """
while True:
    params, loss = train(params, x)
    steps += 1
"""


@pytest.fixture(scope="module", params=DEVICES)
def ranks(request: pytest.FixtureRequest, home: Home) -> Iterator[jaxcluster.Cluster]:
    with jaxcluster.start(
        4, devices_per_process=request.param, name=f"stops-{request.param}"
    ) as cluster:
        cluster.run(SETUP, show=False)
        yield cluster


def alike(cluster: jaxcluster.Cluster, expression: str) -> str:
    """What all ranks print of it, which is the same."""
    record = cluster.run(f"print({expression})", show=False, timeout_s=60)
    (text,) = {record.stdout(rank) for rank in record.ranks}
    return text.strip()


@pytest.mark.promise("The promise")
def test_a_stop_of_a_training_loop_leaves_all_ranks_at_the_same_step(
    ranks: jaxcluster.Cluster,
) -> None:
    """20 times: what was donated has its name again, and nothing was undone."""
    pids, before = list(ranks.record.pids), int(alike(ranks, "steps"))
    for turn in range(20):
        cell = ranks.submit(FOREVER)
        until(lambda: all(s.state == "running" for s in ranks.status()), "all ranks train")
        time.sleep(0.01 * (turn % 5))
        (ranks.interrupt if turn % 2 else cell.stop)()
        with pytest.raises(CellInterrupted):
            cell.wait()
        steps = int(alike(ranks, "steps"))
        assert steps >= before
        assert "False" in alike(ranks, "params.is_deleted(), float(total(params))")
        before = steps
    assert before > 0
    assert ranks.record.pids == pids


def test_a_timeout_does_so_too(ranks: jaxcluster.Cluster) -> None:
    with pytest.raises(CellFailed, match=r"took more than 0\.5 s and was stopped on ranks 0-3"):
        ranks.run(FOREVER, timeout_s=0.5)
    alike(ranks, "steps, float(total(params))")


def test_a_stop_of_two_loops_on_parts_of_the_ranks_ends_the_one_that_was_meant(
    ranks: jaxcluster.Cluster,
) -> None:
    half = (
        "part = jax.sharding.Mesh(np.array([d for d in jax.devices()"
        " if d.process_index // 2 == r // 2]), ('i',))\n"
        "v = jax.make_array_from_callback((8,), NamedSharding(part, P('i')),"
        " lambda at: np.arange(8.0)[at])\n"
    )
    ranks.run(half + "float(total(v))", show=False)
    left = ranks.submit("while True: total(v)", ranks=[0, 1])
    right = ranks.submit(
        "n = 0\nwhile float(total(v)) and n < 200: n += 1; time.sleep(0.01)\nprint(n)",
        ranks=[2, 3],
    )
    until(lambda: all(s.state == "running" for s in ranks.status()[:2]), "the first two run")
    left.stop()
    with pytest.raises(CellInterrupted):
        left.wait()
    assert right.wait().stdout(3) == "200\n"


@pytest.mark.parametrize(
    "caught",
    ["except Exception: pass", "except KeyboardInterrupt: pass", "finally: cleaned = True"],
)
def test_nothing_is_launched_behind_a_stop_whatever_is_caught(
    ranks: jaxcluster.Cluster, caught: str
) -> None:
    cell = ranks.submit(
        f"count = 0\nwhile True:\n    try:\n        total(x); count += 1\n    {caught}\n"
        "    time.sleep(0.001)"
    )
    until(lambda: all(s.state == "running" for s in ranks.status()), "all ranks run")
    cell.stop()
    cell.stop()
    with pytest.raises(CellInterrupted):
        cell.wait()
    alike(ranks, "float(total(x))")


def test_who_comes_to_no_launch_is_interrupted_a_moment_later(ranks: jaxcluster.Cluster) -> None:
    cell = ranks.submit(
        "at = None\ntry:\n    if r == 1:\n        while True: pass\n    if r == 2: time.sleep(60)\n"
        "    float(total(x))\nexcept KeyboardInterrupt: at = time.time(); raise"
    )
    until(lambda: ranks.look() and len(ranks.look().waits) == 2, "ranks 0 and 3 wait")
    pressed = time.time()
    cell.stop()
    with pytest.raises(CellInterrupted):
        cell.wait()
    record = ranks.run("print(at)", show=False)
    late = [float(record.stdout(rank)) - pressed for rank in range(4)]
    assert all(0 <= s < SOON_S for s in late)
    assert min(late[1:3]) > 0.3 > max(late[0], late[3]) or max(late) > 1  # on a busy machine


@pytest.mark.promise("The promise")
def test_who_waits_for_a_rank_that_dies_is_told_at_once(
    ranks: jaxcluster.Cluster, tmp_path: Path
) -> None:
    ranks.run(f"folder = {str(tmp_path)!r}", show=False)
    cell = ranks.submit(
        "if r == 2: time.sleep(60)\n"
        "try: float(total(x))\n"
        "except BaseException as error:\n"
        "    with open(f'{folder}/{r}', 'w') as file: file.write(f'{time.time()} {error}')\n"
        "    raise"
    )
    until(lambda: ranks.look() and len(ranks.look().waits) == 3, "the others wait")
    killed = time.time()
    send_signal(ranks, 2)
    with pytest.raises(RankDied, match=r"Rank 2 died: killed by SIGKILL") as caught:
        cell.wait()
    assert caught.value.ranks == (2,)
    told = [(tmp_path / str(rank)).read_text().split(" ", 1) for rank in (0, 1, 3)]
    late = sorted(float(at) - killed for at, _ in told)
    assert late[0] < 0.2 or late[1] < 1.0, late  # on a busy machine
    assert all("Rank 2 died." in why and "Nothing was launched" in why for _, why in told)
    ranks.run(SETUP, show=False)
    assert alike(ranks, "float(total(x))") == "120.0"


def test_who_is_in_a_collective_with_a_rank_that_dies_comes_back(
    ranks: jaxcluster.Cluster,
) -> None:
    threading.Timer(0.5, send_signal, (ranks, 3)).start()
    with pytest.raises(RankDied):
        ranks.run("kept = r\nfor step in range(10**6): s = float(total(x * step))", show=False)
    ranks.run(SETUP, show=False)
    assert alike(ranks, "float(total(x))") == "120.0"

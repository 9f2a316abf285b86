"""The guarantees on GPU: what docs/guarantees.md promises, on cards instead of CPU devices."""

from __future__ import annotations

import subprocess
import threading

import pytest
from gpucards import SETUP, Cards, check_whole
from helpers import Home, until
from overhosts import send_signal

import jaxcluster
from jaxcluster.errors import CellFailed, CellInterrupted, Divergence, JaxClusterError, RankDied
from jaxcluster.host.gpus import gpu_uses

pytestmark = pytest.mark.timeout(600)  # the first use of a card, and of NCCL, takes a while


def test_each_rank_has_the_device_that_was_planned(cards: Cards, ranks: jaxcluster.Cluster) -> None:
    assert [len(one.devices) for one in ranks.record.devices] == [1] * cards.num_ranks
    assert all(one.recording for one in ranks.record.devices)  # launches are checked
    if cards.visible:
        said = ranks.run("import os; print(os.environ['CUDA_VISIBLE_DEVICES'])", show=False)
        own = [said.stdout(rank).strip() for rank in range(cards.num_ranks)]
        assert own == list(cards.visible[: cards.num_ranks]) or len(cards.visible) == 1
        platforms = {d.platform for one in ranks.record.devices for d in one.devices}
        assert platforms <= {"gpu", "cuda"}
    check_whole(ranks)


def test_a_large_value_comes_and_goes(ranks: jaxcluster.Cluster) -> None:
    ranks.run("big = spread(np.arange(float(1 << 22)))", show=False)
    assert ranks.pull("big").sum() == sum(range(1 << 22))


@pytest.mark.parametrize(
    ("source", "told"),
    [
        ("if r != 1:\n    s = float(total(g * 2))\n    print(s)", "rank 1 ended the cell"),
        ("if r != 1: s = total(g * 3)", "rank 1 ended the cell"),
        # Each would wait in the compiler for the other, which tunes a program on all processes.
        ("s = (g * 2.5 if r == 0 else g - 1.5).sum()\nprint(s)", "different programs"),
        ("s = total(g) if r == 0 else largest(g)\nprint(float(s))", "different programs"),
        ("f = jax.jit(lambda a: jnp.sum(a * (2.5 + r)))\nprint(f(g))", "different programs"),
    ],
    ids=["skipped", "not waited for", "compiled", "of one shape", "a constant"],
)
def test_launches_that_differ_are_refused(
    several: jaxcluster.Cluster, source: str, told: str
) -> None:
    with pytest.raises(Divergence, match=told):
        several.run(source, show=False)
    check_whole(several)


def test_a_rank_that_waits_answers_whatever_is_collected_meanwhile(
    several: jaxcluster.Cluster,
) -> None:
    """A program is unloaded once all that runs has ended, and whoever does it has Python's lock."""
    source = "junk = [jax.jit(lambda v, k=k: v * 2 + k) for k in range(8)]\n[f(w) for f in junk]"
    several.run(source, show=False)
    several.run("import gc, threading\ndel junk", show=False)
    with pytest.raises(Divergence):
        several.run(
            "if r != 1:\n    threading.Timer(0.5, gc.collect).start()\n    print(float(total(g)))",
            show=False,
        )
    check_whole(several)


def test_an_error_on_one_rank_releases_the_others(several: jaxcluster.Cluster) -> None:
    with pytest.raises(CellFailed, match="no data") as caught:
        several.run("if r == 1: raise ValueError('no data')\nprint(float(total(g)))", show=False)
    assert caught.value.ranks == (1,)
    check_whole(several)


def test_a_time_limit_releases_ranks_in_a_collective(several: jaxcluster.Cluster) -> None:
    with pytest.raises(JaxClusterError, match="3 s"):
        source = "if r == 1: time.sleep(600)\nprint(float(total(g)))"
        several.run(source, show=False, timeout_s=3)
    check_whole(several)


def test_the_stop_button_releases_ranks_in_a_collective(several: jaxcluster.Cluster) -> None:
    cell = several.submit("if r == 1: time.sleep(600)\nprint(float(total(g)))")
    timer = threading.Timer(1.0, cell.stop)
    timer.start()
    with pytest.raises(CellInterrupted):
        cell.wait()
    timer.join()
    check_whole(several)


def test_a_step_that_donates_and_is_skipped_by_a_rank_is_found(several: jaxcluster.Cluster) -> None:
    """Nothing was launched, so nothing was donated."""
    several.run("step = jax.jit(lambda v: v - v.mean(), donate_argnums=0)", show=False)
    several.run("d = spread(np.arange(16.0))\nd = step(d)", show=False)
    with pytest.raises(Divergence):
        several.run("if r != 1:\n    d = step(d)\n    print(float(total(d)))", show=False)
    check_whole(several)
    several.run("d = step(spread(np.arange(16.0)))", show=False)
    assert several.run("print(abs(float(total(d))) < 1e-3)", show=False).stdout(0) == "True\n"


def test_what_a_rank_uses_is_told_of_its_own_card(cards: Cards, ranks: jaxcluster.Cluster) -> None:
    found = ranks.meter.look(2.0)
    assert sorted(found) == list(range(cards.num_ranks))
    if not gpu_uses(cards.visible):
        assert not any(one.gpu_total_nbytes for one in found.values())
        return
    own = ranks.run("import os; print(os.environ['CUDA_VISIBLE_DEVICES'])", show=False)
    for rank, one in found.items():
        (use,) = gpu_uses([own.stdout(rank).strip()])
        assert one.gpu_total_nbytes == use.total_nbytes
        assert 0 < one.gpu_used_nbytes <= use.total_nbytes


def test_a_restart_keeps_arrays_of_the_cards(ranks: jaxcluster.Cluster) -> None:
    assert "variables kept" in ranks.restart()
    check_whole(ranks)
    assert ranks.run("print(float(total(g)), history)", show=False).stdout(0) == (
        "120.0 [1.0, 2.0]\n"
    )


def test_a_rank_that_is_killed_in_a_collective_is_replaced(several: jaxcluster.Cluster) -> None:
    timer = threading.Timer(1.0, send_signal, (several, 1))
    timer.start()
    with pytest.raises(RankDied) as caught:
        several.run("for step in range(10**7): s = float(total(g * step))", show=False)
    timer.join()
    assert "Rank 1 died" in str(caught.value) or 1 in caught.value.ranks
    assert float(several.pull("w").sum()) == 10.0  # replicated: the survivor had it
    several.run(SETUP, show=False)  # of two ranks' own, and of parts, no copy is left
    check_whole(several)


def test_after_a_stop_the_cards_are_as_they_were(
    home: Home, cards: Cards, used_before: dict[str, int]
) -> None:
    """What another cluster took of the cards' memory is given back; kill -9 of a rank included."""
    if not cards.visible:
        pytest.skip("it is about memory of a card")
    if not used_before:
        pytest.skip("nothing tells what a card's memory is used for: pip install nvidia-ml-py")
    with cards.start("clean", env={"XLA_PYTHON_CLIENT_MEM_FRACTION": "0.02"}) as cluster:
        pids = list(cluster.record.pids)
        send_signal(cluster, 0)
        until(lambda: 0 in cluster.dead, "word of the death")
    assert pids
    slack = 64 << 20

    def is_free() -> bool:
        now = {use.name: use.used_nbytes for use in gpu_uses(cards.visible)}
        return all(now[name] <= was + slack for name, was in used_before.items())

    until(is_free, "the cards' memory to be given back")
    listed = ("nvidia-smi", "--query-compute-apps=pid", "--format=csv,noheader")
    said = subprocess.run(listed, capture_output=True, text=True, check=True, timeout=60).stdout
    assert not set(map(str, pids)) & set(said.split())  # in a container it lists none

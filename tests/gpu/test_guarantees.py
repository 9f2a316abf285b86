"""What docs/guarantees.md promises, on this machine's NVIDIA cards; without one, all of it skips.

Two ranks: each with a card of its own, or both on the only one where NCCL allows that. Where it
does not, there is one rank, and tests of what happens between ranks skip.

``JAXCLUSTER_GPU_TESTS=cpu`` runs the same tests on CPU devices: so they can be tried where there is
no card. It shows nothing of a GPU.
"""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Iterator

import pytest
from gpucards import SETUP, Cards, check_whole, find_cards
from helpers import Home, until
from overhosts import send_signal

import jaxcluster
from jaxcluster.errors import CellFailed, CellInterrupted, Divergence, JaxClusterError, RankDied
from jaxcluster.host.gpus import gpu_uses
from jaxcluster.hosts.here import quit_warm
from jaxcluster.wire.link import replies
from jaxcluster.wire.ops.status import Resources

pytestmark = pytest.mark.timeout(600)  # the first use of a card, and of NCCL, takes a while


@pytest.fixture(scope="session")
def cards() -> Cards:
    if isinstance(found := find_cards(), str):
        pytest.skip(found)
    return found


@pytest.fixture(scope="session")
def home(cards: Cards) -> Iterator[Home]:
    """Folders of this session's own."""
    home = Home.make()
    with pytest.MonkeyPatch.context() as patch:
        for name, value in home.variables.items():
            patch.setenv(name, value)
        yield home
        quit_warm()
        home.wait_until_empty()
    home.remove()


@pytest.fixture(scope="module")
def shared(home: Home, cards: Cards) -> Iterator[jaxcluster.Cluster]:
    with cards.start("gpu") as cluster:
        yield cluster


@pytest.fixture
def ranks(shared: jaxcluster.Cluster) -> jaxcluster.Cluster:
    """The module's cluster, with its variables: what a test before has lost is made again."""
    shared.run(SETUP, show=False)
    return shared


@pytest.fixture
def several(cards: Cards, ranks: jaxcluster.Cluster) -> jaxcluster.Cluster:
    """The same, for what happens between ranks."""
    if cards.num_ranks < 2:
        pytest.skip(cards.why_one)
    return ranks


@pytest.fixture
def used_before(cards: Cards) -> dict[str, int]:
    """What is in use of each card's memory, by its name."""
    return {use.name: use.used_nbytes for use in gpu_uses(cards.visible)}


def test_each_rank_has_the_device_that_was_planned(cards: Cards, ranks: jaxcluster.Cluster) -> None:
    assert [len(one.devices) for one in ranks.record.devices] == [1] * cards.num_ranks
    assert all(one.recording for one in ranks.record.devices)  # launches are checked
    link = ranks.world.link
    used = replies(link.gather(link.ranks, Resources(), timeout_s=2.0))
    assert sorted(used) == list(range(cards.num_ranks))
    if cards.visible:
        said = ranks.run("import os; print(os.environ['CUDA_VISIBLE_DEVICES'])", show=False)
        own = [said.stdout(rank).strip() for rank in range(cards.num_ranks)]
        assert own == list(cards.visible[: cards.num_ranks]) or len(cards.visible) == 1
        platforms = {d.platform for one in ranks.record.devices for d in one.devices}
        assert platforms <= {"gpu", "cuda"}
        for rank, card in enumerate(own):
            for use in gpu_uses([card]):  # where something tells it
                assert used[rank].gpu_total_nbytes == use.total_nbytes
                assert 0 < used[rank].gpu_used_nbytes <= use.total_nbytes
    check_whole(ranks)


@pytest.mark.parametrize(
    ("source", "told"),
    [
        ("if r != 1:\n    s = float(total(g * 2))\n    print(s)", "rank 1 ended the cell"),
        ("if r != 1: s = total(g * 3)", "rank 1 ended the cell"),
        # Each would wait in the compiler for the other, which tunes a program on all processes.
        ("s = (g * 2.5 if r == 0 else g - 1.5).sum()\nprint(s)", "were about to launch"),
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


@pytest.mark.parametrize(
    ("how", "error", "told"),
    [
        ("error", CellFailed, "no data"),
        ("time limit", JaxClusterError, "3 s"),
        ("stop button", CellInterrupted, "was stopped"),
    ],
)
def test_ranks_in_a_collective_are_released(
    several: jaxcluster.Cluster, how: str, error: type[BaseException], told: str
) -> None:
    deed = "raise ValueError('no data')" if how == "error" else "time.sleep(600)"
    limit = 3 if how == "time limit" else None
    cell = several.submit(f"if r == 1: {deed}\nprint(float(total(g)))", timeout_s=limit)
    timer = threading.Timer(1.0, cell.stop)
    if how == "stop button":
        timer.start()
    with pytest.raises(error, match=told):
        cell.wait()
    timer.cancel()
    check_whole(several)


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

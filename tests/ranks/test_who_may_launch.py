"""A launch is missing for certain only where nothing on that rank can make it any more.

What else may: a cell of anyone that runs or waits there, a thread, a task or a timer of the user's,
code that came through ipyparallel. All of these launch in lockstep here and must raise no alarm;
and what lives on a rank without launching anything must not keep a real skip from being named.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Iterator

import pytest
from helpers import DEVICES, Home, until

import jaxcluster
from jaxcluster.errors import CellFailed, CellInterrupted, Divergence
from jaxcluster.model.notices import ClusterWarning
from jaxcluster.wire.link import Sink

NAMED_WITHIN_S = 8.0  # 2 s, and what other work on the machine adds

SETUP = """
import asyncio, jax, jax.numpy as jnp, numpy as np, threading, time, _thread
from jax.sharding import NamedSharding, PartitionSpec as P
mesh = jax.make_mesh((jax.device_count(),), ("i",))
split = NamedSharding(mesh, P("i"))
def spread(values):
    return jax.make_array_from_callback(values.shape, split, lambda index: values[index])
g = spread(np.arange(12.0))
h = spread(np.arange(12.0) * 100)
r = jax.process_index()
seen = []
float(jnp.sum(g)), float(jnp.max(g))
"""


@pytest.fixture(scope="module", params=DEVICES)
def ranks(request: pytest.FixtureRequest, home: Home) -> Iterator[jaxcluster.Cluster]:
    with jaxcluster.start(3, devices_per_process=request.param, name=f"who-{request.param}") as c:
        c.run(SETUP)
        yield c


@pytest.fixture(autouse=True)
def whole(ranks: jaxcluster.Cluster) -> Iterator[None]:
    """After each test the ranks are the same processes, in lockstep, with right results."""
    pids = list(ranks.record.pids)
    yield
    assert ranks.divergence is None
    record = ranks.run("print(float(jnp.sum(h)), float(jnp.max(g)))", show=False, timeout_s=60)
    assert [record.stdout(rank) for rank in range(3)] == ["6600.0 11.0\n"] * 3
    assert ranks.record.pids == pids


def test_background_cells_that_are_slow_on_different_ranks_raise_no_alarm(
    ranks: jaxcluster.Cluster,
) -> None:
    first = ranks.submit("if r == 2: time.sleep(3)\nprint(r)")
    second = ranks.submit("if r == 0: time.sleep(3)\nb = float(jnp.sum(h)); print(b)")
    assert [first.wait().stdout(rank) for rank in range(3)] == ["0\n", "1\n", "2\n"]
    assert [second.wait().stdout(rank) for rank in range(3)] == ["6600.0\n"] * 3


def test_a_launch_that_comes_in_the_next_cell_is_not_the_one_that_was_skipped(
    ranks: jaxcluster.Cluster,
) -> None:
    first = ranks.submit("if r != 1: a = float(jnp.sum(g)); print(a)")
    second = ranks.submit("if r == 1: time.sleep(2.5); a = float(jnp.sum(g)); print(a)")
    with pytest.raises(Divergence, match="Rank 1 finished the cell without"):
        first.wait()
    with pytest.raises(CellFailed, match="was not run"):
        second.wait()


def test_a_cell_of_another_notebook_is_not_called_diverged(ranks: jaxcluster.Cluster) -> None:
    other = jaxcluster.cluster.connect(ranks.record)
    try:
        ours = ranks.submit("if r == 2: time.sleep(3)\nprint(r)")
        theirs = other.submit("if r == 0: time.sleep(3)\nprint(float(jnp.max(h)))")
        assert ours.wait().stdout(1) == "1\n"
        assert theirs.wait().stdout(1) == "1100.0\n"
    finally:
        other.close()


def test_a_skip_is_named_to_the_notebook_whose_cell_skipped(ranks: jaxcluster.Cluster) -> None:
    other = jaxcluster.cluster.connect(ranks.record)
    try:
        ours = ranks.submit("if r == 2: time.sleep(2.5)\nprint(float(jnp.sum(g)))")
        theirs = other.submit("if r != 0: float(jnp.max(h))")
        assert ours.wait().stdout(1) == "66.0\n"
        with pytest.raises(Divergence, match="Rank 0 finished the cell without"):
            theirs.wait()
    finally:
        other.close()


THREAD = """
def loop(n=8):
    for i in range(n):
        time.sleep(0.25 + 0.6 * (r == i % 3))
        seen.append(float(jnp.sum(g * i)))
{start}
"""


@pytest.mark.parametrize(
    "start",
    [
        "thread = threading.Thread(target=loop, name='loader'); thread.start()",
        "_thread.start_new_thread(loop, ())",
        "from concurrent.futures import ThreadPoolExecutor\n"
        "pool = ThreadPoolExecutor(1); future = pool.submit(loop)",
    ],
    ids=["threading", "_thread", "a pool"],
)
def test_a_thread_that_an_earlier_cell_left_behind_launches_in_lockstep(
    ranks: jaxcluster.Cluster, start: str
) -> None:
    ranks.run("seen.clear()\n" + THREAD.format(start=start), show=False)
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        record = ranks.run("print(len(seen))", show=False)
        if all(record.stdout(rank) == "8\n" for rank in range(3)):
            break
    record = ranks.run("print(seen == [66.0 * i for i in range(8)])", show=False)
    assert [record.stdout(rank) for rank in range(3)] == ["True\n"] * 3


def test_a_task_on_the_event_loop_launches_in_lockstep(ranks: jaxcluster.Cluster) -> None:
    ranks.run(
        "seen.clear()\n"
        "async def later():\n"
        "    await asyncio.sleep(0.2 + 2.5 * (r == 1))\n"
        "    seen.append(float(jnp.sum(g)))\n"
        "task = asyncio.get_running_loop().create_task(later())\n"
        "await asyncio.sleep(0)",
        show=False,
    )
    until(
        lambda: all(
            ranks.run("print(len(seen))", show=False).stdout(rank) == "1\n" for rank in range(3)
        ),
        "the task has launched on all ranks",
    )


LATE = {
    "what a task calls at its end": """
task = asyncio.get_running_loop().create_task(asyncio.sleep(delay))
task.add_done_callback(launch)
await asyncio.sleep(0)
""",
    "a library's timer": """
from tornado.ioloop import PeriodicCallback
def tick():
    timer.stop()
    launch()
timer = PeriodicCallback(tick, 1000 * delay)
timer.start()
""",
    "what a pool calls at a job's end": """
from multiprocessing.pool import ThreadPool
pool = ThreadPool(1)
pool.apply_async(int, callback=lambda result: (time.sleep(delay), launch()))
""",
    "a pool's map that a thread waits for": """
from multiprocessing.pool import ThreadPool
pool = ThreadPool(1)
thread = threading.Thread(
    target=pool.map, args=(lambda _: (time.sleep(delay), launch()), range(1))
)
thread.start()
""",
    "a loop in a thread": """
loop = asyncio.new_event_loop()
thread = threading.Thread(target=loop.run_forever, daemon=True)
thread.start()
loop.call_soon_threadsafe(lambda: loop.call_later(delay, launch))
""",
    "a file that can be read": """
import os, subprocess
loop = asyncio.get_running_loop()
read, write = os.pipe()
process = subprocess.Popen(["sleep", str(delay)], stdout=write)
os.close(write)
loop.add_reader(read, lambda: (loop.remove_reader(read), launch()))
await asyncio.sleep(0)
""",
    "a handler of a signal": """
import os, signal, subprocess
signal.signal(signal.SIGUSR1, launch)
process = subprocess.Popen(["sh", "-c", f"sleep {delay}; kill -USR1 {os.getpid()}"])
""",
}


# A signal may come in one of the cells that ask, on some ranks only: then it is that cell's launch.
@pytest.mark.filterwarnings(r"ignore:Launch \d+ of ranks")
@pytest.mark.parametrize("leave", LATE.values(), ids=LATE)
def test_what_a_cell_leaves_behind_launches_later_on_one_rank(
    ranks: jaxcluster.Cluster, leave: str
) -> None:
    ranks.run(
        "seen.clear()\n"
        "delay = 0.1 + 2.5 * (r == 1)\n"
        "def launch(*_):\n"
        "    seen.append(float(jnp.sum(g)))\n" + leave,
        show=False,
    )
    ended = "print(len(seen), end='')"
    until(
        lambda: {ranks.run(ended, show=False).stdout(rank) for rank in range(3)} == {"1"},
        "it has launched on all ranks",
    )
    ranks.run(
        "import signal; signal.signal(signal.SIGUSR1, signal.SIG_DFL)\npool = process = None",
        show=False,
    )
    record = ranks.run("print(seen)", show=False)
    assert [record.stdout(rank) for rank in range(3)] == ["[66.0]\n"] * 3
    if "loop = asyncio.new" in leave:
        ranks.run("loop.call_soon_threadsafe(loop.stop)", show=False)


def test_ranks_that_go_on_are_not_said_to_have_waited(ranks: jaxcluster.Cluster) -> None:
    """As in a training: whenever one looks, some rank waits for another, each time elsewhere."""
    notices: list[str] = []
    cell = ranks.submit(
        "import time\n"
        "end = time.monotonic() + 7\n"
        "while float(jnp.max(g * 0 + (time.monotonic() < end))): time.sleep(0.05 * (r == 1))"
    )
    cell.runner.on_notice = notices.append
    cell.wait()
    told = re.findall(r"waited (\d+) s", "".join(notices))
    assert all(int(seconds) < 4 for seconds in told)  # on a busy machine for one launch, perhaps


def test_a_rank_whose_thread_may_still_launch_is_told_and_nothing_is_interrupted(
    ranks: jaxcluster.Cluster,
) -> None:
    ranks.run(
        "stop = threading.Event()\n"
        "def nap():\n"
        "    while not stop.wait(0.05): pass\n"
        "    if late: float(jnp.sum(g))\n"
        "late = r == 1\n"
        "thread = threading.Thread(target=nap, name='loader')\n"
        "if r == 1: thread.start()",
        show=False,
    )
    notices: list[str] = []
    cell = ranks.submit("if r != 1: print(float(jnp.sum(g)))")
    cell.runner.on_notice = notices.append
    done = threading.Thread(target=cell.wait)
    done.start()
    until(lambda: any("thread 'loader'" in n for n in notices), "it is told who waits for whom")
    (told,) = (n for n in notices if "loader" in n)
    assert re.match(r"Ranks 0, 2 have waited \d+ s for rank 1, which runs no cell, but its ", told)
    assert re.search(r"its thread 'loader' still runs \(launch \d+, jit\(.*\)\)\.$", told)
    assert cell.interrupted == ()
    # No cell can free them, since those wait their turn: it is asked of rank 1 beside them.
    ranks.link.request(1, _beside(ranks, "stop.set()"), sink=Sink())
    done.join(60)
    assert cell.record.stdout(0) == "66.0\n"
    assert cell.report is None


def _beside(cluster: jaxcluster.Cluster, source: str) -> object:
    """A cell for rank 1 alone, which is idle."""
    from jaxcluster import wire

    with cluster.world.turns.take([1]) as seq:
        return wire.CellRequest(seq, source, 1, [1], [1], after=0)


def test_no_program_is_run_with_zeros_under_a_living_thread(ranks: jaxcluster.Cluster) -> None:
    """The cell is stopped while rank 1's thread has still to launch: it does so itself."""
    ranks.run(
        "seen.clear()\n"
        "def late():\n"
        "    time.sleep(4); seen.append(float(jnp.sum(g)))\n"
        "if r == 1: thread = threading.Thread(target=late, name='loader'); thread.start()",
        show=False,
    )
    cell = ranks.submit("if r != 1: seen.append(float(jnp.sum(g)))")
    until(lambda: 1 in cell.record.replies or _replied(cell), "rank 1 has ended the cell")
    cell.stop()
    with pytest.raises((CellInterrupted, jaxcluster.errors.RankHung, Divergence)):
        cell.wait()
    until(
        lambda: ranks.run("print(seen)", ranks=[1], show=False).stdout(1) != "[]\n", "it launched"
    )
    assert ranks.run("print(seen)", ranks=[1], show=False).stdout(1) == "[66.0]\n"


def _replied(cell: jaxcluster.RunningCell) -> bool:
    states = {s.rank: s for s in cell.cluster.status()}
    return states[1].ended >= cell.record.seq


@pytest.mark.parametrize(
    "leave",
    [
        "from tqdm import tqdm\nfor _ in tqdm(range(2)): time.sleep(0.01)",
        "from concurrent.futures import ThreadPoolExecutor\n"
        "pool = ThreadPoolExecutor(2); list(pool.map(int, range(9)))",
        "from multiprocessing.pool import ThreadPool\n"
        "pool = ThreadPool(2); pool.map(int, range(9))",
        "import queue\nq = queue.Queue()\n"
        "thread = threading.Thread(target=q.get, daemon=True); thread.start()",
        "await asyncio.to_thread(int)",
        "loop = asyncio.new_event_loop()\n"
        "thread = threading.Thread(target=loop.run_forever, daemon=True); thread.start()\n"
        "asyncio.run_coroutine_threadsafe(asyncio.sleep(0), loop).result()",
        "jax.block_until_ready(jax.pure_callback(lambda v: v, np.float32(1), np.float32(1)))",
        "import signal; signal.signal(signal.SIGUSR1, lambda *_: float(jnp.sum(g)))",
    ],
    ids=[
        "tqdm",
        "executor",
        "ThreadPool",
        "a queue's consumer",
        "to_thread",
        "a loop",
        "a callback",
        "a handler of a signal",
    ],
)
def test_what_lives_for_ever_and_launches_nothing_hides_no_skip(
    ranks: jaxcluster.Cluster, leave: str
) -> None:
    if "tqdm" in leave:
        pytest.importorskip("tqdm")
    ranks.run(leave, show=False)
    started = time.monotonic()
    with pytest.raises(Divergence) as caught:
        ranks.run("if r != 1: s = float(jnp.sum(g))", show=False)
    assert caught.value.report.culprits == (1,)
    assert time.monotonic() - started < NAMED_WITHIN_S
    ranks.run("pool = thread = None", show=False)


def test_code_that_came_through_ipyparallel_may_launch(ranks: jaxcluster.Cluster) -> None:
    view = ranks.client[1]
    view.execute("import time; time.sleep(3); late = float(jnp.sum(g)); seen.append(late)")
    record = ranks.run("if r != 1: print(float(jnp.sum(g)))", ranks=[0, 2], show=False)
    assert record.stdout(0) == "66.0\n"


@pytest.mark.promise("The end of a cell")
def test_a_timer_does_not_stand_in_for_what_an_error_has_kept_a_rank_from(
    ranks: jaxcluster.Cluster,
) -> None:
    """The others' sum meets that of a timer, on other values, and all have launched as often."""
    ranks.run(
        "def late(): seen.append(jnp.sum(h))\n"
        "if r == 1: asyncio.get_running_loop().call_later(1.0, late)",
        show=False,
    )
    with pytest.raises(CellFailed, match="early") as caught:
        ranks.run("if r == 1: raise ValueError('early')\nwrong = float(jnp.sum(g))", show=False)
    assert "This cell is undone" in str(caught.value)
    with pytest.raises(CellFailed, match="'wrong' is not defined"):
        ranks.run("print(wrong)", show=False)


def test_a_launch_too_many_that_others_threads_have_met_is_told(
    ranks: jaxcluster.Cluster,
) -> None:
    """Each rank's thread makes the launch, and rank 0's cell once more."""
    ranks.run(
        "def work():\n    time.sleep(1)\n    seen.append(float(jnp.sum(g)))\n"
        "    time.sleep(5)\nthreading.Thread(target=work).start()"
    )
    met = "at cell .* line 1, on rank 0, and one of a thread, task or timer on ranks 1, 2"
    with pytest.warns(ClusterWarning, match=met):
        ranks.run("if r == 0: got = float(jnp.sum(g)); time.sleep(2)", show=False, timeout_s=60)
    made_up = "at cell .* line 1, on ranks 1, 2, and one of a thread, task or timer on rank 0"
    with pytest.warns(ClusterWarning, match=made_up):  # all are even then
        ranks.run("if r: got = float(jnp.sum(g))", show=False, timeout_s=60)

"""No program that spans processes is launched before all of its ranks have announced the same."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from helpers import DEVICES, Home, until

import jaxcluster
from jaxcluster.cluster import connect
from jaxcluster.errors import CellFailed, CellInterrupted, Divergence, JaxClusterError
from jaxcluster.model.outputs import CellRecord

SOON_S = 8.0  # what is told at once is told within this; other work may run on the machine
RANKS = range(4)

SETUP = """
import queue, random, threading, time
import jax, jax.numpy as jnp, numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
r = jax.process_index()
auto = jax.sharding.AxisType.Auto
mesh = jax.make_mesh((jax.device_count(),), ("i",), axis_types=(auto,))
split, whole = NamedSharding(mesh, P("i")), NamedSharding(mesh, P())
def spread(values, sharding=split):
    return jax.make_array_from_callback(values.shape, sharding, lambda index: values[index])
def among(*ranks):
    devices = [d for d in jax.devices() if d.process_index in ranks]
    return NamedSharding(Mesh(np.array(devices), ("i",)), P("i"))
x = spread(np.arange(16.0, dtype=np.float32))
total, largest = jax.jit(lambda v: jnp.sum(v)), jax.jit(lambda v: jnp.max(v))
step = jax.jit(lambda v: v + 1)
give = jax.jit(lambda v: v + jnp.sum(v), donate_argnums=0)
dot = jax.jit(lambda v, w: (v * w).sum())
for _ in range(3):
    jax.block_until_ready([total(x), largest(x), step(x), give(step(x)), dot(x, 2.0)])
"""


@pytest.fixture(scope="module", params=DEVICES)
def ranks(request: pytest.FixtureRequest, home: Home) -> Iterator[jaxcluster.Cluster]:
    with jaxcluster.start(
        4, devices_per_process=request.param, name=f"agreed-{request.param}"
    ) as cluster:
        cluster.run(SETUP, show=False)
        yield cluster


@pytest.fixture(autouse=True)
def whole(ranks: jaxcluster.Cluster) -> Iterator[None]:
    """After each test the ranks are the same processes, and compute."""
    pids = list(ranks.record.pids)
    yield
    assert printed(ranks.run("print(float(total(x)))", show=False)) == ["120.0\n"] * 4
    assert ranks.record.pids == pids


def printed(record: CellRecord) -> list[str]:
    return [record.stdout(rank) for rank in record.ranks]


def launched(cluster: jaxcluster.Cluster) -> int:
    """How many launches were agreed on so far."""
    looked = cluster.look(1)
    assert looked is not None
    return looked.agreed[-1].number


def told(error: JaxClusterError) -> str:
    """Its message, without the number of its cell."""
    text = re.sub(r"^cell \[\d+\]: ", "", str(error))
    return text[0].upper() + text[1:]


def refused(cluster: jaxcluster.Cluster, source: str, launches: int = 0) -> Divergence:
    """The error of a cell in which no more than so many launches are made."""
    before, started = launched(cluster), time.monotonic()
    with pytest.raises(Divergence) as caught:
        cluster.run(source, show=False)
    assert time.monotonic() - started < SOON_S
    assert launched(cluster) - before == launches
    return caught.value


# ------------------------------------------------------------------------------------ refusals


@pytest.mark.promise("The promise")
def test_a_skip_is_told_with_what_each_rank_did(ranks: jaxcluster.Cluster) -> None:
    error = refused(ranks, "y = 1\nif r != 1:\n    s = float(total(x))\ny = 2")
    first, *rows, last = told(error).splitlines()
    assert first == "Rank 1 ended the cell without the launch that ranks 0, 2, 3 wait for."
    assert re.fullmatch(
        r"  ranks 0, 2, 3 +line 3   s = float\(total\(x\)\)   jit\(<lambda>\) float32\[16.*\]",
        rows[0],
    )
    assert re.fullmatch(r"  rank 1 +ended   line 2 is `if r != 1:`", rows[1])
    assert last == "Nothing was launched. Fix the cell and run it again."
    assert error.ranks == (1,)
    # As in any notebook: variables are what the cell had made of them.
    record = ranks.run("print(y, 's' in globals())", show=False)
    assert printed(record) == ["2 False\n" if rank == 1 else "1 False\n" for rank in RANKS]


def test_what_differs_is_told(ranks: jaxcluster.Cluster) -> None:
    error = refused(ranks, "s = float(largest(x) if r == 3 else total(x))")
    assert told(error).startswith("Ranks 0-3 were about to launch different programs.")
    assert "choose afterwards" in str(error)
    assert re.search(r"\n  ranks 0-2 .*program #[0-9a-f]{6}\n  rank 3 .*program #", str(error))
    assert error.ranks == (3,)
    error = refused(
        ranks, "y = spread(np.ones(32 if r == 2 else 16, np.float32))\ns = float(total(y))"
    )
    assert re.search(r"\n  rank 2 .*float32\[32.*\n", str(error))
    assert re.search(r"\n  ranks 0, 1, 3 .*float32\[16.*\n", str(error))


@pytest.mark.parametrize(
    "value",
    [
        "2.0 + r",
        "np.full(16, 1.0 * (r == 1))",
        "np.random.default_rng(r).normal(size=16)",
        "jnp.arange(16.0) * r",
        "jax.random.normal(jax.random.key(r), (16,))",
        "spread(np.full(16, 1.0 * r), whole)",
    ],
)
def test_values_of_the_host_that_differ_are_refused(ranks: jaxcluster.Cluster, value: str) -> None:
    ranks.run("dot(x, jnp.ones(16)), dot(x, np.ones(16)), dot(x, spread(np.ones(16), whole))")
    error = refused(ranks, f"s = dot(x, {value})")
    assert "were about to launch one program with different values" in str(error)
    assert "values #" in str(error)


def test_values_that_may_differ_are_no_reason(ranks: jaxcluster.Cluster) -> None:
    """What ranks keep for themselves, read, or bring as their own part of an array."""
    record = ranks.run(
        "from jax.experimental import multihost_utils as mhu\n"
        "from jaxcluster import seed\nseed(0)\n"
        "each = mhu.process_allgather(np.arange(3) * r)\n"
        "first = mhu.broadcast_one_to_all(np.arange(3) + r)\n"
        "own = jax.make_array_from_process_local_data(split, np.full(16 // 4, float(r)))\n"
        "if r: noise = jnp.ones(3) * r + np.random.rand(3)\n"
        "if r == 0: print(x.addressable_shards[0].data[0])\n"
        "seed(0)\nmore = dot(x, np.random.rand(16)), random.random()\n"
        "print(each.tolist(), first.tolist(), float(total(own)), more[1])",
        show=False,
    )
    assert len({text.splitlines()[-1] for text in printed(record)}) == 1
    assert "[[0, 0, 0], [0, 1, 2], [0, 2, 4], [0, 3, 6]] [0, 1, 2] 24.0" in record.stdout(1)


@pytest.mark.promise("The limit")
def test_values_that_differ_for_programs_without_collectives_end_the_cell(
    ranks: jaxcluster.Cluster,
) -> None:
    error = refused(ranks, "y = step(x) * (1.0 + (r == 2))")
    assert told(error).startswith(
        "Rank 2 gave other values than the rest to programs without collectives.\n"
    )
    assert error.hint == "It has assigned: y."
    ranks.run("y = step(x) * 2.0", show=False)


def test_launches_without_a_collective_wait_for_nobody_and_are_compared(
    ranks: jaxcluster.Cluster,
) -> None:
    record = ranks.run(
        "began = time.monotonic()\nif r == 1: time.sleep(1)\ny = step(x)\n"
        "print(time.monotonic() - began < 0.8)",
        show=False,
    )
    assert printed(record) == [f"{rank != 1}\n" for rank in RANKS]
    error = refused(ranks, "if r == 2: y = step(x)")
    assert told(error).startswith("Rank 2 launched other programs without collectives ")
    assert error.ranks == (2,)
    error = refused(ranks, "if r == 2: y = step(x)\ns = float(total(x))")
    assert "one program, but had launched different ones without collectives." in str(error)


def test_an_error_on_one_rank_is_that_error_and_leaves_all_at_its_turn(
    ranks: jaxcluster.Cluster,
) -> None:
    with pytest.raises(CellFailed, match="ValueError on rank 1: bad batch") as caught:
        ranks.run(
            "done = 0\nfor i in range(50):\n"
            "    if i == 5 and r == 1: raise ValueError('bad batch')\n"
            "    s = total(x)\n    done = i + 1",
            show=False,
        )
    assert "Ranks 0, 2, 3 stopped before the next launch." in str(caught.value)
    assert caught.value.ranks == (1,)
    assert printed(ranks.run("print(done)", show=False)) == ["5\n"] * 4


@pytest.mark.parametrize("source", ["float(total(spread(np.ones(15))))", "x[0]['a']", "total('a')"])
def test_what_fails_alike_on_all_ranks_is_that_error(
    ranks: jaxcluster.Cluster, source: str
) -> None:
    with pytest.raises(CellFailed) as caught:
        ranks.run(source, show=False)
    assert caught.value.ranks == (0, 1, 2, 3)


@pytest.mark.parametrize("other", ["largest(x)", "give(step(x)) + 1"])
def test_donated_inputs_are_intact_after_a_refusal(ranks: jaxcluster.Cluster, other: str) -> None:
    ranks.run("params = step(x)", show=False)
    refused(ranks, f"params = {other} if r == 1 else give(params)")
    refused(ranks, "if r != 1: params = give(params)")
    record = ranks.run("print(params.is_deleted(), float(total(params)))", show=False)
    assert printed(record) == ["False 136.0\n"] * 4


# --------------------------------------------------------------------------- refusals that stick


@pytest.mark.promise("The promise")
def test_a_loop_that_swallows_a_refusal_launches_nothing_more(ranks: jaxcluster.Cluster) -> None:
    """``except Exception: continue`` must not shift later launches against each other."""
    error = refused(
        ranks,
        "params, caught = x, 0\n"
        "for i in range(20):\n"
        "    try:\n"
        "        if r == 1 and i == 7: continue\n"
        "        params = dot(x, 1.0 + i) * x\n"
        "    except Exception as error:\n"
        "        caught += 1; continue",
        launches=7,
    )
    assert "were about to launch one program with different values" in str(error)
    record = ranks.run("print(caught)", show=False)
    assert printed(record) == ["13\n", "12\n", "13\n", "13\n"]


@pytest.mark.promise("The promise")
def test_a_turn_that_one_rank_leaves_out_is_an_error_on_all(ranks: jaxcluster.Cluster) -> None:
    """Its later turns meet the others' earlier ones, and no fingerprint tells."""
    error = refused(
        ranks,
        "p = x\nfor i in range(12):\n    if r == 1 and i == 3: continue\n    s = total(x)\nq = 1",
        launches=11,
    )
    assert "ank 1 ended the cell without the launch that ranks 0, 2, 3 wait for." in str(error)
    assert "the last 11 launches from line 4 on mixed iterations" in str(error)
    assert "Nothing was launched" not in str(error)
    assert re.search(r"It has assigned: .*\bp\b.*\bq\b.*\bs\b", str(error))
    assert error.ranks == (1,)


@pytest.mark.parametrize(
    "cell",
    [
        "if r != 1:\n    try: float(total(x))\n    except BaseException: pass\n    float(total(x))",
        "try: (total if r else largest)(x)\nexcept Exception: raise ValueError('mine')",
    ],
)
def test_whatever_the_code_does_with_a_refusal_the_cell_ends_with_it(
    ranks: jaxcluster.Cluster, cell: str
) -> None:
    refused(ranks, cell)


def test_what_a_wait_is_left_by_closes_the_cell(ranks: jaxcluster.Cluster) -> None:
    """An alarm's handler raises in the wait; nothing is launched behind it."""
    error = refused(
        ranks,
        "import signal\n"
        "def late(*_): raise TimeoutError('alarm')\n"
        "signal.signal(signal.SIGALRM, late)\n"
        "if r == 0: signal.setitimer(signal.ITIMER_REAL, 0.3)\n"
        "if r == 1: time.sleep(1)\n"
        "try: s = float(total(x))\nexcept Exception as error: kind = type(error).__name__\n"
        "else: kind = 'none'",
    )
    assert "rank 0 left the wait for a launch" in str(error)
    record = ranks.run("print(kind)", show=False)
    assert printed(record) == ["TimeoutError\n", *["Divergence\n"] * 3]


# ----------------------------------------------------------------------------------- slow ranks


SLOW = {
    "C code": "import ctypes; ctypes.CDLL(None).usleep(1_500_000)",
    "the interpreter's lock": "import ctypes; ctypes.PyDLL(None).usleep(1_500_000)",
    "a loop": "end = time.monotonic() + 1.5\nwhile time.monotonic() < end: pass",
    "a compilation": (
        "from jax._src import compiler\nslow = compiler.backend_compile_and_load\n"
        "compiler.backend_compile_and_load = lambda *a, **k: [time.sleep(1), slow(*a, **k)][1]\n"
        "jax.jit(lambda v: v * 3)(1.0)\ncompiler.backend_compile_and_load = slow"
    ),
}


@pytest.mark.parametrize("work", SLOW.values(), ids=SLOW)
def test_a_slow_rank_is_waited_for(ranks: jaxcluster.Cluster, work: str) -> None:
    indented = "\n".join(f"    {line}" for line in work.splitlines())
    record = ranks.run(f"if r == 1:\n{indented}\nprint(float(total(x)))", show=False)
    assert printed(record) == ["120.0\n"] * 4


def test_who_waits_for_whom_is_told_meanwhile(ranks: jaxcluster.Cluster) -> None:
    told: list[str] = []
    cell = ranks.submit("if r == 1: time.sleep(2.5)\ns = float(total(x))")
    cell.on_status = told.append
    cell.wait()
    assert any("rank 1" in line and "line" in line for line in told), told
    assert told[-1] == ""


# ------------------------------------------------------------------------------------- the sets


@pytest.mark.promise("The promise")
def test_waiting_in_a_circle_is_refused(ranks: jaxcluster.Cluster) -> None:
    ranks.run(
        "pair, triple = among(0, 1), among(0, 1, 2)\n"
        "if r < 2: a = spread(np.arange(12.0), pair)\n"
        "if r < 3: b = spread(np.arange(12.0), triple)\n"
        "if r < 3: largest(b)\nif r < 2: largest(a)",
        show=False,
    )
    error = refused(
        ranks,
        "if r == 0: largest(a)\nif r < 3: largest(b)\nif r == 1: largest(a)",
    )
    assert "wait for each other." in str(error)
    assert "Make the calls in one order on all ranks." in str(error)
    assert {0, 1}.issuperset(error.ranks[:2])


def test_cells_of_some_ranks_beside_cells_of_others_meet_in_one_program(
    ranks: jaxcluster.Cluster,
) -> None:
    left = ranks.submit("s = float(total(x)); print(s)", ranks=[0, 1])
    right = ranks.submit("time.sleep(0.2)\ns = float(total(x)); print(s)", ranks=[2, 3])
    assert printed(left.wait()) == printed(right.wait()) == ["120.0\n"] * 2
    record = ranks.run(
        "half = among(0, 1) if r < 2 else among(2, 3)\n"
        "v = spread(np.arange(8.0) * (1 + r // 2), half)\nprint(float(total(v)))",
        show=False,
    )
    assert printed(record) == ["28.0\n"] * 2 + ["56.0\n"] * 2


def test_a_cell_of_some_ranks_that_needs_idle_ones_says_so(ranks: jaxcluster.Cluster) -> None:
    with pytest.raises(Divergence, match="wait for rank 1, which runs no cell") as caught:
        ranks.run("float(total(x))", ranks=[0, 2, 3], show=False)
    assert "Run the cell on all ranks" in str(caught.value)


# ---------------------------------------------------------------------------------------- cells


def test_cells_of_two_notebooks_have_one_order_on_all_ranks(ranks: jaxcluster.Cluster) -> None:
    other = connect(ranks.record)
    try:
        ranks.run("order = []", show=False)
        cells = [
            cluster.submit(f"order.append('{name}{k}'); s = total(x)")
            for k in range(25)
            for name, cluster in (("a", ranks), ("b", other))
        ]
        for cell in cells:
            cell.wait()
        orders = {*printed(ranks.run("print(order)", show=False))}
        assert len(orders) == 1
        (order,) = orders
        for name in "ab":
            assert re.findall(rf"{name}(\d+)", order) == [str(k) for k in range(25)]
        ours = ranks.submit("if r == 1: time.sleep(0.2)\nelse: float(total(x))")
        theirs = other.submit("print(float(total(x)))")
        with pytest.raises(Divergence):
            ours.wait()
        assert printed(theirs.wait()) == ["120.0\n"] * 4
    finally:
        other.close()


def test_values_are_pulled_and_pushed_in_the_order_of_the_cells(ranks: jaxcluster.Cluster) -> None:
    cells = []
    for k in range(5):
        cells.append(ranks.submit(f"n = {k}; s = float(total(x)); time.sleep(0.02 * (r == {k}))"))
    assert ranks["n"] == 4
    ranks["n"] = 7
    assert printed(ranks.run("print(n)", show=False)) == ["7\n"] * 4
    assert [cell.wait().ok for cell in cells] == [True] * 5


# -------------------------------------------------------------------------------------- threads


def test_threads_that_launch_in_another_order_on_each_rank_give_right_numbers(
    ranks: jaxcluster.Cluster,
) -> None:
    record = ranks.run(
        "sums = {}\n"
        "def work(name, f, pause):\n"
        "    for i in range(20):\n"
        "        time.sleep(random.random() * pause)\n"
        "        sums[name, i] = float(f(x))\n"
        "threads = [threading.Thread(target=work, args=(n, f, 0.004), name=n)\n"
        "           for n, f in ([('sum', total), ('max', largest)][:: 1 if r % 2 else -1])]\n"
        "[t.start() for t in threads]\n"
        "for i in range(20): assert float(dot(x, 2.0)) == 240.0\n"
        "[t.join() for t in threads]\n"
        "print(set(sums.values()), len(sums))",
        show=False,
        timeout_s=60,
    )
    assert all(text in ("{120.0, 15.0} 40\n", "{15.0, 120.0} 40\n") for text in printed(record))


def test_a_loaders_thread_meets_the_other_ranks_whatever_cell_runs(
    ranks: jaxcluster.Cluster,
) -> None:
    ranks.run(
        "sums = []\n"
        "def load():\n"
        "    for k in range(30): time.sleep(0.003 * r); sums.append(float(total(x)))\n"
        "loader = threading.Thread(target=load, name='loader'); loader.start()",
        show=False,
    )
    for cell in [ranks.submit("time.sleep(0.01)") for _ in range(10)]:
        cell.wait()
    record = ranks.run("loader.join()\nprint(sums == [120.0] * 30)", show=False, timeout_s=60)
    assert printed(record) == ["True\n"] * 4


def test_a_threads_launch_waits_is_shown_and_is_stopped(ranks: jaxcluster.Cluster) -> None:
    ranks.run(
        "ended = []\n"
        "def alone():\n"
        "    try: total(x)\n"
        "    except BaseException as error: ended.append(type(error).__name__)\n"
        "if r == 2:\n"
        "    lone = threading.Thread(target=alone, name='lone'); lone.start()",
        show=False,
    )

    def wait() -> object:
        looked = ranks.look()
        return looked is not None and [w for w in looked.waits if w.lane.startswith("lone")]

    (waits,) = until(wait, "the thread waits")
    assert (waits.rank, waits.missing) == (2, [0, 1, 3])
    time.sleep(0.3)
    assert ranks.run("1", show=False).ok  # it is in nobody's way
    ranks.interrupt()
    record = until(
        lambda: (
            found if (found := ranks.run("print(ended)", show=False)).stdout(2) != "[]\n" else None
        ),
        "the wait ends",
    )
    assert record.stdout(2) == "['Stopped']\n"


# -------------------------------------------------------------------- scripts and libraries


@pytest.mark.parametrize(
    "how", ["%run {}", "%time exec(open('{}').read())", "%%time\nif r == 1: 1/0"]
)
def test_what_ipython_prints_as_a_traceback_is_that_ranks_error(
    ranks: jaxcluster.Cluster, tmp_path: Path, how: str
) -> None:
    """Else the cell counts as done, and the next one sums new shards and old ones."""
    script = tmp_path / "train.py"
    script.write_text("import jax\nif jax.process_index() == 1: 1/0\n")
    with pytest.raises(CellFailed) as caught:
        ranks.run(how.replace("{}", str(script)), show=False)
    assert caught.value.ename == "ZeroDivisionError"
    assert caught.value.ranks == (1,)


def test_a_script_that_initializes_jax_itself_is_told_in_one_line(
    ranks: jaxcluster.Cluster,
) -> None:
    record = ranks.run("jax.distributed.initialize(); jax.distributed.shutdown()", show=False)
    told = record.records[0].text("stderr") + record.stdout(0)
    assert "jaxcluster has initialized JAX already: this is process 0 of 4." in told
    with pytest.raises(CellFailed, match="this is process 0 of 4, and the call asks for num_proc"):
        ranks.run("jax.distributed.initialize(num_processes=8)", show=False)


BARRIER = "from jax._src import distributed\nclient = distributed.global_state.client\n"


def test_a_barrier_of_a_librarys_is_agreed_on(ranks: jaxcluster.Cluster) -> None:
    """Orbax waits so, in a thread too."""
    record = ranks.run(
        f"{BARRIER}"
        "def meet(): client.wait_at_barrier('of a thread', 20_000); met.append(r)\n"
        "met, thread = [], threading.Thread(target=meet)\n"
        "thread.start() if r else meet()\n"
        "if r: thread.join()\n"
        "print(met == [r])",
        show=False,
    )
    assert printed(record) == ["True\n"] * 4
    with pytest.raises(CellFailed, match="Barrier timed out") as caught:
        ranks.run("if r != 1: client.wait_at_barrier('skipped', 500)", show=False)
    assert {*caught.value.ranks} <= {0, 2, 3}  # one may be late, and is interrupted
    cell = ranks.submit("if r == 1: time.sleep(60)\nclient.wait_at_barrier('stopped', 60_000)")
    until(lambda: len(ranks.look().waits) == 3, "the others are there")
    cell.stop()
    started = time.monotonic()
    with pytest.raises(CellInterrupted):
        cell.wait()
    assert time.monotonic() - started < SOON_S


def test_a_wait_for_a_key_is_stopped(ranks: jaxcluster.Cluster) -> None:
    cell = ranks.submit(f"{BARRIER}client.blocking_key_value_get('nobody sets it', 60_000)")
    until(lambda: all(s.state == "running" for s in ranks.status()), "they wait")
    cell.stop()
    started = time.monotonic()
    with pytest.raises(CellInterrupted):
        cell.wait()
    assert time.monotonic() - started < SOON_S


# ------------------------------------------------------------------------------- the messages


@pytest.mark.parametrize("first", ["%%time", "%%capture out", "%%timeit -n1 -r1", "!true"])
def test_a_cell_with_a_magic_is_told_with_its_branch_and_line(
    ranks: jaxcluster.Cluster, first: str
) -> None:
    with pytest.raises(Divergence) as caught:
        ranks.run(f"{first}\ny = 1\nif r != 1:\n    s = float(total(x))", show=False)
    assert "line 3 is `if r != 1:`" in str(caught.value)
    assert "line 4   s = float(total(x))" in str(caught.value)


def test_a_line_of_a_module_is_told_with_the_cells(
    ranks: jaxcluster.Cluster, tmp_path: Path
) -> None:
    (tmp_path / "trains.py").write_text("def train(f, x):\n    return f(x)\n")
    error = refused(
        ranks,
        f"import sys; sys.path.insert(0, {str(tmp_path)!r})\nimport trains\n"
        "if r != 1: trains.train(total, x)",
    )
    assert "line 3   if r != 1: trains.train(total, x)   (trains.py line 2: return f(x))" in str(
        error
    )

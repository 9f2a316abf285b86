"""A stop in a loop whose programs take their inputs: the state has its name when it is raised."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from helpers import Home, until

import jaxcluster
from jaxcluster.errors import CellFailed, CellInterrupted
from jaxcluster.model.notices import ClusterWarning

pytestmark = pytest.mark.any_jax

TRIES = 10  # a stop that comes to the ranks in different steps is undone, and that is another thing

SETUP = """
import functools, jax, jax.numpy as jnp, numpy as np
from jax.sharding import NamedSharding, PartitionSpec as P
mesh = jax.make_mesh((jax.device_count(),), ("i",))
def put(values, *spec):
    values = np.asarray(values)
    sharding = NamedSharding(mesh, P(*spec))
    return jax.make_array_from_callback(values.shape, sharding, lambda i: values[i])
x = put(np.ones((4, 3), np.float32), "i")
@functools.partial(jax.jit, donate_argnums=0)
def step(w, x):
    return w - 0.01 * jax.grad(lambda w: jnp.mean((x @ w - 1) ** 2))(w)
w = step(put(np.zeros(3, np.float32)), x)
"""


@pytest.mark.promise("Interrupts")
def test_the_state_of_a_stopped_loop_is_there(home: Home) -> None:
    kept = 0
    with jaxcluster.start(2, name="training") as cluster:
        for _ in range(TRIES):
            cluster.run(SETUP, show=False)
            stop = threading.Timer(0.5, cluster.interrupt)
            stop.start()
            with pytest.raises(CellInterrupted) as caught:
                cluster.run("while True:\n    w = step(w, x)", show=False)
            stop.join()
            if "This cell is undone" in str(caught.value):
                continue
            record = cluster.run("print(w.is_deleted())", show=False)
            assert [record.stdout(rank) for rank in range(2)] == ["False\n"] * 2
            kept += 1
            if kept == 3:
                return
    assert kept


# What JAX's own launch ends a ``with jax.set_mesh(...)`` in, and what a cell's does.
GATHER = "while True: gathered = multihost_utils.process_allgather(np.arange(3))"
HOLD = "while True:\n    with lock:\n        total = summed(x)"


@pytest.mark.promise("Interrupts")
@pytest.mark.parametrize("source", [GATHER, HOLD], ids=["mesh", "lock"])
def test_a_stop_leaves_no_with_open(pair: jaxcluster.Cluster, source: str) -> None:
    pair.run(SETUP + "import threading\nfrom jax.experimental import multihost_utils")
    pair.run("lock, summed = threading.Lock(), jax.jit(jnp.sum); summed(x)", show=False)
    for n in range(8):
        stop = threading.Timer(0.3 + n / 100, pair.interrupt)
        stop.start()
        with pytest.raises(CellInterrupted):
            pair.run(source, show=False)
        stop.join()
        record = pair.run("print(lock.locked(), float(jax.jit(jnp.sum)(x)))", show=False)
        assert [record.stdout(rank) for rank in range(2)] == ["False 12.0\n"] * 2


@pytest.mark.promise("Undo")
def test_what_a_time_limit_ends_is_kept_where_an_undo_would_lose_the_state(
    pair: jaxcluster.Cluster,
) -> None:
    pair.run(f"{SETUP}import time\ny = 1", show=False)
    with pytest.raises(CellFailed) as caught:
        pair.run("for y in (2, 3): w = step(w, x)\ntime.sleep(100)", timeout_s=2, show=False)
    assert "What this cell did is kept" in str(caught.value)
    assert "give back what was donated: w." in str(caught.value)
    pair.run("again = put(np.zeros(3, np.float32))\nfor _ in range(3): again = step(again, x)")
    record = pair.run("print(y, np.array_equal(w, again))", show=False)
    assert [record.stdout(rank) for rank in range(2)] == ["3 True\n"] * 2


def test_what_a_module_does_until_a_time_limit_ends_it_is_kept_too(
    pair: jaxcluster.Cluster, tmp_path: Path
) -> None:
    """All of its lines are of one call of the cell's, which has launched last."""
    (tmp_path / "fitting_w.py").write_text(
        "import time\n"
        "def fit(state, step, x):\n"
        "    for _ in (2, 3): state['w'] = step(state['w'], x)\n"
        "    time.sleep(100)\n"
    )
    more = f"import sys; sys.path.insert(0, {str(tmp_path)!r})\nimport fitting_w\n"
    pair.run(SETUP + more + "state = {'w': w}; del w", show=False)
    with pytest.raises(CellFailed) as caught:
        pair.run("fitting_w.fit(state, step, x)", timeout_s=2, show=False)
    assert "What this cell did is kept" in str(caught.value)
    record = pair.run("print(state['w'].is_deleted())", show=False)
    assert [record.stdout(rank) for rank in range(2)] == ["False\n"] * 2


@pytest.mark.promise("Undo")
def test_what_a_time_limit_ends_in_other_places_is_undone(pair: jaxcluster.Cluster) -> None:
    pair.run(f"{SETUP}import time", show=False)
    source = "w = step(w, x)\nif jax.process_index():\n    time.sleep(100)\nv = w; time.sleep(100)"
    with pytest.raises(CellFailed) as caught:
        pair.run(source, timeout_s=2, show=False)
    assert "This cell is undone. Removed v. Lost, since donated or deleted: w" in str(caught.value)


def test_what_a_time_limit_ends_is_undone_where_nothing_is_lost(pair: jaxcluster.Cluster) -> None:
    pair.run(f"{SETUP}import time\ny = 1", show=False)
    with pytest.raises(CellFailed) as caught:
        pair.run("y = x.sum(); time.sleep(100)", timeout_s=2, show=False)
    assert "This cell is undone. Restored y." in str(caught.value)


# ------------------------------------------------------- what a stop has left without a value

# What a launch returns is on its way to its name for as long as this takes.
HELD = """
import pathlib, signal, time, os, socket
old = step(put(np.zeros(3, np.float32)), x)
step(old, x)  # of an earlier cell
alias, fine = {"w": w}, step(put(np.ones(3, np.float32)), x)
def hold(value, folder=None):
    if folder is not None:
        pathlib.Path(folder, f"{socket.gethostname()}-{os.getpid()}").touch()
    time.sleep(100)
    return value
def train(folder=None):
    global w
    w = hold(step(w, x), folder)
"""
LOST = "Lost, since donated or deleted: alias, w."


@pytest.fixture
def training(pair: jaxcluster.Cluster) -> Iterator[jaxcluster.Cluster]:
    pair.run(SETUP + HELD, show=False)
    yield pair
    pair.limit_undo(None)
    pair.run("signal.setitimer(signal.ITIMER_REAL, 0)", show=False)


def stop_in(cluster: jaxcluster.Cluster, source: str, folder: Path) -> None:
    """Run it, and stop it where all ranks hold what their launch has returned."""
    running = cluster.submit(source.replace("()", f"({str(folder)!r})"))
    until(lambda: len(list(folder.iterdir())) == 2, "both ranks have launched")
    cluster.interrupt()
    running.wait()


@pytest.mark.promise("Interrupts")
@pytest.mark.parametrize("keeps", [None, 0], ids=["undo on", "undo off"])
def test_a_stop_names_what_it_has_left_deleted(
    training: jaxcluster.Cluster, tmp_path: Path, keeps: int | None
) -> None:
    training.limit_undo(keeps)
    with pytest.raises(CellInterrupted) as caught:
        stop_in(training, "fine = fine + 1; train()", tmp_path)
    assert str(caught.value).endswith(LOST)


def test_a_time_limit_names_what_it_has_left_deleted(training: jaxcluster.Cluster) -> None:
    training.limit_undo(0)
    with pytest.raises(CellFailed) as caught:
        training.run("train()", timeout_s=1, show=False)
    assert LOST in str(caught.value)
    assert caught.value.ename == "TimeoutError"


def test_a_time_limit_whose_cell_is_undone_names_it_once(training: jaxcluster.Cluster) -> None:
    with pytest.raises(CellFailed) as caught:
        training.run("train()", timeout_s=1, show=False)
    assert str(caught.value).count(LOST) == 1


def test_a_cell_that_catches_its_stop_warns_of_what_is_deleted(
    training: jaxcluster.Cluster, tmp_path: Path
) -> None:
    with pytest.warns(ClusterWarning, match=f"^{LOST}$"):
        stop_in(training, "try: train()\nexcept KeyboardInterrupt: pass", tmp_path)


def test_a_stop_of_the_cells_own_names_what_is_deleted(training: jaxcluster.Cluster) -> None:
    source = "def stop(*_): raise KeyboardInterrupt\n"
    source += "signal.signal(signal.SIGALRM, stop); signal.setitimer(signal.ITIMER_REAL, 0.5)\n"
    with pytest.raises(CellFailed) as caught:
        training.run(source + "train()", show=False)
    assert LOST in str(caught.value)


def test_ranks_that_another_ones_error_has_stopped_name_what_is_deleted(
    training: jaxcluster.Cluster,
) -> None:
    training.limit_undo(0)
    source = "mine = jnp.ones(3)\nif jax.process_index():\n    time.sleep(0.5); 1 / 0\n"
    source += "again = hold(jax.jit(lambda v: v + 1, donate_argnums=0)(mine))"
    with pytest.raises(CellFailed) as caught:
        training.run(source, show=False)
    assert "Lost, since donated or deleted: mine." in str(caught.value)


def test_a_stop_that_leaves_nothing_deleted_names_nothing(
    training: jaxcluster.Cluster, tmp_path: Path
) -> None:
    with pytest.raises(CellInterrupted) as caught:
        stop_in(
            training, "w = step(w, x); alias = 1; rest = lambda f: hold(w, f); rest()", tmp_path
        )
    assert str(caught.value).endswith("was stopped on ranks 0, 1.")


# ------------------------------------------------------- what a stop has left of different steps

APART = "The ranks were stopped in different places, so what this cell assigns may be of different "
# Rank 0 is stopped before the name is bound, and rank 1 behind it.
BOUND_ON_ONE = "total = hold(double(total), {0}) if r == 0 else double(total)\nhold(0, {0})"
AWAITED = (
    "total = await later(double(total), {0}) if r == 0 else double(total)\nawait later(0, {0})"
)


@pytest.fixture
def doubling(training: jaxcluster.Cluster) -> jaxcluster.Cluster:
    training.run(
        "import asyncio\n"
        "double, total, r = jax.jit(lambda v: 2 * v), x.sum(), jax.process_index()\n"
        "async def later(value, folder):\n"
        "    holds = pathlib.Path(folder, f'{socket.gethostname()}-{os.getpid()}')\n"
        "    asyncio.get_running_loop().call_soon(holds.touch)  # once it awaits\n"
        "    await asyncio.sleep(100)\n"
        "    return value",
        show=False,
    )
    return training


def totals(cluster: jaxcluster.Cluster) -> list[str]:
    record = cluster.run("print(float(total.addressable_data(0)))", show=False)
    return [record.stdout(rank).strip() for rank in (0, 1)]


@pytest.mark.promise("Interrupts")
@pytest.mark.parametrize("source", [BOUND_ON_ONE, AWAITED], ids=["calls", "awaits"])
def test_a_stop_in_different_places_names_what_may_be_of_different_steps(
    doubling: jaxcluster.Cluster, tmp_path: Path, source: str
) -> None:
    with pytest.raises(CellInterrupted) as caught:
        stop_in(doubling, source.format(repr(str(tmp_path))), tmp_path)
    assert str(caught.value).endswith(f"{APART}steps on them: total.")
    assert totals(doubling) == ["12.0", "24.0"]


def test_a_stop_in_different_places_that_the_code_has_caught_is_told(
    doubling: jaxcluster.Cluster, tmp_path: Path
) -> None:
    source = BOUND_ON_ONE.format(repr(str(tmp_path))).replace("\n", "\n    ")
    with pytest.warns(ClusterWarning, match=f"^{APART}steps on them: total.$"):
        stop_in(doubling, f"try:\n    {source}\nexcept KeyboardInterrupt: pass", tmp_path)
    assert totals(doubling) == ["12.0", "24.0"]


# A module of the user's own: of its lines, cells show one.
TRAINER = """
class Trainer:
    def fit(self, double, total, hold, folder, is_late):
        total = double(total)
        if is_late:
            hold(0, folder)
        self.total = total
        hold(0, folder)
"""


@pytest.mark.parametrize("who", ["r == 0", "True"], ids=["apart", "alike"])
def test_the_places_of_a_stop_are_told_apart_within_modules_too(
    doubling: jaxcluster.Cluster, tmp_path: Path, who: str
) -> None:
    (tmp_path / "modules").mkdir()
    (tmp_path / "modules" / f"trainer{len(who)}.py").write_text(TRAINER)
    doubling.run(
        f"import sys; sys.path.insert(0, {str(tmp_path / 'modules')!r})\n"
        f"from trainer{len(who)} import Trainer\ntrainer = Trainer()",
        show=False,
    )
    touched = tmp_path / "touched"
    touched.mkdir()
    with pytest.raises(CellInterrupted) as caught:
        stop_in(doubling, f"trainer.fit(double, total, hold, {str(touched)!r}, {who})", touched)
    told = f"{APART}steps on them." if who == "r == 0" else "was stopped on ranks 0, 1."
    assert str(caught.value).endswith(told)


# ------------------------------------------------------- what an error has left of different steps

FAILED = "The ranks have ended this cell in different places, so what it assigns"
ON_RANK_0 = "may be of different steps on them: total."


@pytest.fixture
def checking(doubling: jaxcluster.Cluster) -> jaxcluster.Cluster:
    doubling.run(
        "def check(value, is_bad=r == 0):\n"
        "    if is_bad: raise ValueError('bad')\n"
        "    return value\n"
        "async def check_later(value): return check(value)",
        show=False,
    )
    return doubling


@pytest.mark.promise("Interrupts")
@pytest.mark.parametrize(
    ("source", "told"),
    [
        ("total = check(double(total))", f" {ON_RANK_0}"),
        ("total = await check_later(double(total))", f" {ON_RANK_0}"),
        ("total = check(double(total)); check(0, r == 1)", f" {ON_RANK_0}"),
        ("total = check(double(total)); time.sleep(100)", f" {ON_RANK_0}"),
        ("for n in range(3): total = check(double(total), n == 2 and r == 0)",
         " may be of different steps on them: n, total."),
        ("x = double(x)\ntotal = check(double(total))", f" from line 2 on {ON_RANK_0}"),
        ("trainer.fit(double, total, check)", " may be of different steps on them."),
    ],
    ids=["calls", "awaits", "both fail", "others go on", "loop", "what is before", "module"],
)  # fmt: skip
def test_an_error_on_some_ranks_names_what_may_be_of_different_steps(
    checking: jaxcluster.Cluster, tmp_path: Path, source: str, told: str
) -> None:
    (tmp_path / "failing_trainer.py").write_text(
        "class Trainer:\n"
        "    def fit(self, double, total, check): self.total = check(double(total))\n"
    )
    checking.run(
        f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n"
        "from failing_trainer import Trainer\ntrainer = Trainer()",
        show=False,
    )
    with pytest.raises(CellFailed) as caught:
        checking.run(source, show=False)
    assert f"{FAILED}{told}" in str(caught.value).splitlines()
    if "trainer" not in source:
        assert len(set(totals(checking))) == 2


@pytest.mark.parametrize(
    "source",
    ["total = check(double(total), True)", "y = check(r)",
     "if r: 1 / 0\ntotal = double(total)"],
    ids=["alike", "launches nothing", "uneven"],
)  # fmt: skip
def test_an_error_after_which_no_name_can_differ_says_nothing_more(
    checking: jaxcluster.Cluster, source: str
) -> None:
    with pytest.raises(CellFailed) as caught:
        checking.run(source, show=False)
    assert FAILED not in str(caught.value)
    assert len(set(totals(checking))) == 1


@pytest.mark.parametrize(
    "source",
    ["total = double(total); hold(0, {0})", "total = double(total); await later(0, {0})",
     "hold(0, {0}) if r == 0 else [hold(0, {0})]"],
    ids=["calls", "awaits", "launches nothing"],
)  # fmt: skip
def test_a_stop_after_which_no_name_can_differ_says_nothing_more(
    doubling: jaxcluster.Cluster, tmp_path: Path, source: str
) -> None:
    with pytest.raises(CellInterrupted) as caught:
        stop_in(doubling, source.format(repr(str(tmp_path))), tmp_path)
    assert str(caught.value).endswith("was stopped on ranks 0, 1.")

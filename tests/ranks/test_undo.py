"""A cell that went wrong is taken back, on real ranks: what it assigned is what it was before it,
on all of them alike, and what could not be put back is named."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from helpers import DEVICES, Home, Notebook, until
from overhosts import send_signal

import jaxcluster
from jaxcluster.cluster import undoing
from jaxcluster.errors import (
    CellFailed,
    CellInterrupted,
    Divergence,
    JaxClusterError,
    RankDied,
    UsageError,
)
from jaxcluster.lockstep import actions
from jaxcluster.wire.ops.state import UndoLimit

N = 3

SETUP = """
import jax, jax.numpy as jnp, numpy as np, os, random, time, collections
from jax.sharding import NamedSharding, PartitionSpec as P
from jax.experimental import multihost_utils as mhu
mesh = jax.make_mesh((jax.device_count(),), ("i",))
split = NamedSharding(mesh, P("i"))
def spread(values, sharding=split):
    return jax.make_array_from_callback(values.shape, sharding, lambda index: values[index])
ones = spread(np.ones(jax.device_count()))
total = jax.jit(jnp.sum)
step = jax.jit(lambda p, g: jax.tree.map(lambda w: w + jnp.mean(g), p))
whole = NamedSharding(mesh, P())
r = jax.process_index()
float(total(ones))
"""


@pytest.fixture(scope="module", params=DEVICES)
def ranks(request: pytest.FixtureRequest, home: Home) -> Iterator[jaxcluster.Cluster]:
    with jaxcluster.start(
        N, devices_per_process=request.param, name=f"undo-{request.param}"
    ) as cluster:
        cluster.run(SETUP)
        yield cluster


SKIP = "\nif r != 1: total(ones).block_until_ready()\n"


def fails(cluster: jaxcluster.Cluster, source: str, **options: object) -> JaxClusterError:
    """The error of a cell that must fail; after it numbers are right on every rank."""
    with pytest.raises(JaxClusterError) as caught:
        cluster.run(source, show=False, **options)
    shows(cluster, "float(total(ones)) == jax.device_count()", "True")
    return caught.value


def shows(cluster: jaxcluster.Cluster, expression: str, expected: str) -> None:
    """Every rank prints ``expected``."""
    record = cluster.run(f"print({expression})", show=False)
    assert [record.stdout(rank) for rank in range(N)] == [f"{expected}\n"] * N


@pytest.mark.promise("Undo")
def test_a_training_that_diverges_goes_on_from_before_the_cell(ranks: jaxcluster.Cluster) -> None:
    ranks.run("params = {'w': spread(np.zeros(4), whole)}; state = {'step': 0}; losses = [9.0]")
    loop = (
        "for i in range(10):\n"
        "    if r == SKIPPER and i == 5: break\n"
        "    params = step(params, ones)\n"
        "    state['step'] += 1\n"
        "    losses.append(i)\n"
    )
    error = fails(ranks, loop.replace("SKIPPER", "1"))
    assert isinstance(error, Divergence)
    assert "This cell is undone. Restored losses, params, state; removed i." in str(error)
    shows(
        ranks, "params['w'].addressable_data(0), state, losses", "[0. 0. 0. 0.] {'step': 0} [9.0]"
    )
    ranks.run(loop.replace("SKIPPER", "None"))
    shows(ranks, "params['w'].addressable_data(0)[0], state, len(losses)", "10.0 {'step': 10} 11")


def test_mixed_programs_are_undone(ranks: jaxcluster.Cluster) -> None:
    ranks.run("x = 'old'; kept = x")
    error = fails(
        ranks,
        "x = float(jnp.max(ones)) if r == 1 else float(total(ones))\nx, kept = x + 1, x\nz = x",
    )
    assert "Don't trust what this cell printed." in str(error)
    assert "This cell is undone. Restored kept, x; removed z." in str(error)
    shows(ranks, "x, kept, x is kept, 'z' in globals()", "old old True False")


def test_a_cell_whose_time_is_up_is_undone_though_the_ranks_are_in_lockstep(
    ranks: jaxcluster.Cluster,
) -> None:
    ranks.run("x = 'old'; gone = 1")
    error = fails(ranks, "x = 'new'; y = 2; del gone\ntime.sleep(60)", timeout_s=1)
    assert isinstance(error, CellFailed)
    assert "This cell is undone. Restored gone, x; removed y." in str(error)
    shows(ranks, "x, gone, 'y' in globals()", "old 1 False")


def test_strict_mode_undoes_what_ran_before_the_line(ranks: jaxcluster.Cluster) -> None:
    ranks.run("x = 'old'")
    ranks.strict(True)
    try:
        error = fails(ranks, "x = 'new'\n(jnp.max if r == 1 else jnp.sum)(ones)")
    finally:
        ranks.strict(False)
    assert isinstance(error, Divergence)
    assert "This cell is undone. Restored x." in str(error)
    shows(ranks, "x", "old")


def test_whatever_binds_a_name_is_undone(ranks: jaxcluster.Cluster) -> None:
    ranks.run(
        "import math\nmath_module = math\ncount = 0\nclass Model: size = 1\n"
        "def f(): return 'old'\none = two = [1, 2]\nit = 'a name'\n"
        "def bind():\n    global count\n    count = 5\n"
    )
    error = fails(
        ranks,
        "import cmath as math\nfrom os import path as joined\nclass Model: size = 2\n"
        "def f(): return 'new'\nbind()\nexec('one = 3')\nglobals()['made'] = 1\n"
        "for k, it in {'a': 1}.items(): pass\n(w := 3)\nwith open(os.devnull) as file: pass\n"
        "try: 1/0\nexcept ZeroDivisionError as e: kept_error = e" + SKIP,
    )
    assert "Restored Model, count, f, it, math, one" in str(error)
    assert "removed file, joined, k, kept_error, made, w" in str(error)
    shows(
        ranks,
        "math is math_module, count, Model.size, f(), one is two, it, "
        "{'joined', 'k', 'w', 'file', 'kept_error', 'made'} & set(globals())",
        "True 0 1 old True a name set()",
    )


@pytest.mark.promise("Undo")
def test_what_is_changed_in_place_is_put_back(ranks: jaxcluster.Cluster) -> None:
    ranks.run(
        "state = {'step': 1, 'nested': {'log': [1]}}; other = state['nested']\n"
        "table = np.arange(6.0); view = table[2:4]\n"
        "queue = collections.deque([1], maxlen=3); counts = collections.Counter('aab')\n"
        "class Trainer:\n"
        "    total = 0\n"
        "    def __init__(self): self.history = []\n"
        "    def advance(self):\n"
        "        self.history.append(1); self.best = 1; Trainer.total += 1; hidden['n'] += 1\n"
        "trainer = Trainer(); hidden = {'n': 0}\n"
        "def counter():\n"
        "    n = 0\n"
        "    def count():\n"
        "        nonlocal n; n += 1; return n\n"
        "    return count\n"
        "count = counter()\nseen = {1}\nrng = np.random.default_rng(1)\n"
        "before = rng.bit_generator.state['state']['state']"
    )
    error = fails(
        ranks,
        "state['step'] += 1; state['nested']['log'].append(2); other['new'] = 1\n"
        "table += 1; view[0] = -1\nqueue.extend([5, 6, 7]); counts.update('abc')\n"
        "trainer.advance(); count(); seen.add(2); rng.normal()" + SKIP,
    )
    assert "Perhaps" not in str(error)
    assert "not put back" not in str(error)
    shows(
        ranks,
        "state, other is state['nested'], table, view, view.base is table, queue, dict(counts), "
        "vars(trainer), Trainer.total, hidden, count(), seen, "
        "rng.bit_generator.state['state']['state'] == before",
        "{'step': 1, 'nested': {'log': [1]}} True [0. 1. 2. 3. 4. 5.] [2. 3.] True "
        "deque([1], maxlen=3) {'a': 2, 'b': 1} {'history': []} 0 {'n': 0} 1 {1} True",
    )


def test_what_is_reached_by_other_ways_is_put_back(ranks: jaxcluster.Cluster) -> None:
    ranks.run(
        "import contextlib, contextvars, decimal, enum\n"
        "class Base:\n"
        "    log = []\n"
        "    def act(self): Base.log.append(1)\n"
        "class Derived(Base): pass\nderived = Derived()\n"
        "entered = []\n"
        "@contextlib.contextmanager\n"
        "def manage(): entered.append(1); yield\n"
        "traced = []\n"
        "@jax.value_and_grad\n"
        "def loss(x): traced.append(1); return x * x\n"
        "history = []; add = history.append\n"
        "class Mode(enum.Enum): FAST = [1]\n"
        "context = decimal.Context(prec=7); variable = contextvars.ContextVar('variable')\n"
        "variable.set('old'); precision = decimal.getcontext().prec\n"
        "old_mesh = jax.sharding.get_mesh(); np.seterr(all='warn')"
    )
    error = fails(
        ranks,
        "derived.act()\nwith manage(): pass\nloss(1.0); add(1); Mode.FAST.value.append(2)\n"
        "context.prec = 5; decimal.getcontext().prec = 3; variable.set('new')\n"
        "jax.set_mesh(mesh); np.seterr(all='raise')" + SKIP,
    )
    assert ". Perhaps changed in place, and " in str(error)
    assert str(error).endswith("and not put back: variable (a ContextVar).")
    shows(
        ranks,
        "Base.log, entered, traced, history, Mode.FAST.value, context.prec, "
        "decimal.getcontext().prec == precision, variable.get(), "
        "jax.sharding.get_mesh() == old_mesh, np.geterr()['over']",
        "[] [] [] [] [1] 7 True old True warn",
    )


def test_what_an_undone_cell_has_traced_is_traced_again(ranks: jaxcluster.Cluster) -> None:
    """Else a function keeps the numbers that the cell had set, on the ranks that called it."""
    pytest.importorskip("equinox")
    ranks.run(
        "import equinox as eqx\nlr = 0.5\n"
        "grow = lambda x: x * lr\ninner = jax.jit(grow)\n"
        "@jax.jit\ndef train(x): return jnp.sum(inner(x)) * lr\n"
        "filtered = eqx.filter_jit(lambda x: jnp.sum(x) * lr)\n"
        "def make():\n    rate = [0.5]\n    return rate, jax.jit(lambda x: jnp.sum(x) * rate[0])\n"
        "rate, closed = make(); known = jax.jit(lambda x: jnp.sum(x) * lr); float(known(ones))\n"
        "n = float(total(ones))"
    )
    fails(
        ranks,
        "lr = rate[0] = 100.0\n"
        "if r != 1: print(train(ones), filtered(ones), closed(ones), inner(2.0))\n"
        "else: print(inner(2.0))" + SKIP,
    )
    shows(
        ranks,
        "float(train(ones)) / n, float(filtered(ones)) / n, float(closed(ones)) / n, "
        "float(inner(2.0)), float(known(ones)) / n",
        "0.25 0.5 0.5 1.0 0.5",
    )


def test_a_client_that_has_run_code_since_keeps_a_cell_from_being_undone(
    ranks: jaxcluster.Cluster,
) -> None:
    """Else what ``%%px`` has done would be taken back with it."""
    ranks.run("x = 1")
    ranks.run("x = 2")
    try:
        # Not ``block``: a new client may miss the end of the output, and would wait for it.
        ranks.client[:].execute("x = y = 3", block=False).get(timeout=60)
    finally:
        ranks.world.close_client()
    with pytest.raises(UsageError, match="another client's code, has run on it since"):
        ranks.undo()
    shows(ranks, "x, y", "3 3")


@pytest.mark.promise("Undo")
def test_what_can_not_be_put_back_is_named(ranks: jaxcluster.Cluster) -> None:
    ranks.run(
        "items = iter(range(9)); big = np.zeros(10**5); short = np.zeros(3)\n"
        "give = jax.jit(lambda a: a + 1, donate_argnums=0); old = step(ones, ones)\n"
        "alias = {'w': old}; untouched = 1"
    )
    error = fails(
        ranks,
        "next(items); big[0] = 1; short.resize(4, refcheck=False)\nold = give(old)" + SKIP,
    )
    assert "Lost, since donated or deleted: alias, old." in str(error)
    assert "Changed in place and not put back: short." in str(error)
    assert (
        "Perhaps changed in place, and not put back: big (too large to be watched), items "
        "(a range_iterator)." in str(error)
    )
    shows(ranks, "'old' in globals(), 'alias' in globals(), untouched", "False False 1")


def test_a_name_that_one_rank_has_lost_is_lost_on_all(ranks: jaxcluster.Cluster) -> None:
    ranks.run("mine = spread(np.ones(jax.device_count()))")
    error = fails(ranks, "if r == 1: mine.delete()" + SKIP)
    assert "Lost, since donated or deleted: mine." in str(error)
    number = ranks.last.execution_count - 1  # before the check of ``fails``
    with pytest.raises(CellFailed, match=rf"'mine' was lost in cell \[{number}\] \(donated"):
        ranks.run("mine", show=False)
    shows(ranks, "'mine' in globals()", "False")


def test_random_states_settings_and_the_environment_are_undone(ranks: jaxcluster.Cluster) -> None:
    ranks.run("random.seed(1); np.random.seed(1); os.environ['OLD'] = '1'; here = os.getcwd()")
    fails(
        ranks,
        "random.random(); np.random.normal(size=r); jax.config.update('jax_enable_x64', True)\n"
        "os.environ['NEW'] = '1'; del os.environ['OLD']; os.chdir('/')" + SKIP,
    )
    shows(
        ranks,
        "round(random.random(), 6), round(np.random.rand(), 6), jax.config.jax_enable_x64, "
        "os.environ['OLD'], os.environ.get('NEW'), os.getcwd() == here",
        "0.134364 0.417022 False 1 None True",
    )


def test_contexts_that_a_cell_has_entered_or_left_are_undone(ranks: jaxcluster.Cluster) -> None:
    """They are of the main thread, and ``c`` alone does not put them back."""
    state = (
        "jnp.arange(2.0).dtype, jax.config.jax_numpy_rank_promotion, "
        "sys.modules['jax._src.mesh'].thread_resources.env.physical_mesh.axis_names"
    )
    ranks.run("import sys; p = jax.numpy_rank_promotion('raise'); p.__enter__()", show=False)
    fails(
        ranks,
        "c = jax.enable_x64(True); c.__enter__(); p.__exit__(None, None, None)\n"
        "jax.make_mesh((jax.device_count(),), ('mine',)).__enter__()" + SKIP,
    )
    shows(ranks, state, "float32 raise ()")
    shows(ranks, "p.__exit__(None, None, None), jax.config.jax_numpy_rank_promotion", "None allow")


def test_results_of_the_cell_are_taken_from_out(ranks: jaxcluster.Cluster) -> None:
    ranks.run("'an older result'", execution_count=700, show=False)
    fails(ranks, "if r != 1: s = total(ones)\ns if r != 1 else 0", execution_count=701)
    shows(
        ranks,
        "_, 701 in Out, '_701' in globals(), Out[700]",
        "an older result False False an older result",
    )


def test_an_error_an_ok_cell_and_a_stopped_one_are_undone_on_request_alone(
    ranks: jaxcluster.Cluster,
) -> None:
    ranks.run("x = 1")
    error = fails(ranks, "x = 2\nraise ValueError('on all')")
    assert "undone" not in str(error)
    with pytest.raises(UsageError, match=r"another cell|undone"):
        # The check of ``fails`` was a cell too.
        ranks.undo()
        ranks.undo()
    with pytest.raises(CellFailed):
        ranks.run("x = 3\nraise ValueError('on all')", show=False)
    assert ranks.undo().endswith("is undone. Restored x.")
    with pytest.raises(UsageError, match="it is already undone"):
        ranks.undo()
    shows(ranks, "x", "2")
    ranks.run("x = 4")
    ranks.undo()
    shows(ranks, "x", "2")
    cell = ranks.submit("x = 5\ntime.sleep(60)")
    until(lambda: all(s.line == 2 for s in ranks.status()), "the cell sleeps")
    with pytest.raises(UsageError, match="has not ended"):
        ranks.undo()
    cell.stop()
    with pytest.raises(CellInterrupted) as caught:
        cell.wait()
    assert "undone" not in str(caught.value)
    ranks.undo()
    shows(ranks, "x", "2")


def test_a_cell_that_changed_nothing(ranks: jaxcluster.Cluster) -> None:
    ranks.run("pass")
    assert ranks.undo().endswith("is undone: it had changed no variable.")


def test_a_cell_of_some_ranks_is_undone_on_those(ranks: jaxcluster.Cluster) -> None:
    ranks.run("x = r")
    ranks.run("x = 'new'", ranks=[0, 2])
    ranks.undo()
    shows(ranks, "x == r", "True")


def test_pushed_names_stay(ranks: jaxcluster.Cluster) -> None:
    ranks.run("x = 1; y = 1")
    ranks.run("x = 2; y = 2")
    ranks.push({"x": 3, "z": 3})
    assert ranks.undo().endswith("is undone. Restored y.")
    shows(ranks, "x, y, z", "3 1 3")


def test_another_notebooks_cell_since_refuses_it(ranks: jaxcluster.Cluster) -> None:
    ranks.run("x = 1")
    other = jaxcluster.cluster.connect(ranks.record)
    try:
        with pytest.raises(UsageError, match="No cell of this notebook"):
            other.undo()
        other.run("y = 1", ranks=[1], show=False)
    finally:
        other.close()
    with pytest.raises(UsageError, match="another cell has been sent since"):
        ranks.undo()
    shows(ranks, "x", "1")


def test_a_cell_that_waits_behind_a_cell_that_is_undone_is_not_run(
    ranks: jaxcluster.Cluster,
) -> None:
    """It was written for what that one did."""
    ranks.run("x = 1\ny = 0")
    first = ranks.submit("x = 2\ntime.sleep(60)", timeout_s=1.5)
    second = ranks.submit("y = x")
    with pytest.raises(CellFailed) as caught:
        first.wait()
    assert "This cell is undone. Restored x." in str(caught.value)
    with pytest.raises(CellFailed) as caught:
        second.wait()
    number = first.record.execution_count
    assert f"was not run: cell [{number}], which it waited for, did not complete." in (
        str(caught.value)
    )
    shows(ranks, "x, y", "1 0")


def test_a_background_cell_that_diverges_is_undone_without_anybody_waiting_for_it(
    ranks: jaxcluster.Cluster,
) -> None:
    ranks.run("x = 1")
    ended = threading.Event()
    cell = ranks.submit("x = 2" + SKIP)
    cell.run_in_background(lambda record: ended.set())
    assert ended.wait(60)
    shows(ranks, "x", "1")
    assert "This cell is undone. Restored x." in cell.recovered


def test_what_would_hold_too_much_is_let_go(ranks: jaxcluster.Cluster) -> None:
    try:
        assert ranks.limit_undo(1 << 20) == 1 << 20
        ranks.run(
            "big = spread(np.ones(jax.device_count() << 20)); np.asarray(big.addressable_data(0))"
        )
        ranks.run("small = 1")
        ranks.undo()
        ranks.run("big = None\nsmall = 1\ntime.sleep(0.5)")
        until(
            lambda: _refused(
                ranks, "more than the 1 MiB that undo may keep: %jaxcluster undo SIZE"
            ),
            "what was before is let go",
        )
        error = fails(ranks, "x = 'new'" + SKIP)
        assert "This cell is undone. Restored x" in str(error)
        assert ranks.limit_undo(0) == 0
        ranks.run("x = 5")
        assert _refused(ranks, "undo is switched off: %jaxcluster undo on")
        error = fails(ranks, "x = 6" + SKIP)
        assert (
            "Don't trust what this cell assigned: x (not undone: undo is switched off: %jaxcluster "
            "undo on)." in str(error)
        )
    finally:
        assert ranks.limit_undo(None) > 1 << 20


def _refused(cluster: jaxcluster.Cluster, why: str) -> bool:
    with pytest.raises(UsageError) as caught:
        cluster.undo()
    return why in str(caught.value)


def test_one_rank_that_had_to_let_go_keeps_all_from_undoing(ranks: jaxcluster.Cluster) -> None:
    ranks.run("x = 1; held = 0")
    ranks.world.ask([1], UndoLimit(1 << 20))
    try:
        ranks.run("if r == 1: held = np.ones(1 << 20)")
        ranks.run("x = 2; held = 0; time.sleep(2.5)")  # looks are far apart on a busy machine
        until(lambda: _refused(ranks, "rank 1: the values before it hold 8 MiB"), "let go")
        shows(ranks, "x", "2")
    finally:
        ranks.limit_undo(None)


def test_a_death_undoes_the_cell_on_the_others_and_on_the_new_rank(
    start: Callable[..., jaxcluster.Cluster],
) -> None:
    cluster = start(N, devices_per_process=1, name="undo-death")
    cluster.run(SETUP)
    cluster.run("x = 'old'; state = {'step': 0}; params = spread(np.zeros(4), whole)")
    cell = cluster.submit(
        "x = 'new'; y = 1; state['step'] += 1\nfor i in range(3): params = step(params, ones)\n"
        "params.block_until_ready(); time.sleep(60)"
    )
    until(lambda: all(s.line == 3 and s.cell for s in cluster.status()), "all sleep")
    send_signal(cluster, 1)
    with pytest.raises(RankDied) as caught:
        cell.wait()
    assert "This cell is undone. Restored params, state, x" in str(caught.value)
    shows(
        cluster,
        "x, state, params.addressable_data(0), 'y' in globals(), 'i' in globals()",
        "old {'step': 0} [0. 0. 0. 0.] False False",
    )


def test_new_processes_get_what_was_before_the_cell(
    start: Callable[..., jaxcluster.Cluster],
) -> None:
    """All ranks hang in different collectives, in the cell whose values are pending."""
    cluster = start(N, devices_per_process=2, name="undo-restored")
    cluster.run(SETUP)
    cluster.run("params = spread(np.zeros(4), whole); state = {'step': 0}")
    # Known to all ranks: a program that is new to them they don't launch unless all do.
    cluster.run("step(params + total(ones), ones); mhu.process_allgather(np.ones(1000))")
    cluster.run("params = spread(np.zeros(4), whole)")
    pids = list(cluster.record.pids)
    error = fails(
        cluster,
        "params = step(params, ones); state['step'] += 1\n"
        "if r == 1: params = step(params + total(ones), ones); print(params.addressable_data(0))\n"
        "else: print(mhu.process_allgather(np.ones(1000)).sum())",
    )
    assert set(pids).isdisjoint(cluster.record.pids)
    assert "This cell is undone. Restored params, state." in str(error)
    shows(cluster, "params.addressable_data(0), state", "[0. 0. 0. 0.] {'step': 0}")
    cluster.run("x = 1")
    cluster.restart()
    with pytest.raises(UsageError, match="the ranks' processes are newer than it"):
        cluster.undo()
    shows(cluster, "x", "1")


def test_a_rank_that_ends_the_cell_after_it_was_undone_is_undone_again(
    ranks: jaxcluster.Cluster, tmp_path: Path
) -> None:
    """One that did not answer the interrupt, and comes back later."""
    flag = tmp_path / "go"
    ranks.run("x = 1")
    cell = ranks.submit(
        "x = 2\n"
        "try: time.sleep(60)\n"
        "except KeyboardInterrupt:\n"
        f"    while not os.path.exists({str(flag)!r}): time.sleep(0.05)\n"
        "    x = late = 3"
    )
    until(lambda: all(s.line == 2 for s in ranks.status()), "all sleep")
    ranks.interrupt()
    until(lambda: all(s.line == 4 for s in ranks.status()), "all wait on")
    asked = actions.Undo(tuple(range(N)), False)
    undone = undoing.undo(ranks.world, cell.record.seq, 1, asked)
    assert undone == undoing.Undone(back=("x",))
    flag.touch()
    cell.wait()
    shows(ranks, "x, 'late' in globals()", "1 False")


def test_what_ipythons_callbacks_have_changed_is_taken_back_too(ranks: jaxcluster.Cluster) -> None:
    ranks.run(
        "seen = {'cells': 0}\ndef note(*_): seen['cells'] += 1\n"
        "get_ipython().events.register('post_run_cell', note)"
    )
    error = fails(ranks, "x = 5\nget_ipython().events.unregister('post_run_cell', note)" + SKIP)
    assert "This cell is undone." in str(error)
    assert "IPython's callbacks" in str(error)
    shows(ranks, "seen['cells']", "2")
    ranks.run("x = 6", show=False)
    assert "seen" in ranks.undo()
    shows(ranks, "seen['cells']", "3")
    ranks.run("get_ipython().events.unregister('post_run_cell', note)", show=False)


def test_what_a_handler_of_a_signal_has_changed_is_taken_back_too(
    ranks: jaxcluster.Cluster,
) -> None:
    ranks.run(
        "import signal\nhits = []\n_ = signal.signal(signal.SIGUSR1, lambda *_: hits.append(1))"
    )
    error = fails(ranks, "signal.raise_signal(signal.SIGUSR1)" + SKIP)
    assert "Restored hits." in str(error)
    shows(ranks, "hits", "[]")
    ranks.run("_ = signal.signal(signal.SIGUSR1, signal.SIG_DFL)", show=False)


@pytest.mark.parametrize(
    "source",
    [
        "def turns():\n    try: yield 1\n    finally: total(ones)\n"
        "alone = turns(); next(alone)\nif r != 1: alone.close()",
        "class Last:\n    def __del__(self): total(ones)\nalone = Last()\nif r == 1: del alone",
    ],
)
def test_a_finalizer_of_what_is_undone_launches_nothing(
    ranks: jaxcluster.Cluster, source: str
) -> None:
    """Other ranks may have none. It waited for them, and the next cell met its launch."""
    error = fails(ranks, source)
    assert "This cell is undone. Removed " in str(error)
    for _ in range(2):
        record = ranks.run("print(float(total(ones)))", show=False)
        assert len({record.stdout(rank) for rank in record.ranks}) == 1


def test_in_a_notebook(open_notebook: Callable[..., Notebook]) -> None:
    notebook = open_notebook()
    notebook.ok("%jaxcluster start -n 2 --name undo-notebook")
    notebook.ok("%%spmd\nx = 1")
    notebook.ok("%%spmd\nx = 2")
    assert "is undone. Restored x." in notebook.ok("%jaxcluster undo").text
    assert "it is already undone" in notebook.run("%jaxcluster undo").text
    assert (
        "%jaxcluster undo keeps at most 2.0 GiB of a device's memory"
        in notebook.ok("%jaxcluster undo 2GiB").text
    )
    assert "not undone" in notebook.ok("%jaxcluster undo off").text
    assert "'much' is not a size" in notebook.run("%jaxcluster undo much").text
    assert "keeps at most" in notebook.ok("%jaxcluster undo on").text

"""What a call would cost, from the compiled program: it launches nothing."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from helpers import Notebook

import jaxcluster
from jaxcluster.errors import CellFailed, UsageError
from jaxcluster.views import cost as view

pytestmark = pytest.mark.any_jax

SETUP = """auto = (jax.sharding.AxisType.Auto,) * 2
grid = jax.make_mesh((4, 2), ('data', 'model'), axis_types=auto)
def put(shape, *spec):
    return jax.device_put(np.ones(shape, np.float32), NamedSharding(grid, P(*spec)))
w, batch = {'w': put((64, 64))}, put((16, 64), 'data', None)
def step(params, batch, scale=1.0):
    loss = lambda p: scale * jnp.mean(jnp.tanh(batch @ p['w']) ** 2)
    return jax.grad(loss)(params)
jitted = jax.jit(step)
import dataclasses, functools
@jax.tree_util.register_dataclass
@dataclasses.dataclass
class Model:
    w: dict
    def __call__(self, batch):
        return step(self.w, batch)
class Trainer(Model):
    def step(self, batch):
        return step(self.w, batch)
jax.tree_util.register_dataclass(Trainer)
"""
GRADIENT = 2 * 64 * 64 * 4 * 3 // 4


@pytest.fixture(scope="module")
def ready(cluster: jaxcluster.Cluster) -> jaxcluster.Cluster:
    cluster.run(SETUP, show=False, execution_count=7)
    return cluster


def launches(cluster: jaxcluster.Cluster) -> object:
    return {rank: one.state.launches for rank, one in cluster.reports().items()}


@pytest.mark.parametrize(
    "call",
    [
        "jitted(w, batch)",
        "step(w, batch)",
        "step(w, batch=batch, scale=0.5)",
        "jax.jit(step)(w, batch)",
        "jitted(*[w, batch])",
        "(lambda *both: step(*both))(w, batch)",
        "functools.partial(step, w)(batch)",
        "Trainer(w).step(batch)",
        "Model(w)(batch)",
    ],
)
def test_a_call_is_counted_with_its_arguments_shardings(
    ready: jaxcluster.Cluster, call: str
) -> None:
    before = launches(ready)
    found = ready.cost(call)
    assert launches(ready) == before
    assert found.by_axis == {"data": GRADIENT}
    assert found.spanning == {"data"}
    assert dict(found.mesh) == {"data": 4, "model": 2}
    assert {one.place for one in found.collectives} == {"cell [7] line 7"}
    assert sorted(found.compile_s) == [0, 1, 2, 3]
    assert found.notes == ()
    assert found.memory["arguments"] == 64 * 64 * 4 + 4 * 64 * 4


def test_arguments_are_not_computed(ready: jaxcluster.Cluster) -> None:
    before = launches(ready)
    found = ready.cost("jitted(jax.tree.map(lambda v: v * 2, w), batch)")
    assert launches(ready) == before
    assert found.by_axis == {"data": GRADIENT}  # so much is not known of w's sharding
    (note,) = found.notes
    assert "was not computed: its sharding is not known" in note
    assert launches(ready) == before
    ready.run("assert float(jnp.sum(batch)) == 16 * 64", show=False)


def test_what_is_replicated_is_suggested(ready: jaxcluster.Cluster) -> None:
    assert "Replicated over 'data' and 'model': w, 16.0 KiB" in view.text(
        ready.cost("jitted(w, batch)")
    )
    assert "Replicated over 'data' and 'model': what the function holds, 16.0 KiB" in view.text(
        ready.cost("functools.partial(step, w)(batch)")
    )


def test_the_program_is_compiled_once(ready: jaxcluster.Cluster) -> None:
    """What was compiled for its cost need not be compiled to run."""
    ready.run(
        "fresh = jax.jit(lambda p, b: step(p, b, scale=3.0))\ncompiled = []\n"
        "import jax.monitoring\n"
        "def hear(name, took, heard=compiled, **_):\n"  # it outlives its name
        "    if 'backend_compile' in name:\n"
        "        heard.append(name)\n"
        "jax.monitoring.register_event_duration_secs_listener(hear)",
        show=False,
    )
    ready.cost("fresh(w, batch)")
    ready.run(
        "assert compiled, 'nothing was heard'\ncompiled.clear()\n"
        "_ = fresh(w, batch)\nassert not compiled, compiled\n"
        # Else a later test's debugger steps into it.
        "jax.monitoring.unregister_event_duration_listener(hear)",
        show=False,
    )


def test_lines_are_those_of_the_present_source(ready: jaxcluster.Cluster) -> None:
    """The same program again, two lines below: it is not loaded with the lines that it had."""
    body = "def moved(x):\n{}    return jnp.sum(x)\nmoved = jax.jit(moved)"
    for blank, line in (("", 2), ("\n\n", 4)):
        ready.run(body.format(blank), show=False, execution_count=9)
        (place, *_) = {one.place for one in ready.cost("moved(batch)").collectives}
        assert place == f"cell [9] line {line}"


def test_a_rank_with_another_program_is_named(ready: jaxcluster.Cluster) -> None:
    found = ready.cost("step(w, batch, scale=1.0 + (rank == 2))")
    assert found.differs == (2,)
    assert "Rank 2 would run another program than rank 0" in view.text(found)


def test_nothing_of_it_stays(ready: jaxcluster.Cluster) -> None:
    ready.cost("jitted(w, batch)")
    ready.run(
        "left = [name for name in globals() if 'jaxcluster' in name]\nassert not left, left\n"
        "assert not get_ipython().ast_transformers\nassert 1 + 1 == 2",
        show=False,
    )


def test_an_error_is_the_users_own(ready: jaxcluster.Cluster) -> None:
    with pytest.raises(CellFailed, match="NameError on ranks 0-3: name 'nowhere' is not defined"):
        ready.cost("jitted(nowhere, batch)")
    with pytest.raises(CellFailed, match="dot_general requires contracting dimensions"):
        ready.cost("jitted(w, batch.T)")
    with pytest.raises(UsageError, match="'jitted' is not a call of a function"):
        ready.cost("jitted")
    assert ready.cost("jitted(w, batch)").by_axis == {"data": GRADIENT}


@pytest.mark.one_machine("what a notebook shows is the same")
def test_a_notebook_shows_a_picture(open_notebook: Callable[..., Notebook]) -> None:
    notebook = open_notebook()
    notebook.ok("%jaxcluster start -n 2 --platform cpu")
    notebook.ok(
        "%%spmd\nimport jax, numpy as np\nfrom jax.sharding import NamedSharding, PartitionSpec\n"
        "ranks = jax.make_mesh((2,), ('ranks',))\n"
        "x = jax.device_put(np.ones(8), NamedSharding(ranks, PartitionSpec('ranks')))"
    )
    cell = notebook.ok("%jaxcluster cost jax.jit(lambda v: v.sum())(x)")
    (bundle,) = cell.bundles
    assert "all-reduce  ranks" in bundle["text/plain"]
    assert "data:image/svg+xml;base64," in bundle["text/html"]
    assert cell.stdout == ""
    refused = notebook.run("%jaxcluster cost x")
    assert "'x' is not a call of a function." in refused.error
    notebook.ok("%jaxcluster stop")

"""A launch is counted once where it was made, and not where it was not, whatever raises."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from helpers import Home

import jaxcluster
from jaxcluster.errors import CellFailed, Divergence, JaxClusterError

SETUP = """
import contextlib, gc, io, signal, sys, threading, time, warnings
import jax, jax.numpy as jnp, numpy as np
from jax.experimental import io_callback, multihost_utils, serialize_executable
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
from jaxcluster.engine.app import JaxEngine
r = jax.process_index()
devices = jax.devices()
mesh = jax.make_mesh((jax.device_count(),), ("i",), axis_types=(jax.sharding.AxisType.Auto,))
grid = Mesh(np.array(devices).reshape(2, -1), ("a", "b"))
split, whole = NamedSharding(mesh, P("i")), NamedSharding(mesh, P())
def spread(values):
    return jax.make_array_from_callback(values.shape, split, lambda index: values[index])
x = spread(np.arange(8.0, dtype=np.float32))
total = jax.jit(jnp.sum)
plus = jax.jit(lambda a: a + 1)
for _ in range(2):
    jax.block_until_ready([total(x), plus(x)])

from jax._src.interpreters import pxla
xla = type(total.lower(x).compile()._executable.xla_executable)
journal = JaxEngine.instance().rank.journal
def counted():
    return sum(count for count, _ in journal.launches().values())
"""


@pytest.fixture(scope="module", params=[1, 2], ids=["D=1", "D=2"])
def ranks(request: pytest.FixtureRequest, home: Home) -> Iterator[jaxcluster.Cluster]:
    name = f"launches-{request.param}"
    with jaxcluster.start(2, devices_per_process=request.param, name=name) as cluster:
        cluster.run(SETUP)
        yield cluster


def check_whole(cluster: jaxcluster.Cluster) -> None:
    record = cluster.run("print(float(total(x)))", show=False, timeout_s=60)
    assert [record.stdout(rank) for rank in range(2)] == ["28.0\n"] * 2


# ------------------------------------------------------------------------ counted and not launched

REFUSED = {
    "a deleted input, ahead of time": (
        "g = total.lower(x).compile(); z = plus(x)",
        "z.delete()",
        "g(z)",
    ),
    "a deleted input of the first call": (
        "z = plus(x)",
        "z.delete()",
        "jax.jit(lambda a: jnp.sum(a) * 2)(z)",
    ),
    "a deleted input of a later call": ("z = plus(x)", "z.delete()", "total(z)"),
    "a donated input": (
        "give = jax.jit(lambda a: a * 2, donate_argnums=0); z = plus(x); give(z)",
        "pass",
        "total(z if r == 0 else x)",
    ),
    "another shape, ahead of time": (
        "g = total.lower(x).compile(); z = x",
        "z = spread(np.zeros(16, np.float32))",
        "g(z)",
    ),
    "another sharding, ahead of time": (
        "g = total.lower(x).compile(); z = x",
        "z = np.zeros(8, np.int8)",
        "g(z)",
    ),
    "an argument that is no array": ("z = x", "z = object()", "total(z)"),
    "an error while it is traced": ("z = x", "z = None", "jax.jit(lambda a: a + 1)(z)"),
    "no execution is allowed": (
        "allowed = contextlib.nullcontext()",
        "from jax._src import config; allowed = config.no_execution(True)",
        "with allowed: jax.jit(lambda a: jnp.sum(a) * 5)(x)",
    ),
}


def skip_what_kills(cluster: jaxcluster.Cluster, launch: str) -> None:
    """jaxlib 0.10.2 ends with a segmentation fault, also without jaxcluster."""
    old = cluster.run("print(jax.__version__)", show=False).stdout().startswith("0.10.")
    if "r == 0 else" in launch and old and len(cluster.record.devices[0].devices) > 1:
        pytest.skip("a donated input kills the process")


@pytest.mark.parametrize("case", REFUSED.values(), ids=REFUSED)
def test_a_launch_that_was_not_made_is_not_counted(
    ranks: jaxcluster.Cluster, case: tuple[str, str, str]
) -> None:
    """On rank 0 it fails and the error is swallowed: the cell is one that skips a collective."""
    prepare, spoil, launch = case
    skip_what_kills(ranks, launch)
    ranks.run(f"{prepare}\nif r == 0: {spoil}", show=False)
    source = f"try:\n    {launch}\nexcept Exception as error: caught = error\nelse: caught = None"
    with pytest.raises(Divergence) as error:
        ranks.run(source, show=False)
    assert error.value.report.culprits == (0,)
    check_whole(ranks)


@pytest.mark.parametrize("case", REFUSED.values(), ids=REFUSED)
def test_a_launch_that_all_ranks_fail_to_make_is_counted_by_none(
    ranks: jaxcluster.Cluster, case: tuple[str, str, str]
) -> None:
    prepare, spoil, launch = case
    skip_what_kills(ranks, launch)
    source = (
        f"{prepare}\n{spoil}\nbefore = counted()\n"
        f"try:\n    {launch.replace(' if r == 0 else x', '')}\n"
        "except Exception as error: print(counted() - before)\n"
        "else: print('nothing was raised')"
    )
    record = ranks.run(source, show=False)
    assert [record.stdout(rank) for rank in range(2)] == ["0\n"] * 2
    check_whole(ranks)


REFUSING = """
class Refusing:
    def __init__(self, executable, error):
        self.executable, self.error = executable, error
    def execute_sharded(self, *args, **kwargs):
        raise self.error
g = total.lower(x).compile()
counting = g._executable.unsafe_call.xla_executable
true = counting.executable
"""
REFUSED_ON_0 = """
if r == 0: counting.executable = Refusing(true, ValueError("{}"))
try: y = g(x)
except ValueError: pass
finally: counting.executable = true
"""


def test_what_xla_refuses_is_taken_back(ranks: jaxcluster.Cluster) -> None:
    """As it refuses a buffer that is donated twice (which with two devices kills jaxlib 0.10.2)."""
    with pytest.raises(Divergence) as caught:
        ranks.run(REFUSING + REFUSED_ON_0.format("INVALID_ARGUMENT: donated twice"), show=False)
    assert caught.value.report.culprits == (0,)
    assert "finished the cell without it" in str(caught.value)
    check_whole(ranks)


@pytest.mark.parametrize("d", [1, 2])
def test_what_xla_broke_off_is_never_taken_for_launched(
    start: Callable[..., jaxcluster.Cluster], d: int
) -> None:
    cluster = start(devices_per_process=d)
    cluster.run(SETUP)
    with pytest.raises(JaxClusterError) as caught:
        cluster.run(REFUSING + REFUSED_ON_0.format("INTERNAL: no idea"), show=False)
    assert "jit(sum), broken off by ValueError" in str(caught.value)
    assert "where a program is broken off the others wait for it" in str(caught.value)
    check_whole(cluster)


CALLING = """
def call(value):
    if r == 0: raise ValueError("no such shard")
    return value
"""


@pytest.mark.parametrize("d", [1, 2])
@pytest.mark.parametrize(
    "program",
    [
        "lambda a: a + jax.pure_callback(call, a, a, vmap_method='sequential')",  # gathers
        "jax.shard_map(lambda a: jax.pure_callback(call, a, a), mesh=mesh, in_specs=P('i'),"
        " out_specs=P('i'))",
    ],
    ids=["collectives", "none"],
)
def test_a_callbacks_error_on_one_rank_is_told_and_leaves_no_wrong_number(
    start: Callable[..., jaxcluster.Cluster], d: int, program: str
) -> None:
    """That rank's devices leave the program halfway; the others wait, or are given less."""
    cluster = start(devices_per_process=d)
    cluster.run(SETUP)
    with pytest.raises(JaxClusterError) as caught:
        cluster.run(
            f"{CALLING}f = jax.jit({program})\n"
            "try: s = float(total(f(x)))\nexcept Exception as error: pass",
            show=False,
        )
    assert "broken off by ValueError in a Python function that it calls" in str(caught.value)
    check_whole(cluster)


def test_a_callbacks_error_on_all_ranks_alike_is_an_ordinary_error(
    ranks: jaxcluster.Cluster,
) -> None:
    source = CALLING.replace("if r == 0: ", "") + (
        "f = jax.jit(jax.shard_map(lambda a: jax.pure_callback(call, a, a), mesh=mesh,\n"
        "    in_specs=P('i'), out_specs=P('i')))\n"
        "jax.block_until_ready(f(x))"
    )
    pids = list(ranks.record.pids)
    with pytest.raises(CellFailed, match="no such shard") as caught:
        ranks.run(source, show=False)
    assert "step" not in caught.value.hint
    assert ranks.record.pids == pids
    check_whole(ranks)


def test_a_launch_with_a_deleted_input_in_strict_mode(ranks: jaxcluster.Cluster) -> None:
    """Nothing is announced that will not be launched; afterwards announcements meet again."""
    ranks.run("g = total.lower(x).compile(); z = plus(x); z.delete()", show=False)
    ranks.strict(True)
    try:
        source = (
            "for _ in range(3):\n"
            "    try: g(z)\n"
            "    except RuntimeError: pass\n"
            "    y = float(g(x))\n"
            "print(y)"
        )
        record = ranks.run(source, show=False, timeout_s=60)
        assert [record.stdout(rank) for rank in range(2)] == ["28.0\n"] * 2
    finally:
        ranks.strict(False)
    check_whole(ranks)

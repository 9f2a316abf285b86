"""A wrong shape on one rank is found before it meets the others', or named after a death by it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import jaxcluster
from jaxcluster.errors import Divergence

pytestmark = pytest.mark.any_jax

ROWS = """
from jax.experimental import multihost_utils
rows = np.ones((5 if rank == WRONG else 4, 3))
out = multihost_utils.process_allgather(rows)
"""
CAUGHT = """
total = jax.jit(lambda a, n: a.sum() * n, static_argnums=1)
try: s = float(total(x, 7 if rank == WRONG else 5))
except Exception as error: pass
"""


def in_lockstep(cluster: jaxcluster.Cluster) -> bool:
    record = cluster.run("print(kept, float(jnp.sum(x)))", show=False)
    return {record.stdout(rank) for rank in record.ranks} == {"0.5 496.0\n"}


REFUSED_BY_BOTH = """
from jaxcluster.engine.app import JaxEngine
client = JaxEngine.instance().rank.journal.first.client
class Slow:
    def __getattr__(self, name): return getattr(client, name)
    def key_value_dir_get(self, folder):
        end = time.monotonic() + 20
        while len(found := client.key_value_dir_get(folder)) < 2 and time.monotonic() < end: pass
        time.sleep(0.2)  # for the other, to have looked as well
        return found
JaxEngine.instance().rank.journal.first.client = Slow()
try: s = jax.jit(lambda a: a.sum() * (rank + 2.5))(x)
finally: JaxEngine.instance().rank.journal.first.client = client
"""


def test_where_both_are_refused_the_report_is_the_same(pair: jaxcluster.Cluster) -> None:
    """They come at the same moment: nothing was launched, and nothing is missing."""
    with pytest.raises(Divergence) as caught:
        pair.run(REFUSED_BY_BOTH, show=False)
    assert caught.value.report is not None
    assert caught.value.report.kind == "mismatch"
    assert "Ranks 0, 1 have not launched their program" in str(caught.value)
    assert "nothing was missing" in str(caught.value)
    assert {pair.run("print(float(jnp.sum(x)))", show=False).stdout(r) for r in (0, 1)} == {
        "496.0\n"
    }


@pytest.mark.promise("First launches")
@pytest.mark.parametrize("source", [ROWS, CAUGHT], ids=["allgather", "caught"])
def test_another_shape_on_one_rank_is_refused_and_nobody_dies(
    cluster: jaxcluster.Cluster, source: str
) -> None:
    """The pitfall that JAX's own guide names: gloo would abort a rank that did nothing wrong."""
    pids = list(cluster.record.pids)
    cluster.run("kept = 0.5", show=False)
    with pytest.raises(Divergence) as caught:
        cluster.run(source.replace("WRONG", "2"), show=False)
    report = caught.value.report
    assert report is not None
    assert report.culprits == (2,)
    told = str(caught.value)
    assert "it was refused, because another rank had announced" in told
    if source == ROWS:
        assert "rank 2: float32[4,5,3]; ranks 0, 1, 3: float32[4,4,3], cell" in told
        assert "The ranks launched jit(_identity_fn) with different shapes" in told
    assert cluster.record.pids == pids
    assert in_lockstep(cluster)


def test_with_one_device_each_and_of_two_nobody_dies_either(pair: jaxcluster.Cluster) -> None:
    pids = list(pair.record.pids)
    pair.run("y = jax.device_put(np.arange(2.0), NamedSharding(mesh, P('i')))", show=False)
    with pytest.raises(Divergence) as caught:
        pair.run(ROWS.replace("WRONG", "1"), show=False)
    assert "float32[2,4,3]" in str(caught.value)
    assert "float32[2,5,3]" in str(caught.value)
    assert pair.record.pids == pids
    record = pair.run("print(float(jnp.sum(y)))", show=False)
    assert {record.stdout(rank) for rank in record.ranks} == {"1.0\n"}


def test_a_rank_that_comes_later_is_not_waited_for(
    cluster: jaxcluster.Cluster, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Correct, since with two devices a launch returns before the others have come to it."""
    cluster.run(
        f"flag = {str(tmp_path_factory.mktemp('flag') / 'launched')!r}\n"
        "while rank and not os.path.exists(flag): time.sleep(0.01)\n"
        "later = jax.jit(lambda a: a.sum() * 9)(x)\n"
        "if rank == 0: open(flag, 'w').close()\n"
        "assert float(later) == 9 * 496",
        show=False,
        timeout_s=60,
    )


MIXED = """
import jax, numpy as np
rank, n, kept = jax.process_index(), jax.device_count(), 0.5
mesh = jax.make_mesh((n,), ("i",))
def spread(values):
    parts = jax.NamedSharding(mesh, jax.P("i"))
    return jax.make_array_from_callback(values.shape, parts, lambda index: values[index])
small, large = (spread(np.ones((k * n, 3), "float32")) for k in (4, 5))
whole = jax.jit(lambda a: a * 2, out_shardings=jax.NamedSharding(mesh, jax.P()))
for _ in range(3): jax.block_until_ready([whole(small), whole(large)])
"""


@pytest.mark.parametrize(("n", "d"), [(3, 1), (2, 2)])
def test_a_death_by_another_shape_names_who_passed_it(
    start: Callable[..., jaxcluster.Cluster], n: int, d: int
) -> None:
    """On the fast path nothing is asked before: then what is left of the dead rank tells."""
    cluster = start(n, devices_per_process=d)
    cluster.run(MIXED, show=False)
    with pytest.raises(Divergence) as caught:
        cluster.run(
            "batch = large if rank == 1 else small\n"
            "for _ in range(3):\n"
            "    out = whole(batch)\n"
            "jax.block_until_ready(out)",
            show=False,
        )
    told, report = str(caught.value), caught.value.report
    assert report is not None
    assert report.seq == 6
    if n == 3:
        assert report.culprits == (1,)
    shapes = f"float32[{4 * n * d}@i,3]", f"float32[{5 * n * d}@i,3]"
    each = [f"rank 1: {shapes[1]}", f"{'ranks 0, 2' if n == 3 else 'rank 0'}: {shapes[0]}"]
    assert all(one in told.splitlines()[0] for one in [*each, "cell [2] line 3"])
    assert report.title == "Different shapes"
    assert "died in cell [2]: killed by SIGABRT" in told
    if n == 3:  # of two, the survivor's may be its own
        record = cluster.run("print(kept)", show=False)
        assert {record.stdout(rank) for rank in record.ranks} == {"0.5\n"}

"""Equal programs with different numbers: whatever should be equal on all ranks is compared.

What ranks give to programs, make arrays of, read, show, pull or view whole. What may differ, and
what is equal, raises no alarm.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator

import numpy as np
import pytest
from helpers import DEVICES, Home

import jaxcluster
from jaxcluster.cluster import transfer
from jaxcluster.errors import CellFailed, Divergence, TransferError
from jaxcluster.model.layout import ArrayLayout, TreeLayout
from jaxcluster.model.notices import ClusterWarning

SETUP = """
import random
import jax, jax.numpy as jnp, numpy as np
from jax.experimental import multihost_utils
from jax.sharding import NamedSharding, PartitionSpec as P
mesh = jax.make_mesh((jax.device_count(),), ("i",))
split, whole = NamedSharding(mesh, P("i")), NamedSharding(mesh, P())
def make(values, sharding):
    return jax.make_array_from_callback(values.shape, sharding, lambda i: values[i])
g = make(np.arange(6.0), split)
r = jax.process_index()
dot = jax.jit(lambda g, x: (g * x).sum())
even = make(np.arange(6.0), whole)
odd = make(np.arange(6.0) + 10 * (r == 1), whole)
"""


@pytest.fixture(scope="module", params=DEVICES)
def ranks(request: pytest.FixtureRequest, home: Home) -> Iterator[jaxcluster.Cluster]:
    with jaxcluster.start(3, devices_per_process=request.param, name=f"cp-{request.param}") as c:
        c.run(SETUP, show=False, on_notice=lambda told: None)  # "odd" is
        yield c


def said(ranks: jaxcluster.Cluster, source: str) -> str:
    """What is said under a cell that ends well."""
    notices: list[str] = []
    cell = ranks.submit(source)
    cell.runner.on_notice = notices.append
    cell.wait()
    return "".join(notices)


@pytest.mark.promise("Copies that differ")
@pytest.mark.parametrize(
    ("source", "told"),
    {
        "numpy": ("dot(g, np.random.rand(6))", "line 1 gave a program a float32[6]"),
        "later calls": ("for _ in range(3):\n    dot(g, np.full(6, 1.0 * r))", "line 2 gave a"),
        "a number": ("even.block_until_ready()\ng * (r == 1)", "line 2 gave a program a bool[]"),
        "an array of its own": (
            "dot(g, jnp.arange(6.0) * r)",
            "line 1 gave a program a float32[6]",
        ),
        "a callback": (
            "x = make(np.random.rand(6), whole)",
            "Cell [1] line 9 made a float32[6] whose copies differ on ranks 0-2: each",
        ),
        "local data": (
            "x = jax.make_array_from_process_local_data(whole, np.full(6, 1.0 * r))",
            "line 1 made a float32[6]",
        ),
        "local data of a pytree": (
            "x = jax.make_array_from_process_local_data(whole, {'even': np.ones(6), 'odd': "
            "[np.full(3, 1.0 * r)]})",
            "line 1 made a float32[3]",
        ),
        "print": ("print(odd)", "line 1 read a float32[6] whose copies differ on ranks 0-2"),
        "float": ("x = float(odd[2])", "ranks 0, 2 have one, rank 1 has another."),
        "read by numpy": ("x = np.asarray(odd)", "line 1 read a float32[6] whose copies differ"),
        "a function of numpy's": ("x = np.linalg.norm(odd)", "line 1 read a float32[6]"),
        "the last line": ("odd", "Rank 0 shows its own."),
    }.values(),
)
def test_what_differs_is_named_with_its_line(
    ranks: jaxcluster.Cluster, source: str, told: str
) -> None:
    notice = said(ranks, source)
    by_memory = source.startswith("x = np.") and len(ranks.record.devices[0].devices) == 1
    if by_memory and sys.version_info < (3, 12):
        pytest.skip("numpy takes the array's memory, and Python does not say so")
    assert told in notice
    assert "run `import jaxcluster; jaxcluster.seed(0)` in a cell" in notice


def test_what_is_equal_or_may_differ_raises_no_alarm(ranks: jaxcluster.Cluster) -> None:
    equal = """
import jaxcluster
jaxcluster.seed(0)
print(dot(g, np.random.rand(6)), even, random.random())
key, sub = jax.random.split(jax.random.key(0))
print(float(dot(g, jax.random.normal(sub, (6,)))))
x = make(np.random.rand(6), whole)
x[0]
"""
    assert said(ranks, equal) == ""
    differing = """
multihost_utils.process_allgather(np.arange(3) * r)
multihost_utils.broadcast_one_to_all(np.arange(3) * r)
local = np.ones(jax.local_device_count()) * r
a = multihost_utils.host_local_array_to_global_array(local, mesh, P("i"))
b = jax.make_array_from_process_local_data(split, np.full(6 // jax.process_count(), r))
c = jnp.arange(3) * r
print(float(c.sum()), np.random.rand(2), a.addressable_shards[0].data)
if r == 1:
    print(float(odd.addressable_data(0)[1]), odd)
for _ in range(r):
    print(even)
"""
    assert said(ranks, differing) == ""


def test_a_seed_is_the_same_on_all_ranks(ranks: jaxcluster.Cluster) -> None:
    draw = "print(random.random(), np.random.rand())"
    record = ranks.run(f"import jaxcluster; jaxcluster.seed(r); {draw}", show=False)
    assert len({record.stdout(rank) for rank in range(3)}) == 3
    record = ranks.run(f"import jaxcluster; jaxcluster.seed(7); {draw}", show=False)
    assert len({record.stdout(rank) for rank in range(3)}) == 1


def test_jaxs_own_comparison_is_told_with_the_seed(ranks: jaxcluster.Cluster) -> None:
    source = "np.random.seed(r); jax.device_put(np.random.rand(6).astype('float32'), whole)"
    with pytest.raises(CellFailed, match=r"jaxcluster\.seed\(0\)"):
        ranks.run(source, show=False)


def notes(found: ArrayLayout | TreeLayout) -> dict[int, str]:
    return dict(found.notes)


@pytest.mark.promise("Copies that differ")
def test_what_is_pulled_and_viewed_whole_is_one_value(ranks: jaxcluster.Cluster) -> None:
    ranks.run(
        'tree = {"even": even, "odd": odd}\n'
        "pairs = jax.sharding.Mesh(np.array(jax.devices()).reshape(3, -1), ('a', 'b'))\n"
        "part = make(np.arange(6.0) + r, NamedSharding(pairs, P('b')))",
        show=False,
        on_notice=lambda told: None,
    )
    assert np.array_equal(ranks["even"], np.arange(6.0))
    for name in ("odd", "part", "tree"):
        with pytest.raises(TransferError, match=f"The ranks have different copies of {name}: "):
            ranks[name]
    assert notes(ranks.layout("even")) == {}
    assert notes(ranks.layout("odd")) == {1: "its copy differs from that of ranks 0, 2"}
    assert notes(ranks.layout("tree")) == {1: "its copy of ['odd'] differs from that of ranks 0, 2"}
    assert set(notes(ranks.layout("part"))) == {1, 2}
    told = transfer.sample(ranks.world, "part", range(3))[2]
    is_whole = ranks.record.devices[0].devices[1:] == []  # then it was read to be shown
    assert told == ("" if is_whole else "Ranks have different copies of it: each has its own.")


def test_a_loop_that_only_reads_is_left_at_once(ranks: jaxcluster.Cluster) -> None:
    notices: list[str] = []
    with pytest.raises(CellFailed):
        ranks.run(
            "while True: np.asarray(even)", show=False, timeout_s=0.5, on_notice=notices.append
        )
    assert not any("has not answered" in each or "have not" in each for each in notices)


def test_where_nobody_listens_python_warns_of_them(ranks: jaxcluster.Cluster) -> None:
    with pytest.warns(ClusterWarning, match="line 1 read a float32"):
        ranks.run("x = float(odd[2])", show=False)


def test_in_strict_mode_a_program_is_not_launched_with_different_values(
    ranks: jaxcluster.Cluster,
) -> None:
    ranks.strict(True)
    try:
        record = ranks.run("print(dot(g, 2.0), dot(g, np.ones(6)), dot(g, even))", show=False)
        assert record.stdout(2) == "30.0 15.0 55.0\n"
        launches = record.replies[0].launches
        for odd_one in ("np.full(6, 1.0 * r)", "odd"):
            with pytest.raises(Divergence, match="one program with different values") as caught:
                ranks.run(f"x = dot(g, {odd_one})", show=False)
            assert "given float32[6] #" in str(caught.value)
        record = ranks.run("if r: x = jnp.ones(3) * r\nprint(dot(g, 2.0))", show=False)
        assert record.stdout(1) == "30.0\n"
        [(count, _)] = {tuple(v) for v in record.replies[0].launches.values()}
        assert count == max(n for n, _ in launches.values()) + 1
    finally:
        ranks.strict(False)


@pytest.mark.promise("Copies that differ")
@pytest.mark.parametrize("is_strict", [False, True], ids=["", "strict"])
def test_what_one_rank_alone_reads_makes_no_equal_values_differ(
    ranks: jaxcluster.Cluster, is_strict: bool
) -> None:
    """As rank 0 does that logs: it has hashed more than the others by then."""
    ranks.run(
        "big = make(np.arange(float(1 << 18), dtype='float32'), whole)\n"
        "wide = make(np.arange(6000.0), split)",
        show=False,
    )
    ranks.strict(is_strict)
    try:
        source = (
            "if r == 0:\n    for _ in range(80): np.asarray(big)\n"
            "print(float(dot(wide, np.ones(6000))))"
        )
        assert said(ranks, source) == ""
        assert ranks.last.stdout(2) == "17997000.0\n"
    finally:
        ranks.strict(False)

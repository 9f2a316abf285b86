"""Which programs are one: those of all ranks that differ in nothing that is computed."""

from __future__ import annotations

from collections.abc import Iterator

import overhosts
import pytest
from helpers import Home

import jaxcluster
from jaxcluster.errors import Divergence
from jaxcluster.hosts.here import quit_warm

SETUP = """
import io, jax, jax.numpy as jnp, numpy as np
from jax.experimental import serialize_executable
from jax.sharding import NamedSharding, PartitionSpec as P
r = jax.process_index()
mesh = jax.make_mesh((jax.device_count(),), ("i",))
split, whole = NamedSharding(mesh, P("i")), NamedSharding(mesh, P())
def spread(values):
    return jax.make_array_from_callback(values.shape, split, lambda index: values[index])
x = spread(np.arange(8.0))
total = jax.jit(jnp.sum)
float(total(x))
"""


@pytest.fixture(scope="module", params=[1, 2], ids=["D=1", "D=2"])
def ranks(request: pytest.FixtureRequest, home: Home) -> Iterator[jaxcluster.Cluster]:
    name = f"programs-{request.param}"
    with jaxcluster.start(2, devices_per_process=request.param, name=name) as cluster:
        cluster.run(SETUP)
        yield cluster


DIFFERENT = {
    "a float": "f = jax.jit(lambda a: jnp.sum(a * (2.5 + r)))",
    "a vector of numpy": "v = np.arange(8.0) + r; f = jax.jit(lambda a: jnp.sum(a * v))",
    "one element of many": (
        "v = np.zeros(5000); v[4321] = r; f = jax.jit(lambda a: jnp.sum(a) + jnp.sum(v))"
    ),
    "what is donated": "f = jax.jit(lambda a: a * 2, donate_argnums=(0,) if r else ())",
    "an option of the compiler": (
        "f = jax.jit(lambda a: jnp.sum(a),\n"
        "    compiler_options={'xla_cpu_enable_fast_min_max': bool(r)})"
    ),
    "exported": "f = jax.jit(jax.export.export(jax.jit(lambda a: a.sum() * (2.5 + r)))(x).call)",
}


@pytest.mark.parametrize("function", DIFFERENT.values(), ids=DIFFERENT)
def test_programs_that_differ_in_what_they_compute_are_told_apart(
    ranks: jaxcluster.Cluster, function: str
) -> None:
    with pytest.raises(Divergence, match=r"about to launch|without collectives"):
        ranks.run(f"y = spread(np.arange(8.0))\n{function}\nz = f(y)", show=False)
    check_whole(ranks)


EQUAL = {
    "compiled at another line": "if r: f = jax.jit(jnp.max)\nelse:\n\n  f = jax.jit(jnp.max)",
    "with other names of variables": (
        "def one():\n"
        "  def step(first):\n"
        "    total = jnp.sum(first)\n"
        "    return {'loss': total}\n"
        "  return step\n"
        "def other():\n"
        "  def step(a):\n"
        "    return {'out': jnp.sum(a)}\n"
        "  return step\n"
        "g = jax.jit(other() if r else one()); f = lambda a: list(g(a).values())[0]"
    ),
    "with a keyword of another name": (
        "f = jax.jit(lambda **k: jnp.sum(k.popitem()[1])); g = f\nf = lambda a: g(**{f'k{r}': a})"
    ),
    "after other programs": (
        "if r: [jax.jit(lambda a: a + i)(1) for i in range(5)]; jax.clear_caches()\n"
        "f = jax.jit(lambda a: jnp.sum(jnp.where(a > 2, a, 0)))"
    ),
    "with a Python function": (
        "f = jax.jit(jax.shard_map(lambda a: jax.pure_callback(lambda v: v * (r + 1), a, a),\n"
        "    mesh=mesh, in_specs=P('i'), out_specs=P('i')))"
    ),
    "from bytes on one rank": (
        "g = jax.jit(lambda a: jnp.sum(a) * 3).lower(x).compile()\n"
        "f = serialize_executable.deserialize_and_load(*serialize_executable.serialize(g)) "
        "if r else g"
    ),
}


@pytest.mark.parametrize("function", EQUAL.values(), ids=EQUAL)
def test_programs_that_differ_in_names_and_places_are_one(
    ranks: jaxcluster.Cluster, function: str
) -> None:
    ranks.run(f"{function}\nz = jax.block_until_ready(f(x))", show=False)
    check_whole(ranks)


def test_constants_that_jax_makes_arguments_of_are_told_apart(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As jax does where its switch for that is set before it is imported."""
    switch = "JAX_USE_SIMPLIFIED_JAXPR_CONSTANTS"
    monkeypatch.setenv(switch, "1")
    env = {switch: "1"} if overhosts.hosts() else {}  # they have environments of their own
    quit_warm()  # it has imported jax without
    sums = "v = np.arange(100.0) + {}\nf = jax.jit(lambda a: a.sum() * jnp.sum(v))\n"
    try:
        with jaxcluster.start(2, devices_per_process=2, env=env) as cluster:
            same = sums.format(1) + "print(float(f(x)), len(f.lower(x)._lowering.const_args))"
            assert cluster.run(SETUP + same).stdout() == "141400.0 1\n"
            with pytest.raises(Divergence):
                cluster.run(sums.format("r") + "print(float(f(x)))", show=False)
    finally:
        quit_warm()


def check_whole(cluster: jaxcluster.Cluster) -> None:
    record = cluster.run("print(float(total(x)))", show=False)
    assert [record.stdout(rank) for rank in range(2)] == ["28.0\n"] * 2

"""What ranks have compiled, new processes load: after a restart, a death, on every rank its own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from overhosts import send_signal

import jaxcluster
from jaxcluster.errors import RankDied

HERE = pytest.mark.one_machine("it looks at the folder on this machine")

# ``compiled()``: the programs that XLA has compiled in this process since it was first called.
COUNT = """
def compiled():
    from jax._src import compiler
    if not hasattr(compiler, 'names_compiled'):
        names, plain = [], compiler.backend_compile_and_load
        def counted(backend, module, *rest, **more):
            names.append(str(module.operation.attributes['sym_name']).strip('"'))
            return plain(backend, module, *rest, **more)
        compiler.backend_compile_and_load, compiler.names_compiled = counted, names
    return sorted(compiler.names_compiled)
compiled()
"""
SETUP = """
import jax, jax.numpy as jnp, numpy as np
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
mesh = jax.make_mesh((jax.device_count(),), ("i",), axis_types=(jax.sharding.AxisType.Auto,))
split, whole = NamedSharding(mesh, P("i")), NamedSharding(mesh, P())
def spread(values, where=split):
    return jax.make_array_from_callback(values.shape, where, lambda index: values[index])
r = jax.process_index()
step = jax.jit(lambda v: (jnp.sin(v) * 2, (v * v).sum()))
"""
DATA = "x = spread(np.arange(12.0, dtype=np.float32))\n"  # lost with a rank
USE = "out, total = step(x); print(float(total), np.asarray(out.addressable_shards[0].data)[:2])"


@pytest.fixture
def ranks(start: Callable[..., jaxcluster.Cluster]) -> jaxcluster.Cluster:
    cluster = start(2, devices_per_process=2, name="compiled")
    cluster.run(SETUP + DATA + COUNT)
    return cluster


@pytest.fixture
def folder(ranks: jaxcluster.Cluster) -> Path:
    return Path(ranks.record.hosts[0].folder) / "compiled"


def said(cluster: jaxcluster.Cluster, source: str, count: int = 2) -> list[str]:
    """What each rank printed."""
    record = cluster.run(source, show=False)
    return [record.stdout(rank).rstrip("\n") for rank in range(count)]


def again(cluster: jaxcluster.Cluster, how: str) -> None:
    """Have it get new processes."""
    pids = list(cluster.record.pids)
    if how == "restart":
        cluster.restart()
    else:
        send_signal(cluster, 1)
        with pytest.raises(RankDied):
            cluster.run("import time; time.sleep(60)", show=False)
    assert not set(pids) & set(cluster.record.pids)


@pytest.mark.promise("What needs new processes")
@pytest.mark.parametrize("how", ["restart", "death"])
def test_new_processes_compile_nothing_again(ranks: jaxcluster.Cluster, how: str) -> None:
    """And those that load a program agree with those that have compiled it."""
    right = said(ranks, USE)
    assert "jit__lambda" in said(ranks, "print(*compiled())")[1]
    again(ranks, how)
    ranks.run(COUNT + DATA)
    assert said(ranks, USE) == right
    assert said(ranks, "print(*compiled())") == ["", ""]
    again(ranks, "restart")
    ranks.run(
        COUNT + DATA + "import jax\nif jax.process_index():\n"
        "    from jaxcluster.rank.private import compilations\n"
        "    compilations.read = lambda folder, key: None"
    )
    assert said(ranks, USE) == right
    found = said(ranks, "print(*compiled())")
    assert found[0] == "" and "jit__lambda" in found[1]


def test_each_rank_gets_its_own_programs(start: Callable[..., jaxcluster.Cluster]) -> None:
    """Of its own devices, with constants of its own, and of meshes without rank 0."""
    ranks = start(3, name="compiled-apart")
    ranks.run(
        SETUP + "own = jax.jit(lambda v: v * (10 + r))\n"
        "where = jax.jit(lambda v: v + 1)\n"
        "of_last = jax.jit(lambda v: v.sum() + 1)\n"
        "last = Mesh(np.array(jax.devices()[1:]), ('k',))"
    )
    data = "if r: y = spread(np.arange(4.0), NamedSharding(last, P('k')))"
    ranks.run(data)
    use = (
        "print(own(jnp.float32(2)), where(jnp.float32(r)).devices() == {jax.local_devices()[0]},"
        " float(of_last(y)) if r else None)"
    )
    right = ["20.0 True None", "22.0 True 7.0", "24.0 True 7.0"]
    assert said(ranks, use, 3) == right
    again(ranks, "restart")
    ranks.run(COUNT + data)
    assert said(ranks, use, 3) == right
    assert said(ranks, "print(*compiled())", 3) == [""] * 3


def test_programs_that_call_python_are_compiled_again(ranks: jaxcluster.Cluster) -> None:
    """Another process has something else at the function's address."""
    call = (
        "called = []\n"
        "def note(v):\n    called.append(float(v)); return v\n"
        "asks = jax.jit(lambda v: jax.pure_callback(note, jax.ShapeDtypeStruct((), v.dtype), v))\n"
        "print(float(asks(jnp.float32(r))), called)"
    )
    right = said(ranks, call)
    assert right == ["0.0 [0.0]", "1.0 [1.0]"]
    ranks.restart()
    ranks.run(COUNT)
    assert said(ranks, call) == right
    assert all("jit__lambda" in names for names in said(ranks, "print(*compiled())"))


@HERE
def test_jaxs_own_folder_wins(ranks: jaxcluster.Cluster, folder: Path, tmp_path: Path) -> None:
    mine = tmp_path / "mine"
    ranks.run(
        f"jax.config.update('jax_compilation_cache_dir', {str(mine)!r})\n"
        "jax.config.update('jax_persistent_cache_min_compile_time_secs', 0)"
    )
    before = set(folder.iterdir()) if folder.exists() else set()
    right = said(ranks, USE)
    assert set(folder.iterdir() if folder.exists() else ()) == before
    assert mine.exists()
    ranks.restart()
    ranks.run(COUNT)
    assert said(ranks, USE) == right

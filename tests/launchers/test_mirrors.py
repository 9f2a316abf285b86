"""Copies of ranks in another host's memory: what a host's loss leaves of them."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from helpers import until
from rig import HostNotebook, Rig

pytestmark = pytest.mark.any_jax

SETUP = """%%spmd
import hashlib, jax, jax.numpy as jnp, json, numpy as np, os, signal, sys, time
from jax.sharding import NamedSharding, PartitionSpec as P
r = jax.process_index()
mesh = jax.make_mesh((jax.device_count(),), ("i",))
split, whole = NamedSharding(mesh, P("i")), NamedSharding(mesh, P())
def spread(values, how):
    return jax.make_array_from_callback(values.shape, how, lambda index: values[index])
g = spread(np.random.default_rng(0).normal(size=(jax.device_count(), 1000)), split)
params = {"w": spread(np.arange(5000.0), whole), "b": spread(np.arange(96.0), split)}
alias, key = g, jax.random.fold_in(jax.random.key(7), r)
view = np.full((4, 4), float(r))
row = view[1]
own, rng, local = [r, {"of": r}], np.random.default_rng(r), jnp.arange(5.0) * r
step = jax.jit(lambda tree: jax.tree.map(lambda v: v * 2, tree), donate_argnums=0)
def numbers(x):
    x = jax.random.key_data(x) if jnp.issubdtype(x.dtype, jax.dtypes.prng_key) else x
    parts = [(str(s.index), np.asarray(s.data).tobytes()) for s in x.addressable_shards]
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:12]
def told():
    arrays = [g, key, local, *jax.tree.leaves(params)]
    return [
        *map(numbers, arrays), own, view.tolist(), str(rng.bit_generator.state), alias is g,
        row.base is view, str(g.sharding),
    ]
"""
TOLD = "%%spmd --all\nprint(hashlib.sha256(repr(told()).encode()).hexdigest())"


@pytest.fixture
def notebook(ssh: Rig, open_notebook: Callable[..., HostNotebook]) -> HostNotebook:
    opened = open_notebook()
    opened.ok("%load_ext jaxcluster")
    opened.ok("%jaxcluster start --launcher ssh --hosts h1:2,h2:2")
    opened.ok("%jaxcluster copies on")
    opened.ok(SETUP)
    return opened


def kill_agent(rig: Rig, name: str) -> None:
    lines = rig[name].processes().items()
    (pid,) = [
        pid
        for pid, line in lines
        if "-m jaxcluster.agent" in line and "ssh" not in line.split()[0] and "sh -c" not in line
    ]
    rig[name].kill(pid)


def until_mirrored(notebook: HostNotebook) -> None:
    notebook.ok("import json, jaxcluster\nlink = jaxcluster.current().link")

    def is_mirrored() -> bool:
        told = notebook.ok(
            "told = {r: e.body for r, e in link.gather(range(4), 'kept', timeout_s=5).items()}\n"
            "print(json.dumps(told))"
        ).stdout
        found = json.loads(told.splitlines()[-1])
        print(found)
        return all(one["is_current"] and one["mirror"]["is_current"] for one in found.values())

    until(is_mirrored, "mirrors of all ranks' copies", 20)


def values(notebook: HostNotebook) -> str:
    return notebook.ok(TOLD).text


@pytest.mark.parametrize("host", ["h2", "h1"])
def test_a_hosts_loss_costs_no_variable(ssh: Rig, notebook: HostNotebook, host: str) -> None:
    before = values(notebook)
    until_mirrored(notebook)
    kill_agent(ssh, host)
    cell = notebook.run("%%spmd\npass", 90)
    print(cell.text)
    assert "Lost" not in cell.text
    assert values(notebook) == before

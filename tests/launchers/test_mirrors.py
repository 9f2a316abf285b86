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
    notebook.ok(
        "import json, jaxcluster\nlink = jaxcluster.current().link\n"
        "from dataclasses import asdict\n"
        "from jaxcluster.wire.link import replies\nfrom jaxcluster.wire.ops.state import Kept"
    )

    def is_mirrored() -> bool:
        told = notebook.ok(
            "told = replies(link.gather(range(4), Kept(), timeout_s=5))\n"
            "print(json.dumps({rank: asdict(one) for rank, one in told.items()}))"
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
    # Through the notebook nothing comes: the next ranks read it from the host that has it.
    notebook.ok("import jaxcluster.allocation.states as states\nstates.copy_file = None")
    kill_agent(ssh, host)
    cell = notebook.run("%%spmd\npass", 90)
    print(cell.text)
    assert "Lost" not in cell.text and "replaced" in cell.text
    assert values(notebook) == before


@pytest.mark.parametrize("host", ["h2", "h1"])
def test_a_hosts_loss_in_a_cell_costs_the_cell(ssh: Rig, notebook: HostNotebook, host: str) -> None:
    """What it has bound, changed in place and donated is what it was before it, on all ranks."""
    before = values(notebook)
    until_mirrored(notebook)
    cell = notebook.begin(
        "%%spmd\nparams = step(params); own.append(1); view[:] = 7; local = 1; new = 5\n"
        "rng.integers(5)\nprint('on', flush=True)\n"
        "if r < 2: time.sleep(1000)\nfloat(params['b'].sum())"
    )
    notebook.until(lambda: "on" in cell.text, "the cell runs")
    kill_agent(ssh, host)
    notebook.wait(cell, 90)
    print(cell.text)
    if host == "h2":
        assert "ranks 2, 3 replaced" in cell.text
    assert "Lost" not in cell.text
    assert values(notebook) == before
    assert "NameError" in notebook.run("%%spmd\nnew").text


def test_what_was_changed_right_before_a_loss_is_there_or_named(
    ssh: Rig, notebook: HostNotebook
) -> None:
    """A push, and code of an ipyparallel client, which are no cells."""
    client = "import jaxcluster\nview = jaxcluster.current().client[:]\nview.block = True\n"
    for number, change in enumerate(
        ["pushed = {n}\n%push pushed", f"{client}view.execute('pushed = {{n}}')"]
    ):
        notebook.ok("%%spmd\npushed, mine = 0, [r]")
        until_mirrored(notebook)
        notebook.ok(change.replace("{n}", str(number + 7)))
        kill_agent(ssh, "h2")
        cell = notebook.run("%%spmd\npass", 90)
        print(cell.text)
        assert "ranks 2, 3 replaced" in cell.text
        found = notebook.run("%%spmd --all\nprint('pushed is', pushed)").text
        is_there = found.count(f"pushed is {number + 7}") == 1 and "pushed is 0" not in found
        assert is_there or "mine (" in cell.text, found


def test_what_is_not_on_another_host_is_said(ssh: Rig, notebook: HostNotebook) -> None:
    """Its memory is too small, or it can't be reached from there."""
    until_mirrored(notebook)
    told = notebook.ok("%jaxcluster copies").text
    assert ". On another host, too: " in told and "none of now" not in told
    notebook.ok("%jaxcluster copies off")
    assert "keep no copies" in notebook.ok("%jaxcluster copies").text


def test_what_both_hosts_had_is_lost_with_them(ssh: Rig, notebook: HostNotebook) -> None:
    until_mirrored(notebook)
    for host in ("h1", "h2"):
        kill_agent(ssh, host)
    cell = notebook.run("%%spmd\npass", 90)
    print(cell.text)
    if "no rank survived" not in cell.text:  # it was told of one of them first
        cell = notebook.run("%jaxcluster restart", 90)
        print(cell.text)
    assert "all variables are lost" in cell.text
    assert "NameError" in notebook.run("%%spmd\ng").text
    notebook.ok(SETUP)
    until_mirrored(notebook)

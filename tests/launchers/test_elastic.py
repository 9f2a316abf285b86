"""Clusters of hosts that get another number of ranks, also when a host is lost for good."""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from helpers import Cell, until
from rig import HostNotebook, Rig

pytestmark = [pytest.mark.any_jax, pytest.mark.timeout(300)]

SETUP = """%%spmd
import jax, jax.numpy as jnp, numpy as np, socket, time
from jax.sharding import NamedSharding, PartitionSpec as P
from jax.experimental.multihost_utils import process_allgather
rank = jax.process_index()
mesh = jax.make_mesh((jax.process_count(),), ("i",))
def on(values, spec):
    where = NamedSharding(mesh, spec)
    return jax.make_array_from_callback(values.shape, where, lambda at: values[at])
x = on(np.arange(12.0), P("i"))
w = on(np.arange(6.0), P())
lr, mine, table = 0.5, f"of rank {rank}", np.arange(3)
"""
WHOLE = """%%spmd --all
total = float(process_allgather(jnp.float32(1 + jax.process_index())).sum())
assert w.sharding.mesh.size == jax.device_count() and table.tolist() == [0, 1, 2]
print(total, float(w.sum()), lr, rank, globals().get("mine"), socket.gethostname())
"""
START = "%jaxcluster start --launcher ssh --hosts h1:2,h2:2"


def shown_after(notebook: HostNotebook, source: str, deadline_s: float = 120.0) -> Cell:
    cell = notebook.run(source, deadline_s)
    print(f"{source}\n-->{cell.text}")
    return cell


@pytest.fixture
def notebook(ssh: Rig, open_notebook: Callable[..., HostNotebook]) -> HostNotebook:
    opened = open_notebook()
    opened.ok("%load_ext jaxcluster")
    return opened


SCRIPT = """
import jax, jax.numpy as jnp, numpy as np, socket, sys, time
import jaxcluster
from jax.sharding import NamedSharding, PartitionSpec as P

mesh = jax.make_mesh((jax.process_count(),), ("i",))
where = NamedSharding(mesh, P())
w = jax.make_array_from_callback((3,), where, lambda at: np.zeros(3, np.float32)[at])
rows = jax.make_array_from_callback((12,), NamedSharding(mesh, P("i")), lambda at: np.arange(12.)[at])
step = jax.jit(lambda w, rows: w + rows.sum())
n = 0
for i in jaxcluster.steps(range(40), keep=5):
    w = step(w, rows)
    n += 1
    jax.block_until_ready(w)
    time.sleep(0.1)
    print("at", i, flush=True)
print("end", n, np.asarray(w.addressable_data(0)).tolist(), jax.process_count(), flush=True)
"""


@pytest.fixture
def script(hosts: Rig) -> Iterator[Path]:
    folder = hosts.shared / "elastic"
    folder.mkdir()
    (folder / "train.py").write_text(SCRIPT)
    yield folder / "train.py"
    for path in sorted(folder.rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    folder.rmdir()


@pytest.mark.parametrize("lost", ["h2", "h1"])
def test_a_script_goes_on_with_what_is_left(ssh: Rig, script: Path, lost: str) -> None:
    words = ("run", "--launcher", "ssh", "--hosts", "h1:2,h2:2", "--elastic", "--logs", "logs")
    command = (ssh.python, "-m", "jaxcluster.cli", *words, "train.py")
    out, err = script.with_name("out"), script.with_name("err")
    with open(out, "w") as stdout, open(err, "w") as stderr:
        running = ssh["h0"].popen(*command, cwd=script.parent, stdout=stdout, stderr=stderr)
        until(lambda: "at 12" in out.read_text(), "the loop", 60)
        t = time.time()
        with ssh[lost].cut_off():
            code = running.wait(200)
    print(out.read_text(), err.read_text(), code, time.time() - t)
    assert code == 0

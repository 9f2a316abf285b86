"""What every launcher has to show with a notebook, in one go: from a start to ``kill -9``.

Start, a sum over all hosts, a skipped collective, a hang and the stop button, a restart, a death, a
stop, another start, and the death of the notebook's process in the middle of a sum. That nothing is
left on any host is the fixture's to look at.
"""

from __future__ import annotations

from collections.abc import Sequence

from helpers import until

from rig.hosts import Rig
from rig.notebook import HostNotebook

SETUP = """%%spmd
import os, sys, time, socket, numpy as np, jax, jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec as P
n, mine = jax.process_count(), jax.process_index()
mesh = jax.make_mesh((n,), ("i",))
x = jax.make_array_from_callback(
    (n,), NamedSharding(mesh, P("i")), lambda at: np.arange(1.0, n + 1)[at])
total = jax.jit(jax.shard_map(
    lambda v: jax.lax.psum(v.sum(), "i"), mesh=mesh, in_specs=P("i"), out_specs=P()))
"""
IN_PSUM = """%%spmd
print("into the sum", flush=True)
if mine == n - 1:
    time.sleep(1000)
print(float(total(x)))
"""


def run_course(
    rig: Rig, notebook: HostNotebook, start: str, where: Sequence[str], last_called: str = ""
) -> None:
    """The whole course, at whose end the notebook's process is dead.

    Args:
        start: the line that starts a cluster of a rank on each of these hosts.
        where: each rank's host, by its number; the last one is another than the first.
        last_called: what its launcher calls the last one, if not by its name: so do all messages.
    """
    n, last = len(where), len(where) - 1
    last_called = last_called or where[last]
    start = f"%jaxcluster start {start} --timeout 90"

    def said(source: str) -> list[str]:
        """What each rank prints."""
        notebook.ok(f"%%spmd\n{source}")
        found = notebook.ok(f"[jaxcluster.current().last.stdout(rank) for rank in range({n})]")
        return [text.strip() for text in eval(found.result)]

    def check_whole() -> None:
        assert said("print(socket.gethostname(), mine, float(total(x)))") == [
            f"{host} {rank} {n * (n + 1) / 2}" for rank, host in enumerate(where)
        ]

    notebook.ok("import jaxcluster, os, socket")
    notebook.ok(start, 100)
    notebook.ok(SETUP)
    check_whole()

    cell = notebook.run(f"%%spmd\nif mine != {last}: total(x)")
    assert cell.ename == "Divergence", cell.text
    assert f"rank {last} ({last_called}) ended the cell without" in cell.text
    assert "Nothing was launched" in cell.text
    check_whole()

    cell = notebook.begin(IN_PSUM)
    notebook.until(lambda: "into the sum" in cell.text, "the sum's begin")
    notebook.press_stop()
    notebook.wait(cell, 60)
    assert cell.ename == "CellInterrupted", cell.text
    check_whole()

    notebook.ok("%jaxcluster restart", 100)
    check_whole()

    pid = int(said("print(os.getpid())")[last])
    rig[where[last]].kill(pid)
    until(lambda: pid not in rig[where[last]].processes(), "its death")
    notebook.ok("import time\nwhile not jaxcluster.current().dead: time.sleep(0.01)")
    cell = notebook.run("%spmd 1", 100)
    assert cell.ename == "RankDied", cell.text
    assert f"killed by SIGKILL on host {last_called}" in cell.text, cell.text
    notebook.ok(SETUP)  # x had a part on that rank alone
    check_whole()

    notebook.ok("%jaxcluster stop")
    notebook.ok(start, 100)
    notebook.ok(SETUP)
    own = notebook.ok("print(socket.gethostname(), os.getpid())").text.split()
    cell = notebook.begin(IN_PSUM)
    notebook.until(lambda: "into the sum" in cell.text, "the sum's begin")
    rig[own[0]].kill(int(own[1]))
    until(lambda: int(own[1]) not in rig[own[0]].processes(), "the end of the notebook's process")

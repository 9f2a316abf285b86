"""Without Jupyter: a plain script, and IPython in a terminal."""

from __future__ import annotations

import contextlib
import os
import re
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pexpect
import pytest
from documents import document_of, write_document
from helpers import Home, plain, python

pytestmark = pytest.mark.any_jax

SCRIPT = """
import sys
import jaxcluster

with jaxcluster.start(num_processes=2, devices_per_process=2) as cluster:
    cluster.run('''
import jax, jax.numpy as jnp, numpy as np
from jax.sharding import NamedSharding, PartitionSpec as P
mesh = jax.make_mesh((4,), ("i",))
x = jax.device_put(np.arange(8.0), NamedSharding(mesh, P("i")))
print("process", jax.process_index(), "of", jax.process_count())
float(jnp.sum(x))
''')
    print(cluster["x"].tolist())
    cluster.push({"scale": 3})
    cluster.run("y = x * scale")
    print(cluster["y"].sum(), [s.state for s in cluster.status()], cluster.interrupt())
    try:
        cluster.run("\\n1 / 0")
    except jaxcluster.JaxClusterError as error:
        print(type(error).__name__, error.ename, error.ranks)
print(cluster, "jax" in sys.modules)
jaxcluster.start(1).run("\\n1 / 0")
"""


def test_a_plain_script_uses_a_cluster_as_a_context_manager_and_is_ended_by_an_error(
    private_home: Home, tmp_path: Path
) -> None:
    path = tmp_path / "script.py"
    path.write_text(SCRIPT)
    done = python("-W", "error", str(path), env=private_home.environ())
    assert done.stdout.splitlines() == [
        "process 0 of 2",
        "28.0",
        "[0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0]",
        "84.0 ['idle', 'idle'] []",
        "CellFailed ZeroDivisionError (0, 1)",
        "<jaxcluster 'main': stopped> False",
    ], done.stderr
    assert done.returncode == 1
    assert done.stderr.startswith("Traceback")
    last = done.stderr.strip().splitlines()[-1]
    assert last == "jaxcluster.errors.CellFailed: ZeroDivisionError on rank 0: division by zero"
    private_home.wait_until_empty()


# --------------------------------------------------------------------------- IPython


LOAD = ("%load_ext jaxcluster", "%jaxcluster start -n 2 --devices-per-process 2")


def test_ipython_in_a_terminal_runs_cells_on_the_ranks_and_ends_its_cluster(
    private_home: Home, tmp_path: Path
) -> None:
    """It takes a notebook file as a script of cells. Here it writes into a pipe."""
    cells = (
        *LOAD,
        "%%spmd\nimport jax, jax.numpy as jnp, numpy as np\n"
        "from jax.sharding import NamedSharding, PartitionSpec as P\n"
        "mesh = jax.make_mesh((4,), ('i',))\n"
        "x = jax.device_put(np.arange(8.0), NamedSharding(mesh, P('i')))\n"
        "print('rank', jax.process_index())",
        "%%spmd\nx",
        "%pull x\nprint('pulled', x.sum())",
        "%%spmd --all\nprint('I am', jax.process_index())",
        "a = 5\n%push a",
        "%%spmd\nfrom IPython.display import HTML, display\ndisplay(HTML('<b>x</b>'))\na + 1",
        "%jaxcluster status",
        "%%spmd\nb = 1\n1 / 0",
    )
    path = tmp_path / "cells.ipynb"
    write_document(document_of(*cells), path)
    options = ("--no-banner", "--no-confirm-exit", "--colors=NoColor", "--quick")
    done = python("-m", "IPython", *options, str(path), env=private_home.environ())
    text = plain(done.stdout)
    assert re.search(r"Cluster 'main': ranks 0, 1, 2 cpu devices per rank .* ready in", text)
    assert "rank 0\n" in text
    assert "rank 1\n" not in text
    assert "Array(shape=(8,), dtype=float32)" in text
    assert "[0. 1. 2. 3. 4. 5. 6. 7.]" in text
    assert "pulled 28.0" in text
    assert "[rank 0] I am 0\n" in text and "[rank 1] I am 1\n" in text
    assert "<IPython.core.display.HTML object>" in text
    assert re.search(r"Out\[\d+\]: 6\n", text)
    assert re.search(r"^0 +\d+ .* idle", text, re.MULTILINE)
    text += plain(done.stderr)
    assert "engines 1/2" not in text  # that is shown where it can be wiped
    assert "On all 2 ranks:" in text
    assert re.search(r"Cell In\[\d+\], line 3", text)
    # Beside it there may be the early notice of whichever rank was first.
    assert len(re.findall(r"(?m)^ZeroDivisionError: division by zero", text)) == 1
    assert "jaxcluster/" not in text
    private_home.wait_until_empty()


@pytest.fixture
def terminal(private_home: Home, tmp_path: Path) -> Iterator[Callable[..., pexpect.spawn[str]]]:
    """Runs cells in an IPython in a terminal of its own."""
    options = ["--no-banner", "--no-confirm-exit", "--colors=NoColor", "--simple-prompt", "--quick"]
    spawned = pexpect.spawn(
        sys.executable,
        ["-m", "IPython", *options],
        env=private_home.environ(PYTHONPATH=os.getcwd(), TERM="xterm"),
        cwd=str(tmp_path),
        encoding="utf-8",
        timeout=80,
        dimensions=(40, 200),
    )

    def run(*cells: str) -> pexpect.spawn[str]:
        spawned.sendline(f"all(get_ipython().run_cell(one).success for one in {cells!r}) or 0;")
        return spawned

    try:
        spawned.expect_exact("In [1]:")
        yield run
        spawned.sendline("exit")
        spawned.expect(pexpect.EOF)
    finally:
        spawned.close(force=True)
    private_home.wait_until_empty()


LIVE = """%%spmd --all
import os, sys, time
print("\\r 50%", end="", file=sys.stderr if rank == 0 else sys.stdout, flush=True)
if rank == 1: print("rank one is here")
while not os.path.exists("go"): time.sleep(0.05)
print("\\r100%", file=sys.stderr)
rank"""


def test_a_terminal_shows_the_lines_of_all_ranks_as_they_go_on(
    terminal: Callable[..., pexpect.spawn[str]], tmp_path: Path
) -> None:
    """With what they ask; the debugger's output stands there once."""

    def see(*texts: str) -> None:
        """Wait until all of them are on the terminal, in whatever order."""
        end = time.monotonic() + 80
        seen = ""
        while missing := [text for text in texts if text not in seen]:
            assert time.monotonic() < end, f"{missing} not in {seen}"
            with contextlib.suppress(pexpect.TIMEOUT):
                seen += shown.read_nonblocking(10_000, timeout=1)

    ready = "%%spmd\nimport jax\nrank = jax.process_index()\nprint('rea' + 'dy')"
    shown = terminal(*LOAD, ready, LIVE)
    see("[rank 1]  50%rank one is here\r\n")
    (tmp_path / "go").touch()
    see("[rank 0] 100%\r\n", "[rank 1] 1\r\n", "Out[", "]: 0\r\n")
    terminal("%%spmd --ranks 0,1\nprint('ha' 'lf')\nbreakpoint()\nprint('en' + 'ded')")
    see("] half\r\n", "rank 0> ")
    for rank, then in ((0, "rank 1 asks"), (1, "] ended\r\n")):
        shown.sendline("p 'rank', 40 + rank")
        see(f"[rank {rank}] ('rank', {40 + rank})", f"rank {rank}> ")
        shown.sendline("c")
        see(then, *(["rank 1> "] if rank == 0 else []))

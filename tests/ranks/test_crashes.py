"""Native crashes of a rank leave their stack in its log, and the message has the cell's line."""

from __future__ import annotations

import signal
from collections.abc import Callable

import pytest
from helpers import until
from overhosts import place, send_signal

import jaxcluster
from jaxcluster.errors import CellFailed, RankDied

Start = Callable[..., jaxcluster.Cluster]
SETUP = "import jax, jax.numpy as jnp, os, time, threading; rank = jax.process_index()"


@pytest.mark.promise("What needs new processes")
@pytest.mark.parametrize(
    ("deed", "name", "error", "inner"),
    [
        ("import ctypes; ctypes.string_at(0)", "SIGSEGV", "segmentation fault", "in string_at"),
        ("os.abort()", "SIGABRT", "aborted", ""),
        ("os.kill(os.getpid(), 11)", "SIGSEGV", "segmentation fault", ""),
    ],
)
def test_a_crash_is_told_with_its_line(
    start: Start, deed: str, name: str, error: str, inner: str
) -> None:
    cluster = start(2, devices_per_process=1)
    cluster.run(f"{SETUP}\ndef broken():\n    {deed}", execution_count=5)
    where = place(cluster, 1)
    with pytest.raises(RankDied) as caught:
        cluster.run("print('before')\nif rank == 1:\n    broken()", execution_count=7, show=False)
    told = str(caught.value)
    assert told.startswith(
        f"Rank 1 died: killed by {name} ({error}){where} at cell [5] line 3, in broken"
    ), told
    assert inner in told
    assert "  cell [5] line 3, in broken\n  cell [7] line 3\n" in told
    assert "New processes" in told


def test_what_c_code_says_is_in_the_log_at_once(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No pipe is in the way: code that keeps the GIL would fill it, and an abort leave it unread.

    ipykernel's stream classes put one there in all processes but those that pytest has started.
    """
    monkeypatch.delenv("PYTEST_CURRENT_TEST")
    cluster = start(1)
    source = "import ctypes, os\ncode = ctypes.PyDLL(None)\n"  # calls that keep the GIL
    record = cluster.run(f"{source}code.write(1, b'x' * 200_000 + b'\\n', 200_001);", show=False)
    assert record.stdout() == "x" * 200_000 + "\n"
    with pytest.raises(RankDied) as caught:
        cluster.run("os.write(2, b'F0000 out of memory\\n')\ncode.abort()", show=False)
    assert "F0000 out of memory\nAborted at cell [2] line 2\n" in str(caught.value)


def test_a_crash_in_a_thread_of_the_users(start: Start) -> None:
    cluster = start(2, devices_per_process=1)
    cluster.run(SETUP)
    told = rf"SIGABRT \(aborted\){place(cluster, 0)} at cell \[8\] line 2, in work"
    with pytest.raises(RankDied, match=told):
        cluster.run(
            "def work():\n    os.abort()\n"
            "if rank == 0:\n    threading.Thread(target=work).start()\ntime.sleep(20)",
            execution_count=8,
            show=False,
        )


def test_an_idle_rank_that_is_killed_by_a_fault_says_where_it_was(start: Start) -> None:
    cluster = start(2, devices_per_process=1)
    send_signal(cluster, 1, signal.SIGSEGV)
    until(lambda: cluster.dead, "word of the death", 20)
    with pytest.raises(RankDied, match=r"Rank 1 died \(killed by SIGSEGV \(segmentation fault\)"):
        cluster.run("1", show=False)


def test_deep_stacks_name_the_cells_line(start: Start) -> None:
    """faulthandler's dump ends after 100 frames, and JAX's own are many."""
    cluster = start(2, devices_per_process=1)
    cluster.run(f"{SETUP}\ndef deep(n):\n    return deep(n - 1) if n else time.sleep(1000)")
    with pytest.raises(CellFailed) as caught:
        cluster.run("import json\n\ndeep(400)", timeout_s=1.0, execution_count=3, show=False)
    assert "line 3" in str(caught.value)

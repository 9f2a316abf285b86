"""Native crashes of a rank leave their stack in its log, and the message has the cell's line."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from helpers import Home
from overhosts import place

import jaxcluster
from jaxcluster.errors import CellFailed, RankDied


@pytest.fixture(scope="module")
def ranks(home: Home) -> Iterator[jaxcluster.Cluster]:
    """Each crash gives them new processes."""
    with jaxcluster.start(2, devices_per_process=1, name="crashes") as cluster:
        yield cluster


@pytest.mark.promise("What needs new processes")
@pytest.mark.parametrize(
    ("deed", "killed", "inner"),
    [
        ("import ctypes; ctypes.string_at(0)", "SIGSEGV (segmentation fault)", "in string_at"),
        ("os.abort()", "SIGABRT (aborted)", ""),
    ],
)
def test_a_crash_is_told_with_its_line(
    ranks: jaxcluster.Cluster, deed: str, killed: str, inner: str
) -> None:
    ranks.run(
        f"import jax, os; rank = jax.process_index()\ndef broken():\n    {deed}", execution_count=5
    )
    where = place(ranks, 1)
    with pytest.raises(RankDied) as caught:
        ranks.run("print('before')\nif rank == 1:\n    broken()", execution_count=7, show=False)
    told = str(caught.value)
    assert told.startswith(f"Rank 1 died: killed by {killed}{where} at cell [5] line 3, in broken")
    assert inner in told
    assert "  cell [5] line 3, in broken\n  cell [7] line 3\n" in told
    assert "New processes" in told


def test_a_crash_in_a_thread_of_the_users(ranks: jaxcluster.Cluster) -> None:
    told = rf"SIGABRT \(aborted\){place(ranks, 0)} at cell \[8\] line 3, in work"
    with pytest.raises(RankDied, match=told):
        ranks.run(
            "import jax, os, threading, time\ndef work():\n    os.abort()\n"
            "if jax.process_index() == 0:\n    threading.Thread(target=work).start()\n"
            "time.sleep(20)",
            execution_count=8,
            show=False,
        )


def test_deep_stacks_name_the_cells_line(ranks: jaxcluster.Cluster) -> None:
    """faulthandler's dump ends after 100 frames, and JAX's own are many."""
    ranks.run("import time\ndef deep(n):\n    return deep(n - 1) if n else time.sleep(1000)")
    with pytest.raises(CellFailed, match="line 3"):
        ranks.run("import json\n\ndeep(400)", timeout_s=1.0, execution_count=3, show=False)


def test_what_c_code_says_is_in_the_log_at_once(
    start: Callable[..., jaxcluster.Cluster], monkeypatch: pytest.MonkeyPatch
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

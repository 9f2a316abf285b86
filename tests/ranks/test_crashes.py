"""Native crashes of a rank leave their stack in its log, and the message has the cell's line."""

from __future__ import annotations

import signal
from collections.abc import Callable

import pytest
from helpers import until
from overhosts import place, send_signal

import jaxcluster
from jaxcluster.errors import CellFailed, RankDied
from jaxcluster.wire.link import replies
from jaxcluster.wire.ops.status import Stacks

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


def test_a_users_own_file_for_crashes_is_left_alone(start: Start, tmp_path: object) -> None:
    cluster = start(2, devices_per_process=1)
    own = f"{tmp_path}/crash-"
    cluster.run(
        f"{SETUP}\nimport faulthandler\nfile = open({own!r} + str(rank), 'w')\n"
        "faulthandler.enable(file)"
    )
    with pytest.raises(RankDied, match="killed by SIGABRT"):
        cluster.run("if rank == 1: os.abort()", show=False)
    with open(f"{own}1") as file:
        assert "Fatal Python error: Aborted" in file.read()


def test_a_process_that_the_user_started_may_crash(start: Start) -> None:
    cluster = start(2, devices_per_process=1)
    cluster.run(SETUP)
    record = cluster.run(
        "pid = os.fork()\nif pid == 0: os.abort()\nos.waitpid(pid, 0)[1] & 127", show=False
    )
    assert record.result(1) == {"text/plain": "6"}
    where = place(cluster, 1)
    send_signal(cluster, 1)
    until(lambda: cluster.dead, "word of the death", 20)
    with pytest.raises(RankDied, match=rf"Rank 1 died \(killed by SIGKILL{where}\)"):
        cluster.run("1", show=False)


def test_ranks_that_are_asked_where_they_are_while_they_trace_go_on(start: Start) -> None:
    """The crash that was seen: the walk of a live stack, in trainings that compile much."""
    cluster = start(2, devices_per_process=1)
    cluster.run(
        f"""{SETUP}
import sys
def recurse(x, n):
    if n == 0: return jnp.sin(x)
    if n % 3 == 0: return jax.vmap(lambda y: recurse(y, n - 1))(x[None])[0]
    return recurse(x * 2.0 + n, n - 1)
def train(seconds):
    end, k = time.monotonic() + seconds, 0
    while time.monotonic() < end:
        jax.make_jaxpr(lambda x: jax.grad(lambda y: recurse(y, 15))(x))(1.0)
        k += 1
    return k > 0
sys.setswitchinterval(1e-5)
"""
    )
    cell = cluster.submit("train(8)", execution_count=4)
    asked, places = 0, set[str]()
    while not cell.record.replies and asked < 2000:
        answers = cluster.world.link.gather([0, 1], Stacks(), timeout_s=5.0)
        for report in replies(answers).values():
            if report.state.state == "running":
                places.update(row[2] for row in report.stack)
        asked += 1
        if cell.done:
            break
        if asked % 50 == 0 and all(s.state == "idle" for s in cluster.status()):
            break
    assert cell.wait().result(1) == {"text/plain": "True"}
    assert asked > 20
    assert "recurse" in places or "train" in places


def test_deep_stacks_name_the_cells_line(start: Start) -> None:
    """faulthandler's dump ends after 100 frames, and JAX's own are many."""
    cluster = start(2, devices_per_process=1)
    cluster.run(f"{SETUP}\ndef deep(n):\n    return deep(n - 1) if n else time.sleep(1000)")
    with pytest.raises(CellFailed) as caught:
        cluster.run("import json\n\ndeep(400)", timeout_s=1.0, execution_count=3, show=False)
    assert "line 3" in str(caught.value)

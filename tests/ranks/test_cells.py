"""Cells by the Python interface: outputs, errors, who is waited for and who is interrupted."""

from __future__ import annotations

import _thread
import contextlib
import re
import threading
import time
from pathlib import Path

import pytest
from helpers import plain, until

import jaxcluster
from jaxcluster.errors import CellFailed, CellInterrupted, UsageError
from jaxcluster.model.outputs import CellRecord

pytestmark = pytest.mark.any_jax

LONG_S = 30.0  # generous: for what the issue wants at once, on a machine that is busy


def stdouts(record: CellRecord) -> list[str]:
    return [record.stdout(rank) for rank in record.ranks]


# --------------------------------------------------------------------------- running


def test_a_cell_runs_on_all_ranks_and_all_outputs_are_kept(cluster: jaxcluster.Cluster) -> None:
    record = cluster.run("print('rank', rank)\nrank * 10", show=False)
    assert stdouts(record) == [f"rank {r}\n" for r in range(4)]
    assert [record.result(r) for r in range(4)] == [{"text/plain": str(10 * r)} for r in range(4)]
    assert record.ok
    assert cluster.last is record
    assert re.fullmatch(
        rf"<cell \[{record.execution_count}\] on ranks 0-3: ok, .* s>", repr(record)
    )


def test_process_0s_output_is_printed_as_a_scripts_own(
    cluster: jaxcluster.Cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster.run("print('rank', rank)\nrank + 5")
    assert capsys.readouterr().out == "rank 0\n5\n"


def test_100_000_lines_arrive_complete_from_every_rank(cluster: jaxcluster.Cluster) -> None:
    record = cluster.run("for k in range(100_000): print(rank, k)", show=False)
    for rank in range(4):
        assert record.stdout(rank) == "".join(f"{rank} {k}\n" for k in range(100_000))


def test_what_c_code_and_subprocesses_print_is_shown_but_for_the_transports_chatter(
    cluster: jaxcluster.Cluster,
) -> None:
    record = cluster.run(
        "import subprocess\n"
        "subprocess.run(['echo', 'from a subprocess'])\n"
        "os.write(1, b'from C\\n')\n"
        "os.write(2, b'[Gloo] Rank 0 is connected to 3 peer ranks.\\n')\n"
        "os.system('echo half a line | tr -d \"\\\\n\"')",
        show=False,
    )
    text = record.stdout(0)
    assert "from a subprocess\nfrom C\n" in text
    assert "half a line" in text
    assert "Gloo" not in text
    assert "[Gloo] Rank 0 is connected to 3 peer ranks." in cluster.logs(0)


def test_only_the_named_ranks_run_a_cell(cluster: jaxcluster.Cluster) -> None:
    cluster.run("touched = False")
    record = cluster.run("touched = True\nprint(rank)", ranks=[3, 1], show=False)
    assert record.ranks == [1, 3]
    assert stdouts(record) == ["1\n", "3\n"]
    after = cluster.run("print(touched)", show=False)
    assert stdouts(after) == ["False\n", "True\n", "False\n", "True\n"]


@pytest.mark.parametrize("ranks", [[4], [-1], []])
def test_ranks_that_do_not_exist_are_refused(cluster: jaxcluster.Cluster, ranks: list[int]) -> None:
    with pytest.raises(UsageError):
        cluster.run("1", ranks=ranks)


def test_input_is_put_where_the_script_reads_its_own(
    cluster: jaxcluster.Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    monkeypatch.setattr("builtins.input", lambda prompt: asked.append(prompt) or prompt[:6])
    record = cluster.run("print(input('name? '))", show=False)
    (prompt,) = asked  # once for all ranks
    assert prompt.endswith("> name? ")
    assert stdouts(record) == [f"{prompt[:6]}\n"] * 4


# --------------------------------------------------------------------------- submitting


def test_a_cell_may_run_while_the_notebook_does_something_else(
    cluster: jaxcluster.Cluster, tmp_path: Path
) -> None:
    go_on = tmp_path / "go"
    cell = cluster.submit(
        f"while not os.path.exists({str(go_on)!r}): time.sleep(0.01)\nprint(rank)"
    )
    until(lambda: {s.state for s in cluster.status()} == {"running"}, "all ranks run the cell")
    assert not cell.done
    go_on.touch()
    assert stdouts(cell.wait()) == [f"{r}\n" for r in range(4)]
    assert cell.done
    assert cell.wait() is cell.record


# --------------------------------------------------------------------------- errors


def test_no_frame_of_ours_is_shown_of_a_callback_either(cluster: jaxcluster.Cluster) -> None:
    """XLA puts the whole of the process's stack into the message."""
    with pytest.raises(CellFailed) as caught:
        cluster.run(
            "import jax\n"
            "def mine(a):\n    raise ValueError('a mistake')\n"
            "float(jax.jit(lambda a: jax.pure_callback(mine, a, a))(1.0))",
            show=False,
        )
    text = plain("\n".join([str(caught.value), *caught.value.traceback]))
    assert "line 3, in mine" in text
    assert "ValueError: a mistake" in text
    for ours in ("jaxcluster", "interactiveshell", "runpy"):
        assert ours not in text


def test_an_error_inside_a_function_names_both_cells(cluster: jaxcluster.Cluster) -> None:
    cluster.run("def broken():\n    raise ValueError('inside')", execution_count=21)
    with pytest.raises(CellFailed) as caught:
        cluster.run("pass\nbroken()", execution_count=22)
    text = plain("\n".join(caught.value.traceback))
    assert "Cell In[22], line 2" in text
    assert "Cell In[21], line 2" in text


@pytest.mark.parametrize("end", ["an error", "a stop"])
def test_what_is_queued_behind_a_cell_that_fails_or_is_stopped_runs_on_no_rank(
    cluster: jaxcluster.Cluster, end: str
) -> None:
    """As a notebook's "run all" does."""
    cluster.run("count = 0")
    source = "if rank in (1, 2): raise ValueError('some')"
    first = cluster.submit(source if end == "an error" else "while rank == 1: time.sleep(0.01)")
    queued = [cluster.submit("count += 1") for _ in range(5)]
    if end == "a stop":
        until(lambda: cluster.status()[1].state == "running", "rank 1 runs the cell")
        first.stop()
    with pytest.raises(CellFailed if end == "an error" else CellInterrupted):
        first.wait()
    for cell in queued:
        with pytest.raises(CellFailed, match=r"was skipped: cell \[\d+\], which was queued before"):
            cell.wait()
    assert stdouts(cluster.run("count += 1\nprint(count)", show=False)) == ["1\n"] * 4


# --------------------------------------------------------------------------- failing fast


def test_after_the_grace_period_the_others_are_interrupted(cluster: jaxcluster.Cluster) -> None:
    began = time.monotonic()
    with pytest.raises(CellFailed) as caught:
        cluster.run("if rank == 1: raise ValueError('first')\ntime.sleep(1000)")
    assert time.monotonic() - began < LONG_S  # 2 s of grace
    assert caught.value.ranks == (1,)
    assert "Ranks 0, 2, 3 were interrupted 2 s later." in str(caught.value)
    assert {s.state for s in cluster.status()} == {"idle"}
    assert stdouts(cluster.run("print(rank)", show=False)) == [f"{r}\n" for r in range(4)]


# --------------------------------------------------------------------------- timeouts


@pytest.mark.parametrize(
    "source",
    [
        "while True: pass",
        "time.sleep(1000)",
        "import asyncio\nawait asyncio.sleep(1000)",
        "import asyncio\nawait asyncio.sleep(0)\nwhile True: pass",
        "!sleep 1000",
        "%timeit -n 1000000000 1",
        "%%time\nwhile True: pass",
    ],
)
def test_a_timeout_ends_a_cell_that_does_not_end(cluster: jaxcluster.Cluster, source: str) -> None:
    began = time.monotonic()
    with pytest.raises(CellFailed) as caught:
        cluster.run(source, timeout_s=0.5, execution_count=9)
    assert time.monotonic() - began < LONG_S
    assert str(caught.value).startswith(
        "Cell [9] took more than 0.5 s and was stopped on ranks 0-3."
    )
    assert caught.value.ename == "TimeoutError"
    assert stdouts(cluster.run("print(rank)", show=False)) == [f"{r}\n" for r in range(4)]


# --------------------------------------------------------------------------- stopping


def test_a_stopped_cell_says_so_and_the_next_one_runs(cluster: jaxcluster.Cluster) -> None:
    cell = cluster.submit("while True: time.sleep(0.01)", execution_count=8)
    until(lambda: {s.state for s in cluster.status()} == {"running"}, "all ranks run the cell")
    cell.stop()
    with pytest.raises(CellInterrupted, match=r"cell \[8\] was stopped on ranks 0-3\."):
        cell.wait()
    assert stdouts(cluster.run("print(rank)", show=False)) == [f"{r}\n" for r in range(4)]


def test_a_cell_that_waits_for_its_turn_is_stopped_at_once(cluster: jaxcluster.Cluster) -> None:
    first = cluster.submit("while True: time.sleep(0.01)")
    second = cluster.submit("never = 1")
    # A rank's main thread begins the first a moment after it got the turn.
    until(
        lambda: all(s.queued and s.state == "running" for s in cluster.status()),
        "the second cell waits",
    )
    second.stop()
    with pytest.raises(CellInterrupted):
        second.wait()
    assert {s.state for s in cluster.status()} == {"running"}
    first.stop()
    with pytest.raises(CellInterrupted):
        first.wait()
    assert stdouts(cluster.run("print('never' in globals())", show=False)) == ["False\n"] * 4


def test_code_that_catches_the_interrupt_goes_on(cluster: jaxcluster.Cluster) -> None:
    cell = cluster.submit(
        "try:\n    while True: time.sleep(0.01)\nexcept KeyboardInterrupt:\n    print('caught')"
    )
    until(lambda: {s.state for s in cluster.status()} == {"running"}, "all ranks run the cell")
    cell.stop()
    assert stdouts(cell.wait()) == ["caught\n"] * 4


@pytest.mark.promise("The promise")
def test_the_button_pressed_again_and_again_leaves_no_rank_in_the_cell(
    pair: jaxcluster.Cluster,
) -> None:
    cell = pair.submit("while True: time.sleep(0.01)")
    until(lambda: all(s.state == "running" for s in pair.status()), "the ranks run the cell")
    for k in range(20):
        threading.Timer(0.3 + 0.005 * k, _thread.interrupt_main).start()
    with pytest.raises(KeyboardInterrupt):
        cell.wait()
        time.sleep(1)  # for those that come later
    with contextlib.suppress(KeyboardInterrupt):
        time.sleep(0.5)
    assert pair.run("print(float(jnp.sum(x)))", show=False).stdout(1) == "496.0\n"

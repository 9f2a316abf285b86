"""A loop inside a launched program: it is told where the ranks are, and nothing is done."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from helpers import DEVICES, Notebook, until

import jaxcluster
from jaxcluster.errors import CellFailed
from jaxcluster.model import long_launches

SETUP = """
import jax, jax.numpy as jnp, numpy as np, os, time
from jax.sharding import NamedSharding, PartitionSpec as P
mesh = jax.make_mesh((jax.device_count(),), ("i",))
x = jax.make_array_from_callback((8,), NamedSharding(mesh, P("i")), lambda i: np.arange(8.0)[i])

def wait(value):
    while not os.path.exists(GO):
        time.sleep(0.05)
    return value

@jax.jit
def loop(x):
    total = jnp.sum(x)
    total = jax.pure_callback(wait, jax.ShapeDtypeStruct((), total.dtype), total)
    return total + jnp.sum(2 * x)
"""


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(long_launches, "LEAST_S", 2.0)


@pytest.mark.parametrize("devices", DEVICES)
def test_ranks_in_one_launch_are_told_and_the_cell_goes_on(
    start: Callable[..., jaxcluster.Cluster], tmp_path: Path, devices: int
) -> None:
    cluster = start(2, devices_per_process=devices, platform="cpu")
    cluster.run(f"GO = {str(tmp_path / 'go')!r}\n{SETUP}", show=False)
    told: list[str] = []
    cell = cluster.submit("y = loop(x)\nprint(float(y))", on_notice=told.append)
    thread = threading.Thread(target=cell.wait)
    thread.start()
    until(lambda: told, "a notice")
    (tmp_path / "go").touch()
    thread.join(60)
    assert "jit(loop), cell [" in told[0] and "] line 1" in told[0]
    assert told[0].startswith("Ranks 0, 1 have ")
    assert all("may just take long" in one for one in told)
    assert cell.record.ok and cell.record.stdout() == "84.0\n"


ENDLESS = """
@jax.jit
def spin(x):
    return jax.lax.while_loop(lambda n: n >= 0, lambda n: n + 1, jnp.sum(x))
"""


@pytest.mark.promise
@pytest.mark.parametrize("devices", DEVICES)
def test_a_program_that_never_ends_is_ended_and_the_values_come_back(
    start: Callable[..., jaxcluster.Cluster], devices: int
) -> None:
    cluster = start(2, devices_per_process=devices, platform="cpu")
    cluster.run(f"GO = '/'\n{SETUP}{ENDLESS}n = 1", show=False)
    with pytest.raises(CellFailed) as caught:
        cluster.run("n = 2\ny = spin(x)\nprint(y)", execution_count=4, stall_s=3, show=False)
    told = str(caught.value)
    assert told.startswith("Cell [4] was interrupted on ranks 0, 1, which had been in the same")
    assert "cell [4] line" in told and "Give it longer with --stall" in told
    assert "This cell is undone. Restored n" in told
    after = cluster.run("print(n, float(jnp.sum(x)))", show=False)
    assert after.stdout(0) == after.stdout(1) == "1 28.0\n"
    # Launches that go on are no stall, however long the cell is.
    cluster.run("for _ in range(30): float(jnp.sum(x)); time.sleep(0.2)", stall_s=3, show=False)


@pytest.mark.any_jax
def test_ranks_that_sleep_after_a_launch_are_not_told_of(
    start: Callable[..., jaxcluster.Cluster],
) -> None:
    cluster = start(2, platform="cpu")
    cluster.run(f"GO = '/'\n{SETUP}", show=False)
    told: list[str] = []
    cluster.run("y = float(loop(x))\ntime.sleep(4.5)", on_notice=told.append, show=False)
    assert told == []


@pytest.mark.any_jax
def test_a_finished_cell_has_one_line_of_who_was_waited_for_and_a_failed_one_none(
    open_notebook: Callable[..., Notebook],
) -> None:
    notebook = open_notebook()
    notebook.ok("%jaxcluster start -n 2 --platform cpu")
    notebook.ok("%%spmd\nimport jax, time")
    source = "%%spmd\nif jax.process_index(): time.sleep(8)\nprint('done')"
    sent = notebook.begin(source)
    notebook.until(lambda: "Rank 1 still works at cell" in sent.text, "the note")
    notebook.wait(sent)
    assert "still works" not in sent.text
    assert sent.stdout == "done\n"
    assert "Rank 1 was" in sent.text  # which stays true
    assert len(sent.bundles) == 1, "in its place"
    notebook.ok(f"%%spmd\nGO = '/'{SETUP}")
    late = "%%spmd\ny = loop(x) if not jax.process_index() else (time.sleep(8), loop(x))[1]\n"
    sent = notebook.begin(f"{late}print(float(y))")
    for seconds in ("[1-9]", "[6-9]"):  # the same line, which goes on
        told = rf"Rank 0 has waited {seconds} s for rank 1, which still runs cell \[6\] line 2 "
        notebook.until(lambda told=told: re.search(told, sent.text), told)  # type: ignore[misc]
        assert len(sent.bundles) == 1
    notebook.wait(sent)
    assert sent.stdout == "84.0\n"
    [bundle] = sent.bundles
    assert re.fullmatch(
        r"Rank 0 waited [789] s for rank 1, cell \[(6\] line 2|5\] line 15)\.",
        bundle["text/plain"],
    )
    failed = notebook.begin("%%spmd\nif jax.process_index(): time.sleep(7); 1/0")
    notebook.until(lambda: "Rank 1 still works at cell" in failed.text, "the note")
    notebook.wait(failed)
    assert failed.error and failed.bundles == [{"text/plain": ""}]
    notebook.ok("%jaxcluster stop")


UNEVEN = """
def turns(x):
    i = jax.lax.axis_index("i")
    go_on = lambda c: c[0] < 10 + 5 * i
    return jax.lax.while_loop(go_on, lambda c: c + 1 + 0 * jax.lax.psum(c, "i"), x)

uneven = jax.jit(
    jax.shard_map(turns, mesh=mesh, in_specs=P("i"), out_specs=P("i"), check_vma=False)
)
zeros = jax.make_array_from_callback((2,), NamedSharding(mesh, P("i")), lambda i: np.zeros(2)[i])
n = 1
"""


@pytest.mark.promise
def test_a_rank_that_waits_in_a_program_for_ever_is_told_and_the_cell_can_be_ended(
    start: Callable[..., jaxcluster.Cluster],
) -> None:
    cluster = start(2, devices_per_process=1, platform="cpu")
    cluster.run(f"GO = '/'\n{SETUP}{UNEVEN}", show=False)
    told: list[str] = []
    source = "n = 2\nuneven(zeros).block_until_ready()"
    with pytest.raises(CellFailed) as caught:
        cluster.run(source, execution_count=4, stall_s=7, on_notice=told.append, show=False)
    assert "jit(turns), cell [4] line 2" in "".join(told)
    assert "which rank 0 has made, too, and gone on." in "".join(told)
    assert str(caught.value).startswith("Cell [4] was interrupted on rank 1, which had been in")
    assert "This cell is undone. Restored n" in str(caught.value)
    after = cluster.run("print(n, float(jnp.sum(x)))", show=False)
    assert [after.stdout(rank) for rank in range(2)] == ["1 28.0\n"] * 2

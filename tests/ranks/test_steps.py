"""``jaxcluster.steps``: what ends a long cell costs its last steps, and no bit of the result."""

from __future__ import annotations

import json
import os
import re
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest
from helpers import DEVICES, Home, until
from overhosts import send_signal

import jaxcluster
from jaxcluster.errors import CellFailed, CellInterrupted, Divergence, RankDied
from jaxcluster.model.outputs import CellRecord

SETUP = """
import jax, jax.numpy as jnp, numpy as np, os, random, time, jaxcluster
from jax.sharding import NamedSharding, PartitionSpec as P
auto = jax.sharding.AxisType.Auto
mesh = jax.make_mesh((jax.device_count(),), ("i",), axis_types=(auto,))
rows = NamedSharding(mesh, P("i"))
r = jax.process_index()
def spread(values):
    return jax.make_array_from_process_local_data(rows, values)
def batch(i):
    n = 2 * jax.local_device_count()
    return spread(np.random.default_rng([i, r]).normal(size=(n, 3)).astype("float32"))
@jax.jit
def update(w, m, x):
    grad = jax.grad(lambda w: jnp.mean((x @ w - x.sum(axis=1)) ** 2))(w)
    return w - 0.05 * m, 0.9 * m + grad
update = jax.jit(update, donate_argnums=(0, 1))
def wait_for(name):
    while not os.path.exists(f"{FOLDER}/{name}"):
        time.sleep(0.005)
"""
# Waits at some steps until the test has done something.
LOOP = """
np.random.seed(3)
random.seed(r)
w, m = jnp.zeros(3), jnp.zeros(3)
own = spread(np.full((jax.local_device_count(), 2), 1.0 * r))
seen = other = []
noise, view = 0.0, np.zeros(4)
for i, x in jaxcluster.steps(((i, batch(i)) for i in range(60)), keep=10):
    if i in (25, 45):
        wait_for(f"go-{i}")
    w, m = update(w, m, x)
    own = own + i
    seen.append(i)
    view[i % 4] += random.random()
    noise += np.random.uniform()
    jaxcluster.log(w=w[0], noise=noise)
"""
TOLD = """
import hashlib, json
parts = [s.data for s in [*own.addressable_shards, *w.addressable_shards]]
parts = [np.asarray(part).tobytes().hex() for part in parts]
print("TOLD", json.dumps([i, len(seen), seen == list(range(60)), noise, view.tolist(), *parts]))
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """In which the ranks are, and in which they wait for files."""
    return tmp_path_factory.mktemp("steps")


@pytest.fixture(scope="module", params=DEVICES)
def running(
    request: pytest.FixtureRequest, home: Home, folder: Path
) -> Iterator[jaxcluster.Cluster]:
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        with jaxcluster.start(2, devices_per_process=request.param, name="steps") as cluster:
            yield cluster


@pytest.fixture
def ranks(running: jaxcluster.Cluster, folder: Path) -> jaxcluster.Cluster:
    """2 ranks, with the setup, of which no loop is kept."""
    for path in folder.iterdir():
        path.unlink()
    running.forget_steps()
    running.run(setup(folder), show=False)
    return running


def setup(folder: Path) -> str:
    return f"FOLDER = {str(folder)!r}\n{SETUP}"


def open_gates(folder: Path, *steps: int) -> None:
    for step in steps:
        (folder / f"go-{step}").touch()


def told(cluster: jaxcluster.Cluster, source: str) -> list[str]:
    """What each rank says of what the loop has come to."""
    return lines_of(cluster.run(source, show=False))


def lines_of(record: CellRecord) -> list[str]:
    """The ranks' own, among what gloo has to say."""
    found = [re.findall(r"(?m)^TOLD (.*)$", record.stdout(rank)) for rank in record.ranks]
    return [line for (line,) in found]


def begun(cluster: jaxcluster.Cluster, source: str, step: int) -> jaxcluster.RunningCell:
    """The cell, when all ranks have kept this step, and it waits at a later one."""
    cell = cluster.submit(source)
    cell.run_in_background(lambda record: None)
    until(lambda: (cell.core.loop_progress.kept or 0) >= step or cell.done, f"step {step}")
    return cell


def in_function(loop: str) -> str:
    body = textwrap.indent(f"{loop}\nglobals().update(locals())", "    ")
    return f"def train():\n{body}\ntrain()\n"


def killed(cell: jaxcluster.RunningCell, *ranks: int) -> str:
    for rank in ranks:
        send_signal(cell.cluster, rank)  # type: ignore[arg-type]
    with pytest.raises(RankDied) as caught:
        cell.wait()
    return str(caught.value)


def test_deaths_cost_no_bit(ranks: jaxcluster.Cluster, folder: Path) -> None:
    """What it has donated, drawn and changed in place too; and the file has each step once."""
    source = LOOP + TOLD
    open_gates(folder, 25, 45)
    undisturbed = told(ranks, source)
    for step in (25, 45):
        (folder / f"go-{step}").unlink()
    (folder / "jaxcluster-log.jsonl").unlink()
    assert "Kept at step 20: run the cell again" in killed(begun(ranks, source, 20), 1)
    assert "Kept at step 20: run the cell again" in killed(begun(ranks, source, 20), 0, 1)
    assert ranks.tell_steps().startswith("Step 20 of cell [")
    ranks.run(setup(folder), show=False)  # nothing of the cells before it has survived
    open_gates(folder, 25)
    assert "Kept at step 40: run the cell again" in killed(begun(ranks, source, 40), 0)
    open_gates(folder, 45)
    record = ranks.run(source, show=False)
    assert re.search(
        r"Going on at step 40, kept at \d\d:\d\d in cell \[\d+\]. Put back: .*noise.*. To begin at "
        "0: %jaxcluster steps forget",
        record.stdout(0),
    )
    assert lines_of(record) == undisturbed
    assert told(ranks, "print('TOLD', other is seen)") == ["True", "True"]
    text = (folder / "jaxcluster-log.jsonl").read_text()
    logged = [json.loads(line) for line in text.splitlines()]
    assert [one["step"] for one in logged] == list(range(60))
    assert len({one["run"] for one in logged}) == 1
    assert ranks.tell_steps() == "No loop is kept."
    assert told(ranks, source) == undisturbed  # it has come to its end, and begins at 0


@pytest.mark.parametrize("running", [1], indirect=True, ids=["D=1"])
def test_a_stop_and_an_error_cost_the_last_steps(ranks: jaxcluster.Cluster, folder: Path) -> None:
    source = LOOP + TOLD
    cell = begun(ranks, source, 20)
    cell.stop()
    with pytest.raises(CellInterrupted, match="Kept at step 20: run the cell again to go on"):
        cell.wait()
    open_gates(folder, 25)
    ranks.run("config = {'bad': True}", show=False)
    source = source.replace(
        "update(w, m, x)", "update(w, m, 1 if config['bad'] and i == 47 else x)"
    )
    cell = begun(ranks, source, 40)
    open_gates(folder, 45)
    with pytest.raises(CellFailed, match="Kept at step 40"):
        cell.wait()
    ranks.run("config['bad'] = False", show=False)
    record = ranks.run(source, show=False)
    # What the loop itself does not change is what it is now, and not what it was.
    assert "Going on at step 40, " in record.stdout(0)
    assert lines_of(record) == told(ranks, source)


@pytest.mark.parametrize("running", [1], indirect=True, ids=["D=1"])
def test_an_edited_cell_begins_at_0(ranks: jaxcluster.Cluster, folder: Path) -> None:
    killed(begun(ranks, LOOP, 20), 1)
    open_gates(folder, 25, 45)
    record = ranks.run(LOOP.replace("0.0", "1.0") + "print(noise)", show=False)
    assert re.search(
        r"Cell \[\d+\] had kept step 20. This loop is another one, or was edited since: it begins "
        r"at 0.",
        record.stdout(0),
    )
    for gate in (25, 45):
        (folder / f"go-{gate}").unlink()
    killed(begun(ranks, LOOP, 20), 1)
    assert ranks.forget_steps().startswith("Forgotten. It was: step 20 of cell [")
    open_gates(folder, 25, 45)
    assert "step" not in ranks.run(LOOP, show=False).stdout(0)


@pytest.mark.parametrize("running", [1], indirect=True, ids=["D=1"])
def test_what_diverged_ranks_have_is_not_kept(ranks: jaxcluster.Cluster, folder: Path) -> None:
    source = LOOP.replace("own = own + i", "own = own + i if (r, i) != (1, 25) else own")
    cell = begun(ranks, source, 20)
    open_gates(folder, 25, 45)
    with pytest.raises(Divergence, match="Kept at step 20"):
        cell.wait()
    assert ranks.tell_steps().startswith("Step 20 of cell [")


@pytest.mark.parametrize("running", [1], indirect=True, ids=["D=1"])
def test_in_a_function(ranks: jaxcluster.Cluster, folder: Path) -> None:
    """Its variables come back where Python can bind them; a dict that it names comes back."""
    with_state = (
        "state = {'w': jnp.zeros(3), 'seen': []}\nsame = state\n"
        "def train():\n"
        "    for i in jaxcluster.steps(range(35), keep=10, state=state):\n"
        "        if i == 25:\n"
        "            wait_for('go-25')\n"
        "        state['w'], _ = update(state['w'], jnp.ones(3), batch(i))\n"
        "        state['seen'].append(i)\n"
        "train()\n"
        "seen = state['seen'] == list(range(35))\n"
        "print('TOLD', same is state, seen, np.asarray(state['w']).tolist())"
    )
    sources = [with_state]
    if sys.version_info >= (3, 13):
        sources.append(in_function(LOOP) + TOLD)
    else:
        with pytest.raises(CellFailed, match=r"Python before 3\.13 can't put back a function's"):
            ranks.run(in_function(LOOP), show=False)
    for source in sources:
        assert "Kept at step 20" in killed(begun(ranks, source, 20), 1)
        open_gates(folder, 25, 45)
        record = ranks.run(source, show=False)
        assert "Going on at step 20" in record.stdout(0)
        assert lines_of(record) == told(ranks, source)
        for gate in (25, 45):
            (folder / f"go-{gate}").unlink()


@pytest.mark.parametrize("running", [2], indirect=True, ids=["D=2"])
def test_by_time_all_ranks_keep_the_same_step(ranks: jaxcluster.Cluster, folder: Path) -> None:
    source = LOOP.replace("keep=10", 'keep="0.1s"').replace("in (25, 45)", "== 59") + TOLD
    source = source.replace("go-{i}", "go").replace("    own =", "    time.sleep(0.01)\n    own =")
    cell = begun(ranks, source, 1)
    said = killed(cell, 1)
    kept = int(re.search(r"Kept at step (\d+)", said)[1])  # type: ignore[index]
    assert 0 < kept < 60
    (folder / "go").touch()
    record = ranks.run(source, show=False)
    begins = int(re.search(r"Going on at step (\d+)", record.stdout(0))[1])  # type: ignore[index]
    assert begins >= kept  # the last one may have become whole while the rank died
    assert lines_of(record) == told(ranks, source)


@pytest.mark.parametrize("running", [1], indirect=True, ids=["D=1"])
def test_the_line_and_the_curve_of_a_loop(ranks: jaxcluster.Cluster, folder: Path) -> None:
    lines: list[str] = []
    shown: list[tuple[str, str]] = []

    def hear(record: object, what: object) -> None:
        if "svg" in (html := getattr(what, "content", {}).get("data", {}).get("text/html", "")):
            shown.append((getattr(what, "kind"), html))  # noqa: B009

    cell = ranks.submit(LOOP, on_output=hear)
    cell.runner.on_status = lines.append
    cell.run_in_background(lambda record: None)
    until(lambda: any("kept at step 20" in line for line in lines), "the line")
    until(lambda: shown, "the picture")
    open_gates(folder, 25, 45)
    cell.wait()
    assert any(re.match(r"step \d+", line) for line in lines)  # a generator has no length
    assert lines[-1] == ""
    assert shown[0][0] == "display_data"
    assert {kind for kind, _ in shown[1:]} <= {"update_display_data"}
    assert shown[-1][1].count("<polyline") == 2
    assert 'text-anchor="end" opacity=".7">59</text>' in shown[-1][1]
    assert ranks.last is not None
    assert shown[-1][1] in str(ranks.last.records[0].outputs())
    with pytest.raises(CellFailed, match="inside of one that is kept"):
        ranks.run(
            "for i in jaxcluster.steps(range(3), keep=1):\n"
            "    for j in jaxcluster.steps(range(3), keep=1): pass",
            show=False,
        )
    with pytest.raises(CellFailed, match="x is not one number that this rank has"):
        ranks.run("jaxcluster.log(x=batch(0))", show=False)


FUNCTIONS = """
def make():
    n = 0
    def count():
        nonlocal n
        n += 1
        return n
    return count, lambda: n
def step(log=[]):
    log.append(len(log))
    step.calls += 1
    return list(log)
class Model:
    calls = 0
    @classmethod
    def call(cls):
        cls.calls += 1
        return cls.calls
count, read = make()
step.calls = warmup = 0
os.environ["CALLS"] = "0"
for i in jaxcluster.steps(range(60), keep=10):
    if i == 3:
        del warmup
        entered = jax.numpy_dtype_promotion("strict")
        entered.__enter__()
    if i == 25:
        wait_for("go-25")
    log = step()
    calls = os.environ["CALLS"] = str(int(os.environ["CALLS"]) + 1)
    last = (i, count(), step.calls, log, calls, Model.call())
late = str(jax.config.jax_numpy_dtype_promotion), "warmup" in globals()
entered.__exit__(None, None, None)
print("TOLD", last, read(), step.calls, os.environ["CALLS"], Model.calls, late)
"""


@pytest.mark.parametrize("running", [1], indirect=True, ids=["D=1"])
def test_what_functions_keep_comes_back(ranks: jaxcluster.Cluster, folder: Path) -> None:
    """Closures, attributes, defaults, classes, environment, a context; a deleted name is gone."""
    open_gates(folder, 25)
    undisturbed = told(ranks, FUNCTIONS)
    (folder / "go-25").unlink()
    assert "Kept at step 20: run the cell again" in killed(begun(ranks, FUNCTIONS, 20), 1)
    ranks.run(setup(folder), show=False)
    open_gates(folder, 25)
    record = ranks.run(FUNCTIONS, show=False)
    back = "Put back: Model, calls, context jax_numpy_dtype_promotion, count, entered, i, last, log"
    assert back in record.stdout(0)
    assert lines_of(record) == undisturbed


@pytest.mark.parametrize("running", [1], indirect=True, ids=["D=1"])
def test_what_can_not_be_kept_is_named(ranks: jaxcluster.Cluster) -> None:
    """And a rank that can keep nothing holds nobody up."""
    source = "for i in jaxcluster.steps(range(40), keep=10): last = (given, i)\nprint('TOLD', i)"
    record = ranks.run(f"given = (one for one in ())\n{source}", show=False)
    said = "Not in what is kept of this loop: given (a generator can't be saved), last (it holds a"
    assert said in record.stdout(0)
    assert lines_of(record) == ["39", "39"]
    record = ranks.run(
        "from jaxcluster.engine.steps import active_loops\n"
        f"if r: active_loops.active.checkpoints.settle = lambda *_: 1 / 0\ngiven = 0\n{source}\n"
        "if r: del active_loops.active.checkpoints.settle",
        show=False,
    )
    said = "This loop is no longer kept (rank 1: ZeroDivisionError: division by zero)."
    assert said in record.stdout(0)
    assert lines_of(record) == ["39", "39"]


@pytest.mark.one_machine("it looks at the cluster's folder")
def test_nothing_is_left(home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The files are private, and go with the cluster."""
    monkeypatch.chdir(tmp_path)
    with jaxcluster.start(1, devices_per_process=1, name="left") as cluster:
        with pytest.raises(CellFailed, match="Kept at step 2"):
            cluster.run(
                "import jaxcluster, time\nfrom jaxcluster.engine.steps.active_loops import active\n"
                "for i in jaxcluster.steps(range(4), keep=2):\n"
                "    while i == 3 and not active.checkpoints.entries: time.sleep(0.005)\n"
                "    while i == 3 and active.loops[0].checkpointer._is_busy: time.sleep(0.005)\n"
                "    1 / (3 - i)",
                show=False,
            )
        kept = home.path / "run" / "left" / "steps"
        files = [kept, *kept.rglob("*")]
        assert any(path.name == "rank-0.state" for path in files)
        assert all(not os.stat(path).st_mode & 0o077 for path in files)
    assert not kept.exists()

"""Profiles of all ranks: a file for each, one trace of all, and who keeps the others waiting."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import traces
from helpers import Notebook, python, until

import jaxcluster
from jaxcluster.errors import CellFailed, CellInterrupted, RankDied, UsageError
from jaxcluster.views import profile as view

SETUP = """total = jax.jit(lambda x: (x * x).sum())
float(total(x))
def read(folder):
    from pathlib import Path
    from jax.profiler import ProfileData
    files = sorted(Path(folder).glob('plugins/profile/*/*.xplane.pb'))
    planes = [{one.name for one in ProfileData.from_file(str(file)).planes} for file in files]
    assert all('Task Environment' in one for one in planes), planes
    return [f'{file.parent.name}/{file.name}' for file in files]
"""
LOOP = """for number in range(40):
    time.sleep(0.002 + 0.05 * {late} * (rank == 1))
    float(total(x))
"""
KNOWN = """for _ in range(20):
    at_ns, mark = time.monotonic_ns(), jax.profiler.TraceAnnotation('known')
    with mark:
        taken_ns = time.monotonic_ns() - at_ns
    if taken_ns < 100_000:
        break
"""
TRACE = """with jax.profiler.trace({folder!r}, {options}):
    float(total(x))
"""


@pytest.fixture(scope="module")
def ready(cluster: jaxcluster.Cluster) -> jaxcluster.Cluster:
    cluster.run(SETUP, show=False, execution_count=3)
    return cluster


def written(cluster: jaxcluster.Cluster, folder: Path) -> list[str]:
    """The files of ranks below a folder, all of which JAX's own reader has read."""
    return list(value(cluster, f"read({str(folder)!r})"))


def value(cluster: jaxcluster.Cluster, expression: str) -> Any:
    """Rank 0's."""
    shown = cluster.run(expression, ranks=[0], show=False).result()
    assert shown is not None
    return ast.literal_eval(shown["text/plain"])


def test_a_laggard_is_named_and_each_rank_has_a_file(
    ready: jaxcluster.Cluster, tmp_path: Path
) -> None:
    found = ready.profile(LOOP.format(late=1), tmp_path)
    assert found.straggler is not None
    assert found.straggler.ranks == (1,)
    assert 0.04 < found.straggler.behind_s < 0.12
    assert found.straggler.launch.line == 3
    (sums,) = [one for one in found.collectives if one.last is not None]
    assert (sums.last, sums.times) == (1, 40)
    assert sums.place == "cell [3] line 1"
    assert sums.seconds[0] > 1.5 > sums.seconds[1]
    assert found.steps is not None
    assert (found.steps.count, found.missing) == (40, {})
    assert [Path(path).name for path in found.files.values()] == [
        f"rank-{rank}.xplane.pb" for rank in range(4)
    ]
    names = written(ready, tmp_path)
    assert len({name.partition("/")[0] for name in names}) == 1
    assert len(names) == 4
    told = view.text(found, "cell [4]")
    assert re.search(r"Profile of cell \[4\]: 4 ranks, \d.*, 40 launches of jit\(", told)
    assert "Rank 1 came last into " in told


def test_the_trace_of_all_ranks_has_one_clock(ready: jaxcluster.Cluster, tmp_path: Path) -> None:
    found = ready.profile(KNOWN + LOOP.format(late=0), tmp_path)
    slices = traces.read(found.trace)
    shown = {
        one.process.partition(" (")[0]: one.start for one in slices if one.name == "known"
    }  # the last
    noted = ready.run("at_ns", show=False, shown_ranks=range(4))
    lag = [
        shown[f"rank {rank}"] - int(noted.result(rank)["text/plain"])  # type: ignore[index]
        for rank in range(4)
    ]
    assert max(lag) - min(lag) < 1e6  # some 0.01 ms, unless a rank had to wait in between
    assert {one.process.partition(" (")[0] for one in slices} == {f"rank {n}" for n in range(4)}
    ends = [ends_of(slices, f"rank {rank}", "all-reduce.1") for rank in range(4)]
    apart = sorted(max(each) - min(each) for each in zip(*ends, strict=True))
    assert len(apart) == 40
    assert apart[10] < 5e6  # some 0.2 ms: a collective ends at the same time everywhere
    assert len([one for one in slices if one.track == "launches"]) == 160


def ends_of(slices: list[traces.Slice], process: str, name: str) -> list[int]:
    """Of each turn of a collective, in which two devices of each process take part."""
    own = [one for one in slices if one.process.partition(" (")[0] == process]
    found = sorted(one.end for one in own if one.name == name)
    return [found[min(at + 1, len(found) - 1)] for at in range(0, len(found), 2)]


def test_nobody_is_named_where_all_are_alike(ready: jaxcluster.Cluster, tmp_path: Path) -> None:
    found = ready.profile(LOOP.format(late=0), tmp_path)
    assert found.straggler is None
    assert [one.last for one in found.collectives] == [None] * len(found.collectives)
    assert "came last" not in view.html(found, "cell [4]")


@pytest.mark.parametrize("options", ["", "create_perfetto_trace=True"])
def test_a_users_own_trace_has_a_file_of_each_rank(
    ready: jaxcluster.Cluster, tmp_path: Path, options: str
) -> None:
    ready.run(TRACE.format(folder=str(tmp_path), options=options), show=False, execution_count=5)
    names = written(ready, tmp_path)
    assert [name.partition("/")[2] for name in names] == [f"rank-{n}.xplane.pb" for n in range(4)]
    (session,) = {name.partition("/")[0] for name in names}
    assert session.startswith("cell-5-")
    others = {path.name for path in tmp_path.glob("plugins/profile/*/rank-2.*")}
    assert others >= {"rank-2.xplane.pb", "rank-2.trace.json.gz"}
    assert ("rank-2.perfetto_trace.json.gz" in others) == bool(options)
    assert [path.name for path in tmp_path.iterdir()] == ["plugins"]


def test_a_session_that_is_named_and_a_second_trace_are_kept_apart(
    ready: jaxcluster.Cluster, tmp_path: Path
) -> None:
    options = "create_perfetto_trace=True, profiler_options=options"
    mine = TRACE.format(folder=str(tmp_path), options=options)
    again = TRACE.format(folder=str(tmp_path), options="")
    source = f"options = jax.profiler.ProfileOptions()\noptions.session_id = 'mine'\n{mine}{again}"
    ready.run(source, show=False, execution_count=6)
    files = written(ready, tmp_path)
    sessions = sorted({name.partition("/")[0] for name in files})
    assert sessions[0].startswith("cell-6-")
    assert sessions[1] == "mine"
    assert len(files) == 8
    assert len(list(tmp_path.glob("plugins/profile/mine/rank-*.perfetto_trace.json.gz"))) == 4


def test_xprof_opens_the_files_as_one_run(ready: jaxcluster.Cluster, tmp_path: Path) -> None:
    convert = pytest.importorskip("xprof.convert.raw_to_tool_data")
    files = [*ready.profile(LOOP.format(late=0), tmp_path).files.values()]
    hosts = [f"rank-{rank}" for rank in range(4)]
    data, _ = convert.xspace_to_tool_data(files, "trace_viewer@", {"hosts": hosts})
    assert all(host.encode() in data for host in hosts)


def test_a_cell_that_profiles_itself_is_told_what_to_leave_out(
    ready: jaxcluster.Cluster, tmp_path: Path
) -> None:
    with pytest.raises(CellFailed, match="Profile has already been started") as raised:
        ready.profile(TRACE.format(folder=str(tmp_path / "own"), options=""), tmp_path)
    assert "runs without --profile" in raised.value.hint
    assert len(written(ready, tmp_path)) == 4


def test_a_rank_that_is_profiled_already_is_named_before_anything_runs(
    ready: jaxcluster.Cluster, tmp_path: Path
) -> None:
    ready.run(f"ran = 0\nif rank == 2: jax.profiler.start_trace({str(tmp_path)!r})", show=False)
    try:
        with pytest.raises(UsageError, match="Rank 2 is being profiled already") as raised:
            ready.profile("ran = 1", tmp_path / "other")
        assert "stop_trace" in raised.value.hint
    finally:
        ready.run("if rank == 2: jax.profiler.stop_trace()", show=False)
    assert value(ready, "ran") == 0
    assert not (tmp_path / "other").exists()


def test_a_cell_that_fails_leaves_its_files(ready: jaxcluster.Cluster, tmp_path: Path) -> None:
    with pytest.raises(CellFailed, match="ZeroDivisionError"):
        ready.profile("float(total(x))\n1 / 0", tmp_path)
    assert len(written(ready, tmp_path)) == 4
    ready.profile("float(total(x))", tmp_path)  # it can be done again


def test_a_cell_that_runs_is_profiled(ready: jaxcluster.Cluster, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="No cell runs"):
        ready.profile_running(1, tmp_path)
    cell = ready.submit(LOOP.format(late=1).replace("range(40)", "range(10000)"))
    try:
        until(lambda: all(one.state == "running" for one in ready.status()), "a cell that runs")
        found = ready.profile_running(3, tmp_path)
    finally:
        ready.interrupt()
        with pytest.raises(CellInterrupted):
            cell.wait()
    assert found.straggler is not None
    assert found.straggler.ranks == (1,)
    assert len(found.files) == 4
    assert 1 < found.span_s < 30


def test_a_rank_that_dies_has_no_file_and_the_others_have(
    start: Callable[..., jaxcluster.Cluster], tmp_path: Path
) -> None:
    cluster = start(2)
    made = cluster.prepare_profile(tmp_path)
    source = "import jax, os, time\nif jax.process_index(): os._exit(3)\ntime.sleep(600)"
    cell = cluster.submit(source, profile=made.token)
    with pytest.raises(RankDied):
        cell.wait()
    found = made.collect(cluster.world, cell.record.seq)
    assert list(found.files) == [0]
    assert found.missing == {1: "it has written no file"}
    assert "Rank 1 has no profile: it has written no file." in view.text(found, "cell [1]")


@pytest.mark.one_machine("what a notebook shows is the same")
def test_a_notebook_shows_it_below_the_cell(
    open_notebook: Callable[..., Notebook], tmp_path: Path
) -> None:
    notebook = open_notebook()
    notebook.ok("%jaxcluster start -n 2 --platform cpu")
    notebook.ok(
        "%%spmd\nimport jax, numpy as np, time\n"
        "from jax.sharding import NamedSharding, PartitionSpec\n"
        "mesh = jax.make_mesh((2,), ('i',))\nrank = jax.process_index()\n"
        "x = jax.device_put(np.ones(8), NamedSharding(mesh, PartitionSpec('i')))\n"
        "total = jax.jit(lambda x: x.sum())\nfloat(total(x))"
    )
    loop = "\nfor _ in range(40):\n    time.sleep(0.05 * rank)\n    float(total(x))"
    shown = notebook.ok(f"%%spmd --profile before{loop}")
    bundle = next(one for one in shown.bundles if view.MIME in one)
    told = bundle["text/plain"]
    assert told.startswith("Profile of cell [4]: 2 ranks, ")
    assert "Rank 1 came last into " in told
    assert "before the launch at line 4." in told
    assert "cell [3] line 7" in told
    document = bundle[view.MIME]
    assert document["files"]["1"].endswith("/rank-1.xplane.pb")
    assert len(list(tmp_path.glob("before/plugins/profile/cell-4-*/rank-*.xplane.pb"))) == 2
    assert traces.read(document["trace"])
    shown = notebook.run("%%spmd --profile\nfloat(total(x))\n1 / 0")
    assert shown.ename == "CellFailed"
    assert any("Profile of cell [5]" in one.get("text/plain", "") for one in shown.bundles)
    assert len(list(tmp_path.glob("jaxcluster-profiles/plugins/profile/*/*.pb"))) == 2
    shown = notebook.run("%%spmd --profile --async\n1")
    assert "%jaxcluster profile 5s" in shown.error
    assert "No cell runs" in notebook.run("%jaxcluster profile").error
    notebook.ok(f"%%spmd --async --out job{loop.replace('40', '10000')}")
    stopped = notebook.begin("%jaxcluster profile 600s")
    notebook.until(lambda: "Profiling the cell" in stopped.text, "a profile that runs")
    notebook.manager.interrupt_kernel()
    assert "stopped" in notebook.wait(stopped).error
    shown = notebook.ok("%jaxcluster profile 2s")
    told = next(one for one in shown.bundles if view.MIME in one)["text/plain"]
    assert "Rank 1 came last into " in told
    notebook.ok("%jaxcluster stop")


@pytest.mark.one_machine("a shell's commands start clusters of this machine")
def test_a_script_is_profiled(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        "import jax, numpy as np, time\nfrom jax.sharding import NamedSharding, PartitionSpec\n"
        "mesh = jax.make_mesh((2,), ('i',))\n"
        "x = jax.device_put(np.ones(8), NamedSharding(mesh, PartitionSpec('i')))\n"
        "total = jax.jit(lambda x: x.sum())\n"
        "for _ in range(40):\n    time.sleep(0.05 * jax.process_index())\n    float(total(x))\n"
    )
    folder = tmp_path / "out"
    done = python(
        "-m", "jaxcluster.cli", "run", "-n", "2", "--trace", str(folder), str(script)
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "Profile of train.py: 2 ranks" in done.stderr
    assert "Rank 1 came last into " in done.stderr
    assert "of train.py, " in done.stderr
    assert "before the launch at line 8." in done.stderr
    assert "train.py line 5" in done.stderr
    assert len(list(folder.glob("plugins/profile/*/rank-*.xplane.pb"))) == 2
    assert len(list(folder.glob("*.pftrace.gz"))) == 1

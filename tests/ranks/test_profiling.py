"""Cells under JAX's own profiler: a folder for each rank, which xprof and Perfetto open."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from helpers import Notebook

import jaxcluster
from jaxcluster.errors import CellFailed

pytestmark = pytest.mark.any_jax

SETUP = """import jax, numpy as np
from jax.sharding import NamedSharding, PartitionSpec
x = jax.device_put(np.ones(8), NamedSharding(jax.make_mesh((2,), ('i',)), PartitionSpec('i')))
def sum_of_squares(x): return (x * x).sum()
total = jax.jit(sum_of_squares)
"""


@pytest.fixture(scope="module")
def ready(pair: jaxcluster.Cluster) -> jaxcluster.Cluster:
    pair.run(SETUP)
    return pair


def written(folder: Path) -> list[list[Path]]:
    """The profiles of each rank below a folder, all of which know the function."""
    found = [sorted(folder.glob(f"rank-{rank}/plugins/profile/*/*.xplane.pb")) for rank in (0, 1)]
    assert all(b"sum_of_squares" in file.read_bytes() for own in found for file in own)
    return found


def test_each_rank_has_a_folder_and_a_second_profile_leaves_the_first(
    ready: jaxcluster.Cluster, tmp_path: Path
) -> None:
    ready.run("float(total(x))", profile=tmp_path)
    first = {file: file.read_bytes() for own in written(tmp_path) for file in own}
    with pytest.raises(CellFailed, match="ZeroDivisionError"):  # it leaves its files, too
        ready.run("float(total(x))\n1 / 0", profile=tmp_path)
    assert [len(own) for own in written(tmp_path)] == [2, 2]
    assert len(first) == 2 and all(file.read_bytes() == data for file, data in first.items())
    files = list(tmp_path.glob("rank-*/plugins/profile/cell-*/perfetto_trace.json.gz"))
    assert len(files) == 4
    for file in files:
        events = json.loads(gzip.decompress(file.read_bytes()))["traceEvents"]
        assert any("sum_of_squares" in event.get("name", "") for event in events)


def test_a_cell_that_can_not_be_profiled_does_not_run(
    ready: jaxcluster.Cluster, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    ready.run("ran = 0")
    with pytest.raises(CellFailed, match="NotADirectoryError"):
        ready.run("ran = 1", profile=tmp_path / "file")
    assert ready.run("print(ran)", show=False).stdout(1) == "0\n"
    ready.run(f"jax.profiler.start_trace({str(tmp_path / 'own')!r})")
    with pytest.raises(CellFailed, match="RuntimeError"):
        ready.run("ran = 1", profile=tmp_path / "more")
    ready.run("jax.profiler.stop_trace()")  # the user's own has gone on


@pytest.mark.one_machine("what a notebook shows is the same")
def test_a_notebook_says_where_the_files_are(
    open_notebook: Callable[..., Notebook], tmp_path: Path
) -> None:
    notebook = open_notebook()
    notebook.ok("%jaxcluster start -n 2 --platform cpu")
    notebook.ok(f"%%spmd\n{SETUP}")
    shown = notebook.ok("%%spmd --profile before\nprint(float(total(x)))").stdout
    folder = tmp_path / "before"
    assert shown == (
        f"Each rank's profile: {folder}/rank-N. To open them: xprof {folder}, or a "
        "perfetto_trace.json.gz at ui.perfetto.dev.\n8.0\n"
    )
    notebook.ok("%%spmd --profile --async --out job\nfloat(total(x))")
    notebook.ok("job.wait()")
    for each in (folder, tmp_path / "profile-1"):
        assert [len(own) for own in written(each)] == [1, 1]

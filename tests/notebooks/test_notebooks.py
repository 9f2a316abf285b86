"""Every notebook in notebooks/ runs from top to bottom, and leaves no process behind.

But for those that need other hosts, which ``tests/launchers`` has.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from documents import code_cells, read_document, text_under
from helpers import Home

NOTEBOOKS = {path.stem: path for path in (Path(__file__).parents[2] / "notebooks").glob("*.ipynb")}
NEED_HOSTS = {"several_hosts"}  # run by tests/launchers/test_several_hosts.py
# One compiles for most of a minute on two cores: with the newest jax alone. What it shows is in
# tests/ranks/test_guides.py, with both.
MARKS = {"sharding": [pytest.mark.newest_jax], "quickstart": [pytest.mark.quick]}
LOCAL = [
    pytest.param(name, marks=MARKS.get(name, [])) for name in sorted({*NOTEBOOKS} - NEED_HOSTS)
]

Run = Callable[[str], list[Any]]


@pytest.mark.parametrize("name", sorted(NOTEBOOKS))
def test_notebook_is_committed_without_outputs(name: str) -> None:
    notebook = read_document(NOTEBOOKS[name])
    assert (notebook.nbformat, notebook.nbformat_minor) == (4, 5)
    assert notebook.metadata.kernelspec.name == "python3"
    for cell in notebook.cells:
        if cell.cell_type == "code":
            assert cell.outputs == []
            assert cell.execution_count is None
    assert notebook.cells[-1].source == "%jaxcluster stop"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Executes a notebook once, however many tests look at it; its code cells."""
    from nbclient import NotebookClient

    done: dict[str, list[Any]] = {}

    def execute(name: str) -> list[Any]:
        if name not in done:
            directory = tmp_path_factory.mktemp(name)
            notebook = read_document(shutil.copy(NOTEBOOKS[name], directory))
            # 300 s on a busy machine; with all errors seen, a failure shows them.
            client = NotebookClient(notebook, timeout=300, kernel_name="python3", allow_errors=True)
            client.resources = {"metadata": {"path": str(directory)}}
            with Home.make() as home:
                client.execute(env=home.environ())
                home.wait_until_empty()
            done[name] = code_cells(notebook)
        return done[name]

    return execute


def told(cells: list[Any], part_of_source: str) -> str:
    (cell,) = (one for one in cells if part_of_source in one.source)
    return text_under(cell)


@pytest.mark.parametrize("name", LOCAL)
@pytest.mark.timeout(600)
def test_notebook_runs_fails_where_it_means_to_and_leaves_no_process(name: str, run: Run) -> None:
    cells = run(name)
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1))


@pytest.mark.timeout(240)
def test_each_break_is_told_and_afterwards_results_are_right(run: Run) -> None:
    cells = run("when_it_breaks")
    for part_of_source, words in {
        "if rank != 1:": "rank 1 ended the cell without the launch that ranks 0, 2, 3 wait for.",
        "batches = 10": "the last 9 launches from line 4 on mixed iterations",
        "raise ValueError": "Ranks 0, 1, 3 stopped before the next launch.",
        "'max'": "ranks 0-3 were about to launch different programs.",
        "--timeout 2": "took more than 2 s",
    }.items():
        assert words in told(cells, part_of_source)
    assert told(cells, "--all").splitlines() == ["── ranks 0-3 ──", "120.0 15.0"]


@pytest.mark.timeout(240)
@pytest.mark.quick
def test_the_quickstart_shows_process_0s_line_and_whole_arrays(run: Run) -> None:
    cells = run("quickstart")
    process, value = told(cells, "jnp.sum(jnp.sin(x))").split()  # one line
    assert process == "0"
    assert float(value) == pytest.approx(-0.1239873, abs=1e-5)
    text = told(cells, "%%spmd\nx")
    assert "int32" in text
    assert all(str(number) in text for number in range(32))
    text = told(cells, "%pull x")
    assert "(4, 8)" in text
    assert str(sum(range(32))) in text

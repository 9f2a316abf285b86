"""Every notebook in notebooks/ runs from top to bottom, and leaves no process behind.

But for those that need other hosts, which ``tests/launchers`` has.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import nbformat
import psutil
import pytest
from nbclient import NotebookClient

NOTEBOOKS = sorted((Path(__file__).parents[2] / "notebooks").glob("*.ipynb"))
MARK = "JAXCLUSTER_TEST_MARK"

NEED_HOSTS = {"several_hosts"}  # run by tests/launchers/test_several_hosts.py

every_notebook = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
# One compiles for most of a minute on two cores: with the newest jax alone. What it shows is in
# tests/ranks/test_guides.py, with both.
LONG = {"sharding": [pytest.mark.newest_jax]}
every_local_notebook = pytest.mark.parametrize(
    "path",
    [
        pytest.param(path, id=path.stem, marks=LONG.get(path.stem, []))
        for path in NOTEBOOKS
        if path.stem not in NEED_HOSTS
    ],
)


# ------------------------------------------------------------------------------- what is committed


@every_notebook
def test_notebook_is_committed_without_outputs(path: Path) -> None:
    notebook = nbformat.read(path, as_version=nbformat.NO_CONVERT)
    nbformat.validate(notebook)
    assert (notebook.nbformat, notebook.nbformat_minor) == (4, 5)
    assert notebook.metadata.kernelspec.name == "python3"
    for cell in notebook.cells:
        if cell.cell_type == "code":
            assert cell.outputs == []
            assert cell.execution_count is None
    assert notebook.cells[-1].source == "%jaxcluster stop"


# ------------------------------------------------------------------------------------- what it does


@dataclass(frozen=True)
class Executed:
    """An executed notebook's code cells, and the processes that it left behind."""

    cells: list[Any]
    left_over: list[str]

    def cell(self, part_of_source: str) -> Any:
        (found,) = (c for c in self.cells if part_of_source in c.source)
        return found


def processes_with_mark(mark: str) -> list[str]:
    """The command lines of all processes whose environment carries ``mark``.

    The kernel gets the mark when it is started, so that whatever it starts has it too, however
    often it forks and whoever has become its parent.
    """
    found = []
    for process in psutil.process_iter():
        try:
            alive = process.status() != psutil.STATUS_ZOMBIE
            if alive and process.environ().get(MARK) == mark:
                found.append(f"{process.pid}: {' '.join(process.cmdline())}")
        except psutil.Error:  # gone in the meantime, or somebody else's
            continue
    return found


def wait_until_none_is_left(mark: str, deadline_s: float = 10.0) -> list[str]:
    end = time.monotonic() + deadline_s
    while (left := processes_with_mark(mark)) and time.monotonic() < end:
        time.sleep(0.1)
    return left


def execute(path: Path, directory: Path) -> Executed:
    copy = Path(shutil.copy(path, directory))
    notebook = nbformat.read(copy, as_version=4)
    client = NotebookClient(
        notebook,
        timeout=300,  # on a busy machine
        kernel_name="python3",
        allow_errors=True,  # we look at the outputs ourselves: a failure then shows all of them
        resources={"metadata": {"path": str(directory)}},
    )
    mark = uuid.uuid4().hex
    # Sockets are made in the runtime directory, so its path has to be short: pytest's are not.
    with tempfile.TemporaryDirectory(prefix="jaxcluster-", dir="/tmp") as runtime:
        # No startup file, profile or running cluster of the user's gets in the way.
        settings = {
            MARK: mark,
            "IPYTHONDIR": str(directory / "ipython"),
            "JAXCLUSTER_RUNTIME_DIR": runtime,
        }
        client.execute(env=os.environ | settings)
        left_over = wait_until_none_is_left(mark)
    return Executed([c for c in notebook.cells if c.cell_type == "code"], left_over)


def may_fail(cell: Any) -> bool:
    """Whether a cell shows an error on purpose."""
    return "raises-exception" in cell.metadata.get("tags", [])


def errors_in(cells: list[Any]) -> Iterator[str]:
    """The errors of cells that are not meant to fail."""
    for cell in cells:
        if may_fail(cell):
            continue
        for output in cell.outputs:
            if output.output_type == "error":
                yield f"{cell.source}\n{output.ename}: {output.evalue}\n" + "\n".join(
                    output.traceback
                )


def text_under(cell: Any) -> str:
    """All text that stands under a cell, as a user would read it (errors aside)."""
    text = ""
    for output in cell.outputs:
        if output.output_type == "stream":
            text += output.text
        elif output.output_type != "error":
            text += output.data.get("text/plain", "") + "\n"
    return text


@pytest.fixture(scope="module")
def executed(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Executes a notebook once, however many tests look at it."""
    done: dict[Path, Executed] = {}

    def get(path: Path) -> Executed:
        if path not in done:
            done[path] = execute(path, tmp_path_factory.mktemp(path.stem))
        return done[path]

    return get


@every_local_notebook
@pytest.mark.timeout(600)
def test_notebook_runs_fails_where_it_means_to_and_leaves_no_process(
    path: Path, executed: Any
) -> None:
    result = executed(path)
    assert [cell.execution_count for cell in result.cells] == list(range(1, len(result.cells) + 1))
    if errors := list(errors_in(result.cells)):
        pytest.fail("\n\n".join(errors), pytrace=False)
    for cell in filter(may_fail, result.cells):
        assert any(o.output_type == "error" for o in cell.outputs), cell.source
    assert result.left_over == []


BREAKS = next(path for path in NOTEBOOKS if path.stem == "when_it_breaks")


@pytest.mark.timeout(240)
@pytest.mark.parametrize(
    ("part_of_source", "told"),
    [
        ("if rank != 1:", "rank 1 ended the cell without the launch that ranks 0, 2, 3 wait for."),
        ("batches = 10", "The last 9 launches from line 4 on may have met other turns of a loop"),
        ("raise ValueError", "Ranks 0, 1, 3 stopped before the next launch."),
        ("'max'", "ranks 0-3 came to launch different programs."),
        ("--timeout 2", "took more than 2 s"),
    ],
)
def test_each_break_is_told(executed: Any, part_of_source: str, told: str) -> None:
    cell = executed(BREAKS).cell(part_of_source)
    (error,) = (o for o in cell.outputs if o.output_type == "error")
    assert told in "\n".join(error.traceback)


@pytest.mark.timeout(240)
def test_after_all_breaks_results_are_right(executed: Any) -> None:
    assert text_under(executed(BREAKS).cell("--all")).splitlines() == [
        "── ranks 0-3 ──",
        "120.0 15.0",
    ]


QUICKSTART = next(path for path in NOTEBOOKS if path.stem == "quickstart")


@pytest.mark.timeout(240)
@pytest.mark.quick
def test_quickstart_shows_process_0s_line_and_no_other(executed: Any) -> None:
    cell = executed(QUICKSTART).cell("jnp.sum(jnp.sin(x))")
    assert {(o.output_type, o.get("name")) for o in cell.outputs} == {("stream", "stdout")}
    (line,) = text_under(cell).splitlines()
    process, value = line.split()
    assert process == "0"
    assert float(value) == pytest.approx(-0.1239873, abs=1e-5)


@pytest.mark.timeout(240)
def test_quickstart_shows_the_array_that_spans_processes_with_its_values(executed: Any) -> None:
    text = text_under(executed(QUICKSTART).cell("%%spmd\nx"))
    assert "int32" in text
    for value in range(32):
        assert str(value) in text


@pytest.mark.timeout(240)
@pytest.mark.quick
def test_quickstart_pulls_the_whole_array(executed: Any) -> None:
    text = text_under(executed(QUICKSTART).cell("%pull x"))
    assert "(4, 8)" in text
    assert str(sum(range(32))) in text

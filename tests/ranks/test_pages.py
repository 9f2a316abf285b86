"""The Python of README and docs runs, page by page, as a reader would run it in a notebook."""

from __future__ import annotations

import os
import re
import shutil
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from helpers import Notebook

pytestmark = pytest.mark.any_jax

ROOT = Path(__file__).parents[2]
FENCED = re.compile(r"^```python\n(.*?)^```", re.M | re.S)

NOT_RUN = {
    "docs/internals/tests.md": "of this repository's tests",
    "docs/launchers.md": "a file of ipyparallel's; tests/launchers has such hosts",
    "docs/how-to/launcher.md": "a package of a site's: tests/ranks/test_site_launcher.py",
}
START = "%jaxcluster start -n 4 --devices-per-process 2"
MESH = """%%spmd
import jax, jax.numpy as jnp, numpy as np
from jax.sharding import NamedSharding, PartitionSpec as P
grid = NamedSharding(jax.make_mesh((4, 2), ("data", "model")), P("data"))
x = jax.make_array_from_callback((8, 8), grid, lambda index: np.ones((8, 8), "float32")[index])
"""
LOSSES = """
losses = jax.jit(lambda: jnp.ones(8), out_shardings=NamedSharding(grid.mesh, P()))()
batch, train_step = x, jnp.sum
"""
STEP = """
params, batch = x, x
step = jax.jit(lambda params, batch: params - 0.1 * (params @ batch))
"""
# What a reader of these pages has already.
BEFORE = {
    "docs/shards.md": [START, MESH + "params = {'w': x, 'layers': [x, x]}", "import jaxcluster"],
    "docs/how-to/data.md": [START, MESH],
    "docs/how-to/checkpoints.md": [START],
    "docs/how-to/debug.md": [START, MESH + LOSSES],
    "docs/how-to/slow.md": [START, MESH + STEP],
}
PROMISED = re.compile(r"#\s([\d. ]+)(?::|$)", re.M)  # in a remark: what is printed or shown


# What a page shows of other tools, or as it was done before.
OTHERS = re.compile(r"\bipp\.Cluster|\bjax\.distributed\.initialize\(|^c\.\w+\.", re.M)


def name(page: Path) -> str:
    return str(page.relative_to(ROOT))


def blocks(page: Path) -> list[str]:
    found = (block.rstrip("\n") for block in FENCED.findall(page.read_text()))
    return [block for block in found if not OTHERS.search(block)]


PAGES = [
    page
    for page in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))
    if "_build" not in page.parts and blocks(page) and name(page) not in NOT_RUN
]


@pytest.mark.one_machine("a page is what one reader types on one machine")
@pytest.mark.parametrize("page", PAGES, ids=name)
def test_the_python_of_a_page_runs_from_top_to_bottom(
    page: Path, open_notebook: Callable[..., Notebook], tmp_path: Path
) -> None:
    (tmp_path / "train.py").write_text("import sys\nprint(sys.argv[1:])\n")
    notebook = open_notebook()
    for source in BEFORE.get(name(page), []):
        notebook.ok(source)
    for source in blocks(page):
        shown = notebook.ok(source).text
        for number in PROMISED.findall(source):
            assert re.search(rf"(?m)^(np\.\w+\()?{re.escape(number)}(\.0)?\)?$", shown), shown
    notebook.run("%jaxcluster stop")


def test_the_readme_promises_numbers() -> None:
    assert PROMISED.findall("\n".join(blocks(ROOT / "README.md"))) == ["0 496.0", "496"]


RANK_2 = "%spmd --ranks 2 __import__('os').getpid()"
COME_TO = """%%spmd --all
print(np.asarray(state["params"]["w"]).tobytes().hex(), state["losses"].tolist())
"""


@pytest.mark.one_machine("it kills a process of this machine")
def test_a_long_run_goes_on_at_its_last_checkpoint_after_a_death(
    open_notebook: Callable[..., Notebook], tmp_path: Path
) -> None:
    """Its parameters are donated in each step. It comes to what one without a death comes to."""
    sources = blocks(ROOT / "docs/how-to/train.md")
    at = next(n for n, source in enumerate(sources) if "ocp.CheckpointManager" in source)
    notebook, loop, saved = open_notebook(), sources[at], tmp_path / "checkpoints"
    for source in sources[:at]:
        notebook.ok(source)
    pid = int(re.findall(r"\d+", notebook.ok(RANK_2).text)[-1])
    cell = notebook.begin(loop)
    notebook.until((saved / "300").exists, "a checkpoint")
    os.kill(pid, signal.SIGKILL)
    assert "Rank 2 died" in notebook.wait(cell).error
    assert not (saved / "1000").exists()
    notebook.ok(loop)
    assert int(notebook.ok("%spmd begin").text) >= 300
    gone_on = notebook.ok(COME_TO).text
    shutil.rmtree(saved)
    notebook.ok(loop)
    assert notebook.ok("%spmd begin").text.strip() == "0"
    assert notebook.ok(COME_TO).text == gone_on and "nan" not in gone_on
    notebook.run("%jaxcluster stop")

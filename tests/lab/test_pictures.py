"""The pictures of docs/lab.md.

SCREENSHOTS=docs/images pytest tests/lab/test_pictures.py
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

from labpage import LabPage

CELLS = [
    "%load_ext jaxcluster\n%jaxcluster start -n 4 --devices-per-process 2",
    """%%spmd
import jax, jax.numpy as jnp, numpy as np, time
from jax.sharding import NamedSharding, PartitionSpec as P
mesh = jax.make_mesh((4, 2), ('i', 'j'))
x = jax.device_put(np.arange(32).reshape(4, 8), NamedSharding(mesh, P('i', 'j')))
w = {'kernel': jax.device_put(np.ones((64, 64)), NamedSharding(mesh, P('i'))),
     'bias': jax.device_put(np.zeros(64), NamedSharding(mesh, P()))}""",
    """%%spmd
rank = jax.process_index()
time.sleep(4 if rank == 2 else 0.2 + 0.1 * rank)
print(f'rank {rank} has {x.addressable_shards[0].data.sum()}')""",
    "%%spmd\nif rank != 1:\n    print(float(jnp.sum(x)))",
    "%%spmd\nprint(float(jnp.sum(x)))",
]


def picture(page: LabPage, name: str, *parts: Any, height: int = 0) -> None:
    """Save what the parts cover together, with a margin."""
    folder = os.environ.get("SCREENSHOTS")
    boxes = [part.bounding_box() for part in parts]
    assert all(box["width"] > 100 and box["height"] > 20 for box in boxes), (name, boxes)
    if not folder:
        return
    left = min(b["x"] for b in boxes)
    top = min(b["y"] for b in boxes)
    right = max(b["x"] + b["width"] for b in boxes)
    bottom = max(b["y"] + b["height"] for b in boxes)
    clip = {"x": left, "y": top, "width": right - left, "height": height or bottom - top}
    page.page.screenshot(path=str(Path(folder) / f"lab-{name}.png"), clip=clip)


def test_the_pictures_of_the_documentation(page: LabPage) -> None:
    at = page.page.locator
    page.page.set_viewport_size({"width": 1500, "height": 860})
    page.open("train.ipynb", *CELLS)
    page.command("filebrowser:hide-main")
    page.do(0, 1)
    page.command("jaxcluster:show-clusters")
    at(".jxl-sidebar").wait_for()
    page.run(2)
    page.wait(lambda: at(".jxl-badge[data-status=done]").count() >= 7, "three of four are done")
    time.sleep(1.2)  # so that the time in the cell is not 0
    at(".jxl-rank[data-status=running]").wait_for()
    folder = os.environ.get("SCREENSHOTS")
    if folder:
        page.page.screenshot(path=str(Path(folder) / "lab.png"))
    picture(page, "sidebar", at(".jxl-sidebar"), height=560)
    cell = at(".jp-NotebookPanel .jp-Cell").nth(2)
    cell.locator(".jxl-badge").nth(1).click()
    page.page.wait_for_selector("text=rank 1 has")
    picture(page, "badges", cell)
    page.page.keyboard.press("Escape")
    page.finish(2)

    page.command("jaxcluster:inspect")
    at(".jxl-inspector tr[data-variable=x]").click()
    at(".jxl-inspector .jxc-tile").nth(1).click()
    picture(page, "inspector", at(".jxl-inspector"))

    page.command("docmanager:open", {"path": "train.ipynb"})
    page.do(3)
    page.command("jaxcluster:show-report")  # the inspector lies before it
    at(".jxl-report").wait_for()
    page.wait(
        lambda: "Back in lockstep" in at(".jxl-report").inner_text(), "what was done about it"
    )
    picture(page, "report", at(".jxl-report"))
    assert page.do(4) == "496.0\n"

    page.command("jaxcluster:journal")
    journal = at(".jxl-journal")
    journal.locator("tbody tr").nth(3).wait_for()
    picture(page, "journal", journal.locator(".jxl-timelineBox"))

    page.command("jaxcluster:start")
    at(".jp-Dialog .jxl-form").wait_for()
    picture(page, "form", at(".jp-Dialog-content"))
    page.page.keyboard.press("Escape")

"""Notebook 7: one notebook to a page, no dock, the same extension."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Iterator
from typing import Any

import pytest
from fitting import fits
from labpage import SETUP, START, Lab, LabPage
from labserver import serving

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("notebook") is None, reason="Notebook 7 is not installed"
)

# Notebook 7.6 says this of itself, without any extension.
ITS_OWN = re.compile(r"reading 'schema'")


@pytest.fixture(scope="module")
def notebook_7(built: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    with serving(tmp_path_factory.mktemp("notebooks"), "notebook") as server:
        yield server


@pytest.fixture
def page(chromium: Any, notebook_7: Lab) -> Iterator[LabPage]:
    context = chromium.new_context(viewport={"width": 1400, "height": 900})
    opened = LabPage(context.new_page(), notebook_7)
    yield opened
    opened.end_kernels()
    context.close()
    assert [error for error in opened.errors if not ITS_OWN.search(error)] == []


def test_cells_switch_and_sidebar_work(page: LabPage) -> None:
    every = "%%spmd --all\nprint('hello from', rank)"
    compute = "print('hello from', rank, float(jnp.sum(x)))"
    cells = [START, SETUP, compute, "%shards x", every]
    page.write("seven.ipynb", cells)
    page.page.goto(f"{page.lab.url}/notebooks/seven.ipynb")
    page.ready()
    at = page.page.locator
    page.do(0, 1)
    at(".jxl-badges").get_by_text("2 ranks").first.wait_for()
    page.page.get_by_role("switch", name="SPMD").click()
    page.until_state("s.spmd", "auto mode is on")
    at("[data-jxl-where='2 ranks']").nth(1).wait_for()  # both cells that run there say so
    assert page.do(2) == "hello from 0 28.0\n"
    page.do(4)
    at(".jxl-ranksOutputs").get_by_text("hello from 1").wait_for()
    page.command("jaxcluster:show-clusters")
    at(".jxl-sidebar .jxl-rank[data-status=idle]").nth(1).wait_for()
    page.do(3)
    at(".jp-OutputArea .jxc-tile").first.wait_for()
    # The panel is below the notebook here, too.
    page.command("jaxcluster:arrays")
    at(".jxl-inspector tr[data-variable=x]").click()
    at(".jxl-inspector .jxc-tile").first.wait_for()
    for part in ("x", "(8,)", "float", "P('i'", "B"):
        assert part in at(".jxl-inspector tr[data-variable=x]").text_content()
    fits(page.page, ".jxl-inspector")
    for name, shown in {"Mesh": "mesh", "Memory": "CPU 0"}.items():
        at(".jxl-inspector").get_by_role("button", name=name).click()
        at(".jxl-inspector .jxc").get_by_text(shown).first.wait_for()
        fits(page.page, ".jxl-inspector")
    page.command("jaxcluster:show-clusters")
    at(".jxl-sidebar").get_by_role("button", name="Stop…").click()
    at(".jp-Dialog").get_by_role("button", name="Stop", exact=True).click()
    page.until_state("s.current === null", "the cluster is stopped")

"""A JupyterLab without the extension: it hears of nothing that it does not know."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from fitting import fits
from labpage import SETUP, START, Lab, LabPage
from labserver import serving


@pytest.fixture(scope="module")
def bare_lab(built: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    with serving(tmp_path_factory.mktemp("bare"), extension=False) as server:
        yield server


@pytest.fixture
def page(chromium: Any, bare_lab: Lab) -> Iterator[LabPage]:
    context = chromium.new_context(viewport={"width": 1200, "height": 1000})
    opened = LabPage(context.new_page(), bare_lab)
    yield opened
    opened.end_kernels()
    context.close()
    assert opened.errors == []


def test_its_console_is_free_of_errors(page: LabPage) -> None:
    page.open(
        "bare.ipynb",
        START,
        SETUP,
        "%%spmd\nprint(float(jnp.sum(x)))",
        "%shards x",
        "%shards x --widget",
        "%unload_ext jaxcluster",
    )
    page.do(0, 1)
    assert page.do(2) == "28.0\n"
    page.do(3)
    # The table that stands in for the interactive view has the ranks' colours.
    page.page.locator(".jp-OutputArea td[bgcolor]").first.wait_for()
    # The widget brings all that it needs. It is as wide as there is room, its text of one size.
    page.do(4)
    page.page.locator(".jxc svg .jxc-tile").first.wait_for()
    assert page.page.locator(".jxc-legend").evaluate("n => getComputedStyle(n).display") == "flex"
    page.page.locator(".jxc").evaluate("n => { n.parentElement.style.width = '260px'; }")
    page.until("document.querySelector('.jxc svg').clientWidth < 260", "the picture is narrow")
    assert page.page.locator(".jxc svg").evaluate("n => n.getScreenCTM().a") == 1
    fits(page.page, ".jxc")
    page.page.locator(".jxc-tile").nth(1).click()
    page.page.get_by_role("button", name="statistics").click()
    page.page.get_by_text("mean 5.5").wait_for()
    page.do(5)
    page.page.wait_for_timeout(500)
    assert not page.page.evaluate("() => window.jupyterapp.commands.hasCommand('jaxcluster:start')")


def test_the_sidebar_is_in_a_cell(page: LabPage) -> None:
    """%jaxcluster panel, where the page has ipywidgets' manager and nothing of ours."""
    page.open(
        "panel.ipynb",
        "%load_ext jaxcluster",
        "%jaxcluster panel",
        "%%spmd\nimport time\ntime.sleep(300)",
        "1",
    )
    page.do(0, 1)
    view = page.page.locator(".jxl-alone")
    view.get_by_text("This notebook has no cluster.").wait_for()
    # Started, by a number and a click.
    view.get_by_label("Number of ranks").fill("2")
    view.get_by_role("button", name="Start", exact=True).click()
    view.get_by_text("2/2 idle").wait_for()
    assert view.locator(".jxl-rank").count() == 2
    # Interrupted, during a cell: ipykernel 7 and JupyterLab have a subshell for it.
    page.run(2)
    view.get_by_text("[3] line 3").first.wait_for()
    view.locator(".jxl-rank").get_by_text("% CPU").nth(1).wait_for()  # what the ranks use
    view.get_by_role("button", name="Interrupt").click()
    page.finish(2)
    view.get_by_text("2/2 idle").wait_for()
    # What JupyterLab has a panel for is below the ranks.
    view.get_by_role("button", name="Details").click()
    view.locator(".jxl-pane pre").filter(has_text="rank").first.wait_for()
    # A stop asks, without a dialog of the browser's.
    view.get_by_role("button", name="Stop…").click()
    view.get_by_role("alertdialog").get_by_role("button", name="Stop").click()
    view.get_by_text("This notebook has no cluster.").wait_for()

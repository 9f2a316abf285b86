"""Widgets that ranks have made, on a real page: seen, used, after a reload and after a restart."""

from __future__ import annotations

import pytest
from documents import html_of, read_document
from labpage import SETUP, START, LabPage

pytestmark = pytest.mark.any_jax

MAKE = """%%spmd
import ipywidgets as W
box = W.VBox([W.Label('a label of rank 0'), W.Button(description='count')])
clicks = []
box.children[1].on_click(lambda b: (clicks.append(1), print('clicked', len(clicks))))
display(box)
@W.interact(k=W.IntSlider(2, 0, 9, continuous_update=False))
def total(k):
    print('total', float(jnp.sum(x * k)))
out = W.Output()
with out:
    print('inside of it')
out"""
BAR = """%%spmd
from tqdm.auto import tqdm
late = W.Output()
display(late)
with late:
    print('told', 'late')
bar = tqdm(total=4, desc='one-bar')
for _ in range(4):
    bar.update()
bar.close()"""
BARS = """%%spmd --all
from tqdm.auto import tqdm
for _ in tqdm(range(3), desc=f'bar-{rank}'):
    time.sleep(0.05)"""


def test_widgets_of_ranks_are_used_on_the_page(page: LabPage) -> None:
    page.open(
        "widgets.ipynb", START, SETUP, MAKE, BARS, "%jaxcluster status --live",
        "%%spmd --all\nprint(len(clicks), total.widget.kwargs)", "%jaxcluster restart", BAR,
    )  # fmt: skip
    page.do(0, 1, 2)
    shown = page.page.locator(".jp-Cell").nth(2).locator(".jp-Cell-outputArea")

    def sees(text: str) -> None:
        page.wait(lambda: text in shown.inner_text(), f"{text!r} below the cell")

    for text in ("a label of rank 0", "total 56.0", "inside of it"):
        sees(text)
    shown.get_by_role("button", name="count").click()
    sees("clicked 1")
    slider = shown.get_by_role("slider").first
    slider.focus()
    page.page.keyboard.press("ArrowRight")
    sees("total 84.0")
    assert "total 56.0" not in shown.inner_text()
    assert "1 {'k': 3}" in page.do(5)
    assert "ranks 0, 1" in page.output(5)

    page.do(3)
    bars = page.page.locator(".jp-Cell").nth(3).locator(".jp-Cell-outputArea")
    page.wait(lambda: "bar-1" in bars.inner_text(), "the bar of rank 1")
    assert "bar-0" in bars.inner_text()
    assert "model not found" not in bars.inner_text()

    page.do(7)
    bar = page.page.locator(".jp-Cell").nth(7).locator(".jp-Cell-outputArea")
    page.wait(lambda: "told late" in bar.inner_text(), "what the Output was told after its display")
    page.wait(lambda: "4/4" in bar.inner_text(), "the bar")

    # A status that is saved says how it was; it is no widget.
    page.do(4)
    told = page.page.locator(".jp-OutputArea p").filter(has_text="as of")
    page.wait(lambda: told.count() == 1, "a table of what the ranks use")
    (status,) = page.outputs(4)
    assert "as of" in status["data"]["text/plain"]
    assert not any("widget" in mime for mime in status["data"])

    page.command("docmanager:save")
    page.until("!window.jupyterapp.shell.currentWidget.context.model.dirty", "it is saved")
    page.page.reload()
    page.ready()
    sees("a label of rank 0")
    sees("total 84.0")
    shown.get_by_role("button", name="count").click()
    page.run(5)
    page.wait(lambda: "2 {'k': 3}" in page.output(5), "the click after the reload")
    # Lab shows nothing more below a cell that ran before: what callbacks print is in its log then,
    # as it is with any kernel's.
    page.command("logconsole:open")
    log = page.page.locator(".jp-LogConsole")
    page.wait(lambda: "clicked 2" in log.inner_text(), "the print after the reload, in the log")
    page.command("docmanager:open", {"path": "widgets.ipynb"})

    page.do(2, 6)
    shown.get_by_role("button", name="count").click()
    sees("are no longer live: the ranks have new processes")

    page.command("docmanager:save")
    page.until("!window.jupyterapp.shell.currentWidget.context.model.dirty", "it is saved")
    html = html_of(read_document(page.lab.root / "widgets.ipynb"))
    for text in ("are no longer live", "as of", "bar-1"):
        assert text in html, text
    assert "model not found" not in html

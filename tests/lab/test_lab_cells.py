"""Cells in a real JupyterLab, with real clusters of 2 ranks: badges, output, reports, reloads."""

from __future__ import annotations

import time
from typing import Any

from documents import read_document
from helpers import until
from labpage import SETUP, START, LabPage
from labparts import (
    BUSY_S,
    HANG,
    SLEEP,
    badges,
    marks,
    show_sidebar,
    sources,
    statuses,
    strip,
    until_ranks,
    until_strip,
)

from jaxcluster.views.messages import OUTPUTS_MIME

# ------------------------------------------------------------------------------- cells


def test_a_line_below_a_cell_says_how_its_ranks_are(page: LabPage) -> None:
    page.open(
        "badges.ipynb",
        START,
        SETUP,
        "%%spmd\ntime.sleep(1 + 1.5 * rank)\nprint('this is rank', rank)",
        "%%spmd\nassert rank == 0, 'not here'",
    )
    page.do(0, 1)
    show_sidebar(page)
    page.run(2)
    until_strip(page, 2, "2 running")
    until_ranks(page, ["running", "running"])
    page.wait(lambda: statuses(page, 2) == ["done", "running"], "rank 0 is done")
    until_strip(page, 2, "2 ranks")
    assert statuses(page, 2) == []  # what is alike is said once
    until_ranks(page, ["idle", "idle"])
    assert page.finish(2) == "this is rank 0\n"
    strip(page, 2).get_by_role("button", name="2 ranks").click()
    page.page.wait_for_selector("text=this is rank 1")
    page.page.get_by_label("Output of rank").select_option("0")
    page.page.locator(".jxl-rankOutput").get_by_text("this is rank 0").wait_for()
    page.page.keyboard.press("Escape")
    page.page.locator(".jxl-rankOutput").wait_for(state="detached")
    page.run(3)
    page.wait(lambda: statuses(page, 3) == ["done", "failed"], "rank 1 has failed")
    page.finish(3)
    assert badges(page, 3).nth(1).get_attribute("title").startswith("rank 1: failed after 0.")
    badges(page, 3).nth(1).click()
    page.page.locator(".jxl-rankOutput").get_by_text("not here").first.wait_for()
    # That of the cell before is still there, and a second run takes the first one's place.
    assert strip(page, 2).inner_text().startswith("2 ranks")
    page.run(2)
    until_strip(page, 2, "2 running")
    page.finish(2)


def test_all_ranks_are_shown_as_groups_and_kept(page: LabPage) -> None:
    page.open(
        "all.ipynb",
        START.replace("-n 2", "-n 3"),
        "%%spmd\nimport jax, os, time\nrank = jax.process_index()",
        "%%spmd --all\nfor step in range(3):\n    print('step', step, 'of', rank // 2)\n"
        "print('the end')",
        "%%spmd\nprint('only', rank)",
        "%%spmd --ranks 1,2\nfrom IPython.display import HTML, display\n"
        "display(HTML(f'<b class=ours>bold {rank}</b>'))\nprint('go', flush=True)\n"
        "while not os.path.exists('enough'): time.sleep(0.05)",
    )
    page.do(0, 1)
    assert page.do(2).count("the end") == 2  # in both groups' text
    at = page.page.locator
    view = at(".jxl-ranksOutputs")
    heads = view.locator(".jxl-groupHead")
    assert heads.all_inner_texts() == ["ranks 0, 1", "rank 2"]
    heads.nth(0).locator("button").click()
    assert heads.nth(0).locator("button").get_attribute("aria-expanded") == "false"
    assert not view.get_by_text("step 0 of 0").is_visible()
    assert view.get_by_text("step 0 of 1").is_visible()
    page.page.keyboard.press("Enter")
    view.get_by_text("step 0 of 0").wait_for()
    page.do(3)
    # Live: they are shown while the cell goes on, with their HTML.
    page.run(4)
    at(".jxl-ranksOutputs b.ours", has_text="bold 2").wait_for()
    at(".jxl-ranksOutputs b.ours", has_text="bold 1").wait_for()
    until_strip(page, 4, "2 running")
    (page.lab.root / "enough").touch()
    page.finish(4)
    until_strip(page, 4, "2 ranks")
    page.page.evaluate("() => window.jaxcluster.currentPanel.context.save()")
    page.wait(lambda: saved(page, "all.ipynb").cells[4].outputs, "it is saved")
    assert "jaxcluster" not in saved(page, "all.ipynb").cells[4].metadata  # a run changes no text
    # Reopened, with another kernel: what was shown is there.
    page.end_kernels()
    page.open("all.ipynb")
    view.nth(0).locator(".jxl-group").nth(1).wait_for()
    assert strip(page, 2).count() == 0


def saved(page: LabPage, name: str) -> Any:
    return read_document(page.lab.root / name)


def test_its_line_comes_back_when_a_cell_is_scrolled_away_and_back(page: LabPage) -> None:
    page.open("scroll.ipynb", START, SETUP, *[f"print({i})\n" + "# \n" * 30 for i in range(40)])
    page.do(0, 1)
    until_strip(page, 1, "2 ranks")
    page.page.evaluate("() => window.jaxcluster.currentPanel.content.scrollToItem(40)")
    page.page.wait_for_timeout(500)
    page.page.evaluate("() => window.jaxcluster.currentPanel.content.scrollToItem(0)")
    until_strip(page, 1, "2 ranks")


def test_the_mode_comes_back_with_restart_and_run_all(page: LabPage) -> None:
    page.open(
        "mode.ipynb",
        "where = 'notebook'",
        START,
        "import jax\nwhere = jax.process_index()",
        "print('ran on', where)",
        "%%spmd --ranks 1\nprint('ran on', where)",
    )
    page.do(0, 1)
    switch = page.page.get_by_role("switch", name="SPMD")
    page.wait(lambda: switch.get_attribute("aria-disabled") == "false", "it can be used")
    page.wait(lambda: marks(page)[4] == "ranks 1", "the last cell says where")
    assert marks(page)[:4] == [None] * 4
    switch.click()
    page.wait(lambda: marks(page) == ["2 ranks", None, "2 ranks", "2 ranks", "ranks 1"], "marks")
    assert page.do(2, 3) == "ran on 0\n"
    begins = START.replace("\n", "\n%jaxcluster auto on\n")
    page.wait(lambda: sources(page)[1] == begins, "the mode stands in the text")
    page.page.evaluate("() => window.jaxcluster.currentPanel.context.save()")
    page.wait(lambda: saved(page, "mode.ipynb").cells[1].source == begins, "it is saved")
    assert "jaxcluster" not in saved(page, "mode.ipynb").metadata
    page.command("notebook:restart-run-all")
    page.page.locator(".jp-Dialog .jp-mod-accept").click()
    page.until(
        "window.jaxcluster.currentPanel.content.widgets[4].model.executionCount === 5"
        " && s()?.spmd === true".replace("s()", "window.jaxcluster.current.state"),
        "all cells have run again",
    )
    assert page.finish(3) == "ran on 0\n"
    assert "ran on 1\n" in page.finish(4)
    assert switch.get_attribute("aria-checked") == "true"
    switch.click()
    page.wait(lambda: marks(page) == [None, None, None, None, "ranks 1"], "the marks go")
    page.wait(lambda: sources(page)[1] == START, "and the line in the text")


# ------------------------------------------------------------------------------- hangs, deaths


def test_a_divergence_is_told_under_its_cell_and_in_the_report(page: LabPage) -> None:
    last = "%%spmd\nprint(float(jnp.sum(x)))"
    page.open("hang.ipynb", START, SETUP, HANG, last)
    page.do(0, 1)
    assert "Divergence" in page.do(2)
    ended = ["interrupted", "failed"]  # rank 1 has left out the launch
    until(lambda: statuses(page, 2) == ended, "the ends of both ranks")
    panel, report = page.page.locator(".jxl-details"), page.page.locator(".jxl-report")
    page.page.wait_for_timeout(500)
    assert panel.count() == 0  # nothing opens itself
    assert page.page.locator(".Toastify__toast").count() == 0
    strip(page, 2).get_by_role("button", name="Report").click()
    report.wait_for()
    title = report.get_by_role("heading", level=2).inner_text()
    assert title.startswith("Divergence in cell [3]: rank 1 ended the cell")
    assert "jnp.sum(x)" in report.locator(".jxl-lines").first.inner_text()
    # It is below the notebook, which keeps its width in any window.
    page.page.set_viewport_size({"width": 1100, "height": 950})
    page.page.wait_for_timeout(300)
    own, box = page.page.locator(".jp-NotebookPanel").bounding_box(), panel.bounding_box()
    assert box["y"] >= own["y"] + own["height"] - 2
    assert own["width"] > 600 and own["height"] > 450
    page.page.set_viewport_size({"width": 1500, "height": 950})
    page.page.evaluate("() => { window.jaxcluster.currentPanel.content.activeCellIndex = 0; }")
    report.get_by_role("button", name="Show cell").click()
    page.until("window.jaxcluster.currentPanel.content.activeCellIndex === 2", "it leads there")
    # Stacks and logs are other tabs of the panel.
    panel.get_by_role("tab", name="Stacks").click()
    panel.get_by_text("idle, in no cell").wait_for()
    page.command("jaxcluster:logs", {"rank": 1})
    panel.get_by_label("Search in the log").fill("no such words")
    panel.get_by_text("0 lines").wait_for()
    assert panel.locator(".jxl-logsBar select").input_value() == "1"
    page.command("jaxcluster:report")
    report.wait_for()
    assert page.do(3) == "28.0\n"


# ------------------------------------------------------------------------------- reload, restart


def test_a_reload_during_a_cell_restores_everything(page: LabPage) -> None:
    page.open("reload.ipynb", START, SETUP, SLEEP)
    page.do(0, 1)
    show_sidebar(page)
    page.run(2)
    page.wait(lambda: "running" in page.output(2), "the cell runs")
    page.page.evaluate("() => window.jaxcluster.currentPanel.context.save()")
    page.page.reload()
    page.until(
        "window.jaxcluster?.currentPanel?.sessionContext?.session?.kernel?.connectionStatus"
        " === 'connected'",
        "the page is back",
    )
    began = time.monotonic()
    page.until_state("s.ranks.length === 2", "the state is back", 3 + BUSY_S)
    show_sidebar(page)
    until_ranks(page, ["running", "running"])
    until_strip(page, 2, "2 running")
    assert time.monotonic() - began < 3 + BUSY_S
    pressed = time.monotonic()
    page.page.locator(".jxl-sidebar").get_by_role("button", name="Interrupt").click()
    until_ranks(page, ["idle", "idle"])
    assert time.monotonic() - pressed < 0.5 + BUSY_S


def counting(to: int, last: str = "", options: str = "") -> str:
    loop = 'for n in range({}):\n    print("line", n, flush=True)\n    time.sleep(0.1)'
    return f"%%spmd {options}\n{loop.format(to)}\n{last}"


def test_a_page_that_has_missed_a_cell_has_its_output(page: LabPage) -> None:
    """The cell goes on while there is no page, and where there is a new one."""
    fails = counting(40, "if jax.process_index() == 1: [][n]")
    page.open("missed.ipynb", START, SETUP, fails, counting(60, options="--all"))
    page.do(0, 1)
    for index in (2, 3):
        page.run(index)
        page.wait(lambda i=index: "line 3" in page.output(i), "the cell runs")
        page.page.evaluate("() => window.jaxcluster.currentPanel.context.save()")
        page.page.goto("about:blank")
        time.sleep(1)
        page.page.goto(f"{page.lab.url}/lab/tree/missed.ipynb")
        page.until("window.jaxcluster?.current?.state", "the page is back")
        page.wait(lambda i=index: "line 3" in page.output(i), "its output is back")
        page.finish(index)
    assert [output["output_type"] for output in page.outputs(2)] == ["stream", "error"]
    assert page.output(2).startswith("".join(f"line {n}\n" for n in range(40)))
    assert "IndexError" in page.output(2)
    (shown,) = page.outputs(3)
    assert [g["ranks"] for g in shown["data"][OUTPUTS_MIME]["groups"]] == [[0, 1]]
    # What its user has cleared stays so.
    page.command("notebook:clear-all-cell-outputs")
    page.wait(lambda: page.outputs(2) == [], "it is cleared")
    page.page.evaluate("() => window.jaxcluster.currentPanel.context.save()")
    page.page.reload()
    page.until_state("s.ranks.length === 2", "the state is back")
    page.page.wait_for_timeout(2000)
    assert [page.outputs(index) for index in (2, 3)] == [[], []]

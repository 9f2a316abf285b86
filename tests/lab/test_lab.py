"""The extension in a real JupyterLab, with real clusters of 2 ranks: all but its cells."""

from __future__ import annotations

from accessible import violations
from fitting import fits
from labpage import SETUP, START, LabPage
from labparts import (
    HANG,
    SLOW_START,
    show_sidebar,
    sources,
    stop,
    until_ranks,
)

# ------------------------------------------------------------------------------- starting


def test_the_form_starts_a_cluster_after_a_start_that_failed_and_the_sidebar_shows_both(
    page: LabPage,
) -> None:
    page.open("form.ipynb", "%load_ext jaxcluster", "%jaxcluster start -n 2 --platform cuda", SETUP)
    sidebar = show_sidebar(page)
    page.page.wait_for_selector("text=not loaded in the kernel")
    page.do(0)
    assert "no GPU is visible" in page.do(1)
    failed = sidebar.locator(".jxl-failed")
    assert "no GPU is visible" in failed.inner_text()
    assert page.page.locator(".Toastify__toast").count() == 0  # it is told in two places
    sidebar.get_by_role("button", name="Options…").click()
    dialog = page.page.locator(".jp-Dialog")
    dialog.get_by_label("Platform").select_option("cpu")
    dialog.get_by_label("Ranks").fill("3")
    assert "%jaxcluster start -n 3" in dialog.locator(".jxl-command").inner_text()
    dialog.get_by_label("Ranks").fill("two")
    assert dialog.get_by_role("button", name="Start").is_disabled()
    dialog.get_by_label("Ranks").fill("2")
    dialog.get_by_role("button", name="Start").click()
    until_ranks(page, ["idle", "idle"])
    failed.wait_for(state="detached")
    assert "2/2 idle" in page.page.locator(".jxl-chip").inner_text()
    # It stands in the notebook, which is as good from its top.
    start = "%jaxcluster start -n 2 --platform cpu"
    assert sources(page) == ["%load_ext jaxcluster", start, SETUP]
    assert page.finish(1).startswith("Cluster 'main': ranks 0, 1")
    assert page.do(2) == ""  # it is this notebook's cluster now
    assert page.do(1) == "Cluster 'main' is already running (2 ranks, variables kept).\n"


def test_a_notebook_with_two_clusters_chooses_between_them(page: LabPage) -> None:
    page.open(
        "two.ipynb",
        "%load_ext jaxcluster\n%jaxcluster start -n 1 --name one",
        "%jaxcluster start -n 1 --name two",
        "%%spmd\nname = 'two'",
        "%%spmd\n'name' in globals()",
    )
    page.do(0, 1, 2)
    sidebar = show_sidebar(page)
    rows = sidebar.locator("[data-cluster]")
    page.wait(lambda: rows.count() == 1, "the other one is listed")
    sidebar.get_by_role("button", name="Use one").click()
    page.until_state("s.current === 'one'", "the other one is used")
    assert page.do(3) == "False\n"
    sidebar.get_by_role("button", name="Use two").click()
    page.until_state("s.current === 'two'", "the first one is used again")
    assert page.do(3) == "True\n"


def test_a_start_is_shown_rank_by_rank_and_cancelled(page: LabPage) -> None:
    page.open("cancel.ipynb", "%load_ext jaxcluster", SLOW_START)
    page.do(0)
    page.until_state("!!s", "the page knows of jaxcluster")
    sidebar = show_sidebar(page)
    page.run(1)
    starting = sidebar.locator(".jxl-starting")
    starting.wait_for()
    assert "Starting main" in starting.inner_text()
    starting.locator("[data-step='']", has_text="ranks 0, 1").wait_for()
    starting.get_by_role("button", name="Cancel").click()
    assert "The start was stopped." in page.finish(1)
    starting.wait_for(state="detached")
    assert sidebar.locator(".jxl-failed").count() == 0  # it was meant
    page.until_state("s.clusters.length === 0", "nothing is left")


def test_a_number_and_one_click_start_a_cluster_where_nothing_was_loaded(page: LabPage) -> None:
    page.open("first.ipynb", "1 + 1")
    toolbar = page.page.locator(".jp-NotebookPanel-toolbar")
    assert toolbar.get_by_role("switch", name="SPMD").count() == 0  # it says nothing of jaxcluster
    assert toolbar.get_by_label("Number of ranks").count() == 0
    sidebar = show_sidebar(page)
    sidebar.get_by_label("Number of ranks").fill("2")
    sidebar.get_by_role("button", name="Start", exact=True).click()
    page.wait(lambda: "2/2 idle" in toolbar.inner_text(), "its ranks are there")
    assert sources(page) == ["%load_ext jaxcluster\n%jaxcluster start -n 2", "1 + 1"]
    # However narrow it is, the switch and the ranks' state are in it.
    page.command("application:toggle-right-area")
    page.page.set_viewport_size({"width": 700, "height": 700})
    for shown in (toolbar.get_by_role("switch", name="SPMD"), toolbar.locator(".jxl-chip")):
        page.wait(shown.is_visible, "it is in the toolbar")
    page.page.set_viewport_size({"width": 1500, "height": 950})
    show_sidebar(page)
    # Without a cluster the notebook's own line is run again, and nothing is inserted.
    stop(page)
    field = toolbar.get_by_label("Number of ranks")
    assert field.input_value() == "2"
    toolbar.get_by_role("button", name="Start", exact=True).click()
    page.wait(lambda: "2/2 idle" in toolbar.inner_text(), "its ranks are there again")
    assert sources(page)[1:] == ["1 + 1"]


OLDER = """\
import jaxcluster.views.messages as messages
class Older(messages.State, tag="state"):
    v: int = messages.PROTOCOL - 1
messages.State = Older"""


def test_the_sidebar_names_a_kernel_of_another_version(page: LabPage) -> None:
    page.open("older.ipynb", OLDER, "%load_ext jaxcluster")
    sidebar = show_sidebar(page)
    page.do(0)
    page.do(1)
    sidebar.get_by_text("different versions of jaxcluster").wait_for()
    assert sidebar.get_by_role("button").count() == 0


def test_with_no_notebook_open_the_sidebar_starts_one(page: LabPage) -> None:
    page.page.goto(f"{page.lab.url}/lab?reset")
    page.until("window.jupyterapp?.commands.hasCommand('jaxcluster:show-clusters')", "Lab is up")
    page.page.evaluate("() => window.jupyterapp.restored")
    sidebar = show_sidebar(page)
    sidebar.get_by_label("Number of ranks").fill("2")
    sidebar.get_by_role("button", name="Start", exact=True).click()
    until_ranks(page, ["idle", "idle"])
    assert sources(page)[0].endswith("%jaxcluster start -n 2")


# ------------------------------------------------------------------------------- resources, menu


def test_what_ranks_use_is_shown_and_an_idle_kernel_looks_idle(page: LabPage) -> None:
    page.open("used.ipynb", START, "%jaxcluster status --live")
    page.do(0)
    sidebar = show_sidebar(page)
    until_ranks(page, ["idle", "idle"])
    row = sidebar.locator(".jxl-rank").first
    page.wait(lambda: "% CPU" in row.inner_text(), "its share of a processor")
    page.do(1)
    # The live status of a cell goes on by updates that the server does not take for a use.
    told = page.page.locator(".jp-OutputArea p").filter(has_text="as of")
    page.wait(lambda: told.count() == 1, "a table in the cell's output")

    def is_idle_while_the_table_goes_on() -> bool:
        (before,) = [k["last_activity"] for k in page.lab.api("kernels")]
        first = told.inner_text()
        page.wait(lambda: told.inner_text() != first, "the table goes on")
        (after,) = [k["last_activity"] for k in page.lab.api("kernels")]
        return bool(after == before)

    page.wait(is_idle_while_the_table_goes_on, "it goes on and the kernel looks idle")
    assert sidebar.get_by_role("button", name="Interrupt").count() == 0  # nothing runs


# ------------------------------------------------------------------------------- arrays


def test_arrays_are_shown_with_their_shards(page: LabPage) -> None:
    page.open("arrays.ipynb", START, SETUP, "%%spmd\nw = {'a': x, 'b': x * 2}")
    page.do(0, 1)
    page.command("jaxcluster:arrays")
    panel = page.page.locator(".jxl-inspector")
    panel.locator("tr[data-variable=x]").click()
    panel.locator(".jxc svg .jxc-tile").first.wait_for()
    assert panel.locator(".jxc svg .jxc-tile").count() == 2
    # Statistics and values of a shard come from its rank alone.
    panel.locator(".jxc-tile").nth(1).click()
    panel.get_by_role("button", name="statistics").click()
    page.wait(lambda: "5.5" in panel.inner_text(), "the mean of 4, 5, 6, 7")
    # When a cell has ended its variables are there, and what is shown stays as it is.
    page.do(2)
    panel.locator("tr[data-variable=w]").wait_for()
    assert "5.5" in panel.inner_text()
    panel.get_by_label("Filter variables").fill("dict")
    page.wait(lambda: panel.locator("tr[data-variable]").count() == 1, "only w is left")
    panel.locator("tr[data-variable=w]").click()
    panel.locator(".jxc-tree").wait_for()
    panel.get_by_role("treeitem").last.click()
    panel.locator(".jxc-leaf .jxc-tile").first.wait_for()
    # A small screen has room for the notebook and the panel, with both sidebars open.
    show_sidebar(page)
    page.page.set_viewport_size({"width": 1100, "height": 800})
    fits(page.page, ".jxl-inspector")
    notebook = page.page.locator(".jp-NotebookPanel").bounding_box()
    assert notebook["width"] > 400 and notebook["height"] > 350
    page.page.set_viewport_size({"width": 1500, "height": 950})


def test_a_saved_view_is_drawn_without_a_kernel(page: LabPage) -> None:
    page.open("saved.ipynb", START, SETUP, "%shards x")
    page.do(0, 1, 2)
    page.page.locator(".jp-OutputArea .jxc-tile").first.wait_for()
    page.page.evaluate("() => window.jaxcluster.currentPanel.context.save()")
    page.wait(lambda: "vnd.jaxcluster" in (page.lab.root / "saved.ipynb").read_text(), "saved")
    page.end_kernels()
    # Somebody else's page: the notebook is not trusted there.
    (page.lab.root / "theirs.ipynb").write_text((page.lab.root / "saved.ipynb").read_text())
    page.open("theirs.ipynb")
    page.page.locator(".jp-OutputArea .jxc-tile").first.wait_for()
    tile = page.page.locator(".jp-OutputArea .jxc-tile").nth(1)
    tile.click()
    assert "4:8" in page.page.locator(".jp-OutputArea .jxc-info").inner_text()


# ------------------------------------------------------------------------------- looks

THEMES = ["JupyterLab Light", "JupyterLab Dark"]
PARTS = {
    "show-clusters": [".jxl-sidebar", ".jxl-badges", ".jxl-details", ".jxl-chip", ".jxl-switch"],
    "report": [".jxl-report"],
    "start": [".jp-Dialog .jxl-form"],
}


def test_it_is_accessible_in_light_and_dark(page: LabPage, axe: str) -> None:
    page.open("axe.ipynb", START, SETUP, HANG, "%shards x")
    page.do(0, 1, 2, 3)
    found = {}
    for theme in THEMES:
        page.command("apputils:change-theme", {"theme": theme})
        page.until("document.body.dataset.jpThemeName === " + repr(theme), f"the theme is {theme}")
        page.command("jaxcluster:arrays")
        page.page.locator(".jxl-inspector tr[data-variable=x]").click()
        page.page.locator(".jxl-inspector .jxc-tile").first.wait_for()
        for command, parts in PARTS.items():
            page.command(f"jaxcluster:{command}")
            for part in parts:
                page.page.locator(part).first.wait_for()
                alone = theme != THEMES[0]
                if hit := violations(page.page, axe, part, contrast_alone=alone):
                    found[theme, part] = hit
        page.page.keyboard.press("Escape")
        page.page.locator(".jp-Dialog").wait_for(state="detached")
    page.command("apputils:change-theme", {"theme": THEMES[0]})
    assert found == {}

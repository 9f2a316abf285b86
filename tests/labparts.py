"""What the tests of the extension look at and press on a page."""

from __future__ import annotations

from typing import Any

from labpage import LabPage

# A start that goes on until it is cancelled, as one does that waits for a busy host.
SLOW_START = (
    "import time\n"
    "from jaxcluster.cluster import events, starting\n"
    "asked = starting.Starting._ask\n"
    "def ask(self, *args, **kwargs):\n"
    "    while not events.course.stopped.is_set():\n"
    "        time.sleep(0.05)\n"
    "    return asked(self, *args, **kwargs)\n"
    "starting.Starting._ask = ask\n"
    "%jaxcluster start -n 2"
)
BUSY_S = 10.0  # what a busy machine may add to each of the figures
HANG = "%%spmd\nif rank != 1:\n    print(float(jnp.sum(x)))"
SLEEP = "%%spmd\nprint('running', flush=True)\ntime.sleep(60)"


def show_sidebar(page: LabPage) -> Any:
    page.command("jaxcluster:show-clusters")
    page.page.wait_for_selector(".jxl-sidebar")
    return page.page.locator(".jxl-sidebar")


def strip(page: LabPage, index: int) -> Any:
    """The line below a cell that ran on ranks."""
    return (
        page.page.locator(".jp-NotebookPanel:not(.lm-mod-hidden) .jp-Notebook .jp-Cell")
        .nth(index)
        .locator(".jxl-badges")
    )


def badges(page: LabPage, index: int) -> Any:
    return strip(page, index).locator(".jxl-badge")


def statuses(page: LabPage, index: int) -> list[str]:
    """Of the ranks of a cell, where they differ."""
    return [b.get_attribute("data-status") for b in badges(page, index).all()]


def until_strip(page: LabPage, index: int, begins: str) -> None:
    page.wait(
        lambda: [one.startswith(begins) for one in strip(page, index).all_inner_texts()] == [True],
        f"the line below cell {index} begins with {begins!r}",
    )


def until_ranks(page: LabPage, statuses: list[str], deadline_s: float = 60) -> None:
    """Until the sidebar, which the user looks at, shows these."""
    rows = page.page.locator(".jxl-sidebar .jxl-rank")
    page.wait(
        lambda: [row.get_attribute("data-status") for row in rows.all()] == statuses,
        f"ranks are {statuses}",
        deadline_s,
    )


def sources(page: LabPage) -> list[str]:
    found: list[str] = page.page.evaluate(
        "() => window.jaxcluster.currentPanel.content.widgets.map("
        "c => c.model.sharedModel.getSource())"
    )
    return found


def marks(page: LabPage) -> list[str | None]:
    """What stands beside each cell's number."""
    found: list[str | None] = page.page.evaluate(
        "() => window.jaxcluster.currentPanel.content.widgets.map("
        "c => c.inputArea.promptNode.dataset.jxlWhere ?? null)"
    )
    return found


def stop(page: LabPage) -> None:
    actions = page.page.locator(".jxl-sidebar").get_by_role("group", name="Actions")
    actions.get_by_role("button", name="Stop…").click()
    confirm(page, "Stop")
    page.until_state("s.current === null", "the cluster is stopped")


def confirm(page: LabPage, button: str) -> None:
    page.page.locator(".jp-Dialog").get_by_role("button", name=button, exact=True).click()

"""JupyterLab's own debugger, by its buttons and panels, on the ranks of a cluster."""

from __future__ import annotations

import os
import re
from pathlib import Path

from labpage import SETUP, START, LabPage

LOOP = (
    "%%spmd --all\n"
    "def scale(n):\n"
    "    m = n * (rank + 1)\n"
    "    return m\n"
    "\n"
    "total = scale(21)\n"
    "print('total', total)"
)
OWN = "a = 20\nb = a + 1\nprint(b)"


def switch(page: LabPage, on: bool) -> None:
    """Press the bug in the toolbar, and wait until it says so."""
    page.page.locator(".jp-NotebookPanel:not(.lm-mod-hidden) .jp-DebuggerBugButton").click()
    pressed = "true" if on else "false"
    page.page.wait_for_selector(f".jp-DebuggerBugButton[aria-pressed='{pressed}']")


def set_breakpoint(page: LabPage, index: int, line: int, count: int) -> None:
    """Click beside a line, and wait until the list of breakpoints has so many."""
    cells = page.page.locator(".jp-NotebookPanel:not(.lm-mod-hidden) .jp-Notebook .jp-Cell")
    cells.nth(index).locator(".cm-breakpoint-gutter .cm-gutterElement").nth(line).click()
    shown = page.page.locator(".jp-DebuggerBreakpoint")
    page.wait(lambda: shown.count() == count, f"{count} breakpoints")


def calls(page: LabPage) -> list[str]:
    """The list of calls, as it is shown: name and line."""
    frames = page.page.locator(".jp-DebuggerCallstackFrame").all_inner_texts()
    return [re.sub(r"\s*(Cell \[.*\]|ipykernel_\S*):", ":", frame) for frame in frames]


def until_calls(page: LabPage, *expected: str) -> None:
    page.wait(lambda: calls(page) == list(expected), f"the calls {expected}")


def until_variables(page: LabPage, expected: dict[str, str]) -> None:
    """Those of the frame that is chosen."""
    local = ".jp-debuggerVariables-local"
    shown = page.page.locator(
        f"{local} .jp-TreeItem.nested, {local} .jp-DebuggerVariables-branch li"
    )

    def told() -> dict[str, str]:
        words = [re.split(r"[:\s]+", text.strip()) for text in shown.all_inner_texts()]
        return {one[0]: one[-1] for one in words}

    page.wait(lambda: told() == expected, f"the variables {expected}")


def test_the_debugger_stops_the_ranks_and_shows_the_chosen_one(page: LabPage) -> None:
    page.open("debugger.ipynb", START, SETUP, LOOP, OWN)
    page.do(0, 1)
    switch(page, on=True)
    set_breakpoint(page, 2, 4, count=1)
    page.run(2)
    until_calls(page, "rank 0: scale:4", "rank 0: <module>:6", "rank 1: scale:4")
    until_variables(page, {"m": "21", "n": "21"})
    line = page.page.locator(".jp-DebuggerEditor-highlight").first
    assert line.inner_text().strip() == "return m"
    page.page.locator(".jp-DebuggerCallstackFrame", has_text="rank 1: scale").click()
    until_calls(page, "rank 1: scale:4", "rank 1: <module>:6", "rank 0: scale:4")
    until_variables(page, {"m": "42", "n": "21"})
    if pictures := os.environ.get("SCREENSHOTS"):
        page.shot(Path(pictures) / "lab-debugger.png")
    page.command("debugger:stepOut")
    until_calls(page, "rank 1: <module>:6", "rank 0: <module>:6")
    page.command("debugger:next")
    until_calls(page, "rank 1: <module>:7", "rank 0: <module>:7")
    page.command("debugger:continue")
    assert page.finish(2) == "── rank 0 ──\ntotal 21\n── rank 1 ──\ntotal 42\n"
    until_calls(page)
    # A cell of the notebook's own.
    set_breakpoint(page, 3, 2, count=2)
    page.run(3)
    until_calls(page, "<module>:2")
    page.command("debugger:continue")
    assert page.finish(3) == "21\n"
    switch(page, on=False)
    assert page.do(2).endswith("total 42\n")

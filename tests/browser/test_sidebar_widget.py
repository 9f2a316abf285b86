"""The sidebar in a cell's output, on a page that has anywidget's model and no more.

The page is as strict as VS Code's: it loads only the module's blob, it has no dialogs, and the
colours are VS Code's. (https://code.visualstudio.com/api/extension-guides/webview)
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from accessible import violations

ROOT = Path(__file__).parents[2]
BUILT = ROOT / "jaxcluster" / "static" / "sidebar"
GOLDEN = json.loads((ROOT / "tests/golden/panel.json").read_text())

pytestmark = pytest.mark.skipif(
    not (BUILT / "widget.js").exists(), reason="it is not built: npm run build in labextension/"
)
VSCODE = {
    "dark": {
        "--vscode-editor-foreground": "#cccccc", "--vscode-editor-background": "#1f1f1f",
        "--vscode-focusBorder": "#0078d4", "background": "#1f1f1f", "color-scheme": "dark",
    },
    "none": {},
}  # fmt: skip

PAGE = """<!doctype html><html lang=en><title>view</title>
<meta http-equiv="Content-Security-Policy"
      content="default-src 'none'; script-src blob:; style-src 'unsafe-inline'">
<body><main><h1>View</h1><div id=view></div></main>"""

SHOW = """
async ([source, style, state, theme, kernel]) => {
  for (const name of ['alert', 'confirm', 'prompt']) window[name] = () => { throw Error(name); };
  document.head.append(Object.assign(document.createElement('style'), {textContent: style}));
  for (const [name, value] of Object.entries(theme)) document.body.style.setProperty(name, value);
  const listeners = {};
  window.model = {
    state, asked: [], interrupted: 0,
    get(key) { return this[key]; },
    on(event, f) { listeners[event] = f; }, off(event) { delete listeners[event]; },
    send(request) { this.asked.push(request); },
    push(state) { this.state = state; listeners['change:state'](); },
    say(message) { listeners['msg:custom'](message); },
    close() { listeners['comm:close'](); },
    widget_manager: {kernel: kernel && {interrupt: async () => { model.interrupted += 1; }}},
    listeners,
  };
  const url = URL.createObjectURL(new Blob([source], {type: 'text/javascript'}));
  const module = await import(url);
  window.dispose = module.default.render({model, el: document.getElementById('view')});
}
"""


class Sidebar:
    def __init__(self, page: Any) -> None:
        self.page, self.view = page, page.locator(".jxl-alone")

    def show(self, state: dict[str, Any], theme: str = "dark", can_interrupt: bool = False) -> Any:
        self.page.set_content(PAGE)
        files = [(BUILT / file).read_text() for file in ("widget.js", "widget.css")]
        self.page.evaluate(SHOW, [*files, state, VSCODE[theme], can_interrupt])
        self.view.wait_for()
        return self.view

    def taken(self) -> dict[str, Any]:
        """The last request; its kernel has heard it."""
        self.page.wait_for_function("() => model.asked.length")
        request: dict[str, Any] = self.page.evaluate("() => model.asked.pop()")
        self.page.evaluate("id => model.say({type: 'heard', id})", request["id"])
        return request

    def answer(self, request: dict[str, Any], **answer: Any) -> None:
        message = {"type": "answer", "id": request["id"], **answer}
        self.page.evaluate("message => model.say(message)", message)

    def meet(self) -> None:
        """A kernel that is idle says hello."""
        hello = self.taken()
        assert hello["op"] == "hello"
        now = self.page.evaluate("() => Date.now()")
        state = {**self.page.evaluate("() => model.state"), "now": now}
        self.answer(hello, result={"state": state, "cells": []})


@pytest.fixture
def sidebar(page: Any) -> Sidebar:
    return Sidebar(page)


def state(**more: Any) -> dict[str, Any]:
    return {**GOLDEN["state"], **more}


def test_a_saved_notebook_has_it_as_it_was(sidebar: Sidebar) -> None:
    view = sidebar.show(state())
    assert view.locator(".jxl-rank").count() == len(GOLDEN["state"]["ranks"])
    # No kernel answers: nothing goes on, and nothing can be done.
    before = view.locator(".jxl-time").first.inner_text()
    view.get_by_text("No kernel answers").wait_for()
    assert view.locator(".jxl-time").first.inner_text() == before
    assert view.get_by_role("button").count() == 0


def test_it_can_be_used_once_the_kernel_answers_and_until_it_ends(sidebar: Sidebar) -> None:
    view = sidebar.show(state())
    sidebar.meet()
    view.get_by_role("button", name="Interrupt").click()
    request = sidebar.taken()
    left_ms = sidebar.page.evaluate("until => until - Date.now()", request["until"])
    assert (request["op"], 0 < left_ms <= 2000) == ("interrupt", True)
    sidebar.answer(request, error="Cell [7] runs on rank 1.")
    view.get_by_text("Cell [7] runs on rank 1.").wait_for()
    sidebar.page.evaluate("() => model.close()")
    view.get_by_text("No kernel answers").wait_for()
    assert view.get_by_role("button").count() == 0
    sidebar.page.evaluate("() => dispose()")
    assert sidebar.page.evaluate("() => Object.keys(model.listeners)") == []


def test_a_kernel_in_a_cell_is_shown_and_not_asked(sidebar: Sidebar) -> None:
    view = sidebar.show(state())
    ranks = [{**rank, "status": "silent"} for rank in GOLDEN["state"]["ranks"]]
    now = sidebar.page.evaluate("() => Date.now()")
    sidebar.page.evaluate("state => model.push(state)", state(now=now, ranks=ranks))
    view.get_by_text("The kernel runs a cell").wait_for()
    assert view.locator(".jxl-rank[data-status=silent]").count() == len(ranks)
    assert view.get_by_role("button").count() == 0
    sidebar.meet()
    view.get_by_text("The kernel runs a cell").wait_for(state="detached")


def test_an_interrupt_that_is_not_heard_is_withdrawn_unless_the_page_can_send_one(
    sidebar: Sidebar,
) -> None:
    view = sidebar.show(state())
    sidebar.meet()
    view.get_by_role("button", name="Interrupt").click()
    view.get_by_text("stop button interrupts all ranks").wait_for()
    late = sidebar.page.evaluate("() => model.asked.pop()")
    sidebar.answer(late, result=[])  # it changes nothing any more
    assert "stop button interrupts all ranks" in view.inner_text()
    view = sidebar.show(state(), can_interrupt=True)
    sidebar.meet()
    view.get_by_role("button", name="Interrupt").click()
    sidebar.page.wait_for_function("() => model.interrupted === 1")
    assert view.locator(".jxl-failure").count() == 0


def test_without_a_cluster_a_number_and_a_click_start_one(sidebar: Sidebar) -> None:
    view = sidebar.show(state(current=None, clusters=[], ranks=[], progress="", start=None))
    sidebar.meet()
    view.get_by_label("Number of ranks").fill("8")
    view.get_by_role("button", name="Start", exact=True).click()
    request = sidebar.taken()
    assert (request["op"], request["args"]) == ("start", {"line": "-n 8"})
    assert view.get_by_role("button", name="Options").count() == 0  # there is no form here
    sidebar.answer(request, result="Cluster 'main': ranks 0-7")
    view.get_by_text("Cluster 'main': ranks 0-7").wait_for()


def test_a_restart_asks_in_the_page(sidebar: Sidebar) -> None:
    view = sidebar.show(state())
    sidebar.meet()

    def choose(answer: str) -> None:
        view.get_by_role("button", name="Restart…").click()
        dialog = view.get_by_role("alertdialog")
        assert sidebar.page.evaluate("document.activeElement.textContent") == "Cancel"
        dialog.get_by_role("button", name=answer, exact=True).click()

    choose("Cancel")
    assert sidebar.page.evaluate("() => model.asked") == []
    choose("Restart without variables")
    request = sidebar.taken()
    assert (request["op"], request["args"]) == ("restart", {"clean": True})


def test_report_stacks_and_logs_are_below_the_ranks(sidebar: Sidebar) -> None:
    view = sidebar.show(state())
    sidebar.meet()
    pane = view.locator(".jxl-pane")
    view.get_by_role("button", name="Details").click()
    report = GOLDEN["state"]["report"]
    assert report["title"] in pane.inner_text()
    marked = pane.locator(".jxl-source [aria-current]")
    assert marked.inner_text() == report["source"].split("\n")[report["marked"][0] - 1]
    pane.get_by_role("tab", name="Stacks").click()
    sidebar.answer(sidebar.taken(), result="rank 0: line 3")
    pane.get_by_text("rank 0: line 3").wait_for()
    # The tabs are one stop for Tab, and the arrow keys go among them.
    for key in ("ArrowRight", "ArrowLeft", "ArrowLeft"):
        sidebar.page.keyboard.press(key)
    assert sidebar.page.evaluate("document.activeElement.textContent") == "Report"
    view.get_by_role("button", name="Log of rank 1").click()
    request = sidebar.taken()
    assert (request["op"], request["args"]["rank"]) == ("logs", 1)
    sidebar.answer(request, result="its log")
    pane.get_by_text("its log").wait_for()
    view.get_by_role("button", name="Close").click()
    assert pane.count() == 0


@pytest.mark.parametrize("theme", VSCODE)
def test_it_is_readable_in_vscodes_colours_and_without_any(
    sidebar: Sidebar, axe: str, beyond: Callable[[], None], theme: str
) -> None:
    view = sidebar.show(state(), theme)
    sidebar.meet()
    view.locator(".jxl-use").get_by_text("12 % CPU").wait_for()
    view.get_by_role("button", name="Details").click()
    beyond()
    assert violations(sidebar.page, axe) == []


@pytest.mark.quick
def test_it_is_one_module_that_loads_nothing() -> None:
    script = (BUILT / "widget.js").read_text()
    for word in ("import ", "import(", "eval(", "new Function", "localStorage", "fetch("):
        assert word not in script, word
    assert len(script) < 70_000  # it is in each saved notebook

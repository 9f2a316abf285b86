"""A page on which the views are drawn."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest


@pytest.fixture
def page(chromium: Any) -> Iterator[Any]:
    """A page on which any error fails the test."""
    context = chromium.new_context(viewport={"width": 1000, "height": 800})
    page = context.new_page()
    errors: list[str] = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.on("console", lambda m: errors.append(m.text) if m.type == "error" else None)
    page.set_default_timeout(10_000)
    page.set_content(
        "<!doctype html><html lang=en><title>view</title>"
        "<body><main><h1>View</h1><div id=view></div></main>"
    )
    yield page
    context.close()
    assert errors == []


# What stands out of the view to the right, is cut off there, or is scrolled sideways. Names that
# are shortened in their middle say all in their titles; what is 1 px wide is only heard.
BEYOND = """(() => {
  const view = document.getElementById('view'), right = view.getBoundingClientRect().right + 1;
  const shown = n => n.getBoundingClientRect().width > 1 && !n.closest('thead, title, option');
  const cut = n => n.scrollWidth > n.clientWidth + 1 && n.clientWidth > 1
    && getComputedStyle(n).overflowX !== 'visible' && !n.closest('[class*=-middle]');
  return [...view.querySelectorAll('*')].filter(
    n => shown(n) && (n.getBoundingClientRect().right > right || cut(n))).map(n => n.outerHTML);
})()"""


@pytest.fixture
def beyond(page: Any) -> Callable[[], None]:
    """Fails unless all that is shown fits the view's width, after a drawing that follows it."""

    def check() -> None:
        with contextlib.suppress(
            Exception
        ):  # playwright's own TimeoutError: what is wrong is said below
            page.wait_for_function(f"() => !{BEYOND}.length")
        assert page.evaluate(BEYOND) == []

    return check

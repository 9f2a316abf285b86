"""A page on which the views are drawn."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from fitting import fits


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


@pytest.fixture
def beyond(page: Any) -> Callable[[], None]:
    """Fails unless all that is shown fits the view's width, after a drawing that follows it."""
    return lambda: fits(page, "#view")

"""A page on which the views are drawn."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from fitting import fits

SIZE = {"width": 1000, "height": 800}


@pytest.fixture(scope="session")
def tab(chromium: Any) -> Iterator[Any]:
    """A tab for all tests: to open one takes most of a test's time."""
    context = chromium.new_context(viewport=SIZE)
    tab = context.new_page()
    tab.set_default_timeout(10_000)
    yield tab
    context.close()


@pytest.fixture
def page(tab: Any) -> Iterator[Any]:
    """An empty page on which any error fails the test."""
    errors: list[str] = []

    def take(message: Any) -> None:
        if message.type == "error":
            errors.append(message.text)

    def fail(error: Any) -> None:
        errors.append(str(error))

    tab.goto("about:blank")  # a new window, with nothing of the last test's
    tab.set_viewport_size(SIZE)
    tab.on("pageerror", fail)
    tab.on("console", take)
    tab.set_content(
        "<!doctype html><html lang=en><title>view</title>"
        "<body><main><h1>View</h1><div id=view></div></main>"
    )
    yield tab
    tab.remove_listener("pageerror", fail)
    tab.remove_listener("console", take)
    assert errors == []


@pytest.fixture
def beyond(page: Any) -> Callable[[], None]:
    """Fails unless all that is shown fits the view's width, after a drawing that follows it."""
    return lambda: fits(page, "#view")

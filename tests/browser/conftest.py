"""A page on which the views are drawn."""

from __future__ import annotations

from collections.abc import Iterator
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

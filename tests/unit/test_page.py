"""What a line's page shows, and what it has sent."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from jaxcluster.notebook.page import Page

BUNDLE = {"text/plain": "plain", "text/html": "<b>"}


def page(message: dict[str, Any], shown: list[Any]) -> Page:
    kernel = SimpleNamespace(get_parent=lambda channel: message)
    return Page(SimpleNamespace(kernel=kernel, display_pub=SimpleNamespace(publish=shown.append)))


def test_a_notebook_gets_the_bundle_and_a_terminal_its_text(
    capsys: pytest.CaptureFixture[str],
) -> None:
    shown: list[Any] = []
    page({}, shown).show(BUNDLE)
    assert (shown, capsys.readouterr().out) == ([BUNDLE], "")
    Page(SimpleNamespace()).show(BUNDLE)
    assert capsys.readouterr().out == "plain\n"

"""A headless Chromium, and axe-core where it is installed; tests skip where they are not."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

FLAGS = ["--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu"]


@pytest.fixture(scope="session")
def chromium() -> Iterator[Any]:
    sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    path = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")
    if path is None:
        pytest.skip("there is no Chromium: set CHROMIUM to one, or apt-get install chromium")
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=FLAGS)
        yield browser
        browser.close()


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


@pytest.fixture(scope="session")
def axe() -> str:
    """axe-core's source: AXE_CORE, or what npm has installed in labextension/ or globally."""
    candidates = [Path(os.environ["AXE_CORE"])] if "AXE_CORE" in os.environ else []
    candidates.append(Path(__file__).parents[2] / "labextension/node_modules/axe-core/axe.min.js")
    if npm := shutil.which("npm"):
        root = subprocess.run([npm, "root", "-g"], capture_output=True, text=True, check=False)
        candidates.append(Path(root.stdout.strip()) / "axe-core" / "axe.min.js")
    for path in candidates:
        if path.is_file():
            return path.read_text()
    pytest.skip("axe-core is not installed: npm install -g axe-core, or set AXE_CORE to axe.min.js")

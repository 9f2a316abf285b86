"""A real JupyterLab in a headless Chromium, with the extension as the build has left it.

The tests skip where the extension has not been built.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest
from helpers import until
from labpage import Lab, LabPage
from labserver import BUILT, serving


@pytest.fixture(scope="session")
def built() -> None:
    if not (BUILT / "package.json").is_file():
        why = "the extension is not built: npm ci && npm run build, in labextension/"
        if os.environ.get("JAXCLUSTER_REQUIRE_BROWSER") == "1":
            pytest.fail(why)
        pytest.skip(why)


@pytest.fixture(scope="session")
def lab(built: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    with serving(tmp_path_factory.mktemp("notebooks")) as server:
        yield server


@pytest.fixture(scope="session")
def context(chromium: Any) -> Iterator[Any]:
    """One for all pages: what it has loaded and compiled of the Lab is a fifth of a test's work."""
    made = chromium.new_context(viewport={"width": 1500, "height": 950})
    yield made
    made.close()


@pytest.fixture
def page(context: Any, lab: Lab) -> Iterator[LabPage]:
    """A page of the Lab; whatever its console calls an error fails the test."""
    opened = LabPage(context.new_page(), lab)
    yield opened
    # The end of a kernel makes more of them in a Lab that asks it something.
    errors = list(opened.errors)
    opened.end_kernels()
    forget(context)
    assert errors == []
    until(lambda: not lab.kernels_processes(), "end of all that the kernels have started", 30)


def forget(context: Any) -> None:
    """Close its pages, and clear what they have stored: settings of the form, what was chosen."""
    first, *others = context.pages
    for other in others:
        other.close()
    origin = first.evaluate("window.origin")
    first.goto("about:blank")  # a Lab that ends stores more
    stored = {"origin": origin, "storageTypes": "cookies,indexeddb,local_storage"}
    context.new_cdp_session(first).send("Storage.clearDataForOrigin", stored)
    first.close()
    context.clear_permissions()

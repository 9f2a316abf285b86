"""A headless Chromium and axe-core, for the tests of several folders.

Tests skip where these are not installed; with JAXCLUSTER_REQUIRE_BROWSER=1, as CI sets it where it
could install them, that is a failure.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn
from zlib import crc32

import pytest

FLAGS = [
    "--no-sandbox",
    "--disable-dev-shm-usage",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
]


if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # a shell's background command ignores it
    signal.signal(signal.SIGINT, signal.default_int_handler)
# Else a detached cluster of a test outlives its end.
signal.signal(signal.SIGTERM, signal.default_int_handler)


# These take longest, so they begin first where several processes share the files (-n with
# --no-loadscope-reorder): else the other processes would have ended before. None of a browser: the
# loop of its events goes on in the process, and later tests could run none of their own.
LONGEST = [
    "test_ranks_on_hosts", "test_search", "test_saved_names", "test_losses", "test_kubernetes",
    "test_respawn", "test_replies", "test_launches", "test_agreement", "test_attach",
    "test_resizing", "test_clusters", "test_guides", "test_operation", "test_processes",
    "test_soak", "test_deaths", "test_notebooks", "test_agent", "test_pages", "test_scripts",
    "test_panel", "test_notebook", "test_widgets",
    "test_site", "test_commands",
]  # fmt: skip
NOT_LIVE = {Path(__file__).parent / name for name in ("unit", "sim", "packaging")}


@pytest.hookimpl(tryfirst=True)  # before -m is looked at
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        if NOT_LIVE.isdisjoint(item.path.parents):
            item.add_marker("live")
    if hasattr(config, "workerinput"):
        places = {f"{name}.py": place for place, name in enumerate(LONGEST)}
        items.sort(key=lambda item: places.get(item.path.name, len(places)))
    if os.environ.get("JAXCLUSTER_TEST_CASES") == "one":
        kept = one_case(items)
        config.hook.pytest_deselected(items=[item for item in items if item not in kept])
        items[:] = [item for item in items if item in kept]
    if part := os.environ.get("JAXCLUSTER_TEST_PART"):
        here = "JAXCLUSTER_TEST_HOSTS" not in os.environ  # those of any jax run once
        mine = [
            item
            for item in items
            if (here and item.get_closest_marker("any_jax")) or in_part(part, item.path.name)
        ]
        config.hook.pytest_deselected(items=[item for item in items if item not in mine])
        items[:] = mine


def in_part(part: str, name: str) -> bool:
    """Whether a file is in a part such as ``2/3`` of them: each is in one, the same each time.

    A part of what is tested otherwise with another jax, or on one machine, is enough at a time.
    """
    which, parts = map(int, part.split("/"))
    return crc32(name.encode()) % parts == which % parts


def one_case(items: list[pytest.Item]) -> set[pytest.Item]:
    """Of each test one of its cases, where all of them run with another jax, or beside it.

    Those that are the same with every jax run once, so they are all kept.
    """
    cases: dict[str, list[pytest.Item]] = {}
    kept = {item for item in items if item.get_closest_marker("any_jax")}
    for item in items:
        cases.setdefault(item.nodeid.partition("[")[0], []).append(item)
    return kept | {found[crc32(name.encode()) % len(found)] for name, found in cases.items()}


@pytest.fixture
def no_jax(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a notebook, whatever other tests have imported."""
    for name in [n for n in sys.modules if n == "jax" or n.startswith(("jax.", "jaxlib"))]:
        monkeypatch.delitem(sys.modules, name)


def missing(why: str) -> NoReturn:
    if os.environ.get("JAXCLUSTER_REQUIRE_BROWSER") == "1":
        pytest.fail(why)
    pytest.skip(why)


@pytest.fixture(scope="session")
def chromium() -> Iterator[Any]:
    sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    path = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")
    if path is None:
        missing("there is no Chromium: set CHROMIUM to one, or apt-get install chromium")
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=FLAGS)
        yield browser
        browser.close()


@pytest.fixture(scope="session")
def axe() -> str:
    """axe-core's source: AXE_CORE, or what npm has installed in labextension/ or globally."""
    candidates = [Path(os.environ["AXE_CORE"])] if "AXE_CORE" in os.environ else []
    candidates.append(Path(__file__).parents[1] / "labextension/node_modules/axe-core/axe.min.js")
    if npm := shutil.which("npm"):
        root = subprocess.run([npm, "root", "-g"], capture_output=True, text=True, check=False)
        candidates.append(Path(root.stdout.strip()) / "axe-core" / "axe.min.js")
    for path in candidates:
        if path.is_file():
            return path.read_text()
    missing("axe-core is not installed: npm install -g axe-core, or set AXE_CORE to axe.min.js")

"""Each promise of docs/guarantees.md has a test that is run by default (``bash tests/run.sh``)."""

from __future__ import annotations

import re
from pathlib import Path

HERE = Path(__file__).parent.parent
PAGE = HERE.parent / "docs/guarantees.md"
EXPLAINED_ONLY = {
    "Guarantees",
    "Assumptions",
    "How it works",
    "What it costs",
    "What can't be promised",
    "Where it is tested",
}


def headings() -> set[str]:
    return set(re.findall(r"^#+ (.+)$", PAGE.read_text(), re.M))


def marked() -> set[str]:
    marks = re.compile(r'@pytest\.mark\.promise\("(.+)"\)')
    return {name for file in HERE.rglob("test_*.py") for name in marks.findall(file.read_text())}


def test_each_promise_has_a_test() -> None:
    assert headings() - marked() == EXPLAINED_ONLY


def test_each_test_of_a_promise_names_one() -> None:
    assert marked() - headings() == set()

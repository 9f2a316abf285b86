"""A report of what went wrong, as it is shown."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from jaxcluster.hosts.records.reports import Report
from jaxcluster.views import report as views

FOUND = Report(
    "failed",
    "main",
    "",
    7,
    0,
    "KeyError on rank 1: 'a'",
    ["Rank 0 stopped before the next launch."],
    [1],
    source="k = d['a']\ny = f(x) < 1",
    marked=[1],
    launches="program  at\njit(f)   cell [7] line 2",
)


def test_it_says_what_happened_then_the_cell_and_the_launches() -> None:
    shown = views.bundle(views.text(FOUND))
    text, html = shown["text/plain"], shown["text/html"]
    parts = [
        "Cell [7] on cluster 'main', ", "KeyError on rank 1: 'a'", "Rank 0 stopped before",
        "->   1  k = d['a']", "     2  y = f(x) < 1", f"{views.LAUNCHES}:", "jit(f)",
    ]  # fmt: skip
    at = [text.index(part) for part in parts]
    assert at == sorted(at)
    assert "KeyError on rank 1: &#x27;a&#x27;" in html and "y = f(x) &lt; 1" in html
    assert "style=" not in html  # a saved notebook may have none


def test_of_no_report_it_is_said_which_there_are() -> None:
    kept: list[Report] = []
    reports = SimpleNamespace(
        find=lambda cell: FOUND if kept and cell in (None, 7) else None, all=lambda: kept
    )
    cluster: Any = SimpleNamespace(name="main", past_reports=reports)
    told = views.of_cell(cluster, None)
    assert told == "No cell has gone wrong on cluster 'main'."
    kept += [FOUND, FOUND]
    told = views.of_cell(cluster, 3)
    assert "no report of cell [3]" in told and told.endswith("Reports: [7].")
    assert views.of_cell(cluster, 7) == views.of_cell(cluster, None) == views.text(FOUND)

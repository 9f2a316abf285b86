"""A report of what went wrong, as it is shown."""

from __future__ import annotations

import json
from dataclasses import asdict
from types import SimpleNamespace
from typing import Any

from jaxcluster.agreement.refusals import Place
from jaxcluster.records.lastreport import LastReport
from jaxcluster.views import report as views
from jaxcluster.wire.ops.agreement import AgreedLaunch

FOUND = LastReport(
    0,
    7,
    "k = d['a']\ny = f(x) < 1",
    "KeyError",
    "KeyError on rank 1: 'a'",
    "Rank 0 stopped before the next launch.",
    [1],
    [AgreedLaunch(3, 7, "jit(f)", Place(7, 2, "y = f(x) < 1"), 8.5, 1, 0.2)],
    9.0,
    [1],
)
DOCUMENT = views.document(FOUND, "main")


def test_it_says_what_happened_then_the_cell_and_the_launches() -> None:
    shown = views.bundle(DOCUMENT)
    text, html = shown["text/plain"], shown["text/html"]
    parts = [
        "Cell [7] on cluster 'main', ", "KeyError on rank 1: 'a'", "Rank 0 stopped before",
        "->   1  k = d['a']", "     2  y = f(x) < 1", f"{views.LAUNCHES}:", "jit(f)",
    ]  # fmt: skip
    at = [text.index(part) for part in parts]
    assert at == sorted(at)
    assert "KeyError on rank 1: &#x27;a&#x27;" in html and "y = f(x) &lt; 1" in html
    assert "style=" not in html  # a saved notebook may have none
    found = json.loads(json.dumps(asdict(DOCUMENT)))
    assert (found["cell"], found["kind"], found["culprits"]) == (7, "failed", [1])
    assert "cell [7] line 2" in found["launches"]


def test_of_no_report_it_is_said_which_there_are() -> None:
    kept: list[LastReport] = []
    reports = SimpleNamespace(
        find=lambda cell: FOUND if kept and cell in (None, 7) else None, all=lambda: kept
    )
    cluster: Any = SimpleNamespace(name="main", past_reports=reports)
    told = views.of_cell(cluster, None)["text/plain"]
    assert told == "No cell has gone wrong on cluster 'main'."
    kept += [FOUND, FOUND]
    told = views.of_cell(cluster, 3)["text/plain"]
    assert "no report of cell [3]" in told and told.endswith("Reports: [7].")
    assert views.of_cell(cluster, 7) == views.of_cell(cluster, None) == views.bundle(DOCUMENT)

"""A report of what went wrong, as it is shown."""

from __future__ import annotations

import json

from journals import launches, report

from jaxcluster.model.timeline import timelines
from jaxcluster.records.lastreport import LastReport
from jaxcluster.views import report as views

EVIDENCE = {
    0: report(0, launches("0,1", "AB"), line=2),
    1: report(1, launches("0,1", "A")),
}
FOUND = LastReport(
    0,
    7,
    "k = d['a']\ny = f(x) < 1",
    "KeyError",
    "KeyError on rank 1: 'a'",
    "Rank 0 waited for it.\nBack in lockstep.",
    [1],
    timelines(EVIDENCE, "0,1", 1, [1]),
    list(EVIDENCE.values()),
    [1],
)


def test_it_says_what_happened_then_the_cell_the_launches_and_the_stacks() -> None:
    shown = views.text(FOUND, "main")
    parts = [
        "Cell [7] on cluster 'main', ", "KeyError on rank 1: 'a'", "Back in lockstep.",
        "->   1  k = d['a']", "     2  y = f(x) < 1",
        "2       1      -                    <- first difference", "── rank 1 ──\nidle, in no cell",
    ]  # fmt: skip
    at = [shown.index(part) for part in parts]
    assert at == sorted(at)


def test_a_notebook_has_the_same_as_html_without_colours() -> None:
    shown = views.bundle(FOUND, "main")
    assert shown["text/plain"] == views.text(FOUND, "main")
    html = shown["text/html"]
    assert html.startswith("<p><b>KeyError on rank 1: &#x27;a&#x27;</b></p>")
    assert "Back in lockstep." in html and "y = f(x) &lt; 1" in html
    assert "&lt;- first difference" in html
    assert "<details><summary>Where the ranks were" in html
    assert "style=" not in html


def test_a_program_can_read_it() -> None:
    found = json.loads(json.dumps(views.document(FOUND, "main")))
    assert (found["cell"], found["kind"], found["culprits"]) == (7, "KeyError", [1])
    assert found["timelines"][0]["odd"] == [1]


def test_without_evidence_there_is_what_was_said() -> None:
    shown = views.text(LastReport(0, 7, "1 / 0", "ZeroDivisionError", "on rank 1"), "main")
    assert "Launches" not in shown and "Where the ranks were" not in shown
    assert shown.endswith("The cell:\n     1  1 / 0")


def test_of_no_report_it_is_said_which_there_are() -> None:
    assert views.none("main", None, []) == "No cell has gone wrong on cluster 'main'."
    assert "no report of cell [3]" in views.none("main", 3, [FOUND, FOUND])
    assert views.none("main", 3, [FOUND, FOUND]).endswith("Reports: [7].")

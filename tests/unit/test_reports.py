"""What went wrong, kept for those who ask later, and as it is shown."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from jaxcluster.agreement.messages import AgreedLaunch, Looked, Place
from jaxcluster.errors import CellFailed, CellInterrupted, RankDied
from jaxcluster.hosts.records.reports import MOST, Report, Reports, made_of
from jaxcluster.model.outputs import CellRecord, RankRecord
from jaxcluster.views import report as views
from jaxcluster.wire import CellReply, ErrorInfo


@pytest.fixture
def folder(root: Path) -> Path:
    made = root / "main"
    made.mkdir()
    return made


def record_of(ranks: int = 3, **errors: ErrorInfo) -> CellRecord:
    record = CellRecord(7, 4, "k = d['a']\ny = f(x)", list(range(ranks)))
    record.records = {rank: RankRecord(rank) for rank in range(ranks)}
    for name, error in errors.items():
        record.add_reply(CellReply(int(name[1:]), 7, "error", 0.1, error))
    return record


def saved(at: int, cell: int) -> Report:
    return Report("diverged", "main", "", cell, at, f"cell {cell}", [], [])


LOOKED = Looked(9.0, agreed=[AgreedLaunch(3, 7, "jit(sum)", Place(4, 2, "y = f(x)"), 8.5, 1, 0.2)])


def test_it_has_the_lines_and_the_last_launches_and_is_read_again(folder: Path) -> None:
    errors = {"r0": ErrorInfo("Divergence", "rank 2 failed", [], 2)}  # it waited
    record = record_of(r2=ErrorInfo("KeyError", "'a'", [], 1), **errors)
    error = CellFailed("\x1b[31mKeyError\x1b[0m on rank 2: 'a'", "done", [2], "KeyError")
    made = made_of(record, error, "main", 5, LOOKED)
    assert made is not None
    assert (made.at, made.cell, made.kind) == (5, 4, "failed")
    assert (made.title, made.lines) == ("KeyError on rank 2: 'a'", ["done"])
    assert (made.culprits, made.marked) == ([2], [1])
    assert made.launches.splitlines()[1].split(maxsplit=5) == [
        "jit(sum)", "cell", "[4]", "line", "2", "0.500 s            rank 1, by 200.0 ms"
    ]  # fmt: skip
    Reports("main").add(made)
    assert Reports("main").find() == made
    assert (folder / "reports").stat().st_mode & 0o077 == 0
    # The referee may not answer.
    made = made_of(record_of(2), RankDied("Rank 1 died.", "", [1]), "main", 5)
    assert made is not None
    assert (made.kind, made.launches, made.culprits) == ("dead", "", [1])


def test_an_error_of_all_ranks_says_all_itself() -> None:
    error = CellFailed("ValueError on ranks 0-2", "", [0, 1, 2], "ValueError")
    assert made_of(record_of(), error, "main", 5) is None
    assert made_of(record_of(), CellInterrupted("stopped"), "main", 5) is None


def test_the_last_one_is_found_or_the_last_of_a_cell(folder: Path) -> None:
    reports, others = Reports("main"), Reports("main")
    reports.add(saved(1, 4))
    others.add(saved(2, 9))
    reports.add(saved(10, 4))
    for one in (reports, others, Reports("main")):
        found = [one.find(), one.find(4), one.find(9)]
        assert [each and each.at for each in found] == [10, 10, 2]
        assert one.find(5) is None


def test_old_ones_make_room(folder: Path) -> None:
    reports = Reports("main")
    for number in range(1, MOST + 4):
        reports.add(saved(number, number))
    assert len([*(folder / "reports").iterdir()]) == MOST
    assert [one.cell for one in Reports("main").all()] == list(range(4, MOST + 4))


@pytest.mark.parametrize("body", ["", "[1]", '{"at": "x"}', "[" * 100_000])
def test_a_broken_file_is_no_report(folder: Path, body: str) -> None:
    (folder / "reports").mkdir()
    (folder / "reports" / "12.json").write_text(body)
    assert Reports("main").find() is None


def test_without_a_folder_this_process_has_its_last_one(folder: Path) -> None:
    reports = Reports("gone")
    reports.add(saved(1, 4))
    assert reports.last_own == reports.find() == saved(1, 4) and Reports("gone").find() is None
    assert list(folder.iterdir()) == []


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

"""What last went wrong, kept for those who were not there."""

from __future__ import annotations

import pytest
from helpers import Home

from jaxcluster import wire
from jaxcluster.errors import CellFailed, Divergence, RankDied
from jaxcluster.records import lastreport
from jaxcluster.records.runtimefolder import inside


@pytest.fixture
def folder(monkeypatch: pytest.MonkeyPatch):  # type: ignore[no-untyped-def]
    home = Home.make()
    for name, value in home.variables.items():
        monkeypatch.setenv(name, value)
    made = inside() / "main"
    made.mkdir()
    yield made
    home.remove()


def report_of(rank: int, launches: int) -> wire.RankReport:
    made = [wire.Launch(seq, "0,1", "jit(f)", 1) for seq in range(launches)]
    return wire.RankReport(wire.RankState(rank, 1, "h", "idle"), [], made)


def test_what_is_kept_is_read_again(folder) -> None:  # type: ignore[no-untyped-def]
    reports = {r: report_of(r, 100) for r in range(2)}
    lastreport.keep("main", 7, "x", Divergence("it diverged", "and was mended"), reports)
    found = lastreport.read("main")
    assert found is not None
    assert (found.cell, found.kind, found.message) == (7, "Divergence", "it diverged")
    assert found.hint == "and was mended"
    assert [rep.state.rank for rep in found.reports] == [0, 1]
    assert [launch.seq for launch in found.reports[0].launches] == list(range(80, 100))
    assert [path.name for path in folder.iterdir()] == [lastreport.FILE]
    assert (folder / lastreport.FILE).stat().st_mode & 0o077 == 0


def test_an_error_of_the_users_own_is_none(folder) -> None:  # type: ignore[no-untyped-def]
    lastreport.keep("main", 7, "x", CellFailed("ValueError"), {})
    assert lastreport.read("main") is None


def test_the_last_one_counts(folder) -> None:  # type: ignore[no-untyped-def]
    lastreport.keep("main", 1, "x", Divergence("first"), {})
    lastreport.keep("main", 2, "x", RankDied("second", ranks=[1]), {})
    found = lastreport.read("main")
    assert found is not None and found.message == "second"


@pytest.mark.parametrize("body", ["", "{}", "[1]", '{"at_ns": "now"}', "[" * 100_000])
def test_a_file_of_another_shape_is_none(folder, body: str) -> None:  # type: ignore[no-untyped-def]
    (folder / lastreport.FILE).write_text(body)
    assert lastreport.read("main") is None


def test_a_folder_that_is_gone_costs_no_cell(folder) -> None:  # type: ignore[no-untyped-def]
    lastreport.keep("gone", 1, "x", Divergence("first"), {})
    assert lastreport.read("gone") is None

"""``jaxcluster mcp`` before there is a server."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
from types import SimpleNamespace
from typing import Any, cast

import pytest

from jaxcluster import cli
from jaxcluster.mcp import texts
from jaxcluster.mcp.texts import MOST_CHARS
from jaxcluster.model.availability import ClusterCondition
from jaxcluster.records.lastreport import LastReport
from jaxcluster.wire import Death
from jaxcluster.wire.forks import RESTARTED


def test_without_the_sdk_it_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert cli.main(["mcp"]) == 2
    said = capsys.readouterr().err
    assert "which is not installed" in said
    assert "pip install 'jaxcluster[mcp]'" in said


def test_an_older_sdk_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "1.27.0")
    assert cli.main(["mcp"]) == 2
    assert "needs version 2 of the Model Context Protocol's SDK, not 1.27.0" in (
        capsys.readouterr().err
    )


def test_an_unknown_option_is_refused_before_anything_else(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert cli.main(["mcp", "--alow-run"]) == 2
    assert "did you mean --allow-run?" in capsys.readouterr().err


def test_a_report_as_json_is_no_longer_than_another_answer() -> None:
    source = "a = 1\n" * MOST_CHARS + "the end"
    last = LastReport(0, 7, source, "Divergence", "rank 1 ended", culprits=[1])
    running = SimpleNamespace(
        name="main",
        dead={},
        world=SimpleNamespace(),
        status=list,
        stacks=dict,
        look=lambda: None,
        past_reports=SimpleNamespace(find=lambda cell: last, all=lambda: [last]),
    )
    told, document = texts.report(cast(Any, running), None)
    assert isinstance(document, dict)
    assert len(str(told)) < MOST_CHARS + 100 and len(json.dumps(document)) <= MOST_CHARS
    assert document["source"].endswith("the end")
    assert "are left out]" in document["source"]
    assert document["culprits"] == [1]


def test_ranks_that_a_notebook_has_restarted_have_not_died() -> None:
    dead = dict.fromkeys(range(2), Death(RESTARTED))
    running = SimpleNamespace(
        name="main",
        dead=dead,
        world=SimpleNamespace(log_excerpt=lambda rank: "its last words"),
        condition=ClusterCondition("main", dead=dead, is_ours=False),
        past_reports=SimpleNamespace(find=lambda cell: None, all=list),
    )
    (told,) = texts.report(cast(Any, running), None)
    assert str(told).startswith(
        "NOW\nThe cluster was restarted.\n%jaxcluster attach main connects to its new processes.\n"
    )

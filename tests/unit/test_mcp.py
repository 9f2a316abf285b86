"""``jaxcluster mcp`` before there is a server."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
from types import SimpleNamespace
from typing import Any, cast

import pytest

from jaxcluster import cli
from jaxcluster.lockstep.availability import ClusterCondition
from jaxcluster.mcp import texts
from jaxcluster.mcp.texts import MOST_CHARS, clip_document
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
    timelines = [{"processes": [0, 1], "lanes": ["x" * 3000]} for _ in range(9)]
    found = {"kind": "Divergence", "culprits": [1], "source": "x = 1\n", "timelines": timelines}
    assert clip_document({**found, "timelines": timelines[:2]}) == {
        **found, "timelines": timelines[:2]
    }  # fmt: skip
    stacks = "a\n" * MOST_CHARS + "the end"
    short = clip_document({**found, "stacks": stacks})
    assert len(json.dumps(short)) <= MOST_CHARS
    assert short["stacks"].endswith("the end")
    assert "are left out]" in short["stacks"]
    assert short["timelines"] == timelines[: len(short["timelines"])] != []
    assert short["left_out"] == 9 - len(short["timelines"])
    assert short["culprits"] == [1]


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

"""``jaxcluster mcp`` before there is a server."""

from __future__ import annotations

import importlib.metadata
import importlib.util
from types import SimpleNamespace

import pytest

from jaxcluster import cli
from jaxcluster.wire import Death
from jaxcluster.wire.forks import RESTARTED


def test_without_the_sdk_it_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert cli.main(["mcp"]) == 2
    said = capsys.readouterr().err
    assert "which is not installed" in said
    assert "pip install -U 'jaxcluster[mcp]'" in said


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


def test_of_a_long_answer_the_end_is_kept() -> None:
    server = pytest.importorskip("jaxcluster.mcp.server")
    told = server.clip("\x1b[31ma = 1\x1b[0m\n" * server.MOST_CHARS + "the end")
    assert told.startswith("[100007 characters before this are left out]\n\na = 1\n")
    assert told.endswith("\nthe end") and "\x1b" not in told


def test_ranks_that_a_notebook_has_restarted_have_not_died() -> None:
    dead = dict.fromkeys(range(2), Death(RESTARTED))
    running = SimpleNamespace(
        name="main",
        dead=dead,
        world=SimpleNamespace(log_excerpt=lambda rank: "its last words", unreachable={}),
        down="",
        closed=False,
        is_ending=False,
    )
    server = pytest.importorskip("jaxcluster.mcp.server")
    assert server.now(running) == (
        "The cluster was restarted.\n%jaxcluster attach main connects to its new processes."
    )

"""``jaxcluster mcp`` before there is a server."""

from __future__ import annotations

import sys

import pytest

from jaxcluster import cli


def test_without_the_sdk_it_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("mcp", "jaxcluster.mcp.server"):
        monkeypatch.setitem(sys.modules, name, None)
    assert cli.main(["mcp"]) == 2
    said = capsys.readouterr().err
    assert "needs version 2 of the Model Context Protocol's SDK: " in said
    assert "pip install -U 'jaxcluster[mcp]'" in said


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

"""What ranks print in a terminal: whole lines with their ranks."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from jaxcluster import wire
from jaxcluster.model.lines import LINE_CHARS, Lines, fit
from jaxcluster.model.outputs import CellRecord
from jaxcluster.views import displays
from jaxcluster.views.live import CellDisplay


def taken(lines: Lines) -> list[str]:
    return [text.removesuffix("\n") for _, text in lines.take()]


def test_lines_come_whole_however_they_were_cut_and_equal_ones_once() -> None:
    lines = Lines()
    lines.add(2, "stdout", "on")
    lines.add(0, "stdout", "one\ntw")
    assert taken(lines) == ["[rank 0] one"]
    lines.add(2, "stdout", "e\n\n")
    lines.add(1, "stdout", "one\n\n")
    lines.add(0, "stdout", "o")
    assert taken(lines) == ["[ranks 1, 2] one", "[ranks 1, 2] "]
    lines.end()
    assert taken(lines) == ["[rank 0] two"] and taken(lines) == []


def test_streams_have_lines_of_their_own_in_the_order_of_their_ends() -> None:
    lines = Lines()
    lines.add(0, "stdout", "a")
    lines.add(0, "stderr", "warning\n")
    lines.add(0, "stdout", "b\n")
    assert lines.take() == [("stderr", "[rank 0] warning\n"), ("stdout", "[rank 0] ab\n")]


def test_a_progress_bar_is_what_is_to_be_seen_of_it() -> None:
    lines = Lines()
    for part in range(200):
        lines.add(0, "stderr", f"\r{part:3} of 200 ###")
    assert taken(lines) == []
    lines.add(0, "stderr", "\rdone\n")
    assert taken(lines) == ["[rank 0] done"]
    lines.add(0, "stdout", "x" * (LINE_CHARS + 1))
    assert len(taken(lines)[0]) > LINE_CHARS


def test_a_rank_moves_no_cursor_and_colours_its_own_lines_only() -> None:
    lines = Lines()
    lines.add(0, "stdout", "\x1b[31mred\n\x1b[2K\x1b[Aup\nplain\n")
    assert taken(lines) == ["[rank 0] \x1b[31mred\x1b[0m", "[rank 0] up", "[rank 0] plain"]
    assert fit("\x1b[31mred\x1b[0m", 4) == "\x1b[31mred\x1b[0m"
    assert fit("\x1b[31mlonger\x1b[0m", 4) == "lon"


def test_what_a_rank_does_to_the_whole_terminal_is_taken_out() -> None:
    lines = Lines()
    link, title = "\x1b]8;;http://x\x1b\\", "\x1b]0;title\x07"
    for code in ("\x1bc", "\x1b[?25l", title, link, "\x1b(B", "\x1b7", "\f"):
        lines.add(0, "stdout", f"a{code}b\n")
    assert {text.replace("\x1b[0m", "") for text in taken(lines)} == {"[rank 0] ab"}


def test_in_a_file_there_are_whole_lines_alone(capsys: pytest.CaptureFixture[str]) -> None:
    record = CellRecord(1, 7, "pass", [2, 0, 1])
    shown = CellDisplay(object(), SimpleNamespace(on_push=None), all_ranks=True)  # type: ignore[arg-type]

    def say(rank: int, kind: str, **content: Any) -> None:
        shown.on_output(record, wire.RankOutput(rank, 1, kind, content))

    say(0, "stream", name="stdout", text="half")
    say(1, "execute_result", data={"text/plain": "[1,\n 2]"}, metadata={})
    say(1, "execute_result", data={}, array={})
    say(1, "display_data", data={"image/png": "…"})
    shown.now()
    assert capsys.readouterr().out == "[rank 1] [1,\n[rank 1]  2]\n"
    shown.close()
    assert capsys.readouterr().out == "[rank 0] half\n"


@pytest.mark.parametrize(
    ("words", "found"),
    [
        ("/usr/bin/python\0/usr/bin/jupyter-console\0", True),
        ("python\0-m\0jupyter_console\0", True),
        ("/usr/bin/python\0/usr/bin/jupyter\0console\0", True),
        ("python\0-m\0jupyter\0lab\0", False),
        ("python\0/usr/bin/jupyter-lab\0console.ipynb\0", False),
    ],
)
def test_a_console_is_known_by_its_command_line(
    words: str, found: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Path, "read_bytes", lambda path: words.encode())
    assert displays.is_console.__wrapped__() is found

"""The line under a running cell, on a terminal of a few rows, in a page and in a log."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

from jaxcluster.views import statusline
from jaxcluster.views.live import StartDisplay
from jaxcluster.views.ranks_output import InTerminal
from jaxcluster.views.statusline import InPage, OnTerminal, StatusLine, can_write_over

COLUMNS = 30


class Screen:
    """What a terminal does with what is written to it here."""

    def __init__(self) -> None:
        self.lines, self.column = [""], 0

    def write(self, text: str) -> None:
        for piece in re.findall(r"\x1b\[K|.", text, re.DOTALL):
            line = self.lines[-1].ljust(self.column)
            if piece == "\x1b[K":
                self.lines[-1] = line[: self.column]
            elif piece == "\n":
                self.lines.append("")
            elif piece != "\r":
                self.lines[-1] = line[: self.column] + piece + line[self.column + 1 :]
            self.column = 0 if piece in "\r\n" else self.column + (piece != "\x1b[K")
            assert self.column < COLUMNS

    @property
    def text(self) -> str:
        return "\n".join(self.lines).rstrip("\n")


@pytest.fixture
def screen(monkeypatch: pytest.MonkeyPatch) -> Screen:
    monkeypatch.setenv("COLUMNS", str(COLUMNS))  # pytest asks for the terminal's size, too
    return Screen()


def printer(screen: Screen, line: OnTerminal) -> Callable[[str], None]:
    def put(text: str) -> None:
        with line.room():
            screen.write(text)
            line.writes(text)

    return put


class Shell:
    """Stands for a notebook's: keeps what is displayed, and whether in place of something."""

    def __init__(self) -> None:
        self.displays: list[tuple[str, bool]] = []
        self.display_pub = self

    def publish(self, data: Any, metadata: Any, transient: Any, update: bool) -> None:
        self.displays.append((data["text/plain"], update))


def test_in_a_page_it_does_not_cut_a_progress_bar_in_two() -> None:
    """A display between two parts of a bar would leave the first one as it was then."""
    shell = Shell()
    line = InPage(shell)
    line.writes("a line\r\n")
    assert shell.displays == []
    line.writes("\r 10%")
    line.writes("\r 20%")
    line.show("Rank 1 waits for rank 0.")
    line.writes("\r100%\n")
    line.show("")
    assert shell.displays == [("", False), ("Rank 1 waits for rank 0.", True), ("", True)]


def test_the_last_line_stands_below_what_is_printed_and_is_gone_at_the_end(screen: Screen) -> None:
    line = OnTerminal(screen.write)
    put = printer(screen, line)
    put("step 1\n")
    line.show("Rank 1 still works (5 s).")
    assert screen.text == "step 1\nRank 1 still works (5 s)."
    line.show("Rank 1 works (6 s).")
    assert screen.text == "step 1\nRank 1 works (6 s)."
    put("step 2\n")
    assert screen.text == "step 1\nstep 2\nRank 1 works (6 s)."
    line.show("")
    put("end\n")
    assert screen.text == "step 1\nstep 2\nend"


def test_it_takes_nothing_from_a_line_that_has_no_end_yet(screen: Screen) -> None:
    line = OnTerminal(screen.write)
    put = printer(screen, line)
    put("\r 10%")
    line.show("Rank 1 still works.")
    assert screen.text == " 10%"
    put("\r100%\n")
    assert screen.text == "100%\nRank 1 still works."
    line.show("")
    put("end\n")
    assert screen.text == "100%\nend"


def test_a_line_is_cut_where_it_would_fill_the_terminal(screen: Screen) -> None:
    line = OnTerminal(screen.write)
    line.show("word " * 200)
    assert 0 < len(screen.text) < COLUMNS
    line.show("")
    assert screen.text == ""


def test_it_stands_below_the_lines_of_several_ranks(
    screen: Screen, monkeypatch: pytest.MonkeyPatch
) -> None:
    line = OnTerminal(screen.write)
    shown = InTerminal(0, line, is_terminal=True)
    stream = type("Stream", (), {"write": lambda _, text: screen.write(text), "flush": lambda _: 0})
    monkeypatch.setattr("jaxcluster.views.ranks_output.sys.stdout", stream())

    def say(rank: int, text: str) -> None:
        shown._lines.add(rank, "stdout", text)
        shown.now()

    say(0, "\r 10%")
    line.show("Rank 1 works (5 s).")
    assert screen.text == "[rank 0]  10%"
    say(2, "here\n")
    assert screen.text == "[rank 2] here\n[rank 0]  10%"
    shown.pause()
    assert screen.text == "[rank 2] here\n[rank 0]  10%\nRank 1 works (5 s)."
    line.show("")
    assert screen.text == "[rank 2] here\n[rank 0]  10%"


def test_a_log_has_no_control_characters(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not can_write_over()
    log = StatusLine()
    with log.room():
        log.show("Rank 1 still works.")
    assert capsys.readouterr().err == ""
    terminal = type("Terminal", (), {"isatty": lambda _: True})()
    monkeypatch.setattr(statusline, "sys", type("sys", (), {"stdout": terminal, "stderr": None}))
    monkeypatch.setenv("TERM", "xterm")
    assert not can_write_over()
    statusline.sys.stderr = terminal
    assert can_write_over()
    monkeypatch.setenv("TERM", "dumb")
    assert not can_write_over()


def test_a_start_that_fails_leaves_no_line_as_if_it_went_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cleared: list[bool] = []
    monkeypatch.setattr(StartDisplay, "clear", lambda self: cleared.append(True))
    with StartDisplay(rich=False) as display:
        display.progress("starting")
    assert not cleared
    with pytest.raises(KeyboardInterrupt), StartDisplay(rich=False):
        raise KeyboardInterrupt
    assert cleared

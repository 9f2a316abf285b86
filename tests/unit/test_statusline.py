"""The line under a running cell in a page, and the one of a start in a terminal."""

from __future__ import annotations

from typing import Any

import pytest

from jaxcluster.views.live import StartDisplay
from jaxcluster.views.statusline import StatusLine, status_line


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
    line = StatusLine(shell)
    line.writes("a line\r\n")
    assert shell.displays == []
    line.writes("\r 10%")
    line.writes("\r 20%")
    line.show("Rank 1 waits for rank 0.")
    line.writes("\r100%\n")
    line.show("")
    assert shell.displays == [("", False), ("Rank 1 waits for rank 0.", True), ("", True)]


def test_a_terminal_has_none() -> None:
    assert status_line(object()) is None


def test_a_terminal_writes_over_how_far_a_start_has_come_and_a_log_does_not(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for is_terminal, term in ((True, "xterm"), (True, "dumb"), (False, "xterm")):
        monkeypatch.setattr("sys.stderr.isatty", lambda found=is_terminal: found)
        monkeypatch.setenv("TERM", term)
        monkeypatch.setenv("COLUMNS", "12")
        with StartDisplay(rich=False) as display:
            display.progress("engines 3 of 4")
            display.done("Cluster 'main'")
        with pytest.raises(KeyboardInterrupt), StartDisplay(rich=False) as display:
            display.progress("engines")
            raise KeyboardInterrupt
        found = capsys.readouterr()
        assert found.out == "Cluster 'main'\n"
        written = ["engines 3 o", "", "engines", ""] if is_terminal and term == "xterm" else []
        assert found.err == "".join(f"\r\x1b[K{line}\r" for line in written)

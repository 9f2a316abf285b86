"""The one line that says what a cell waits for while it runs. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass

RARER = 3  # how much longer a cell has run when a log is told again
SHARE = 50  # of a cell's time, one part in so many passes between two lines that differ in it alone
_TIME = re.compile(r"\b\d+ (s|min)\b")


@dataclass(frozen=True)
class Line:
    """What is to be shown in the place of the last one; "" takes it away.

    Attributes:
      for_logs: it is also told where nothing can be written over: now and then, and never "".
    """

    text: str
    for_logs: bool = False


class Progress:
    """Which lines of one cell are shown: at once what differs, and its time ever more rarely.

    Args:
      started: when the cell was sent, by the clock of all the lines.
    """

    def __init__(self, started: float) -> None:
        self._started = started
        self._bare = ""
        self._again_at = self._log_at = started

    def say(self, text: str, now: float) -> Line | None:
        """``text`` is true now; "" if nothing is to be said. None: what is shown is good enough."""
        bare, before = _TIME.sub("", text), self._bare
        ran = now - self._started
        if bare == before and (not bare or now < self._again_at):
            return None
        self._bare, self._again_at = bare, now + ran / SHARE
        for_logs = bool(text) and now >= self._log_at
        if for_logs:
            self._log_at = self._started + RARER * ran
        return Line(text, for_logs)

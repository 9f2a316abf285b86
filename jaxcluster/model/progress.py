"""The one line that says what a cell waits for while it runs. Pure."""

from __future__ import annotations

import re

RARER = 3  # how much longer a cell has run when a log is told again
SHARE = 50  # of a cell's time, one part in so many passes between two lines that differ in it alone
_TIME = re.compile(r"\b\d+ (s|min)\b")


class Progress:
    """Which lines of one cell are shown: at once what differs, and its time ever more rarely.

    Args:
      started: when the cell was sent, by the clock of all the lines.
    """

    def __init__(self, started: float) -> None:
        self._started = self._again_at = started
        self._bare = ""

    def is_due(self, text: str, now: float, *, is_log: bool) -> bool:
        """Whether ``text`` is to be shown; "" takes the last one away.

        Args:
          is_log: nothing can be written over, so it is told now and then, and never "".
        """
        bare, ran = _TIME.sub("", text), now - self._started
        if is_log:
            is_due, again_s = bool(text) and now >= self._again_at, (RARER - 1) * ran
        else:
            is_due = bare != self._bare or (bool(bare) and now >= self._again_at)
            again_s = ran / SHARE
        if is_due:
            self._bare, self._again_at = bare, now + again_s
        return is_due

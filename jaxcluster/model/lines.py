"""The ranks' output as whole lines with their ranks, for a terminal that is only appended to.

Pure: text goes in as it comes, lines come out, each rank's in their order.
"""

from __future__ import annotations

import re

from jaxcluster.model.outputs import ANSI, as_seen
from jaxcluster.ranks import by_value, name_ranks

LINE_CHARS = 1 << 16  # of an unfinished line, or a bar, that is held back for its end
# Codes that move the cursor (it is in others' lines), or clear or name the whole terminal.
_MOVES = re.compile(
    r"\x1b\[[0-9;?]*[@-ln-~]|\x1b\][^\x07\x1b]*(\x07|\x1b\\)|\x1b[()].|\x1b[^\[\]()]|[\v\f]"
)
_RESET = "\x1b[0m"

Line = tuple[str, str]  # the stream's name; the text


class Lines:
    """The ranks' lines since the last look.

    A line that was written over (``\\r``, as progress bars do it) is what is to be seen of it.
    """

    def __init__(self) -> None:
        self._whole: dict[int, list[Line]] = {}
        self._open: dict[tuple[int, str], str] = {}

    def add(self, rank: int, stream: str, text: str) -> None:
        """A rank has printed this."""
        *whole, rest = (self._open.pop((rank, stream), "") + text).split("\n")
        if len(rest) > LINE_CHARS:
            whole.append(rest)
            rest = ""
        if whole:
            self._whole.setdefault(rank, []).extend((stream, _clean(line)) for line in whole)
        if rest:
            self._open[rank, stream] = rest

    def take(self) -> list[Line]:
        """``[rank 2] ...``: the lines that have ended since the last call, equal ones once."""
        groups = by_value({rank: tuple(lines) for rank, lines in self._whole.items()})
        self._whole = {}
        return [
            (stream, f"[{name_ranks(ranks)}] {line}\n")
            for lines, ranks in groups.items()
            for stream, line in lines
        ]

    def end(self) -> None:
        """Lines without an end have it now."""
        for rank, stream in list(self._open):
            self.add(rank, stream, "\n")


def fit(line: str, columns: int) -> str:
    """A line that takes one row of so many columns at most; a cut one loses its colours."""
    plain = ANSI.sub("", line).expandtabs()
    return line if len(plain) < columns else plain[: max(0, columns - 1)]


def _clean(line: str) -> str:
    if line.isprintable():
        return line
    seen = _MOVES.sub("", as_seen(line))
    return seen + _RESET if "\x1b" in seen and not seen.endswith(_RESET) else seen

"""The last cells of a rank and their output, for those who did not run them.

A cell's outputs go to the notebook that has sent it. Whoever connects later, as an assistant in an
editor does, asks the rank. What is kept is bounded: the oldest goes first, and it is said how much.
"""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import dataclass, field, replace
from typing import Any

from jaxcluster import wire

KEPT_CELLS = 16
KEPT_CHARS = 200_000  # of one text
KEPT_NBYTES = 2_000_000  # of all the output of a cell; of most it is figures, as base64
OVERHEAD_NBYTES = 50  # of each piece of text
SOURCE_CHARS = 20_000
SHOWN_TYPES = ("text/plain", "text/html", "text/markdown", "text/latex", "image/png", "image/jpeg")


class Recent:
    """Keeps a rank's last cells. Thread-safe: what prints is on any thread."""

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self._cells: deque[_Kept] = deque(maxlen=KEPT_CELLS)
        # A finalizer or a signal's handler may print while this thread holds it.
        self._lock = threading.RLock()

    def begin(self, cell: wire.CellRequest) -> None:
        """A cell is run from now on, and what comes is its own."""
        source = cell.source[:SOURCE_CHARS]
        with self._lock:
            self._cells.append(_Kept(wire.RecentCell(cell.seq, cell.execution_count, source)))

    def text(self, name: str, text: str) -> None:
        """The running cell has printed ``text``."""
        with self._lock:
            if self._cells:
                self._cells[-1].add_text(name, text)

    def add(self, kind: str, content: dict[str, Any]) -> None:
        """The running cell has shown something, or changed what it has shown."""
        with self._lock:
            if self._cells:
                self._cells[-1].add(kind, content)

    def end(self, reply: wire.CellReply) -> None:
        """How the cell has ended."""
        with self._lock:
            if self._cells and self._cells[-1].cell.seq == reply.seq:
                self._cells[-1].reply = reply

    def cells(self, last: int = 1, number: int | None = None) -> list[wire.RecentCell]:
        """The last cells, oldest first; or those that have had a number in their notebook."""
        with self._lock:
            found = [k for k in self._cells if number in (None, k.cell.cell)]
            return [kept.told(self.rank) for kept in found[-last:]]


@dataclass
class _Piece:
    """Text that was printed in a row, or one display."""

    kind: str
    content: dict[str, Any]
    nbytes: int = 0
    texts: deque[str] = field(default_factory=deque)


class _Kept:
    """One cell's outputs, within bounds."""

    def __init__(self, cell: wire.RecentCell) -> None:
        self.cell = cell
        self.reply: wire.CellReply | None = None
        self.pieces: deque[_Piece] = deque()
        self.nbytes = self.dropped = 0

    def add_text(self, name: str, text: str) -> None:
        if len(text) > KEPT_CHARS:
            self.dropped += len(text) - KEPT_CHARS
            text = text[-KEPT_CHARS:]
        last = self.pieces[-1] if self.pieces else None
        if last is None or last.content.get("name") != name:
            last = _Piece("stream", {"name": name})
            self.pieces.append(last)
        last.texts.append(text)
        self._grow(last, _weight(text))

    def add(self, kind: str, content: dict[str, Any]) -> None:
        data = {
            mime: value[: None if mime.startswith("image/") else KEPT_CHARS]
            for mime, value in (content.get("data") or {}).items()
            if mime in SHOWN_TYPES and isinstance(value, str) and len(value) <= KEPT_NBYTES
        }
        kept: dict[str, Any] = {k: content[k] for k in ("transient", "wait") if k in content}
        if "data" in content:
            kept |= {"data": data, "metadata": {}}
        piece = _Piece(kind, kept)
        self.pieces.append(piece)
        self._grow(piece, OVERHEAD_NBYTES + sum(map(len, data.values())))

    def _grow(self, piece: _Piece, nbytes: int) -> None:
        """A piece takes more room: the oldest make it."""
        piece.nbytes += nbytes
        self.nbytes += nbytes
        while self.nbytes > KEPT_NBYTES:
            self._drop_oldest()

    def _drop_oldest(self) -> None:
        oldest = self.pieces[0]
        nbytes = _weight(oldest.texts.popleft()) if oldest.texts else oldest.nbytes
        self.nbytes -= nbytes
        oldest.nbytes -= nbytes
        self.dropped += nbytes - OVERHEAD_NBYTES
        if not oldest.texts:
            self.pieces.popleft()

    def told(self, rank: int) -> wire.RecentCell:
        outputs = []
        for piece in self.pieces:
            text = {"text": "".join(piece.texts)} if piece.texts else {}
            outputs.append(wire.RankOutput(rank, self.cell.seq, piece.kind, piece.content | text))
        told = replace(self.cell, outputs=outputs, dropped_chars=self.dropped)
        if (end := self.reply) is None:
            return told
        return replace(told, status=end.status, seconds=end.seconds, error=end.error)


def _weight(text: str) -> int:
    return len(text) + OVERHEAD_NBYTES

"""The cells of a rank and all their output, kept in files for those who did not run them.

A cell's output goes to the notebook that has sent it. That may be gone, and others come later: they
read it here, also while the rank computes, and when it has died. What is kept is bounded: the
oldest goes first. ``model.history`` reads the lines.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import threading
import time
from pathlib import Path
from typing import Any

from jaxcluster import wire
from jaxcluster.engine import log
from jaxcluster.host import ringfile
from jaxcluster.host.ringfile import RingFile

CELLS, OUTPUT = "cells", "output"  # the two logs of a rank
CELLS_NBYTES = 1 << 20
OUTPUT_NBYTES = 8 << 20
WRITE_S = 0.02  # printed text is gathered for this long
WRITE_CHARS = 1 << 16  # or until it is so much
SOURCE_CHARS = 20_000
SHORT_CHARS = 200  # of a source on all ranks but the cell's first, which has it
TEXT_CHARS = 200_000  # of printed text in one line
DISPLAY_CHARS = 2_000_000  # of one form of a display: most are figures, as base64
SHOWN_TYPES = ("text/plain", "text/html", "text/markdown", "text/latex", "image/png", "image/jpeg")


class History:
    """Writes a rank's cells to its folder. Thread-safe: what prints is on any thread.

    Args:
      folder: of this rank; None keeps nothing.
      rank: its number.
    """

    def __init__(self, folder: Path | None, rank: int = 0) -> None:
        self._folder = folder
        self._rank = rank
        self._cells = RingFile((folder or Path()) / CELLS, CELLS_NBYTES)
        self._output = RingFile((folder or Path()) / OUTPUT, OUTPUT_NBYTES)
        self._texts: list[tuple[str, str]] = []
        self._chars = 0
        self._is_writing = False
        self._is_full = False
        self._ran: wire.CellRequest | None = None
        self._count = 0
        # A finalizer or a signal's handler may print while this thread holds it.
        self._lock = threading.RLock()
        self._is_waiting = threading.Event()

    def start(self) -> None:
        """Go on with what an earlier process has left, and begin the thread that writes."""
        if self._folder is not None:
            with contextlib.suppress(OSError):
                self._folder.parent.mkdir(mode=0o700, exist_ok=True)
            self._count = _last_count(self._folder)
            with self._lock:  # what that process had not ended, will not end
                self._add_line(self._cells, {"process": os.getpid()})
            threading.Thread(target=self._serve, name="jaxcluster-history", daemon=True).start()

    def _serve(self) -> None:
        while True:
            self._is_waiting.wait()
            time.sleep(WRITE_S)
            self._is_waiting.clear()
            self.flush()

    def begin(self, cell: wire.CellRequest) -> None:
        """A cell is run from now on, and what comes is its own."""
        with self._lock:
            self._write_texts()
            self._ran = cell
            self._count += 1
            most = SOURCE_CHARS if self._rank == cell.ranks[0] else SHORT_CHARS
            told = {
                "count": self._count,
                "sent": cell.sent_ns,
                "seq": cell.seq,
                "cell": cell.execution_count,
                "who": cell.who,
                "ranks": cell.ranks,
                "shown": cell.shown_ranks,
                "source": cell.source[:most],
                "at": self._output.end if self._folder is not None else 0,
            }
            self._add_line(self._cells, told)

    def text(self, name: str, text: str) -> None:
        """The running cell has printed ``text``.

        Without the lock, which is held while files are written: the control thread comes here, too.
        """
        self._texts.append((name, text))
        self._chars += len(text)
        if self._chars > WRITE_CHARS and threading.current_thread() is threading.main_thread():
            self.flush()
        if not self._is_waiting.is_set():
            self._is_waiting.set()

    def add(self, kind: str, content: dict[str, Any]) -> None:
        """The running cell has shown something, or changed what it has shown."""
        line = {"kind": kind, "content": _kept(content)}
        with self._lock:
            self._write_texts()
            self._add_line(self._output, line)

    def skip(self, cell: wire.CellRequest) -> None:
        """A cell was interrupted before its turn: nothing of it comes from this rank."""
        with self._lock:
            told = {"ended": cell.sent_ns, "seq": cell.seq, "status": "interrupted", "seconds": 0.0}
            self._add_line(self._cells, told)

    def end(self, reply: wire.CellReply) -> None:
        """How the cell has ended."""
        with self._lock:
            self._write_texts()
            cell = self._ran
            if cell is None or cell.seq != reply.seq:
                return  # a widget's message, which belongs to the cell before it
            told = {"ended": cell.sent_ns, "seq": reply.seq, "status": reply.status}
            told |= {"seconds": reply.seconds, "error": reply.error and vars(reply.error)}
            self._add_line(self._cells, told)

    def flush(self) -> None:
        """Write what was printed by now."""
        with self._lock:
            self._write_texts()

    def _write_texts(self) -> None:
        """What was printed, each stream's text in a row as lines of some length."""
        if self._is_writing:  # a signal's handler prints: that is written after this
            return
        try:
            self._is_writing, self._chars = True, 0
            for name, group in itertools.groupby(list(self._texts), key=lambda one: one[0]):
                parts = [text for _, text in group]
                joined = "".join(parts)
                for start in range(0, len(joined), TEXT_CHARS):
                    text = joined[start : start + TEXT_CHARS]
                    self._add_line(self._output, {"stream": name, "text": text})
                del self._texts[: len(parts)]  # not before: an interrupt may have come
        finally:
            self._is_writing = False

    def _add_line(self, to: RingFile, line: dict[str, Any]) -> None:
        """Never raises: a full disk is no reason for a cell to fail."""
        if self._folder is None:
            return
        try:
            to.write(wire.encode_body(line) + b"\n")
            self._is_full = False
        except OSError as error:
            if not self._is_full:
                log.write(f"the output of this cell could not be kept: {error}")
            self._is_full = True


def _last_count(folder: Path) -> int:
    """How many cells have been written there."""
    for line in reversed(bytes(ringfile.read(folder / CELLS).data).splitlines()):
        if b'"count"' in line:
            with contextlib.suppress(ValueError):
                if isinstance(count := json.loads(line).get("count"), int):
                    return count
    return 0


def _kept(content: dict[str, Any]) -> dict[str, Any]:
    """Of a display what can be shown elsewhere: text, HTML and figures, within bounds."""
    kept: dict[str, Any] = {k: content[k] for k in ("transient", "wait") if k in content}
    if "data" not in content:
        return kept
    data = {mime: v for mime, v in content["data"].items() if mime in SHOWN_TYPES}
    fit = {mime: v for mime, v in data.items() if isinstance(v, str) and len(v) <= DISPLAY_CHARS}
    return kept | {"data": fit, "metadata": {}}

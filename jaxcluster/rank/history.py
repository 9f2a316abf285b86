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
from collections import deque
from pathlib import Path
from typing import Any

from jaxcluster import wire
from jaxcluster.host import ringfile
from jaxcluster.host.ringfile import RingFile
from jaxcluster.rank import log

CELLS, OUTPUT = "cells", "output"  # the two logs of a rank
CELLS_NBYTES = 1 << 20
OUTPUT_NBYTES = 8 << 20
WRITE_S = 0.02  # printed text is gathered for this long
FLUSH_S = 5.0  # that a cell waits for a slow disk at its beginning and end
SOURCE_CHARS = 20_000
TEXT_CHARS = 200_000  # of printed text in one line
DISPLAY_CHARS = 2_000_000  # of one form of a display: most are figures, as base64
SHOWN_TYPES = ("text/plain", "text/html", "text/markdown", "text/latex", "image/png", "image/jpeg")

Line = dict[str, Any]


class History:
    """Writes a rank's cells to its folder, and on a thread what they print: any thread prints.

    Args:
      folder: of this rank; None keeps nothing.
    """

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        self._cells = RingFile((folder or Path()) / CELLS, CELLS_NBYTES)
        self._output = RingFile((folder or Path()) / OUTPUT, OUTPUT_NBYTES)
        self._waiting: deque[Line] = deque()  # of the output
        self._wakes: wire.Inbox[None] = wire.Inbox()
        self._is_full = self._is_woken = False
        self._writing = threading.Lock()
        self._count = 0

    def start(self) -> None:
        """Go on with what an earlier process has left, and begin the thread that writes."""
        if self._folder is not None:
            with contextlib.suppress(OSError):
                self._folder.parent.mkdir(mode=0o700, exist_ok=True)
            self._count = _last_count(self._folder)
            self._write_line(process=os.getpid())  # what that one had not ended, will not end
            threading.Thread(target=self._serve, name="jaxcluster-history", daemon=True).start()

    def begin(self, cell: wire.CellRequest) -> None:
        """A cell is run from now on, and what comes is its own."""
        self._count += 1
        self.flush()
        self._write_line(
            count=self._count,
            sent=cell.sent_ns,
            seq=cell.seq,
            cell=cell.execution_count,
            who=cell.who,
            ranks=cell.ranks,
            shown=cell.shown_ranks,
            source=cell.source[:SOURCE_CHARS],
            at=self._output.end if self._folder is not None else 0,
        )

    def text(self, name: str, text: str) -> None:
        """The running cell has printed ``text``."""
        self._put(stream=name, text=text)

    def add(self, kind: str, content: dict[str, Any]) -> None:
        """The running cell has shown something, or changed what it has shown."""
        self._put(kind=kind, content=_kept(content))

    def end(self, cell: wire.CellRequest, reply: wire.CellReply) -> None:
        """How the cell has ended; one that was skipped may not have begun."""
        error = reply.error and vars(reply.error)
        status = "interrupted" if reply.skipped else reply.status
        self.flush()
        self._write_line(
            ended=cell.sent_ns, seq=cell.seq, status=status, seconds=reply.seconds, error=error
        )

    def flush(self) -> None:
        """Write what was shown: each stream's text in a row as lines of some length."""
        if not self._writing.acquire(timeout=FLUSH_S):
            return
        try:
            found = [self._waiting.popleft() for _ in range(len(self._waiting))]
            for name, group in itertools.groupby(found, key=lambda line: line.get("stream")):
                lines = list(group)
                if name is not None:
                    text = "".join(line["text"] for line in lines)
                    starts = range(0, len(text), TEXT_CHARS)
                    lines = [{"stream": name, "text": text[at : at + TEXT_CHARS]} for at in starts]
                for line in lines:
                    self._add_line(self._output, line)
        finally:
            self._writing.release()

    def _put(self, **line: Any) -> None:
        """Without a lock, as a finalizer or a signal's handler may print at any time."""
        if self._folder is not None:
            self._waiting.append(line)
            if not self._is_woken:
                self._is_woken = True
                self._wakes.put(None)

    def _serve(self) -> None:
        """A thread's loop."""
        while True:
            self._wakes.get()
            time.sleep(WRITE_S)
            self._is_woken = False
            self.flush()

    def _write_line(self, **line: Any) -> None:
        """Write to the log of cells."""
        if self._folder is not None:
            self._add_line(self._cells, line)

    def _add_line(self, to: RingFile, line: Line) -> None:
        """Never raises: a full disk is no reason for a cell to fail."""
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
    if "data" in content:
        data = {mime: v for mime, v in content["data"].items() if mime in SHOWN_TYPES}
        fit = {k: v for k, v in data.items() if isinstance(v, str) and len(v) <= DISPLAY_CHARS}
        kept |= {"data": fit, "metadata": {}}
    return kept

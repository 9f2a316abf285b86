"""The cells of a rank and all their output, kept in files for those who did not run them.

A cell's output goes to the notebook that has sent it. The notebook may be gone, and others come
later. They read it here, also while the rank computes, and after its death. The logs are bounded:
the oldest part is dropped first. ``cluster.history`` reads the lines.
"""

from __future__ import annotations

import contextlib
import re
import threading
import time
from collections import deque
from dataclasses import replace
from pathlib import Path
from typing import Any

from jaxcluster import wire
from jaxcluster.host import ringfile
from jaxcluster.model.outputs import Said, join
from jaxcluster.rank import log

CELLS, OUTPUT = "cells", "output"  # the two logs of a rank
NBYTES = {CELLS: 1 << 20, OUTPUT: 8 << 20}
WRITE_S = 0.02  # printed text is gathered for this long
FLUSH_S = 5.0  # that a cell waits for a slow disk at its beginning and end
SOURCE_CHARS = 20_000
TEXT_CHARS = 200_000  # of printed text in one line
DISPLAY_CHARS = 2_000_000  # of one form of a display: most are figures, as base64
SHOWN_TYPES = ("text/plain", "text/html", "text/markdown", "text/latex", "image/png", "image/jpeg")


class History:
    """Writes a rank's cells to its folder, and on a thread what they print: any thread prints.

    It goes on with what an earlier process has left.
    """

    def __init__(self, folder: Path) -> None:
        with contextlib.suppress(OSError):
            folder.parent.mkdir(mode=0o700, exist_ok=True)
        self._logs = {name: ringfile.Log(folder / name, most) for name, most in NBYTES.items()}
        self._waiting: deque[Said] = deque()  # of the output
        self._wakes: wire.Inbox[None] = wire.Inbox()
        self._is_full = self._is_woken = False
        self._writing = threading.Lock()
        self._count = _last_count(folder)
        self._write(CELLS, wire.Noted())  # what that one had not ended, will not end
        threading.Thread(target=self._serve, name="jaxcluster-history", daemon=True).start()

    def begin(self, cell: wire.CellRequest) -> None:
        """A cell is run from now on, and what comes is its own."""
        self._count += 1
        self.flush()
        kept = replace(cell, source=cell.source[:SOURCE_CHARS], parent={})
        self._write(CELLS, wire.Noted(kept, self._count, self._logs[OUTPUT].end))

    def add(self, kind: str, content: dict[str, Any]) -> None:
        """Note an output of the running cell, as a ``RankOutput`` has it.

        Without a lock, as a finalizer or a signal's handler may print at any time.
        """
        self._waiting.append((kind, content))
        if not self._is_woken:
            self._is_woken = True
            self._wakes.put(None)

    def end(self, reply: wire.CellReply) -> None:
        """How a cell has ended; one that was skipped may not have begun."""
        self.flush()
        status = "interrupted" if reply.skipped else reply.status
        kept = replace(reply, status=status, names=None, skipped=None)
        self._write(CELLS, wire.Noted(reply=kept))

    def flush(self) -> None:
        """Write what was shown: each stream's text in a row as lines of some length."""
        if not self._writing.acquire(timeout=FLUSH_S):
            return
        try:
            found = [self._waiting.popleft() for _ in range(len(self._waiting))]
            for kind, content in join(found):
                text = content.get("text", "")
                for at in range(0, len(text) or 1, TEXT_CHARS):
                    part = {"text": text[at : at + TEXT_CHARS]} if kind == "stream" else {}
                    self._write(OUTPUT, (kind, _kept(content) | part))
        finally:
            self._writing.release()

    def _serve(self) -> None:
        """A thread's loop."""
        while True:
            self._wakes.get()
            time.sleep(WRITE_S)
            self._is_woken = False
            self.flush()

    def _write(self, name: str, line: Any) -> None:
        """Write to a log. Never raises: a full disk is no reason for a cell to fail."""
        try:
            self._logs[name].write(wire.encode_body(line) + b"\n")
            self._is_full = False
        except OSError as error:
            if not self._is_full:
                log.write(f"the output of this cell could not be kept: {error}")
            self._is_full = True


def _last_count(folder: Path) -> int:
    """How many cells have been written there."""
    counts = re.findall(rb'"count":(\d+)', ringfile.read(folder / CELLS).data)
    return max(map(int, counts), default=0)


def _kept(content: dict[str, Any]) -> dict[str, Any]:
    """The parts of a display that can be shown elsewhere: text, HTML and figures, within bounds."""
    if "data" not in content:
        return content
    data = {mime: content["data"].get(mime) for mime in SHOWN_TYPES}
    fit = {k: v for k, v in data.items() if isinstance(v, str) and len(v) <= DISPLAY_CHARS}
    return {"data": fit, "metadata": {}, "transient": content.get("transient") or {}}

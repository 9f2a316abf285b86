"""Brings a rank's copy of its variables to the memory of another host: it outlives the rank's own.

A thread follows the marks of the rank's copier. It sends what the other host does not have yet, to
the agent there (``agent.mirrors``), and then writes a mark that names what is whole. So that mark
is late, by as long as the sending takes, and it names nothing that is not there: before a version
is removed, a mark without it is written.

All requests can be made twice. After a cut those that were not answered are made again, under a new
number of the connection: the agent passes over what comes late from a former one.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections import deque
from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

import zmq

from jaxcluster import wire
from jaxcluster.engine import log
from jaxcluster.engine.background import is_own
from jaxcluster.engine.retained import format_nbytes
from jaxcluster.engine.state.remote_files import connect
from jaxcluster.wire.ops.state import MirrorState

PART = 1 << 20
AHEAD = 4  # parts that are on their way
TOGETHER_S = 0.02  # marks that follow each other are one
SILENT_S = 10.0  # without an answer
RETRY_S = 2.0
YIELD_SHARE = 3  # beside a cell it sends for a quarter of the time ...
YIELD_MOST_S = 0.1  # ... and waits no longer than that at once
MARK = "mark"


class Source(Protocol):
    """A copier."""

    rank: int

    @property
    def is_busy(self) -> bool: ...
    def mark(self) -> wire.Mark: ...
    def hold_version(self, number: int) -> Path | None: ...
    def is_wanted(self, number: int) -> bool: ...


class Behind(Exception):
    """It can't be brought there, with the reason."""


class Unwanted(Exception):
    """The version that is being sent is not needed any more."""


class Mirror:
    """One rank's.

    Args:
      source: whose copies these are.
      where: ``endpoint`` of the other host's agent, its ``server`` key, the ``public`` and
        ``secret`` one of those that may write there (in hexadecimal), the ``folder``, and the
        ``host``'s name.
      nbytes: what may lie there.

    Attributes:
      seconds: what the last version took.
    """

    def __init__(self, source: Source, where: Mapping[str, str], nbytes: int) -> None:
        self._source, self._where, self._nbytes = source, dict(where), nbytes
        self._folder = f"{where['folder']}/copy-{source.rank}"
        self._there: dict[int, dict[str, int]] = {}  # versions, their files and their sizes
        self._partial: dict[int, dict[str, int]] = {}  # the same of what is not whole
        self._sent = wire.Mark()
        self.seconds = 0.0
        self._told: dict[str, Any] = {}
        self._context: zmq.Context[zmq.Socket[bytes]] | None = None
        self._socket: zmq.Socket[bytes] | None = None
        self._connection = 0
        self._ids = 0
        self._waiting: deque[int] = deque()
        self._room = 0
        self._wake, self._over = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._work, name="jaxcluster-mirror", daemon=True)
        self._thread.start()

    def wake(self) -> None:
        """There is another mark. Any thread, at any time; takes a microsecond."""
        if not self._wake.is_set():
            self._wake.set()

    def stop(self) -> None:
        """Send nothing more."""
        self._over.set()
        self._wake.set()

    def told(self, now: wire.Mark) -> MirrorState:
        """How things are there; ``now``: as they are here."""
        return MirrorState(self._where["host"], self.is_current(now), **self._told)

    @property
    def is_behind(self) -> bool:
        """Whether something is in the way, so that nobody knows when it will be there."""
        return "behind" in self._told

    def is_current(self, now: wire.Mark) -> bool:
        """Whether what is wanted last is whole there. Any thread."""
        sent, wanted = self._sent, now.after or now.before
        return bool(wanted) and wanted in (sent.before, sent.after)

    # ------------------------------------------------------------------ the thread

    def _work(self) -> None:
        is_own.set(True)
        try:
            while not self._over.is_set():
                self._wake.wait()
                if self._over.wait(TOGETHER_S):
                    break
                self._wake.clear()
                self._try()
        finally:
            self._close()
            if self._context is not None:
                self._context.term()

    def _try(self) -> None:
        try:
            self._bring()
            self._told.pop("behind", None)
        except Exception as error:
            if self._over.is_set():
                return  # the copies themselves are gone
            if not isinstance(error, Behind):
                log.error(error)
            self._told["behind"] = str(error) or type(error).__name__
            self._close()
            self._over.wait(RETRY_S)
            self._wake.set()
        finally:
            self._source.hold_version(0)

    def _bring(self) -> None:
        """Have what is there be what is here, as far as it is needed."""
        while not self._over.is_set():
            now = self._source.mark()
            self._write_mark(now)
            self._tidy(self._there, {now.before, now.after})
            missing = [n for n in (now.after, now.before) if n and n not in self._there]
            if not missing:
                self._tidy(self._partial, ())  # else the next one has use for its files
                return
            try:
                self._send(missing[0])
            except Unwanted:
                self._told["behind"] = "cells change more than can be sent"
                self._settle()

    def _write_mark(self, now: wire.Mark) -> None:
        """Say there how things are, of what is there."""
        before = now.before if now.before in self._there else 0
        after = now.after if now.after in self._there else 0
        mark = replace(now, before=before, after=after, coming=0)
        if replace(mark, number=0) != replace(self._sent, number=0):
            self._ask({"cmd": "mark", "path": f"{self._folder}/{MARK}"}, mark.pack()[0])
            self._settle()
            self._sent = mark

    def _tidy(self, versions: dict[int, dict[str, int]], wanted: Collection[int]) -> None:
        """Remove the versions that no mark names any more."""
        for number in [n for n in versions if n not in wanted]:
            self._ask({"cmd": "remove", "path": self._version(number)})
            self._settle()
            del versions[number]

    def _version(self, number: int) -> str:
        return f"{self._folder}/v{number}"

    def _send(self, number: int) -> None:
        """Bring a version there, whole."""
        started = time.monotonic()
        folder = self._source.hold_version(number)
        if folder is None:
            raise Unwanted
        files = {path.name: path.stat().st_size for path in sorted(folder.iterdir())}
        have = self._partial.setdefault(number, {})
        self._make_room(number, files)
        # An array's file has a name of its own, and is the same in all versions (``VersionStore``).
        there = {name: n for n, names in self._all().items() for name in names if name[0] == "s"}
        new = sum(size for name, size in files.items() if name not in there)
        if new > self._room:
            host = self._where["host"]
            raise Behind(f"{host} has {format_nbytes(self._room)} of memory left for it")
        self._ask({"cmd": "mkdir", "path": self._version(number)})
        for name, size in files.items():
            if name not in have:
                path = f"{self._version(number)}/{name}"
                if name in there:
                    source = f"{self._version(there[name])}/{name}"
                    self._ask({"cmd": "link", "path": source, "to": path})
                else:
                    self._send_file(number, folder / name, path)
                have[name] = size  # what is not answered is made again: see ``_close``
        self._settle()
        self._there[number] = self._partial.pop(number)
        self.seconds = time.monotonic() - started
        nbytes = sum(files.values())
        self._told |= {"seconds": self.seconds, "at": time.time(), "nbytes": nbytes}

    def _all(self) -> dict[int, dict[str, int]]:
        return {**self._there, **self._partial}

    def _make_room(self, number: int, files: Mapping[str, int]) -> None:
        for is_last in (False, True):
            known = {n: size for one in self._all().values() for n, size in one.items()}
            if sum({**known, **files}.values()) <= self._nbytes:
                break
            if is_last:
                raise Behind(f"there is no room for it in its {format_nbytes(self._nbytes)} there")
            self._tidy(self._partial, {number})
        self._ask({"cmd": "mkdir", "path": self._folder})  # says how much memory there is
        self._settle()

    def _send_file(self, number: int, source: Path, path: str) -> None:
        file = os.open(source, os.O_RDONLY | os.O_CLOEXEC)
        try:
            at = 0
            while True:
                began = time.monotonic()
                data = os.pread(file, PART, at)
                self._ask({"cmd": "put", "path": path, "at": at}, data)
                at += len(data)
                if len(data) < PART:
                    return
                self._settle(AHEAD)
                self._give_way(number, time.monotonic() - began)
        finally:
            os.close(file)

    def _give_way(self, number: int, seconds: float) -> None:
        """Between two parts: let a cell have most of the time."""
        if self._over.is_set() or not self._source.is_wanted(number):
            raise Unwanted
        if self._source.is_busy:
            time.sleep(min(YIELD_SHARE * seconds, YIELD_MOST_S))

    # ------------------------------------------------------------------ the connection

    def _connect(self) -> zmq.Socket[bytes]:
        self._context = self._context or zmq.Context()
        socket = connect(self._context, self._where, SILENT_S)
        self._connection += 1
        return socket

    def _close(self) -> None:
        """Let go of the connection. What was not answered may be there or not."""
        if self._socket is not None:
            self._socket.close(0)
            self._socket = None
        self._waiting.clear()
        self._sent = wire.Mark()
        for have in self._partial.values():
            have.clear()

    def _ask(self, request: dict[str, Any], data: bytes = b"") -> None:
        """Make a request; what comes of it is heard in ``_settle``."""
        self._socket = self._socket or self._connect()
        self._ids += 1
        head = {**request, "id": self._ids, "copy": self._folder, "number": self._connection}
        try:
            self._socket.send_multipart([json.dumps(head).encode(), data], copy=False)
        except zmq.Again:
            raise self._silent() from None
        self._waiting.append(self._ids)

    def _settle(self, most: int = 0) -> None:
        """Wait until no more than so many requests are unanswered."""
        while len(self._waiting) > most:
            assert self._socket is not None
            try:
                answer = json.loads(self._socket.recv())
            except zmq.Again:
                raise self._silent() from None
            if answer["id"] == self._waiting[0]:
                self._waiting.popleft()
                if why := answer.get("error"):
                    raise Behind(f"{self._where['host']}: {why}")
                if answer["answer"] is not None:
                    self._room = answer["answer"]

    def _silent(self) -> Behind:
        return Behind(f"{self._where['host']} does not answer at {self._where['endpoint']}")

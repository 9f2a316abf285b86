"""A copy of a rank's variables beside it, as they were after its last cells: it outlives the rank.

After a cell that has changed something a thread of the rank saves what has changed, as
``saving.save`` does, to files in memory. What can change in place is saved before the next cell
begins. Cells wait for that, and where it is quick also for the numbers of arrays and for the
mirror: for a twentieth of all time, of which a second may be spent in advance. Else the cell goes
first, and there is no copy of this moment; numbers are written beside it. Nothing here launches a
program.

The file ``mark`` says which version is what the names were before the last cell that has begun,
and which is what they are after the last one that has ended. Both are there until the next cell
begins: it may have to be taken back on all ranks.

With several hosts a copy is brought on to the memory of another one (``mirror``). What is there
may be late, so whoever is to judge it hears of each change that no cell has made (``tell``).
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import queue
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from jaxcluster import wire
from jaxcluster.engine import log
from jaxcluster.engine.background import is_own
from jaxcluster.engine.control import Request
from jaxcluster.engine.repair import repair_modules
from jaxcluster.engine.state.background_save import BackgroundSave, GivenUp
from jaxcluster.engine.state.mirror import Mirror
from jaxcluster.engine.state.saved import Part, Saved, private, state_path, write
from jaxcluster.engine.state.saving import save
from jaxcluster.engine.state.settings import Settings
from jaxcluster.engine.state.version_store import VersionStore
from jaxcluster.host import limits
from jaxcluster.wire.ops.state import CopyState, Keep

QUIET_S = 0.01  # without a cell before a copy is begun: cells that follow each other go first
WAIT_SHARE = 20  # cells wait for copies for a twentieth of all time
WAIT_S = 1.0  # of that is given in advance, and saved up at most
LEAST_WAIT_S = 0.002
SOON_S = 0.1  # numbers and mirrors that take longer are written beside the cell
YIELD_SHARE = 3  # beside a cell, numbers are written for a quarter of the time
REPORT = "report.json"
MARK = "mark"


class Copier:
    """Keeps one rank's copy.

    Attributes:
      namespace: the user's variables.
      lost: names that were lost earlier, and how.
      owner: the notebook that has switched it on.
      tell: told of each change that no cell has made, and of each cell of another notebook's, for
        the owner: the last cell that has begun, and how many changes there have been.
    """

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.namespace: dict[str, Any] = {}
        self.owner = b""
        self.tell: Callable[[int, int], object] = lambda begun, outside: None
        self.lost: Mapping[str, str] = {}
        self.settings: Settings | None = None
        self._store: VersionStore | None = None
        self._file = self._hold = -1
        self._lock = threading.Lock()
        self._wake, self._hurry, self._through = (threading.Event() for _ in range(3))
        self._state = 0  # counts what the variables have been
        self._before = 0  # of the last cell that has begun
        self._pinned = -1  # whose numbers alone are still being written
        self._failed = -1  # of what there can be no copy
        self._versions: dict[int, int] = {}  # by state
        self._version = 0
        self._begun = self._ended = 0
        self._outside = self._entered = 0  # as in a mark
        self._entered_at = (0, 0)  # that, as the last two cells began
        self._mirror: Mirror | None = None
        self._held = 0  # the version that is being brought to another host
        self._is_running = self._is_touched = False
        self._ended_at = 0.0
        self._earned_from = time.monotonic() - WAIT_S * WAIT_SHARE  # how long cells may wait
        self._through_s = self._whole_s = 0.0  # what the last copy took
        self._marks = 0
        self._told: dict[str, Any] = {}
        self._call_main: Callable[[Callable[[], None]], object] = lambda job: job()
        self._jobs: wire.Inbox[Callable[[], None]] = wire.Inbox()

    def attach(
        self,
        namespace: dict[str, Any],
        settings: Settings,
        call_main: Callable[[Callable[[], None]], object],
    ) -> None:
        """Begin with a shell that has run no cell yet."""
        self.namespace, self.settings, self._call_main = namespace, settings, call_main
        threading.Thread(target=self._work, name="jaxcluster-copies", daemon=True).start()

    # ------------------------------------------------------------------ switched on and off

    @property
    def is_on(self) -> bool:
        return self._store is not None

    def switch(self, folder: str, nbytes: int, mirror: Mapping[str, str] | None = None) -> None:
        """Keep a copy in a folder of this rank's own; "": keep none. Any thread but a cell's.

        Args:
          mirror: where it is brought on to (see ``Mirror``); None: nowhere.
        """
        with self._lock:
            if self._file >= 0:
                os.close(self._file)
            self._file, store = -1, self._store
            self._store, former, self._mirror = None, self._mirror, None
            self._versions, self._told = {}, {}
        if former is not None:
            former.stop()
        if store is not None and str(store.folder) != folder:
            store.remove()
        if not folder:
            return
        made = VersionStore(Path(folder), nbytes)
        with self._lock:
            self._store = made
            self._file = private(f"{folder}/{MARK}", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC)
            self._state += 1
            if mirror is not None:
                self._mirror = Mirror(self, mirror, nbytes)
            self._mark()
        self._wake.set()

    def hold(self, path: str) -> None:
        """Show by a lock on a file that a folder is in use, as long as this process lives."""
        with contextlib.suppress(OSError):
            if self._hold >= 0:
                os.close(self._hold)
            self._hold = os.open(path, os.O_RDWR | os.O_CLOEXEC)
            fcntl.flock(self._hold, fcntl.LOCK_SH)

    # ------------------------------------------------------------------ a cell's course

    def begin(self, seq: int, whose: bytes = b"") -> None:
        """On the main thread, before a cell. Some microseconds, but for the wait."""
        is_on = self._store is not None
        if is_on and not self._is_whole():
            self._wait()
        with self._lock:
            self._is_running, self._is_touched = True, False
            self._before, self._begun = self._state, seq
            self._entered_at = self._entered_at[1], self._entered
            self._mark()
            told = (seq, self._outside) if whose != self.owner else None
        self._tell(told)

    def _wait(self) -> None:
        """Let the copy go first, as far as cells may wait for it."""
        began = time.monotonic()
        patience = min(WAIT_S, (began - self._earned_from) / WAIT_SHARE)
        mirror = self._mirror
        whole_s = self._whole_s + (mirror.seconds if mirror is not None else 0.0)
        self._hurry.set()
        parts = [(self._is_through, min(self._through_s, WAIT_S))]
        if whole_s <= SOON_S:
            parts.append((self._is_whole, whole_s))
        for is_done, usual_s in parts:
            if patience < max(LEAST_WAIT_S, usual_s):
                break  # it would wait in vain
            while not is_done() and (left := began + patience - time.monotonic()) > 0:
                with contextlib.suppress(queue.Empty):
                    self._jobs.get(timeout=min(left, LEAST_WAIT_S))()
        self._hurry.clear()
        waited = time.monotonic() - began
        self._earned_from = began - (patience - waited) * WAIT_SHARE

    def _is_through(self) -> bool:
        return self._through.is_set() or self._failed == self._state

    def _is_whole(self) -> bool:
        """Whether there is nothing left to wait for."""
        if self._state not in self._versions:
            return self._failed == self._state
        mirror = self._mirror
        return mirror is None or mirror.is_behind or mirror.is_current(self.mark())

    def _on_main(self, job: Callable[[], None]) -> None:
        self._jobs.put(job)
        self._call_main(self._do_jobs)

    def _do_jobs(self) -> None:
        """On the main thread, between cells."""
        with contextlib.suppress(queue.Empty):
            while True:
                self._jobs.get_nowait()()

    def end(self, seq: int, is_same: bool) -> None:
        """On the main thread, after the cell's reply: whether all variables are what they were."""
        with self._lock:
            self._is_running, self._ended = False, seq
            if self._store is None:
                return
            if self._is_touched or not is_same:
                self._change()
            self._ended_at = time.monotonic()
            self._mark()
            is_behind = self._state not in self._versions
        if is_behind:
            self._wake.set()

    def enter(self) -> None:
        """Code runs that belongs to no cell, until ``leave``. On the main thread."""
        with self._lock:
            self._is_running = True
            self._entered += 1
            told = self._count()
            self._mark()
        self._tell(told)

    def leave(self) -> None:
        with self._lock:
            self._is_running, self._ended_at = False, time.monotonic()
            self._change()
            self._mark()
        self._wake.set()

    def changed(self) -> None:
        """Something else than a cell has changed variables. Any thread."""
        if self._store is None:
            return
        with self._lock:
            self._is_touched = True
            if not self._is_running:
                told = self._count()
                self._change()
                self._mark()
            else:
                told = None
        self._tell(told)
        self._wake.set()

    def _count(self) -> tuple[int, int]:
        """That something else than a cell changes variables; what is told of it."""
        self._outside += 1
        return self._begun, self._outside

    def _tell(self, told: tuple[int, int] | None) -> None:
        if told is not None and self._mirror is not None:
            self.tell(*told)

    def _change(self) -> None:
        self._state += 1
        self._through.clear()

    def _mark(self) -> None:
        """Write down which versions there are."""
        if self._file < 0:
            return
        self._marks += 1
        data, at = self._as_mark().pack()
        os.pwrite(self._file, data, at)
        if self._mirror is not None:
            self._mirror.wake()

    def _as_mark(self) -> wire.Mark:
        return wire.Mark(
            number=self._marks,
            begun=self._begun,
            ended=self._ended,
            before=self._versions.get(self._before, 0),
            after=self._versions.get(self._state, 0) if not self._is_running else 0,
            coming=int(self._pinned in (self._state, self._before)),
            outside=self._outside,
            entered=self._entered,
            lately=self._entered - self._entered_at[0],
        )

    # ------------------------------------------------------------------ for the mirror

    @property
    def is_busy(self) -> bool:
        """Whether code of the user's runs."""
        return self._is_running

    def mark(self) -> wire.Mark:
        """How things are now. Any thread."""
        with self._lock:
            return self._as_mark()

    def hold_version(self, number: int) -> Path | None:
        """A version's folder, which stays as it is while it is held; None where it is gone."""
        with self._lock:
            self._held = number if number in self._versions.values() else 0
            return self._store.version(number) if self._held and self._store is not None else None

    def is_wanted(self, number: int) -> bool:
        """Whether a version is of a moment that may have to come back."""
        versions = self._versions
        return number in (versions.get(self._before), versions.get(self._state))

    # ------------------------------------------------------------------ the thread

    def _work(self) -> None:
        is_own.set(True)
        while True:
            self._wake.wait()
            self._wake.clear()
            if not self._is_quiet():
                continue  # the cell's end wakes it
            store = self._store
            try:
                if store is not None:
                    self._copy(store)
            except GivenUp:
                self._is_behind("a cell came first")
            except Exception as error:
                repair_modules()
                log.error(error)
                self._is_behind(f"{type(error).__name__}: {error}"[:200], is_final=True)
            finally:
                if store is not None:
                    store.abandon()
                with self._lock:
                    self._pinned = -1
                    self._mark()

    def _is_quiet(self) -> bool:
        """Wait until no cell has run for a moment, or one waits for the copy."""
        while not self._hurry.is_set():
            if self._is_running:
                return False
            left = self._ended_at + QUIET_S - time.monotonic()
            if left <= 0:
                return True
            self._hurry.wait(left)
        return True

    def _is_behind(self, why: str, is_final: bool = False) -> None:
        with self._lock:
            self._failed = self._state if is_final else -1
            self._told["behind"] = why
            self._told["seconds"] = 0.0

    @limits.lifted()
    def _copy(self, store: VersionStore) -> None:
        started, state = time.monotonic(), self._state
        if state in self._versions:
            return
        self._tidy(store)

        def is_untouched() -> None:
            if self._is_running or self._state != state or self._store is not store:
                raise GivenUp

        background = BackgroundSave(store, is_untouched, self._on_main)
        saved = save(self.namespace, self.rank, settings=self.settings, background=background)
        if saved.together is None:
            raise RuntimeError("the variables can't be pickled together")
        saved.unbound = dict(self.lost)
        number = self._version = self._version + 1
        folder = store.make(number)
        parts = needed(saved)
        path = state_path(folder, self.rank)
        write(saved, path, read_back=False, go_on=is_untouched)
        sums = {part.name: part.checksum for part in parts}
        report = replace(saved.report(path), left_out=background.left_out, parts=sums)
        with open(folder / REPORT, "wb", opener=private) as file:
            file.write(wire.encode_body(report))
        with self._lock:
            is_untouched()
            self._pinned = state
            self._through.set()
            self._through_s = time.monotonic() - started
            self._mark()
        del saved
        store.fill(number, parts, lambda: self._give_way(store, state))
        with self._lock:
            if state not in (self._state, self._before) or self._store is not store:
                raise GivenUp
            self._versions[state] = number
            self._whole_s = time.monotonic() - started
            self._mark()
            self._told = {
                "seconds": self._whole_s,
                "at": time.time(),
                "nbytes": report.nbytes,
                "left_out": report.left_out,
            }

    def _tidy(self, store: VersionStore) -> None:
        with self._lock:
            kept = (self._before, self._state)
            self._versions = {s: n for s, n in self._versions.items() if s in kept}
            numbers = [*self._versions.values(), self._held]
        store.begin(numbers)

    def _give_way(self, store: VersionStore, state: int) -> None:
        """Between two pieces of numbers: let a cell have most of the time."""
        if state not in (self._state, self._before) or self._store is not store:
            raise GivenUp
        if self._is_running:
            time.sleep(YIELD_SHARE * 0.001)

    # ------------------------------------------------------------------ what is told

    def told(self) -> CopyState:
        """How things are."""
        with self._lock:
            is_current = not self._is_running and self._state in self._versions
            told = CopyState(self._store is not None, is_current, **self._told)
            mark, mirror = self._as_mark(), self._mirror
        return replace(told, mirror=mirror.told(mark)) if mirror is not None else told


def needed(saved: Saved) -> list[Part]:
    """The files that are to be there for what is saved; others' places are emptied."""
    assert saved.together is not None
    pickles = [saved.together, *saved.now.names.values(), *saved.settings.values()]
    arrays = {number for one in pickles for number in one.arrays}
    places = {place for n in arrays for _, place in saved.arrays[n].shards}
    found = {}
    for place, section in enumerate(saved.sections):
        if isinstance(section, Part):
            if place in places:
                found[section.name] = section
            else:
                saved.sections[place] = b""
    return list(found.values())


def on_keep(copier: Copier, request: Request[Keep]) -> CopyState:
    """``keep``: from now on, or no longer."""
    body, copier.owner = request.body, request.ident
    if body.hold:
        copier.hold(body.hold)
    folder = f"{body.folder}/copy-{copier.rank}" if body.folder else ""
    copier.switch(folder, body.nbytes, body.mirror)
    return copier.told()

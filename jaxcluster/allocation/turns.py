"""Turns of cells: the notebooks on one cluster hand out their cells in one order for all ranks.

Else rank 0 runs A, B and rank 1 runs B, A, and both hang in each other's collectives. A turn alone
does not make that sure, since the notebooks' sockets are not one: each rank is told which cell
comes before this one, and waits for it.

Of ranks on this machine a lock in the cluster's folder has the turn; of ranks on other hosts the
first host's agent gives it (``agent.turns``), so it does not matter where a notebook runs.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import json
import os
import socket
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Protocol

from jaxcluster import wire
from jaxcluster.agent import requests
from jaxcluster.agent.client import Asked
from jaxcluster.agent.turns import Granted
from jaxcluster.allocation.fleet import Place
from jaxcluster.errors import LaunchError, NoCluster
from jaxcluster.model.notices import Passing
from jaxcluster.records import registry
from jaxcluster.records.runtimefolder import inside
from jaxcluster.supervision import folders

LOOK_S = 0.25  # between looks whether the first host is still there
SAY_S = 2.0  # before it is said who is waited for ...
RARER = 2  # ... and how much longer it has been so when it is said again
ASK_S = 1.0

Say = Callable[[str], None]


class Turn(int):
    """A cell's seq; ``after`` is, for each rank that runs it, the seq of its cell before."""

    after: Mapping[int, int]


class Turns(Protocol):
    """Who may hand out a cell to one generation of ranks."""

    def take(
        self, ranks: Iterable[int] = (), say: Say | None = None
    ) -> AbstractContextManager[Turn]:
        """Have the turn, and the next cell's seq.

        Args:
          ranks: those that get the cell.
          say: told who is waited for, where it takes long.

        Raises:
          NoCluster: nobody can hand out a cell any more.
        """

    def quiet(self) -> AbstractContextManager[dict[int, int]]:
        """Have the turn, so that nobody hands out a cell; gives each rank's last seq.

        Raises:
          NoCluster: nobody can hand out a cell any more.
        """

    def last_cells(self) -> dict[int, int]:
        """For each rank the seq of the last cell that any notebook has sent to it."""


class LocalTurns:
    """Those of a cluster on this machine: a lock on a file in its folder, which holds the numbers.

    Args:
      name: the cluster's.
      last_seq: that of the last cell of the ranks before these. A cell's number is never given
        again: what is still said of a former one would be taken for the later one's.
    """

    def __init__(self, name: str, last_seq: int = 0) -> None:
        self.name = name
        self._last_seq = last_seq
        self._mutex = threading.Lock()
        self._opened: int | None = None
        self._inode = (0, 0)
        self._path = ""
        self._close: Callable[[], object] = bool

    @contextlib.contextmanager
    def take(self, ranks: Iterable[int] = (), say: Say | None = None) -> Iterator[Turn]:
        with self._locked(say) as (lock, before):
            turn = Turn((before.seq or self._last_seq) + 1)
            turn.after = {rank: before.last.get(rank, 0) for rank in ranks}
            # It never gets shorter. Truncated and written again, ext4 would flush it at each close.
            last = before.last | dict.fromkeys(turn.after, turn)
            os.pwrite(lock, json.dumps({"seq": turn, "last": last}).encode(), 0)
            yield turn

    @contextlib.contextmanager
    def quiet(self) -> Iterator[dict[int, int]]:
        with self._locked() as (_, before):
            yield before.last

    def last_cells(self) -> dict[int, int]:
        try:
            return _granted((inside() / self.name / "lock").read_bytes()).last
        except (OSError, ValueError, AttributeError):  # it is being written now, or is gone
            return {}

    @contextlib.contextmanager
    def _locked(self, say: Say | None = None) -> Iterator[tuple[int, Granted]]:
        with self._mutex:  # the descriptor's lock is one for all threads
            lock = self._descriptor()
            try:
                _lock(lock, say)
                yield lock, _granted(os.pread(lock, 1 << 20, 0))
            finally:
                fcntl.flock(lock, fcntl.LOCK_UN)

    def _descriptor(self) -> int:
        """The lock's file, opened once; again where its path leads to another one by now."""
        if self._opened is not None:
            with contextlib.suppress(OSError):
                there = os.stat(self._path)
                if (there.st_dev, there.st_ino) == self._inode:
                    return self._opened
            self._opened = None
            self._close()
        try:
            lock = os.open(inside() / self.name / "lock", os.O_RDWR | os.O_CREAT, 0o600)
        except FileNotFoundError:
            raise NoCluster(
                f"The folder of cluster {self.name!r} is gone ({registry.folder(self.name)}), and "
                "its sockets with it.",
                "%jaxcluster restart gives the ranks new processes and a new folder, and keeps "
                "their variables.",
            ) from None
        found = os.fstat(lock)
        self._opened, self._inode = lock, (found.st_dev, found.st_ino)
        self._path = str(registry.folder(self.name) / "lock")
        self._close = weakref.finalize(self, os.close, lock)
        return lock


_OTHERS = (
    "This cell waits for its turn: another notebook is sending a cell, undoing one, or giving the "
    "ranks new processes.\n"
)


def _lock(file: int, say: Say | None) -> None:
    """Wait for a lock, and say so where it takes long."""
    if say is not None and not folders.lock(file, SAY_S):
        say(Passing(_OTHERS))
    fcntl.flock(file, fcntl.LOCK_EX)


class HostTurns:
    """Those of a cluster on other hosts, from its first host's agent.

    Args:
      first: that host.
      world: a name of this generation of ranks, which no other one has.
      last_seq: that of the last cell of the ranks before these; the agent counts from zero.
    """

    def __init__(self, first: Place, world: str, last_seq: int = 0) -> None:
        self._first, self._world, self._last_seq = first, world, last_seq
        self._last: dict[int, int] = {}

    @contextlib.contextmanager
    def take(self, ranks: Iterable[int] = (), say: Say | None = None) -> Iterator[Turn]:
        ranks = list(ranks)
        with self._held(ranks, say) as granted:
            last = self._numbered(granted.last)
            turn = Turn(self._last_seq + granted.seq)
            turn.after = {rank: last.get(rank, 0) for rank in ranks}
            yield turn

    @contextlib.contextmanager
    def quiet(self) -> Iterator[dict[int, int]]:
        with self._held(None, None) as granted:
            yield self._numbered(granted.last)

    def last_cells(self) -> dict[int, int]:
        """While the host can't be reached: as it was heard last."""
        if not self._first.lost and self._first.agent.cut_s == 0:
            with contextlib.suppress(LaunchError):
                found = self._first.agent.ask(requests.Turns(self._world), ASK_S)
                self._last = self._numbered(found.last)
        return self._last

    def _numbered(self, last: Mapping[int, int]) -> dict[int, int]:
        """Each rank's last cell, by its number."""
        return {rank: self._last_seq + seq for rank, seq in last.items()}

    @contextlib.contextmanager
    def _held(self, ranks: list[int] | None, say: Say | None) -> Iterator[Granted]:
        agent = self._first.agent
        asked = Asked(agent, requests.Turn(self._world, who_we_are(), ranks))
        try:  # from before it is sent: the stop button must not leave a turn that nobody gives back
            asked.send()
            yield self._granted(asked, say)
        finally:
            agent.tell(requests.TurnDone(asked.id))
            asked.forget()

    def _granted(self, asked: Asked[Granted], say: Say | None) -> Granted:
        """Wait for the turn, however long that takes; the first host's end ends it."""
        began = time.monotonic()
        say_at = began + SAY_S
        was_lost = False
        try:
            while (answer := asked.poll(LOOK_S)) is None:
                if was_lost:  # at the look before: who else is to hear of it has heard
                    raise LaunchError(self._first.lost)
                was_lost = bool(self._first.lost)
                if say is not None and (now := time.monotonic()) > say_at:
                    say(Passing(self._who_is_waited_for()))
                    say_at = now + RARER * (now - began)
        except LaunchError:
            why = self._first.lost or self._first.agent.why or "its agent does not answer"
            raise NoCluster(
                f"Host {self._first.name}, the cluster's first, is lost ({why}). It ran JAX's "
                "coordinator and kept the order of the cells.",
                "%jaxcluster restart gives the cluster new, empty ranks.",
            ) from None
        return answer[0]

    def _who_is_waited_for(self) -> str:
        agent = self._first.agent
        waits = "This cell waits for its turn"
        if agent.cut_s > 0:
            name = self._first.name
            return f"{waits}: host {name} has not been reached for {agent.cut_s:.0f} s.\n"
        try:
            found = agent.ask(requests.Turns(self._world), ASK_S)
        except LaunchError:
            return f"{waits}: host {self._first.name} does not answer.\n"
        if not found.holder:
            return f"{waits}.\n"
        away = f", and has not been reached for {found.away_s:.0f} s" if found.away_s else ""
        return (
            f"{waits}: {found.holder} has been sending a cell or recovering the ranks for "
            f"{found.held_s:.0f} s{away}.\n"
        )


def who_we_are() -> str:
    """This process, for those who wait for it."""
    return _named(os.environ.get("JPY_SESSION_NAME", ""), os.getpid())


@functools.lru_cache(1)  # each cell says it
def _named(session: str, pid: int) -> str:
    notebook = Path(session).name
    process = f"process {pid} on {socket.gethostname()}"
    return f"{notebook} ({process})" if notebook else process


def _granted(text: bytes) -> Granted:
    return wire.parse(Granted, json.loads(text or b"{}"))

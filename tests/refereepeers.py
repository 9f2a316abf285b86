"""Ranks that are played: what the referee's process hears and says on their sockets."""

from __future__ import annotations

import itertools
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from jaxcluster.agreement.messages import (
    BASE,
    BUFFER,
    LAUNCH,
    CellSpec,
    Place,
    Program,
    Refusal,
    pack,
    unpack,
)
from jaxcluster.agreement.server import Server


class Peer:
    """One thread of a rank, as its socket sees it."""

    def __init__(self, path: Path, rank: int, name: str = "", seq: int = 0) -> None:
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.socket.settimeout(20)
        self.socket.connect(str(path))
        self.numbers = itertools.count()
        self.tell("hello", rank, name, seq)

    def tell(self, word: str, *arguments: Any) -> None:
        self.socket.send(pack(word, *arguments))

    def launch(
        self,
        *processes: int,
        fingerprint: int = 7,
        given: int = 0,
        folded: int = 0,
        signature: str = "float32[8]",
        meets_all: bool = False,
    ) -> None:
        number = next(self.numbers)
        program = Program(processes, fingerprint, "jit(sum)", signature, meets_all=meets_all)
        self.tell("site", number, program, Place(4, 3, "s = jnp.sum(x)"))
        self.socket.send(LAUNCH.pack(b"L", number, given, folded))

    def hears(self) -> bytes:
        return self.socket.recv(BUFFER)

    def is_told(self) -> tuple[Any, ...]:
        told: tuple[Any, ...] = unpack(self.hears())
        return told

    def is_refused(self) -> Refusal:
        """Why its launch is refused."""
        word, refusal = self.is_told()
        assert word == "refuse" and isinstance(refusal, Refusal)
        return refusal

    def close(self) -> None:
        self.socket.close()


class RankPeer:
    """A rank's two first connections."""

    def __init__(self, path: Path, rank: int) -> None:
        self.base, self.main = Peer(path, rank, BASE), Peer(path, rank)

    def begin(self, seq: int, *ranks: int) -> None:
        """It has a cell, and is told to begin it once all of these have it."""
        self.base.tell("arrive", CellSpec(seq, ranks, is_skippable=False))

    def close(self) -> None:
        self.base.close()
        self.main.close()


@contextmanager
def serving(server: Server) -> Iterator[None]:
    """Inside it the server runs, on a thread."""
    stopped = threading.Event()

    def serve() -> None:
        while not stopped.is_set():
            server.step(0.01)

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield
    finally:
        stopped.set()
        thread.join(20)
        server.close()

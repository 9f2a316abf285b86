"""Requests to an agent about the processes of its host, and its news of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Any

from jaxcluster.wire.codec import encode
from jaxcluster.wire.ops import EVENTS, Message, Operation

# Why processes end that nothing has befallen.
MEANT = STOPPED, RESTARTED = "the cluster was stopped", "the cluster was restarted"


# In an agent's folder.
RANKS = "ranks"  # of one generation of ranks: sockets and logs
HISTORY = "history"  # what cells printed
COMPILED = "compiled"  # programs
OUTLIVING = (HISTORY, COMPILED)  # they outlive a generation
SECURITY = f"{RANKS}/profile/security"  # of ipyparallel's controller


def rank_socket(folder: str, rank: int) -> str:
    """A rank's own socket."""
    return f"ipc://{folder}/{RANKS}/{rank}.sock"


class Process(Message):
    """One process that it is to start."""

    role: str  # rank, script, controller or coordinator
    env: Mapping[str, str]  # above its agent's own
    cwd: str
    log: str  # the file that gets what it prints
    about: Mapping[str, Any] = field(default_factory=dict)  # the arguments of its ``main``

    @property
    def rank(self) -> int | None:
        """The rank that it is, if it is one."""
        return self.about.get("rank")


class Exit(Message):
    """A process has ended."""

    role: str
    rank: int | None
    code: int  # below 0 the signal
    host: str = ""  # which one it was on, among several
    why: str = ""  # what it has ended with, where that is not its own doing


class Stopping(Message):
    """Somebody else has asked it to end all, and why: the exits that follow are expected."""

    why: str


class Lost(Message):
    """The agent has ended."""

    why: str = ""


Event = Exit | Stopping | Lost
EVENTS.update(exit=Exit, stopping=Stopping, lost=Lost)


def line_of(event: Event) -> bytes:
    """As it goes to those that are connected."""
    return encode(type(event).__name__.lower(), "", event)


class Spawn(Operation[list[int]], op="spawn"):
    """Start these processes; their pids."""

    procs: list[Process]


class Kill(Operation[None], op="kill"):
    """End one of them; answered when it is reaped."""

    pid: int


class Signal(Operation[None], op="signal"):
    """Send one of them a signal, not those that it has started."""

    pid: int
    number: int


class Stop(Operation[None], op="stop"):
    """End all; answered when they are reaped."""

    why: str = STOPPED


class Exits(Operation[None], op="exits"):
    """Tell of those since the cluster's start, for who was not connected then."""


class Preload(Operation[None], op="preload"):
    """Have this environment, and a fork server that answers and has imported all in it."""

    env: Mapping[str, str]

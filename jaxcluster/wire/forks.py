"""What an agent is asked of the processes of its host, and what it tells of them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from jaxcluster.wire.codec import encode_body, parse
from jaxcluster.wire.ops import Message
from jaxcluster.wire.requests import Request

# Why processes end that nothing has befallen.
STOPPED, RESTARTED = "the cluster was stopped", "the cluster was restarted"


RANKS = "ranks"  # in an agent's folder: of one generation of ranks, sockets and logs


def rank_socket(folder: str, rank: int) -> str:
    """A rank's own socket."""
    return f"ipc://{folder}/{RANKS}/{rank}.sock"


class Process(Message):
    """One process that it is to start."""

    role: str  # rank, script, controller or coordinator
    env: Mapping[str, str]  # above its agent's own
    cwd: str
    log: str  # the file that gets what it prints
    argv: Sequence[str] = ()
    rank: int | None = None


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


Event = Exit | Stopping | Lost
_KINDS: dict[str, Any] = {kind.__name__: kind for kind in (Exit, Stopping)}


def line_of(event: Event) -> bytes:
    """As it goes to those that are connected."""
    return encode_body({"is": type(event).__name__, **vars(event)})


def event_in(line: bytes) -> Event:
    """What has come from an agent unasked."""
    body = json.loads(line)
    event: Event = parse(_KINDS[body["is"]], body)
    return event


class Spawn(Request[list[int]], cmd="spawn"):
    """Start these processes; their pids."""

    procs: list[Process]


class Kill(Request[None], cmd="kill"):
    """End these, or all where none are named; answered when they are reaped."""

    pids: list[int]


class Signal(Request[None], cmd="signal"):
    """Send these a signal, not those that they have started."""

    pids: list[int]
    number: int


class Stop(Request[None], cmd="stop"):
    """End all; answered when they are reaped."""

    why: str = STOPPED


class End(Request[None], cmd="end"):
    """To a fork server: end all, and then itself. Not answered."""


class Exits(Request[None], cmd="exits"):
    """Tell of those since the cluster's start, for who was not connected then."""


class Preload(Request[None], cmd="preload"):
    """Have this environment, and a fork server that answers and has imported all in it."""

    env: Mapping[str, str]

"""What an agent is asked of the processes of its host, and what it tells of them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from jaxcluster.wire.codec import parse
from jaxcluster.wire.requests import Request

# Why processes end that nothing has befallen.
STOPPED, RESTARTED = "the cluster was stopped", "the cluster was restarted"


@dataclass(frozen=True)
class Process:
    """One process that it is to start.

    Attributes:
      role: ``rank``, ``controller`` or ``coordinator``.
      log: the file that gets what it prints.
      rank: which one, of a rank.
      inherit: its agent's environment is below ``env``.
      address: a rank's socket, for its agent.
    """

    role: str
    env: Mapping[str, str]
    cwd: str
    log: str
    argv: Sequence[str] = ()
    rank: int | None = None
    inherit: bool = False
    address: str = ""


@dataclass(frozen=True)
class Exit:
    """A process has ended.

    Attributes:
      code: below 0 the signal.
      host: which one it was on, among several.
      why: what it has ended with, where that is not its own doing.
    """

    role: str
    rank: int | None
    code: int
    host: str = ""
    why: str = ""


@dataclass(frozen=True)
class Stopping:
    """Somebody else has asked it to end all, and why: the exits that follow are expected."""

    why: str


@dataclass(frozen=True)
class Relayed:
    """Somebody else has had this passed on."""

    message: dict[str, Any]


@dataclass(frozen=True)
class Lost:
    """The agent has ended."""


Event = Exit | Stopping | Relayed | Lost
_KINDS: dict[str, Any] = {kind.__name__: kind for kind in (Exit, Stopping, Relayed)}


def line_of(event: Event) -> bytes:
    """As it goes to those that are connected."""
    return json.dumps({"is": type(event).__name__, **vars(event)}).encode()


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


class Stop(Request[None], cmd="stop"):
    """End all; answered when they are reaped."""

    why: str = STOPPED


class End(Request[None], cmd="end"):
    """To a fork server: end all, and then itself. Not answered."""


class Exits(Request[None], cmd="exits"):
    """Tell of those since the cluster's start, for who was not connected then."""


class Preload(Request[None], cmd="preload"):
    """Have a fork server that answers, and has imported all in this environment."""

    env: Mapping[str, str]


class Relay(Request[None], cmd="relay"):
    """Pass something on to all others that are connected."""

    message: dict[str, Any]

"""What a fork server (``engine.forkserver``) is asked, and what it tells: lines of JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

from jaxcluster.wire.codec import parse
from jaxcluster.wire.requests import FORK, Reply, Request

R = TypeVar("R")

# Why processes end that nothing has befallen.
STOPPED, RESTARTED = "the cluster was stopped", "the cluster was restarted"


@dataclass(frozen=True)
class Process:
    """One process that it is to start.

    Attributes:
      role: ``rank``, ``controller`` or ``coordinator``.
      log: the file that gets what it prints.
      rank: which one, of a rank.
      hold: a file that the fork server keeps locked as long as it lives.
      inherit: its agent's environment is below ``env``.
      address: a rank's socket, for its agent.
    """

    role: str
    env: Mapping[str, str]
    cwd: str
    log: str
    argv: Sequence[str] = ()
    rank: int | None = None
    hold: str = ""
    inherit: bool = False
    address: str = ""


@dataclass(frozen=True)
class Exit:
    """A process has ended.

    Attributes:
      code: below 0 the signal.
      host: which one it was on, among several.
    """

    role: str
    rank: int | None
    code: int
    host: str = ""


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
    """The fork server has ended."""


Event = Exit | Stopping | Relayed | Lost
_KINDS: dict[str, Any] = {kind.__name__: kind for kind in (Reply, Exit, Stopping, Relayed, Lost)}


def line_of(message: Reply | Event) -> bytes:
    """As it goes to those that are connected, but for the line's end."""
    return json.dumps({"is": type(message).__name__, **vars(message)}, default=vars).encode()


def message_in(line: bytes) -> Reply | Event:
    """What has come from a fork server, or its agent."""
    body = json.loads(line)
    message: Reply | Event = parse(_KINDS[body["is"]], body)
    return message


class ForkRequest(Request[R]):
    """What a fork server can be asked."""

    goes_to: ClassVar[bytes] = FORK


class Spawn(ForkRequest[list[int]], cmd="spawn"):
    """Start these processes; their pids."""

    procs: list[Process]


class Kill(ForkRequest[None], cmd="kill"):
    """End these; answered when they are reaped."""

    pids: list[int]


class Stop(ForkRequest[None], cmd="stop"):
    """End all; answered when they are reaped."""

    why: str = STOPPED


class Exits(ForkRequest[None], cmd="exits"):
    """Tell of those since the cluster's start, for who was not connected then."""


class Detach(ForkRequest[None], cmd="detach"):
    """It is nobody's now; or its owner's again."""

    detached: bool


class Relay(ForkRequest[None], cmd="relay"):
    """Pass something on to all others that are connected."""

    message: dict[str, Any]


class End(ForkRequest[None], cmd="end"):
    """End all, and then itself. Not answered."""

"""What a rank is asked while it comes up, each step on the notebook's word."""

from __future__ import annotations

from dataclasses import dataclass

from jaxcluster.wire.messages import EngineFacts, RankState
from jaxcluster.wire.ops import Operation


class Facts(Operation[EngineFacts], op="facts"):
    """What it knows of itself and its host. Before JAX is initialized."""


@dataclass(frozen=True)
class Reserved:
    """Where a rank listens for probes, and the port that it holds for JAX's coordinator.

    ``coordinator_process``: the coordinator can run in a process of its own.
    """

    port: int
    probe_port: int
    coordinator_process: bool


class Reserve(Operation[Reserved], op="reserve"):
    """Listen at this address for probes."""

    address: str


class Probe(Operation[str], op="probe"):
    """Connect to a rank that listens; replies with the own address on that way."""

    address: str
    port: int


@dataclass(frozen=True)
class Listener:
    """Where another rank listens."""

    address: str
    port: int


@dataclass(frozen=True)
class Unreachable:
    """That a listener can't be reached: the ``place``-th of those that were asked for."""

    place: int
    why: str


class Reachability(Operation[list[Unreachable]], op="reachability"):
    """Which of these can't be reached from here."""

    to: list[Listener]


class Serve(Operation[RankState], op="serve"):
    """Become an ipyparallel engine, and run cells. The last step."""

"""What ranks do and use."""

from __future__ import annotations

from dataclasses import field
from typing import Any

from jaxcluster.wire.ops import Message, Operation


class RankState(Message):
    """What a rank's control channel says of its main thread, at any time.

    ``state``: ``starting``, ``idle`` or ``running``; the notebook adds ``dead`` and ``silent``.
    ``seq`` is the running cell's, ``queued`` how many wait for their turn. ``line`` is the
    innermost line of the running cell, ``frame`` the innermost frame of all. ``launching`` is the
    program that it launches or waits to launch, for ``launching_s``. ``heard`` says that the
    code of a closed cell was told so, and comes to no launches any more.

    ``paused`` says that a person holds the rank: ``debugger``, or ``input`` where it has asked a
    question.
    """

    rank: int
    pid: int
    hostname: str
    state: str
    devices: list[str] = field(default_factory=list)
    seq: int = 0
    cell: int | None = None
    line: int | None = None
    frame: str = ""
    seconds: float = 0.0
    queued: int = 0
    rss_nbytes: int = 0
    paused: str = ""
    launching: str = ""
    launching_s: float = 0.0
    heard: bool = False


class RankReport(Message):
    """Where a rank is.

    ``stack`` is the main thread's, outermost first: [file, line, function, source, cell or None,
    whether it is JAX's own or jaxcluster's]; ``threads`` has those of the user's other threads, by
    name.
    """

    state: RankState
    stack: list[list[Any]]
    threads: dict[str, list[list[Any]]] = field(default_factory=dict)


class GpuUse(Message):
    """One GPU: its name as in CUDA_VISIBLE_DEVICES, and what all processes on it use of it.

    ``percent`` of the time it computed; None where that is not told.
    """

    name: str
    percent: float | None
    used_nbytes: int
    total_nbytes: int


class RankResources(Message):
    """What a rank's process has used so far, and uses now.

    ``at_s`` is a clock of its own, ``cpu_s`` the time on processors of all its threads since it
    began. ``gpus`` is empty where there is none, or no ``nvidia-ml-py``.
    """

    rank: int
    at_s: float
    cpu_s: float
    rss_nbytes: int
    gpus: list[GpuUse] = field(default_factory=list)


class State(Operation[RankState], op="state"):
    """What the main thread does now."""


class Stacks(Operation[RankReport], op="stacks"):
    """Where the threads are."""


class Resources(Operation[RankResources], op="resources"):
    """What the process has used, and uses."""


class Busy(Operation[float], op="busy"):
    """For how many seconds the process has computed since it began."""

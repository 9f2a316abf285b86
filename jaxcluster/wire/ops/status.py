"""Requests to ranks about their state and use."""

from __future__ import annotations

from dataclasses import field
from typing import Any

from jaxcluster.agreement.messages import Looked
from jaxcluster.wire.ops import Message, Operation


class RankState(Message):
    """The state of a rank's main thread, which its control channel reports at any time."""

    rank: int
    state: str  # starting, idle or running; the notebook adds dead and silent
    seq: int = 0  # of the running cell
    cell: int | None = None  # its number
    line: int | None = None  # the innermost line of the running cell
    seconds: float = 0.0
    queued: int = 0  # cells that wait for their turn
    paused: str = ""  # what a person holds it by: "debugger", or "input" after a question
    launching: str = ""  # the program that it launches, or waits to launch
    launching_s: float = 0.0
    heard: bool = False  # the code of a closed cell has got the error
    pid: int = 0  # on its host; the notebook adds both
    hostname: str = ""


class RankReport(Message):
    """The stacks of a rank.

    A stack has its outermost frame first. A frame is [file, line, function, source, cell or None,
    whether it is JAX's own or jaxcluster's].
    """

    state: str  # as ``RankState`` has it
    stack: list[list[Any]]  # of the main thread
    threads: dict[str, list[list[Any]]] = field(default_factory=dict)  # the user's others, by name


class GpuUse(Message):
    """One GPU, and what all processes on it use of it."""

    name: str  # as in CUDA_VISIBLE_DEVICES
    percent: float | None  # of the time in which it computed; None: not known
    used_nbytes: int
    total_nbytes: int


class RankResources(Message):
    """The use of a rank's process: percents of one processor, and of its GPUs' time.

    GPUs have values with nvidia-ml-py alone; their memory is that of all processes on them.
    """

    cpu: float  # since the reading before
    rss_nbytes: int
    gpu: float | None = None
    gpu_used_nbytes: int = 0
    gpu_total_nbytes: int = 0


class State(Operation[RankState], op="state"):
    """The main thread's state now."""


class Stacks(Operation[RankReport], op="stacks"):
    """The stacks of the threads."""


class Resources(Operation[RankResources], op="resources"):
    """The process's use of processors and GPUs."""


class Look(Operation[Looked | None], op="look"):
    """The referee's state, with so many last launches; None if it does not answer."""

    launches: int

"""What the panel and the Lab extension say: ``labextension/src/protocol.ts`` in Python.

``tests/golden/panel.json`` has one example of every message, which the tests of both sides read.
Times are milliseconds since 1970 by the kernel's clock. All fields are JSON's own types, or one of
these dataclasses. ``IVariable`` is ``wire.VariableInfo``.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Any

from jaxcluster.model.timeline import Timeline

PROTOCOL = 1
EVENTS = "jaxcluster.events"
EVENTS_ID = "jaxcluster-events"
RPC = "jaxcluster.rpc"
RESOURCES_ID = "jaxcluster-resources"  # of a display that no notebook has
RESOURCES_MIME = "application/vnd.jaxcluster.resources+json"

OPERATIONS = (
    "hello",
    "watch",
    "auto",
    "profiles",
    "start",
    "again",
    "cancel",
    "dismiss",
    "attach",
    "use",
    "stop",
    "restart",
    "resync",
    "undo",
    "strict",
    "interrupt",
    "logs",
    "stacks",
    "journal",
    "outputs",
    "shown",
    "variables",
    "look",
    "ask",
    "mesh",
    "memory",
)


# --------------------------------------------------------------------------- the state


@dataclass(frozen=True)
class Rank:
    """``status``: starting, idle, running, waiting, paused, interrupted, silent, diverged or dead.

    ``cell`` and ``line`` are as in ``[7] line 3``; ``since`` is when it entered that cell.
    """

    rank: int
    status: str
    host: str
    pid: int
    devices: list[str] = field(default_factory=list)
    cell: int | None = None
    line: int | None = None
    since: int | None = None
    rss: int = 0
    note: str = ""


@dataclass(frozen=True)
class Cluster:
    """A running cluster of this user on the kernel's machine.

    ``connected``: to this kernel. ``owned``: it ends with this kernel. ``orphaned``: no process is
    connected to it.
    """

    name: str
    launcher: str
    num_processes: int
    platform: str
    host: str
    created: int
    notebook: str = ""
    connected: bool = False
    owned: bool = False
    orphaned: bool = False


@dataclass(frozen=True)
class Place:
    """A line of a cell at which ranks were.

    ``what`` they did there: ``waited``, ``launched``, ``differs`` (of those to blame), ``died`` (of
    those last seen there) or ``was``.
    """

    cell: int
    line: int
    ranks: list[int]
    what: str


@dataclass(frozen=True)
class Report:
    """A certain finding, or the death of ranks: who was where, and who is to blame.

    ``kind``: missing, mismatch, circle, dead or step. ``title`` is the cause in a few words.
    ``recovered`` is what was done about it; ``open`` says that the ranks are still not in lockstep.
    """

    id: str
    kind: str
    cluster: str
    cell_id: str
    cell: int
    at: int
    lines: list[str]
    waiting: list[int]
    culprits: list[int]
    title: str = ""
    stacks: str = ""
    recovered: str = ""
    open: bool = False
    places: list[Place] = field(default_factory=list)
    timelines: list[Timeline] = field(default_factory=list)


@dataclass(frozen=True)
class Start:
    """A start of ranks that goes on, or the last one, which has failed: ``failure`` says why then.

    ``steps`` has for each rank how far it has come: ``""`` (not heard of), ``up``, ``initialized``
    or ``ready``. ``on_cpu``: it would probably work on CPU.
    """

    name: str
    since: int
    steps: list[str]
    failure: str = ""
    on_cpu: bool = False
    is_restart: bool = False


@dataclass(frozen=True)
class Undo:
    """The last cell of this notebook. ``is_done``: it is undone. ``refused``: why it can't be."""

    seq: int
    cell_id: str
    cell: int
    is_done: bool = False
    refused: str = ""


@dataclass(frozen=True)
class State:
    """Everything but cells. ``spmd`` is None while auto mode is off and nobody has switched."""

    version: str
    now: int
    spmd: bool | None = None
    clusters: list[Cluster] = field(default_factory=list)
    current: str | None = None
    progress: str = ""
    start: Start | None = None
    ranks: list[Rank] = field(default_factory=list)
    strict: bool = False
    recovery: str = "auto"
    report: Report | None = None
    undo: Undo | None = None
    type: str = "state"
    v: int = PROTOCOL


# --------------------------------------------------------------------------- cells


@dataclass(frozen=True)
class CellRank:
    """``status``: running, waiting, paused, done, failed, interrupted or dead."""

    rank: int
    status: str
    seconds: float | None = None


@dataclass(frozen=True)
class Shown:
    """What stands below a cell. ``outputs``: None where it has not changed since ``mark``."""

    number: int
    is_over: bool
    mark: str
    outputs: list[dict[str, Any]] | None


@dataclass(frozen=True)
class Cell:
    """One ``%%spmd`` cell as its ranks run it; ``cell_id`` is Jupyter's.

    ``held``: a person has held some of them, so that their times say nothing of them.
    """

    cell_id: str
    seq: int
    cluster: str
    number: int
    started: int
    ranks: list[CellRank]
    ended: int | None = None
    now: int = 0
    held: bool = False
    type: str = "cell"


# --------------------------------------------------------------------------- resources


@dataclass(frozen=True)
class Series:
    """One rank's samples, oldest first: percents of a processor and of its GPUs, and bytes."""

    rank: int
    cpu: list[int | None]
    rss: list[int]
    gpu: list[int | None]
    gpu_used: list[int]
    gpu_total: int = 0


@dataclass(frozen=True)
class Resources:
    """What the ranks of a cluster use. ``whole``: it takes the place of all that was known."""

    now: int
    cluster: str
    ranks: list[Series]
    whole: bool
    every: int
    type: str = "resources"


# --------------------------------------------------------------------------- profiles


@dataclass(frozen=True)
class Profile:
    """Options of a start under a name: [flag, value] of each, [flag] of a switch.

    ``problem``: why it can't be used.
    """

    name: str
    place: str
    is_default: bool = False
    options: list[list[str]] = field(default_factory=list)
    problem: str = ""


def plain(message: Any) -> Any:
    """A message as JSON's own types; ``dataclasses.asdict`` would copy all that is in it."""
    if dataclasses.is_dataclass(message) and not isinstance(message, type):
        return {name: plain(value) for name, value in vars(message).items()}
    if isinstance(message, list | tuple):
        return [plain(item) for item in message]
    return message

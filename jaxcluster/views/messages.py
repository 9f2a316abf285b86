"""The messages of the kernel's side and the page: the Lab extension, and the sidebar.

Only the kernel speaks on the comm ``jaxcluster.events``, whose id is fixed. It sends the state when
that changes, cells as they go on, and answers to requests. Only the page speaks on
``jaxcluster.rpc``, which it opens. ``notebook/panel/operations`` has the requests' arguments.

``python labextension/protocol.py`` makes the page's types of these, and comments of comments:
``labextension/src/protocol.ts``. ``tests/golden/panel.json`` has one example of every message.
Times are milliseconds since 1970 by the kernel's clock, and ``now`` is that clock. So "running for
3 s" is right on a browser whose clock is off.
"""

from __future__ import annotations

import math
from typing import Any, Literal

from msgspec import UNSET, Struct, UnsetType

from jaxcluster.cluster.events import StartStep
from jaxcluster.hosts.records.reports import Report
from jaxcluster.wire import RankResources

PROTOCOL = 5
EVENTS = "jaxcluster.events"
EVENTS_ID = "jaxcluster-events"
RPC = "jaxcluster.rpc"
SHARDS_MIME = "application/vnd.jaxcluster.shards+json"
OUTPUTS_MIME = "application/vnd.jaxcluster.outputs+json"
OUTPUTS_VERSION = 1

Output = dict[str, Any]  # of a notebook: nbformat 4
Document = dict[str, Any]  # what static/shardview draws

# The activity of a rank. It waits in a collective; a debugger or a question has it paused.
RankStatus = Literal[
    "starting", "idle", "running", "waiting", "paused", "interrupted", "silent", "dead"
]
# How far a cell is on a rank.
CellRankStatus = Literal["running", "waiting", "paused", "done", "failed", "interrupted", "dead"]


class Cluster(Struct):
    """A running cluster of this user on the kernel's machine."""

    name: str
    launcher: str
    num_processes: int
    platform: str
    created: int  # when it was started
    notebook: str  # path or name of the notebook that started it; "" if there was none
    # Whether no process is connected to it, and the one that it would end with is gone.
    orphaned: bool


class Start(Struct):
    """A start of ranks that goes on, or the last one, which has failed."""

    name: str
    since: int
    steps: list[StartStep]  # how far each rank has come
    failure: str  # why it has failed; "" while it goes on
    is_restart: bool


class Rank(Struct):
    """One rank of the current cluster."""

    rank: int
    status: RankStatus
    host: str
    pid: int
    devices: list[str]
    cell: int | None = None  # the running cell's number, as in [7]
    line: int | None = None  # the line of the cell that it is in
    since: int | None = None  # when it began that cell; None while it runs none
    note: str = ""  # why it is dead, or what else there is to say
    use: RankResources | None = None  # measured while ranks are busy, and once after that


class State(Struct, tag="state"):
    """Everything but cells."""

    now: int
    spmd: bool  # auto mode: whether every following cell is an %%spmd cell
    clusters: list[Cluster]  # every cluster that runs here, this kernel's first
    current: str | None  # the one that %%spmd uses; None while there is none
    progress: str  # like "starting: engines 3/4" while a start or restart goes on; else ""
    start: Start | None
    ranks: list[Rank]
    report: Report | None
    v: int = PROTOCOL


class CellRank(Struct):
    """A cell on one rank."""

    rank: int
    status: CellRankStatus
    seconds: float | None  # how long the cell took on this rank; None while it runs


class Cell(Struct, tag="cell"):
    """One %%spmd cell as its ranks run it. The newest run of a Jupyter cell replaces older ones."""

    cell_id: str  # the Jupyter cell's
    seq: int
    number: int  # as in [7]
    started: int
    ranks: list[CellRank]
    ended: int | None  # None while it runs
    now: int


class Hello(Struct):
    """Everything there is."""

    state: State
    cells: list[Cell]


class Request(Struct):
    """A page's request."""

    id: str  # `${client}:${number}`: the answer carries it, and other pages ignore that
    op: str
    args: Any
    # When it is refused if it was not heard before; the sidebar in a cell has no subshell.
    until: float = math.inf


class Answer(Struct, tag="answer"):
    """The result of a request, or its error."""

    id: str
    result: Any | UnsetType = UNSET
    error: str | UnsetType = UNSET  # in place of the result


class Heard(Struct, tag="heard"):
    """A request of the sidebar in a cell has come to the kernel."""

    id: str


class OutputGroup(Struct):
    """Ranks with the same output."""

    ranks: list[int]
    outputs: list[Output]


class RanksOutputs(Struct, kw_only=True):
    """The output of several ranks in a cell, as the notebook keeps it."""

    v: int = OUTPUTS_VERSION
    cell: int  # its number, as in [7]
    groups: list[OutputGroup]
    failed: list[int] | UnsetType  # ranks on which the cell has failed; not in older notebooks


class Shown(Struct):
    """The output below a cell."""

    number: int  # the cell's, as in [7]
    is_over: bool  # whether nothing more comes
    mark: str
    outputs: list[Output] | None  # None if they have not changed since `mark`


class Variable(Struct):
    """A variable that is an array or a pytree of arrays, as a list of variables shows it."""

    name: str
    type: str  # "array", or the type of a pytree: "dict of 12 arrays"
    shape: list[int] | None  # None of a pytree
    dtype: str
    sharding: str  # the PartitionSpec in short, or what else the sharding is called
    nbytes: int
    nbytes_per_device: int  # the most that one device holds of it


class Question(Struct):
    """A question of an array's view."""

    # Its layout now, whether its replicas are equal, the statistics of a device's part, or some of
    # that part's values.
    op: Literal["look", "check", "stats", "peek"]
    name: str = ""  # a part of the array or pytree that is shown
    rank: int = 0  # for "stats" and "peek"
    device: int = 0  # of that rank
    start: list[int] = []  # for "peek": for each axis, counted from the shard's own corner
    stop: list[int] = []  # in the same way

"""What the kernel's side and the page say to each other: the Lab extension, and the sidebar.

On the comm ``jaxcluster.events``, whose id is fixed, only the kernel speaks: it sends the state
whenever that changes, cells as they go on, and the answers to requests. The page adopts the id
without opening anything, so a page without the extension hears nothing of it. On
``jaxcluster.rpc``, opened by the page, only the page speaks.

``labextension/src/protocol.ts`` has the same types; a test compares them.
``tests/golden/panel.json`` has one example of every message, which the tests of both sides read.
Times are milliseconds since 1970 by the kernel's clock; ``now`` is that clock, so that "running for
3 s" is right on a browser whose clock is off.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal, NotRequired, TypedDict

import msgspec

from jaxcluster.cluster.events import StartStep
from jaxcluster.hosts.records.reports import Report
from jaxcluster.views.cell_outputs import Output

PROTOCOL = 4
EVENTS = "jaxcluster.events"
EVENTS_ID = "jaxcluster-events"
RPC = "jaxcluster.rpc"

# --------------------------------------------------------------------------- the state

RankStatus = Literal[
    "starting",
    "idle",
    "running",
    "waiting",
    "paused",
    "interrupted",
    "silent",
    "dead",
]
"""What a rank is doing. It waits in a collective; a debugger or a question has it paused."""


@dataclass(frozen=True)
class Use:
    """What a rank uses: percents of a processor and of its GPUs' time, and bytes.

    Attributes:
      gpu_total: 0 if there is no GPU, or nothing is known of it.
    """

    cpu: int | None
    rss: int
    gpu: int | None = None
    gpu_used: int = 0
    gpu_total: int = 0


@dataclass(frozen=True)
class Rank:
    """One rank of the current cluster.

    Attributes:
      cell: the running cell's number, as in ``[7] line 3``; ``line`` is the line that it is in.
      since: since when it has been in that cell; None while it runs none.
      note: why it is dead, or what else there is to say.
      use: measured while ranks are busy, and once after that.
    """

    rank: int
    status: RankStatus
    host: str
    pid: int
    devices: list[str] = field(default_factory=list)
    cell: int | None = None
    line: int | None = None
    since: int | None = None
    note: str = ""
    use: Use | None = None


@dataclass(frozen=True)
class Cluster:
    """A running cluster of this user on the kernel's machine.

    Attributes:
      created: when it was started.
      notebook: path or name of the notebook that started it; "" if there was none.
      orphaned: whether no process is connected to it, and the one that it would end with is gone.
    """

    name: str
    launcher: str
    num_processes: int
    platform: str
    created: int
    notebook: str = ""
    orphaned: bool = False


@dataclass(frozen=True)
class Start:
    """A start of ranks that goes on, or the last one, which has failed.

    Attributes:
      steps: how far each rank has come.
      failure: why it has failed; "" while it goes on.
    """

    name: str
    since: int
    steps: list[StartStep]
    failure: str = ""
    is_restart: bool = False


@dataclass(frozen=True)
class State:
    """Everything but cells.

    Attributes:
      spmd: auto mode: every following cell is an %%spmd cell.
      clusters: every cluster that runs here, this kernel's first.
      current: the one that %%spmd uses; None while there is none.
      progress: one line like "starting: engines 3/4", while a start or restart goes on; else "".
    """

    now: int
    spmd: bool = False
    clusters: list[Cluster] = field(default_factory=list)
    current: str | None = None
    progress: str = ""
    start: Start | None = None
    ranks: list[Rank] = field(default_factory=list)
    report: Report | None = None
    type: Literal["state"] = "state"
    v: int = PROTOCOL


# --------------------------------------------------------------------------- cells

CellRankStatus = Literal["running", "waiting", "paused", "done", "failed", "interrupted", "dead"]
"""How far a cell is on a rank."""


@dataclass(frozen=True)
class CellRank:
    """A cell on one rank.

    Attributes:
      seconds: how long the cell took on this rank; None while it runs.
    """

    rank: int
    status: CellRankStatus
    seconds: float | None = None


@dataclass(frozen=True)
class Cell:
    """One %%spmd cell as its ranks run it. The newest run of a Jupyter cell replaces older ones.

    Attributes:
      cell_id: the Jupyter cell's.
      number: as in [7].
      ended: None while it runs.
    """

    cell_id: str
    seq: int
    number: int
    started: int
    ranks: list[CellRank]
    ended: int | None = None
    now: int = 0
    type: Literal["cell"] = "cell"


@dataclass(frozen=True)
class Shown:
    """The output below a cell.

    Attributes:
      number: the cell's, as in [7].
      is_over: whether nothing more comes.
      outputs: None if they have not changed since ``mark``.
    """

    number: int
    is_over: bool
    mark: str
    outputs: list[Output] | None


# --------------------------------------------------------------------------- requests and answers


@dataclass(frozen=True)
class Hello:
    """Everything there is: the answer to a page's ``hello``, which says who that is."""

    state: State
    cells: list[Cell]


class Request(TypedDict):
    """What a page sends.

    Attributes:
      id: ``${client}:${number}``: the answer carries it, and other pages ignore that.
      until: when it is refused if it was not heard before; the sidebar in a cell has no subshell.
    """

    id: str
    op: str
    args: object
    until: NotRequired[float]


class Answer(TypedDict):
    """What came of a request.

    Attributes:
      error: set instead of the result.
    """

    type: Literal["answer"]
    id: str
    result: NotRequired[Any]
    error: NotRequired[str]


class Heard(TypedDict):
    """A request of the sidebar in a cell has come to the kernel."""

    type: Literal["heard"]
    id: str


plain = msgspec.to_builtins
"""A message as JSON's own types."""

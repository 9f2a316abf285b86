"""What the messages between notebook and ranks say: frozen dataclasses."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from jaxcluster.agreement.cellqueue import CellSpec, Skipped
from jaxcluster.agreement.refusals import Refusal
from jaxcluster.wire.ops import EVENTS, Operation

# --------------------------------------------------------------------------- a cluster's making


@dataclass(frozen=True)
class ClusterSpec:
    """What a user asked for. Everything that a launcher and the plan need, and nothing more.

    ``None`` in what is passed to ``jax.distributed.initialize`` as it stands means that jaxcluster
    assigns it. ``any_name`` says that the user gave no name: another free one will do;
    ``any_launcher`` that none was named. ``options`` are the launcher's own, as they were typed. 0
    processes, and no platform, mean that the devices of the launcher's hosts decide it.
    """

    name: str
    num_processes: int
    devices_per_process: int | None = None
    platform: str = "cpu"
    launcher: str = "local"
    env: dict[str, str] = field(default_factory=dict)
    timeout_s: float = 60.0
    detach: bool = False
    local_device_ids: list[list[int]] | None = None
    coordinator_address: str | None = None
    coordinator_bind_address: str | None = None
    initialization_timeout: int | None = None
    heartbeat_timeout_seconds: int = 100
    any_name: bool = False
    any_launcher: bool = False
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def is_here(self) -> bool:
        """Whether its ranks run on this machine."""
        return self.launcher == "local"


@dataclass(frozen=True)
class EngineFacts:
    """What one engine knows of itself and its host before JAX is initialized.

    ``host_key`` is equal for the engines of one host (boot id and network namespace).
    ``gpus`` and ``tpu_chips`` are what this process may see: the entries of CUDA_VISIBLE_DEVICES
    where that is set, else every card's index. ``tpu_hosts`` are all hosts of the TPU slice that
    this one is worker ``tpu_worker_id`` of, where that is known. ``gpu_kind`` are the cards and
    their driver, ``gpus_in_use`` a sentence on each that others use, ``nccl`` its wheel's version.
    ``cores`` is how many threads XLA gives its pool on the CPU by itself; 0: not known.
    """

    rank: int
    pid: int
    hostname: str
    host_key: str
    address: str
    jax: str
    gpus: list[str] = field(default_factory=list)
    tpu_chips: int = 0
    tpu_worker_id: int | None = None
    tpu_hosts: list[str] = field(default_factory=list)
    gpu_kind: str = ""
    gpus_in_use: list[str] = field(default_factory=list)
    nccl: str = ""
    cores: int = 0


@dataclass(frozen=True)
class DeviceInfo:
    """One device as JAX names it."""

    id: int
    kind: str
    platform: str
    process_index: int
    local_hardware_id: int | None = None
    coords: list[int] | None = None


@dataclass(frozen=True)
class InitializeReply:
    """What JAX says after ``initialize``: the devices of this process and how many there are.

    ``recording`` says that launches are checked. ``moved`` are the private names of
    JAX that rank 0 has not found, each with what happens without it.
    """

    rank: int
    process_count: int
    device_count: int
    devices: list[DeviceInfo]
    seconds: float
    recording: bool = True
    moved: dict[str, str] = field(default_factory=dict)


class InitializeRequest(Operation[InitializeReply], op="initialize"):
    """One rank's part of the plan: its environment, JAX settings and initialize arguments.

    ``coordinator_process`` says that the coordination service runs in a process of its own; else
    rank 0 hosts it. ``referee`` is the path of the referee's socket on this host. ``is_checked``:
    each launch of a program that spans processes waits for the referee's word.
    """

    process_id: int
    num_processes: int
    coordinator_address: str
    coordinator_bind_address: str | None
    local_device_ids: list[int] | None
    initialization_timeout: int
    heartbeat_timeout_seconds: int
    platforms: str | None
    num_cpu_devices: int | None
    collectives_address: str | None
    env: dict[str, str] = field(default_factory=dict)
    coordinator_process: bool = False
    referee: str = ""
    is_checked: bool = True


# --------------------------------------------------------------------------- cells


@dataclass(frozen=True)
class CommMessage:
    """What a page has said on a comm that was opened on a rank; its buffers are the request's.

    ``kind`` is ``comm_msg`` or ``comm_close``. The other ranks know the same comm as ``twin``.
    """

    kind: str
    rank: int
    comm_id: str
    twin: str
    data: dict[str, Any]
    metadata: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Script:
    """What ``jaxcluster run`` runs, in place of a cell.

    ``path`` is the file's, absolute; "" for a ``module``, which the rank finds by its name.
    ``folder`` is what stands first on ``sys.path``.
    """

    argv: list[str]
    path: str
    folder: str
    module: str = ""


@dataclass(frozen=True)
class RankOutput:
    """One piece of a cell's output.

    ``kind`` is ``stream`` (content: name, text) or the Jupyter message type: ``display_data``,
    ``update_display_data``, ``execute_result``, ``clear_output``, ``comm_open``, ``comm_msg``,
    ``comm_close``.
    """

    rank: int
    seq: int
    kind: str
    content: dict[str, Any]


@dataclass(frozen=True)
class Question:
    """What a rank asks the notebook whose cell it runs (``ask``); ``answer`` with its id follows.

    ``secret``: what is typed is not shown. ``debugger``: a debugger asks for its next command.
    """

    rank: int
    seq: int
    id: int
    prompt: str
    secret: bool = False
    debugger: bool = False


@dataclass(frozen=True)
class Paused:
    """That a person holds a rank from now on (``RankState.paused``), or with "" no longer."""

    kind: str


@dataclass(frozen=True)
class Closed:
    """Nothing more is launched in a cell: why. From one of its ranks."""

    seq: int
    refusal: Refusal


@dataclass(frozen=True)
class Over:
    """A cell has ended on all of its ranks: why it is not ok, or None. From one of its ranks."""

    seq: int
    refusal: Refusal | None = None


@dataclass(frozen=True)
class CommPush:
    """What a rank's code says on a comm, for the page; its buffers are the message's.

    ``kind`` is as in a ``CommMessage``, or ``comm_open``. ``seq`` is the cell that opened the comm,
    ``under`` the one that runs now.
    """

    rank: int
    seq: int
    under: int
    kind: str
    comm_id: str
    twin: str
    data: Any = field(default_factory=dict)
    metadata: Any = field(default_factory=dict)
    target_name: str = ""
    target_module: str | None = None


@dataclass(frozen=True)
class Failure:
    """What a rank answers in place of a reply: an exception's name, its message, and what to do."""

    ename: str
    message: str
    hint: str = ""


@dataclass(frozen=True)
class Death:
    """Why a rank answers no more, as the notebook's own side knows it.

    ``code`` is what its process has ended with, where that is known: below 0 the signal.
    ``host_lost``: its host is, with all its ranks; ``may_live``: as far as is known. ``log``: of a
    crash the end of its log, with its stack.
    """

    why: str
    code: int | None = None
    host_lost: bool = False
    may_live: bool = False
    log: str = ""


EVENTS.update(
    output=RankOutput,
    ask=Question,
    paused=Paused,
    closed=Closed,
    over=Over,
    push=CommPush,
    error=Failure,
)


@dataclass(frozen=True)
class ErrorInfo:
    """An exception of a rank, rendered there: ``traceback`` is IPython's, in the cell's lines.

    ``hint`` is what the rank knows for certain of the reason, and the message does not say.
    """

    ename: str
    evalue: str
    traceback: list[str]
    lineno: int | None = None
    hint: str = ""


@dataclass(frozen=True)
class NameChanges:
    """Which names a rank has bound and unbound since it last told this notebook.

    ``is_first``: it has told nothing before, so ``bound`` are all.
    """

    bound: list[str]
    gone: list[str]
    is_first: bool = False


@dataclass(frozen=True)
class CellReply:
    """How a cell ended on a rank.

    ``status``: ``ok``, ``error``, ``refused`` (a launch was, and the error says why),
    ``interrupted`` or ``skipped``. ``fault`` is an error of ours after the cell's own code was
    over, in words; "" if there was none.
    """

    rank: int
    seq: int
    status: str
    seconds: float
    error: ErrorInfo | None = None
    names: NameChanges | None = None
    fault: str = ""
    skipped: Skipped | None = None


class CellRequest(Operation[CellReply], op="cell"):
    """A cell to run on a rank.

    ``source`` has the notebook's own line numbers (the ``%%spmd`` line is line 1, a comment).
    ``execution_count`` is the notebook's, so tracebacks and ``Out`` carry the cell's number.
    With a ``message`` it is not run: the message is for a comm that it has opened.
    ``post_mortem``: it has no source; the rank's last error is looked at in the debugger.
    With a ``script`` the source is that script's, plain Python, and is run as one.
    ``profile``: the folder for the files of JAX's profiler, under which it runs; "" for none.
    ``sent_ns``: when it was sent, by its notebook's clock, and ``who`` that is.
    """

    turn: CellSpec
    source: str
    execution_count: int
    shown_ranks: list[int]
    cell_id: str = ""
    message: CommMessage | None = None
    post_mortem: bool = False
    script: Script | None = None
    profile: str = ""
    sent_ns: int = 0
    who: str = ""

    @property
    def seq(self) -> int:
        return self.turn.seq

    @property
    def ranks(self) -> list[int]:
        return list(self.turn.ranks)


@dataclass(frozen=True)
class RankState:
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


@dataclass(frozen=True)
class RankReport:
    """Where a rank is.

    ``stack`` is the main thread's, outermost first: [file, line, function, source, cell or None,
    whether it is JAX's own or jaxcluster's]; ``threads`` has those of the user's other threads, by
    name.
    """

    state: RankState
    stack: list[list[Any]]
    threads: dict[str, list[list[Any]]] = field(default_factory=dict)


@dataclass(frozen=True)
class GpuUse:
    """One GPU: its name as in CUDA_VISIBLE_DEVICES, and what all processes on it use of it.

    ``percent`` of the time it computed; None where that is not told.
    """

    name: str
    percent: float | None
    used_nbytes: int
    total_nbytes: int


@dataclass(frozen=True)
class RankResources:
    """What a rank's process has used so far, and uses now.

    ``at_s`` is a clock of its own, ``cpu_s`` the time on processors of all its threads since it
    began. ``gpus`` is empty where there is none, or no ``nvidia-ml-py``.
    """

    rank: int
    at_s: float
    cpu_s: float
    rss_nbytes: int
    gpus: list[GpuUse] = field(default_factory=list)


# --------------------------------------------------------------------------- values


@dataclass(frozen=True)
class ShardInfo:
    """One addressable shard: its place in the whole, as [start, stop] per axis."""

    device: int
    index: list[list[int]]
    replica_id: int
    nbytes: int


@dataclass(frozen=True)
class ArrayInfo:
    """One rank's view of one array. ``spans`` says that other processes hold parts of it.

    ``sharding`` is as JAX prints it and ``kind`` its class. A mesh's axes are ``axis_names`` and
    ``axis_sizes``; ``spec`` is the PartitionSpec as JAX prints it, and ``split`` names for each
    axis of the array the mesh axes that cut it. ``nbytes`` is the whole array's. ``note`` says why
    there are no shards: deleted, a tracer, not a jax.Array. ``on`` is a hash of the ids of its
    devices: a rank that has all of them does not know that other processes have the array too.
    """

    shape: list[int]
    dtype: str
    sharding: str
    spans: bool
    shards: list[ShardInfo]
    ready: bool = True
    note: str = ""
    kind: str = ""
    axis_names: list[str] = field(default_factory=list)
    axis_sizes: list[int] = field(default_factory=list)
    spec: str = ""
    split: list[list[str]] = field(default_factory=list)
    memory_kind: str = ""
    committed: bool = True
    nbytes: int = 0
    on: str = ""


@dataclass(frozen=True)
class ValueReport:
    """What one rank says of a variable, or of a part of it: a pytree of arrays.

    One array is a tree of one leaf whose path is empty. Leaves that look alike share an entry of
    ``infos``: leaf ``i`` is at ``paths[i]``, looks like ``infos[use[i]]`` and stands for
    ``counts[i]`` leaves (more than one where a huge tree was folded). ``digest`` is equal on the
    ranks whose paths are equal; those that were not asked for their paths send none. ``note`` says
    why there is nothing to show. ``copies``: (leaf, part, hash) of parts that other processes have
    too, as far as a look reaches.
    """

    rank: int
    type: str
    note: str = ""
    hint: str = ""
    paths: list[list[str]] = field(default_factory=list)
    use: list[int] = field(default_factory=list)
    counts: list[int] = field(default_factory=list)
    infos: list[ArrayInfo] = field(default_factory=list)
    digest: str = ""
    copies: list[Any] = field(default_factory=list)


@dataclass(frozen=True)
class ShardCheck:
    """What one shard holds: statistics of its finite values, and a hash of its bytes.

    ``leaf`` is the path of its array in the variable. The numbers are None where none is finite or
    the dtype is not numeric.
    """

    leaf: list[str]
    device: int
    index: list[list[int]]
    minimum: float | None = None
    maximum: float | None = None
    mean: float | None = None
    nan: int = 0
    inf: int = 0
    size: int = 0
    digest: str = ""


@dataclass(frozen=True)
class MeshInfo:
    """A device mesh: ``devices`` are ids in row-major order of ``axis_sizes``."""

    name: str
    axis_names: list[str]
    axis_sizes: list[int]
    axis_types: list[str]
    devices: list[int]


@dataclass(frozen=True)
class NamedBytes:
    """What one variable holds on each device, in bytes; parallel to ``MemoryReport.devices``."""

    name: str
    nbytes: list[int]


@dataclass(frozen=True)
class MemoryReport:
    """What a rank's live arrays hold on its devices; a buffer of several names counts once.

    ``other`` are live arrays that no variable reaches. ``in_use`` and ``limit`` are the
    allocator's, where the platform tells them. ``rss_nbytes`` is the process's, and
    ``available_nbytes`` its host's.
    """

    rank: int
    devices: list[int]
    names: list[NamedBytes]
    other: list[int]
    in_use: list[int | None]
    limit: list[int | None]
    rss_nbytes: int = 0
    available_nbytes: int = 0


@dataclass(frozen=True)
class VariableInfo:
    """A variable that is an array or a pytree of arrays, as a list of variables shows it.

    Attributes:
      type: "array", or the type of a pytree: "dict of 12 arrays", whose ``shape`` is None.
      sharding: the PartitionSpec in short, or what else the sharding is called.
      nbytes_per_device: the most that one device holds of it.
    """

    name: str
    type: str
    shape: list[int] | None
    dtype: str
    sharding: str
    nbytes: int
    nbytes_per_device: int

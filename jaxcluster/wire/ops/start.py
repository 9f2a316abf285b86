"""How a cluster starts: what was asked for, and what each rank is asked while it comes up."""

from __future__ import annotations

from dataclasses import field
from typing import Any

from jaxcluster.wire.ops import Message, Operation
from jaxcluster.wire.ops.status import RankState


class ClusterSpec(Message):
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


class EngineFacts(Message):
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


class DeviceInfo(Message):
    """One device as JAX names it."""

    id: int
    kind: str
    platform: str
    process_index: int
    local_hardware_id: int | None = None
    coords: list[int] | None = None


class InitializeReply(Message):
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


class Facts(Operation[EngineFacts], op="facts"):
    """What it knows of itself and its host. Before JAX is initialized."""


class Reserved(Message):
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


class Listener(Message):
    """Where another rank listens."""

    address: str
    port: int


class Unreachable(Message):
    """That a listener can't be reached: the ``place``-th of those that were asked for."""

    place: int
    why: str


class Reachability(Operation[list[Unreachable]], op="reachability"):
    """Which of these can't be reached from here."""

    to: list[Listener]


class Serve(Operation[RankState], op="serve"):
    """Become an ipyparallel engine, and run cells. The last step."""

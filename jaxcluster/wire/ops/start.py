"""How a cluster starts: what was asked for, and what each rank is asked while it comes up."""

from __future__ import annotations

from dataclasses import field
from typing import Any

from jaxcluster.wire.ops import Message, Operation
from jaxcluster.wire.ops.status import RankState


class ClusterSpec(Message):
    """A user's options for a cluster: all that a launcher and the plan need.

    None means that jaxcluster chooses what ``jax.distributed.initialize`` gets. For 0 processes, or
    no platform, the devices of the launcher's hosts decide.
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
    any_name: bool = False  # the user gave none: another free one will do
    any_launcher: bool = False  # the user named none
    options: dict[str, Any] = field(default_factory=dict)  # the launcher's own, as they were typed

    @property
    def is_here(self) -> bool:
        """Whether its ranks run on this machine."""
        return self.launcher == "local"


class EngineFacts(Message):
    """The facts of one engine and its host before JAX is initialized."""

    rank: int
    pid: int
    hostname: str
    host_key: str  # equal for the engines of one host: boot id and network namespace
    jax: str
    gpus: list[str] = field(default_factory=list)  # CUDA_VISIBLE_DEVICES, else each card's index
    tpu_chips: int = 0  # that this process may see
    tpu_worker_id: int | None = None
    tpu_hosts: list[str] = field(default_factory=list)  # all of its TPU slice, if they are known
    gpus_in_use: list[str] = field(default_factory=list)  # a sentence on each that others use
    cores: int = 0  # threads that XLA gives its CPU pool; 0: not known


class DeviceInfo(Message):
    """One device as JAX names it."""

    id: int
    kind: str
    platform: str
    local_hardware_id: int | None = None
    coords: list[int] | None = None


class InitializeReply(Message):
    """JAX's answer after ``initialize``: the devices of this process."""

    devices: list[DeviceInfo]
    recording: bool = True  # launches are checked
    moved: dict[str, str] = field(default_factory=dict)  # JAX's private names that rank 0 misses


class InitializeRequest(Operation[InitializeReply], op="initialize"):
    """One rank's part of the plan: its environment, JAX settings and initialize arguments."""

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
    referee: str = ""  # the path of the referee's socket on this host
    is_checked: bool = True  # launches wait for the referee's word


class Facts(Operation[EngineFacts], op="facts"):
    """The facts of the engine and its host. Before JAX is initialized."""


class Script(Operation[None], op="script"):
    """Become the process of a script, in place of ``Serve``. The last thing that it hears here."""

    argv: list[str]
    path: str  # of the file, absolute; "" for a module
    folder: str  # what stands first on sys.path
    module: str = ""  # found by its name there
    source: str = ""  # the file's: its host may not have it


class Serve(Operation[RankState], op="serve"):
    """Become an ipyparallel engine, and run cells. The last step."""

    engine: dict[str, Any]  # how it reaches ipyparallel's controller, as its connection file has it

"""From a forked process to a JAX process.

A ``jax.distributed.initialize`` that can't reach its coordinator aborts the process, without an
exception: so that is looked at first.
"""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import unquote

from jaxcluster import wire
from jaxcluster.agreement.client import Agreement
from jaxcluster.errors import UsageError
from jaxcluster.host import tpus
from jaxcluster.host.reachability import UNIX
from jaxcluster.rank.control import Request
from jaxcluster.rank.coordinator import LEAVE_OUT
from jaxcluster.rank.given import Given
from jaxcluster.rank.private import compilations, coordination, kinds, moved, transfers
from jaxcluster.rank.private.launches import agree_on_launches

POLL_S = 0.002
IDLE_NS = 200_000_000  # an idle rank of a notebook wakes some 5 times a second
LOOPBACK = "127.0.0.1"


class Owner(Protocol):
    """The part that runs cells or a script: it has the process's agreement."""

    @property
    def agreement(self) -> Agreement: ...

    @property
    def given(self) -> Given: ...

    def connect(self, path: str) -> None: ...


def dial_until(dial: Callable[[], object], who: str, timeout_s: float) -> None:
    """Return once ``dial`` has found somebody who listens.

    A client of gRPC that dials before that waits out its backoff of a whole second.

    Raises:
      TimeoutError: nobody did within ``timeout_s``.
      UsageError: its name is not known.
    """
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            dial()
            return
        except OSError as error:
            if error.errno == socket.EAI_NONAME:
                told = f"{who} is not known here ({error.strerror})."
                raise UsageError(told, LEAVE_OUT) from None
            if time.monotonic() > deadline:
                told = f"{who} gave no answer in {timeout_s:.0f} s ({error})"
                raise TimeoutError(told) from None
            time.sleep(POLL_S)


def _dial(address: str) -> None:
    """Connect to ``HOST:PORT`` or ``unix:/PATH``, and leave again."""
    if address.startswith(UNIX):
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(unquote(address.removeprefix(UNIX)))  # a URI's, as gRPC reads it
    else:
        host, _, port = address.rpartition(":")
        socket.create_connection((host.strip("[]"), int(port)), timeout=1).close()


def become_jax_process(
    asked: wire.Inbox[Request[wire.InitializeRequest]],
    owner: Owner,
    note: Callable[[str], None],
    compiled: str = "",
) -> list[wire.DeviceInfo]:
    """JAX's devices of this process, once it is asked to initialize. The main thread.

    Args:
      owner: has the process's agreement, and the hashes of what it gives to launches.
      note: says a line about a script that initializes JAX itself.
      compiled: the folder for compiled programs, for ranks that come after this one; "": none.
    """
    while True:  # who has asked ends a process that can't
        request = asked.get()
        reply = request.answer(lambda its: initialize(its.body, owner, compiled))
        if reply is not None:
            coordination.fit_in(note)
            return list(reply.devices)


def initialize(
    request: wire.InitializeRequest, owner: Owner, compiled: str
) -> wire.InitializeReply:
    """Make this process rank ``process_id`` of the cluster and start its backend.

    Must run on the main thread, before anything has touched a JAX device.

    Raises:
      RuntimeError: what JAX says, e.g. that a backend was already started.
    """
    # It gives up before the notebook does, so that its reason is heard.
    wait_s = max(1, request.initialization_timeout - 1)
    os.environ.update(request.env)
    if request.platforms in ("cuda", "rocm"):
        # Since jax 0.11 each host is a partition else, and ``make_mesh`` takes devices of one.
        os.environ.setdefault("JAX_PARTITION_INDEX", "0")
    if request.platforms == "tpu" and not request.env.get(tpus.SHARED):
        # A process that was killed gives its chips back a while later.
        tpus.wait_for_libtpu(wait_s)
    import jax

    settings: dict[str, Any] = {
        "jax_platforms": request.platforms,
        "jax_num_cpu_devices": request.num_cpu_devices,
        # JAX's preemption service swallows SIGTERM, so that a stop takes 5 s instead of 1.
        "jax_enable_preemption_service": False,
        # Cells are compiled from files under one constant name. Other sources may still lie under
        # a path with a pid: without this setting, equal programs have unequal fingerprints.
        "jax_hlo_source_file_canonicalization_regex": r".*/ipykernel_[^/]*/",
    }
    for name, value in settings.items():
        if value is not None:
            jax.config.update(name, value)
    if request.collectives_address is not None:
        slack_ns = IDLE_NS if compiled else 0  # a script closes its connections at its end
        coordination.set_collectives_address(request.collectives_address, slack_ns)
    # The referee may still start.
    dial_until(lambda: owner.connect(request.referee), "the referee", wait_s)
    agreement = owner.agreement
    is_checked = request.is_checked and agree_on_launches(agreement, owner.given)
    if compiled:
        compilations.keep_compiled(Path(compiled))
    kinds.can_save()
    # Between hosts, where others may listen, and where it isn't announced, JAX refuses them.
    is_announced = is_checked and transfers.announce_transfers(agreement)
    if is_announced and request.collectives_address == LOOPBACK:
        with contextlib.suppress(ImportError, AttributeError, OSError):
            transfers.allow_transfers()
    keep_proxies_away(request.coordinator_address)
    if coordination.coordinate_elsewhere() or request.process_id != 0:
        address = request.coordinator_address
        dial_until(lambda: _dial(address), f"the coordinator at {address}", wait_s)
    jax.distributed.initialize(
        coordinator_address=request.coordinator_address,
        num_processes=request.num_processes,
        process_id=request.process_id,
        local_device_ids=request.local_device_ids,
        # JAX's own detection goes wrong on leaked SLURM_* and MPI variables: all is assigned.
        cluster_detection_method="deactivate",
        initialization_timeout=request.initialization_timeout,
        heartbeat_timeout_seconds=request.heartbeat_timeout_seconds,
        coordinator_bind_address=request.coordinator_bind_address,
    )
    coordination.join_cpu_slices()
    devices = [_device_info(d) for d in jax.local_devices()]
    if is_checked:
        coordination.announce_waits(agreement)
    _limit_blas_threads(request.num_processes)
    if jax.process_index() != request.process_id:
        raise RuntimeError(
            f"JAX numbered this process {jax.process_index()}, and jaxcluster {request.process_id}."
            " A TPU's hosts are numbered by their place in the slice: name them in that order."
        )
    return wire.InitializeReply(devices, is_checked, dict(moved))


def keep_proxies_away(coordinator_address: str) -> None:
    """Have gRPC connect to the coordinator itself where a proxy is set.

    With ``http_proxy`` in the environment gRPC asks the proxy for a tunnel even to 127.0.0.1.
    Then ``initialize`` waits for the tunnel until its time is up.
    """
    if coordinator_address.startswith(UNIX):
        return
    host = coordinator_address.rpartition(":")[0].strip("[]")
    # gRPC reads the lower-case names alone.
    exempt = os.environ.get("no_grpc_proxy") or os.environ.get("no_proxy") or ""  # noqa: SIM112
    if host not in exempt.split(","):
        os.environ["no_grpc_proxy"] = f"{exempt},{host}".lstrip(",")  # noqa: SIM112


def _device_info(device: Any) -> wire.DeviceInfo:
    coords = getattr(device, "coords", None)
    return wire.DeviceInfo(
        device.id,
        device.device_kind,
        device.platform,
        getattr(device, "local_hardware_id", None),
        list(coords) if coords is not None else None,
    )


def _limit_blas_threads(num_processes: int) -> None:
    """Share the cores among the ranks: the fork server starts numpy's BLAS with one thread."""
    if os.environ.get("OPENBLAS_NUM_THREADS") or os.environ.get("OMP_NUM_THREADS"):
        return
    import threadpoolctl

    threadpoolctl.threadpool_limits(max(1, (os.cpu_count() or 1) // num_processes))

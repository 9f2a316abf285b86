"""Checks of a start's options that need no facts of the hosts. Pure."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping, Sequence

from jaxcluster.errors import UsageError
from jaxcluster.options.table import check_platform
from jaxcluster.text import plural
from jaxcluster.wire import ClusterSpec

GPU_PLATFORMS = ("cuda", "rocm")
ALL = 0  # --devices-per-process all
# How JAX's plugin for these GPUs is installed.
INSTALL: Mapping[str, str] = {
    "cuda": 'pip install "jax[cuda12]"',
    "rocm": "pip install jax-rocm7-plugin jax-rocm7-pjrt",
}

# gRPC, and so jax.distributed.initialize, also takes a Unix socket as an address (jax 0.10.2
# and 0.12). The socket's folder decides who may use it.
UNIX = "unix:"

# A start decides these for every process: in the environment they would be ignored silently.
ASSIGNED_ENV: Mapping[str, str] = {
    "JAX_COORDINATOR_ADDRESS": "--coordinator-address",
    "JAX_COORDINATOR_BIND_ADDRESS": "--coordinator-bind-address",
    "JAX_LOCAL_DEVICE_IDS": "--local-device-ids",
    "JAX_NUM_CPU_DEVICES": "--devices-per-process",
    "JAX_NUM_PROCESSES": "-n",
    "JAX_PROCESS_ID": "",
}


def check_spec(spec: ClusterSpec, others: Sequence[str] = ()) -> None:
    """Refuse options that make no sense, or would be ignored, on any devices.

    Args:
      others: the hosts besides the first one, where they are known.

    Raises:
      UsageError: naming the argument of ``spec``, with what to type.
    """
    check_platform(spec.platform)
    n, ids, on_cpu = spec.num_processes, spec.local_device_ids, spec.platform == "cpu"
    start = f"Try: %jaxcluster start -n {n}"
    if spec.devices_per_process == ALL and on_cpu:
        raise UsageError(
            "--devices-per-process all is for GPUs and TPU chips; on CPU a process has as many "
            "devices as you say.",
            f"{start} --devices-per-process 4",
        )
    if ids is not None and len(ids) != n:
        raise UsageError(
            f"local_device_ids has {plural(len(ids), 'list')} for {plural(n, 'rank')}: "
            "give one list per rank.",
            f"Try: jaxcluster.start(num_processes={n}, local_device_ids={[[r] for r in range(n)]})",
        )
    if ids is not None and on_cpu:
        raise UsageError(
            "local_device_ids chooses among GPUs or TPU chips; on CPU each process has devices of "
            "its own.",
            f"{start} --devices-per-process 4   or   --platform cuda",
        )
    for name in ("coordinator_address", "coordinator_bind_address"):
        if (address := getattr(spec, name)) is not None and not _is_address(address):
            raise UsageError(
                f"{name} is {address!r}: write host:port or {UNIX}/PATH, of at most 107 bytes.",
                f"{start} --{name.replace('_', '-')} 127.0.0.1:41234",
            )
        if others and address is not None and is_loopback(address):
            raise UsageError(
                f"{name} is {address!r}: the ranks on {', '.join(others)} can't reach that on the "
                "first host.",
                "Leave it out, or name an address of the first host, with a port.",
            )
    for name, value in spec.env.items():
        if not isinstance(value, str):
            raise UsageError(
                f"env has {name!r}: {value!r}, which is not text.", f"{start} --env A=B"
            )
        if (option := ASSIGNED_ENV.get(name)) is not None:
            raise UsageError(
                f"{name} is assigned by jaxcluster, so --env {name}={value} would do nothing.",
                f"{start} {option} {value}" if option else "Leave it out.",
            )
    if (wanted := platform_in(spec.env)) not in (None, spec.platform):
        raise UsageError(
            f"--env asks for the platform {wanted!r}, and --platform for {spec.platform!r}.",
            f"{start} --platform {spec.platform}",
        )


def platform_in(env: Mapping[str, str]) -> str | None:
    """The platform that JAX_PLATFORMS asks for, the first where it names several; None if none."""
    for name in ("JAX_PLATFORMS", "JAX_PLATFORM_NAME"):
        if first := env.get(name, "").split(",")[0].strip():
            return {"gpu": "cuda"}.get(first, first)
    return None


def _is_address(address: str) -> bool:
    if address.startswith(UNIX):
        path = address.removeprefix(UNIX)
        return path.startswith("/") and len(path.encode()) <= 107
    host, _, port = address.rpartition(":")
    return bool(host) and port.isdecimal() and 1 <= int(port) <= 65535


def is_loopback(address: str) -> bool:
    """Whether a coordinator's address can be reached on its own host alone."""
    if address.startswith(UNIX):
        return True
    host = address.rpartition(":")[0].strip("[]")
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"

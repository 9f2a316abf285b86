"""What an agent says of its host, before anything is imported or started there."""

from __future__ import annotations

import contextlib
import fcntl
import importlib.metadata
import os
import platform
import socket
import struct
import sys
from collections.abc import Iterator, Mapping
from typing import Any

from jaxcluster.host.facts import (
    gpu_platform,
    gpu_plugin_installed,
    host_gpus,
    host_key,
    host_tpu_chips,
)

SIOCGIFADDR = 0x8915  # Linux: the address of a network card

# What must be the same on all hosts, besides Python's own version.
PACKAGES = ("jax", "jaxlib", "ipyparallel", "ipykernel", "pyzmq", "numpy")
# Which of its processes a launcher says that this one is; the first that is set.
NUMBERS = (
    "SLURM_PROCID",
    "PMIX_RANK",
    "OMPI_COMM_WORLD_RANK",
    "PMI_RANK",
    "JOB_COMPLETION_INDEX",
    "TPU_WORKER_ID",
)


def host_report(notebook: str = "", environ: Mapping[str, str] = os.environ) -> dict[str, Any]:
    """This host: its name, address, devices, and the versions of what must be equal everywhere.

    Args:
      notebook: an address on the notebook's side; ``address`` is this host's own on the way there.
    """
    return {
        "host": socket.gethostname(),
        "host_key": host_key(),
        "address": own_address(notebook, environ),
        "number": launcher_number(environ),
        "executable": sys.executable,
        "versions": {
            "python": platform.python_version(),
            # Not imported by name: the package's own module names the notebook's side.
            "jaxcluster": sys.modules["jaxcluster"].__version__,
            **{package: installed_version(package) or "" for package in PACKAGES},
        },
        "gpus": host_gpus(environ),
        "gpu_platform": gpu_platform(),
        "gpu_plugin": gpu_plugin_installed(),
        "tpu_chips": host_tpu_chips(),
    }


def host_room(memory: str = "/dev/shm", info: str = "/proc/meminfo") -> dict[str, Any]:
    """What there is room for on this host now: cores, and free bytes (None: not known)."""
    free: dict[str, int | None] = {"free_nbytes": None, "shm_free_nbytes": None}
    with contextlib.suppress(OSError, ValueError), open(info) as lines:
        kib = dict(line.split(":", 1) for line in lines)["MemAvailable"].split()[0]
        free["free_nbytes"] = int(kib) << 10
    with contextlib.suppress(OSError, KeyError):
        found = os.statvfs(memory)
        free["shm_free_nbytes"] = found.f_bavail * found.f_frsize
    return {"cpus": len(os.sched_getaffinity(0)), **free}


class Doors:
    """Listens for a moment at this host's address, so that others can try the way to it."""

    def __init__(self) -> None:
        self._listener: socket.socket | None = None

    def open(self, address: str) -> int:
        """Listen at ``address``, no longer where it did; returns the port. "": nowhere, 0.

        Raises:
          OSError: that can't be done.
        """
        if self._listener is not None:
            self._listener.close()
            self._listener = None
        if not address:
            return 0
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        self._listener = socket.create_server((address, 0), family=family, backlog=64)
        port: int = self._listener.getsockname()[1]
        return port


def own_address(notebook: str = "", environ: Mapping[str, str] = os.environ) -> str:
    """This host's address on the way to ``notebook``, or on its way out; no packet is sent.

    The host's name is no help: it is 127.0.1.1 on many, and resolves nowhere on others. Where no
    way leads out, it is the address at which ssh was let in, else that of a network card. An
    address of its own cable alone (169.254.0.0/16) comes last: pods with IPv6 have one beside it.
    """
    poor = ""
    for target in filter(None, (notebook, "192.0.2.1", "2001:db8::1")):
        if (found := _address_towards(target)) and not _is_link_local(found):
            return found
        poor = poor or found
    at_ssh = [*environ.get("SSH_CONNECTION", "").split(), "", "", ""][2]
    for found in (at_ssh, *_card_addresses()):
        if not found or found.startswith("127.") or found == "::1":
            continue
        if not _is_link_local(found):
            return found
        poor = poor or found
    return poor or "127.0.0.1"


def _is_link_local(address: str) -> bool:
    return address.startswith("169.254.") or address.lower().startswith("fe80:")


def _address_towards(target: str) -> str:
    family = socket.AF_INET6 if ":" in target else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((target, 9))
            return str(probe.getsockname()[0])
    except OSError:
        return ""


def _card_addresses() -> Iterator[str]:
    """The IPv4 addresses of this host's network cards (Linux)."""
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
        for _, name in socket.if_nameindex():
            with contextlib.suppress(OSError):  # a card without an address
                reply = fcntl.ioctl(asked, SIOCGIFADDR, struct.pack("256s", name.encode()[:15]))
                yield socket.inet_ntoa(reply[20:24])


def launcher_number(environ: Mapping[str, str] = os.environ) -> int | None:
    """Which of the launcher's processes this is, where the launcher says so."""
    for name in NUMBERS:
        if environ.get(name, "").isdecimal():
            return int(environ[name])
    return None


def installed_version(package: str) -> str | None:
    """The version of an installed package from its metadata, or ``None``. Imports nothing."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None

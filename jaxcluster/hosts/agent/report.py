"""An agent's report of its host, before anything is imported or started there."""

from __future__ import annotations

import contextlib
import fcntl
import importlib.metadata
import os
import platform
import shutil
import socket
import struct
import sys
from collections.abc import Iterator, Mapping

from jaxcluster.host.facts import (
    HostFacts,
    gpu_platform,
    gpu_plugin_installed,
    host_gpus,
    host_tpu_chips,
)
from jaxcluster.host.free_space import free_memory
from jaxcluster.supervision.processes import space

SHM = "/dev/shm"
SIOCGIFADDR = 0x8915  # Linux: the address of a network card

# Packages whose versions must be equal on all hosts, besides Python's.
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


def host_report(environ: Mapping[str, str] = os.environ) -> HostFacts:
    """This host."""
    versions = {
        "python": platform.python_version(),
        # Not imported by name: the package's own module names the notebook's side.
        "jaxcluster": sys.modules["jaxcluster"].__version__,
        **{package: installed_version(package) or "" for package in PACKAGES},
    }
    return HostFacts(
        socket.gethostname(),
        space("net"),
        own_address(environ),
        next((int(environ[n]) for n in NUMBERS if environ.get(n, "").isdecimal()), None),
        versions,
        list(host_gpus(environ)),
        gpu_platform(),
        gpu_plugin_installed(),
        host_tpu_chips(),
        len(os.sched_getaffinity(0)),
        free_memory(),
        shutil.disk_usage(SHM).free if os.path.isdir(SHM) else None,
    )


def own_address(environ: Mapping[str, str] = os.environ) -> str:
    """This host's address on its way out; no packet is sent.

    The host's name is no help: it is 127.0.1.1 on many, and resolves nowhere on others. If no way
    leads out, it is the address of the ssh login, else that of a network card. A link-local address
    (169.254.0.0/16) comes last: pods with IPv6 have one beside it.
    """
    at_ssh = environ.get("SSH_CONNECTION", "").split()[2:3]
    found = [*map(address_towards, ("192.0.2.1", "2001:db8::1")), *at_ssh, *_card_addresses()]
    usable = [one for one in found if one and one != "::1" and not one.startswith("127.")]
    own_cable = ("169.254.", "fe80:")
    return min(usable, key=lambda one: one.lower().startswith(own_cable), default="127.0.0.1")


def address_towards(target: str) -> str:
    """This host's address on its way to another one; "" if there is none. No packet is sent."""
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


def installed_version(package: str) -> str | None:
    """The version of an installed package from its metadata, or ``None``. Imports nothing."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None

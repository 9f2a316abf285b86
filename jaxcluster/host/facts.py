"""What a process can tell about its host and devices without importing jax.

Ranks send these facts before they initialize; the notebook uses the same functions to choose a
platform and a number of processes. Importing jax here could seize a GPU or TPU in the notebook, so
devices are read from ``/proc``, ``/dev`` and the environment, and versions from package metadata.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import platform
import re
import socket
from collections.abc import Callable, Mapping
from pathlib import Path

from jaxcluster.host.tpus import tpu_worker
from jaxcluster.wire import EngineFacts

CUDA_PLUGINS = ("jax_cuda12_plugin", "jax_cuda13_plugin")
GOOGLE_PCI_VENDOR = "0x1ae0"

_VISIBLE_GPU = re.compile(r"\d+|(GPU|MIG)-\S+")


def host_gpus(
    environ: Mapping[str, str],
    *,
    proc: Path = Path("/proc/driver/nvidia/gpus"),
    dev: Path = Path("/dev"),
) -> list[str]:
    """The NVIDIA GPUs that a process with this environment may use, as CUDA names them.

    The entries of CUDA_VISIBLE_DEVICES where it is set, up to the first one that names no device,
    as CUDA itself reads it: so ``""``, ``"-1"`` and Slurm's ``"NoDevFiles"`` are not GPUs. Else the
    indices 0 .. k-1 of the driver's k cards; CUDA numbers those that it can open, whatever number
    their ``/dev/nvidia<number>`` carries.
    """
    visible = environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        gpus: list[str] = []
        for entry in map(str.strip, visible.split(",")):
            if not _VISIBLE_GPU.fullmatch(entry):
                break
            gpus.append(entry)
        return gpus
    cards = len(_names(proc)) or len(_names(dev, r"nvidia\d+"))
    return [str(index) for index in range(cards)]


def host_tpu_chips(*, dev: Path = Path("/dev"), pci: Path = Path("/sys/bus/pci/devices")) -> int:
    """How many TPU chips this host has: its ``/dev/accel<number>``, else ``/dev/vfio/<number>``.

    VFIO nodes are made for any device that is passed through to a virtual machine, so they count
    only where the PCI bus carries something of Google's.
    """
    if accel := _names(dev, r"accel\d+"):
        return len(accel)
    groups = _names(dev / "vfio", r"\d+")
    return len(groups) if groups and _has_google_pci_device(pci) else 0


def cuda_plugin_installed(
    find_spec: Callable[[str], object | None] = importlib.util.find_spec,
) -> bool:
    """Whether JAX's CUDA plugin is installed. Looks for top-level names, so nothing is imported."""
    return any(find_spec(name) is not None for name in CUDA_PLUGINS)


def host_key(
    *,
    boot_id: Path = Path("/proc/sys/kernel/random/boot_id"),
    net_namespace: Path = Path("/proc/self/ns/net"),
) -> str:
    """A string that is equal in the processes of one host, and of one container on it.

    The kernel's boot id and the network namespace: host names repeat between containers and
    clones. Where there is no ``/proc`` it is the host name after all.
    """
    try:
        return f"{boot_id.read_text().strip()} {os.readlink(net_namespace)}"
    except OSError:
        return socket.gethostname()


def engine_facts(
    rank: int, address: str = "127.0.0.1", *, environ: Mapping[str, str] | None = None
) -> EngineFacts:
    """What this process knows of itself and its host, as ``plan_ranks`` wants it.

    Args:
      rank: the rank that this process carries.
      address: the address at which the other ranks reach this one.
      environ: the environment that the rank will have; this process's own by default.
    """
    environ = os.environ if environ is None else environ
    chips = host_tpu_chips()
    worker = tpu_worker(chips, environ)
    return EngineFacts(
        rank=rank,
        pid=os.getpid(),
        hostname=socket.gethostname(),
        host_key=host_key(),
        address=address,
        python=platform.python_version(),
        jax=importlib.metadata.version("jax"),
        gpus=host_gpus(environ),
        tpu_chips=chips,
        tpu_worker_id=worker.number if worker is not None else None,
        tpu_hosts=list(worker.hosts) if worker is not None else [],
    )


def _names(folder: Path, pattern: str = r".+") -> list[str]:
    """The names in a folder that match the whole pattern; none where there is no such folder."""
    try:
        return [name for name in os.listdir(folder) if re.fullmatch(pattern, name)]
    except OSError:
        return []


def _has_google_pci_device(pci: Path) -> bool:
    for name in _names(pci):
        try:
            if (pci / name / "vendor").read_text().strip() == GOOGLE_PCI_VENDOR:
                return True
        except OSError:
            continue
    return False

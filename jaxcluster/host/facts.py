"""The facts of a process's host and devices, without importing jax.

jax could seize a GPU or TPU in the notebook, so devices are read from ``/proc``, ``/dev`` and the
environment. Ranks send these facts before they initialize.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import re
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import takewhile
from pathlib import Path

from jaxcluster.host.gpus import gpus_in_use
from jaxcluster.host.tpus import tpu_worker
from jaxcluster.supervision.processes import space
from jaxcluster.wire import EngineFacts

CUDA_PLUGINS = ("jax_cuda12_plugin", "jax_cuda13_plugin")
ROCM_PLUGINS = ("jax_rocm60_plugin", "jax_rocm7_plugin")
GOOGLE_PCI_VENDOR = "0x1ae0"

_VISIBLE_GPU = re.compile(r"\d+|(GPU|MIG)-\S+")
ROOT = Path("/")  # of the file system that is looked at


@dataclass(frozen=True)
class HostFacts:
    """A host, the versions of what must be equal everywhere, and what there is room for now.

    ``address`` is its own on the way to the notebook, ``number`` its launcher's for this process.
    ``cpus`` are cores; free bytes are None where they are not known.
    """

    host: str = ""
    host_key: str = ""
    address: str = ""
    number: int | None = None
    versions: dict[str, str] = field(default_factory=dict)
    gpus: list[str] = field(default_factory=list)
    gpu_platform: str = ""
    gpu_plugin: bool = False
    tpu_chips: int = 0
    cpus: int = 0
    free_nbytes: int | None = None
    shm_free_nbytes: int | None = None


@dataclass(frozen=True)
class AgentFacts(HostFacts):
    """An agent's line: where it listens, its public key, its process, its two folders."""

    endpoint: str = ""
    key: str = ""
    token: str = ""
    folder: str = ""
    memory: str = ""


def host_gpus(environ: Mapping[str, str]) -> list[str]:
    """The GPUs that a process with this environment may use, as CUDA, or AMD's HIP, names them.

    If CUDA_VISIBLE_DEVICES is set, its entries as CUDA reads them: ``""``, ``"-1"`` and
    Slurm's ``"NoDevFiles"`` are not GPUs. Else 0 .. k-1 for the k cards in ``/dev``, or those that
    the driver lists. On a host of AMD's: HIP_VISIBLE_DEVICES, which counts in what
    ROCR_VISIBLE_DEVICES (Slurm's) leaves, and which HIP also reads as CUDA_VISIBLE_DEVICES.
    """
    cards = _nvidia_cards()
    amd = 0 if cards else _amd_cards()
    names = ("HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES") if amd else ("CUDA_VISIBLE_DEVICES",)
    for name in names:
        if (visible := environ.get(name)) is not None:
            return _listed(visible)
    if amd and (left := environ.get("ROCR_VISIBLE_DEVICES")) is not None:
        amd = len(_listed(left))
    return [str(index) for index in range(cards or amd)]


def _listed(visible: str) -> list[str]:
    """The entries of such a variable up to the first one that names no device."""
    return [*takewhile(_VISIBLE_GPU.fullmatch, map(str.strip, visible.split(",")))]


def gpu_platform() -> str:
    """JAX's platform for this host's GPUs: "rocm" where they are AMD's alone, else "cuda"."""
    return "rocm" if not _nvidia_cards() and _amd_cards() else "cuda"


def _nvidia_cards() -> int:
    cards = [*ROOT.glob("dev/nvidia[0-9]*")]
    # In a container the driver's list is its node's, of which it may have no card.
    is_contained = "KUBERNETES_SERVICE_HOST" in os.environ or any(
        (ROOT / mark).exists() for mark in (".dockerenv", "run/.containerenv")
    )
    return len(cards if cards or is_contained else [*ROOT.glob("proc/driver/nvidia/gpus/*")])


def _amd_cards() -> int:
    """AMD's GPUs: its driver's nodes with vector units (as ``jax/_src/hardware_utils.py``)."""
    texts = map(_text, ROOT.glob("sys/class/kfd/kfd/topology/nodes/*/properties"))
    return sum(re.search(r"^simd_count 0*[1-9]", text, re.M) is not None for text in texts)


def host_tpu_chips() -> int:
    """How many TPU chips this host has: its ``/dev/accel<number>``, else ``/dev/vfio/<number>``.

    Any device that is passed through to a virtual machine has VFIO nodes. So they count only if the
    PCI bus has a device of Google's.
    """
    if accel := [*ROOT.glob("dev/accel[0-9]*")]:
        return len(accel)
    vendors = map(_text, ROOT.glob("sys/bus/pci/devices/*/vendor"))
    is_google = any(vendor.strip() == GOOGLE_PCI_VENDOR for vendor in vendors)
    return len([*ROOT.glob("dev/vfio/[0-9]*")]) if is_google else 0


def gpu_plugin_installed() -> bool:
    """Whether JAX's plugin for this host's GPUs is installed, or for NVIDIA's if there are none."""
    names = ROCM_PLUGINS if gpu_platform() == "rocm" else CUDA_PLUGINS
    return any(importlib.util.find_spec(name) is not None for name in names)


def engine_facts(
    rank: int, host: str = "", *, environ: Mapping[str, str] | None = None
) -> EngineFacts:
    """The facts of this process and its host, for ``plan_ranks``.

    ``host`` is what the user's launcher calls this host.
    """
    environ = os.environ if environ is None else environ
    chips = host_tpu_chips()
    worker = tpu_worker(chips, environ)
    threads = environ.get("NPROC", "")  # as XLA counts cores
    return EngineFacts(
        rank=rank,
        pid=os.getpid(),
        hostname=host or socket.gethostname(),
        host_key=space("net"),  # equal in the processes of one host, or of one container on it
        jax=importlib.metadata.version("jax"),
        gpus=(gpus := host_gpus(environ)),
        gpus_in_use=gpus_in_use(gpus),
        tpu_chips=chips,
        tpu_worker_id=worker.number if worker is not None else None,
        tpu_hosts=list(worker.hosts) if worker is not None else [],
        cores=int(threads) if threads.isdecimal() else len(os.sched_getaffinity(0)),
    )


def _text(path: Path) -> str:
    """The text of a file; "" if it can't be read."""
    try:
        return path.read_text()
    except (OSError, UnicodeDecodeError):
        return ""

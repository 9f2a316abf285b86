"""What NVIDIA's management library (NVML) says of this host's GPUs, where ``nvidia-ml-py`` is.

NVML opens no CUDA context, takes no memory on a GPU, and answers in about a millisecond.
"""

from __future__ import annotations

import importlib
import threading
from collections.abc import Sequence
from typing import Any

from jaxcluster.host.procfs import named
from jaxcluster.text import format_nbytes
from jaxcluster.wire import GpuUse

_lock = threading.Lock()
_nvml: list[Any] = []  # the library once it is open, or None where it can't be


def gpu_uses(visible: Sequence[str]) -> list[GpuUse]:
    """What is known of these GPUs; [] where there is no NVML.

    Args:
      visible: as CUDA_VISIBLE_DEVICES has them: indices, or ``GPU-...`` and ``MIG-...``. NVML
        counts by the place on the bus, and CUDA does with CUDA_DEVICE_ORDER=PCI_BUS_ID, or where
        all cards are of one kind.
    """
    if not visible or (nvml := _library()) is None:
        return []
    return [use for one in visible if (use := _use(nvml, one)) is not None]


def gpus_in_use(visible: Sequence[str]) -> list[str]:
    """A sentence on each of these GPUs that other processes already use.

    To be asked before this process, or a rank beside it, has touched a GPU.
    """
    if not visible or (nvml := _library()) is None:
        return []
    said = []
    for name in visible:
        if (use := _use(nvml, name)) is None:
            continue
        pids = _pids(nvml, name)
        if pids or use.used_nbytes > use.total_nbytes / 4:
            whose = ", ".join(named(pid, 60) for pid in pids[:4])
            said.append(
                f"GPU {name} has {format_nbytes(use.used_nbytes)} of its "
                f"{format_nbytes(use.total_nbytes)} in use by {whose or 'an unseen process'}"
            )
    return said


def _pids(nvml: Any, name: str) -> list[int]:
    """The processes that compute on a card; as the host counts them, in a container too."""
    try:
        running = nvml.nvmlDeviceGetComputeRunningProcesses(_card(nvml, name))
    except Exception:  # NVMLError: this driver does not tell
        return []
    return sorted({int(one.pid) for one in running})


def _library() -> Any:
    with _lock:
        if not _nvml:
            try:
                nvml = importlib.import_module("pynvml")
                nvml.nvmlInit()
                _nvml.append(nvml)
            except Exception:  # not installed, or without a driver: each has errors of its own
                _nvml.append(None)
        return _nvml[0]


def _card(nvml: Any, name: str) -> Any:
    if name.isdecimal():
        return nvml.nvmlDeviceGetHandleByIndex(int(name))
    try:
        return nvml.nvmlDeviceGetHandleByUUID(name)
    except Exception:  # NVMLError: CUDA takes the beginning of a name, and NVML does not
        every = map(nvml.nvmlDeviceGetHandleByIndex, range(nvml.nvmlDeviceGetCount()))
        (card,) = [card for card in every if str(nvml.nvmlDeviceGetUUID(card)).startswith(name)]
        return card


def _use(nvml: Any, name: str) -> GpuUse | None:
    try:
        card = _card(nvml, name)
        memory = nvml.nvmlDeviceGetMemoryInfo(card)
    except Exception:  # NVMLError: it has fallen off the bus, or is not ours to see
        return None
    try:
        percent: float | None = float(nvml.nvmlDeviceGetUtilizationRates(card).gpu)
    except Exception:  # a part of a card (MIG) has none
        percent = None
    return GpuUse(name, percent, int(memory.used), int(memory.total))

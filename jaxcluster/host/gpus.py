"""What NVIDIA's management library (NVML) says of this host's GPUs, where ``nvidia-ml-py`` is.

NVML opens no CUDA context, takes no memory on a GPU, and answers in about a millisecond.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Sequence
from typing import Any

from jaxcluster.host.procfs import named
from jaxcluster.text import format_nbytes
from jaxcluster.wire import GpuUse


def gpu_uses(visible: Sequence[str]) -> list[GpuUse]:
    """What is known of these GPUs (as CUDA_VISIBLE_DEVICES has them); [] where there is no NVML.

    NVML counts by the place on the bus. CUDA does with CUDA_DEVICE_ORDER=PCI_BUS_ID, or where all
    cards are of one kind.
    """
    return [use for name in visible if (use := _use(name)) is not None]


def gpus_in_use(visible: Sequence[str]) -> list[str]:
    """A sentence on each of these GPUs that other processes already use.

    To be asked before this process, or a rank beside it, has touched a GPU.
    """
    said = []
    for use in gpu_uses(visible):
        try:
            running = _library().nvmlDeviceGetComputeRunningProcesses(_card(use.name))
        except Exception:  # NVMLError: this driver does not tell
            running = []
        pids = sorted({int(one.pid) for one in running})
        if pids or use.used_nbytes > use.total_nbytes / 4:
            whose = ", ".join(named(pid, 60) for pid in pids[:4])
            said.append(
                f"GPU {use.name} has {format_nbytes(use.used_nbytes)} of its "
                f"{format_nbytes(use.total_nbytes)} in use by {whose or 'an unseen process'}"
            )
    return said


@functools.cache
def _library() -> Any:
    try:
        nvml = importlib.import_module("pynvml")
        nvml.nvmlInit()
    except Exception:  # not installed, or without a driver: each has errors of its own
        return None
    return nvml


def _card(name: str) -> Any:
    nvml = _library()
    by_index, by_uuid = nvml.nvmlDeviceGetHandleByIndex, nvml.nvmlDeviceGetHandleByUUID
    return by_index(int(name)) if name.isdecimal() else by_uuid(name)


def _use(name: str) -> GpuUse | None:
    if (nvml := _library()) is None:
        return None
    try:
        card = _card(name)
        memory = nvml.nvmlDeviceGetMemoryInfo(card)
    except Exception:  # NVMLError: it has fallen off the bus, or is not ours to see
        return None
    try:
        percent: float | None = float(nvml.nvmlDeviceGetUtilizationRates(card).gpu)
    except Exception:  # a part of a card (MIG) has none
        percent = None
    return GpuUse(name, percent, int(memory.used), int(memory.total))

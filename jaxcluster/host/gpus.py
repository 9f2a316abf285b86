"""This host's GPUs, as NVIDIA's management library (NVML) lists them, if ``nvidia-ml-py`` is here.

NVML opens no CUDA context, takes no memory on a GPU, and answers in about a millisecond.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
from collections.abc import Sequence
from typing import Any

from jaxcluster.text import format_nbytes
from jaxcluster.wire import GpuUse


def gpu_uses(visible: Sequence[str]) -> list[GpuUse]:
    """The use of these GPUs (named as in CUDA_VISIBLE_DEVICES); [] if there is no NVML.

    NVML counts by the place on the bus. CUDA does with CUDA_DEVICE_ORDER=PCI_BUS_ID, or where all
    cards are of one kind.
    """
    found = []
    for name in visible:
        percent = None
        with contextlib.suppress(Exception):  # no NVML; or off the bus, or not ours to see
            memory = _library().nvmlDeviceGetMemoryInfo(_card(name))
            with contextlib.suppress(Exception):  # a part of a card (MIG) has none
                percent = float(_library().nvmlDeviceGetUtilizationRates(_card(name)).gpu)
            found.append(GpuUse(name, percent, int(memory.used), int(memory.total)))
    return found


def gpus_in_use(visible: Sequence[str]) -> list[str]:
    """A sentence on each of these GPUs that other processes already use.

    To be asked before this process, or a rank beside it, has touched a GPU.
    """
    said = []
    for use in gpu_uses(visible):
        running = []
        with contextlib.suppress(Exception):  # NVMLError: this driver does not tell
            running = _library().nvmlDeviceGetComputeRunningProcesses(_card(use.name))
        pids = sorted({int(one.pid) for one in running})
        if pids or use.used_nbytes > use.total_nbytes / 4:
            whose = ", ".join(f"process {pid}" for pid in pids[:4])
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
    except Exception:  # not installed, or without a driver: each raises its own errors
        return None
    return nvml


def _card(name: str) -> Any:
    nvml = _library()
    by_index, by_uuid = nvml.nvmlDeviceGetHandleByIndex, nvml.nvmlDeviceGetHandleByUUID
    return by_index(int(name)) if name.isdecimal() else by_uuid(name)

"""What NVIDIA's management library (NVML) says of this host's GPUs, where ``nvidia-ml-py`` is.

NVML opens no CUDA context, takes no memory on a GPU, and answers in about a millisecond.
"""

from __future__ import annotations

import importlib
import threading
from collections.abc import Sequence
from typing import Any

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


def _use(nvml: Any, name: str) -> GpuUse | None:
    try:
        if name.isdecimal():
            card = nvml.nvmlDeviceGetHandleByIndex(int(name))
        else:
            card = nvml.nvmlDeviceGetHandleByUUID(name)
        memory = nvml.nvmlDeviceGetMemoryInfo(card)
    except Exception:  # NVMLError: it has fallen off the bus, or is not ours to see
        return None
    try:
        percent: float | None = float(nvml.nvmlDeviceGetUtilizationRates(card).gpu)
    except Exception:  # a part of a card (MIG) has none
        percent = None
    return GpuUse(name, percent, int(memory.used), int(memory.total))

"""What this rank uses: time on processors, memory, and its GPUs."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence

from jaxcluster import wire
from jaxcluster.host.facts import host_gpus
from jaxcluster.host.gpus import gpu_uses


def rss_nbytes() -> int:
    """This process's memory; 0 where that can't be told."""
    try:
        with open("/proc/self/statm") as statm:
            return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0


def resources(rank: int, gpus: Sequence[str]) -> wire.RankResources:
    """What the process has used so far, and uses now. Some 20 us, with GPUs about a millisecond.

    Args:
      gpus: those that are the rank's, as CUDA_VISIBLE_DEVICES has them.
    """
    return wire.RankResources(
        rank, time.monotonic(), time.process_time(), rss_nbytes(), gpu_uses(gpus)
    )


def own_gpus(devices: Sequence[wire.DeviceInfo]) -> list[str]:
    """The GPUs behind JAX's local devices, as CUDA_VISIBLE_DEVICES has them.

    ``local_hardware_id`` counts the devices that the process may see.
    """
    visible = host_gpus(os.environ)
    ids = [d.local_hardware_id for d in devices if d.platform in ("cuda", "gpu")]
    return [visible[id] for id in ids if id is not None and id < len(visible)]

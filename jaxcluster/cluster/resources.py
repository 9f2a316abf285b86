"""What the ranks use: processors, memory, GPUs. Asked now and then, never waited for."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass

from jaxcluster import wire
from jaxcluster.wire.link import Link, replies
from jaxcluster.wire.ops.status import Resources

EVERY_S = 2.0  # between two samples


@dataclass(frozen=True)
class Sample:
    """What one rank used at one time.

    Attributes:
      cpu: percent of one processor since the sample before; None in the first one.
      rss_nbytes: the process's memory.
      gpu: percent of its GPUs' time that they computed, their mean; None where that is not known.
      gpu_used_nbytes, gpu_total_nbytes: these GPUs' memory, of all processes on them.
    """

    cpu: float | None
    rss_nbytes: int
    gpu: float | None = None
    gpu_used_nbytes: int = 0
    gpu_total_nbytes: int = 0


class Meter:
    """Reads the ranks' resources through one link.

    Attributes:
      latest: the last sample of each rank; another mapping as soon as one of them is new.
      due: when ``keep_up`` measures next, by ``time.monotonic``.
    """

    def __init__(self, link: Link) -> None:
        self.latest: Mapping[int, Sample] = {}
        self.due = 0.0
        self._link = link
        self._lock = threading.Lock()
        self._before: dict[int, wire.RankResources] = {}

    def keep_up(self, timeout_s: float) -> None:
        """Measure if that is due: whoever shows it calls this, and all get the same samples.

        Any thread.
        """
        with self._lock:
            now = time.monotonic()
            if now < self.due:
                return
            # A share of a processor takes two readings: the second comes soon.
            self.due = now + (EVERY_S if self.latest else EVERY_S / 4)
            self.look(timeout_s)

    def look(self, timeout_s: float) -> dict[int, Sample]:
        """The samples of the ranks that answer in time, by rank."""
        told = replies(self._link.gather(self._link.ranks, Resources(), timeout_s=timeout_s))
        found = {rank: sample_of(self._before.get(rank), now) for rank, now in told.items()}
        self._before |= told
        if found:
            self.latest = {**self.latest, **found}
        return found


def sample_of(before: wire.RankResources | None, now: wire.RankResources) -> Sample:
    """One sample, by a rank's present readings and those before."""
    cpu = None
    if before is not None and now.at_s > before.at_s:
        cpu = 100.0 * max(0.0, now.cpu_s - before.cpu_s) / (now.at_s - before.at_s)
    percents = [gpu.percent for gpu in now.gpus if gpu.percent is not None]
    return Sample(
        cpu,
        now.rss_nbytes,
        sum(percents) / len(percents) if percents else None,
        sum(gpu.used_nbytes for gpu in now.gpus),
        sum(gpu.total_nbytes for gpu in now.gpus),
    )

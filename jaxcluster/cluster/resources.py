"""What the ranks use: processors, memory, GPUs. Asked now and then, never waited for."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass

from jaxcluster import wire
from jaxcluster.wire.link import Link, Sink
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
      link: of the ranks.
      latest: the last sample of each rank; another mapping as soon as one of them is new.
      due: when ``keep_up`` measures next, by ``time.monotonic``.
    """

    def __init__(self, link: Link) -> None:
        self.link = link
        self.latest: Mapping[int, Sample] = {}
        self.due = 0.0
        self._lock = threading.Lock()
        self._before: dict[int, wire.RankResources] = {}
        self._sink = Sink()
        self._asked: list[str] = []

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
        """Ask all ranks; returns the samples that have come since the last look, by rank.

        An answer that takes longer than ``timeout_s`` is among those of the next look.
        """
        found = self._take(0.0)
        self.link.forget(self._asked)
        ranks = list(self.link.ranks)
        self._asked = self.link.request_each(dict.fromkeys(ranks, Resources()), sink=self._sink)
        found.update(self._take(timeout_s, len(ranks)))
        if found:
            self.latest = {**self.latest, **found}
        return found

    def _take(self, timeout_s: float, count: int | None = None) -> dict[int, Sample]:
        """What has come; waits until that is ``count`` answers, or ``timeout_s`` have passed."""
        found: dict[int, Sample] = {}
        until = time.monotonic() + timeout_s
        heard = 0
        while count is None or heard < count:
            try:
                event = self._sink.get(timeout=max(0.0, until - time.monotonic()))
            except queue.Empty:
                break
            heard += 1
            if event.op == "reply":
                found[event.rank] = self._sample(event.body)
        return found

    def _sample(self, now: wire.RankResources) -> Sample:
        before = self._before.get(now.rank)
        self._before[now.rank] = now
        return sample_of(before, now)


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

"""How much memory is kept alive by values that a user's variables do not reach any more."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from jaxcluster.engine import object_graph
from jaxcluster.engine.arrays import is_array
from jaxcluster.engine.shards import Buffers

SHARE = 4  # by default at most a quarter of a device's memory may be held
_PAGE_NBYTES = os.sysconf("SC_PAGE_SIZE")
_CGROUP = Path("/sys/fs/cgroup/memory.max")
_OWN = re.compile(rb"^(?:RssAnon|RssShmem|VmSwap):\s*(\d+) kB", re.MULTILINE)


class Memory:
    """The memory that this rank may hold: a column for each of its devices, and one for the host.

    On CPU the host's memory is shared out: to its processes, and each one's to its devices.

    Attributes:
      limits: bytes of each column that may be held, by default.
    """

    def __init__(self) -> None:
        import jax

        self.devices = jax.local_devices()
        self.positions = {device.id: column for column, device in enumerate(self.devices)}
        share = host_nbytes() // jax.process_count()
        totals = [_stat(d, "bytes_limit") or share // len(self.devices) for d in self.devices]
        self.limits = [nbytes // SHARE for nbytes in [*totals, share]]
        self._measured = [
            column for column, d in enumerate(self.devices) if _stat(d, "bytes_limit")
        ]
        self._status = _open("/proc/self/status")
        # Without a swap all that it has is in memory, and that is told in a fifth of the time.
        self._statm = -1 if _may_swap() else _open("/proc/self/statm")
        self._on_host = [c for c in range(len(self.limits)) if c not in self._measured]

    def limit(self, column: int, most: int | None) -> int:
        return self.limits[column] if most is None else most

    def _own(self) -> int:
        """The bytes of this process that no file has: in memory, shared or swapped out.

        What is mapped of files, JAX's libraries above all, comes and goes as the kernel likes.
        """
        if self._status < 0:
            return 1 << 62  # unknown: then the arrays themselves are looked at
        found = _OWN.findall(os.pread(self._status, 8192, 0))
        return sum(map(int, found)) << 10 if found else 1 << 62

    def _at_most(self) -> int:
        """No less than ``_own``: all of this process that is in memory, what is mapped too."""
        if self._statm < 0:
            return 1 << 62
        found = os.pread(self._statm, 256, 0).split()
        return int(found[1]) * _PAGE_NBYTES if len(found) > 1 else 1 << 62

    def may_exceed(self, most: int | None) -> bool:
        """Whether all that this process has is more than may be held. Takes microseconds."""
        on_host = min(self.limit(c, most) for c in self._on_host)
        return (self._at_most() > on_host and self._own() > on_host) or any(
            (_stat(self.devices[column], "bytes_in_use") or 0) > self.limit(column, most)
            for column in self._measured
        )

    def held(
        self, old: Iterable[Any], alive: Iterable[Any], copies: Mapping[int, Any], most: int | None
    ) -> list[int]:
        """Bytes in each column that ``old`` reaches and ``alive`` does not; each buffer once.

        Where ``old`` reaches no more than may be held, that: ``alive`` is not looked through then.

        Args:
          copies: see ``object_graph.arrays_within``; for ``old`` alone.
          most: what may be held.

        Raises:
          TimeoutError: there is more than can be looked through.
        """
        old = list(old)
        columns = self._nbytes(
            object_graph.arrays_within(old, copies), Buffers(self.positions, set()), {}
        )
        if all(n <= self.limit(column, most) for column, n in enumerate(columns)):
            return columns
        seen: dict[int, Any] = {}
        buffers, hosts = Buffers(self.positions, set()), dict[int, int]()
        self._nbytes(object_graph.arrays_within(alive, {}, seen), buffers, hosts)
        return self._nbytes(object_graph.arrays_within(old, copies, seen), buffers, hosts)

    def _nbytes(self, arrays: Iterable[Any], buffers: Buffers, hosts: dict[int, int]) -> list[int]:
        columns = [0] * len(self.limits)
        for array in arrays:
            for column, nbytes in enumerate(self._take(buffers, hosts, array)):
                columns[column] += nbytes
        return columns

    def _take(self, buffers: Buffers, hosts: dict[int, int], array: Any) -> list[int]:
        if is_array(array):
            return [*buffers.take(array), 0]
        root = array
        while isinstance(root.base, np.ndarray):
            root = root.base
        address = root.__array_interface__["data"][0]
        known = hosts.get(address, 0)
        hosts[address] = max(known, root.nbytes)
        return [0] * len(self.positions) + [hosts[address] - known]


def _open(path: str) -> int:
    try:
        return os.open(path, os.O_RDONLY)
    except OSError:
        return -1


def _may_swap() -> bool:
    """Whether what a process has may be elsewhere than in memory."""
    try:
        return len(Path("/proc/swaps").read_text().splitlines()) != 1
    except OSError:
        return True


def _stat(device: Any, name: str) -> int | None:
    found = (device.memory_stats() or {}).get(name)
    return None if found is None else int(found)


def host_nbytes() -> int:
    """The memory of this machine, or of the container that this process is in."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    try:
        return min(total, int(_CGROUP.read_text()))
    except (OSError, ValueError):  # "max"
        return total


def format_nbytes(nbytes: float) -> str:
    """``1.5 GiB``."""
    for unit in ("bytes", "KiB", "MiB"):
        if nbytes < 1000:
            return f"{nbytes:.3g} {unit}"
        nbytes /= 1024
    return f"{nbytes:.3g} GiB"

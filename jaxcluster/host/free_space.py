"""How much may be written: what file systems have free, and memory."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

MEMINFO = Path("/proc/meminfo")
CGROUP = Path("/sys/fs/cgroup")  # of a container: the group that its limit belongs to
SPARE = 8  # an eighth of the memory that is available is left to the others
SPARE_NBYTES = 64 << 20


def free_nbytes(path: str | Path) -> int:
    """What this user may still write to the file system of ``path``.

    Raises:
      OSError: there is no such path.
    """
    found = os.statvfs(path)
    return found.f_bavail * found.f_frsize


def has_spare(path: str | Path, nbytes: int) -> bool:
    """Whether so much may be written there, and others keep an eighth of it, or 64 MiB, free.

    Raises:
      OSError: there is no such path.
    """
    found = os.statvfs(path)
    kept = min(found.f_blocks * found.f_frsize // SPARE, SPARE_NBYTES)
    return found.f_bavail * found.f_frsize - nbytes >= kept


def free_memory(info: Path = MEMINFO, cgroup: Path = CGROUP) -> int | None:
    """The memory that is available here, or left to this container; None where nobody says."""
    found = None
    with contextlib.suppress(OSError, ValueError, KeyError):
        kib = dict(line.split(":", 1) for line in info.read_text().splitlines())["MemAvailable"]
        found = int(kib.split()[0]) << 10
    with contextlib.suppress(OSError, ValueError):  # "max": no limit
        left = int((cgroup / "memory.max").read_text())
        left -= int((cgroup / "memory.current").read_text())
        with contextlib.suppress(OSError, ValueError, KeyError):  # files that it has merely read
            stat = (cgroup / "memory.stat").read_text().splitlines()
            left += int(dict(line.split() for line in stat)["inactive_file"])
        found = max(0, left if found is None else min(found, left))
    return found


def memory_room(path: str | Path, info: Path = MEMINFO, cgroup: Path = CGROUP) -> int:
    """What may be written to a file system in memory: a full memory has processes killed.

    Raises:
      OSError: there is no such path.
    """
    free, memory = free_nbytes(path), free_memory(info, cgroup)
    return free if memory is None else min(free, memory - memory // SPARE)

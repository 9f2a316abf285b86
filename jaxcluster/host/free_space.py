"""How much may be written: what file systems have free, and memory."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
from pathlib import Path

MEMINFO = Path("/proc/meminfo")
CGROUP = Path("/sys/fs/cgroup")  # of a container: the group that its limit belongs to
SPARE = 8  # an eighth of the memory that is available is left to the others
SPARE_NBYTES = 64 << 20
LEFT_NBYTES = 16 << 20  # that a value leaves to others


def has_spare(file: int, nbytes: int) -> bool:
    """Whether so much may be written to a file, and others keep an eighth, or 64 MiB, free."""
    found = os.statvfs(file)
    free, total = found.f_bavail * found.f_frsize, found.f_blocks * found.f_frsize
    return free - nbytes >= min(total // SPARE, SPARE_NBYTES)


def free_memory(info: Path = MEMINFO, cgroup: Path = CGROUP) -> int | None:
    """The memory that is available here, or left to this container; None where nobody says."""

    def number(path: Path, pattern: str = r"^(\d+)$") -> int | None:
        with contextlib.suppress(OSError):
            found = re.search(pattern, path.read_text(), re.MULTILINE)
            return int(found[1]) if found else None
        return None

    kib = number(info, r"^MemAvailable: +(\d+)")
    most, used = number(cgroup / "memory.max"), number(cgroup / "memory.current")
    left = [kib << 10] if kib is not None else []
    if most is not None and used is not None:  # without the files that it has merely read
        left.append(most - used + (number(cgroup / "memory.stat", r"^inactive_file (\d+)") or 0))
    return max(0, min(left)) if left else None


def take_memory(descriptor: int, nbytes: int) -> bool:
    """Take the pages of a file in memory; whether they could be had.

    If a mapped page can't be had at its first use, the kernel ends the process (SIGBUS).
    """
    free = free_memory()
    if free is not None and free <= nbytes + LEFT_NBYTES:
        return False
    try:
        os.posix_fallocate(descriptor, 0, nbytes)
    except OSError:
        return False
    return True


def memory_room(path: str | Path, info: Path = MEMINFO, cgroup: Path = CGROUP) -> int:
    """The bytes that may go to a file system in memory: a full memory gets processes killed."""
    free, memory = shutil.disk_usage(path).free, free_memory(info, cgroup)
    return free if memory is None else min(free, memory - memory // SPARE)

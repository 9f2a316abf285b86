"""Values on their way between a notebook and its ranks: files in shared memory.

Each has its notebook's process in its name. One that was killed in a transfer leaves its file, of
an array's size, behind: an agent that it was connected to removes it, or else the next start
(standard library only).
"""

from __future__ import annotations

import contextlib
import glob
import os
import time

from jaxcluster.supervision.processes import is_alive, process_token

FOLDER = "/dev/shm"
OLD_S = 60.0  # by then all ranks have opened it


def prefix(pid: int) -> str:
    """What the names of a process's files begin with."""
    return f"jaxcluster-{pid}-"


def files_of(token: str) -> list[str]:
    """Those of a process (``process_token``)."""
    return glob.glob(f"{FOLDER}/{prefix(int(token.partition(':')[0]))}*")


def remove_of(token: str) -> bool:
    """Remove those of a process once it has ended; returns whether it has."""
    if is_alive(token):
        return False
    for path in files_of(token):
        with contextlib.suppress(OSError):
            os.unlink(path)
    return True


def remove_old() -> None:
    """Remove this user's of all processes that have ended, as far as that can be seen from here."""
    for path in glob.glob(f"{FOLDER}/jaxcluster-[0-9]*-*"):
        pid = os.path.basename(path).split("-")[1]
        with contextlib.suppress(OSError):
            found = os.lstat(path)
            is_old = found.st_mtime < time.time() - OLD_S and found.st_uid == os.getuid()
            if is_old and pid.isdecimal() and not is_alive(process_token(int(pid))):
                os.unlink(path)

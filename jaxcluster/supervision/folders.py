"""The files by which a process is found: whether they are there still, and locks on them."""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Iterable


def is_still(path: str, file: os.stat_result) -> bool:
    """Whether ``path`` names this file or folder still. One that can't be looked at does."""
    try:
        return os.path.samestat(os.stat(path), file)
    except FileNotFoundError:
        return False
    except OSError:  # a file system that does not answer just now
        return True


def touch(paths: Iterable[str]) -> None:
    """Keep files and folders from those who clear /tmp of what is days old."""
    for path in paths:
        with contextlib.suppress(OSError):
            os.utime(path, follow_symlinks=False)


def lock(file: int, most_s: float) -> bool:
    """Lock a file for this process alone; returns whether nobody else had it by then.

    On a file system without locks nobody has.
    """
    deadline = time.monotonic() + most_s
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline:
                return False
            time.sleep(0.002)
            continue
        except OSError:
            pass
        return True

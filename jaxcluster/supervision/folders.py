"""The files by which a process is found: whether they are there still, and locks on them."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import time
from collections.abc import Iterable


class Ways:
    """Files and folders without which nobody finds the way to a process.

    They are open: no other file gets the identity of one of these.
    """

    def __init__(self, paths: Iterable[str] = ()) -> None:
        self._found = dict.fromkeys(paths, -1)
        self._missed = 0
        for path in self._found:
            with contextlib.suppress(OSError):  # it has gone already
                self._found[path] = os.open(path, os.O_PATH | os.O_CLOEXEC)

    def are_lost(self, *missing: bool) -> bool:
        """Whether one of them, or of ``missing``, is gone at the second look: it may change."""
        is_there = all(fd >= 0 and is_still(path, fd) for path, fd in self._found.items())
        self._missed = self._missed + 1 if any(missing) or not is_there else 0
        return self._missed > 1

    def close(self) -> None:
        for fd in self._found.values():
            if fd >= 0:
                os.close(fd)


def is_still(path: str, file: int) -> bool:
    """Whether ``path`` names this open file or folder still. One that can't be looked at does."""
    try:
        return os.path.samestat(os.stat(path), os.fstat(file))
    except FileNotFoundError:
        return False
    except OSError:  # a file system that does not answer just now
        return True


def keep_young(paths: Iterable[str]) -> None:
    """Keep files and folders from services that remove old files from /tmp."""
    for top in paths:
        inside = [f"{path}/{name}" for path, _, files in os.walk(top) for name in ("", *files)]
        for path in inside or [top]:
            with contextlib.suppress(OSError):
                os.utime(path, follow_symlinks=False)


def remove(paths: Iterable[str]) -> None:
    """Remove those of these folders, files and sockets that are there."""
    for path in paths:
        shutil.rmtree(path, ignore_errors=True)
        with contextlib.suppress(OSError):
            os.unlink(path)


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

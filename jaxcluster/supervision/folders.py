"""The files by which a process is found, and the folders that go with it."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import time
from collections.abc import Iterable

LOCK_S = 2.0  # for a name that is just changing hands


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


def remove(path: str, folder: int) -> None:
    """Remove a folder, if it is still the one that was opened: another start may have its name.

    No name of a cluster's changes hands meanwhile (``claims``), unless that takes ``LOCK_S``.
    """
    parent = os.path.dirname(path)
    away = f"{parent}/.dead-guard-{os.getpid()}-{folder}"
    with contextlib.ExitStack() as stack, contextlib.suppress(OSError):
        with contextlib.suppress(OSError):  # no folder of clusters'
            names = os.open(f"{parent}/.lock", os.O_RDWR)
            stack.callback(os.close, names)
            lock(names, LOCK_S)
        if os.path.samestat(os.stat(path), os.fstat(folder)):
            os.rename(path, away)
    deadline = time.monotonic() + LOCK_S
    while os.path.isdir(away) and time.monotonic() < deadline:  # a job may write its last there
        shutil.rmtree(away, ignore_errors=True)


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

"""Room to save in a process that may open no more files, or write no larger ones.

A cell that leaves files open comes to its limit, and then nothing can be opened any more: neither
by the next cells nor to save the variables, with which new processes would do. So a few descriptors
are held from the beginning, and limits that are lower than they must be are lifted for a moment.
"""

from __future__ import annotations

import contextlib
import os
import resource
from collections.abc import Iterator

SPARE = 8
LIMITS = (resource.RLIMIT_NOFILE, resource.RLIMIT_FSIZE)

_held: list[int] = []


def hold() -> None:
    """Hold some descriptors, as far as there are any."""
    with contextlib.suppress(OSError):
        while len(_held) < SPARE:
            _held.append(os.open(os.devnull, os.O_RDONLY))


@contextlib.contextmanager
def released() -> Iterator[None]:
    """Meanwhile there are the descriptors that are held, and all that the limits allow."""
    null = os.stat(os.devnull).st_rdev
    while _held:
        descriptor = _held.pop()
        with contextlib.suppress(OSError):  # a cell has closed it
            if os.fstat(descriptor).st_rdev == null:  # and not opened another file by its number
                os.close(descriptor)
    lifted = {}
    for limit in LIMITS:
        soft, hard = resource.getrlimit(limit)
        if soft != hard:
            with contextlib.suppress(OSError, ValueError):
                resource.setrlimit(limit, (hard, hard))
                lifted[limit] = (soft, hard)
    try:
        yield
    finally:
        for limit, before in lifted.items():
            with contextlib.suppress(OSError, ValueError):
                resource.setrlimit(limit, before)
        hold()

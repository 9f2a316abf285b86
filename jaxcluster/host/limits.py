"""Files that can be opened and written where a cell has used up what its process may.

A rank must be saved then too. So it holds some descriptors in reserve, and while it is saved its
soft limits are the hard ones.
"""

from __future__ import annotations

import contextlib
import os
import resource
import threading
from collections.abc import Iterator

RESERVE = 16  # descriptors
_KINDS = (resource.RLIMIT_NOFILE, resource.RLIMIT_FSIZE)
_changing = threading.Lock()
_reserve: list[int] = []
_of: tuple[int, int] | None = None  # what the descriptors are of: a cell may have closed them
_users = 0
_before: dict[int, tuple[int, int]] = {}


def hold_reserve() -> None:
    """Hold descriptors in reserve, as many as there may be."""
    with _changing:
        _fill_reserve()


@contextlib.contextmanager
def lifted() -> Iterator[None]:
    """Inside it files can be opened and written, as far as the hard limits go. Any thread."""
    global _users
    with _changing:
        _users += 1
        if _users == 1:
            _free_reserve()
            _lift()
    try:
        yield
    finally:
        with _changing:
            _users -= 1
            if _users == 0:
                _put_back()
                _fill_reserve()


def _lift() -> None:
    for kind in _KINDS:
        soft, hard = resource.getrlimit(kind)
        if soft != hard:
            with contextlib.suppress(OSError, ValueError):
                resource.setrlimit(kind, (hard, hard))
                _before[kind] = soft, hard


def _put_back() -> None:
    while _before:
        kind, (soft, hard) = _before.popitem()
        if resource.getrlimit(kind) == (hard, hard):  # else a cell has set it meanwhile
            with contextlib.suppress(OSError, ValueError):
                resource.setrlimit(kind, (soft, hard))


def _fill_reserve() -> None:
    global _of
    with contextlib.suppress(OSError):  # there are none left
        if not _reserve:
            first, other = os.pipe()
            os.close(other)
            found = os.fstat(first)
            _of = found.st_dev, found.st_ino
            _reserve.append(first)
        while len(_reserve) < RESERVE:
            _reserve.append(os.dup(_reserve[0]))


def _free_reserve() -> None:
    while _reserve:
        with contextlib.suppress(OSError):
            found = os.fstat(number := _reserve.pop())
            if (found.st_dev, found.st_ino) == _of:
                os.close(number)

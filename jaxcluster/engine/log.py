"""The rank's log by a descriptor of our own, and native crashes written to it.

Cells may close or redirect descriptors 1 and 2, replace ``sys.stderr``, and switch faulthandler off
(pytest does, at its end).
"""

from __future__ import annotations

import contextlib
import faulthandler
import fcntl
import os
import traceback

# Above what a user's code counts on, below the usual limits.
_FROM_FD = 200

_fd = 2


def keep() -> None:
    """At the birth of a rank, whose descriptor 2 is its log: stacks of crashes go there."""
    global _fd
    try:
        _fd = fcntl.fcntl(2, fcntl.F_DUPFD_CLOEXEC, _FROM_FD)
    except (OSError, ValueError):  # so few descriptors are allowed
        _fd = 2
    with contextlib.suppress(Exception):  # a session without it is as good
        faulthandler.enable(file=_fd, all_threads=True)


def watch_again() -> None:
    """Have crashes written to the log, unless they are written to a file of the user's choice."""
    if not faulthandler.is_enabled():
        faulthandler.enable(file=_fd, all_threads=True)


def reopen_streams() -> None:
    """Have descriptors 1 and 2 be open: what native code prints would go to the next socket."""
    for fd in (1, 2):
        try:
            os.get_inheritable(fd)  # the cheapest question, for between cells
        except OSError:
            if _fd > 2:
                os.dup2(_fd, fd)


def error(raised: BaseException) -> None:
    """Add an error with its traceback to the log."""
    write("".join(traceback.format_exception(raised)))


def write(text: str) -> None:
    """Add to the log. Never raises."""
    try:
        os.write(_fd, f"{text}\n".encode(errors="backslashreplace"))
    except Exception:  # not ``contextlib``, which a cell may have broken
        pass

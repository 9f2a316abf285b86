"""The rank's log by a descriptor of our own, and native crashes written to it.

Cells may close or redirect descriptors 1 and 2, and replace ``sys.stderr``.
"""

from __future__ import annotations

import contextlib
import faulthandler
import fcntl
import os
import sys
import traceback
from typing import NoReturn

# Above what a user's code counts on, below the usual limits.
_FROM_FD = 200

_fd = 2


def keep() -> None:
    """At the birth of a rank, whose descriptor 2 is its log: stacks of crashes go there."""
    global _fd
    _fd = fcntl.fcntl(2, fcntl.F_DUPFD_CLOEXEC, _FROM_FD)
    with contextlib.suppress(Exception):  # a session without it is as good
        faulthandler.enable(file=_fd, all_threads=True)


def end_process(status: int) -> NoReturn:
    """End this process, with all that it has printed, and with nothing that Python or JAX do."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):  # a stream may be the user's
            stream.flush()
    os._exit(status)


def error(raised: BaseException) -> None:
    """Add an error with its traceback to the log."""
    write("".join(traceback.format_exception(raised)))


def write(text: str) -> None:
    """Add to the log. Never raises."""
    with contextlib.suppress(OSError):
        os.write(_fd, f"{text}\n".encode(errors="backslashreplace"))

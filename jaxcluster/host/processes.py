"""What a process of a cluster sees to for itself when it begins (standard library only)."""

from __future__ import annotations

import contextlib
import os
import resource
import shutil
import sys

FILES = 4096  # a rank and ipyparallel's controller have 70 to 200 open, and users open some
SOCKET_LENGTH = 107  # of a Unix socket's path


def allow_files() -> None:
    """Raise the soft limit of open files, as Jupyter does; shells often start with few."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = FILES if hard == resource.RLIM_INFINITY else min(FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


def share_files_in(folder: str) -> None:
    """Have multiprocessing keep its sockets in a folder of the cluster's, which goes with that.

    One of its own, in /tmp, it would remove at this process's exit, and ranks are killed.
    """
    from multiprocessing import current_process  # not for the agent, which comes here too

    if len(os.fsencode(f"{folder}/listener-12345678")) > SOCKET_LENGTH:
        return
    shutil.rmtree(folder, ignore_errors=True)  # of the rank's former process
    with contextlib.suppress(OSError):
        os.mkdir(folder, 0o700)
        # As ``multiprocessing.util.get_temp_dir`` reads it in Python 3.11 to 3.13.
        config: dict[str, object] = getattr(current_process(), "_config", {})
        config["tempdir"] = folder


def redirect_output(log_path: str) -> None:
    """Send this process's file descriptors 1 and 2 to a log (appending), and 0 to nothing."""
    log = os.open(log_path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    null = os.open(os.devnull, os.O_RDONLY)
    for number, file in enumerate((null, log, log)):
        os.dup2(file, number)
    os.close(log)
    os.close(null)
    sys.stdin = open(0, closefd=False)  # noqa: SIM115
    sys.stdout = open(1, "w", buffering=1, closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", buffering=1, closefd=False)  # noqa: SIM115
    # What logs to the streams of the process's start logs there too (they are Final to mypy).
    for name in ("stdin", "stdout", "stderr"):
        setattr(sys, f"__{name}__", getattr(sys, name))

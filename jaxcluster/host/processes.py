"""Settings that each process of a cluster makes when it begins (standard library only)."""

from __future__ import annotations

import contextlib
import os
import resource
import shutil
import sys

from jaxcluster.errors import LaunchError

FILES = 4096  # a rank and ipyparallel's controller have 70 to 200 open, and users open some
UNLIMITED = resource.RLIM_INFINITY
SOCKET_LENGTH = 107  # of a Unix socket's path


def allow_files(count: int = FILES) -> None:
    """Raise the soft limit of open files, as Jupyter does; shells often start with few."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    count = count if hard == UNLIMITED else min(count, hard)
    if soft != UNLIMITED and soft < count:
        resource.setrlimit(resource.RLIMIT_NOFILE, (count, hard))


def check_files(num_processes: int, num_hosts: int = 0) -> None:
    """Refuse to start what will run out of file descriptors: libzmq ends the process then.

    It raises this process's own limit, as far as it is allowed and needed. The figures were
    counted with ipyparallel 9.2 and jax 0.10, with a margin.

    Args:
      num_processes: on this machine.
      num_hosts: other ones, each with a connection from here.

    Raises:
      LaunchError: this process, or those to be started, may not open enough files.
    """
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    own = len(os.listdir("/proc/self/fd")) + 3 * num_processes + 5 * num_hosts + 48
    each = 6 * num_processes + 144 if num_processes else 0
    for who, needed in (("This process", own), ("Each process of a cluster", each)):
        if hard != UNLIMITED and needed > hard:
            what = f"{num_hosts} hosts" if num_hosts else f"{num_processes} ranks"
            fewer = "   or fewer ranks: %jaxcluster start -n 2" if num_processes > 2 else ""
            raise LaunchError(
                f"{who} may open {hard} files, and {what} need {needed}.",
                f"In the shell that started it: ulimit -n {max(4096, 2 * needed)}{fewer}",
            )
    allow_files(own)


def share_files_in(folder: str) -> None:
    """Have multiprocessing keep its sockets in a folder of the cluster's, which goes with that.

    Its default in /tmp would be removed at this process's exit, but ranks are killed before.
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
    # Loggers of the process's first streams write there too (they are Final to mypy).
    for name in ("stdin", "stdout", "stderr"):
        setattr(sys, f"__{name}__", getattr(sys, name))

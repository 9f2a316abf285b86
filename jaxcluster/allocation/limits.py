"""How many files a process may open, against how many a cluster needs."""

from __future__ import annotations

import os
import resource

from jaxcluster.errors import LaunchError


def check_files(num_processes: int, num_hosts: int = 0) -> None:
    """Refuse to start what will run out of file descriptors: libzmq ends the process then.

    Where this process may allow itself more, it does, as many as are needed. The figures were
    counted with ipyparallel 9.2 and jax 0.10, with a margin.

    Args:
      num_processes: on this machine.
      num_hosts: other ones, each with a connection from here.

    Raises:
      LaunchError: this process, or those to be started, may not open enough files.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = len(os.listdir("/proc/self/fd")) + 3 * num_processes + 5 * num_hosts + 48
    if soft != resource.RLIM_INFINITY and soft < needed:
        if hard == resource.RLIM_INFINITY or needed <= hard:
            resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))
        else:
            what = f"{num_hosts} hosts" if num_hosts else f"{num_processes} ranks"
            raise _too_few_files("This process", hard, what, needed, num_processes)
    needed = 6 * num_processes + 144
    if num_processes and hard != resource.RLIM_INFINITY and hard < needed:
        what = f"{num_processes} ranks"
        raise _too_few_files("Each process of a cluster", hard, what, needed, num_processes)


def _too_few_files(who: str, limit: int, what: str, needed: int, num_processes: int) -> LaunchError:
    return LaunchError(
        f"{who} may open {limit} files, and {what} need {needed}.",
        f"In the shell that started it: ulimit -n {max(4096, 2 * needed)}"
        + ("   or fewer ranks: %jaxcluster start -n 2" if num_processes > 2 else ""),
    )

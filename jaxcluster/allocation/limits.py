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
    own = len(os.listdir("/proc/self/fd")) + 3 * num_processes + 5 * num_hosts + 48
    each = 6 * num_processes + 144 if num_processes else 0
    for who, needed in (("This process", own), ("Each process of a cluster", each)):
        if hard != resource.RLIM_INFINITY and needed > hard:
            what = f"{num_hosts} hosts" if num_hosts else f"{num_processes} ranks"
            fewer = "   or fewer ranks: %jaxcluster start -n 2" if num_processes > 2 else ""
            raise LaunchError(
                f"{who} may open {hard} files, and {what} need {needed}.",
                f"In the shell that started it: ulimit -n {max(4096, 2 * needed)}{fewer}",
            )
    if soft != resource.RLIM_INFINITY and soft < own:
        resource.setrlimit(resource.RLIMIT_NOFILE, (own, hard))

"""``jaxcluster.agree``: agreement for processes that srun, mpiexec or others have started.

Process 0 starts a referee as its child. The others find it, and its key, in JAX's coordination
service. Processes on other hosts share a relay.
"""

from __future__ import annotations

import json
import os
import secrets
import socket
import subprocess
import sys
import tempfile
from typing import Any

from jaxcluster.agreement.messages import KEY
from jaxcluster.job.process import START_S, Job, say
from jaxcluster.rank.private import coordination, transfers
from jaxcluster.rank.private.launches import agree_on_launches, is_agreed
from jaxcluster.supervision.processes import space

LONGEST_FOLDER = 107 - len("/jaxcluster-agree-12345678/referee")  # of a Unix socket's path


def agree(stall_s: float = 30.0) -> bool:
    """Make all processes of this job agree on each program before they launch it.

    Call it in the main thread of every process, after ``jax.distributed.initialize()`` and before
    the first computation. If a process then launches another program, ends early, raises or dies,
    nothing more is launched. The other processes raise ``Divergence`` at the line of their launch.
    After ``SIGUSR1`` a process prints who waits for whom.

    Each launch of a program with a collective costs a message to a referee process and back.

    Args:
      stall_s: after how many seconds of waiting a process prints this unasked.

    Returns:
      whether launches are checked: False for a single process, and if this jax is unknown.

    Raises:
      RuntimeError: JAX is not initialized, or not all processes have called this.
    """
    if is_agreed():
        return True
    try:
        client, rank, num_ranks, address = coordination.job()
    except (ImportError, AttributeError):
        return _unknown()
    if client is None:
        raise RuntimeError("Call jax.distributed.initialize() before jaxcluster.agree().")
    if num_ranks == 1:
        return False
    job = Job(rank, num_ranks, stall_s, leaves_alone=False)
    if script := getattr(sys.modules["__main__"], "__file__", None):
        job.files[script] = 1
    if not agree_on_launches(job.agreement, job.given):
        return _unknown()
    job.connect(_referee(client, rank, num_ranks, address))
    transfers.announce_transfers(job.agreement)
    job.begin()
    coordination.announce_waits(job.agreement)
    show = sys.excepthook

    def excepthook(kind: type[BaseException], error: BaseException, trace: Any) -> None:
        job.end_by(error)  # the others hear of it at once
        show(kind, error, trace)

    sys.excepthook = excepthook
    return True


def _referee(client: Any, rank: int, num_ranks: int, address: str) -> str:
    """The path of this host's way to the referee, which process 0 starts.

    Raises:
      RuntimeError: it could not be started.
    """

    def tell(name: str, value: str) -> None:
        client.key_value_set(f"jaxcluster/agree/{name}", value)

    def ask(name: str) -> str:
        path = f"jaxcluster/agree/{name}"
        return str(client.blocking_key_value_get(path, int(1000 * START_S)))

    # Equal for processes that can reach each other's Unix sockets.
    here = f"{space('mnt', 'net')} {os.getuid()} {tempfile.gettempdir()}"
    host = address.rpartition(":")[0].strip("[]")
    tell(f"host/{rank}", here)
    if rank == 0:
        try:
            hosts = [ask(f"host/{each}") for each in range(num_ranks)]
            key, words = secrets.token_hex(32), [str(num_ranks)]
            if len({*hosts}) > 1:  # relays reach it at the coordinator's address
                words += [str(socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)[0][4][0])]
            path, port = _start("referee", words, key)
            tell("referee", json.dumps({"path": path, "hosts": hosts, "port": port, "key": key}))
        except Exception as error:  # the other processes wait for it, and raise as well
            tell("referee", json.dumps({"error": str(error)}))
            raise
    found = json.loads(ask("referee"))
    if "error" in found:
        raise RuntimeError(found["error"])
    first = found["hosts"].index(here)
    if first == 0:
        return str(found["path"])
    if first == rank:
        path, _ = _start("relay", [host, found["port"]], found["key"])
        tell(f"relay/{first}", path)
    return ask(f"relay/{first}")


def _start(what: str, arguments: list[str], key: str) -> tuple[str, str]:
    """Start a child; returns the path that it listens on, and the line that it prints then."""
    folder = tempfile.gettempdir()
    if len(os.fsencode(folder)) > LONGEST_FOLDER:
        folder = "/tmp"
    path = os.path.join(tempfile.mkdtemp(prefix="jaxcluster-agree-", dir=folder), what)
    child = subprocess.Popen(
        [sys.executable, "-P", "-m", "jaxcluster.agreement.server", what, path, *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, KEY: key},
        start_new_session=True,  # Ctrl-C is for the script
    )
    _children.append(child)
    assert child.stdout is not None
    line = child.stdout.readline().strip()
    if not line:
        raise RuntimeError(f"The {what} of jaxcluster.agree() did not start.")
    return path, line


_children: list[subprocess.Popen[str]] = []  # they end by themselves


def _unknown() -> bool:
    say("Launches are not checked: jaxcluster does not know this version of jax.")
    return False

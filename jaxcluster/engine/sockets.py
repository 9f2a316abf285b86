"""Cuts the TCP connections of a CPU collective that will never end.

A rank that waits in a collective on CPU can't always be interrupted: with one device per process,
in ``process_allgather`` and the like, no signal reaches it. But it waits on gloo's sockets. Where a
side thread shuts those down, the wait ends in an error within milliseconds. The communicators are
of no use afterwards: the ranks must be initialized anew.

Which sockets are gloo's nobody can say from inside one process. Those that connect one rank with
another are, and the notebook finds them by comparing what the ranks list. Sockets that Python code
has made are somebody else's.
"""

from __future__ import annotations

import gc
import os
import socket
from collections.abc import Iterable, Iterator, Set

Connection = tuple[str, int, str, int]


def connections(coordinator_ports: Set[int]) -> list[Connection]:
    """This process's TCP connections: (own address, own port, peer's address, peer's port).

    Without those of Python's socket objects, and without those of JAX's coordination service, which
    rank 0 may host: a rank that loses it aborts.
    """
    known = {o.fileno() for o in gc.get_objects() if isinstance(o, socket.socket)}
    found = []
    for connection, where, descriptor in _open_connections():
        connection.close()
        if descriptor not in known and not coordinator_ports & {where[1], where[3]}:
            found.append(where)
    return found


def sever(chosen: Iterable[Connection]) -> int:
    """Shut down those of this process's connections that are among ``chosen``; returns how many."""
    wanted = set(chosen)
    count = 0
    for connection, where, _ in _open_connections():
        with connection:
            if where in wanted:
                try:
                    connection.shutdown(socket.SHUT_RDWR)
                    count += 1
                except OSError:
                    pass  # it has ended meanwhile
    return count


def _open_connections() -> Iterator[tuple[socket.socket, Connection, int]]:
    folder = "/proc/self/fd" if os.path.isdir("/proc/self/fd") else "/dev/fd"
    for name in os.listdir(folder):
        try:
            # A duplicate: the descriptor stays whose it is, and shutdown acts on the connection.
            connection = socket.socket(fileno=os.dup(int(name)))
        except OSError:
            continue  # no socket, or closed since
        try:
            inet = connection.family in (socket.AF_INET, socket.AF_INET6)
            if not inet or connection.type != socket.SOCK_STREAM:
                raise OSError("not TCP")
            own, peer = connection.getsockname(), connection.getpeername()
        except OSError:
            connection.close()
            continue
        yield connection, (_plain(own[0]), own[1], _plain(peer[0]), peer[1]), int(name)


def _plain(address: str) -> str:
    return address.removeprefix("::ffff:")

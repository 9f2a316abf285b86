"""The process of the referee and JAX's coordination service, so that any rank may die.

In plain JAX rank 0 hosts the service: when rank 0 dies, all others abort within a moment. Here its
tasks are recoverable as well, so the death of any rank ends no other.

Its parent ends it. If JAX's private names have moved, rank 0 hosts the service, as in plain JAX.
This process then has only the referee.
"""

from __future__ import annotations

import contextlib
import socket
import sys

from jaxcluster.agreement.server import Server
from jaxcluster.host.reachability import why_not_listen

SHUTDOWN_TIMEOUT_S = 5
LEAVE_OUT = (
    "Leave out --coordinator-address, or say where it listens on rank 0's host: "
    "--coordinator-bind-address"
)


def main(
    num_processes: int,
    referee: str,
    heartbeat_timeout_s: int,
    address: str,
    relays: str,
    key: str,
) -> None:
    """Serve until this process is ended: see ``hosts.processes.Processes.start_coordinator``.

    With ``relays`` it prints a line with the two ports: ``ports: 40001 40002``.

    Raises:
      SystemExit: the service can't listen at its address: JAX would crash there.
    """
    if why := why_not_listen(address, has_others=bool(relays)):
        print(f"JAX's coordinator can't listen at {address} on rank 0's host ({why}).\n{LEAVE_OUT}")
        sys.exit(1)
    server = Server(num_processes, referee, key)
    service, held = None, None
    if address.endswith(":0"):
        held = hold_port(address.removesuffix(":0").strip("[]"))
        address = f"{address.removesuffix('0')}{held.getsockname()[1]}"
    from jaxcluster.rank.private import coordination

    with contextlib.suppress(ImportError, AttributeError):  # a name has moved
        service = coordination.coordination_service(
            address, num_processes, heartbeat_timeout_s, SHUTDOWN_TIMEOUT_S
        )
    if relays:
        server.listen(relays)
        port = held.getsockname()[1] if held is not None else 0
        print(f"ports: {server.port} {port}", flush=True)  # the notebook reads it in the log
    server.serve()
    del service  # it lives until here


def hold_port(host: str) -> socket.socket:
    """A free port that nobody else gets while the socket lives; gRPC shares it."""
    held = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    held.bind((host, 0))
    return held

"""A process of its own for the referee and JAX's coordination service, so that any rank may die.

Its argument is JSON: see ``hosts.processes.Processes.start_coordinator``.

In plain JAX rank 0 hosts the service: when rank 0 dies, all others abort within a moment. Here its
tasks are recoverable as well, so the death of any rank ends no other.

Its parent ends it. Where JAX's private names have moved rank 0 hosts the service as in plain JAX,
and this process has the referee alone.

With ``relays`` it prints a line with the two ports: ``ports: 40001 40002``.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
from collections.abc import Sequence

from jaxcluster.agreement.frames import KEY
from jaxcluster.agreement.server import Server

SHUTDOWN_TIMEOUT_S = 5


def main(argv: Sequence[str]) -> None:
    about = json.loads(argv[0])
    num_processes, relays, address = about["num_processes"], about["relays"], about["address"]
    server = Server(num_processes, about["referee"], os.environ.pop(KEY, ""))
    service, held = None, None
    if address.endswith(":0"):
        held = hold_port(address.removesuffix(":0"))
        address = f"{address.removesuffix('0')}{held.getsockname()[1]}"
    if address:
        from jaxcluster.rank.private import coordination

        with contextlib.suppress(ImportError, AttributeError):  # a name has moved
            service = coordination.coordination_service(
                address, num_processes, about["heartbeat_timeout_s"], SHUTDOWN_TIMEOUT_S
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

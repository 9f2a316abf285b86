"""A process of its own for the referee and JAX's coordination service, so that any rank may die.

``python -m jaxcluster.engine.coordinator --num-processes N --referee PATH [--address HOST:PORT]``

In plain JAX rank 0 hosts the service: when rank 0 dies, all others abort within a moment. Here its
tasks are recoverable as well, so the death of any rank ends no other.

Its parent ends it. Where JAX's private names have moved rank 0 hosts the service as in plain JAX,
and this process has the referee alone.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence

from jaxcluster.agreement.frames import KEY
from jaxcluster.agreement.server import Server

SHUTDOWN_TIMEOUT_S = 5


def main(argv: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m jaxcluster.engine.coordinator")
    parser.add_argument("--num-processes", required=True, type=int)
    parser.add_argument("--referee", required=True, help="the path of its Unix socket")
    parser.add_argument("--relays", help="the address at which it hears other hosts")
    parser.add_argument("--address", help="where JAX's service listens, HOST:PORT")
    parser.add_argument("--heartbeat-timeout", default=100, type=int, help="in seconds")
    args = parser.parse_args(argv)
    server = Server(args.num_processes, args.referee, os.environ.pop(KEY, ""))
    if args.relays:
        server.listen(args.relays)
        print(f"relays: {server.port}", flush=True)  # the notebook reads it in the log
    service = None
    if args.address:
        from jaxcluster.engine.private import coordination

        service = coordination.coordination_service(
            args.address, args.num_processes, args.heartbeat_timeout, SHUTDOWN_TIMEOUT_S
        )
    server.serve()
    del service  # it lives until here


if __name__ == "__main__":
    import sys

    main(sys.argv[1:])

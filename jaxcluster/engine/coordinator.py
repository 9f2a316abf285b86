"""JAX's coordination service in a process of its own, so that any rank may die, rank 0 too.

``python -m jaxcluster.engine.coordinator --address HOST:PORT --num-processes N ...``

In plain JAX rank 0 hosts the service: when rank 0 dies, all others abort within a moment. Here its
tasks are recoverable as well, so the death of any rank ends no other.

It does nothing but live; its parent ends it. Where JAX's private names have moved it can't run, and
rank 0 hosts the service as in plain JAX.
"""

from __future__ import annotations

import argparse
import signal
from collections.abc import Sequence

from jaxcluster.engine.private import coordination

SHUTDOWN_TIMEOUT_S = 5


def main(argv: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m jaxcluster.engine.coordinator")
    parser.add_argument("--address", required=True, help="where it listens, HOST:PORT")
    parser.add_argument("--num-processes", required=True, type=int)
    parser.add_argument("--heartbeat-timeout", default=100, type=int, help="in seconds")
    args = parser.parse_args(argv)
    service = coordination.coordination_service(
        args.address, args.num_processes, args.heartbeat_timeout, SHUTDOWN_TIMEOUT_S
    )
    while service is not None:
        signal.pause()


if __name__ == "__main__":
    import sys

    main(sys.argv[1:])

"""The referee of a job of plain processes, or the way to it for one host: see ``jaxcluster.agree``.

``python -m jaxcluster.agreement referee PATH NUM_RANKS [ADDRESS]`` prints the port for relays.
``python -m jaxcluster.agreement relay PATH ADDRESS PORT`` prints nothing before it listens.

Both end once the process that has started them and all ranks that they serve are gone, and remove
the folder of PATH.
"""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Sequence

from jaxcluster.agreement.frames import KEY, Relay
from jaxcluster.agreement.server import Server

LOOK_S = 1.0


def main(argv: Sequence[str]) -> None:
    parent, key = os.getppid(), os.environ.pop(KEY, "")
    command, path, *rest = argv
    try:
        if command == "relay":
            relay = Relay(path, (rest[0], int(rest[1])), key)
            print("listens", flush=True)
            while os.getppid() == parent or relay.sends:
                time.sleep(LOOK_S)
        else:
            server = Server(int(rest[0]), path, key)
            if rest[1:]:
                server.listen(rest[1])
            print(server.port, flush=True)
            while os.getppid() == parent or server.sends:
                server.step(LOOK_S)
    finally:
        shutil.rmtree(os.path.dirname(path), ignore_errors=True)


if __name__ == "__main__":
    main(sys.argv[1:])

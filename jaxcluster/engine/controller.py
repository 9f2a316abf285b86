"""ipyparallel's controller, whose scheduler processes end with it.

``python -m jaxcluster.engine.controller ARGS...`` takes the arguments of ``ipcontroller``.

ipyparallel's controller starts some ten scheduler processes, and leaves them running for ever when
it is killed. Each therefore asks the kernel, right after its fork, to be ended with its parent.
"""

from __future__ import annotations

import os
import sys

from jaxcluster.engine.processes import die_with_parent


def main(argv: list[str]) -> None:
    if parent := os.environ.get("JAXCLUSTER_PARENT"):
        die_with_parent(int(parent))
    me = os.getpid()
    os.register_at_fork(after_in_child=lambda: die_with_parent(me))
    from ipyparallel.controller.app import IPController

    sys.argv = ["ipcontroller", *argv]
    IPController.launch_instance(argv=argv)


if __name__ == "__main__":
    main(sys.argv[1:])

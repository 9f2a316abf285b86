"""ipyparallel's controller, whose child processes end with it, and which starts without a pause.

``python -m jaxcluster.engine.controller ARGS...`` takes the arguments of ``ipcontroller``.

ipyparallel's controller starts its heart monitor (and, without ``--usethreads``, eight schedulers)
as processes, and leaves them running for ever when it is killed. Each therefore asks the kernel,
right after its fork, to be ended with its parent.
"""

from __future__ import annotations

import os
import sys
import time
from typing import Any

from jaxcluster.engine.processes import die_with_parent


class _Sleepless:
    """The module ``time`` without its sleep."""

    def __getattr__(self, name: str) -> Any:
        return getattr(time, name)

    def sleep(self, seconds: float) -> None:
        pass


def main(argv: list[str]) -> None:
    if parent := os.environ.get("JAXCLUSTER_PARENT"):
        die_with_parent(int(parent))
    me = os.getpid()
    os.register_at_fork(after_in_child=lambda: die_with_parent(me))
    from ipyparallel.controller import app

    # It sleeps 0.25 s before it writes its connection files, and waits for nothing (its one sleep,
    # in init_hub; ipyparallel 9.2). All ranks would wait with it.
    app.time = _Sleepless()
    sys.argv = ["ipcontroller", *argv]
    app.IPController.launch_instance(argv=argv)


if __name__ == "__main__":
    main(sys.argv[1:])

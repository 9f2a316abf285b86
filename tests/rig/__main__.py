"""Runs a command on h0 of a rig: PYTHONPATH=tests python -m rig [--slurm] COMMAND...

``python -m rig bash`` is a shell on a machine that has h1 and h2 beside it, reached by ssh. The
rig's Python is first in PATH, and the command runs in the present folder if h0 has that.
"""

from __future__ import annotations

import os
import sys

from rig.hosts import PATH, Missing, Rig
from rig.slurm import start_slurm
from rig.ssh import start_ssh


def main(arguments: list[str]) -> int:
    with_slurm = arguments[:1] == ["--slurm"]
    command = arguments[with_slurm:] or ["bash"]
    try:
        with Rig() as rig:
            start_ssh(rig)
            if with_slurm:
                start_slurm(rig)
            variables = {k: v for k, v in os.environ.items() if k.startswith(("JAX", "TERM"))}
            variables.setdefault("JAXCLUSTER_SHARED_DIR", str(rig.shared))
            variables["PATH"] = f"{rig.python.parent}:{PATH}"
            here = os.getcwd() if rig["h0"].path(os.getcwd()).is_dir() else ""
            return rig["h0"].popen(*command, env=variables, cwd=here, stdin=None).wait()
    except Missing as missing:
        print(missing, file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

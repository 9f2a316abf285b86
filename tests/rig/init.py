"""The first process of a namespace: with its end the kernel kills all that lives there.

python init.py              one host's: waits for ever
python init.py FD FOLDER    the rig's, which holds all hosts: ends with the session whose pidfd is
                            FD, however that ends, and takes the rig's folder with it
"""

from __future__ import annotations

import os
import select
import shutil
import signal
import sys
import time

PATIENCE_S = 10.0  # for processes that are being killed and still write into the folder


def main(arguments: list[str]) -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel reaps whoever has lost its parent
    print("ready", flush=True)
    if not arguments:
        while True:
            signal.pause()
    session, folder = int(arguments[0]), arguments[1]
    select.select([session], [], [])
    os.kill(-1, signal.SIGKILL)
    end = time.monotonic() + PATIENCE_S
    while os.path.exists(folder) and time.monotonic() < end:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main(sys.argv[1:])

"""Jobs of plain processes that call ``jaxcluster.agree()``, started by hand."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from pathlib import Path

JOB = Path(__file__).parent / "jobs" / "job.py"
LIMIT_S = 120
SIZE = 3


def start(case: str, folder: Path, script: Path = JOB, **env: str) -> list[subprocess.Popen[str]]:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{taken.getsockname()[1]}"
    common = {"ADDRESS": address, "SIZE": str(SIZE), "JAX_PLATFORMS": "cpu", "XLA_FLAGS": ""}
    return [
        subprocess.Popen(
            [sys.executable, script, case],
            env={**os.environ, **common, "TMPDIR": str(folder), **env, "RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(SIZE)
    ]


def ended(processes: list[subprocess.Popen[str]]) -> tuple[list[int], list[str]]:
    """The exit statuses of all, and what they have printed on stderr."""
    try:
        told = [one.communicate(timeout=LIMIT_S)[1] for one in processes]
    finally:
        for one in processes:
            one.kill()
    return [one.returncode for one in processes], told


def check_nothing_is_left(folder: Path) -> None:
    deadline = time.monotonic() + 10
    while list(folder.iterdir()) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert list(folder.iterdir()) == []
    left = subprocess.run(["pgrep", "-f", f"jaxcluster.agreement.server .*{folder}"], check=False)
    assert left.returncode == 1

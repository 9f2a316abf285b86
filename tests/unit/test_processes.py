"""Facts about processes, and the means by which none is left behind."""

from __future__ import annotations

import signal
import subprocess
import sys

import psutil
from helpers import until

from jaxcluster.supervision import ends
from jaxcluster.supervision.processes import is_alive, process_token, start_time


def sleeper() -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", "import time; time.sleep(100)"])


def test_a_token_names_one_process_until_that_ends() -> None:
    """Neither a zombie, nor a process that has its pid later."""
    process = sleeper()
    token = process_token(process.pid)
    assert token == f"{process.pid}:{start_time(process.pid)}"
    assert is_alive(token) and not is_alive(f"{token}1")
    process.kill()
    until(lambda: psutil.Process(process.pid).status() == psutil.STATUS_ZOMBIE, "zombie")
    assert not is_alive(token)
    process.wait()
    assert not is_alive(token)


def test_an_end_is_that_of_the_named_process_alone() -> None:
    process = sleeper()
    pid, _, started = process_token(process.pid).partition(":")
    assert ends.end(f"{pid}:{int(started) - 1}", signal.SIGKILL, 5)
    assert process.poll() is None
    assert not ends.end(f"{pid}:{started}", signal.SIGCONT, 0.05)
    assert ends.end(f"{pid}:{started}", signal.SIGKILL, 30)
    process.wait()

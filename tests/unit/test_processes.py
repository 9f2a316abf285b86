"""Facts about processes, and the means by which none is left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
from helpers import python, until

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


def test_a_process_may_ask_to_die_with_its_parent(tmp_path: Path) -> None:
    written = tmp_path / "child"
    child = (
        "import os, sys, time, pathlib\n"
        "from jaxcluster.supervision.processes import die_with_parent\n"
        "die_with_parent(int(sys.argv[1]))\n"
        f"pathlib.Path({str(written)!r} + '.tmp').write_text(str(os.getpid()))\n"
        f"os.rename({str(written)!r} + '.tmp', {str(written)!r})\n"
        "time.sleep(100)\n"
    )
    parent = (
        "import os, subprocess, sys, time\n"
        "subprocess.Popen([sys.executable, '-c', sys.argv[1], str(os.getpid())])\n"
        "time.sleep(100)\n"
    )
    with subprocess.Popen([sys.executable, "-c", parent, child]) as process:
        until(written.exists, "the child runs")
        pid = int(written.read_text())
        token = process_token(pid)
        assert is_alive(token)
        os.kill(process.pid, signal.SIGKILL)
    until(lambda: not is_alive(token), "the child has ended with its parent", 10)


def test_an_end_is_that_of_the_named_process_alone() -> None:
    process = sleeper()
    pid, _, started = process_token(process.pid).partition(":")
    assert ends.end(f"{pid}:{int(started) - 1}", signal.SIGKILL, 5)
    assert process.poll() is None
    assert not ends.end(f"{pid}:{started}", signal.SIGCONT, 0.05)
    assert ends.end(f"{pid}:{started}", signal.SIGKILL, 30)
    process.wait()


def test_output_goes_to_the_log_however_it_is_written(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("from before\n")
    source = (
        "import os, sys\n"
        "from jaxcluster.host.processes import redirect_output\n"
        f"redirect_output({str(log)!r})\n"
        "print('printed'); print('error', file=sys.stderr); sys.__stdout__.write('dunder\\n')\n"
        "os.system('echo child'); os.write(2, b'raw\\n')\n"
        "assert sys.stdin.read() == ''\n"
    )
    done = python("-c", source)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert sorted(log.read_text().split()) == sorted(
        ["from", "before", "printed", "error", "dunder", "child", "raw"]
    )

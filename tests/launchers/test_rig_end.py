"""The rig ends with its session."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from helpers import GONE_S, processes_with, until
from rig import Rig

pytestmark = pytest.mark.any_jax
TESTS = Path(__file__).parents[1]
MARK = "JAXCLUSTER_TEST_RIG"
# A session: processes in sessions of their own on a host and a daemon, and a child that inherits
# all that it has open, as multiprocessing's do, and outlives it.
SESSION = """
import os, time
from rig import Rig
rig = Rig()
mark = {"JAXCLUSTER_TEST_RIG": os.environ["JAXCLUSTER_TEST_RIG"]}
rig["h1"].run("sh", "-c", "(setsid sleep 1000 </dev/null >/dev/null 2>&1 &)", env=mark)
rig["h2"].start_daemon("sleeper", "sleep", "1000", env=mark)
rig["h2"].popen("unshare", "--pid", "--fork", "sleep", "1000", env=mark)
if (child := os.fork()) == 0:
    os.close(1)
    time.sleep(1000)
print(rig.folder, rig.pid, child, flush=True)
time.sleep(1000)
"""


@dataclass
class Session:
    """A process with a rig of its own.

    Attributes:
        pid: of the rig's first process.
        child: a process that the session has forked, and that is not a part of the rig.
        mark: in the environment of all these.
    """

    process: subprocess.Popen[str]
    folder: Path
    pid: int
    child: int
    mark: str

    def processes(self) -> set[int]:
        return set(processes_with(MARK, self.mark)) - {self.child, self.process.pid}


@pytest.fixture
def session(hosts: Rig) -> Iterator[Session]:
    mark = uuid.uuid4().hex
    process = subprocess.Popen(
        [sys.executable, "-c", SESSION],
        env=os.environ | {"PYTHONPATH": str(TESTS), MARK: mark},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    folder, pid, child = process.stdout.readline().split()
    yield Session(process, Path(folder), int(pid), int(child), mark)
    process.kill()
    os.kill(int(child), signal.SIGKILL)
    process.communicate(timeout=30)


def test_a_session_that_is_killed_leaves_nothing(session: Session) -> None:
    until(lambda: len(session.processes()) >= 8, "all that the session starts")
    mounts, links = Path("/proc/mounts").read_text(), interfaces()
    assert session.folder.is_dir()
    session.process.kill()
    until(lambda: not session.processes(), "end of all that the session has started", GONE_S)
    until(lambda: not session.folder.exists(), f"end of {session.folder}", GONE_S)
    until(lambda: not Path(f"/proc/{session.pid}").exists(), "end of its first process", GONE_S)
    assert Path("/proc/mounts").read_text() == mounts
    assert interfaces() == links


def interfaces() -> set[str]:
    shown = subprocess.run(["ip", "-json", "link"], check=True, capture_output=True, text=True)
    return {link["ifname"] for link in json.loads(shown.stdout)}

"""What our controller does in place of ipyparallel's nannies, and its own ports."""

from __future__ import annotations

import os
import subprocess
import sys

import ipyparallel

from jaxcluster.rank.controller import MOST_TRIES, BroadcastScheduler, process_of
from jaxcluster.supervision.processes import pid_space_mark


def test_an_engines_identity_tells_its_process() -> None:
    name = "775c4236-95a18602-jaxcluster"
    assert process_of(f"{name}-{pid_space_mark()}-77".encode()) == 77
    assert process_of(f"{name}-0123456789ab-77".encode()) is None  # of another host
    assert process_of(b"775c4236-95a18602") is None  # of ipyparallel's own


def test_ipyparallels_schedulers_share_what_they_coalesce() -> None:
    """When this fails, ipyparallel may have mended it, and SingleScheduler can go."""
    assert "accumulated_replies" in vars(BroadcastScheduler)


def refused_port(tries: int) -> subprocess.CompletedProcess[str]:
    """What becomes of a controller whose port another process has taken meanwhile."""
    source = (
        "import zmq\nfrom jaxcluster.rank import controller\n"
        "def launch(argv):\n    raise zmq.ZMQError(zmq.EADDRINUSE)\n"
        "controller.app.IPController.launch_instance = launch\n"
        "controller.main(['--version'])"
    )
    env = {**os.environ, "JAXCLUSTER_CONTROLLER_TRIES": str(tries)}
    command = [sys.executable, "-c", source]
    return subprocess.run(command, check=False, env=env, capture_output=True, text=True, timeout=60)


def test_a_port_that_was_taken_meanwhile_costs_another_try_and_not_many() -> None:
    done = refused_port(0)
    assert (done.returncode, done.stdout.strip()) == (0, ipyparallel.__version__), done.stderr
    done = refused_port(MOST_TRIES)
    assert done.returncode != 0 and "Address already in use" in done.stderr

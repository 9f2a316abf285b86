"""What our controller does in place of ipyparallel's nannies, and its own ports."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from jaxcluster.hosts.controller import MOST_TRIES, BroadcastScheduler, process_of
from jaxcluster.supervision.processes import pid_space_mark

TAKEN = """
import sys, threading, zmq
from jaxcluster.hosts import controller
bind, left = controller.app.util.bind, [int(sys.argv[2])]
def refuse(socket, url, **options):
    if left[0] and "127.0.0.1" in url:
        left[0] -= 1
        raise zmq.ZMQError(zmq.EADDRINUSE)
    return bind(socket, url, **options)
controller.app.util.bind = refuse
controller.app.IPController.start = lambda self: print("has started")
controller.main(sys.argv[1], "127.0.0.1")
"""


def test_an_engines_identity_tells_its_process() -> None:
    name = "775c4236-95a18602-jaxcluster"
    assert process_of(f"{name}-{pid_space_mark()}-77".encode()) == 77
    assert process_of(f"{name}-0123456789ab-77".encode()) is None  # of another host
    assert process_of(b"775c4236-95a18602") is None  # of ipyparallel's own


def test_ipyparallels_schedulers_share_what_they_coalesce() -> None:
    """When this fails, ipyparallel may have mended it, and SingleScheduler can go."""
    assert "accumulated_replies" in vars(BroadcastScheduler)


@pytest.mark.parametrize("times", [1, MOST_TRIES])
def test_a_port_that_was_taken_meanwhile_costs_another_try_and_not_many(
    tmp_path: Path, times: int
) -> None:
    command = [sys.executable, "-c", TAKEN, str(tmp_path), str(times)]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=60)
    if times < MOST_TRIES:
        assert "has started" in done.stdout, done.stderr
    else:
        assert "Address already in use" in done.stderr

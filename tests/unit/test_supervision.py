"""The fork server's loop, which ends with its owner, and how processes are ended."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from jaxcluster.supervision import ends, loop
from jaxcluster.supervision.loop import SupervisionLoop
from jaxcluster.supervision.processes import process_token


@pytest.fixture
def supervisor() -> Iterator[SupervisionLoop]:
    made = SupervisionLoop(process_token(os.getpid()))
    yield made
    made.selector.close()


@pytest.fixture
def process() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(100)"]) as made:
        yield made
        made.kill()


def test_a_supervisor_ends_with_its_owner(
    supervisor: SupervisionLoop, process: subprocess.Popen[bytes]
) -> None:
    supervisor.turn(0)
    assert not supervisor.leaving
    supervisor.owner = process_token(process.pid)
    supervisor.turn(0)
    assert not supervisor.leaving
    process.kill()
    process.wait()
    supervisor.turn(0)
    assert supervisor.leaving


def test_a_signal_that_comes_while_the_loop_looks_around_is_not_lost(
    supervisor: SupervisionLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    def signalled(token: str) -> bool:
        supervisor.leaving = True  # as the handler does
        return True

    monkeypatch.setattr(loop, "is_alive", signalled)
    supervisor.turn(0)
    assert supervisor.leaving


def test_the_owners_end_is_heard_at_once(
    supervisor: SupervisionLoop, process: subprocess.Popen[bytes]
) -> None:
    supervisor.owner = process_token(process.pid)
    supervisor.watch_owner()
    assert supervisor.look_s == loop.REST_S
    process.kill()
    assert supervisor.turn(60.0) == 1
    assert supervisor.leaving
    assert supervisor.turn(0) == 0  # and once


def test_the_owner_is_not_who_has_got_its_pid_since(supervisor: SupervisionLoop) -> None:
    pid, _, started = process_token(os.getpid()).partition(":")
    supervisor.owner = f"{pid}:{int(started) - 1}"
    supervisor.turn(0)
    assert supervisor.leaving


# ---------------------------------------------------------------------------------------- ends


def test_an_end_is_that_of_the_named_process_alone(process: subprocess.Popen[bytes]) -> None:
    pid, _, started = process_token(process.pid).partition(":")
    assert ends.end(f"{pid}:{int(started) - 1}", signal.SIGKILL, 5)
    assert process.poll() is None
    assert not ends.end(f"{pid}:{started}", signal.SIGCONT, 0.05)
    assert ends.end(f"{pid}:{started}", signal.SIGKILL, 30)


@pytest.mark.parametrize("heeds", [True, False])
def test_a_supervisor_that_is_let_go_has_its_time_and_is_then_killed(heeds: bool) -> None:
    source = "import sys, time\nsys.stdin.read()\ntime.sleep(0.3 if {} else 1000)\nsys.exit(4)"
    with subprocess.Popen(
        [sys.executable, "-c", source.format(heeds)], stdin=subprocess.PIPE
    ) as process:
        ends.let_go(process, 30 if heeds else 0.5)
        assert process.returncode == (4 if heeds else -signal.SIGKILL)

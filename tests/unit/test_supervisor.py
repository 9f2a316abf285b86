"""The notebook's end of a fork server: one that is going, or gone, is not taken again."""

from __future__ import annotations

import os
import signal
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from helpers import until

from jaxcluster import wire
from jaxcluster.allocation import supervisor
from jaxcluster.allocation.supervisor import Supervisor, quit_warm, retire, warm_supervisor
from jaxcluster.engine.forkserver import IDLE_EXIT_S, Connection, ForkServer
from jaxcluster.errors import LaunchError
from jaxcluster.wire import forks
from jaxcluster.wire.requests import Reply

Take = Callable[[], Supervisor]


@pytest.fixture
def take(monkeypatch: pytest.MonkeyPatch) -> Iterator[Take]:
    """Takes this process's fork server: plain processes, so that it imports nothing."""
    monkeypatch.setenv("JAXCLUSTER_NO_FORK", "1")
    monkeypatch.setattr(supervisor, "_warm", None)
    with tempfile.TemporaryDirectory() as root:  # short: it is a socket's path
        yield lambda: warm_supervisor(Path(root), dict(os.environ), root)
        if supervisor._warm is not None:
            retire(supervisor._warm)
        quit_warm()


def detach(server: Supervisor) -> None:
    """It has no processes, so this is its end, which it comes to after it has answered."""
    server.command(forks.Detach(True))


def test_an_idle_fork_server_is_taken_again(take: Take) -> None:
    first = take()
    assert first.is_kept()
    retire(first)
    assert take() is first


def test_one_whose_imports_read_other_settings_is_replaced(
    take: Take, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``--env JAX_...`` of the next start: a process that has imported jax can't take it on."""
    first = take()
    assert first.is_kept()
    retire(first)
    monkeypatch.setenv("OF_NO_IMPORT", "1")
    assert take() is first
    retire(first)
    monkeypatch.setenv("JAX_ENABLE_X64", "1")
    second = take()
    assert second is not first
    assert second.settings is not None and second.settings["JAX_ENABLE_X64"] == "1"
    assert not first.alive


@pytest.mark.skipif(not hasattr(socket, "SO_PEERCRED"), reason="the kernel does not tell")
def test_nobody_is_commanded_who_is_another_user(
    take: Take, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever listens at the path is sent code to run, and says what is run here."""
    server = take()
    server.connect(30)  # it is this user's
    server.close()
    user = os.getuid()
    monkeypatch.setattr(supervisor.os, "getuid", lambda: user + 1)
    with pytest.raises(LaunchError, match=rf"Another user \({user}\)"):
        server.connect(30)


def test_one_that_has_let_go_and_is_still_there_is_replaced(
    take: Take, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a process is, whose memory the system still clears away."""
    first = take()
    detach(first)
    until(lambda: first._is_lost, "the end of its connection", 30)
    assert first._process is not None
    with monkeypatch.context() as patch:
        patch.setattr(first._process, "poll", lambda: None)
        assert not first.alive
        assert not first.is_kept()
    retire(first)
    second = take()
    assert second is not first
    assert second.is_kept()


def test_one_that_is_stopped_is_named_and_replaced(take: Take) -> None:
    first = take()
    assert first.is_kept() and first.pid is not None
    os.kill(first.pid, signal.SIGSTOP)
    started = time.monotonic()
    with pytest.raises(
        LaunchError, match=rf"\(process {first.pid}\) was stopped by SIGSTOP"
    ) as told:
        first.command(forks.Exits(), 60)
    assert told.value.hint.endswith(f"kill -CONT {first.pid}")
    retire(first)
    second = take()
    assert time.monotonic() - started < 30  # not the 60 s that it would be waited for
    assert second is not first
    assert second.is_kept()


@pytest.mark.parametrize("attempt", range(5))
def test_one_that_is_about_to_end_is_replaced(take: Take, attempt: int) -> None:
    """Whether it has let go yet or not: what is taken answers."""
    first = take()
    detach(first)
    retire(first)
    second = take()
    assert second is not first
    assert second.is_kept()


def test_whoever_commands_it_begins_its_idle_time_anew(tmp_path: Path) -> None:
    path = str(tmp_path / "fork.sock")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        server = ForkServer(listener, path, "1:1", fork=False)
    server.detached, server.idle_since = True, 0.0
    ours, theirs = socket.socketpair()
    with ours, theirs:
        server._command(Connection(theirs), 1, forks.Detach(False))
        assert forks.message_in(ours.recv(100)) == Reply(1)
    assert not server.detached
    assert time.monotonic() - server.idle_since < IDLE_EXIT_S / 2
    server.selector.close()


def test_our_own_leaving_is_no_loss(take: Take) -> None:
    server = take()
    assert server.is_kept()
    server.close()
    assert server.alive
    assert server.is_kept()


def test_the_end_of_a_former_connection_is_not_that_of_this_one(
    take: Take, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its reader may notice late."""
    server = take()
    late = threading.Event()
    events: list[Any] = []
    read = server._read

    class Late:
        """The connection, whose end comes late."""

        def __init__(self, connection: socket.socket) -> None:
            self.connection = connection

        def recv(self, size: int) -> bytes:
            try:
                data = self.connection.recv(size)
            except OSError:  # it was closed before the reader came to it
                data = b""
            if not data:
                late.wait(30)
            return data

    def read_late(connection: Any, *args: Any) -> None:
        read(Late(connection), *args)  # type: ignore[arg-type]

    monkeypatch.setattr(server, "_read", read_late)
    assert server.is_kept()
    former = server._replies
    server.close()
    monkeypatch.setattr(server, "_read", read)
    assert server.is_kept()
    server.on_event = events.append
    waits: wire.Inbox[Reply | None] = wire.Inbox()
    server._replies[10**6] = waits
    told: wire.Inbox[Reply | None] = wire.Inbox()
    former[10**6] = told
    late.set()
    assert told.get(timeout=30) is None
    assert waits.empty()
    assert events == []
    assert server.is_kept()

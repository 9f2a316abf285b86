"""From a forked process to a JAX process: the coordinator, and what stands in the way to it."""

from __future__ import annotations

import os
import socket
import threading
from pathlib import Path

import pytest

from jaxcluster.errors import UsageError
from jaxcluster.host.reachability import why_not_listen
from jaxcluster.rank import bootstrap, coordinator
from jaxcluster.rank.coordinator import hold_port

LOOPBACK = "127.0.0.1"


def test_the_coordinators_port_is_its_own() -> None:
    """gRPC listens with SO_REUSEPORT."""
    with hold_port(LOOPBACK) as held, socket.socket() as service:
        port = held.getsockname()[1]
        with socket.socket() as other, pytest.raises(OSError, match="in use"):
            other.bind((LOOPBACK, port))
        service.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        service.bind((LOOPBACK, port))
        service.listen()
        assert "in use" in why_not_listen(f"{LOOPBACK}:{port}")  # another coordinator's


def test_a_coordinator_is_waited_for_until_it_listens_and_named_if_it_never_does() -> None:
    with socket.socket() as service:
        service.bind((LOOPBACK, 0))
        address = f"{LOOPBACK}:{service.getsockname()[1]}"

        def wait(timeout_s: float) -> None:
            bootstrap.dial_until(lambda: bootstrap._dial(address), "it", timeout_s)

        with pytest.raises(TimeoutError, match=r"it gave no answer in 0 s \(.* refused\)"):
            wait(0.01)
        with pytest.raises(UsageError, match=r"it is not known here \("):
            bootstrap.dial_until(lambda: bootstrap._dial("no-such-host.invalid:1"), "it", 600)
        thread = threading.Thread(target=wait, args=[30])
        thread.start()
        service.listen()
        thread.join(30)
        assert not thread.is_alive()


def test_a_coordinator_says_at_once_where_it_can_not_listen(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.create_server((LOOPBACK, 0)) as taken:
        addresses = (f"{LOOPBACK}:{taken.getsockname()[1]}", "192.0.2.1:8476", "no-such.invalid:1")
        # A taken port, another host's address, a name of nobody's, no folder, and one.
        for address in (*addresses, "unix:/no/such", f"unix:{tmp_path}"):
            with pytest.raises(SystemExit):
                coordinator.main(1, f"{tmp_path}/referee", 10, address, "", "")
            told = capsys.readouterr().out
            assert f"can't listen at {address} on rank 0's host (" in told
            assert "--coordinator-bind-address" in told
    assert "other hosts can't reach" in why_not_listen("localhost:8476", has_others=True)


# --------------------------------------------------------------------------- proxies

EXEMPT = "no_grpc_proxy"  # gRPC reads the lower-case names alone


def test_a_proxy_is_not_asked_for_the_coordinator(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(EXEMPT, "")
    monkeypatch.setenv("no_proxy", "localhost")
    for _ in range(2):
        bootstrap.keep_proxies_away("127.0.0.1:9000")
        assert os.environ[EXEMPT] == "localhost,127.0.0.1"

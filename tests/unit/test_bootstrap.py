"""From a forked process to a JAX process: the coordinator, and what stands in the way to it."""

from __future__ import annotations

import os
import socket
import threading

import pytest

from jaxcluster.errors import UsageError
from jaxcluster.rank import bootstrap
from jaxcluster.rank.coordinator import hold_port

LOOPBACK = "127.0.0.1"


def test_the_coordinators_port_is_its_own() -> None:
    """gRPC listens with SO_REUSEPORT."""
    with hold_port(LOOPBACK) as held, socket.socket() as coordinator:
        port = held.getsockname()[1]
        with socket.socket() as other, pytest.raises(OSError, match="in use"):
            other.bind((LOOPBACK, port))
        bootstrap.check_coordinator(f"{LOOPBACK}:{port}")
        coordinator.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        coordinator.bind((LOOPBACK, port))
        coordinator.listen()


def test_a_coordinator_is_waited_for_until_it_listens_and_named_if_it_never_does() -> None:
    with socket.socket() as coordinator:
        coordinator.bind((LOOPBACK, 0))
        address = f"{LOOPBACK}:{coordinator.getsockname()[1]}"

        def wait(timeout_s: float) -> None:
            bootstrap.dial_until(lambda: bootstrap._dial(address), "it", timeout_s)

        with pytest.raises(TimeoutError, match=r"it gave no answer in 0 s \(.* refused\)"):
            wait(0.01)
        with pytest.raises(UsageError, match=r"it is not known here \("):
            bootstrap.dial_until(lambda: bootstrap._dial("no-such-host.invalid:1"), "it", 600)
        thread = threading.Thread(target=wait, args=[30])
        thread.start()
        coordinator.listen()
        thread.join(30)
        assert not thread.is_alive()


def test_rank_0_says_at_once_where_it_can_not_listen() -> None:
    with socket.create_server((LOOPBACK, 0)) as taken:
        addresses = (f"{LOOPBACK}:{taken.getsockname()[1]}", "192.0.2.1:8476", "no-such.invalid:1")
        for address in addresses:  # a taken port, another host's address, a name of nobody's
            with pytest.raises(UsageError, match=f"can't listen at {address} on rank 0's host"):
                bootstrap.check_coordinator(address)
    bootstrap.check_coordinator("unix:/tmp/socket")


# --------------------------------------------------------------------------- proxies

EXEMPT = "no_grpc_proxy"  # gRPC reads the lower-case names alone


def test_a_proxy_is_not_asked_for_the_coordinator(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(EXEMPT, "")
    monkeypatch.setenv("no_proxy", "localhost")
    for _ in range(2):
        bootstrap.keep_proxies_away("127.0.0.1:9000")
        assert os.environ[EXEMPT] == "localhost,127.0.0.1"

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


def test_waiting_for_the_coordinator_ends_when_it_listens() -> None:
    with socket.socket() as coordinator:
        coordinator.bind((LOOPBACK, 0))
        address = f"{LOOPBACK}:{coordinator.getsockname()[1]}"
        done = threading.Event()

        def wait() -> None:
            bootstrap.wait_for_coordinator(address, 30)
            done.set()

        thread = threading.Thread(target=wait)
        thread.start()
        assert not done.wait(0.05)
        coordinator.listen()
        assert done.wait(30)
        thread.join()


def test_a_coordinator_that_never_listens_is_named() -> None:
    with hold_port(LOOPBACK) as held:
        address = f"{LOOPBACK}:{held.getsockname()[1]}"
        with pytest.raises(TimeoutError, match=f"at {address} gave no answer in 0 s"):
            bootstrap.wait_for_coordinator(address, 0.01)
    with pytest.raises(UsageError, match=r"no-such-host.invalid:1 is not known here \("):
        bootstrap.wait_for_coordinator("no-such-host.invalid:1", 600)


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

"""From an engine to a JAX process: port, probe, and what jax.distributed.initialize is given."""

from __future__ import annotations

import os
import socket
import sys
import threading
import types
from collections.abc import Iterator
from typing import Any

import pytest

from jaxcluster import wire
from jaxcluster.engine import bootstrap
from jaxcluster.engine.bootstrap import Reservation
from jaxcluster.engine.private import coordination, pytrees, transfers

LOOPBACK = "127.0.0.1"


# --------------------------------------------------------------------------- the port


@pytest.fixture
def reservation() -> Iterator[Reservation]:
    made = Reservation(LOOPBACK)
    yield made
    made.release()


def test_a_reserved_port_is_the_coordinators_alone_until_it_is_released(
    reservation: Reservation,
) -> None:
    """gRPC listens with SO_REUSEPORT."""
    with socket.socket() as other, pytest.raises(OSError, match="in use"):
        other.bind((LOOPBACK, reservation.port))
    bootstrap.check_coordinator(f"{LOOPBACK}:{reservation.port}")
    with socket.socket() as coordinator:
        coordinator.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        coordinator.bind((LOOPBACK, reservation.port))
        coordinator.listen()
    reservation.release()
    with socket.socket() as other:
        other.bind((LOOPBACK, reservation.port))


# --------------------------------------------------------------------------- the probe


def test_the_probe_tells_this_ranks_own_address_on_the_way_to_rank_0(
    reservation: Reservation,
) -> None:
    assert bootstrap.probe(LOOPBACK, reservation.probe_port) == LOOPBACK
    reservation.release()
    with pytest.raises(OSError):  # else the process would be aborted
        bootstrap.probe(LOOPBACK, reservation.probe_port, timeout_s=1)


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


def test_a_coordinator_that_never_listens_is_named(reservation: Reservation) -> None:
    address = f"{LOOPBACK}:{reservation.port}"
    with pytest.raises(TimeoutError, match=f"at {address} gave no answer in 0 s"):
        bootstrap.wait_for_coordinator(address, 0.01)
    with pytest.raises(TimeoutError, match=r"no-such-host.invalid:1 gave no answer \("):
        bootstrap.wait_for_coordinator("no-such-host.invalid:1", 600)


def test_rank_0_says_at_once_where_it_can_not_listen() -> None:
    with socket.create_server((LOOPBACK, 0)) as taken:
        addresses = (f"{LOOPBACK}:{taken.getsockname()[1]}", "192.0.2.1:8476", "no-such.invalid:1")
        for address in addresses:  # a taken port, another host's address, a name of nobody's
            with pytest.raises(ValueError, match=f"can't listen at {address} on rank 0's host"):
                bootstrap.check_coordinator(address)
    bootstrap.check_coordinator("unix:/tmp/socket")


# --------------------------------------------------------------------------- initialize


class FakeJax(types.ModuleType):
    """Keeps what it is told, in order."""

    def __init__(self, process_index: int) -> None:
        super().__init__("jax")
        self.calls: list[tuple[str, Any]] = []
        self.config = types.SimpleNamespace(update=self._update)
        self.distributed = types.SimpleNamespace(
            initialize=lambda **arguments: self.calls.append(("initialize", arguments))
        )
        self.process_index = lambda: process_index
        self.process_count, self.device_count = lambda: 2, lambda: 4
        own = {"platform": "cpu", "process_index": 1}
        self.local_devices = lambda: [
            types.SimpleNamespace(id=2, device_kind="cpu", **own),
            types.SimpleNamespace(id=3, device_kind="TPU v4", coords=(0, 1, 2), **own),
        ]

    def _update(self, name: str, value: object) -> None:
        if name == "jax_enable_preemption_service":
            raise AttributeError(f"Unrecognized config option: {name}")  # as an older jax does
        self.calls.append((name, value))


REQUEST = wire.InitializeRequest(
    process_id=1,
    num_processes=2,
    coordinator_address="10.0.0.1:9000",
    coordinator_bind_address="0.0.0.0:9000",
    local_device_ids=[0, 1],
    initialization_timeout=7,
    heartbeat_timeout_seconds=11,
    platforms="cpu",
    num_cpu_devices=2,
    collectives_address="10.0.0.2",
    env={"JAXCLUSTER_TEST_ENV": "set"},
    referee="/run/referee.sock",
)


@pytest.fixture
def jax(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeJax]:
    fake = FakeJax(process_index=1)
    monkeypatch.setitem(sys.modules, "jax", fake)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")  # or this process's numpy is told its threads
    for module, name, fake_of_it in (
        (coordination, "set_collectives_address", lambda at: fake.calls.append(("gloo", at))),
        (coordination, "join_cpu_slices", lambda: True),
        (coordination, "keep_initialized", lambda note: None),
        (coordination, "accept_num_cpu_devices", lambda counts: None),
        (coordination, "announce_waits", lambda agreement: fake.calls.append(("waits", None))),
        (bootstrap, "moved", {"jax.private": "It is not seen."}),
        (bootstrap, "agree_on_launches", lambda *_: fake.calls.append(("agreed", None)) or True),
        (bootstrap, "wait_for_coordinator", lambda *at: fake.calls.append(("wait", at))),
        (transfers, "announce_transfers", lambda agreement: False),
        (pytrees, "remember_keys", lambda: True),
    ):
        monkeypatch.setattr(module, name, fake_of_it)
    before = dict(os.environ)
    yield fake
    os.environ.clear()
    os.environ.update(before)


def initialize(
    jax: FakeJax, request: wire.InitializeRequest = REQUEST, refused: int = 2
) -> wire.InitializeReply:
    """With a referee that comes up a while later."""
    left = [ConnectionRefusedError] * refused

    def connect(path: str) -> None:
        if left:
            raise left.pop()
        jax.calls.append(("referee", path))

    startup: Any = types.SimpleNamespace(agreement=None, given=None, note=None, compiled="")
    startup.connect = connect
    return bootstrap.initialize(request, startup)


# --------------------------------------------------------------------------- proxies

EXEMPT = "no_grpc_proxy"  # gRPC reads the lower-case names alone


def test_a_proxy_is_not_asked_for_the_coordinator(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "grpc_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv(EXEMPT, "")
    bootstrap.keep_proxies_away("127.0.0.1:9000")
    assert os.environ[EXEMPT] == ""
    monkeypatch.setenv("https_proxy", "http://proxy:3128")
    monkeypatch.setenv("no_proxy", "localhost")
    for _ in range(2):
        bootstrap.keep_proxies_away("127.0.0.1:9000")
        assert os.environ[EXEMPT] == "localhost,127.0.0.1"

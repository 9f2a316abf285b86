"""Ranks leave a deadlock, join a new coordinator in place, and have their variables."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import jaxcluster
from jaxcluster import registry, severance, wire
from jaxcluster.link import Sink

DEADLINE_S = 40.0
ALL = "0,1,2,3"
SETUP = """
import jax, jax.numpy as jnp, numpy as np, functools, socket
from jax.experimental import multihost_utils
from jax.sharding import NamedSharding, PartitionSpec as P
mesh = jax.make_mesh((jax.device_count(),), ("x",))
S, R = NamedSharding(mesh, P("x")), NamedSharding(mesh, P())
g = jax.make_array_from_callback((16,), S, lambda i: np.arange(16.0)[i])
alias = g
@functools.partial(jax.jit, out_shardings=R)
def scaled_sum(x):
    return x.sum() * scale
scale = 2.0
key = jax.random.key(0)
class Model:
    def __init__(self):
        self.w = g
    def __call__(self):
        return float(scaled_sum(self.w))
model = Model()
numbers = iter(i for i in range(3))
listener = socket.create_server(("127.0.0.1", 0))
wire = socket.create_connection(listener.getsockname())
drawn = int(jax.random.bits(key))
"""
WARM = "multihost_utils.process_allgather(np.ones(3))\ntotal = model()"
CHECK = (
    "print(model(), float(jnp.sum(g)), alias is g, model.w is g, g.sharding == S,"
    " mesh.devices.flat[0] in jax.devices(), int(jax.random.bits(key)) == drawn,"
    " wire.send(b'x'))"
)


class Case:
    def __init__(self, devices: int) -> None:
        self.devices = devices
        self.cluster = jaxcluster.start(4, devices_per_process=devices)
        self.cluster.run(SETUP)

    def hang(self, source: str) -> Sink:
        """Ranks 0, 2 and 3 run what needs rank 1, which does not come."""
        self.cluster.run(WARM)  # gloo's connections are made at a collective's first use
        sink, waiting, before = Sink(), [0, 2, 3], self.count()
        with registry.turn(self.cluster.name) as seq:
            cell = wire.CellRequest(seq, source, seq, waiting, [])
            for rank in waiting:
                self.cluster._link.request(rank, "cell", cell, sink=sink)
        until(lambda: all(n > before for r, n in enumerate(self.counts()) if r != 1), "launches")
        return sink

    def counts(self) -> list[int]:
        return [s.launches.get(ALL, [0, 0])[0] for s in self.cluster.status()]

    def count(self) -> int:
        return self.counts()[0]

    def reinitialize(self) -> dict[int, Any]:
        cluster = self.cluster
        reserved = cluster.ask([0], "reserve", {"address": "127.0.0.1"})[0].body
        address = f"127.0.0.1:{reserved['port']}"
        own = bool(cluster.record.coordinator_pid)
        if own:
            assert cluster._local is not None
            cluster._local.start_coordinator(address)
        bodies = {
            rank: wire.InitializeRequest(
                process_id=rank,
                num_processes=4,
                coordinator_address=address,
                coordinator_bind_address=address,
                local_device_ids=None,
                initialization_timeout=30,
                heartbeat_timeout_seconds=100,
                platforms="cpu",
                num_cpu_devices=self.devices,
                collectives_address="127.0.0.1",
                coordinator_process=own,
            )
            for rank in range(4)
        }
        answers = cluster.ask(range(4), "reinitialize", bodies=bodies, timeout_s=DEADLINE_S)
        return {rank: event.body for rank, event in answers.items()}

    def check(self) -> None:
        cell = self.cluster.run(CHECK, show=False)
        assert cell.stdout() == "240.0 120.0 True True True True True 1\n"
        assert len({tuple(s.launches[ALL]) for s in self.cluster.status()}) == 1


def until(condition: Callable[[], Any], what: str) -> Any:
    deadline = time.monotonic() + DEADLINE_S
    while not (found := condition()):
        assert time.monotonic() < deadline, f"not within {DEADLINE_S:g} s: {what}"
        time.sleep(0.005)
    return found


@pytest.fixture(scope="module", autouse=True)
def runtime() -> Iterator[None]:
    root = Path(f"/tmp/jcri{os.getpid()}")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JAXCLUSTER_RUNTIME_DIR", str(root))
        yield
        from jaxcluster.launchers.supervisor import quit_warm

        quit_warm()
        shutil.rmtree(root, ignore_errors=True)


@pytest.fixture(
    scope="module", params=[(1, ""), (2, ""), (2, "rank0")], ids=["D1", "D2", "D2-hosted-by-rank0"]
)
def case(request: pytest.FixtureRequest) -> Iterator[Case]:
    devices, host = request.param
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JAXCLUSTER_COORDINATOR", host)
        found = Case(devices)
        assert bool(found.cluster.record.coordinator_pid) == (host != "rank0")
    yield found
    pids = found.cluster.record.pids
    found.cluster.stop()
    assert not [pid for pid in pids if os.path.exists(f"/proc/{pid}")]


def test_healthy_ranks_join_anew_with_their_variables(case: Case) -> None:
    reports = case.reinitialize()
    for report in reports.values():
        assert report["lost"] == {}
        assert {"g", "alias", "mesh", "model", "scaled_sum", "key"} <= set(report["kept"])
        assert report["unsaved"] == {
            "numbers": "a generator can't be saved",
            "listener": "a socket can't be saved",
            "wire": "a socket can't be saved",
        }
    assert [len(r["initialize"]["devices"]) for r in reports.values()] == [case.devices] * 4
    case.check()
    assert case.cluster.run("print(next(numbers))", show=False).stdout() == "0\n"


def test_programs_are_counted_once_after_it(case: Case) -> None:
    before = case.counts()
    case.cluster.run("jax.block_until_ready(scaled_sum(g))")
    assert [a - b for a, b in zip(case.counts(), before, strict=True)] == [1] * 4


@pytest.mark.parametrize(
    "source",
    [
        "pending = scaled_sum(g)\nfloat(pending)",
        "multihost_utils.process_allgather(np.ones(3))",
        "multihost_utils.sync_global_devices('here')",
    ],
    ids=["sum", "process_allgather", "sync_global_devices"],
)
def test_severed_ranks_raise_and_join_anew(case: Case, source: str) -> None:
    sink = case.hang(source)
    cut = severance.sever(case.cluster._link, range(4))
    assert sum(cut.values()) > 0
    replies: list[wire.CellReply] = []
    while len(replies) < 3:
        event = sink.get(timeout=DEADLINE_S)
        if event.op == "reply":
            replies.append(wire.parse(wire.CellReply, event.body))
    for reply in replies:
        assert reply.status == "error" and reply.error is not None
        assert "Connection closed by peer" in reply.error.evalue or "Gloo" in reply.error.evalue
    for report in case.reinitialize().values():
        assert set(report["lost"]) <= {"pending"}
    case.check()


def test_a_collective_that_never_ends_is_left_behind(case: Case) -> None:
    if case.devices == 1:
        pytest.skip("with one device the launch itself blocks: it must be severed")
    sink = case.hang("stuck = scaled_sum(g)")
    until(lambda: sink.qsize() >= 3, "the cell's replies: launches are asynchronous")
    reports = case.reinitialize()
    for rank in (0, 2, 3):
        assert reports[rank]["lost"] == {"stuck": "still being computed"}
    case.check()

"""A rank that missed launches replays them, and the others come free."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
from overhosts import processes_of

import jaxcluster
from jaxcluster import wire
from jaxcluster.errors import RankError
from jaxcluster.wire.link import Sink
from jaxcluster.wire.ops import Operation
from jaxcluster.wire.ops.lockstep import Export, Replay

DEADLINE_S = 30.0
ALL = "0,1,2,3"
SETUP = """
import jax, jax.numpy as jnp, numpy as np
from jax.experimental import multihost_utils
from jax.sharding import NamedSharding, PartitionSpec as P
mesh = jax.make_mesh((jax.device_count(),), ("x",))
S, R = NamedSharding(mesh, P("x")), NamedSharding(mesh, P())
g = jax.make_array_from_callback((16,), S, lambda i: np.arange(16.0)[i])
keep = "my variable"
total = float(jnp.sum(g))
from jaxcluster.engine.app import JaxEngine
rank = JaxEngine.instance().rank
rank.control.handlers["launches"] = "now", lambda request: [
    [launch.seq, launch.processes, launch.fingerprint] for launch in rank.journal.tail(4096)]
"""


class Launches(Operation[list[list[Any]]], op="launches"):
    """Of this test: what a rank has launched."""


@pytest.fixture(scope="module", params=[1, 2], ids=["D1", "D2"])
def cluster(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[jaxcluster.Cluster]:
    root = f"/tmp/jcdr{os.getpid()}"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JAXCLUSTER_RUNTIME_DIR", root)
        with jaxcluster.start(4, devices_per_process=request.param) as running:
            running.run(SETUP)
            yield running
            processes = processes_of(running)
        assert not any(process.state for process in processes)
        from jaxcluster.allocation.supervisor import quit_warm

        quit_warm()
        os.system(f"rm -rf {root}")


def until(condition: Callable[[], Any], what: str) -> Any:
    deadline = time.monotonic() + DEADLINE_S
    while not (found := condition()):
        assert time.monotonic() < deadline, f"not within {DEADLINE_S:g} s: {what}"
        time.sleep(0.005)
    return found


class Skipped:
    """A cell that rank 1 does not run. Sent past Cluster.run, which would end it by itself."""

    def __init__(self, cluster: jaxcluster.Cluster, source: str) -> None:
        self.cluster = cluster
        self.sink = Sink()
        self.replies: list[wire.CellReply] = []
        others = [0, 2, 3]
        with cluster.world.turns.take() as seq:
            cell = wire.CellRequest(seq, source, seq, others, [])
            for rank in others:
                cluster.link.request(rank, cell, sink=self.sink)

    @property
    def ended(self) -> bool:
        while not self.sink.empty():
            event = self.sink.get()
            if event.op == "reply":
                self.replies.append(event.body)
        return len(self.replies) == 3

    def missed(self) -> list[int]:
        """The fingerprints that rank 1 lacks so far."""
        done = counts(self.cluster)[1][0]
        launches = self.cluster.world.ask([0], Launches())[0].body
        return [f for seq, processes, f in launches if processes == ALL and seq >= done]

    def replay_all(self) -> int:
        """Replay until the other ranks have ended the cell; returns how many programs it took."""
        ran = 0
        while True:
            until(lambda: self.ended or self.missed(), "the cell ends, or launches something")
            if not (missed := self.missed()):
                return ran
            ran += self.replay(missed)

    def replay(self, fingerprints: Sequence[int]) -> int:
        shipped = {
            f: bytes(self.cluster.world.ask([0], Export(f))[0].buffers[0]) for f in fingerprints
        }
        asked = Replay(list(fingerprints), list(shipped))
        answer = self.cluster.world.ask(
            [1], asked, buffers=list(shipped.values()), timeout_s=DEADLINE_S
        )[1].body
        assert answer.ran == len(fingerprints)
        assert answer.launches[ALL] == counts(self.cluster)[1]
        return len(fingerprints)


def counts(cluster: jaxcluster.Cluster) -> list[list[int]]:
    return [s.launches.get(ALL, [0, 0]) for s in cluster.status()]


PROGRAMS = {
    "known on the rank": ("z = float(jnp.sum(g))", 1),
    "never compiled there": ("z = float(jax.jit(lambda a, b: (a * b).sum())(g, g))", 1),
    "unused arguments": ("z = float(jax.jit(lambda a, b, c: (a - c).sum())(g, g, g))", 1),
    "donated arguments": (
        "h = jax.make_array_from_callback((16,), S, lambda i: np.arange(16.0)[i])\n"
        "z = jax.jit(lambda a: a + a.sum(), donate_argnums=0)(h)\n"
        "jax.block_until_ready(z)",
        1,
    ),
    "keys in and out": (
        "k = jax.jit(lambda: jax.random.split(jax.random.key(3), 8), out_shardings=S)()\n"
        "z = jax.jit(lambda k: jax.vmap(jax.random.bits)(k).sum())(k)\n"
        "jax.block_until_ready(z)",
        2,
    ),
    "a ref closed over": (
        "ref = (jax.new_ref if hasattr(jax, 'new_ref') else jax.array_ref)(g)\n"
        "def add(x):\n"
        "    ref[...] = ref[...] + x.sum()\n"
        "jax.jit(add)(g)\n"
        "jax.block_until_ready(ref)",
        2,
    ),
    "bfloat16": ("z = int(jnp.max(g.astype(jnp.bfloat16)))", 2),
    "shard_map": (
        "f = jax.shard_map(lambda a: jax.lax.psum(a, 'x'), mesh=mesh, in_specs=P('x'),"
        " out_specs=P())\n"
        "jax.block_until_ready(jax.jit(f)(g))",
        1,
    ),
    "process_allgather": ("multihost_utils.process_allgather(np.ones(3))", 1),
}


@pytest.mark.promise("Replay")
@pytest.mark.parametrize("program", PROGRAMS)
def test_a_rank_replays_a_program(cluster: jaxcluster.Cluster, program: str) -> None:
    source, launches = PROGRAMS[program]
    skipped = Skipped(cluster, source)
    assert skipped.replay_all() == launches
    assert [(reply.status, reply.error) for reply in skipped.replies] == [("ok", None)] * 3
    assert len({tuple(c) for c in counts(cluster)}) == 1


def test_a_rank_replays_a_loop_far_ahead(cluster: jaxcluster.Cluster) -> None:
    skipped = Skipped(cluster, "for i in range(12):\n    a = jnp.sum(g * i)\n    b = jnp.max(g)")
    assert skipped.replay_all() == 36
    assert [reply.status for reply in skipped.replies] == ["ok"] * 3
    assert len({tuple(c) for c in counts(cluster)}) == 1


@pytest.mark.promise("Replay")
def test_afterwards_results_are_right_and_variables_are_kept(cluster: jaxcluster.Cluster) -> None:
    cell = cluster.run("print(float(jnp.sum(g)), keep, total)", show=False)
    assert cell.stdout() == "120.0 my variable 120.0\n"
    assert len({tuple(s.launches[ALL]) for s in cluster.status()}) == 1


def test_a_program_that_calls_python_is_refused(cluster: jaxcluster.Cluster) -> None:
    cluster.run("jax.block_until_ready(jax.jit(lambda a: jax.debug.print('{}', a.sum()))(g))\n"
                "jax.effects_barrier()", show=False)  # fmt: skip
    fingerprint = cluster.world.ask([0], Launches())[0].body[-1][2]
    before = [s.launches for s in cluster.status()]
    with pytest.raises(RankError, match="calls Python functions, which would be given zeros"):
        cluster.world.ask([0], Export(fingerprint))
    with pytest.raises(RankError, match="calls Python functions"):
        cluster.world.ask([1], Replay([fingerprint]))
    assert [s.launches for s in cluster.status()] == before


def test_an_unknown_program_is_refused_before_anything_runs(cluster: jaxcluster.Cluster) -> None:
    known = cluster.world.ask([0], Launches())[0].body[0][2]
    before = [s.launches for s in cluster.status()]
    with pytest.raises(RankError, match="no program with fingerprint 1"):
        cluster.world.ask([1], Replay([known, 1]))
    with pytest.raises(RankError, match="can't be loaded"):
        cluster.world.ask([1], Replay([1], [1]), buffers=[b"junk"])
    assert [s.launches for s in cluster.status()] == before


def test_jitted_functions_may_return_keys_and_checking_classes(cluster: jaxcluster.Cluster) -> None:
    """The journal wraps programs' output trees, and must not rebuild them from placeholders."""
    cell = cluster.run(
        "@jax.tree_util.register_pytree_node_class\n"
        "class Checked:\n"
        "    def __init__(self, value):\n"
        "        assert value.shape == (16,)\n"
        "        self.value = value\n"
        "    def tree_flatten(self):\n"
        "        return (self.value,), None\n"
        "    @classmethod\n"
        "    def tree_unflatten(cls, aux, children):\n"
        "        if isinstance(children[0], int): raise TypeError('a placeholder')\n"
        "        self = object.__new__(cls)\n"
        "        self.value, = children\n"
        "        return self\n"
        "def f(x):\n"
        "    return Checked(x * x.sum()), jax.random.key(0), None\n"
        "f = jax.jit(f)\n"
        "for i in range(3):\n"
        "    checked, key, nothing = f(g)\n"
        "print(type(checked).__name__, key.dtype, nothing)",
        show=False,
    )
    assert cell.stdout() == "Checked key<fry> None\n"

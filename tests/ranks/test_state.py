"""A rank's variables are saved while it hangs, and are usable on new processes."""

from __future__ import annotations

import itertools
import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from jaxcluster.engine.state.saved import read, state_path
from jaxcluster.wire.ops.state import (
    RestoreBind,
    RestoreLook,
    RestoreLooked,
    SavePlace,
    Snapshot,
    Take,
)
from overhosts import processes_of

import jaxcluster
from jaxcluster import wire
from jaxcluster.wire.link import Sink, replies

DEADLINE_S = 40.0
SETUP = """
import jax, jax.numpy as jnp, numpy as np, functools, dataclasses, threading
from typing import NamedTuple
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
mesh = jax.make_mesh((jax.device_count(),), ("x",))
S, R = NamedSharding(mesh, P("x")), NamedSharding(mesh, P())
g = jax.make_array_from_callback((16,), S, lambda i: np.arange(16.0)[i])
alias = g
replicated = jax.make_array_from_callback((8, 8), R, lambda i: np.ones((8, 8), np.float32))
class Step(NamedTuple):
    params: dict
    number: int
step = Step({"w": replicated, "b": jnp.zeros(8)}, 7)
@dataclasses.dataclass
class Config:
    rate: float = 0.5
    steps: list = dataclasses.field(default_factory=list)
config = Config(steps=[1, 2])
class Model:
    def __init__(self):
        self.k, self.config = jnp.arange(3.0), config
    def __call__(self, x):
        return self.k.sum() + x
model = Model()
@jax.tree_util.register_pytree_node_class
class Node:
    def __init__(self, a):
        self.a = a
    def tree_flatten(self):
        return (self.a,), None
    @classmethod
    def tree_unflatten(cls, aux, children):
        return cls(*children)
node = Node(jnp.ones(3))
scale = 2.0
@functools.partial(jax.jit, out_shardings=R)
def scaled_sum(x):
    return x.sum() * scale
def helper(x):
    return float(scaled_sum(x)) + model.config.rate
@jax.custom_vjp
def double(x):
    return x * 2
double.defvjp(lambda x: (x * 2, None), lambda residual, ct: (ct * 2,))
times = lambda x: x * scale
key = jax.random.key(0)
keys = jax.jit(lambda: jax.random.split(jax.random.key(3), 8), out_shardings=S)()
rng = np.random.default_rng(1)
np.random.seed(5)
np.random.rand()
weak = jnp.asarray(3.0)
weak_on_all = jax.jit(lambda: 3.0, out_shardings=NamedSharding(mesh, P()))()
bf = jnp.ones(4, jnp.bfloat16)
devices = jax.devices()
mine = jax.device_put(np.arange(4.0), NamedSharding(Mesh(np.array(jax.local_devices()), "l"), P()))
my_rank = jax.process_index()
hist = twin = [1.0, 2.0]
open_file, lock, gen = open("/dev/null"), threading.Lock(), (i for i in range(3))
lock.acquire()
compiled = jax.jit(lambda x: x + 1).lower(1.0).compile()
imported = jnp.where
def uses_generator():
    return gen
gone = jnp.ones(3)
gone.delete()
jax.block_until_ready(keys)
ready = helper(g)
"""
LOST = {
    "open_file": "an open file can't be saved",
    "lock": "a lock that is held can't be saved",
    "gen": "a generator can't be saved",
    "compiled": "it holds a LoadedExecutable object, which can't be saved",
    "gone": "deleted or donated",
}
PARTS_OF_ONE_RANK = {"g", "alias", "keys"}


@pytest.fixture(scope="module", autouse=True)
def runtime() -> Iterator[Path]:
    root = Path(f"/tmp/jcst{os.getpid()}")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JAXCLUSTER_RUNTIME_DIR", str(root))
        yield root
        from jaxcluster.allocation.supervisor import quit_warm

        quit_warm()
        shutil.rmtree(root, ignore_errors=True)


def restore(cluster: jaxcluster.Cluster, each: dict[int, Take]) -> dict[int, RestoreLooked]:
    """Have ranks read what they are to take, and bind it; what they say of it."""
    looks = {rank: RestoreLook("token", take=take) for rank, take in each.items()}
    looked = replies(cluster.world.ask(list(each), looks, timeout_s=DEADLINE_S))
    cluster.world.ask(list(each), RestoreBind("token", [], {}), timeout_s=DEADLINE_S)
    return looked


class Case:
    """What four ranks saved while three of them hung, and a new cluster that has it back."""

    def __init__(self, devices: int, folder: Path) -> None:
        self.folder = folder
        with jaxcluster.start(4, devices_per_process=devices) as old:
            old.run(SETUP)
            self._hang(old)
            asked = Snapshot([SavePlace(str(folder))], digests=True)
            answers = old.world.ask(range(4), asked, timeout_s=DEADLINE_S)
            self.busy = [s.state for s in old.status()]
            processes = processes_of(old)
        assert not any(process.state for process in processes)
        self.reports = replies(answers)
        self.cluster = jaxcluster.start(4, devices_per_process=devices)
        self.restored = restore(self.cluster, dict.fromkeys(range(4), Take(str(folder))))

    @staticmethod
    def _hang(cluster: jaxcluster.Cluster) -> None:
        """Ranks 0, 2 and 3 wait for rank 1 in a sum; its result, if it is one yet, is pending."""
        waiting = [0, 2, 3]
        before = cluster.status()[0].launches["0,1,2,3"][0]
        with cluster.world.turns.take() as seq:
            source = "pending = jnp.sum(g)\nfloat(pending)"
            cell = wire.CellRequest(seq, source, seq, waiting, [])
            for rank in waiting:
                cluster.link.request(rank, cell, sink=Sink())
        deadline = time.monotonic() + DEADLINE_S
        # With one device a launch blocks before its result has a name; else the next line does.
        line = 1 if len(cluster.record.devices[0].devices) == 1 else 2
        while True:
            states = [s for s in cluster.status() if s.rank in waiting]
            launched = all(s.launches["0,1,2,3"][0] > before for s in states)
            if launched and all(s.line == line for s in states):
                break
            assert time.monotonic() < deadline

    def run(self, source: str, ranks: list[int] | None = None) -> str:
        return self.cluster.run(source, ranks=ranks, show=False).stdout()


@pytest.fixture(scope="module", params=[1, 2], ids=["D1", "D2"])
def case(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Case]:
    found = Case(request.param, tmp_path_factory.mktemp("state"))
    yield found
    processes = processes_of(found.cluster)
    found.cluster.stop()
    assert not any(process.state for process in processes)


def test_a_snapshot_is_taken_while_ranks_hang(case: Case) -> None:
    assert case.busy == ["running", "idle", "running", "running"]
    assert [case.reports[r].seconds < 10 for r in range(4)] == [True] * 4


def test_what_is_lost_is_named_with_its_reason(case: Case) -> None:
    for rank, report in case.reports.items():
        lost = dict(report.lost)
        if rank != 1 and len(case.cluster.record.devices[0].devices) > 1:
            # A launch on one device blocks before the name is bound.
            assert lost.pop("pending") == "still being computed"
        assert lost == LOST


def test_all_else_is_restored(case: Case) -> None:
    for rank, report in case.restored.items():
        assert report.lost == {}
        assert report.restored == case.reports[rank].kept


def test_jitted_functions_see_the_namespace(case: Case) -> None:
    assert case.run("print(helper(g), float(jnp.sum(g)))") == "240.5 120.0\n"
    assert case.run("scale = 3.0\nprint(times(2.0))\nscale = 2.0") == "6.0\n"
    assert case.run("gen = 5\nprint(uses_generator())") == "5\n"


def test_jitted_functions_can_be_lowered_and_know_their_names(case: Case) -> None:
    """jax 0.10.2 and 0.12 lose the attributes of a jitted function that is pickled."""
    source = (
        "print(float(scaled_sum.lower(g).compile()(g)), scaled_sum.__name__,"
        " scaled_sum.__wrapped__(np.ones(2)), imported is jnp.where)\n"
        "scaled_sum.clear_cache()\nprint(float(scaled_sum(g)))"
    )
    assert case.run(source) == "240.0 scaled_sum 4.0 True\n240.0\n"


def test_aliases_and_classes_are_kept(case: Case) -> None:
    source = (
        "print(alias is g, hist is twin, step.params['w'] is replicated, model.config is config,"
        " isinstance(model, Model), isinstance(step, Step), float(model(1)), step.number)"
    )
    assert case.run(source) == "True True True True True True 4.0 7\n"


def test_shardings_and_devices_are_those_of_the_new_processes(case: Case) -> None:
    source = (
        "print(g.sharding == S, mesh.devices.flat[0] in jax.devices(), devices == jax.devices(),"
        " mine.devices() == set(jax.local_devices()), keys.sharding.spec == P('x'))"
    )
    assert case.run(source) == "True True True True True\n"


def test_keys_and_generators_go_on_where_they_were(case: Case) -> None:
    import numpy as np

    rng = np.random.default_rng(1)
    np.random.seed(5)
    np.random.rand()
    expected = f"{rng.random()} {np.random.rand()}\n"
    assert case.run("print(rng.random(), np.random.rand())") == expected
    drawn = "print(jax.random.bits(key), jax.vmap(jax.random.bits)(keys).sum())"
    again = (
        "import jax\nks = jax.random.split(jax.random.key(3), 8)\n"
        "print(jax.random.bits(jax.random.key(0)), jax.vmap(jax.random.bits)(ks).sum())"
    )
    assert case.run(drawn) == case.run(again)


def test_dtypes_weak_types_and_registrations_are_kept(case: Case) -> None:
    source = (
        "print(weak.weak_type, weak.committed, weak_on_all.weak_type, bf.dtype,"
        " jax.jit(lambda n: n)(node).a.sum(),"
        " jax.grad(double)(1.0))"
    )
    assert case.run(source) == "True False True bfloat16 3.0 2.0\n"


def test_the_ranks_are_in_step_after_it(case: Case) -> None:
    case.run("print(float(jnp.sum(g)))")
    assert len({tuple(s.launches["0,1,2,3"]) for s in case.cluster.status()}) == 1


def test_values_that_differ_between_ranks_have_unequal_digests(case: Case) -> None:
    digests = [report.digests for report in case.reports.values()]
    names = set.intersection(*[set(d) for d in digests])
    differ = {name for name in names if len({d[name] for d in digests}) > 1}
    assert differ == {"my_rank"}


def test_each_rank_saves_the_parts_that_it_has(case: Case) -> None:
    for report in case.reports.values():
        assert {"g", "alias", "keys", "replicated", "step"} <= {*report.spanning}
        assert "mine" not in report.spanning
    files = [read(state_path(case.folder, rank)) for rank in range(4)]
    held = [file.arrays[file.now.names["g"].arrays[0]] for file in files]
    assert {(tuple(h.shape), h.dtype) for h in held} == {((16,), "float32")}
    parts = sorted(index for h in held for (index,), _ in h.shards)
    assert parts[0][0] == 0 and parts[-1][1] == 16
    assert all(a[1] == b[0] for a, b in itertools.pairwise(parts))
    (whole,) = files[2].now.names["replicated"].arrays
    assert [where for where, _ in files[2].arrays[whole].shards] == [[[0, 8], [0, 8]]]


def test_a_replaced_rank_takes_a_survivors_values(case: Case) -> None:
    case.run("del replicated, step, g, model, mine, my_rank", ranks=[2])
    report = restore(case.cluster, {2: Take(str(case.folder), from_rank=1)})[2]
    assert set(report.lost) == PARTS_OF_ONE_RANK
    assert "of an array of shape (16,) was not saved by rank 1" in report.lost["g"]
    source = (
        "print(mine.devices() == set(jax.local_devices()), float(model(1)),"
        " float(jnp.sum(replicated.addressable_data(0))), my_rank)"
    )
    assert case.run(source, ranks=[2]) == "True 4.0 64.0 1\n"


def test_single_names_can_be_restored(case: Case) -> None:
    report = restore(case.cluster, {2: Take(str(case.folder), ["g", "my_rank"])})[2]
    assert report.restored == ["g", "my_rank"]
    assert case.run("print(float(jnp.sum(g)))") == "120.0\n"


def test_a_folder_without_a_state_says_so(case: Case) -> None:
    with pytest.raises(jaxcluster.JaxClusterError, match=r"rank-0.state can't be read: No such"):
        restore(case.cluster, {0: Take("/nonexistent")})

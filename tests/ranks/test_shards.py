"""Layouts of a real cluster's arrays, held against each rank's ``addressable_shards``."""

from __future__ import annotations

import functools
import json
import signal
import time
from collections.abc import Callable
from typing import Any

import layouts
import numpy as np
import pytest
from helpers import last_launch, until
from overhosts import process_of, send_signal

import jaxcluster
from jaxcluster.cluster import array_queries
from jaxcluster.errors import CellInterrupted, JaxClusterError, UsageError
from jaxcluster.model.layout import ArrayLayout, TreeLayout
from jaxcluster.views import shards
from jaxcluster.views.arrays import corners
from jaxcluster.views.messages import SHARDS_MIME
from jaxcluster.views.widget import ShardWidget

MAKE = """
from jax.sharding import SingleDeviceSharding
def make(shape, sharding, dtype=np.float32):
    whole = np.arange(np.prod(shape, dtype=int)).reshape(shape).astype(dtype)
    return jax.make_array_from_callback(shape, sharding, lambda i: whole[i], dtype=dtype)
cube = jax.make_mesh((2, 2, 2), ("a", "b", "c"))
half = jax.sharding.Mesh(np.array(jax.devices()[:4]).reshape(4), ("h",))
auto = jax.make_mesh((4, 2), ("i", "j"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
"""

# Every way in which an array can lie on devices: a Python expression, and its own name.
ARRAYS = {
    "one_axis": "make((8,), NamedSharding(mesh, P('i')))",
    "two_axes": "make((8, 8), NamedSharding(mesh, P('i', 'j')))",
    "both_on_one": "make((16, 2), NamedSharding(mesh, P(('i', 'j'))))",
    "replicated": "make((5, 3), NamedSharding(mesh, P()))",
    "partly": "make((8, 3), NamedSharding(mesh, P('j')))",
    "three_axes": "make((4, 2, 6), NamedSharding(cube, P('a', 'b', 'c')))",
    "five_axes": "make((2, 3, 4, 2, 2), NamedSharding(cube, P('c', None, ('a', 'b'))))",
    "scalar": "make((), NamedSharding(mesh, P()))",
    "empty": "make((0, 4), NamedSharding(mesh, P(None, 'i')))",
    "on_half": "make((8,), NamedSharding(half, P('h')))",
    "automatic": "make((8, 8), NamedSharding(auto, P(None, 'i')))",
    "bf16": "make((8, 8), NamedSharding(mesh, P('i', 'j')), jnp.bfloat16)",
    "keys": "jax.random.wrap_key_data(make((8, 2), NamedSharding(mesh, P('i')), np.uint32))",
    "computed": "jax.jit(lambda a: a @ a.T)(make((8, 8), NamedSharding(auto, P('i', 'j'))))",
    "single": "jax.device_put(np.arange(6.0), SingleDeviceSharding(jax.local_devices()[1]))",
    "uncommitted": "jnp.arange(3)",
    "on_one_device": "make((6,), SingleDeviceSharding(jax.devices()[5]))",
    "a_stage": "make((8,), NamedSharding(jax.sharding.Mesh(np.array(jax.devices()[2:4]), "
    "('s',)), P('s')))",
    "local_mesh": "jax.device_put(np.arange(8.0), NamedSharding(jax.sharding.Mesh("
    "np.array(jax.local_devices()), ('l',)), P('l')))",
}

TRUTH = """
import functools
import json
def truth(x):
    n = x.ndim
    return dict(shape=list(x.shape), dtype=str(x.dtype), sharding=str(x.sharding),
        spans=not x.is_fully_addressable, shards=[
        [s.device.id, [list(p.indices(d)[:2]) for p, d in zip(s.index[:n], x.shape)],
         s.replica_id, s.data.nbytes, list(s.data.shape)] for s in x.addressable_shards])
"""


@pytest.fixture(scope="module", autouse=True)
def arrays(cluster: jaxcluster.Cluster) -> None:
    lines = "\n".join(f"{name} = {source}" for name, source in ARRAYS.items())
    cluster.run(MAKE + TRUTH + lines)


def printed(cluster: jaxcluster.Cluster, expression: str) -> dict[int, Any]:
    """A JSON value of each rank."""
    record = cluster.run(f"print(json.dumps({expression}))", show=False)
    return {rank: json.loads(record.stdout(rank)) for rank in record.ranks}


def array(found: ArrayLayout | TreeLayout) -> ArrayLayout:
    assert isinstance(found, ArrayLayout)
    return found


@pytest.mark.parametrize("name", ARRAYS)
def test_a_layout_says_what_every_rank_says_of_its_shards(
    cluster: jaxcluster.Cluster, name: str
) -> None:
    found = array(cluster.layout(name))
    truth = printed(cluster, f"truth({name})")
    for rank, told in truth.items():
        ours = sorted(
            [s.device, [list(span) for span in s.index], s.replica_id, s.nbytes, list(s.shape)]
            for s in found.shards
            if s.rank == rank
        )
        assert ours == sorted(told["shards"])
    first = truth[0]
    assert list(found.shape) == first["shape"]
    assert found.dtype == first["dtype"]
    assert found.sharding == first["sharding"]
    assert found.spans == first["spans"]
    assert found.missing == 0
    assert found.notes == {}


def test_an_array_on_one_ranks_devices_is_one_array(cluster: jaxcluster.Cluster) -> None:
    """Its owner alone takes it for one of its own."""
    for name, owner in {"on_one_device": 2, "a_stage": 1}.items():
        found = array(cluster.layout(name))
        assert (found.spans, found.ranks) == (True, (owner,))
        assert np.array_equal(cluster[name], np.arange(found.shape[0]))


def result(cluster: jaxcluster.Cluster, source: str) -> tuple[Any, bool]:
    """What a notebook prints of what a cell ends in."""
    cluster.run(source, show=False)
    return corners(cluster.world, array_queries.look(cluster.world, ""))


@pytest.mark.parametrize(
    ("source", "shape"),
    [("a_stage", (8,)), ("scalar", ()), ("empty", (0, 4)), ("keys", (8, 2)), ("wide", (7, 7))],
)
def test_what_a_cell_ends_in_is_read_as_far_as_it_is_printed(
    cluster: jaxcluster.Cluster, source: str, shape: tuple[int, ...]
) -> None:
    cluster.run("wide = make((16, 64), NamedSharding(mesh, P('j', 'i')))")
    values, cut = result(cluster, source)
    assert (values.shape, cut) == (shape, source == "wide")
    if source != "empty":
        raw = f"(jax.random.key_data({source}) if {source!r} == 'keys' else {source})"
        whole = cluster.run(f"pulled = {raw}", show=False) and cluster["pulled"]
        kept = [np.r_[:3, size // 2, size - 3 : size] for size in whole.shape]
        np.testing.assert_array_equal(values, whole[np.ix_(*kept)] if cut else whole)


def test_what_ranks_have_each_another_of_is_not_printed_as_one(
    cluster: jaxcluster.Cluster,
) -> None:
    with pytest.raises(JaxClusterError, match="another array on ranks 2, 3"):
        result(cluster, "a_stage if jax.process_index() < 2 else on_one_device")
    with pytest.raises(JaxClusterError, match="another value on ranks 2, 3"):
        result(cluster, "x if jax.process_index() < 2 else [x]")
    cluster.run("one_axis", ranks=[1], show=False)
    found = array_queries.look(cluster.world, "", [1])
    with pytest.raises(JaxClusterError, match="The ranks that ran the cell lack"):
        corners(cluster.world, found)


def test_the_recorded_reports_of_the_unit_tests_are_what_jax_says(
    cluster: jaxcluster.Cluster,
) -> None:
    cases = {
        "two_axes": ((8, 8), {"i": 4, "j": 2}, ("i", "j")),
        "both_on_one": ((16, 2), {"i": 4, "j": 2}, (("i", "j"),)),
        "partly": ((8, 3), {"i": 4, "j": 2}, ("j",)),
        "three_axes": ((4, 2, 6), {"a": 2, "b": 2, "c": 2}, ("a", "b", "c")),
    }
    for name, (shape, mesh, spec) in cases.items():
        real, made = array(cluster.layout(name)), layouts.array(shape, mesh, spec)
        assert real.parts == made.parts, name
        assert (real.mesh, real.split, real.spec) == (made.mesh, made.split, made.spec)


# ----------------------------------------------------------------------------------------- notes


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("one_axes", r"No rank has a variable 'one_axes' \(did you mean one_axis"),
        ("rank", r"ranks 0-3: holds no jax\.Array, only int"),
        ("one_axis + 1", "neither a variable nor a part of one"),
        ("one_axis['w']", "has no part"),
    ],
)
def test_what_is_no_array_is_a_word_and_not_a_traceback(
    cluster: jaxcluster.Cluster, name: str, told: str
) -> None:
    with pytest.raises(UsageError, match=told):
        cluster.layout(name)


def test_deleted_and_donated_arrays_have_a_note(cluster: jaxcluster.Cluster) -> None:
    cluster.run("gone = make((8,), NamedSharding(mesh, P('i')))\ngone.delete()")
    assert set(array(cluster.layout("gone")).notes.values()) == {"deleted or donated"}
    assert "Ranks 0-3: deleted or donated" in shards.shards(cluster, "gone")["text/plain"]


def test_a_busy_rank_answers_all_the_same(cluster: jaxcluster.Cluster) -> None:
    running = cluster.submit("import time\nfor _ in range(2000): time.sleep(0.01)")
    until(lambda: all(s.state == "running" for s in cluster.status()), "all ranks run")
    began = time.perf_counter()
    found = array(cluster.layout("two_axes"))
    assert time.perf_counter() - began < array_queries.LOOK_S
    device = found.shards[2].device
    values = array_queries.peek(cluster.world, "two_axes", 1, device, [0, 0], [1, 3])
    assert (found.ranks, values.tolist()) == ((0, 1, 2, 3), [[16, 17, 18]])
    running.stop()
    with pytest.raises(CellInterrupted):
        running.wait()


def test_a_stopped_rank_is_named(
    cluster: jaxcluster.Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(array_queries, "TREE_S", 1.0)
    process = process_of(cluster, 2)
    process.send(signal.SIGSTOP)
    try:
        until(lambda: process.state == "T", "the rank is stopped")
        found = array(cluster.layout("two_axes"))
    finally:
        process.send(signal.SIGCONT)
    assert found.missing > 0
    assert "gave no answer" in found.notes[2]


def test_a_dead_ranks_part_is_named(start: Callable[..., jaxcluster.Cluster]) -> None:
    running = start(2)
    running.run(
        "import jax, numpy as np\n"
        "from jax.sharding import NamedSharding, PartitionSpec as P\n"
        "mesh = jax.make_mesh((2,), ('i',))\n"
        "z = jax.make_array_from_callback((8,), NamedSharding(mesh, P('i')),"
        " lambda i: np.arange(8.0)[i])"
    )
    send_signal(running, 1)
    until(lambda: 1 in running.dead, "the death is noticed")
    found = array(running.layout("z"))
    assert found.gaps == (((4, 8),),)
    assert "dead" in found.notes[1]
    assert "4 elements held by no process that answered" in shards.layout_view(found)["text/plain"]


# ------------------------------------------------------------------------------------------ values


@pytest.mark.parametrize("name", ["bf16", "keys", "scalar", "empty", "uncommitted"])
def test_every_dtype_can_be_checked_and_looked_at(cluster: jaxcluster.Cluster, name: str) -> None:
    assert array_queries.check(cluster.world, name).ok
    found = array(cluster.layout(name))
    shard = found.shards[0]
    stop = [min(2, size) for size in shard.shape]
    values = array_queries.peek(
        cluster.world, name, shard.rank, shard.device, [0] * len(stop), stop
    )
    assert list(values.shape[: len(stop)]) == stop


def test_a_rank_whose_replicated_values_differ_is_found(cluster: jaxcluster.Cluster) -> None:
    cluster.run(
        """
bias = jax.make_array_from_callback((16,), NamedSharding(mesh, P()),
    lambda i: np.full(16, 1.0 + 1e-7 * (rank == 2), np.float32)[i])
""",
        on_notice=lambda told: None,
    )
    result = array_queries.check(cluster.world, "bias")
    ((_, *odd),) = [difference.groups for difference in result.differences]
    assert [{rank for rank, _ in group} for group in odd] == [{2}]
    assert result.compared == 1
    shown = shards.shards(cluster, "bias", check=True)["text/plain"]
    assert "the copies differ: rank 2 (devices 4096, 4097)" in shown
    assert array_queries.check(cluster.world, "replicated").ok


def test_looking_and_pulling_launch_nothing_and_looking_leaves_no_copy_behind(
    cluster: jaxcluster.Cluster,
) -> None:
    cluster.run("float(jnp.sum(x))", show=False)
    before = last_launch(cluster)
    for name in ARRAYS:
        shards.shards(cluster, name, check=True)
    array_queries.memory(cluster.world)
    array_queries.meshes(cluster.world)
    held = printed(cluster, "[s.data._npy_value is None for s in two_axes.addressable_shards]")
    assert all(all(flags) for flags in held.values())
    assert cluster["two_axes"].shape == (8, 8)
    assert last_launch(cluster) == before


# ------------------------------------------------------------------------------------------ trees


def test_a_tree_of_dicts_lists_tuples_and_dataclasses(cluster: jaxcluster.Cluster) -> None:
    cluster.run(
        """
import dataclasses
@dataclasses.dataclass
class Layer:
    w: object
    name: str = "l"
tree = {"layers": [Layer(two_axes), Layer(partly)], "step": 3, "opt": (replicated, np.ones(2))}
"""
    )
    found = cluster.layout("tree")
    assert isinstance(found, TreeLayout)
    paths = ["".join(path) for path, _ in found.rows]
    assert "['layers'][1].w" in paths
    assert "['opt'][0]" in paths
    w = array(cluster.layout("tree['layers'][1].w"))
    assert w.parts == array(cluster.layout("partly")).parts
    assert isinstance(cluster.layout("tree['layers']"), TreeLayout)
    assert array_queries.check(cluster.world, "tree").ok


# ------------------------------------------------------------------------------------------ more


def test_meshes_of_variables_and_arrays_are_found(cluster: jaxcluster.Cluster) -> None:
    found = array_queries.meshes(cluster.world)
    names = {info.name: info for info in found.found}
    assert names["mesh"].axis_sizes == [4, 2]
    assert names["half"].axis_sizes == [4]
    devices = printed(cluster, "[d.id for d in cube.devices.flat]")[0]
    assert names["cube"].devices == devices
    with pytest.raises(UsageError, match="no mesh 'nope'"):
        array_queries.meshes(cluster.world, "nope")


def test_documents_are_json_and_the_widget_answers_questions(cluster: jaxcluster.Cluster) -> None:
    view = shards.shards(cluster, "two_axes")
    document = view[SHARDS_MIME]
    assert json.loads(json.dumps(document))["kind"] == "array"
    assert {*view} == {SHARDS_MIME, "text/html", "text/plain"}
    sent: list[Any] = []
    widget = ShardWidget(view, functools.partial(shards.answer, cluster, "two_axes"))
    widget.send = sent.append
    first = document["parts"][0][1][0][0]
    question = {"id": 1, "op": "stats", "name": "two_axes", "rank": 0, "device": first}
    widget._on_question(widget, question, [])
    widget._on_question(widget, question | {"id": 2, "rank": 3}, [])
    widget._on_question(
        widget, question | {"id": 3, "op": "peek", "start": [0, 0], "stop": [2, 2]}, []
    )
    widget._on_question(widget, {"id": 4, "op": "check"}, [])
    widget._on_question(widget, {"id": 5, "op": "look", "name": "nothing"}, [])
    json.dumps(sent)
    assert sent[0]["result"]["maximum"] == 11
    assert sent[1]["result"] is None
    assert sent[2]["result"]["values"] == ["0", "1", "8", "9"]
    assert sent[3]["result"]["ok"]
    assert "No rank has" in sent[4]["error"]

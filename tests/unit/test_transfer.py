"""Values between notebook and ranks: the parts that need no rank."""

from __future__ import annotations

import contextlib
import errno
import io
import itertools
import os
import pickle
import sys
import tracemalloc
import types
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import cloudpickle
import numpy as np
import pytest

from jaxcluster import wire
from jaxcluster.agreement.cellqueue import CellSpec
from jaxcluster.cluster import transfer
from jaxcluster.engine.values import HELD_S, CannotPickle, Values
from jaxcluster.errors import (
    NotAddressable,
    NotSerialisable,
    TransferError,
    UsageError,
)
from jaxcluster.model import layout
from jaxcluster.supervision.processes import pid_space
from jaxcluster.wire.link import Event, Sink
from jaxcluster.wire.ops.values import Assign, Describe, Described, Forget, Given


def info(shape: tuple[int, ...], *shards: wire.Shard, **more: Any) -> wire.ArrayInfo:
    return wire.ArrayInfo(shape, "float32", True, shards, **more)


def shard(*index: tuple[int, int], rank: int = 0) -> wire.Shard:
    return wire.Shard(rank, 0, index, 4)


# --------------------------------------------------------------------------- names


@pytest.mark.parametrize("name", ["", "a b", "x.y", "x[0]", "1x", "class", "None", 3, None])
def test_what_is_no_name_is_refused_by_name(name: Any) -> None:
    transfer.check_names(["x", "_x1", "größe", "match"])
    with pytest.raises(UsageError) as caught:
        transfer.check_names(["good", name])
    assert str(caught.value) == (
        f"{name!r} is not a variable name.\nFor example: %pull x   or   %push a b"
    )


# --------------------------------------------------------------------------- sizes


def test_what_does_not_fit_says_both_sizes_and_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    memory = types.SimpleNamespace(available=1 << 30)
    monkeypatch.setattr(transfer.psutil, "virtual_memory", lambda: memory)
    transfer.check_memory("x", 1 << 30)
    with pytest.raises(TransferError) as caught:
        transfer.check_memory("x", (1 << 30) + (1 << 29))
    assert str(caught.value) == (
        "x holds 1.5 GiB; this machine has 1.0 GiB free.\n"
        "Pull a part: %spmd part = x[:100]   then   %pull part"
    )


# --------------------------------------------------------------------------- dtypes


@pytest.mark.parametrize("name", ["float32", "bool", "bfloat16", "float8_e4m3fn", "int4"])
def test_dtypes_are_known_without_jax(name: str) -> None:
    dtype = transfer.numpy_dtype(name)
    assert dtype.name == name
    assert np.zeros(3, dtype).astype(np.float32).sum() == 0


# --------------------------------------------------------------------------- whole arrays


@pytest.mark.parametrize("dtype", ["i4", "u1", "bfloat16", "c16"])
def test_shards_are_joined(dtype: str) -> None:
    """Shards of an array in any order; beside them whole arrays, one of them empty."""
    kind = transfer.numpy_dtype(dtype)
    want = np.arange(8 * 9 * 2).astype(kind).reshape(8, 9, 2)
    arrays = [want, np.full((), 5, kind), np.zeros((0, 3), kind)]
    spans = itertools.product([(3, 8), (0, 3)], [(0, 3), (3, 4), (4, 9)])
    shards = [[shard(*one, (0, 2)) for one in spans], [shard()], [shard((0, 0), (0, 3))]]
    layouts = [
        layout.ArrayLayout(array.shape, dtype, True, (*own, replace(own[0], replica_id=1)))
        for array, own in zip(arrays, shards, strict=True)
    ]
    value = transfer._Value("x", "t", b"", 0, layouts)
    memory = bytearray(value.total)
    frames = [
        array[tuple(slice(*span) for span in one.index)].tobytes()
        for array, own in zip(arrays, shards, strict=True)
        for one in own
    ]
    file = memoryview(b"".join(frames))
    join = transfer._join(value.targets(memory)[0])
    for at in range(0, len(file), 37):  # in parts that end within rows, and within elements
        join(at, file[at : at + 37])
    assert all((a == b).all() for a, b in zip(value.arrays(memory), arrays, strict=True))


# --------------------------------------------------------------------------- unpickling


class RankPickler(cloudpickle.Pickler):  # type: ignore[misc]
    """Leaves arrays out as a rank's pickler leaves out jax.Arrays."""

    def persistent_id(self, obj: Any) -> Any:
        return 0 if isinstance(obj, np.ndarray) else None


def pickled(value: Any) -> bytes:
    file = io.BytesIO()
    RankPickler(file, protocol=5).dump(value)
    return file.getvalue()


@pytest.fixture
def foreign_module() -> Iterator[types.ModuleType]:
    """A module that exists only where the value was pickled."""
    module = types.ModuleType("only_on_the_ranks")
    exec("class Thing:\n    pass", module.__dict__)
    sys.modules[module.__name__] = module
    module.Thing.__module__ = module.__name__
    yield module
    sys.modules.pop(module.__name__, None)


@pytest.mark.parametrize(
    ("is_module_here", "told"),
    [
        (False, "The value needs a module that this notebook does not have: only_on_the_ranks.\n"),
        (True, "The value can't be rebuilt in this notebook: "),
    ],
)
def test_a_module_or_class_that_is_not_here_is_named(
    foreign_module: types.ModuleType, is_module_here: bool, told: str
) -> None:
    data = pickle.dumps(foreign_module.Thing())
    del foreign_module.Thing
    if not is_module_here:
        sys.modules.pop(foreign_module.__name__)
    with pytest.raises(NotSerialisable) as caught:
        transfer.load(data, [], [])
    assert str(caught.value).startswith(told)


@pytest.mark.parametrize("module", ["jax.sharding", "jaxlib", "jax"])
def test_unpickling_never_imports_jax(no_jax: None, module: str) -> None:
    data = b"c" + f"{module}\nPartitionSpec\n.".encode()
    before = list(sys.meta_path)
    with pytest.raises(transfer.NeedsJax):
        transfer.load(data, [], [])
    assert not any(name.split(".")[0] in ("jax", "jaxlib") for name in sys.modules)
    assert sys.meta_path == before


def test_a_notebook_that_has_jax_hears_what_is_missing(
    foreign_module: types.ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    jax = types.ModuleType("jax")
    monkeypatch.setitem(sys.modules, "jax", jax)
    monkeypatch.setattr(jax, "Thing", types.SimpleNamespace, raising=False)
    data = b"(cjax\nThing\n" + pickle.dumps(foreign_module.Thing(), 0)
    sys.modules.pop(foreign_module.__name__)
    with pytest.raises(NotSerialisable, match="a module that this notebook does not have: only"):
        transfer.load(data, [], [])


# --------------------------------------------------------------------------- shared memory


def test_memory_is_shared_only_on_one_host_with_room(monkeypatch: pytest.MonkeyPatch) -> None:
    def shares(*host_keys: str, nbytes: int = 1 << 20, space: str = "") -> bool:
        facts = [types.SimpleNamespace(host_key=key) for key in host_keys]
        record = types.SimpleNamespace(facts=facts, pid_space=space or pid_space())
        world: Any = types.SimpleNamespace(record=record)
        return transfer.shares_memory(world, nbytes)

    monkeypatch.setattr(transfer, "host_key", lambda: "here")
    monkeypatch.setattr(transfer, "free_memory", lambda: 64 << 20)
    assert shares("here", "here")
    assert not shares("here", "there")
    assert not shares("here", nbytes=64 << 20)
    assert not shares("here", space="another container")


def test_a_shared_file_leaves_nothing_behind_and_keeps_its_bytes() -> None:
    with transfer._shared_file(1000) as (path, memory), open(path, "r+b") as again:
        again.write(b"from a rank")
    assert not Path(path).exists()
    assert memory[:11] == b"from a rank"


# --------------------------------------------------------------------------- asking the ranks


TURN = CellSpec(1, (0, 1))


class Ranks:
    """Two ranks on this host that answer as they are told, and what they were asked."""

    def __init__(self, answers: dict[str, Any]) -> None:
        self.num_processes, self.is_over = 2, False
        facts = [types.SimpleNamespace(host_key="here")]
        self.record = types.SimpleNamespace(facts=facts, pid_space=pid_space())
        self.link = self
        self.answers = answers
        self.asked: list[tuple[str, int, Any, int]] = []

    def check_ranks(self, ranks: Any) -> list[int]:
        return [0, 1] if ranks is None else list(ranks)

    @property
    def processes(self) -> Any:
        return self

    def memory(self, ranks: Any) -> Any:
        raise transfer.NoRoom

    def ask(
        self, ranks: Any, request: Any, *, buffers: Any = (), **more: Any
    ) -> dict[int, Event[Any]]:
        for rank in ranks:
            sent = request[rank] if isinstance(request, Mapping) else request
            op, nbytes = sent.op, sum(memoryview(b).nbytes for b in buffers)
            self.asked.append((op, rank, sent, nbytes))
        made = self.answers.get(op)
        if isinstance(made, BaseException):
            raise made
        return {rank: Event(rank, "reply", "", *made[rank]) for rank in ranks} if made else {}

    def ask_in_turn(self, each: Mapping[int, Any], **more: Any) -> dict[int, Event[Any]]:
        return self.ask(list(each), {rank: make(TURN) for rank, make in each.items()}, **more)

    def request_each(self, each: Any, *, sink: Sink) -> list[str]:
        op = next(iter(each.values())).op
        self.asked += [(op, rank, request, 0) for rank, request in each.items()]
        if isinstance(made := self.answers.get(op), BaseException):
            raise made
        for rank in each:
            sink.put(Event(rank, *(made or {}).get(rank, ("reply", "", ["x"]))))
        return []

    def forget(self, ids: Any) -> None:
        """Nobody waits."""

    def tokens(self, op: str) -> dict[int, str]:
        return {rank: body.token for asked, rank, body, _ in self.asked if asked == op}


def view(**changes: Any) -> Described:
    return Described([replace(info((4,), shard((0, 4))), **changes)])


def both(first: Described, second: Described) -> dict[int, Any]:
    return {0: (first, [b"."]), 1: (second, [])}


HALF = (shard((0, 2)),)


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (both(view(), view(shape=(5,))), "x is not the same on all ranks: another array on rank 1"),
        (both(view(), view(dtype="int32")), "another array on rank 1"),
        (both(view(), view(spans=False, on="1")), "another array on rank 1"),
        (both(view(), Described([])), "x is not the same on all ranks: fewer arrays on rank 1"),
        (
            both(view(), view(shards=(shard((0, 2), rank=1),), sharding="other")),
            "another array on rank 1",
        ),
        (
            both(view(shards=HALF), view(shards=(replace(shard((2, 4), rank=1), replica_id=1),))),
            "another array on rank 1",
        ),
        (
            both(view(shards=HALF), view(shards=())),
            "No rank of this cluster has 2 of the 4 elements of x.",
        ),
        (
            both(view(), view(shards=(), note="deleted or donated")),
            "x is deleted or donated on rank 1: it no longer has values.",
        ),
        (both(view(shape=(1 << 60,), spans=False, shards=(shard((0, 1 << 60)),)), view()), "free"),
        (KeyboardInterrupt("stop"), "stop"),
        (TransferError("no"), "no"),
    ],
)
def test_a_pull_that_fails_says_why_and_leaves_no_value_held(answer: Any, told: str) -> None:
    ranks = Ranks({"describe": answer})
    with pytest.raises((NotAddressable, TransferError, KeyboardInterrupt), match=told):
        transfer.pull(ranks, "x")  # type: ignore[arg-type]
    assert len(set(ranks.tokens("describe").values())) == 1
    assert ranks.tokens("forget") == ranks.tokens("describe")


def test_a_pull_that_ends_well_leaves_no_value_held_either() -> None:
    """Of a value that each rank has for itself, only rank 0 is asked for the bytes."""
    dumped = pickled(np.zeros(4, "float32"))
    ones = memoryview(np.ones(4, "float32")).cast("B")
    local = view(spans=False)
    ranks = Ranks(
        {
            "describe": {0: (local, [dumped]), 1: (local, [])},
            "give": {0: (Given([]), [ones])},
        }
    )
    assert transfer.pull(ranks, "x").tolist() == [1, 1, 1, 1]  # type: ignore[arg-type]
    assert ranks.tokens("forget") == ranks.tokens("describe")


def test_what_ranks_have_different_copies_of_is_not_pulled() -> None:
    copies = [(replace(shard((0, 4), rank=rank), replica_id=1 - rank),) for rank in (0, 1)]
    dumped, ones = pickled(np.zeros(4, "float32")), memoryview(np.ones(4, "float32")).cast("B")

    def pulled(first: str, second: str) -> Any:
        hashes = [Given([[0, [[0, 4]], digest]]) for digest in (first, second)]
        describe = {0: (view(shards=copies[0]), [dumped]), 1: (view(shards=copies[1]), [])}
        give = {0: (hashes[0], []), 1: (hashes[1], [ones])}
        return transfer.pull(Ranks({"describe": describe, "give": give}), "x")  # type: ignore[arg-type]

    assert pulled("a", "a").tolist() == [1, 1, 1, 1]
    told = "The ranks have different copies of x: rank 0 has one, rank 1 has another"
    with pytest.raises(TransferError, match=told):
        pulled("a", "b")


class OverHosts(Ranks):
    """Two ranks on other hosts: each has a file, which comes in parts of 1000 bytes."""

    def __init__(self, answers: dict[str, Any], files: list[bytes]) -> None:
        super().__init__(answers)
        self.files = files
        self.record.facts = [types.SimpleNamespace(host_key="there")] * 2

    @contextlib.contextmanager
    def memory(self, ranks: Any) -> Iterator[Any]:
        yield self

    def path(self, rank: int, name: str) -> str:
        return f"/there/{name}"

    def get(self, files: Any) -> None:
        for rank, _, size, take in files:
            assert size == len(self.files[rank])
            for at in range(0, size, 1000):
                take(at, memoryview(self.files[rank])[at : at + 1000])


@pytest.mark.parametrize("axis", [0, 2])
def test_a_pull_from_other_hosts_has_its_bytes_in_memory_once(
    monkeypatch: pytest.MonkeyPatch, axis: int
) -> None:
    monkeypatch.setattr(transfer, "PIECE_NBYTES", 10_000)
    want = np.arange(400_000, dtype="float32").reshape(2, 100, 2_000)
    cuts = [*((0, size) for size in want.shape)], [*((0, size) for size in want.shape)]
    cuts[0][axis], cuts[1][axis] = (0, 1), (1, want.shape[axis])
    files = [want[tuple(slice(*span) for span in cut)].tobytes() for cut in cuts]
    shards = shard(*cuts[0]), shard(*cuts[1], rank=1)
    described = [Described([info(want.shape, one)]) for one in shards]
    ranks = OverHosts(
        {
            "describe": {0: (described[0], [pickled(want)]), 1: (described[1], [])},
            "give": dict.fromkeys((0, 1), (Given([]), [])),
        },
        files,
    )
    tracemalloc.start()
    try:
        value = transfer.pull(ranks, "x")  # type: ignore[arg-type]
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    np.testing.assert_array_equal(value, want)
    assert most < 1.2 * want.nbytes


def test_a_rank_lets_go_of_values_that_nobody_will_ask_for(monkeypatch: pytest.MonkeyPatch) -> None:
    values, now = Values(0), [0.0]
    monkeypatch.setattr("jaxcluster.engine.values.time.monotonic", lambda: now[0])

    def forget(token: str) -> None:
        values.forget(types.SimpleNamespace(body=Forget(token)))  # type: ignore[arg-type]

    values._keep("a", 1)
    forget("a")
    forget("late")  # the value is described only now: its describe had waited for a cell
    values._keep("late", 2)
    assert values._kept == {}
    values._keep("killed", 3)
    now[0] += HELD_S + 1
    values._keep("b", 4)
    assert list(values._kept) == ["b"]


@pytest.mark.parametrize("mode", ["r", "w", "rb", "r+b", "wb"])
def test_an_open_file_does_not_travel_as_something_else(tmp_path: Path, mode: str) -> None:
    """By cloudpickle a text file would arrive as a ``StringIO``."""
    path, ranks, values = tmp_path / "file.txt", Ranks({}), Values(0)
    path.write_text("text")
    told = f"can't be pickled{{}}: TypeError: '{path}' is an open file. Send its path, or what"
    with open(path, mode) as file:
        for value in (file, {"deep": [file]}):
            with pytest.raises(NotSerialisable) as refused:
                transfer.push(ranks, {"one": 1, "f": value})  # type: ignore[arg-type]
            assert str(refused.value).startswith(f"f {told.format('')}")
            values.namespace["f"] = value
            request: Any = types.SimpleNamespace(body=Describe(TURN, "f", pickle=True))
            with pytest.raises(CannotPickle) as caught:
                values.describe_value(request)
            assert str(caught.value).startswith(f"f {told.format(' on rank 0')}")
    with pytest.raises(NotSerialisable, match="is an open file"):
        transfer.push(ranks, {"f": io.BufferedReader(io.BytesIO())})  # type: ignore[arg-type]
    assert ranks.asked == []


def test_a_push_in_frames_needs_room_for_every_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transfer, "free_memory", lambda: 0)
    array = np.zeros(1 << 20, np.uint8)
    memory = types.SimpleNamespace(available=(2 << 20) - 1)
    monkeypatch.setattr(transfer.psutil, "virtual_memory", lambda: memory)
    ranks = Ranks({})
    with pytest.raises(TransferError, match=r"x holds 2.0 MiB"):
        transfer.push(ranks, {"x": array})  # type: ignore[arg-type]
    assert ranks.asked == []
    transfer.push(ranks, {"x": array}, [1])  # type: ignore[arg-type]
    assert [(op, rank, nbytes >> 20) for op, rank, _, nbytes in ranks.asked] == [
        ("assign", 1, 1),
        ("assign_bind", 1, 0),
    ]
    assert ranks.tokens("assign") == ranks.tokens("assign_bind")


@pytest.mark.parametrize("error", [KeyboardInterrupt(), TransferError("no room")])
def test_what_not_all_ranks_can_read_is_bound_on_none(error: BaseException) -> None:
    ranks = Ranks({"assign": error})
    with pytest.raises(type(error)):
        transfer.push(ranks, {"x": 1})  # type: ignore[arg-type]
    assert "assign_bind" not in {op for op, *_ in ranks.asked}
    assert ranks.tokens("forget") == ranks.tokens("assign")


def test_a_rank_binds_what_was_pushed_when_it_is_told_so() -> None:
    values = Values(0)

    def request(token: str) -> Any:
        return types.SimpleNamespace(body=Assign(TURN, token), buffers=[pickle.dumps({"x": token})])

    values.assign(request("a"))
    values.assign(request("b"))
    values.forget(request("b"))
    values.forget(request("late"))
    values.assign(request("late"))
    assert values.namespace == {}
    assert values.assign_bind(request("a")) == ["x"]
    assert values.namespace == {"x": "a"}
    assert values._kept == {}


def test_a_push_that_finds_no_shared_memory_goes_in_frames(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transfer, "host_key", lambda: "here")

    def full(*_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    ranks = Ranks({})
    transfer.push(ranks, {"x": np.zeros(1 << 20, np.uint8)})  # type: ignore[arg-type]
    asked = [(op, rank, body.path, nbytes >> 20) for op, rank, body, nbytes in ranks.asked[:2]]
    assert asked == [("assign", 0, "", 1), ("assign", 1, "", 1)]


def test_an_empty_array_is_pushed_beside_a_large_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """It has no bytes, so it begins where the next one does."""
    monkeypatch.setattr(transfer, "host_key", lambda: "here")
    ranks = Ranks({})
    size = transfer.SHARED_FROM_NBYTES
    transfer.push(ranks, {"none": np.zeros(0), "x": np.ones(size, np.uint8)})  # type: ignore[arg-type]
    (_, _, first, in_frames), (_, _, second, _) = ranks.asked[:2]
    assert first.buffers == [[0, 0], [0, size]]
    assert first is second  # it is encoded once
    assert in_frames < size


# --------------------------------------------------------------------------- ranks that differ


def described(rank: int, source: str) -> tuple[Values, Described, bytes]:
    """What a rank says of its ``d``, which a cell has made."""
    values = Values(rank)
    values.namespace["__name__"] = "__main__"
    exec(source, values.namespace)
    request: Any = types.SimpleNamespace(body=Describe(TURN, "d", pickle=True, token="t"))
    told, (dumped,) = values.describe_value(request)
    return values, told, dumped


ARRAYS = "import jax.numpy as jnp\nx, y = jnp.zeros(1), jnp.zeros(2)\nclass Model: pass\nd = "


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("{'a': x, 'b': y}", "{'b': y, 'a': x}"),
        ("[{'a': x, 'b': (y, x)}]", "[{'b': (y, x), 'a': x}]"),
        ("{2: x, 1: y}", "{1: y, 2: x}"),
    ],
)
def test_dicts_that_ranks_have_filled_in_another_order_have_the_same_arrays(
    one: str, other: str
) -> None:
    first, second = described(0, ARRAYS + one)[1], described(1, ARRAYS + other)[1]
    assert [array.shape for array in first.arrays] == [array.shape for array in second.arrays]
    assert first.places == second.places


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("{'a': x}", "{'b': x}"),
        ("Model(); d.p = x; d.q = x + 1", "Model(); d.q = x + 1; d.p = x"),
    ],
)
def test_arrays_at_different_places_are_not_put_together(one: str, other: str) -> None:
    first, second = described(0, ARRAYS + one)[1], described(1, ARRAYS + other)[1]
    spans = [info((4,), shard((0, 4))) for _ in first.arrays]
    answers = {
        rank: (replace(told, arrays=spans), [b"."]) for rank, told in enumerate([first, second])
    }
    with pytest.raises(TransferError, match="not the same on all ranks: another array on rank 1"):
        transfer.pull(Ranks({"describe": answers}), "d")  # type: ignore[arg-type]


CELL = """
import enum
class Box:
    total = 0
class Color(enum.Enum):
    RED = 1
d = [Box(), Box(), Color.RED]
"""


def test_what_was_pulled_and_is_pushed_is_of_each_ranks_own_class() -> None:
    ranks = [described(rank, CELL) for rank in (0, 1)]
    value = pickle.loads(ranks[0][2])
    sent = cloudpickle.dumps({"back": value})
    for values, _, _ in ranks:
        values.namespace["Box"].total = 3  # since then
        request: Any = types.SimpleNamespace(body=Assign(TURN, "p"), buffers=[sent])
        values.assign(request)
        values.assign_bind(request)
        names = values.namespace
        first, second, color = names["back"]
        assert type(first) is type(second) is names["Box"]
        assert color is names["Color"].RED
        assert names["Box"].total == 3


def test_a_class_of_the_notebooks_comes_as_it_is_there() -> None:
    names: dict[str, Any] = {"__name__": "__main__"}
    exec("class Own:\n    rate = 1", names)
    values = Values(0)
    for rate in (1, 2):
        names["Own"].rate = rate
        sent = cloudpickle.dumps({"own": names["Own"]()})
        request: Any = types.SimpleNamespace(body=Assign(TURN, "p"), buffers=[sent])
        values.assign(request)
        values.assign_bind(request)
        assert values.namespace["own"].rate == rate

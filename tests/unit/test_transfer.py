"""Values between notebook and ranks: the parts that need no rank."""

from __future__ import annotations

import errno
import io
import os
import pickle
import sys
import types
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import cloudpickle
import numpy as np
import pytest

from jaxcluster import wire
from jaxcluster.agreement.messages import CellSpec
from jaxcluster.cluster import transfer
from jaxcluster.errors import (
    NotAddressable,
    NotSerialisable,
    TransferError,
    UsageError,
)
from jaxcluster.host.memory import read_memory
from jaxcluster.model import layout
from jaxcluster.rank.arrays import Unavailable
from jaxcluster.rank.state.states import States
from jaxcluster.rank.values import CannotPickle, Values
from jaxcluster.supervision.processes import pid_space
from jaxcluster.wire.link import Event, Sink
from jaxcluster.wire.ops.saving import Bind, Drop, Made
from jaxcluster.wire.ops.values import FILE_FROM_NBYTES, Assign, Pull, Pulled


def info(shape: tuple[int, ...], *shards: wire.Shard, **more: Any) -> wire.ArrayInfo:
    return wire.ArrayInfo(shape, "float32", True, shards, **more)


def shard(*index: tuple[int, int], rank: int = 0) -> wire.Shard:
    return wire.Shard(rank, 0, index, 4 * layout.volume(index))


# --------------------------------------------------------------------------- names


@pytest.mark.parametrize("name", ["", "a b", "x.y", "x[0]", "1x", "class", "None", 3, None])
def test_what_is_no_name_is_refused_by_name(name: Any) -> None:
    transfer.check_names(["x", "_x1", "größe", "match"])
    with pytest.raises(UsageError) as caught:
        transfer.check_names(["good", name])
    assert str(caught.value) == (
        f"{name!r} is not a variable name.\nFor example: %pull x   or   %push a b"
    )


# --------------------------------------------------------------------------- unpickling


class RankPickler(cloudpickle.Pickler):  # type: ignore[misc]
    """Leaves arrays out as a rank's pickler leaves out jax.Arrays."""

    def persistent_id(self, obj: Any) -> Any:
        return 0 if isinstance(obj, np.ndarray) else None


def pickled(value: Any) -> bytes:
    file = io.BytesIO()
    RankPickler(file, protocol=5).dump(value)
    return file.getvalue()


@pytest.mark.parametrize(("module", "has_jax"), [("only_there", False), ("json", True)])
def test_a_module_or_class_that_is_not_here_is_named(
    monkeypatch: pytest.MonkeyPatch, module: str, has_jax: bool
) -> None:
    if has_jax:
        monkeypatch.setitem(sys.modules, "jax", types.ModuleType("jax"))
    with pytest.raises(NotSerialisable, match=f"can't be rebuilt in this notebook: .*{module}"):
        transfer.load(f"c{module}\nThing\n.".encode(), [], [])


@pytest.mark.parametrize("module", ["jax.sharding", "jaxlib", "jax"])
def test_unpickling_never_imports_jax(no_jax: None, module: str) -> None:
    data = b"c" + f"{module}\nPartitionSpec\n.".encode()
    before = list(sys.meta_path)
    with pytest.raises(transfer.NeedsJax):
        transfer.load(data, [], [])
    assert not any(name.split(".")[0] in ("jax", "jaxlib") for name in sys.modules)
    assert sys.meta_path == before


# --------------------------------------------------------------------------- asking the ranks


TURN = CellSpec(1, (0, 1))


class Ranks:
    """Two ranks on this host that answer as they are told, and what they were asked.

    An answer is a reply's body and buffers, or what a rank does with its request.
    """

    host_key = "here"

    def __init__(self, answers: dict[str, Any]) -> None:
        self.num_processes, self.is_over, self.dead = 2, False, dict[int, Any]()
        self.is_readable = True
        self.facts, self.pid_space = [self] * 2, pid_space()
        self.record = self.link = self.processes = self
        self.pids = [0, 0]
        self.answers = {"bind": dict.fromkeys((0, 1), (Made([]), []))} | answers
        self.names: dict[int, set[str]] = {}
        self.dead: dict[int, wire.Death] = {}
        self.asked: list[tuple[str, int, Any, int]] = []

    def check_ranks(self, ranks: Any) -> list[int]:
        return [0, 1] if ranks is None else list(ranks)

    def memory(self, ranks: Any) -> Any:
        raise transfer.NoRoom

    def ask_in_turn(
        self, each: Mapping[int, Any], *, buffers: Any = (), **more: Any
    ) -> dict[int, Event[Any]]:
        found = {}
        for rank, make in each.items():
            sent = make(TURN)
            self.asked.append((sent.op, rank, sent, sum(memoryview(b).nbytes for b in buffers)))
            if isinstance(made := self.answers.get(sent.op), BaseException):
                raise made
            answer = made[rank] if made is not None else (None, [])
            found[rank] = Event(rank, "reply", "", *(answer(sent) if callable(answer) else answer))
        return found

    def request_each(self, each: Any, *, sink: Sink) -> None:
        self.asked += [(request.op, rank, request, 0) for rank, request in each.items()]

    def tokens(self, op: str) -> dict[int, str]:
        return {rank: body.token for asked, rank, body, _ in self.asked if asked == op}


@pytest.fixture(autouse=True)
def this_host(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transfer, "space", lambda *_: "here")


def view(**changes: Any) -> Pulled:
    return Pulled([replace(info((4,), shard((0, 4))), **changes)])


def both(first: Pulled, second: Pulled, *data: bytes) -> dict[int, Any]:
    """What two ranks answer: the pickle is an array."""
    one, other = data or (bytes(16), b"")
    return {0: (first, [pickled(np.zeros(1)), one]), 1: (second, [other])}


HALF = (shard((0, 2)),)


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (both(view(), view(shape=(5,))), "x is not the same on all ranks: another array on rank 1"),
        (both(view(), view(dtype="int32")), "another array on rank 1"),
        (both(view(), view(spans=False, on="1")), "another array on rank 1"),
        (both(view(), Pulled([])), "x is not the same on all ranks: fewer arrays on rank 1"),
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
        (
            both(replace(view(), total=1 << 60), view(shards=())),
            "x holds .*; this machine has room for",
        ),
        (
            both(
                replace(view(), copies=[[0, [[0, 4]], "a"]]),
                replace(view(shards=()), copies=[[0, [[0, 4]], "b"]]),
            ),
            "The ranks have different copies of x: rank 0 has one, rank 1 has another",
        ),
    ],
)
def test_a_pull_of_what_is_no_one_value_says_why(answer: Any, told: str) -> None:
    with pytest.raises((NotAddressable, TransferError), match=told):
        transfer.pull(Ranks({"pull": answer}), "x")  # type: ignore[arg-type]


@pytest.mark.parametrize("mode", ["r", "w", "rb", "r+b", "wb"])
def test_an_open_file_does_not_travel_as_something_else(tmp_path: Path, mode: str) -> None:
    """By cloudpickle a text file would arrive as a ``StringIO``."""
    path, ranks, values = tmp_path / "file.txt", Ranks({}), Values(0)
    path.write_text("text")
    told = f"f can't be pickled: TypeError: '{path}' is an open file. Use its path or its"
    with open(path, mode) as file:
        for value in (file, {"deep": [file]}):
            with pytest.raises(NotSerialisable) as refused:
                transfer.push(ranks, {"one": 1, "f": value})  # type: ignore[arg-type]
            assert str(refused.value).startswith(told)
            values.namespace["f"] = value
            with pytest.raises(CannotPickle) as caught:
                values.pull(request(Pull(TURN, "f", pickle=True)))
            assert str(caught.value).startswith(told)
            assert caught.value.hint.endswith("%spmd print(f)")
    with pytest.raises(NotSerialisable, match="is an open file"):
        transfer.push(ranks, {"f": io.BufferedReader(io.BytesIO())})  # type: ignore[arg-type]
    assert ranks.asked == []


@pytest.mark.parametrize("free", [1 << 30, 3 << 19])
def test_a_push_without_a_file_in_memory_goes_in_frames_if_they_fit(
    monkeypatch: pytest.MonkeyPatch, free: int
) -> None:
    def full(*_: int) -> None:
        raise OSError(errno.EFBIG, "File too large")  # as by ``ulimit -f``

    monkeypatch.setattr(os, "posix_fallocate", full)
    monkeypatch.setattr(
        transfer.psutil, "virtual_memory", lambda: types.SimpleNamespace(available=free)
    )
    ranks, values = Ranks({}), {"x": np.zeros(1 << 20, np.uint8)}
    if free > 2 << 20:
        transfer.push(ranks, values)  # type: ignore[arg-type]
        assert [nbytes >> 20 for op, _, _, nbytes in ranks.asked if op == "assign"] == [1, 1]
        return
    told = r"The values hold 1.0 MiB for each of 2 ranks; this machine has 1.5 MiB free"
    with pytest.raises(TransferError, match=told):
        transfer.push(ranks, values)  # type: ignore[arg-type]
    assert ranks.asked == []


@pytest.mark.parametrize("is_here", [True, False])
def test_a_rank_holds_what_it_had_until_it_has_been_read(is_here: bool) -> None:
    """A cell may change or unbind the array meanwhile."""
    values, held, read = Values(0), dict[str, Any](), np.empty(FILE_FROM_NBYTES, np.uint8)
    values.hold = held.__setitem__
    values.namespace["d"] = data = np.ones(FILE_FROM_NBYTES, np.uint8)
    asked = Pull(TURN, "d", pickle=True, token="t", reader=os.getpid() * is_here)
    told, _ = values.pull(request(asked))
    data[:] = 2
    del values.namespace["d"], data
    ((address, nbytes),) = told.spans
    assert nbytes == FILE_FROM_NBYTES
    read_memory(os.getpid(), address, read)
    assert read.tolist() == [1] * FILE_FROM_NBYTES and [*held] == ["t"]


@pytest.mark.parametrize("error", [KeyboardInterrupt(), TransferError("no room")])
def test_what_not_all_ranks_can_read_is_bound_on_none(error: BaseException) -> None:
    ranks = Ranks({"assign": error})
    with pytest.raises(type(error)):
        transfer.push(ranks, {"x": 1})  # type: ignore[arg-type]
    assert "bind" not in {op for op, *_ in ranks.asked}
    assert set(ranks.tokens("drop").values()) == set(ranks.tokens("assign").values())


class Rank:
    """What one rank reads of what is pushed, and binds."""

    def __init__(self, values: Values | None = None) -> None:
        self.values, self.states = values or Values(0), States(0, {})
        self.values.hold = self.states.hold
        self.names = self.states.namespace = self.values.namespace

    def read(self, token: str, sent: bytes) -> None:
        self.values.assign(request(Assign(TURN, token), sent))

    def bind(self, token: str) -> None:
        self.states.bind(request(Bind(TURN, token, {})))


def test_a_rank_binds_what_was_pushed_when_it_is_told_so() -> None:
    rank = Rank()
    for token in ("a", "b"):
        rank.read(token, pickle.dumps({"x": token}))
    for token in ("b", "late"):
        rank.states.drop(request(Drop(token)))
    rank.read("late", pickle.dumps({"x": "late"}))
    assert rank.names == {}
    for token in ("a", "b", "late"):
        rank.bind(token)
    assert rank.names == {"x": "a"}


def test_an_empty_array_is_pushed_beside_a_large_one() -> None:
    """It has no bytes, so it begins where the next one does."""
    ranks = Ranks({})
    size = FILE_FROM_NBYTES
    transfer.push(ranks, {"none": np.zeros(0), "x": np.ones(size, np.uint8)})  # type: ignore[arg-type]
    (_, _, first, in_frames), (_, _, second, _) = ranks.asked[:2]
    assert first.buffers == [[0, 0], [0, size]]
    assert first is second  # it is encoded once
    assert in_frames < size


# --------------------------------------------------------------------------- ranks that differ


def request(body: Any, *buffers: bytes) -> Any:
    return types.SimpleNamespace(body=body, buffers=buffers)


def pulled(rank: int, source: str) -> tuple[Values, Pulled, bytes]:
    """What a rank gives of its ``d``, which a cell has made."""
    values = Values(rank)
    values.namespace["__name__"] = "__main__"
    exec(source, values.namespace)
    told, (dumped, _) = values.pull(request(Pull(TURN, "d", pickle=True)))
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
    first, second = pulled(0, ARRAYS + one)[1], pulled(1, ARRAYS + other)[1]
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
    first, second = pulled(0, ARRAYS + one)[1], pulled(1, ARRAYS + other)[1]
    spans = [info((4,), shard((0, 4))) for _ in first.arrays]
    answers = {
        rank: (replace(told, arrays=spans), [b".", b""])
        for rank, told in enumerate([first, second])
    }
    with pytest.raises(TransferError, match="not the same on all ranks: another array on rank 1"):
        transfer.pull(Ranks({"pull": answers}), "d")  # type: ignore[arg-type]


CELL = """
import enum
class Box:
    total = 0
class Color(enum.Enum):
    RED = 1
def make():
    class Inner: __module__ = "elsewhere"
    return Inner
Inner = make()
d = [Box(), Box(), Color.RED, Inner()]
"""


def test_what_was_pulled_and_is_pushed_is_of_each_ranks_own_class() -> None:
    sent = cloudpickle.dumps({"back": pickle.loads(pulled(0, CELL)[2])})
    for rank in (0, 1):
        values = pulled(rank, CELL)[0]
        values.namespace["Box"].total = 3  # since then
        one = Rank(values)
        one.read("p", sent)
        one.bind("p")
        names = values.namespace
        first, second, color, inner = names["back"]
        assert type(first) is type(second) is names["Box"]
        assert type(inner) is names["Inner"]
        assert color is names["Color"].RED
        assert names["Box"].total == 3


def test_a_name_that_is_not_there_is_told_with_those_that_are_like_it() -> None:
    values = Values(3)
    values.namespace |= {"losses": 1, "_loses": 2}
    for name, hint in (("loses", "did you mean losses"), ("other", "%spmd %who lists the")):
        with pytest.raises(Unavailable, match=rf"no variable '{name}' \({hint}"):
            values.lookup(name)


def test_a_class_of_the_notebooks_comes_as_it_is_there() -> None:
    names: dict[str, Any] = {"__name__": "__main__"}
    exec("class Own:\n    rate = 1", names)
    rank = Rank()
    for rate in (1, 2):
        names["Own"].rate = rate
        sent = cloudpickle.dumps({"own": names["Own"]()})
        rank.read("p", sent)
        rank.bind("p")
        assert rank.names["own"].rate == rate

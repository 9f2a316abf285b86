"""What people put into notebooks comes back as it was."""

from __future__ import annotations

import dataclasses
import gc
import linecache
import os
import random
import time
import weakref
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import numpy as np
import pytest
from savednames import (
    CELLS,
    TURN,
    Comparison,
    load,
    namespace,
    run_cell,
    save,
    states_of,
    through_files,
)

from jaxcluster.rank import arrays as engine_arrays
from jaxcluster.rank import statements
from jaxcluster.rank.state import pickles
from jaxcluster.rank.state.file import StateFile
from jaxcluster.wire.ops.saving import Drop, Load, Save, SavePlace

IMPORTS = """
import dataclasses, enum, functools, sys, threading, typing
import equinox as eqx, jax, jax.numpy as jnp, numpy as np, optax
from jax.sharding import NamedSharding, PartitionSpec as P
mesh = jax.make_mesh((4,), ("x",))
x = jax.device_put(np.arange(8.0), NamedSharding(mesh, P("x")))
"""


def cell(source: str, names: dict[str, Any] | None = None) -> dict[str, Any]:
    names = namespace() if names is None else names
    run_cell(names, IMPORTS)
    run_cell(names, source)
    return names


def back(source: str) -> dict[str, Any]:
    """The namespace of a cell, as new processes have it."""
    names = cell(source)
    found, saved, values = through_files(names)
    assert not saved.lost and not values.lost, (saved.lost, values.lost)
    Comparison(names, found).names(n for n in names if not n.startswith("__"))
    return found


# ---------------------------------------------------------------------- arrays


def test_weak_types_keys_and_dtypes_stay() -> None:
    names = back(
        "weak, strong = jnp.asarray(2.0), jnp.float32(2)\n"
        "key, keys = jax.random.key(3), jax.random.split(jax.random.key(1, impl='rbg'), 4)\n"
        "low, int4, none = jnp.ones(3, 'bfloat16'), jnp.ones(3, 'int4'), jnp.zeros((0, 3))\n"
        "here, ref = jax.device_put(1.0, jax.devices()[2]), jax.new_ref(jnp.ones(3))\n"
        "also = [ref]\n"
    )
    names["ref"][0] = 5.0
    assert names["also"][0][...].tolist() == [5, 1, 1]
    assert names["weak"].weak_type and not names["strong"].weak_type
    assert not names["weak"].committed and names["here"].committed
    assert names["here"].devices() == {jax.devices()[2]}
    with jax.enable_x64(True):
        names = cell("wide = jnp.arange(3.0)\nassert wide.dtype == 'float64'")
    assert through_files(names)[0]["wide"].dtype == "float64"


def test_a_buffer_that_arrays_share_is_saved_once(tmp_path: Path) -> None:
    names = cell(
        "big = jax.device_put(np.zeros(1 << 20, 'int8'), jax.devices()[0])\n"
        "again = jax.device_put(big, big.sharding)\n"
        "copies = jax.device_put(np.zeros(1 << 20, 'int8'), NamedSharding(mesh, P()))\n"
    )
    assert 2 << 20 < save(names, tmp_path).nbytes < 2.2 * (1 << 20)


def test_a_save_holds_no_array_for_longer(tmp_path: Path) -> None:
    """Else autosave takes memory of the devices until Python next looks for garbage."""
    names = cell("big, gen = jnp.zeros(1 << 20), (i for i in range(3))\n@jax.jit\ndef f(): pass")
    gc.collect()
    gc.disable()
    try:
        save(names, tmp_path)
        big = weakref.ref(names.pop("big"))
        assert big() is None
    finally:
        gc.enable()


# ---------------------------------------------------------------------- functions


def test_jitted_functions_keep_their_options_and_others_their_derivatives() -> None:
    names = back(
        "def scale(a, n): return a * n + offset\n"
        "offset = 1\n"
        "jitted = jax.jit(scale, static_argnums=1, donate_argnums=0)\n"
        "out = jax.jit(lambda a: a, out_shardings=NamedSharding(mesh, P()))\n"
        "part = functools.partial(jitted, n=3)\n"
        "jitted.note = 'mine'\n"
        "@functools.cache\ndef fib(n): return n if n < 2 else fib(n - 1) + fib(n - 2)\n"
        "both = jax.vmap(jax.grad(lambda v: v * offset))\n"
        "@jax.custom_vjp\ndef double(x): return x * 2\n"
        "double.defvjp(lambda x: (double(x), x), lambda r, g: (g * 3,))\n"
        "@jax.custom_jvp\ndef half(x): return x / 2\n"
        "@half.defjvp\ndef half_jvp(p, t): return half(*p), t[0] * 5\n"
    )
    run_cell(names, "offset = 2\nr = part(jnp.ones(2)), out(x).sharding, fib(9), both(jnp.ones(8))")
    total, sharding, number, slopes = names["r"]
    assert total.tolist() == [5, 5] and sharding.spec == names["P"]() and number == 34
    assert slopes.tolist() == [2] * 8
    assert names["jitted"].lower(names["x"], 2).as_text() and names["jitted"].note == "mine"
    with pytest.raises(RuntimeError, match="deleted"):
        run_cell(names, "gone = jnp.ones(4)\njitted(gone, 2)\ngone + 1")
    assert jax.grad(names["double"])(1.0) == 3 and jax.grad(names["half"])(1.0) == 5


# ---------------------------------------------------------------------- classes


def test_classes_are_what_cells_have_made_of_them_since() -> None:
    names = back(
        "n = 1\nclass A:\n    rate = jnp.float32(1)\n    class In: pass\n"
        "    @property\n    def p(self, n=n): return n\n"
        "    @classmethod\n    def c(cls): return 1\n"
        "class B(A): pass\n"
        "n, A.rate, A.c, A.peer = 2, jnp.float32(2), staticmethod(lambda: 2), B\n"
    )
    cls = names["A"]
    assert (cls().p, cls.rate.tolist(), cls.c(), cls.peer) == (1, 2, 2, names["B"])
    assert cls.In.__qualname__ == "A.In"


def test_attributes_of_kinds_of_data_stay() -> None:
    names = back(
        "import collections\nclass A:\n    best, key = 1.0, None\n"
        "    count, left = collections.Counter(), collections.deque()\n"
        "A.best, A.key = np.float32(0.5), jax.random.key(1)\nA.count['a'] += 1; A.left.append(2)\n"
    )
    cls = names["A"]
    assert (cls.best, cls.count, [*cls.left]) == (0.5, {"a": 1}, [2])
    assert jax.random.key_data(cls.key).tolist() == [0, 1]


def test_code_of_cells_finds_its_globals_while_values_are_made() -> None:
    names = back(
        "salt = 3\ndef root(): return math.isqrt(9)\nimport math\n"
        "class Worker:\n    def __init__(self): self.n = 3\n"
        "    def __getstate__(self): return {}\n"
        "    def __setstate__(self, state): self.n = root()\n"
        "class Key:\n    def __hash__(self): return salt\n    def __repr__(self): return 'key'\n"
        "worker, table = Worker(), {Key(): 1}\n"
    )
    assert names["worker"].n == 3 and [*names["table"].values()] == [1]


def test_a_class_in_a_class_is_made_once() -> None:
    names = back(
        "class Outer:\n    class Mode(enum.Enum):\n        A = 1\n"
        "    class Part:\n        rate = 1\n        def __init__(self, w): self.w = w\n"
        "    class Lin(eqx.Module):\n        w: object\n    other: Part\n"
        "lin, Part = Outer.Lin(x), Outer.Part\n"
        "mode, inner, Outer.Part.rate = Outer.Mode.A, Part(x), 2\n"
        "jax.tree_util.register_pytree_node(Part, lambda i: ([i.w], None), lambda _, w: Part(*w))\n"
    )
    assert names["mode"] is names["Outer"].Mode.A and type(names["lin"]) is names["Outer"].Lin
    assert type(names["inner"]) is names["Part"] is names["Outer"].Part
    assert names["Part"].rate == 2 and len(jax.tree.leaves(names["inner"])) == 1


def test_objects_of_installed_modules_are_theirs() -> None:
    names = back(
        "from os import environ\nfrom random import random\nfrom dataclasses import MISSING\n"
        "from jax import config\n"
    )
    assert names["environ"] is os.environ and names["config"] is jax.config
    assert names["random"].__self__ is random._inst  # type: ignore[attr-defined]
    assert names["MISSING"] is dataclasses.MISSING


def test_a_class_is_made_again_by_any_number_of_restarts() -> None:
    """Its file need not have the statement where it stands: above it may be ``%%time``."""
    names = cell("\nclass M(eqx.Module):\n    a: object\n    def f(self): return self.a\nm = M(x)")
    linecache.cache[CELLS[-1]] = 1, None, ["%ls\n", "class"], CELLS[-1]
    code = names["M"].f.__code__
    for _ in range(3):
        names, saved, made = through_files(names)
        assert not saved.lost and not made.lost and len(jax.tree.leaves(names["m"])) == 1
        again = names["M"].f.__code__
        assert (again.co_filename, again.co_firstlineno) == (code.co_filename, code.co_firstlineno)


def test_classes_that_are_gone_are_not_known() -> None:
    before = len(statements._noted)
    run_cell({}, "for n in range(200):\n    class A: pass\nimport gc; del A; gc.collect()")
    assert len(statements._noted) <= before


def test_pytrees_of_cells_are_registered_again() -> None:
    names = back(
        "@jax.tree_util.register_pytree_with_keys_class\n"
        "class Box:\n"
        "    def __init__(self, a): self.a = a\n"
        "    def tree_flatten_with_keys(self):\n"
        "        return ((jax.tree_util.GetAttrKey('a'), self.a),), None\n"
        "    def tree_flatten(self): return (self.a,), None\n"
        "    @classmethod\n"
        "    def tree_unflatten(cls, aux, children): return cls(*children)\n"
        "class Later:\n"
        "    def __init__(self, a): self.a = a\n"
        "jax.tree_util.register_pytree_with_keys(\n"
        "    Later, lambda one: (((jax.tree_util.GetAttrKey('a'), one.a),), None),\n"
        "    lambda aux, children: Later(*children))\n"
        "register = jax.tree_util.register_dataclass\n"
        "@functools.partial(register, data_fields=['a'], meta_fields=['b'])\n"
        "@dataclasses.dataclass\nclass Data:\n    a: object\n    b: int = 3\n"
        "class Fixed:\n    def __eq__(self, other): return True\n    def __hash__(self): return 1\n"
        "jax.tree_util.register_static(Fixed)\n"
        "box, later, data, fixed = Box(x), Later(x), Data(x), Fixed()\n"
    )
    assert not jax.tree.leaves(names["fixed"])
    for name in ("box", "later", "data"):
        assert jax.tree.leaves(names[name]) == [names["x"]]
    for name in ("box", "later"):
        path = jax.tree_util.tree_flatten_with_path(names[name])[0][0][0]
        assert str(path[0]) == ".a"


def test_classes_are_made_by_their_statements() -> None:
    names = back(
        "from __future__ import annotations\n"
        "base = 3\n"
        "def mark(cls):\n    cls.marked = base\n    return cls\n"
        "@mark\n@dataclasses.dataclass(order=True)\n"
        "class Config:\n    n: int = base\n    rest: list[Config] = dataclasses.field(\n"
        "        default_factory=list)\n"
        "if True:\n"
        "    class Color(enum.Enum):\n        RED = base\n        BLUE = 'b'\n"
        "class Pair(typing.NamedTuple):\n    a: int\n    b: object = None\n"
        "@dataclasses.dataclass(slots=True)\nclass Slots:\n    a: int\nslots = Slots(1)\n"
        "one, red, pair = Config(1), Color.RED, Pair(1, x)\n"
        "Array = jax.Array\ndef is_array(v, kind=jax.Array): return isinstance(v, kind)\n"
        "Config.note, Config.late = 'set', lambda self: self.n + base\n"
    )
    assert names["Array"] is jax.Array and names["is_array"](names["x"])
    assert names["one"].late() == 4 and names["Config"].note == "set"
    assert names["red"] is names["Color"].RED and type(names["pair"]) is names["Pair"]
    assert names["Config"].__annotations__["rest"] == "list[Config]"


def test_a_class_whose_statement_looks_up_what_holds_it_comes_by_value() -> None:
    names = back(
        "known = []\n"
        "def register(cls):\n    known.append(cls)\n    return cls\n"
        "@register\nclass One:\n    def f(self): return 1\n"
        "one = One()\n"
    )
    assert names["known"] == [names["One"]] and names["one"].f() == 1


def test_a_class_that_was_defined_again_is_not_that_of_older_objects() -> None:
    kinds = (
        "class T(typing.NamedTuple):\n    {0}\nclass M(eqx.Module):\n    {0}\nclass C:\n    {1}\n"
    )
    one = "class A:\n    def f(self): return 1\nold = A()\nclass A:\n    def f(self): return 2\n"
    names = cell(one + kinds.format("a: int; b: int", "a = 1") + "old = T(1, 2), M(1, 2), C, old")
    names = cell(kinds.format("a: int", "c = 3") + "new = T(1), M(1), C, A()", names)
    found, saved, values = through_files(names)
    assert not saved.lost and not values.lost
    Comparison(names, found).names(["old", "new"])
    old, new = found["old"], found["new"]
    assert (old[0].b, old[1].b, old[2].a, old[3].f(), new[3].f()) == (2, 2, 1, 1, 2)
    assert not any(hasattr(one, "b") for one in new) and not hasattr(old[2], "c")


def test_a_class_with_a_long_expression_comes_by_value() -> None:
    long = " + ".join("1" * 700)
    names = back(
        f"class A:\n    n = {long}\n    def f(self): return 1\nclass B(A): pass\none = B()\n"
    )
    assert (names["one"].n, names["one"].f()) == (700, 1)


def test_a_librarys_class_that_is_made_in_a_function_is_named() -> None:
    names = cell(
        "def make():\n    class Inner(eqx.Module):\n        a: int\n    return Inner\n"
        "Inner = make()\nplain = 1\n"
    )
    _, saved, _ = through_files(names)
    assert saved.lost == {"Inner": "class make.<locals>.Inner is not at the top level of a cell"}


# ---------------------------------------------------------------------- what is lost


def test_what_can_not_be_saved_costs_itself_and_is_named() -> None:
    names = cell(
        "gen, lock, file = (i for i in 'ab'), threading.Lock(), open('/dev/null')\n"
        "holds, fine, out = [lock], {'a': x}, sys.stdout\n"
        "donated = jnp.ones(2)\ndonated.delete()\n"
        "leaked = []\njax.jit(lambda v: leaked.append(v) or v)(1.0)\n"
    )
    found, saved, values = through_files(names)
    names["file"].close()
    assert saved.lost.keys() == {"gen", "lock", "file", "holds", "donated", "leaked"}
    assert "generator" in saved.lost["gen"] and "lock" in saved.lost["holds"]
    assert "open file" in saved.lost["file"] and "donated" in saved.lost["donated"]
    assert "tracer" in saved.lost["leaked"]
    assert not values.lost
    Comparison(names, found).names(["x", "fine", "out", "mesh", "threading"])


@pytest.mark.parametrize(
    ("patience_s", "is_busy", "is_lost"),
    [(30.0, True, False), (30.0, False, True), (0.2, True, True)],
)
def test_arrays_are_waited_for_once_and_not_where_nothing_is_computed(
    monkeypatch: pytest.MonkeyPatch, patience_s: float, is_busy: bool, is_lost: bool
) -> None:
    names = cell("late, later, fine = jnp.ones(2), [jnp.ones(2)], jnp.ones(2)")
    slow, until = {id(names["late"]), id(names["later"][0])}, time.monotonic() + 1.0

    def is_ready(array: Any) -> bool:
        return id(array) not in slow or time.monotonic() > until

    monkeypatch.setattr(time, "process_time", time.monotonic if is_busy else lambda: 0.0)
    monkeypatch.setattr(pickles, "READY_S", patience_s)
    monkeypatch.setattr(engine_arrays, "is_ready", is_ready)
    _, saved, _ = through_files(names)
    lost = ("late", "later") if is_lost else ()
    assert saved.lost == dict.fromkeys(lost, "still being computed")


def test_what_can_not_be_made_again_costs_what_is_made_of_it(tmp_path: Path) -> None:
    names = cell(
        "class Odd:\n"
        "    def __init__(self): self.rows = [1, 2, 3]\n"
        "    def __setstate__(self, state): raise ValueError('not again')\n"
        "class Other:\n"
        "    def __reduce__(self): return int, ('no number',), None, iter([late])\n"
        "def refuse(one, state): raise ValueError('not set')\n"
        "class Third:\n"
        "    def __reduce__(self): return Third, (), {'a': late}, None, None, refuse\n"
        "before, late, odd, spec = [x, 'text'], [1], Odd(), x.sharding\n"
        "big, rows, apart = np.zeros(100_000), odd.rows, {'k': [x], 't': before[1], 'at': spec}\n"
        "holder, last, other, split = [odd, big], big[5:], [spec, Other(), [3]], x + 1\n"
        "also, broken, third = other[2], other[1], (2, Third())\n"
        "class OfOdd:\n    n = odd\n"
        "of_odd = OfOdd()\n"
        "class Net(eqx.Module):\n    a: object\nnet = Net(x)\n"
    )
    save(names, tmp_path)
    found, values = load(tmp_path)
    lost = dict.fromkeys(("odd", "holder", "OfOdd", "of_odd"), "not again")
    told = "invalid literal for int() with base 10: 'no number'"
    assert values.lost == lost | dict.fromkeys(("other", "broken"), told) | {"third": "not set"}
    whole = ["before", "late", "rows", "apart", "big", "last", "also", "spec", "split", "x", "net"]
    Comparison(names, found).names(whole)


def test_a_key_that_has_no_hash_yet_costs_the_names_that_hold_it() -> None:
    names = cell(
        "class Node:\n    def __init__(self, name): self.name, self.near = name, set()\n"
        "    def __hash__(self): return hash(self.name)\n"
        "a, b = Node('a'), Node('b')\na.near.add(b)\nb.near.add(a)\n"
        "holds, big = [a], [x, 'later']\nkept, also = {1: big}, big[0]\n"
    )
    found, saved, values = through_files(names)
    assert not saved.lost and values.lost.keys() == {"a", "b", "holds"}
    Comparison(names, found).names(["big", "kept", "also", "x", "mesh"])


def test_nothing_is_bound_or_left_by_a_load_that_is_dropped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saves = states_of(cell("base = 3\nclass C:\n    n = base\nc = C()\n"))
    monkeypatch.setenv("OF_CELLS", "set")
    saves.save(SimpleNamespace(body=Save([SavePlace(str(tmp_path))])))
    monkeypatch.delenv("OF_CELLS")
    live = {"__name__": "__main__", "base": "mine", "C": "mine"}
    states, before = states_of(live), dict(live)
    given = {"turn": TURN, "token": "t", "files": {0: f"{tmp_path}/rank-0.state"}}
    states.load(SimpleNamespace(body=Load(**given, own=0, num_processes=1)))
    live.pop("__builtins__", None)
    assert live == before and states._held["t"]["c"].n == 3
    states.drop(SimpleNamespace(body=Drop("t")))
    assert not states._held and "OF_CELLS" not in os.environ


# ---------------------------------------------------------------------- who has what


def test_a_new_rank_gets_what_can_not_differ(tmp_path: Path) -> None:
    names = cell(
        "lr, rows, key = 0.1, [1], jax.random.key(0)\n"
        "def plain(a, b=2, c='s'): return a\n"
        "def own(a, b=lr): return a\n"
        "def make(n):\n    def inner(): return n\n    return inner\n"
        "closed = make(lr)\n"
        "class Model:\n    pass\n"
        "step, part = jax.jit(plain), functools.partial(plain)\n"
        "owned = functools.partial(plain, lr)\n"
        "total, rows_of = jax.jit(jnp.sum), functools.partial(jnp.sum, axis=0)\n"
        "both, gelu = jax.jit(rows_of), jax.jit(jax.nn.gelu, static_argnums=1)\n"
        "slope, each = jax.value_and_grad(plain), jax.jit(jax.vmap(plain, in_axes=0))\n"
        "with_own, with_array = jax.grad(own), functools.partial(jnp.dot, jnp.ones(2))\n"
        "tx, pair = optax.adam(0.1), (1, 2)\n"
        "sharding, spec, one = NamedSharding(mesh, P('x')), P('x'), Model()\n"
    )
    save(names, tmp_path)
    found, _ = load(tmp_path, own=None)
    common = {n for n in found if not n.startswith("__")}
    mine = {"lr", "rows", "key", "own", "closed", "owned", "one", "x", "with_own"}
    mine |= {"with_array", "pair"}
    assert common == {n for n in names if not n.startswith("__")} - mine


def test_arrays_are_put_together_of_all_ranks_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = cell(
        "two = jax.devices()[:2]\n"
        "pair = jax.make_mesh((2,), ('p',), devices=two)\n"
        "cut = jax.device_put(np.arange(8.0), NamedSharding(pair, P('p')))\n"
        "odd, tree = jax.device_put(np.arange(6.0), cut.sharding), [cut, x]\n"
        "whole = jnp.ones(4)\nalso, inner = [tree, whole], {}\nalso.append(inner)\n"
        "def f(v=whole): return v\ndef g(v=x): return v\n"
    )
    files = {}
    for count in ("process_count", "device_count"):
        monkeypatch.setattr(jax, count, lambda: 2)
    for rank in (0, 1):
        save({"big": np.zeros(rank << 17)} | names, tmp_path, rank)
        files[rank] = file = StateFile(tmp_path / f"rank-{rank}.state")
        for key, one in file.about["arrays"].items():  # as if each rank had had a half
            shards = {i: s for n, (i, s) in enumerate(sorted(one.shards.items())) if n % 2 == rank}
            if one.shape != (4,):
                file.about["arrays"][key] = one._replace(spans=True, shards=shards)
    monkeypatch.undo()
    found, lost = pickles.load(files, 0, namespace(), lambda settings: None)
    assert dict(found["pair"].shape) == {"p": 4} and "evenly divide" in lost["odd"]
    assert found["tree"][0].tolist() == found["tree"][1].tolist() == [*range(8)]
    found, lost = pickles.load({0: files[0]}, 0, namespace(), lambda settings: None)
    gone = dict.fromkeys(
        ("cut", "tree", "x", "odd", "also", "g"), "parts of it were on a rank that is gone"
    )
    assert lost == gone | {"odd": lost["odd"]} and found["f"]().tolist() == [1] * 4
    assert found["inner"] == {}


def test_equal_values_have_equal_digests(tmp_path: Path) -> None:
    source = "lr, rows, big = 0.1, [{'a': x}], np.arange(50_000)\nkey = jax.random.key(0)\n"
    cells = [cell(source), cell("other = ['more']\n" + source + "lr = 0.2; big[7] = 1\n")]
    for rank, names in enumerate(cells):
        save(names, tmp_path, rank, compare=True)
    one, other = (StateFile(tmp_path / f"rank-{rank}.state").about["digests"] for rank in (0, 1))
    equal = {name for name in one if one[name] and one[name] == other.get(name)}
    assert {"rows", "key", "x", "mesh"} <= equal and not equal & {"lr", "big", "other"}


def test_a_part_of_a_file_is_of_the_classes_that_are_there(tmp_path: Path) -> None:
    names = cell(
        """
class Net(eqx.Module):
    weight: object
class Deep(Net):
    inner: object = None
net, own = Deep(x, Net(x)), Net(3)
"""
    )
    saved = save(names, tmp_path)
    assert not saved.lost
    names["Net"].step = 5
    before = names["Net"], names["Deep"], names["own"]
    _, found = load(tmp_path, names, only=["net"])
    assert not found.lost and (names["Net"], names["Deep"], names["own"]) == before
    assert type(names["net"]) is names["Deep"] and type(names["net"].inner) is names["Net"]
    assert names["Net"].step == 5
    whole, again = load(tmp_path)
    assert not again.lost
    assert whole["Net"] is not names["Net"] and type(whole["net"]) is whole["Deep"]

"""What is kept of values that a cell may change in place, and how they are put back."""

from __future__ import annotations

import collections
import contextlib
import copy
import dataclasses
import decimal
import enum
import functools
import importlib
import random
import sys
import threading
import types
import weakref
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxcluster.engine import changes
from jaxcluster.engine.changes import watch
from jaxcluster.engine.object_graph import arrays_within, reachable_from, sharing


def namespace(source: str, **values: Any) -> dict[str, Any]:
    """A user's namespace after a cell."""
    found = {"__name__": "__main__", "np": np, "jax": jax, "jnp": jnp, **values}
    exec(source, found)
    return found


@pytest.mark.parametrize(
    ("setup", "change"),
    [
        ("x = {'a': 1}", "x['a'] = 2"),
        ("x = {'a': 1, 'b': 2}", "x['a'] = x.pop('a')"),  # another order
        ("x = collections.OrderedDict(a=1, b=2)", "x.move_to_end('a')"),
        ("x = collections.Counter('ab')", "x['a'] += 1"),
        ("x = collections.defaultdict(list)", "x['new'].append(1)"),
        ("x = [1, 2]", "x.append(3)"),
        ("x = [2, 1]", "x.sort()"),
        ("x = [1, [2]]", "x[1] += [3]"),
        ("x = ([1],)", "x[0].clear()"),
        ("x = {1, 2}", "x |= {3}"),
        ("x = collections.deque([1, 2], 2)", "x.append(3)"),
        ("x = bytearray(b'ab')", "x += b'c'"),
        ("x = np.zeros(3)", "x[1] = 1"),
        ("x = np.zeros(3)", "np.add(x, 1, out=x)"),
        ("x = np.array([None, [1]], object)", "x[0] = 1"),
        (
            "x = np.zeros(3); a_view = x[1:]",
            "x[1] = 1; a_view.setflags(write=False); x.setflags(write=False)",
        ),
        ("x = np.array([None, [1]], object)", "x[1].append(2)"),
        ("x = types.SimpleNamespace(a=1)", "x.a = 2"),
        ("class C: pass\nx = C(); x.a = [1]", "x.a.append(2)"),
        ("class C: pass\nx = C(); x.a = 1", "x.b = 2; del x.a"),
        ("class x: n = 0", "x.n += 1; x.new = 1"),
        ("class x:\n  def f(self): return 1", "x.f = None"),
        ("@dataclasses.dataclass\nclass C:\n  a: int = 1\nx = C()", "x.a = 2"),
        ("state = {'n': 0}\ndef x(): state['n'] += 1", "x()"),
        (
            "state = {'n': 0}\ndef g(): state['n'] += 1\ndef x(): return [g() for _ in '1'][0]",
            "x()",
        ),
        ("state = [0]\nclass C:\n  def f(self): state[0] += 1\nx = C()", "x.f()"),
        ("state = [0]\nclass C:\n  def f(self): state[0] += 1\nx = C().f", "x()"),
        ("log = []\n@jax.jit\ndef x(a):\n  log.append(1)\n  return a", "x(1)"),
        ("log = []\nx = functools.partial(lambda l: l.append(1), log)", "x()"),
        (
            "def f():\n  n = 0\n  def g():\n    nonlocal n; n += 1\n  return g\nx = f()",
            "x()",
        ),
        ("def x(l=[]): l.append(1)", "x()"),
        ("@functools.lru_cache\ndef x(n): return n", "x(1)"),
        ("x = random.Random(1)", "x.random()"),
        ("x = np.random.default_rng(1)", "x.normal()"),
        ("x = np.random.RandomState(1)", "x.normal()"),
        (
            "class B:\n  log = []\n  def f(self): B.log.append(1)\nclass C(B): pass\nx = C()",
            "x.f()",
        ),
        (
            "log = []\nclass M(type):\n  def f(c): log.append(1)\nclass x(metaclass=M): pass",
            "x.f()",
        ),
        (
            "log = []\n@contextlib.contextmanager\ndef x():\n  log.append(1); yield",
            "with x(): pass",
        ),
        ("log = []\n@jax.grad\ndef x(a):\n  log.append(1)\n  return a", "x(1.0)"),
        ("log = []\n@jax.value_and_grad\ndef x(a):\n  log.append(1)\n  return a", "x(1.0)"),
        ("log = []\ndef f(): log.append(1)\nx = functools.wraps(f)(lambda: f())", "x()"),
        ("log = []\n@functools.lru_cache\ndef x(n): return log", "x(1).append(2)"),
        ("@functools.lru_cache\ndef x(n): return []\nx(1)", "x(1).append(2)"),
        ("history = []; x = history.append", "x(1)"),
        ("history = [1]; x = history.__setitem__", "x(0, 2)"),
        ("class E(enum.Enum):\n  A = [1]\nx = E.A", "x.value.append(2)"),
        ("class x(enum.Enum):\n  A = [1]", "x.A.value.append(2)"),
        ("x = decimal.Context()", "x.prec = 5"),
        ("log = []\nx = collections.defaultdict(lambda: log.append(1))", "x['a']"),
        ("x = {}\nexec('log = []\\ndef f(): log.append(1)', x)\nx = x['f']", "x()"),
        ("class K: pass\nk = K(); x = {k: 1}", "[*x][0].a = 2"),
        ("class C: __slots__ = ('a', 'b')\nx = C(); x.a = 1", "x.a = 2; x.b = 3"),
        ("class C(list): pass\nx = C([1]); x.a = 1", "x.append(2); x.a = 2"),
        ("class C(dict): pass\nx = C(a=1)", "x['a'] = 2"),
        ("class C: pass\nclass D: pass\nx = C()", "x.__class__ = D"),
        ("x = ValueError([1])", "x.args[0].append(2)"),
        ("x = types.ModuleType('made'); x.a = [1]", "x.a.append(2); x.b = 1"),
        ("class C: pass\ny = C(); x = weakref.ref(y)", "x().a = 1"),
        ("x = {1}", "x.discard(1); x.add(True)"),
        ("def x(): x.calls += 1\nx.calls = 0", "x()"),
        ("def x(a=1): return a", "x.__defaults__ = (2,)"),
        ("def f():\n  n = 1\n  return lambda: n\nx = f().__closure__[0]", "x.cell_contents = 2"),
        ("log = []\ndef x(): globals()['log'].append(1)", "x()"),
        ("x = jax.tree_util.Partial(lambda l: l.append(1), [1])", "x()"),
        ("log = []\n@functools.singledispatch\ndef x(a): log.append(1)", "x(1)"),
        ("x = {'deep': [{'er': {'a': [1]}}]}; y = x['deep'][0]['er']", "y['a'].append(1)"),
    ],
)
def test_a_change_in_place_is_found_and_put_back(setup: str, change: str) -> None:
    modules = {m.__name__: m for m in (collections, contextlib, dataclasses, decimal, enum)}
    modules |= {m.__name__: m for m in (functools, random, types, weakref)}
    ns = namespace(setup, **modules)
    found = watch(ns, change)
    assert found.changed() == []
    assert not found.opaque
    assert not found.too_large
    exec(change, ns)
    assert found.changed()
    assert found.put_back() == []
    assert found.changed() == []


def test_what_is_put_back_is_the_same_object_with_the_same_contents() -> None:
    ns = namespace("inner = [1]; x = {'inner': inner, 'n': 1}")
    x, inner = ns["x"], ns["inner"]
    found = watch(ns, "x")
    exec("x.clear(); x['other'] = 2; inner.append(2)", ns)
    found.put_back()
    assert x is ns["x"]
    assert x == {"inner": [1], "n": 1}
    assert x["inner"] is inner
    assert list(x) == ["inner", "n"]


@pytest.mark.parametrize(
    "value",
    [
        *(1, "text", b"bytes", None, 1.5, range(3), ..., np.float32(1), np.dtype("int8"), np.sum),
        *(jax, print, jnp.add, jnp.sum, jax.sharding.PartitionSpec("i"), object()),
        (1, "text", (2, 3)),
        frozenset({1}),
        np.asarray(jnp.ones(3)),  # read-only
    ],
)
def test_what_never_changes_costs_nothing_and_is_not_named(value: Any) -> None:
    found = watch({"x": value}, "x")
    assert found.opaque == {}
    assert found.too_large == set()
    assert found.changed() == []


@pytest.mark.parametrize(
    ("value", "what"),
    [
        (iter([1]), "a list_iterator"),
        ((n for n in "a"), "a generator"),
        (threading.Lock(), "a lock"),
        (np.ma.masked_array([1]), "a MaskedArray"),
        (threading.Thread(), "a Thread"),
        ({"deep": [iter([1])]}, "a list_iterator"),
        (type("Own", (threading.Thread,), {"__module__": "__main__"})(), "an Own"),
    ],
)
def test_of_what_is_not_understood_nothing_is_claimed(value: Any, what: str) -> None:
    found = watch({"x": value}, "x")
    assert found.opaque == {"x": what}


@pytest.mark.parametrize(
    "setup",
    [
        "x = (history.append(n) for n in range(3))",
        "def f():\n  for n in range(3): history.append(n); yield\nx = f()",
        "x = map(history.append, range(3))",
    ],
)
def test_what_lies_behind_a_generator_is_put_back(setup: str) -> None:
    ns = namespace(f"history = []\n{setup}")
    found = watch(ns, "next(x)")
    exec("next(x)", ns)
    found.put_back()
    assert ns["history"] == []
    assert [*found.opaque] == ["x"]


def test_what_a_librarys_object_holds_is_not_put_back_by_half() -> None:
    class Library:
        history: list[int]

    Library.__module__ = "library"
    ns: dict[str, Any] = {"x": Library()}
    ns["x"].history = []
    found = watch(ns, "x")
    ns["x"].history.append(1)
    assert ns["x"].history in [one.value for one in found.put_back()]
    assert ns["x"].history == [1]


class Hashed(Mapping[str, Any]):
    """As flax's models have one."""

    def __init__(self, held: dict[str, Any]) -> None:
        self._mapping = held

    def __getitem__(self, key: str) -> Any:
        return self._mapping[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._mapping)

    def __len__(self) -> int:
        return len(self._mapping)

    def __hash__(self) -> int:
        return hash(tuple(self._mapping))


def test_a_librarys_hashable_mapping_is_a_value() -> None:
    own = type("HashableMapping", (Hashed,), {"__module__": "flax.typing"})
    cached = type("Store", (Hashed,), {"__module__": "store", "__hash__": object.__hash__})
    ns: dict[str, Any] = {"x": own({"history": []})}
    found = watch(ns, "x")
    assert not found.opaque
    ns["x"]["history"].append(1)
    ns["x"]._mapping = {}
    assert found.put_back() == []
    assert ns["x"]._mapping == {"history": []}
    assert watch({"x": cached({})}, "x").opaque == {"x": "a Store"}


@pytest.mark.parametrize(
    ("module", "is_value"),
    [("flax.ids", True), ("flax.linen.module", True), ("flax.metrics.x", False), ("flaxy", False)],
)
def test_objects_of_libraries_that_are_their_attributes_alone_are_put_back(
    module: str, is_value: bool
) -> None:
    made = namespace(f"class Id: __module__ = {module!r}\nx = Id(); x.id = 1")
    found = watch(made, "x")
    made["x"].id = 2
    found.put_back()
    assert ("x" not in found.opaque, made["x"].id) == ((True, 1) if is_value else (False, 2))


def test_an_empty_tuple_is_shared_with_nobody() -> None:
    local = threading.local()
    local.a = ()
    made = namespace("class C:\n  def f(self): pass\ndef g(): pass\nx = (), [()]", local=local)
    targets, _ = reachable_from([local])
    assert sharing({**made, "same": [local]}, targets.keys(), {})[0] == {"local", "same"}


def test_a_configuration_of_ml_collections_is_put_back() -> None:
    config = type("ConfigDict", (), {"__module__": "ml_collections.config_dict"})()
    config._fields = {"lr": 0.1}
    found = watch({"config": config}, "config")
    config._fields["lr"] = 3.0
    assert found.put_back() == []
    assert config._fields == {"lr": 0.1}
    assert not found.opaque


OWN = """
import logging, threading
log, lock, rate, options, steps = logging.getLogger("x"), threading.Lock(), 0.1, {"on": [1]}, 0
class Model:
    made = 0
    def __init__(self):
        self.w = [1]
        Model.made += 1
    def step(self):
        global steps
        steps += 1
        self.w.append(steps)
        options["on"].append(2)
def train(seen=[]):
    seen.append(1)
    options["off"] = 2
"""


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A module of the user's own: a file beside the notebook."""
    (tmp_path / "ownmodule.py").write_text(OWN)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield importlib.import_module("ownmodule")
    del sys.modules["ownmodule"]


@pytest.mark.parametrize(
    ("bound", "change"),
    [
        ("import ownmodule as x", "x.rate = 5; x.new = 1; x.options['on'] = 0; del x.steps"),
        ("import ownmodule as x", "x.Model(); x.Model.more = 1; x.train()"),
        ("import ownmodule; x = ownmodule.Model()", "x.step()"),
        ("from ownmodule import train as x", "x()"),
        ("import jax, ownmodule; x = jax.jit(ownmodule.train)", "x()"),
        ("import ownmodule\ndef x(): ownmodule.options.clear()", "x()"),
    ],
)
def test_what_the_users_own_modules_hold_is_put_back(own: Any, bound: str, change: str) -> None:
    def now() -> Any:
        names = {n: v for n, v in vars(own).items() if not n.startswith("__")}
        w = getattr(scope.get("x"), "w", None)
        return copy.deepcopy((names["options"], own.train.__defaults__, w)), {
            **{n: id(v) for n, v in names.items()},
            **{n: id(v) for n, v in vars(own.Model).items() if n in ("made", "more")},
        }

    scope: dict[str, Any] = {"__name__": "__main__"}
    exec(bound, scope)
    before = now()
    seen = watch(scope, change)
    assert (seen.opaque, seen.too_large) == ({}, set())  # its logger and lock are not named
    exec(change, scope)
    assert now() != before
    assert {one.root for one in seen.changed()} <= {"x", "ownmodule"} and seen.changed()
    assert seen.put_back() == []
    assert now() == before


def test_a_module_that_was_imported_again_stays_so(own: Any) -> None:
    """As by ``%autoreload``, which does not read a file twice."""
    train = own.train
    seen = watch({"x": own, "y": train}, "x, y")
    Path(own.__file__).write_text(OWN.replace("0.1", "0.25").replace("= 2", "= 3"))
    importlib.reload(own)
    train.__code__ = own.train.__code__  # what autoreload does with those that others hold
    assert {one.kind.name for one in seen.put_back()} == {"dict", "function"}
    assert own.rate == 0.25 and train.__code__ is own.train.__code__


def test_of_a_large_module_of_the_users_a_part_is_looked_at(own: Any) -> None:
    assert not watch({"x": own}, "x").is_partial
    own.table = {n: [n] for n in range(changes.MOST_OF_MODULES)}
    seen = watch({"x": own}, "x")
    assert seen.is_partial and seen.too_large == set()
    del own.table
    for n in range(changes.MOST_OF_MODULES // changes.ONE_VALUE):  # each of them has room
        setattr(own, f"list_{n}", [n])
    assert watch({"x": own}, "x").is_partial


def test_what_installed_modules_hold_is_left_alone(own: Any, tmp_path: Path) -> None:
    own.__file__ = str(tmp_path / "site-packages" / "ownmodule.py")
    seen = watch({"x": own, "y": own.train}, "x, y")
    own.options["on"].append(3)
    assert seen.changed() == []


def test_a_mutable_reference_of_jax_is_opaque() -> None:
    if hasattr(jax, "new_ref"):
        assert watch({"x": jax.new_ref(jnp.ones(2))}, "x").opaque == {"x": "a Ref"}


def test_what_is_too_large_is_named_and_not_touched() -> None:
    ns = {
        "big": np.zeros(100_000),
        "long": list(range(changes.MOST_ELEMENTS + 1)),
        "small": [1],
    }
    found = watch(ns, "big long small")
    assert found.too_large == {"big", "long"}
    ns["small"].append(2)
    ns["long"].append(2)
    found.put_back()
    assert ns["small"] == [1]
    assert ns["long"][-1] == 2


def test_many_small_arrays_are_kept_up_to_a_limit() -> None:
    ns = {f"a{n:02}": np.zeros(changes.SMALL_NBYTES // 8) for n in range(10)}
    found = watch(ns, " ".join(ns))
    assert len(found.watched) == changes.MOST_NBYTES // changes.SMALL_NBYTES
    assert len(found.too_large) == 2


def test_names_that_the_cell_can_not_reach_are_not_looked_at() -> None:
    found = watch(namespace("x = [1]; y = [2]\ndef f(): return y"), "print(x)")
    assert found.mentioned == ["x"]
    assert [one.root for one in found.watched] == ["x"]


@pytest.mark.parametrize(
    "source",
    ["x=y[_z1]", "f'{x}{y}'+_z1", "exec('x=y;_z1')", "x\ty\n_z1", "x→y→_z1", "größe=x;y;_z1"],
)
def test_all_words_of_a_source_are_found(source: str) -> None:
    assert {"x", "y", "_z1"} <= changes.identifiers(source)
    assert ("größe" in changes.identifiers(source)) == ("größe" in source)


@pytest.mark.parametrize("name", ["script.py", "script"])
def test_what_a_script_or_a_text_changes_is_found(tmp_path: Path, name: str) -> None:
    (tmp_path / "script.py").write_text("state['step'] += 1")
    names = namespace("state, other, code = {'step': 0}, [], 'other.append(1)'")
    kept = watch(names, f"y = 1\n%run -i {tmp_path / name} --fast\nexec(code)")
    exec("state['step'] += 1; other.append(1)", names)
    assert kept.put_back() == []
    assert (names["state"], names["other"]) == ({"step": 0}, [])
    assert "other" not in watch(names, f"%run {tmp_path / name}").mentioned
    assert "state" in watch(names, "%run -i no-such-file").mentioned


OPEN = """
exec(open("step.py").read())
exec(compile(text, "step.py", "exec"))
eval(text)
runpy.run_path("step.py", init_globals=globals())
%run -i $folder/step.py
%run -i steps.ipynb
%rerun -l 3
get_ipython().run_line_magic("run", path)
get_ipython().user_ns[name].append(1)
for name, value in list(globals().items()): value["n"] = 1
globals()[name].append(1)
vars()[name]["n"] = 1
import __main__ as cells
sys._getframe().f_globals[name].append(1)
mine
macro
"""


@pytest.mark.parametrize("source", OPEN.strip().splitlines())
def test_a_cell_that_may_reach_any_name_is_taken_to_reach_all(source: str) -> None:
    names = namespace("state, folder, generator = {'step': 0}, [], (x for x in ())")
    exec("def mine(): exec(open('step.py').read())", names)
    names["macro"] = type("Macro", (), {})()
    kept = watch(names, source)
    exec("state['step'] += 1; folder.append(1)", names)
    assert kept.is_open
    assert kept.put_back() == []
    assert (names["state"], names["folder"]) == ({"step": 0}, [])
    assert "generator" in kept.opaque


CLOSED = """
if 'x' in globals(): y = 1
if "x" not in globals(): y = 1
globals()["x"] = 1
for key, value in config.items(): globals()[key] = value
globals().update(config)
x = globals().get("x")
print(vars(config))
exec("x = 1")
model.eval()
frame.eval(text)
if __name__ == "__main__": main()
# eval: exec all globals
"""


@pytest.mark.parametrize("source", CLOSED.strip().splitlines())
def test_a_cell_whose_names_can_be_read_reaches_no_others(source: str) -> None:
    names = namespace("state = {'step': 0}")
    kept = watch(names, source)
    assert not kept.is_open
    assert "state" not in kept.mentioned


@pytest.mark.parametrize("source", ["_.append(1)", "_5 .append(1)", "Out[5][0] = 1", "_oh"])
def test_a_result_that_a_cell_changes_is_found(source: str) -> None:
    names = namespace("losses = [1]")
    names |= {"_": names["losses"], "_5": names["losses"], "Out": {5: names["losses"]}}
    names["_oh"] = names["Out"]
    kept = watch(names, source)
    names["losses"].append(2)
    assert [one.root for one in kept.changed()] == ["losses"]
    assert watch(names, "for _ in range(3): pass").watched == []


def test_names_are_read_as_python_reads_them() -> None:
    names = namespace("losses = [1]")
    exec("\N{MICRO SIGN} = []", names)
    kept = watch(names, "\N{MICRO SIGN}.append(1)")
    exec("\N{MICRO SIGN}.append(1)", names)
    assert kept.put_back() == []
    assert names["\N{GREEK SMALL LETTER MU}"] == []


def test_names_are_met_in_an_order_that_all_ranks_share() -> None:
    ns = namespace("c = [1]; a = [1]; b = [1]\ndef f(): return c, b")
    assert watch(ns, "f(a)").mentioned == ["f", "a", "b", "c"]


def test_what_is_large_does_not_keep_what_is_small_from_being_watched() -> None:
    ns = {"a": [[n] for n in range(500)], "b": [1]}
    found = watch(ns, "a b")
    assert found.too_large == {"a"}
    assert "b" in [one.root for one in found.watched]


def test_leaving_a_name_leaves_all_behind_it() -> None:
    ns = namespace("x = {'y': [1]}; z = [1]")
    found = watch(ns, "x z")
    exec("x['y'].append(2); x['n'] = 1; z.append(2)", ns)
    found.put_back(leave=["x"])
    assert ns["x"] == {"y": [1, 2], "n": 1}
    assert ns["z"] == [1]


def test_a_resized_array_can_not_be_put_back() -> None:
    ns = namespace("x = np.zeros(3)")
    found = watch(ns, "x")
    ns["x"].resize(4, refcheck=False)
    (one,) = found.changed()
    assert not one.kind.can_put_back(one.value, one.copy)
    found.put_back()
    assert ns["x"].shape == (4,)


def test_arrays_are_never_compared() -> None:
    class Trap:
        def __eq__(self, other: object) -> bool:
            raise AssertionError("compared")

        __hash__ = None  # type: ignore[assignment]

    ns = {"x": {"a": Trap()}, "y": [Trap()]}
    found = watch(ns, "x y")
    ns["x"]["a"] = Trap()
    assert [one.root for one in found.changed()] == ["x"]
    found.put_back()


def test_arrays_within_a_value() -> None:
    a, b, c = jnp.ones(2), np.ones(2), jnp.zeros(2)
    ns = namespace("class C: pass\nx = C()")
    ns["x"].parts = {"a": a, "more": [(b,), a]}
    found = arrays_within([ns["x"]], {})
    assert {id(array) for array in found} == {id(a), id(b)}
    copies = {id(ns["x"]): {"c": c}}
    assert [id(array) for array in arrays_within([ns["x"]], copies)] == [id(c)]


def test_a_value_that_holds_itself() -> None:
    ns: dict[str, Any] = {"x": []}
    ns["x"].append(ns["x"])
    found = watch(ns, "x")
    ns["x"].append(1)
    found.put_back()
    assert len(ns["x"]) == 1
    assert arrays_within([ns["x"]], {}) == []


class Hostile:
    """Runs its owner's code, or fails, at whatever is asked of it."""

    def __getattribute__(self, name: str) -> Any:
        raise AssertionError(f"asked for {name}")

    def __len__(self) -> int:
        raise AssertionError("asked for its length")

    __iter__ = __eq__ = __hash__ = __len__  # type: ignore[assignment]


def test_no_code_of_the_users_is_run() -> None:
    hostile = Hostile()
    found = watch({"x": [hostile], "y": hostile}, "x y")
    assert not found.changed()
    found.put_back()
    assert arrays_within([hostile], {}) == []


def test_a_leaked_tracer_is_no_array() -> None:
    leaked: list[Any] = []
    jax.jit(lambda a: leaked.append(a) or a)(jnp.ones(2))
    assert arrays_within(leaked, {}) == []
    assert not watch({"x": leaked}, "x").opaque

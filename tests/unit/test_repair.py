"""Builtins that a cell has broken come back; mostly there is nothing to do, at little cost."""

from __future__ import annotations

import builtins
import contextlib
import io
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from helpers import python

from jaxcluster.engine import repair


@pytest.fixture(autouse=True)
def kept() -> Iterator[None]:
    before = dict(builtins.__dict__)
    yield
    builtins.__dict__.update(before)
    for name in builtins.__dict__.keys() - before.keys():
        del builtins.__dict__[name]


class Looked(dict[str, Any]):
    """Says whether its names are gone through."""

    looks = 0

    def items(self) -> Any:
        self.looks += 1
        return super().items()


@pytest.fixture
def looked(monkeypatch: pytest.MonkeyPatch) -> Looked:
    made = Looked(repair._builtins)
    monkeypatch.setattr(repair, "_builtins", made)
    monkeypatch.setattr(repair, "_whole", ([], []))
    return made


def test_names_are_looked_up_only_where_something_has_changed(looked: Looked) -> None:
    repair.repair_builtins()
    for _ in range(5):
        repair.repair_builtins()
    assert looked.looks == 1
    builtins.__dict__["exit"] = builtins.__dict__.pop("exit")  # as IPython's trap does at each cell
    for _ in range(5):
        repair.repair_builtins()
    assert looked.looks == 2


@pytest.mark.parametrize("value", [None, 5, "gone"], ids=["None", "5", "gone"])
@pytest.mark.parametrize("name", ["len", "print", "OSError", "EnvironmentError", "__import__"])
def test_what_is_gone_or_can_not_be_called_comes_back(
    looked: Looked, name: str, value: Any
) -> None:
    was = builtins.__dict__[name]
    repair.repair_builtins()
    if value == "gone":
        del builtins.__dict__[name]
    else:
        builtins.__dict__[name] = value
    repair.repair_builtins()
    now = builtins.__dict__[name]
    assert now is was


def test_one_that_has_another_name_now_comes_back(looked: Looked) -> None:
    """The values are the same ones, in the same order."""
    name = list(builtins.__dict__)[-1]
    repair._builtins[name] = builtins.__dict__[name]
    repair.repair_builtins()
    builtins.__dict__["another"] = builtins.__dict__.pop(name)
    repair.repair_builtins()
    assert name in builtins.__dict__


def passing_on(own: Callable[..., Any]) -> Callable[..., Any]:
    def mine(*args: Any, **more: Any) -> Any:
        return own(*args, **more)

    return mine


def test_what_a_cell_puts_in_the_place_of_one_stays(looked: Looked) -> None:
    repair.repair_builtins()
    mine = builtins.__dict__["sorted"] = passing_on(sorted)
    for _ in range(3):
        repair.repair_builtins()
        assert builtins.sorted is mine
    assert looked.looks == 2


class Fixed:
    """Takes text, but has no room for what IPython puts on it."""

    __slots__ = ()

    def write(self, text: str) -> None: ...

    def flush(self) -> None: ...


@pytest.mark.parametrize("name", ["stdout", "stderr"])
def test_a_stream_that_can_be_written_to_stays_and_any_other_is_put_back(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    own, closed = io.StringIO(), io.StringIO()
    closed.close()
    monkeypatch.setattr(repair, "_streams", {name: own})
    monkeypatch.setattr(sys, name, own)
    for now in (None, 5, closed, Fixed(), "none at all"):
        setattr(sys, name, now)
        if now == "none at all":
            delattr(sys, name)
        repair._repair_streams()
        assert getattr(sys, name) is own
    mine = io.StringIO()
    setattr(sys, name, mine)
    repair._repair_streams()
    assert getattr(sys, name) is mine


def raises(*args: Any) -> Any:
    raise RuntimeError("mine")


@pytest.mark.parametrize(
    ("name", "mine"),
    [
        ("isinstance", lambda *args: False),
        ("isinstance", lambda *args: True),
        ("len", lambda value: 0),
        ("getattr", raises),
        ("sorted", lambda *args: []),
        ("open", raises),
        ("range", lambda *args: ()),
        ("dict", lambda *args, **more: {}),
        ("OSError", Exception),
    ],
)
def test_what_does_not_do_the_work_of_the_one_before_does_not_stay(
    looked: Looked, name: str, mine: Any
) -> None:
    was = builtins.__dict__[name]
    builtins.__dict__[name] = mine
    repair.repair_builtins()
    now = builtins.__dict__[name]
    builtins.__dict__[name] = was
    assert now is was


@pytest.mark.parametrize("name", sorted(repair._ANSWERS))
def test_each_one_and_what_calls_it_is_in_its_place(name: str) -> None:
    own = builtins.__dict__[name]
    assert repair._is_in_its_place(name, own, own)
    assert repair._is_in_its_place(name, own, passing_on(own))
    assert not repair._is_in_its_place(name, own, lambda *args, **more: None)


def test_functions_of_modules_that_can_not_be_called_come_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    was = contextlib.suppress, os.path.exists, threading.Lock
    own = monkeypatch.setattr
    own(contextlib, "suppress", None)
    own(os.path, "exists", 5)
    monkeypatch.delattr(threading, "Lock")
    fast = lambda seconds: None  # noqa: E731
    own(time, "sleep", fast)
    repair.repair_modules()
    assert (contextlib.suppress, os.path.exists, threading.Lock) == was
    assert time.sleep is fast


CLOSES = """
import os
from jaxcluster.engine import log
log.keep()
os.close(1), os.close(2)
log.reopen_streams()
os.write(1, b"one "), os.write(2, b"two")
"""


def test_closed_descriptors_lead_to_the_log_again() -> None:
    done = subprocess.run(
        [sys.executable, "-c", CLOSES], capture_output=True, text=True, check=True
    )
    assert done.stderr == "one two"


def test_a_value_is_not_compared_by_its_own_rules(looked: Looked) -> None:
    """They are a user's, and may take for ever."""

    class Odd:
        def __eq__(self, other: object) -> bool:
            raise AssertionError("asked")

        __hash__ = None  # type: ignore[assignment]

        def __call__(self) -> None: ...

    repair.repair_builtins()
    builtins.__dict__["sorted"] = Odd()
    repair.repair_builtins()
    builtins.__dict__["sorted"] = Odd()
    repair.repair_builtins()


TWICE = """
import importlib, sys, timeit
import jax, jax.numpy as jnp
from jaxcluster.engine import repair
handler = lambda *_: None
repair.repair(handler)
before = dict(sys.modules)
specs = {name: module.__spec__ for name, module in before.items() if name.startswith("jax")}
numpy = jax.numpy
for name in specs:
    del sys.modules[name]
found = []
import jax.sharding, jaxlib.mlir.ir
found.append(all(sys.modules[n] is before[n] for n in ("jax", "jax.sharding", "jaxlib.mlir.ir")))
found.append(jaxlib.mlir is before["jaxlib.mlir"] and jax.sharding is before["jax.sharding"])
found.append([n for n, spec in specs.items() if before[n].__spec__ is not spec])
sys.modules["jax.sharding"] = sys
repair.repair(handler)
found.append([n for n, m in before.items() if sys.modules.get(n) is not m])
found.append([n for n in sys.modules.keys() - before.keys() if n.startswith("jax")])
import jax as again
found.append(again.numpy is numpy and float(jnp.sum(jnp.ones(3))) == 3.0)
del sys.modules["jax.numpy"]
importlib.import_module("jax.numpy")
repair.repair_modules()
found.append(sys.modules["jax.numpy"] is numpy is jax.numpy)
repair.repair(handler)
found.append(min(timeit.repeat(lambda: repair.repair(handler), number=100, repeat=9)) / 100 < 1e-4)
print(found)
"""


def test_modules_of_jax_that_a_cell_has_taken_away_come_back() -> None:
    """JAX can't be imported a second time: it raises in the midst, and jaxlib ends the process."""
    done = python("-c", TWICE)
    expected = "[True, True, [], [], [], True, True, True]\n"
    assert done.stdout == expected, done.stdout + done.stderr


BROKEN = """
import sys, types
import jax, jax.numpy as jnp, numpy as np
sys.modules["jax.mine"] = types.SimpleNamespace()  # which has no hash
from jaxcluster.engine import repair
sys.modules[5] = types.ModuleType("five")
repair.repair(lambda *_: None)
was = np.array, np.ndarray, jax.sharding, jnp.sum, jax.tree_util.tree_map
mine = np.zeros = lambda *a: None
np.array = np.ndarray = jax.sharding = jnp.sum = None
del jax.tree_util.tree_map
repair.repair_modules()
print(was == (np.array, np.ndarray, jax.sharding, jnp.sum, jax.tree_util.tree_map))
print(np.zeros is mine)
"""


def test_what_a_cell_has_broken_of_numpy_and_jax_comes_back() -> None:
    done = python("-c", BROKEN)
    assert done.stdout.splitlines()[-2:] == ["True", "True"], done.stdout + done.stderr


STAND_IN = """
import sys, types
sys.modules["jax"] = types.SimpleNamespace(config=None)
from jaxcluster.engine import repair
repair.repair_modules()
del sys.modules["jax"]
import jax
print(type(jax).__name__, jax.numpy.arange(3).sum())
repair.repair_modules()
print(sys.modules["jax"] is jax)
"""


def test_what_stands_in_for_jax_is_handed_out_to_nobody_later() -> None:
    done = python("-c", STAND_IN)
    assert done.stdout.splitlines() == ["module 3", "True"], done.stdout + done.stderr

"""Namespaces as cells make them, saved and loaded without a cluster, and compared."""

from __future__ import annotations

import ast
import linecache
import math
import tempfile
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from types import BuiltinFunctionType, FunctionType, ModuleType, SimpleNamespace
from typing import Any
from unittest.mock import patch

import jax
import numpy as np

from jaxcluster.agreement.messages import CellSpec
from jaxcluster.rank import statements
from jaxcluster.rank.places import CELL_DIRECTORY
from jaxcluster.rank.private.kinds import kinds
from jaxcluster.rank.state.file import write
from jaxcluster.rank.state.pickles import Pickler
from jaxcluster.rank.state.states import States
from jaxcluster.wire.ops.saving import Bind, Load, Made, Save, Saved, SavePlace

jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 4)
TURN = CellSpec(1, (0,), "somebody", 0, is_foreground=False, is_skippable=False)
CELLS: list[str] = []  # that have run


def namespace() -> dict[str, Any]:
    """An empty one, as a new rank has it."""
    return {"__name__": "__main__"}


def run_cell(names: dict[str, Any], source: str) -> None:
    """Run a cell there."""
    CELLS.append(file := f"{CELL_DIRECTORY}/{len(CELLS) + 1}-0123456789ab.py")
    linecache.cache[file] = len(source), None, source.splitlines(keepends=True), file
    statements.install(SimpleNamespace(ast_transformers=[]))
    exec(compile(statements.noting(ast.parse(source)), file, "exec"), names)


def states_of(names: dict[str, Any], rank: int = 0) -> Any:
    """A rank that has these names."""
    made, history = States(rank, {}), SimpleNamespace()
    history.input_hist_parsed, history.input_hist_raw = [""], [""]
    names.setdefault("_oh", {})
    shell = SimpleNamespace(user_ns=names, history_manager=history, execution_count=1)
    shell.ast_transformers = []
    with patch.dict(linecache.cache, clear=True):  # no cell has run yet
        made.attach(shell)
    return made


def save(names: dict[str, Any], folder: Path, rank: int = 0, *, compare: bool = False) -> Saved:
    """Save them as a rank does."""
    body = Save([SavePlace(str(folder))], compare)
    saved: Saved = states_of(names, rank).save(SimpleNamespace(body=body))
    return saved


def load(
    folder: Path,
    into: dict[str, Any] | None = None,
    *,
    own: int | None = 0,
    only: list[str] | None = None,
) -> tuple[dict[str, Any], Made]:
    """Load what a rank has saved, and bind it."""
    names = namespace() if into is None else into
    for file in CELLS if into is None else ():  # a new process does not know them
        linecache.cache.pop(file, None)
    states, given = states_of(names), {"turn": TURN, "token": "t"}
    body = Load(**given, files={0: f"{folder}/rank-0.state"}, own=own, num_processes=1, only=only)
    made = states.load(SimpleNamespace(body=body))
    states.bind(SimpleNamespace(body=Bind(**given, lost=made.lost)))
    return names, made


def through_files(names: dict[str, Any]) -> tuple[dict[str, Any], Saved, Made]:
    """The names as another process would have them, by a file."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        saved = save(names, Path(folder))
        found, made = load(Path(folder))
    return found, saved, made


def alone(names: dict[str, Any], some: Iterable[str]) -> tuple[dict[str, Any], dict[str, str]]:
    """Some of the names, without settings, and what was lost of them."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        pickled = Pickler({name: names[name] for name in some}, names)
        parts = [*pickled.parts, pickled.file.getbuffer()]
        write(Path(folder) / "rank-0.state", parts, pickled.index())
        found, values = load(Path(folder), namespace())
    return found, pickled.lost | values.lost


# ---------------------------------------------------------------------- comparison

ATOMS = (bool, int, float, complex, str, bytes, type(None), type(Ellipsis), BuiltinFunctionType)


class Comparison:
    """Walks two namespaces side by side: each object has one counterpart, everywhere.

    Raises:
      AssertionError: they differ, and where.
    """

    def __init__(self, before: dict[str, Any], after: dict[str, Any]) -> None:
        self.before, self.after = before, after
        self._pairs: dict[int, Any] = {}
        self._back: dict[int, Any] = {}
        self._held: list[Any] = []

    def names(self, names: Iterable[str]) -> None:
        """Compare these names."""
        for name in names:
            assert name in self.after, f"{name} is not there"
            self.same(self.before[name], self.after[name], name)

    def same(self, a: Any, b: Any, at: str) -> None:
        """Compare two values."""
        if isinstance(a, ATOMS):
            is_nan = isinstance(a, float) and math.isnan(a) and isinstance(b, float)
            assert type(a) is type(b) and (a == b or (is_nan and math.isnan(b))), (at, a, b)
            return
        if id(a) in self._pairs or id(b) in self._back:
            assert self._pairs.get(id(a)) is b and self._back.get(id(b)) is a, f"{at}: no alias"
            return
        if not (isinstance(a, tuple) and not a):
            self._pairs[id(a)], self._back[id(b)] = b, a
            self._held += [a, b]
        self._inside(a, b, at)

    def _inside(self, a: Any, b: Any, at: str) -> None:
        import jax

        known = jax.Array, jax.sharding.Mesh, jax.sharding.Sharding, kinds().jitted, ModuleType
        if isinstance(a, type):
            assert a is b or (a.__module__ == "__main__" and a.__qualname__ == b.__qualname__), at
            return
        self.same(type(a), type(b), f"{at}'s type")
        if isinstance(a, ModuleType | np.dtype):
            assert a is b or a == b, at
        elif isinstance(a, jax.Array):
            self._array(a, b, at)
        elif isinstance(a, np.ndarray):
            self._ndarray(a, b, at)
        elif isinstance(a, jax.sharding.Mesh | jax.sharding.Sharding | jax.sharding.PartitionSpec):
            assert a == b, at
        elif isinstance(a, FunctionType):
            self._function(a, b, at)
        elif isinstance(a, partial):
            self._each([a.func, a.args, a.keywords], [b.func, b.args, b.keywords], at)
        elif type(a) is kinds().jitted:
            self.same(a._fun, b._fun, f"{at}._fun")
            fields = [
                f for f in a._jit_info._fields if f not in ("fun_signature", "fun_sourceinfo")
            ]
            for field in fields:
                assert getattr(a._jit_info, field) == getattr(b._jit_info, field), (at, field)
        elif isinstance(a, dict):
            assert list(a) == list(b) or set(map(str, a)) == set(map(str, b)), (at, a, b)
            self._each(list(a.values()), list(b.values()), at)
        elif isinstance(a, list | tuple):
            self._each(a, b, at)
        elif isinstance(a, set | frozenset):
            assert a == b, at
        if hasattr(a, "__dict__") and not isinstance(a, known):
            self._each([vars(a)], [vars(b)], f"{at}.__dict__")

    def _each(self, a: Any, b: Any, at: str) -> None:
        assert len(a) == len(b), (at, a, b)
        for number, (one, other) in enumerate(zip(a, b, strict=True)):
            self.same(one, other, f"{at}[{number}]")

    def _array(self, a: Any, b: Any, at: str) -> None:
        import jax

        assert (a.shape, a.dtype, a.sharding) == (b.shape, b.dtype, b.sharding), at
        if jax.dtypes.issubdtype(a.dtype, jax.dtypes.prng_key):
            assert jax.random.key_impl(a) == jax.random.key_impl(b), at
            a, b = a._base_array, b._base_array
        assert (a.weak_type, a.committed) == (b.weak_type, b.committed), at
        assert np.asarray(a).tobytes() == np.asarray(b).tobytes(), at

    def _ndarray(self, a: Any, b: Any, at: str) -> None:
        assert (a.shape, a.dtype) == (b.shape, b.dtype), (at, a, b)
        assert a.strides == b.strides or not a.size, at
        assert a.flags.writeable == b.flags.writeable, at
        if a.dtype.hasobject:
            self._each(list(a.flat), list(b.flat), at)
        else:
            assert a.tobytes() == b.tobytes(), at

    def _function(self, a: Any, b: Any, at: str) -> None:
        assert a.__code__ == b.__code__ and a.__name__ == b.__name__, at
        assert a.__code__.co_filename == b.__code__.co_filename, at
        assert (a.__qualname__, a.__doc__, a.__module__) == (
            b.__qualname__,
            b.__doc__,
            b.__module__,
        )
        if a.__globals__ is self.before:
            assert b.__globals__ is self.after, f"{at} has other globals"
        else:
            assert b.__globals__ is a.__globals__, f"{at} has other globals"
        self._each(list(a.__closure__ or ()), list(b.__closure__ or ()), f"{at}'s closure")
        cells = zip(a.__closure__ or (), b.__closure__ or (), strict=True)
        for one, other in cells:
            self.same(one.cell_contents, other.cell_contents, f"a cell of {at}")
        self.same(a.__defaults__, b.__defaults__, f"{at}'s defaults")
        self.same(a.__kwdefaults__, b.__kwdefaults__, f"{at}'s defaults")


def memory_of(array: np.ndarray[Any, Any]) -> tuple[int, int]:
    """The array that owns its memory, and where in it this one begins."""
    owner = array
    while isinstance(owner.base, np.ndarray):
        owner = owner.base
    first = array.__array_interface__["data"][0] - owner.__array_interface__["data"][0]
    return id(owner), first

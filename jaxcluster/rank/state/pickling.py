"""A namespace as one pickle, in which each name has a section: names share what they shared.

It is of what people put into notebooks, where cloudpickle alone makes something else of it.
Functions of cells have the namespace itself as their globals, and closures share their cells.
Views of one memory stay views. jitted functions keep their options. Classes of cells are made
again by their class statements (``classes``). Arrays, devices and what belongs to the process are
left out: they have persistent ids.
"""

from __future__ import annotations

import functools
import io
import marshal
import pickle
import platform
import sys
from collections import ChainMap
from collections.abc import Callable, Mapping
from pathlib import Path
from types import CellType, CodeType, FunctionType
from typing import Any, ClassVar

import cloudpickle
import numpy as np

from jaxcluster.engine.private.kinds import info_of, is_imported, jitted, kinds
from jaxcluster.rank.state import classes
from jaxcluster.rank.state.arrays import ArraysToSave, CannotSave, mesh_id, places, why
from jaxcluster.rank.state.common import contents, judge
from jaxcluster.rank.state.file import Part, as_bytes, checksum, write
from jaxcluster.rank.state.settings import SETTINGS
from jaxcluster.wire.ops.values import FILES, reference_to

PROTOCOL = 5
LARGE_NBYTES = 64 << 10  # from here on a buffer is a section of its own
IS_MADE = 2  # from here on what cloudpickle says of a class has its attributes: else it is known
OF_FUNCTIONS = "qualname defaults kwdefaults module doc annotations"
OF_JITTED = {"__name__", "__qualname__", "__doc__", "__module__", "__wrapped__", "__annotations__"}
PYTHON = ".".join(platform.python_version_tuple()[:2])


class Pickled:
    """A namespace as one pickle, and the raw sections beside it.

    Attributes:
      lost: names that can't be saved, and why.
      spanning: names with arrays that span processes; ``common``: those that a new rank may have.
      meshes: those that it has met.

    Args:
      broken: by their ids objects that can't be saved, and why.
    """

    def __init__(
        self,
        values: Mapping[str, Any],
        namespace: dict[str, Any],
        broken: Mapping[int, str] | None = None,
    ) -> None:
        self.values, self.namespace, self.broken = dict(values), namespace, broken or {}
        self.lost, self.by_value, self._until = dict[str, str](), set[type](), list[float]()
        while not self._dump_all():
            pass  # without those that are lost

    def _dump_all(self) -> bool:
        """One pickle of all; False where one of them is lost, or has to be pickled otherwise."""
        self.parts: list[Part] = []
        self.arrays = ArraysToSave(self.parts, self._until)
        self.buffers: list[int] = []  # their sections
        self.spanning, self.common, self.meshes = set[str](), list[str](), set[Any]()
        self.file, is_whole = io.BytesIO(), True
        pickler = Pickler(self)
        # Classes come first: what their statements need is not to be half made by then.
        first = {n: (n != SETTINGS, not isinstance(v, type)) for n, v in self.values.items()}
        for name in (order := sorted(first, key=first.__getitem__)):
            self.arrays.name, met = name, len(self.arrays.described)
            try:
                pickler.dump(self.values[name])
            except classes.Circular as error:
                self.by_value.add(error.args[0])
            except Exception as error:
                self.lost[name] = why(error)
            else:
                spans, is_common = judge(self.values[name])
                if spans or any(one.spans for one in self.arrays.described[met:]):
                    self.spanning.add(name)
                self.common += [name] if is_common else []
                continue
            # Others may share what was begun. A pickler that knows nothing of it looks again.
            pickler, is_whole = Pickler(self), False
        self.values = {name: self.values[name] for name in order if name not in self.lost}
        return is_whole

    def is_small(self, buffer: pickle.PickleBuffer) -> bool:
        """Whether a buffer lies in the pickle; else it is a section of its own."""
        if (raw := buffer.raw()).nbytes >= LARGE_NBYTES:
            self.buffers.append(len(self.parts))
            self.parts.append(Part(raw.nbytes, lambda: raw))
        return raw.nbytes < LARGE_NBYTES

    def _digest(self, name: str) -> str:
        """Equal on ranks that have an equal value; "" of one that can't be compared."""
        alone = Pickled({name: self.values[name]}, self.namespace)
        arrays = alone.arrays.described
        others = {section for one in arrays if one.spans for section in one.shards.values()}
        held = [as_bytes(part.read()) for n, part in enumerate(alone.parts) if n not in others]
        what = [(one.shape, one.dtype) for one in arrays], [checksum(data) for data in held]
        return "" if alone.lost else checksum(as_bytes(alone.file.getvalue() + repr(what).encode()))

    def write(self, path: Path, *, compare: bool = False) -> int:
        """Write it to a file; returns its size.

        Args:
          compare: ranks may have to tell which values are equal on all of them.
        """
        pickled = self.file.getbuffer()
        about = {
            "names": [*self.values],
            "buffers": self.buffers,
            "arrays": self.arrays.described,
            "common": self.common,
            "digests": {name: self._digest(name) for name in self.values} if compare else {},
            "pickle": len(self.parts),
            "Python": PYTHON,
        }
        return write(path, [*self.parts, Part(len(pickled), lambda: pickled)], about)

    @property
    def nbytes(self) -> int:
        """How large the file is going to be, but for its index."""
        return sum(part.nbytes for part in self.parts) + self.file.tell()


class Pickler(cloudpickle.Pickler):
    """Pickles the values of one namespace."""

    dispatch_table: ClassVar[Any] = ChainMap(FILES, cloudpickle.Pickler.dispatch_table)

    def __init__(self, pickled: Pickled) -> None:
        super().__init__(pickled.file, protocol=PROTOCOL, buffer_callback=pickled.is_small)
        import jax

        self._pickled = pickled
        self._started: set[type] = set()
        own = own_objects(pickled.namespace)
        self._own = {id(value): ("own", name) for name, value in own.items()}
        number = pickled.arrays.number
        self._ids: dict[type, Callable[[Any], Any]] = {
            kinds().array: lambda array: ("array", number(array), array.sharding),
            jax.Device: lambda device: ("device", *places([device])[0]),
            jax.sharding.Mesh: self._id_of_mesh,
        }
        self._reducers: dict[type, Callable[[Any], Any]] = {
            kinds().key: lambda k: (_key, (k._base_array, str(jax.random.key_impl(k)))),
            kinds().jitted: _reduce_jitted,
            jax.custom_jvp: _reduce_bare,
            jax.custom_vjp: _reduce_bare,
            jax.Ref: _refuse,
            np.ndarray: _reduce_view,
            CellType: lambda cell: (CellType, ()),  # what it holds comes with its function
            # With its file, by which tracebacks find its cell: cloudpickle leaves that out.
            CodeType: lambda code: (marshal.loads, (marshal.dumps(code),)),
            type(functools.cache(len)): lambda f: (_cached, (f.__wrapped__, f.cache_parameters())),
        }
        self._tracer = jax.core.Tracer

    def persistent_id(self, obj: Any) -> Any:
        if (own := self._own.get(id(obj))) is not None:
            return own
        if (why_not := self._pickled.broken.get(id(obj))) is not None:
            raise CannotSave(why_not)
        known = self._ids.get(type(obj))
        return known(obj) if known is not None else None

    def _id_of_mesh(self, mesh: Any) -> Any:
        self._pickled.meshes.add(mesh)
        return mesh_id(mesh)

    def reducer_override(self, obj: Any) -> Any:
        kind = type(obj)
        if (reduce := self._reducers.get(kind)) is not None:
            return reduce(obj)
        if issubclass(kind, self._tracer):
            _refuse(obj)
        if issubclass(kind, type) and (known := reference_to(obj)) is not None:
            return known
        reduced = super().reducer_override(obj)
        if issubclass(kind, type) and isinstance(reduced, tuple) and len(reduced) > IS_MADE:
            return self._reduce_class(obj, reduced)
        return reduced

    def _reduce_class(self, cls: type, by_value: Any) -> Any:
        """A class that can't be imported: by its statement, else as cloudpickle has it."""
        if cls in self._started:  # what its statement needs holds it
            raise classes.Circular(cls)
        self._started.add(cls)
        pickled = self._pickled
        found = None if cls in pickled.by_value else classes.statement_of(cls)
        names = ChainMap(pickled.values, pickled.namespace)
        return classes.reduce(cls, by_value, found, names, pickled.namespace)

    def _dynamic_function_reduce(self, func: FunctionType) -> Any:
        names = func.__globals__
        if names is not self._pickled.namespace:
            module = sys.modules.get(names.get("__name__", ""))
            if module is None or vars(module) is not names:
                return super()._dynamic_function_reduce(func)  # of exec, with a dict of its own
            self._own[id(names)] = "globals", module.__name__
        held = [(cell, one) for cell in func.__closure__ or () for one in contents(cell)]
        arguments = func.__code__, names, func.__name__, None, func.__closure__
        slots = {name: getattr(func, f"__{name}__") for name in OF_FUNCTIONS.split()}
        return FunctionType, arguments, (held, vars(func), slots), None, None, _function_setstate


def _function_setstate(func: Any, state: Any) -> None:
    held, attributes, slots = state
    for cell, one in held:
        cell.cell_contents = one
    vars(func).update(attributes)
    for name, value in slots.items():
        setattr(func, f"__{name}__", value)


def _reduce_jitted(function: Any) -> Any:
    if is_imported(function):
        return function.__qualname__
    added = {n: v for n, v in vars(function).items() if n not in OF_JITTED and n[0] != "_"}
    made = jitted, (function._fun, info_of(function))
    return *made, ((), added, {}), None, None, _function_setstate


def _reduce_bare(function: Any) -> Any:
    if is_imported(function):
        return function.__qualname__
    return object.__new__, (type(function),), dict(vars(function))


def _cached(function: Any, parameters: Any) -> Any:
    return functools.lru_cache(**parameters)(function)


def _refuse(value: Any) -> Any:
    raise CannotSave(f"it holds a {type(value).__name__}, which stands for an array")


def _key(numbers: Any, impl: str) -> Any:
    import jax

    return jax.random.wrap_key_data(numbers, impl=impl)


def _reduce_view(array: np.ndarray[Any, Any]) -> Any:
    """A view of another array's memory by the array that owns it."""
    owner = array
    while type(owner.base) is np.ndarray:
        owner = owner.base
    if owner is array or array.dtype.hasobject or owner.dtype.hasobject or not owner.flags.forc:
        return NotImplemented
    first = array.__array_interface__["data"][0] - owner.__array_interface__["data"][0]
    what = array.shape, array.dtype, first, array.strides
    return _view, (owner, what, array.flags.writeable)


def _view(owner: Any, what: tuple[Any, ...], is_writeable: bool) -> Any:
    shape, dtype, first, strides = what
    memory = owner if owner.flags.c_contiguous else owner.T
    array: Any = np.ndarray(shape, dtype, memory, first, strides)
    if not is_writeable:
        array.flags.writeable = False
    return array


def own_objects(namespace: dict[str, Any]) -> dict[str, Any]:
    """What each process has of its own, by its name: it is left out of pickles."""
    found = {name: getattr(sys, name) for name in ("stdin", "stdout", "stderr")}
    if (shell := namespace.get("get_ipython")) is not None:
        found["shell"] = shell()
    return found | {"namespace": namespace, "main": sys.modules["__main__"]}

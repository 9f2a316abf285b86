"""A namespace as one pickle, in which each name has a section: names share what they shared.

It is of what people put into notebooks, where cloudpickle alone makes something else of it.
Functions of cells have the namespace itself as their globals, and closures share their cells.
Views of one memory stay views. jitted functions keep their options. Classes of cells are made
again by their class statements (``classes``). Arrays, devices and what belongs to the process are
left out: they have persistent ids. What an installed module holds goes by its name there.

A load that meets an error is made again by steps that go on after one. So it costs only the names
that reach what could not be made.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import io
import marshal
import pickle
import sys
from collections import ChainMap
from collections.abc import Callable, Mapping
from types import CellType, CodeType, FunctionType, ModuleType
from typing import Any, ClassVar

import cloudpickle
import jax
import numpy as np

from jaxcluster import wire
from jaxcluster.model.pickling import FILES, reference_to
from jaxcluster.rank.arrays import Patience, arrays_of, bounds, devices_hash, shards_of
from jaxcluster.rank.names import is_own_module
from jaxcluster.rank.private.kinds import info_of, is_imported, jitted, kinds
from jaxcluster.rank.state import arrays, classes
from jaxcluster.rank.state.arrays import Lost, SavedArray, make_array
from jaxcluster.rank.state.file import BadFile, StateFile, as_bytes, checksum
from jaxcluster.rank.statements import statement_of

SETTING = " "  # the names of settings begin with it: they change what values become
READY_S = 3.0  # in which all arrays of a save have to be computed
WHY_CHARS = 200
LARGE_NBYTES = 64 << 10  # from here on a buffer has its own section
KNOWN = "__main__", "builtins", "types"  # modules whose objects have no names there
IS_MADE = 2  # from here on what cloudpickle says of a class has its attributes: else it is known
OF_FUNCTIONS = ["qualname", "defaults", "kwdefaults", "module", "doc"]
OF_JITTED = {"__name__", "__qualname__", "__doc__", "__module__", "__wrapped__", "__annotations__"}
Broken = dict[int, tuple[Any, str]]  # by their ids objects that were not made to their end: why


class Pickler(cloudpickle.Pickler):
    """One pickle of all names that can be saved, and the raw sections beside it.

    Attributes:
      values: the names that are saved; ``lost``: the others, and why.
      spanning: names with arrays that span processes.

    Args:
      broken: objects that can't be saved.
    """

    dispatch_table: ClassVar[Any] = ChainMap(FILES, cloudpickle.Pickler.dispatch_table)

    def __init__(
        self, values: Mapping[str, Any], namespace: dict[str, Any], broken: Broken | None = None
    ) -> None:
        self._namespace, self._broken, self._patience = namespace, broken or {}, Patience(READY_S)
        self.lost, self._by_value = dict[str, str](), set[type]()
        self._homes = dict[str, dict[int, Any]]()
        self._own = {id(one): ("own", name) for name, one in own_objects(namespace).items()}
        # Classes come early: what their statements need is not to be half made by then. Code of
        # cells that runs while values are made uses modules.
        early = ModuleType, type
        order = sorted(values, key=lambda n: (n[:1] != SETTING, not isinstance(values[n], early)))
        self.values = {name: values[name] for name in order}
        while not self._dump_all():
            self.values = {n: v for n, v in self.values.items() if n not in self.lost}

    def _begin(self) -> None:
        """Begin a pickle that knows nothing."""
        parts, buffers = self.parts, self.buffers = list[Any](), list[int]()

        def is_small(buffer: pickle.PickleBuffer) -> bool:
            """Whether a buffer lies in the pickle; else it is a section of its own."""
            if (raw := buffer.raw()).nbytes >= LARGE_NBYTES:
                buffers.append(len(parts))
                parts.append(raw)
            return raw.nbytes < LARGE_NBYTES

        # Nothing here holds the pickler itself: it would keep arrays until a garbage collection.
        self.file = io.BytesIO()
        super().__init__(self.file, protocol=5, buffer_callback=is_small)
        self.spanning, self.arrays = set[str](), dict[str, SavedArray]()
        self._started = set[type]()

    def _dump_all(self) -> bool:
        """One pickle of all; False where one of them is lost, or has to be pickled otherwise."""
        self._begin()
        is_whole = True
        for name, value in self.values.items():
            self._name, self._first, by_value = name, len(self.arrays), len(self._by_value)
            try:
                self.dump(value)
                if not all(array.is_fully_addressable for _, array in arrays_of(value)):
                    self.spanning.add(name)
            except Exception as error:
                if len(self._by_value) == by_value:
                    self.lost[name] = why(error)
                self._begin()  # others may share what was begun, and are looked at again
                is_whole = False
        return is_whole

    def _key(self, array: Any) -> str:
        """The key of an array, whose shards become sections.

        Other ranks have the same key where they have other parts of the array. So it is made of the
        first name that holds the array, its number there, shape, dtype, devices and sharding.

        Raises:
          Lost: it has no values, or not soon.
        """
        if array.is_deleted():
            raise Lost("it was deleted or donated")
        self._patience.wait(array)
        array.block_until_ready()  # raises if its computation has failed
        shards = {bounds(s.index, array.shape): s.data for s in shards_of(array)}
        sections = {index: len(self.parts) + n for n, index in enumerate(shards)}
        # Where that takes no copy: a cell may donate the array before it is written.
        is_here = {one.platform for one in array.devices()} == {"cpu"}
        self.parts += map(as_bytes, shards.values()) if is_here else shards.values()
        spans, what = not array.is_fully_addressable, (array.shape, str(array.dtype))
        on = (devices_hash(array), getattr(array.sharding, "spec", "")) if spans else ()
        key = repr((self._name, len(self.arrays) - self._first, what, on))
        self.spanning |= {self._name} if spans else set()
        kind = bool(array.weak_type), bool(array.committed)
        self.arrays[key] = SavedArray(*what, *kind, spans, sections)
        return key

    def persistent_id(self, obj: Any) -> Any:
        if (broken := self._broken.get(id(obj))) is not None:
            raise Lost(broken[1])
        return self._own.get(id(obj))

    def reducer_override(self, obj: Any) -> Any:
        kind = type(obj)
        if kind is kinds().array:
            return make_array, (self._key(obj), obj.sharding)
        if kind in (known := _reducers()):
            return obj.__qualname__ if callable(obj) and is_imported(obj) else known[kind](obj)
        if (is_class := issubclass(kind, type)) and (known := reference_to(obj)) is not None:
            return known
        if not is_class and kind is not FunctionType:
            home = self._home(str(kind.__module__)).get(id(obj))
            return NotImplemented if home is None else (_held, (*home, kind))
        reduced = super().reducer_override(obj)
        if not is_class or not isinstance(reduced, tuple) or len(reduced) <= IS_MADE:
            return reduced
        names = ChainMap(self.values, self._namespace)
        found = classes.outer_of(obj, names) or statement_of(obj)
        found = None if self._by_value.intersection((obj, found)) else found
        if obj in self._started and not isinstance(found, type):  # what it needs holds it
            self._by_value.add(obj)
            raise Lost("its class statement needs a value that holds the class")
        self._started.add(obj)
        return classes.reduce(obj, reduced, found, names, self._namespace)

    def _home(self, name: str) -> dict[int, Any]:
        """By their ids the objects of an installed module, as its attributes."""
        if name not in self._homes:
            module = None if name in KNOWN or is_own_module(name) else sys.modules.get(name)
            held = list(vars(module).items()) if type(module) is ModuleType else ()
            self._homes[name] = {id(one): (module, own) for own, one in held}
        return self._homes[name]

    def _dynamic_function_reduce(self, func: FunctionType) -> Any:
        names = func.__globals__
        if names is not self._namespace:
            module = sys.modules.get(names.get("__name__", ""))
            if module is None or vars(module) is not names:
                return super()._dynamic_function_reduce(func)  # of exec, with a dict of its own
            self._own[id(names)] = "globals", module.__name__
        held = [(cell, one) for cell in func.__closure__ or () for one in contents(cell)]
        arguments = func.__code__, names, func.__name__, None, func.__closure__
        slots = {name: getattr(func, f"__{name}__") for name in OF_FUNCTIONS}
        with contextlib.suppress(NameError):  # Python 3.14 looks up names in them only now
            slots["annotations"] = func.__annotations__
        return FunctionType, arguments, (held, vars(func), slots), None, None, _function_setstate

    def _digest(self, name: str) -> str:
        """Equal on ranks that have an equal value; "" of one that can't be compared."""
        alone = Pickler({name: self.values[name]}, self._namespace)
        if alone.lost or alone.spanning:
            return ""
        held = repr([checksum(as_bytes(part)) for part in alone.parts])
        return checksum(as_bytes(alone.file.getvalue() + held.encode()))

    def index(self, *, compare: bool = False) -> dict[str, Any]:
        """What ``load`` needs; ``compare``: also which values are equal on all ranks."""
        digests = {name: self._digest(name) for name in self.values} if compare else {}
        known = {"names": [*self.values], "buffers": self.buffers, "arrays": self.arrays}
        return known | {"spanning": self.spanning, "digests": digests}


def _function_setstate(func: Any, state: Any) -> None:
    held, attributes, slots = state
    for cell, one in held:
        cell.cell_contents = one
    vars(func).update(attributes)
    for name, value in slots.items():
        setattr(func, f"__{name}__", value)


def _reduce_jitted(function: Any) -> Any:
    added = {n: v for n, v in vars(function).items() if n not in OF_JITTED and n[0] != "_"}
    made = jitted, (function._fun, info_of(function))
    return *made, ((), added, {}), None, None, _function_setstate


def _held(module: ModuleType, name: str, kind: type) -> Any:
    """An object of an installed module, if this process has it too."""
    if type(found := getattr(module, name, None)) is not kind:
        raise Lost(f"module {module.__name__} has no such {name} now")
    return found


def _cached(function: Any, parameters: Any) -> Any:
    return functools.lru_cache(**parameters)(function)


def _reduce_view(array: np.ndarray[Any, Any]) -> Any:
    """A view of another array's memory by the array that owns it."""
    owner = array
    while type(owner.base) is np.ndarray:
        owner = owner.base
    if owner is array or array.dtype.hasobject or owner.dtype.hasobject or not owner.flags.forc:
        return array.__reduce_ex__(pickle.HIGHEST_PROTOCOL)
    first = array.__array_interface__["data"][0] - owner.__array_interface__["data"][0]
    what = array.shape, array.dtype, first, array.strides
    return _view, (owner, what, array.flags.writeable)


def _view(owner: Any, what: tuple[Any, ...], is_writeable: bool) -> Any:
    shape, dtype, first, strides = what
    memory = owner if owner.flags.c_contiguous else owner.T
    array: Any = np.ndarray(shape, dtype, memory, first, strides)
    array.flags.writeable &= is_writeable
    return array


@functools.cache
def _reducers() -> dict[type, Callable[[Any], Any]]:
    """How values of these types are pickled, if they can't be imported."""
    bare: Any = lambda one: (object.__new__, (type(one),), dict(vars(one)))  # noqa: E731
    return {
        kinds().key: lambda key: (
            functools.partial(jax.random.wrap_key_data, impl=str(jax.random.key_impl(key))),
            (key._base_array,),
        ),
        kinds().jitted: _reduce_jitted,
        jax.Device: lambda device: (arrays.device_at, arrays.places([device])[0]),
        jax.sharding.Mesh: arrays.reduce_mesh,
        jax.custom_jvp: bare,
        jax.custom_vjp: bare,
        np.ndarray: _reduce_view,
        CellType: lambda cell: (CellType, ()),  # what it holds comes with its function
        # With its file, by which tracebacks find its cell: cloudpickle leaves that out.
        CodeType: lambda code: (marshal.loads, (marshal.dumps(code),)),
        type(functools.cache(len)): lambda f: (_cached, (f.__wrapped__, f.cache_parameters())),
    }


def contents(cell: Any) -> list[Any]:
    """The content of a function's cell, if it is set."""
    return [cell.cell_contents] if cell != CellType() else []


def own_objects(namespace: dict[str, Any]) -> dict[str, Any]:
    """Objects that differ in each process, by name: pickles leave them out."""
    found = {"namespace": namespace, "main": sys.modules["__main__"], "array": make_array}
    if (shell := namespace.get("get_ipython")) is not None:
        found["shell"] = shell()
    return found | {name: getattr(sys, name) for name in ("stdin", "stdout", "stderr")}


# ---------------------------------------------------------------------- and back


class Unpickler(pickle.Unpickler):
    """Makes all objects, or raises the first error."""

    own: Mapping[str, Any]
    broken: Broken

    def persistent_load(self, known: tuple[str, str]) -> Any:
        kind, name = known
        return self.own[name] if kind == "own" else vars(importlib.import_module(name))


_Python: Any = pickle._Unpickler
# Steps that make an object of so many others, or change one that was made.
MAKING = {pickle.REDUCE: 2, pickle.NEWOBJ: 2, pickle.NEWOBJ_EX: 3, pickle.STACK_GLOBAL: 2}
MAKING |= {pickle.BINPERSID: 1, pickle.FROZENSET: 0}
CHANGING = {pickle.BUILD: 1, pickle.APPEND: 0, pickle.SETITEM: 0}
CHANGING |= dict.fromkeys((pickle.APPENDS, pickle.SETITEMS, pickle.ADDITEMS), 0)


def _tolerant(op: bytes, number: int) -> Callable[[Any], None]:
    """A step of unpickling that leaves a ``Lost``, or a broken object, where it fails."""

    def step(self: Any) -> None:
        above = len(self.stack) - number
        given = self.stack[above:]
        held = (one for part in given for one in (part if type(part) is tuple else [part]))
        try:
            if (lost := next((one for one in held if type(one) is Lost), None)) is not None:
                raise lost
            _Python.dispatch[op[0]](self)
        except BadFile:
            raise
        except Exception as error:
            told, stack = why(error), self.stack
            if number:
                del stack[above:]
            if op == pickle.REDUCE and given[1] and stack and given[1][0] is stack[-1]:
                # It was called to set the state of what was made right before it.
                self.broken[id(stack[-1])] = stack[-1], told
            if op in MAKING:
                stack.append(error if type(error) is Lost else Lost(told))
            self.broken.setdefault(id(stack[-1]), (stack[-1], told))

    return step


class TolerantUnpickler(_Python):
    """Goes on after an error, in Python."""

    persistent_load: Any = Unpickler.persistent_load
    dispatch: ClassVar[Any] = _Python.dispatch | {
        op[0]: _tolerant(op, number) for op, number in (MAKING | CHANGING).items()
    }


def load(
    files: Mapping[int, StateFile],
    base: int,
    namespace: dict[str, Any],
    use: Callable[[dict[str, Any]], Any],
) -> tuple[dict[str, Any], dict[str, str]]:
    """The values that a rank's file has, and the names that can't be made, and why.

    Names that reach what can't be made are lost, and all others are whole.

    Args:
      base: the rank whose file it is. The others' have shards that it lacks.
      use: called with each setting as soon as it is made.

    Raises:
      BadFile: a file was changed.
    """
    about, section, broken, bound = files[base].about, files[base].copy, Broken(), set[str]()
    others = [file for rank, file in files.items() if rank != base]
    own = own_objects(namespace) | {"array": functools.partial(make_array, [files[base], *others])}

    def read(kind: Any) -> dict[str, Any]:
        buffers = (section(number).data for number in about["buffers"])
        unpickler, values = kind(io.BytesIO(section(-1).data), buffers=buffers), dict[str, Any]()
        unpickler.own, unpickler.broken = own, broken
        for name in about["names"]:
            values[name] = value = unpickler.load()
            if name.startswith(SETTING):
                use({name: value})
            elif name in bound or name not in namespace:  # which code of cells may use meanwhile
                namespace[name] = value
                bound.add(name)
        return values

    try:
        return read(Unpickler), {}
    except BadFile:
        raise
    except Exception:  # once more, to know what is whole
        whole = Pickler(read(TolerantUnpickler), namespace, broken)
    finally:
        for name in bound:
            namespace.pop(name, None)
    return whole.values, whole.lost


def why(error: Exception) -> str:
    """An error's message, in a line."""
    return wire.shorten(str(error) or type(error).__name__, WHY_CHARS)

"""Pickles of what people put into notebooks, where cloudpickle alone makes something else of it.

Functions of cells have the namespace itself as their globals, and closures share their cells.
Views of one memory stay views. jitted functions keep their options. Classes of cells are made
again by their class statements (``classes``). Arrays, devices and what belongs to the process are
left out: they have persistent ids.
"""

from __future__ import annotations

import functools
import importlib
import io
import marshal
import pickle
import sys
from collections import ChainMap
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import CellType, CodeType, FunctionType
from typing import Any, ClassVar, TypeAlias

import cloudpickle
import numpy as np

from jaxcluster.engine.private.kinds import info_of, is_imported, jitted, kinds
from jaxcluster.rank.state import classes
from jaxcluster.rank.state.arrays import CannotLoad, CannotSave, Gap, why
from jaxcluster.rank.state.common import contents
from jaxcluster.rank.state.file import BadFile
from jaxcluster.wire.ops.values import FILES, reference_to

PROTOCOL = 5
LARGE_NBYTES = 64 << 10  # from here on a buffer is a section of its own
IS_MADE = 2  # from here on what cloudpickle says of a class has its attributes: else it is known
OWN = -1  # the rank itself
OF_FUNCTIONS = "qualname defaults kwdefaults module doc annotations"
OF_JITTED = {"__name__", "__qualname__", "__doc__", "__module__", "__wrapped__", "__annotations__"}

Fitted: TypeAlias = Mapping[tuple[tuple[str, ...], tuple[int, ...]], Sequence[int]]


class Pickler(cloudpickle.Pickler):
    """Pickles values of a namespace.

    Args:
      names: the values by their names; others are in the namespace.
      array_id: gives what stands for a ``jax.Array``, beside its sharding.
      take: takes the large buffers, which do not lie in the pickle.
      by_value: classes that can't be made by their statements.
      broken: objects by their ids that can't be saved, and why.

    Attributes:
      meshes: those that it has met.
    """

    dispatch_table: ClassVar[Any] = ChainMap(FILES, cloudpickle.Pickler.dispatch_table)

    def __init__(
        self,
        file: io.BytesIO,
        names: Mapping[str, Any],
        namespace: dict[str, Any],
        array_id: Callable[[Any], Any],
        take: Callable[[memoryview], None],
        by_value: Iterable[type],
        broken: Mapping[int, str],
    ) -> None:
        def is_small(buffer: pickle.PickleBuffer) -> bool:
            if (raw := buffer.raw()).nbytes >= LARGE_NBYTES:
                take(raw)
            return raw.nbytes < LARGE_NBYTES

        super().__init__(file, protocol=PROTOCOL, buffer_callback=is_small)
        import jax

        self._names, self._namespace = names, namespace
        self._by_value, self._broken = set(by_value), broken
        self._started: set[type] = set()
        self.meshes: set[Any] = set()
        self._own = {id(value): ("own", name) for name, value in own_objects(namespace).items()}
        self._ids: dict[type, Callable[[Any], Any]] = {
            kinds().array: lambda array: ("array", array_id(array), array.sharding),
            jax.Device: lambda device: ("device", *_places([device])[0]),
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
        if id(obj) in self._broken:
            raise CannotSave(self._broken[id(obj)])
        known = self._ids.get(type(obj))
        return known(obj) if known is not None else None

    def _id_of_mesh(self, mesh: Any) -> Any:
        self.meshes.add(mesh)
        return _mesh_id(mesh)

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
        found = None if cls in self._by_value else classes.statement_of(cls)
        return classes.reduce(cls, by_value, found, self._names, self._namespace)

    def _dynamic_function_reduce(self, func: FunctionType) -> Any:
        names = func.__globals__
        if names is not self._namespace:
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


# ---------------------------------------------------------------------- and made again

# What a function of that name has changed is its first argument; what it returns is dropped.
SETTER = "_setstate"
# Steps that make something, by how much they take from the stack, and steps that change the top.
MAKES = {pickle.REDUCE: 2, pickle.NEWOBJ: 2, pickle.NEWOBJ_EX: 3, pickle.STACK_GLOBAL: 2}
MAKES |= {pickle.BINPERSID: 1, pickle.FROZENSET: 0}
CHANGES = [pickle.BUILD, pickle.SETITEM, pickle.SETITEMS]
CHANGES += [pickle.APPEND, pickle.APPENDS, pickle.ADDITEMS]
_Python: Any = pickle._Unpickler


def maker(
    namespace: dict[str, Any], array: Callable[[Any, Any], Any], fitted: Fitted
) -> Callable[[Any], Any]:
    """What makes a value of a namespace by what stands for it in a pickle.

    Args:
      array: makes an array by what stands for it and its sharding.
      fitted: for meshes of all devices, by their axes and sizes, the sizes that they have now.
    """
    makers: dict[str, Callable[..., Any]] = {
        "array": array,
        "device": _device,
        "mesh": functools.partial(_mesh, fitted),
        "globals": lambda name: vars(importlib.import_module(name)),
        "own": own_objects(namespace).__getitem__,
    }
    return lambda known: makers[known[0]](*known[1:])


def _guarded(op: bytes, taken: int = 0, *, is_made: bool = False) -> Callable[[Any], None]:
    """A step after which an error leaves a gap, or an object that is broken."""

    def guarded(self: Any) -> None:
        depth = len(self.stack) - taken
        given = self.stack[depth:]
        try:
            _Python.dispatch[op[0]](self)
        except BadFile:
            raise
        except Exception as error:
            parts = [part for one in given if type(one) is tuple for part in one]
            told = next((one.why for one in (*given, *parts) if type(one) is Gap), why(error))
            if is_made:
                del self.stack[depth if taken else len(self.stack) :]
                self.stack.append(Gap(told))
            self.note(self.stack[-1], told)
            if taken and getattr(given[0], "__name__", "").endswith(SETTER) and parts:
                self.note(parts[0], told)

    return guarded


class TolerantUnpickler(_Python):
    """The one in Python, which goes on after an error.

    Attributes:
      broken: by their ids the objects that could not be made, or not to the end, and why.
    """

    dispatch: ClassVar[Any] = (
        _Python.dispatch
        | {op[0]: _guarded(op, taken, is_made=True) for op, taken in MAKES.items()}
        | {op[0]: _guarded(op) for op in CHANGES}
    )

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.broken, self._kept = dict[int, str](), list[Any]()

    def note(self, broken: Any, told: str) -> None:
        """An object is broken, whose id stays its own."""
        self._kept.append(broken)
        self.broken.setdefault(id(broken), told)


# ---------------------------------------------------------------------- what stays where it is


@functools.cache
def _place(device: Any) -> tuple[str, int, int]:
    """Where a device is: its platform, its rank, its number there."""
    rank = device.process_index
    peers = [one for one in device.client.devices() if one.process_index == rank]
    return device.platform, rank, peers.index(device)


def _places(devices: Iterable[Any]) -> list[tuple[str, int, int]]:
    """Where devices are. If all are the rank's own, another rank has its own in their place."""
    import jax

    found = [_place(device) for device in devices]
    is_own = all(rank == jax.process_index() for _, rank, _ in found)
    return [(platform, OWN if is_own else rank, number) for platform, rank, number in found]


def _device(platform: str, rank: int, number: int) -> Any:
    import jax

    rank = jax.process_index() if rank == OWN else rank
    try:
        return [one for one in jax.devices(platform) if one.process_index == rank][number]
    except (RuntimeError, IndexError):
        raise CannotLoad(f"there is no device {number} of rank {rank} any more") from None


@functools.cache
def _mesh_id(mesh: Any) -> Any:
    devices = mesh.devices
    return "mesh", _places(devices.flat), devices.shape, mesh.axis_names, mesh.axis_types


def _mesh(fitted: Fitted, at: Any, shape: Sequence[int], names: Any, types: Any) -> Any:
    """The same mesh; for another number of ranks the one that was fitted."""
    import jax

    if (new := fitted.get((names, tuple(shape)))) == []:
        told = ",".join(f"{name}={size}" for name, size in zip(names, shape, strict=True))
        raise CannotLoad(f"its mesh {told} does not fit {len(jax.devices())} devices")
    devices = [_device(*place) for place in at] if new is None else jax.devices(at[0][0])
    return jax.sharding.Mesh(np.array(devices).reshape(new or shape), names, axis_types=types)


def own_objects(namespace: dict[str, Any]) -> dict[str, Any]:
    """What each process has of its own, by its name: it is left out of pickles."""
    found = {name: getattr(sys, name) for name in ("stdin", "stdout", "stderr")}
    if (shell := namespace.get("get_ipython")) is not None:
        found["shell"] = shell()
    return found | {"namespace": namespace, "main": sys.modules["__main__"]}

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
import pickle
import sys
from collections import ChainMap, Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import CellType, CodeType, FunctionType
from typing import Any, ClassVar, TypeAlias

import cloudpickle
import numpy as np

from jaxcluster.engine.private.kinds import info_of, is_imported, jitted, kinds
from jaxcluster.rank.state import classes
from jaxcluster.rank.state.arrays import CannotLoad, CannotSave
from jaxcluster.wire.ops.values import FILES, reference_to

PROTOCOL = 5
LARGE_NBYTES = 64 << 10  # from here on a buffer is a section of its own
IS_MADE = 2  # from here on what cloudpickle says of a class has its attributes: else it is known
OWN = -1  # the rank itself
OF_FUNCTIONS = "qualname defaults kwdefaults module doc annotations"
OF_JITTED = {"__name__", "__qualname__", "__doc__", "__module__", "__wrapped__", "__annotations__"}

Place: TypeAlias = tuple[str, int, int]  # of a device: its platform, its rank, its number there
Fitted: TypeAlias = Mapping[tuple[tuple[str, ...], tuple[int, ...]], Sequence[int]]


class Pickler(cloudpickle.Pickler):
    """Pickles values of a namespace.

    Args:
      array_id: gives what stands for a ``jax.Array``, beside its sharding.
      large: takes the buffers that are not to lie in the pickle, and says False.
      by_value: classes that can't be made by their statements.

    Attributes:
      meshes: those that it has met.
    """

    dispatch_table: ClassVar[Any] = ChainMap(FILES, cloudpickle.Pickler.dispatch_table)

    def __init__(
        self,
        file: io.BytesIO,
        namespace: dict[str, Any],
        array_id: Callable[[Any], Any],
        large: Callable[[pickle.PickleBuffer], bool],
        by_value: Iterable[type] = (),
    ) -> None:
        super().__init__(file, protocol=PROTOCOL, buffer_callback=large)
        import jax

        self._namespace, self._by_value = namespace, set(by_value)
        self._started: set[type] = set()
        self.meshes: set[Any] = set()
        own = own_objects(namespace)
        self._own = {id(value): ("own", name) for name, value in own.items()}
        self._ids: dict[type, Callable[[Any], Any]] = dict.fromkeys(
            {type(value) for value in own.values()}, lambda value: self._own.get(id(value))
        )
        self._ids |= {
            kinds().array: lambda array: ("array", array_id(array), array.sharding),
            jax.Device: lambda device: ("device", *_places_of([device])[0]),
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
            CodeType: _reduce_code,
            type(functools.cache(len)): lambda f: (_cached, (f.__wrapped__, f.cache_parameters())),
        }
        self._tracer = jax.core.Tracer

    def persistent_id(self, obj: Any) -> Any:
        known = self._ids.get(type(obj))
        return known(obj) if known is not None else None

    def _id_of_mesh(self, mesh: Any) -> Any:
        self.meshes.add(mesh)
        at = _places_of([*mesh.devices.flat])
        # In one piece: nothing of it is a part that other values have too.
        known = at, mesh.devices.shape, mesh.axis_names, mesh.axis_types
        return "mesh", pickle.dumps(known)

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
        if found is not None:
            made = classes.run, (found, found.needs(self._namespace), self._namespace)
            return *made, classes.state_of(cls, found), None, None, classes.set_state
        classes.check_by_value(cls)
        make, arguments, state, *_ = by_value
        how = classes.registration(cls)
        return make, arguments, (state, how), None, None, classes.set_by_value

    def _dynamic_function_reduce(self, func: FunctionType) -> Any:
        names = func.__globals__
        if names is not self._namespace:
            module = sys.modules.get(names.get("__name__", ""))
            if module is None or vars(module) is not names:
                return super()._dynamic_function_reduce(func)  # of exec, with a dict of its own
            self._own[id(names)] = "globals", module.__name__
        held = [_contents(cell) for cell in func.__closure__ or ()]
        arguments = func.__code__, names, func.__name__, None, func.__closure__
        slots = {name: getattr(func, f"__{name}__") for name in OF_FUNCTIONS.split()}
        return FunctionType, arguments, (held, vars(func), slots), None, None, _set_function


def _reduce_code(code: CodeType) -> Any:
    """With its file, by which tracebacks find its cell: cloudpickle leaves that out."""
    return _code, (code.co_filename, *cloudpickle.Pickler.dispatch_table[CodeType](code))


def _code(file: str, make: Any, arguments: Any) -> Any:
    return make(*arguments).replace(co_filename=file)


def _contents(cell: CellType) -> list[Any]:
    try:
        return [cell.cell_contents]
    except ValueError:
        return []


def _set_function(func: FunctionType, state: Any) -> None:
    held, attributes, slots = state
    for cell, contents in zip(func.__closure__ or (), held, strict=True):
        for value in contents:
            cell.cell_contents = value
    vars(func).update(attributes)
    for name, value in slots.items():
        setattr(func, f"__{name}__", value)


def _reduce_jitted(function: Any) -> Any:
    if is_imported(function):
        return function.__qualname__
    added = {n: v for n, v in vars(function).items() if n not in OF_JITTED and n[0] != "_"}
    return jitted, (function._fun, info_of(function)), added, None, None, _update


def _update(function: Any, attributes: Any) -> None:
    vars(function).update(attributes)


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


class Gap:
    """Stands for what could not be made. Nothing that holds it can be pickled."""

    def __init__(self, why: str) -> None:
        self.why = why

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise CannotLoad(self.why)


class Unpickler(pickle.Unpickler):
    """Makes the values again, in a namespace.

    Args:
      array: makes an array by what stands for it and its sharding.
      fitted: for meshes of all devices, by their axes and sizes, the sizes that they have now.
      gaps: takes what stands for arrays, devices and meshes that can't be made.

    Attributes:
      known: values by numbers.
    """

    def __init__(
        self,
        file: io.BytesIO,
        namespace: dict[str, Any],
        array: Callable[[Any, Any], Any],
        fitted: Fitted,
        gaps: list[Gap],
        buffers: Iterable[Any] = (),
    ) -> None:
        super().__init__(file, buffers=buffers)
        self._array, self._fitted, self._gaps = array, fitted, gaps
        self._own, self._devices = own_objects(namespace), places()
        self.known: dict[int, Any] = {}

    def persistent_load(self, pid: Any) -> Any:
        try:
            return self._load(pid)
        except CannotLoad as error:
            self._gaps.append(Gap(str(error)))
            return self._gaps[-1]

    def _load(self, pid: Any) -> Any:
        match pid:
            case int():
                return self.known[pid]
            case "array", _, Gap(why=why):
                raise CannotLoad(why)
            case "array", which, sharding:
                return self._array(which, sharding)
            case "device", *place:
                return self._device(place)
            case "mesh", about:
                return self._mesh(*pickle.loads(about))
            case "globals", name:
                return vars(importlib.import_module(name))
            case "own", name:
                return self._own[name]
        raise pickle.UnpicklingError(f"unknown: {pid}")

    def _device(self, place: Sequence[Any]) -> Any:
        if (found := self._devices.get(tuple(place))) is None:
            raise CannotLoad(f"there is no device {place[2]} of rank {place[1]} any more")
        return found

    def _mesh(self, at: Any, shape: Sequence[int], names: Any, types: Any) -> Any:
        """The same mesh; for another number of ranks the one that was fitted."""
        import jax

        if (new := self._fitted.get((names, tuple(shape)))) == []:
            told = ",".join(f"{name}={size}" for name, size in zip(names, shape, strict=True))
            raise CannotLoad(f"its mesh {told} does not fit {len(jax.devices())} devices")
        if new is not None:
            devices = np.array(jax.devices(at[0][0]))
        else:
            devices, new = np.array([self._device(place) for place in at]), shape
        return jax.sharding.Mesh(devices.reshape(new), names, axis_types=types)


@functools.cache
def places() -> dict[Place, Any]:
    """All devices by their platforms, their ranks, and their numbers there; own ones by OWN too."""
    import jax

    found, own = {}, jax.process_index()
    for client in {device.client: None for device in jax.local_devices()}:
        numbers: Counter[int] = Counter()
        for device in client.devices():
            rank = device.process_index
            for one in (rank, OWN) if rank == own else (rank,):
                found[device.platform, one, numbers[rank]] = device
            numbers[rank] += 1
    return found


def _places_of(devices: Iterable[Any]) -> list[Place]:
    """Where devices are. If all are the rank's own, another rank has its own in their place."""
    own, others = _by_device()
    table = own if own.keys() >= {*devices} else others
    return [table[one] for one in devices]


@functools.cache
def _by_device() -> tuple[dict[Any, Place], dict[Any, Place]]:
    """The places of this rank's devices, and of all."""
    both = [(device, place) for place, device in places().items()]
    own = {device: place for device, place in both if place[1] == OWN}
    return own, {device: place for device, place in both if place[1] != OWN}


def own_objects(namespace: dict[str, Any]) -> dict[str, Any]:
    """What each process has of its own, by its name: it is left out of pickles."""
    found = {name: getattr(sys, name) for name in ("stdin", "stdout", "stderr")}
    if (shell := namespace.get("get_ipython")) is not None:
        found["shell"] = shell()
    return found | {"namespace": namespace, "main": sys.modules["__main__"]}

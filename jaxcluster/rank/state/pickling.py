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
from types import CellType, FunctionType, ModuleType
from typing import Any, ClassVar, TypeAlias

import cloudpickle
import numpy as np

from jaxcluster.engine.private.jitted import info_of, jitted, jitted_type
from jaxcluster.rank.state import classes
from jaxcluster.rank.state.arrays import CannotLoad, CannotSave
from jaxcluster.wire.ops.values import FILES

PROTOCOL = 5
LARGE_NBYTES = 64 << 10  # from here on a buffer is a section of its own
IS_MADE = 2  # from here on what cloudpickle says of a class has its attributes: else it is known
STREAMS = ("stdin", "stdout", "stderr")

Large = Callable[[pickle.PickleBuffer], Any]
ArrayId = Callable[[Any], Any]
Place: TypeAlias = tuple[str, int, int]  # of a device: its platform, its rank, its number there
Fitted: TypeAlias = Mapping[tuple[tuple[str, ...], tuple[int, ...]], Sequence[int]]
OWN = -1  # the rank itself


class Pickler(cloudpickle.Pickler):
    """Pickles values of a namespace.

    Args:
      array_id: what stands for a ``jax.Array``, beside its sharding.
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
        array_id: ArrayId,
        large: Large,
        by_value: Iterable[type] = (),
    ) -> None:
        super().__init__(file, protocol=PROTOCOL, buffer_callback=large)
        import jax

        self._namespace, self._array_id = namespace, array_id
        self._by_value = set(by_value)
        self._started: set[type] = set()
        self._cells: dict[int, CellType] = {}
        self.meshes: dict[Any, Any] = {}
        self._places = {device: place for place, device in places().items()}
        self._globals = {id(namespace): ""}
        self._keys_and_tracers = jax.Array, jax.core.Tracer, jax.Ref
        self._ids = _OfArrays(self._id_of_array)
        self._ids |= {
            jax.Device: lambda device: ("device", *self._places[device]),
            jax.sharding.Mesh: self._id_of_mesh,
            type(jax.devices()[0].client): lambda client: ("client", client.platform),
            dict: self._id_of_dict,
            ModuleType: lambda module: self._id_of_dict(vars(module), "module"),
            **{type(getattr(sys, name)): self._id_of_stream for name in STREAMS},
        }
        if (shell := namespace.get("get_ipython")) is not None:
            self._ids[type(shell())] = lambda shell: ("shell",)
        self._reducers: dict[type, Callable[[Any], Any]] = {
            jitted_type(): self._reduce_jitted,
            np.ndarray: _reduce_view,
            **dict.fromkeys((jax.custom_jvp, jax.custom_vjp), _reduce_custom),
            CellType: self._reduce_cell,
            type(functools.cache(len)): lambda f: (_cached, (f.__wrapped__, f.cache_parameters())),
        }

    def persistent_id(self, obj: Any) -> Any:
        known = self._ids[type(obj)]
        return known(obj) if known is not None else None

    def _id_of_array(self, array: Any) -> Any:
        return "array", self._array_id(array), array.sharding

    def _id_of_mesh(self, mesh: Any) -> Any:
        if mesh not in self.meshes:
            places = tuple(self._places[device] for device in mesh.devices.flat)
            self.meshes[mesh] = places, mesh.devices.shape, mesh.axis_names, mesh.axis_types
        return "mesh", self.meshes[mesh]

    def _id_of_dict(self, names: Any, kind: str = "globals") -> Any:
        name = self._globals.get(id(names))
        return (kind, name) if name == "" or (name and kind == "globals") else None

    def _id_of_stream(self, stream: Any) -> Any:
        name = next((name for name in STREAMS if getattr(sys, name) is stream), None)
        return ("stream", name) if name else None

    # ------------------------------------------------------------------ functions and classes

    def reducer_override(self, obj: Any) -> Any:
        kind = type(obj)
        if (reduce := self._reducers.get(kind)) is not None:
            return reduce(obj)
        if issubclass(kind, self._keys_and_tracers):
            return _reduce_key(obj)
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
            made = classes.run, (found, found.needs(self._namespace))
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
            self._globals[id(names)] = module.__name__
        cells = func.__closure__ or ()
        self._cells |= {id(cell): cell for cell in cells}
        held = tuple(_contents(cell) for cell in cells)
        arguments = func.__code__, names, func.__name__, func.__closure__
        state = {name: getattr(func, name) for name in _OF_FUNCTIONS}
        return _function, arguments, (held, vars(func), state), None, None, _set_function

    def _reduce_cell(self, cell: CellType) -> Any:
        if id(cell) not in self._cells:  # what it holds comes with its function
            raise CannotSave("it holds a cell of a closure")
        return CellType, ()

    def _reduce_jitted(self, function: Any) -> Any:
        added = {n: v for n, v in vars(function).items() if n not in _OF_JITTED}
        return jitted, (function._fun, info_of(function)), added, None, None, _update


class _OfArrays(dict[type, Any]):
    """What gives the ids of a type's objects: None where they have none."""

    def __init__(self, of_array: Callable[[Any], Any]) -> None:
        super().__init__()
        self._of_array = of_array

    def __missing__(self, kind: type) -> Any:
        import jax

        is_array = issubclass(kind, jax.Array) and hasattr(kind, "is_ready")
        self[kind] = self._of_array if is_array else None
        return self[kind]


_OF_FUNCTIONS = (
    *("__qualname__", "__defaults__", "__kwdefaults__", "__module__", "__doc__"),
    "__annotations__",
)
_OF_JITTED = {*vars(type("", (), {})), "__name__", "__qualname__", "__wrapped__", "__annotations__"}
_OF_JITTED |= {"_fun", "_jit_info"}
_EMPTY = "empty"


def _contents(cell: CellType) -> tuple[Any, ...]:
    try:
        return (cell.cell_contents,)
    except ValueError:
        return ()


def _function(code: Any, names: Any, name: str, closure: Any) -> FunctionType:
    return FunctionType(code, names, name, None, closure)


def _set_function(func: FunctionType, state: Any) -> None:
    held, attributes, slots = state
    for cell, contents in zip(func.__closure__ or (), held, strict=True):
        for value in contents:
            cell.cell_contents = value
    vars(func).update(attributes)
    for name, value in slots.items():
        setattr(func, name, value)


def _update(function: Any, attributes: Any) -> None:
    vars(function).update(attributes)


def _reduce_custom(function: Any) -> Any:
    return object.__new__, (type(function),), dict(vars(function))


def _cached(function: Any, parameters: Any) -> Any:
    return functools.lru_cache(**parameters)(function)


def _reduce_key(array: Any) -> Any:
    import jax

    if (numbers := getattr(array, "_base_array", None)) is None:
        what = "jax.Ref" if isinstance(array, jax.Ref) else "tracer"
        raise CannotSave(f"it holds a {what}, which can't be saved")
    return _key, (numbers, str(jax.random.key_impl(array)))


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


# ---------------------------------------------------------------------- what stands for what


class Unpickler(pickle.Unpickler):
    """Makes the values again, in a namespace."""

    def __init__(
        self,
        file: io.BytesIO,
        namespace: dict[str, Any],
        array: Callable[[Any, Any], Any],
        fitted: Fitted,
        buffers: Iterable[Any] = (),
    ) -> None:
        super().__init__(file, buffers=buffers)
        self.namespace, self._array, self._fitted = namespace, array, fitted
        self._devices = places()

    def persistent_load(self, pid: Any) -> Any:
        match pid:
            case "array", which, sharding:
                return self._array(which, sharding)
            case "device", *place:
                return self._device(place)
            case "mesh", (places, shape, names, types):
                return self._mesh(places, shape, names, types)
            case "client", platform:
                return next(d.client for place, d in self._devices.items() if place[0] == platform)
            case "globals", name:
                return vars(importlib.import_module(name)) if name else self.namespace
            case "module", _:
                return sys.modules["__main__"]
            case "stream", name:
                return getattr(sys, name)
            case ("shell",):
                return self.namespace["get_ipython"]()
        raise pickle.UnpicklingError(f"unknown: {pid}")

    def load(self) -> Any:
        with classes.making_in(self.namespace):
            return super().load()

    def _device(self, place: Sequence[Any]) -> Any:
        if (found := self._devices.get(tuple(place))) is None:
            raise CannotLoad(f"there is no device {place[2]} of rank {place[1]} any more")
        return found

    def _mesh(self, places: Any, shape: Sequence[int], names: Any, types: Any) -> Any:
        """The same mesh; for another number of ranks the one that was fitted."""
        import jax

        if (new := self._fitted.get((names, tuple(shape)))) == []:
            told = ",".join(f"{name}={size}" for name, size in zip(names, shape, strict=True))
            raise CannotLoad(f"its mesh {told} does not fit {len(jax.devices())} devices")
        if new is not None:
            devices = np.array(jax.devices(places[0][0]))
        else:
            devices, new = np.array([self._device(place) for place in places]), shape
        return jax.sharding.Mesh(devices.reshape(new), names, axis_types=types)


@functools.cache
def places() -> dict[Place, Any]:
    """All devices by their platforms, their ranks, and their numbers there; own ones have OWN."""
    import jax

    found, own = {}, jax.process_index()
    for client in {device.client: None for device in jax.local_devices()}:
        numbers: Counter[int] = Counter()
        for device in client.devices():
            rank = OWN if device.process_index == own else device.process_index
            found[device.platform, rank, numbers[rank]] = device
            numbers[rank] += 1
    return found


def is_large(buffer: Any) -> bool:
    """Whether a buffer is a section of its own."""
    return memoryview(buffer).nbytes >= LARGE_NBYTES

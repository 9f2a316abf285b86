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
from collections import ChainMap
from collections.abc import Callable, Iterable
from types import CellType, FunctionType, ModuleType
from typing import Any, ClassVar

import cloudpickle
import numpy as np

from jaxcluster.engine.private.jitted import info_of, jitted
from jaxcluster.rank.state import classes
from jaxcluster.rank.state.arrays import CannotLoad, CannotSave
from jaxcluster.wire.ops.values import FILES

PROTOCOL = 5
LARGE_NBYTES = 64 << 10  # from here on a buffer is a section of its own
IS_MADE = 2  # from here on what cloudpickle says of a class has its attributes: else it is known
STREAMS = ("stdin", "stdout", "stderr")

Large = Callable[[pickle.PickleBuffer], Any]
ArrayId = Callable[[Any], Any]


class Pickler(cloudpickle.Pickler):
    """Pickles values of a namespace.

    Args:
      array_id: what stands for a ``jax.Array``, beside its sharding.
      large: takes the buffers that are not to lie in the pickle, and says False.
      by_value: classes that can't be made by their statements.
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
        self._globals = {id(namespace): ""}
        self._keys_and_tracers = jax.Array, jax.core.Tracer, jax.Ref
        self._ids = _OfArrays(self._id_of_array)
        self._ids |= {
            jax.Device: self._id_of_device,
            type(jax.devices()[0].client): lambda client: ("client", client.platform),
            dict: self._id_of_dict,
            ModuleType: lambda module: self._id_of_dict(vars(module), "module"),
            **{type(getattr(sys, name)): self._id_of_stream for name in STREAMS},
        }
        if (shell := namespace.get("get_ipython")) is not None:
            self._ids[type(shell())] = lambda shell: ("shell",)
        self._reducers: dict[type, Callable[[Any], Any]] = {
            type(jax.jit(len)): self._reduce_jitted,
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

    def _id_of_device(self, device: Any) -> Any:
        return "device", device.platform, device.id

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
            needs = {n: self._namespace[n] for n in found.needs(self._namespace)}
            reduced = classes.run, (found, needs), classes.state_of(cls, found)
            return *reduced, None, None, classes.set_state
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
    if owner is array or array.dtype.hasobject or array.dtype != owner.dtype.newbyteorder("="):
        return NotImplemented
    first = array.__array_interface__["data"][0] - owner.__array_interface__["data"][0]
    if not owner.flags.c_contiguous or first < 0:
        return NotImplemented
    return _view, (owner, array.shape, first, array.strides, array.flags.writeable)


def _view(owner: Any, shape: Any, first: int, strides: Any, is_writeable: bool) -> Any:
    array: Any = np.ndarray(shape, owner.dtype, owner, first, strides)
    array.flags.writeable = is_writeable
    return array


# ---------------------------------------------------------------------- what stands for what


class Unpickler(pickle.Unpickler):
    """Makes the values again, in a namespace."""

    def __init__(
        self,
        file: io.BytesIO,
        namespace: dict[str, Any],
        array: Callable[[Any, Any], Any],
        buffers: Iterable[Any] = (),
    ) -> None:
        super().__init__(file, buffers=buffers)
        self._namespace, self._array = namespace, array

    def persistent_load(self, pid: Any) -> Any:
        match pid:
            case "array", which, sharding:
                return self._array(which, sharding)
            case "device", platform, number:
                return device(platform, number)
            case "client", platform:
                return _client(platform)
            case "globals", name:
                return vars(importlib.import_module(name)) if name else self._namespace
            case "module", _:
                return sys.modules["__main__"]
            case "stream", name:
                return getattr(sys, name)
            case ("shell",):
                return self._namespace["get_ipython"]()
        raise pickle.UnpicklingError(f"unknown: {pid}")

    def load(self) -> Any:
        with classes.making_in(self._namespace):
            return super().load()


def device(platform: str, number: int) -> Any:
    """A device of JAX's by its id.

    Raises:
      CannotLoad: there is none.
    """
    import jax

    for one in jax.devices(platform):
        if one.id == number:
            return one
    raise CannotLoad(f"there is no device {platform}:{number}")


def _client(platform: str) -> Any:
    import jax

    return jax.devices(platform)[0].client


def is_large(buffer: Any) -> bool:
    """Whether a buffer is a section of its own."""
    return memoryview(buffer).nbytes >= LARGE_NBYTES

"""A rank's variables, saved while its main thread may be permanently stuck.

``save`` works from a side thread: it needs no collective and no main thread, so a deadlocked rank
can be saved, killed, started again and given its variables again. Each name is pickled by itself
first, so that one that can't be (a generator, an open file, an array whose computation will never
end) costs only itself; then all that can be are pickled together, with the settings, which keeps
the aliasing between them.

What a plain pickle can't do is done here:

- a ``jax.Array`` becomes its addressable shards (equal ones once) and its sharding. It is rebuilt
  from them on the same places: no rank needs another one's shards;
- a ``Device`` or ``Mesh`` becomes device ids, and comes back as the devices of the backend that is
  there then. One that lies on this process alone becomes local positions, so that another rank
  can take the value over;
- functions and classes that were defined in cells go by value, and the functions' globals are the
  namespace itself: redefining a global changes what they see, as before.
"""

from __future__ import annotations

import functools
import gc
import hashlib
import importlib
import io
import logging
import pickle
import re
import subprocess
import sys
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from concurrent import futures
from pickle import PickleBuffer
from types import (
    BuiltinFunctionType,
    CellType,
    CodeType,
    FunctionType,
    MappingProxyType,
    ModuleType,
)
from typing import Any

import cloudpickle
import numpy as np

from jaxcluster.engine.arrays import (
    base_array,
    bounds,
    is_array,
    is_ready,
    is_tracer,
    spans_processes,
)
from jaxcluster.engine.digests import Room, Unknown, digest, is_imported, is_literal
from jaxcluster.engine.private.arrays import arrays_of_reference
from jaxcluster.engine.state import classes, memory, objects, ownmodules, randomness, sources
from jaxcluster.engine.state.background_save import BackgroundSave
from jaxcluster.engine.state.objects import HEAP_TYPE, PROTOCOL
from jaxcluster.engine.state.saved import (
    CannotSave,
    Generation,
    Saved,
    SavedArray,
    SavedPickle,
    array_digest,
    told,
)
from jaxcluster.engine.state.settings import Settings
from jaxcluster.engine.user_names import is_users
from jaxcluster.engine.value_copies import cached_results, has_attribute, module_of

# Of these nothing is to be done here. A dict may be the namespace.
_PLAIN = frozenset({type(None), bool, int, float, complex, str, bytes, list, tuple, set})
_CHANGING = (dict, list, set)
IN_BAND_NBYTES = 512  # a buffer below this stays inside its pickle


def save(
    namespace: dict[str, Any],
    rank: int,
    *,
    digests: bool = False,
    before: Mapping[str, Any] | None = None,
    settings: Settings | None = None,
    background: BackgroundSave | None = None,
    values: Mapping[str, Any] | None = None,
) -> Saved:
    """The variables of ``namespace``, as far as they can be saved.

    Runs on any thread; waits for no computation. Costs one pickling of the Python objects for each
    name and one for all; the numbers of arrays are not copied on CPU (devices with memory of their
    own: one copy to the host).

    Args:
      digests: hash each name's value, so that ranks can be compared (about 1 s per GB).
      before: what the names were bound to when the cell that runs now, or went wrong, began.
      settings: those of the process, which are saved too.
      background: how to do it beside cells, which may begin at any moment.
      values: what is saved in place of all of the user's variables.

    Raises:
      GivenUp: as ``background_save`` says.
    """
    saver = _Saver(namespace, rank, background)
    saved = saver.saved
    now = _users(namespace) if values is None else dict(values)
    then = _users(before) if before is not None else now
    older = {name: value for name, value in then.items() if now.get(name, then) is not value}
    saved.absent = sorted(now.keys() - then.keys())
    values = saver.generation(saved.now, now)
    older_values = saver.generation(saved.before, older)
    saved.random = randomness.digests()
    set_by_cells: dict[str, Any] = {}
    if settings is not None:
        changed, found = Generation(), settings.changed()
        set_by_cells = saver.generation(changed, found)
        saved.random |= ownmodules.digests(found)
        saved.random |= {
            name: saver.digest(changed.names[name])
            for name, one in set_by_cells.items()
            if isinstance(one, ownmodules.Held)
        }
        saved.settings = changed.names
        saved.set_to = {
            name: text
            for name, one in found.items()
            if name != sources.NAME and not isinstance(one, ownmodules.Variables | ownmodules.Held)
            if (text := _text(one))
        }
        saved.left = changed.lost | {
            f"what {name} has cached": "it is called again"
            for name in now
            if _has_cached(now[name])
        }
    if background is not None:
        background.end()
    try:
        saved.together = saver.pickle((values, older_values, set_by_cells))
    except Exception:
        # The main thread changes something at this moment: what is alone must do.
        saved.together = None
    saved.memories = [saver.section(memory.take()) for memory in saver.views.memories]
    saved.alive = list(saver.views.arrays)
    saved.views = saver.section(pickle.dumps(saver.views.table(), PROTOCOL))
    if digests:
        for generation, found in ((saved.now, values), (saved.before, older_values)):
            generation.digests = {k: saver.digest(one) for k, one in generation.names.items()}
            generation.common = sorted(k for k in generation.names if is_common(found[k]))
            generation.texts = {k: _text(found[k]) for k in generation.names}
    return saved


def _users(namespace: Mapping[str, Any]) -> dict[str, Any]:
    return {k: v for k, v in list(namespace.items()) if is_users(k, v)}


def _has_cached(value: Any) -> bool:
    """Whether a function's ``lru_cache`` has results that may have changed since.

    It comes back with an empty one; other results are computed again.
    """
    if not isinstance(value, functools._lru_cache_wrapper) or is_imported(value):
        return False
    found = cached_results(value)
    return any(type(one) in _CHANGING or module_of(type(one)) == "__main__" for one in found)


def _text(value: Any) -> str:
    try:
        return digest(value, Room()).text
    except Unknown:
        return ""


def is_common(value: Any, depth: int = 8) -> bool:
    """Whether a value says nothing of the rank that holds it.

    So modules, whatever is imported from them, meshes and shardings of all processes, arrays that
    span processes, and functions, classes and containers that hold nothing else. They shape
    programs: were they another rank's own after all, it would show as a divergence, which a number
    of its own would not.
    """
    import jax

    if depth < 0:
        return False
    held: list[Any]
    if value is None or isinstance(value, (ModuleType, jax.sharding.PartitionSpec)):
        return True
    if isinstance(value, jax.sharding.Mesh):
        return _on_all_processes(value.devices.flat)
    if isinstance(value, jax.sharding.Sharding):
        return _on_all_processes(value.device_set)
    if spans_processes(value):
        return True
    if type(value) in (list, tuple, dict):
        return all(is_common(v, depth - 1) for v in _inside(value))
    if callable(value) and is_imported(value):
        return True
    if isinstance(value, FunctionType):
        cells = value.__closure__ or ()
        held = [*(value.__defaults__ or ()), *(value.__kwdefaults__ or {}).values()]
        try:
            held += [cell.cell_contents for cell in cells]
        except ValueError:  # one that is still empty
            return False
    elif isinstance(value, (staticmethod, classmethod)):
        held = [value.__func__]
    elif isinstance(value, property):
        held = [value.fget, value.fset, value.fdel]
    elif isinstance(value, type):
        held = [v for name, v in vars(value).items() if not name.startswith("__")]
        held += [b for b in value.__bases__ if b is not object]
    elif type(value).__module__.startswith("jaxlib") and hasattr(value, "__wrapped__"):
        held = [value.__wrapped__]  # a jitted function
    else:
        return False
    return all(is_common(one, depth - 1) for one in held)


def _on_all_processes(devices: Iterable[Any]) -> bool:
    import jax

    return bool(len({device.process_index for device in devices}) == jax.process_count())


def _inside(value: Any) -> tuple[Any, ...]:
    """What a container holds, but for a dict's names."""
    if not isinstance(value, dict):
        return tuple(value)
    return (*value.values(), *(key for key in value if type(key) is not str))


class _Saver:
    def __init__(
        self, namespace: dict[str, Any], rank: int, background: BackgroundSave | None = None
    ) -> None:
        import jax

        self.namespace = namespace
        self.background = background
        self.device_type: Any = jax.Device
        self.mesh_type = jax.sharding.Mesh
        self.custom_types = (jax.custom_vjp, jax.custom_jvp)
        self.widget_types = _widget_types()
        self.jitted_type: Any = type(jax.jit(abs))
        self.single_type = jax.sharding.SingleDeviceSharding
        self.reference_type: Any = getattr(jax, "Ref", ())
        self.changing: dict[int, Any] = {}  # arrays of references, by id
        self.saved = Saved(rank, jax.process_count(), jax.device_count(), versions())
        self.process = jax.process_index()
        self.local_positions = {d.id: i for i, d in enumerate(jax.local_devices())}
        self.array_numbers: dict[int, int] = {}
        self.buffer_sections: dict[tuple[int, int], int] = {}
        self.shardings: dict[Any, int] = {}
        self.views = memory.Views()
        self.singletons = classes.Singletons()
        self.with_dicts: dict[type, bool] = {}
        self.ordinary: set[type] = set()  # classes whose objects are not asked about any further
        self.ways: dict[type, objects.Way | None] = {}
        self.keep: list[Any] = []  # keeps ids and addresses from being reused meanwhile

    def section(self, data: Any) -> int:
        self.saved.sections.append(data)
        return len(self.saved.sections) - 1

    def pickle(self, value: Any) -> SavedPickle:
        file = io.BytesIO()
        pickler = (_Pickler if self.background is None else _BackgroundPickler)(file, self)
        try:
            pickler.dump(value)
        finally:
            pickler.clear_memo()  # it is garbage in a circle: till then objects have more holders
        section = self.section(file.getvalue())
        return SavedPickle(section, pickler.arrays, pickler.buffers, pickler.views)

    def digest(self, one: SavedPickle) -> str:
        """What is equal on ranks where a name has equal values."""
        saved = self.saved
        text = bytes(saved.sections[one.section])
        # cloudpickle marks each class that goes by value with a random number of this process.
        marks = getattr(cloudpickle.cloudpickle, "_DYNAMIC_CLASS_TRACKER_BY_CLASS", {})
        for mark in list(marks.values()):
            text = text.replace(mark.encode(), b"")
        digest = hashlib.blake2b(text, digest_size=12)
        for number in one.buffers:
            digest.update(saved.sections[number])
        for view in (self.views.arrays[n] for n in one.views):
            digest.update(f"{view.shape} {view.dtype}".encode())
            digest.update(np.ascontiguousarray(view).tobytes())
        for array in (saved.arrays[n] for n in one.arrays):
            digest.update(array_digest(array, saved.sections.__getitem__))
        return digest.hexdigest()

    def generation(self, into: Generation, values: dict[str, Any]) -> dict[str, Any]:
        """Pickle each of ``values`` by itself; returns those that could be."""
        done = {}
        for name, value in values.items():
            arrays = len(self.saved.arrays)
            if self.background is not None:
                self.background.begin(name)
            try:
                into.names[name] = self.pickle(value)
            except Exception as error:
                into.lost[name] = reason(error, value)
                if self.background is not None:
                    self._forget_arrays(arrays)
            else:
                done[name] = value
        return done

    def _forget_arrays(self, first: int) -> None:
        """Those of a name that is not saved after all."""
        for key, number in list(self.array_numbers.items()):
            if number >= first:
                del self.array_numbers[key]

    def buffer(self, buffer: PickleBuffer) -> int:
        """The section of an out-of-band buffer; one that two pickles share is kept once."""
        raw = buffer.raw()
        address = np.frombuffer(raw, np.uint8).__array_interface__["data"][0] if raw.nbytes else 0
        key = (address, raw.nbytes)
        if key not in self.buffer_sections:
            self.keep.append(buffer)
            self.buffer_sections[key] = self.section(raw)
        return self.buffer_sections[key]

    def array(self, array: Any) -> int:
        """The number of an array, which is saved when it is first met.

        Raises:
          CannotSave: it has no values that could be read now.
        """
        if id(array) not in self.array_numbers:
            saved = self._save_array(array)
            self.keep.append(array)
            self.saved.arrays.append(saved)
            self.array_numbers[id(array)] = len(self.saved.arrays) - 1
        return self.array_numbers[id(array)]

    def _save_array(self, array: Any) -> SavedArray:
        import jax

        if is_tracer(array):
            raise CannotSave("a tracer: it stood for an array while jit or grad ran")
        key_impl = None
        base = base_array(array)
        if jax.dtypes.issubdtype(array.dtype, jax.dtypes.prng_key):
            key_impl = str(jax.random.key_impl(array))
        if base.is_deleted():
            raise CannotSave("deleted or donated")
        if self.background is not None:
            self.background.wait_for(base)
        if not is_ready(base):
            raise CannotSave("still being computed")
        shards: dict[str, tuple[list[list[int]], int]] = {}
        try:
            for index, values in self._shards(base):
                where = bounds(index, base.shape)
                if str(where) not in shards:
                    shards[str(where)] = (
                        where,
                        self.section(self._numbers(base, values, str(where))),
                    )
        except CannotSave:
            raise
        except Exception as error:
            first = str(error).partition("\n")[0]
            raise CannotSave(f"its computation failed: {first[:200]}") from None
        sharding = base.sharding
        if sharding not in self.shardings:
            self.shardings[sharding] = self.pickle(sharding).section
        return SavedArray(
            shape=list(base.shape),
            dtype=str(base.dtype),
            sharding=self.shardings[sharding],
            local=base.is_fully_addressable,
            committed=bool(getattr(base, "committed", True)),
            shards=list(shards.values()),
            weak_type=bool(getattr(base, "weak_type", False)),
            key_impl=key_impl,
            text=_told(sharding, self.saved.device_count),
        )

    def _shards(self, base: Any) -> list[tuple[Any, Any]]:
        """An array's shards here: their indices, and their numbers, on CPU without a copy."""

        def read() -> list[tuple[Any, Any]]:
            return [(shard.index, np.asarray(shard.data)) for shard in base.addressable_shards]

        return read() if self.background is None else self.background.ask_main(read)

    def reference(self, reference: Any) -> None:
        """Copy the arrays of a ``jax.Ref`` each time: all others stay what they are.

        Raises:
          CannotSave: they can't be found.
        """
        arrays = arrays_of_reference(reference)
        if arrays is None:
            raise CannotSave("a mutable array reference can't be saved")
        self.changing |= {id(base): base for base in map(base_array, arrays)}

    def _numbers(self, base: Any, values: Any, where: str) -> Any:
        """The section of a shard of an array."""
        background, is_changing = self.background, id(base) in self.changing
        if background is not None and is_changing:
            background.take(values, values.nbytes)
        elif background is not None and (part := background.part_of(base, where)) is not None:
            return part
        raw = np.ascontiguousarray(values).reshape(-1).view(np.uint8)
        if background is None:
            return raw
        return raw.copy() if is_changing else background.new_part(base, where, raw)


def _told(sharding: Any, count: int) -> str:
    """A sharding's text, which says nothing of its devices, and these, unless they are all.

    Ranks may have arrays under one name that are alike, but not one array.
    """
    text, devices = str(sharding)[:400], sharding.device_set
    if len(devices) == count:
        return text
    ids = " ".join(map(str, sorted(device.id for device in devices)))
    return f"{text} on {ids if len(ids) < 80 else hashlib.sha256(ids.encode()).hexdigest()}"


def _widget_types() -> tuple[type, ...]:
    """ipywidgets' widgets, and any library's comm with the page; () where nobody has any."""
    found = (
        getattr(sys.modules.get(module), name, None)
        for module, name in (("ipywidgets", "Widget"), ("comm.base_comm", "BaseComm"))
    )
    return tuple(one for one in found if isinstance(one, type))


class _Pickler(cloudpickle.Pickler):
    def __init__(self, file: io.BytesIO, saver: _Saver) -> None:
        super().__init__(file, protocol=PROTOCOL, buffer_callback=self._out_of_band)
        self.saver = saver
        self.arrays: list[int] = []
        self.buffers: list[int] = []
        self.views: list[int] = []
        self._array_places: dict[int, int] = {}
        self._view_places: dict[int, int] = {}
        self._cells: dict[int, CellType] = {}
        self._met: set[int] | None = None
        self._modules: dict[int, str] = {}  # by the id of their variables
        self.is_trial = False
        # Functions of the namespace keep it as their globals: cloudpickle would give them a dict of
        # their own (cloudpickle 3.1; where these names move, it does that again).
        if isinstance(getattr(self, "globals_ref", None), dict):
            self.globals_ref[id(saver.namespace)] = saver.namespace

    def _out_of_band(self, buffer: PickleBuffer) -> bool:
        if memoryview(buffer).nbytes < IN_BAND_NBYTES:
            return True
        self.buffers.append(self.saver.buffer(buffer))
        return False

    def _dynamic_function_reduce(self, func: Any) -> Any:
        known = func.__globals__
        is_modules = known is not self.saver.namespace and self._is_of_module(known)
        reduced = super()._dynamic_function_reduce(func)
        if is_modules or known is self.saver.namespace:
            # Its globals are saved as names of their own, or are lost by themselves. Those of a
            # module, as of what a decorator has made, are the module's that is imported there.
            reduced[2][1]["__globals__"] = {}
        if not func.__closure__:
            return reduced
        # cloudpickle 3.1.3 gives each function cells of its own: what one sets by ``nonlocal``,
        # another one would not see any more. These are empty, and filled with its state.
        make, arguments, *state = reduced
        cells = tuple(self._cells.setdefault(id(cell), CellType()) for cell in func.__closure__)
        return (make, (*arguments[:-1], cells), *state)

    def _is_of_module(self, known: dict[str, Any]) -> bool:
        """Whether a function's globals are a module's variables, which each process imports."""
        name = known.get("__name__")
        module = sys.modules.get(name) if isinstance(name, str) else None
        if name is None or getattr(module, "__dict__", None) is not known:
            return False
        self._modules[id(known)] = name
        self.globals_ref[id(known)] = known
        return True

    def reducer_override(self, obj: Any) -> Any:
        if type(obj) in self.saver.ordinary:
            return _with_its_dict(obj) if _shares_dict(obj) else NotImplemented
        if isinstance(obj, CodeType):
            # cloudpickle 3.1.3 leaves the file out, by which a cell's lines are known and shown.
            make, arguments, *_ = self.dispatch_table[CodeType](obj)
            return _code_of_file, (obj.co_filename, make, arguments)
        if isinstance(obj, self.saver.reference_type):
            self.saver.reference(obj)
        if isinstance(obj, np.ndarray) and (how := memory.reduce(obj)) is not None:
            return how
        if isinstance(obj, np.ndarray) and (how := memory.reduce_subclass(obj)) is not None:
            return how
        if type(obj) in _VIEWS:  # cloudpickle would save a copy of what they show
            of = next(one for one in gc.get_referents(obj) if isinstance(one, Mapping))
            return _view, (type(obj).__name__.rpartition("_")[2], of)
        if type(obj) is weakref.ref:
            target = obj()
            return _make_ref, (() if target is None else (target, obj.__callback__))
        if type(obj) in _LOCKS:  # a new one is what a free one was, but a library's is its module's
            if (found := self.saver.singletons.find(obj)) is not None:
                return _find_imported, found
            if not _is_free(obj):
                raise CannotSave("a lock that is held can't be saved")
            return _LOCKS[type(obj)], ()
        for kind, what in _RUNNING.items():  # else it would come back without what runs
            if isinstance(obj, kind):
                raise CannotSave(f"{what} can't be saved")
        if isinstance(obj, futures.Future) and not obj.done():
            raise CannotSave("a future that is not done can't be saved")
        if isinstance(obj, memoryview):  # cloudpickle would save bytes, which view nothing
            raise CannotSave("a memoryview can't be saved")
        if isinstance(obj, functools._lru_cache_wrapper) and not is_imported(obj):
            made = _make_cached, (obj.__wrapped__, obj.cache_parameters())
            return *made, {k: v for k, v in vars(obj).items() if k not in _OF_LRU_CACHE}
        if type(obj) is FunctionType and obj.__code__ is _DISPATCHES and not is_imported(obj):
            return _reduce_dispatching(obj)
        if type(obj) in _WEAK:
            return type(obj), (), None, None, iter(list(obj.items()))
        if type(obj) is functools.cached_property:  # it has a lock in Python 3.11
            state = {"attrname": obj.attrname, "__doc__": obj.__doc__}
            return functools.cached_property, (obj.func,), state
        if isinstance(obj, BaseException):
            return self._exception(obj)
        if isinstance(obj, ownmodules.Variables):
            shared = frozenset(filter(lambda name: self._is_met(obj.values[name]), obj.values))
            return type(obj), (obj.source, obj.values, obj.texts, obj.set_later, shared)
        if isinstance(obj, ownmodules.Held):
            return type(obj), (obj.module, obj.name, obj.value, self._is_met(obj.value))
        reduced = super().reducer_override(obj)
        if isinstance(obj, type) and isinstance(reduced, tuple) and len(reduced) == 6:
            return classes.complete(obj, reduced)
        if type(obj) is self.saver.jitted_type:
            if is_imported(obj):
                return _find_imported, (obj.__module__, obj.__qualname__)
            # Its own state lacks its attributes, without which it has no lower() and no name.
            own: Any = obj.__reduce_ex__(PROTOCOL)
            make, arguments, state, *_ = own
            return make, arguments, (state, vars(obj)), None, None, _set_jitted
        if isinstance(obj, self.saver.custom_types):
            # jax 0.10.2: their __new__ takes the function, and pickle gives it nothing.
            return (_make_bare, (type(obj),), vars(obj))
        if reduced is NotImplemented and classes.is_half_made(obj):
            how = obj.__reduce_ex__(PROTOCOL)
            if how[:2] == (_NEW, (type(obj),)):
                return _make_bare, *how[1:]
        if reduced is NotImplemented and (found := self.saver.singletons.find(obj)) is not None:
            return _find_imported, found
        if reduced is NotImplemented and (how := objects.reduce(obj, self._way_of)) is not None:
            return how
        if reduced is NotImplemented and self._may_share_dict(type(obj)):
            if objects.is_ordinary(type(obj)):
                self.saver.ordinary.add(type(obj))
            if _shares_dict(obj):
                return _with_its_dict(obj)
        return reduced

    def _way_of(self, cls: type) -> objects.Way | None:
        known = self.saver.ways
        if cls not in known:
            known[cls] = None if cls in self.dispatch_table else objects.way_of(cls)
        return known[cls]

    def _may_share_dict(self, cls: type) -> bool:
        known = self.saver.with_dicts
        if cls not in known:
            known[cls] = _has_plain_dict(cls) and cls not in self.dispatch_table
        return known[cls]

    def _is_met(self, value: Any) -> bool:
        """Whether an object that can change was pickled before the first of the user's modules."""
        if self._met is None:
            self._met = {*self.memo.copy()}
            self._met |= {id(self.saver.views.arrays[number]) for number in self._view_places}
        return id(value) in self._met and not is_literal(value)

    def _exception(self, error: BaseException) -> Any:
        """With what it came from, which pickle leaves out; a traceback can't be kept."""
        if isinstance(reduced := error.__reduce_ex__(PROTOCOL), str):
            return reduced
        make, arguments, *more = reduced
        state, listed, mapped, set_state = (*more, None, None, None, None)[:4]
        links, lacks = {}, []
        for name in ("__cause__", "__context__"):
            if (one := getattr(error, name)) is not None:
                if why := self._why_not(one):
                    lacks.append(f"Its {name} was lost with its process ({why}).")
                else:
                    links[name] = one
        links["__suppress_context__"] = error.__suppress_context__  # the cause sets it
        state = state, set_state, links, lacks
        return _make_exception, (make, arguments), state, listed, mapped, _set_exception

    def _why_not(self, error: BaseException) -> str:
        """Why an exception that another one came from can't be saved; "" where it can.

        Else the other one could not be, either. Beside cells nothing is tried twice.
        """
        if self.is_trial or self.saver.background is not None:
            return ""
        trial = _Pickler(io.BytesIO(), _Saver(self.saver.namespace, self.saver.saved.rank))
        trial.is_trial = True
        try:
            trial.dump(error)
        except Exception as failure:
            return reason(failure, error)
        return ""

    def persistent_id(self, obj: Any) -> Any:
        if type(obj) in _PLAIN:  # it is asked of each list and number
            return None
        saver = self.saver
        if isinstance(obj, io.IOBase) and not isinstance(obj, io.StringIO | io.BytesIO):
            if obj is sys.stdout or obj is sys.stderr:
                return ("stream", "stdout" if obj is sys.stdout else "stderr")
            raise CannotSave("an open file can't be saved")  # cloudpickle would save its text
        if isinstance(obj, saver.widget_types):
            raise CannotSave("a widget can't be saved")  # it lives with the page, by its comm
        if obj is saver.namespace:
            return ("namespace",)
        if type(obj) is dict and id(obj) in self._modules:
            return ("module", self._modules[id(obj)])
        if is_array(obj):
            number = saver.array(obj)
            if number not in self._array_places:
                self._array_places[number] = len(self.arrays)
                self.arrays.append(number)
            return ("array", self._array_places[number])
        if memory.is_view(obj) and memory.reduce(obj) is None:
            number = saver.views.number(obj)
            if number not in self._view_places:
                self._view_places[number] = len(self.views)
                self.views.append(number)
            return ("view", self._view_places[number])
        if isinstance(obj, saver.device_type):
            return ("device", obj.id)
        if isinstance(obj, saver.single_type):
            device: Any = next(iter(obj.device_set))
            if device.id in saver.local_positions:
                return ("single", saver.local_positions[device.id], obj.memory_kind)
        if isinstance(obj, saver.mesh_type):
            devices = np.asarray(obj.devices)
            ids = [int(d.id) for d in devices.flat]
            local = bool(ids) and all(i in saver.local_positions for i in ids)
            places = [saver.local_positions[i] for i in ids] if local else ids
            types = getattr(obj, "axis_types", None)
            if len(ids) == saver.saved.device_count and not local:
                one = (list(devices.shape), [str(name) for name in obj.axis_names])
                if one not in saver.saved.meshes:
                    saver.saved.meshes.append(one)
            return ("mesh", local, places, devices.shape, obj.axis_names, types)
        return None


class _BackgroundPickler(_Pickler):
    """Beside cells: it ends when one begins, takes on no more than it may, and calls no code of the
    user's, which might launch a program."""

    def reducer_override(self, obj: Any) -> Any:
        assert self.saver.background is not None
        for name in () if self.saver.background.may_call else _OWN_PICKLING:
            found = getattr(type(obj), name, None)
            if getattr(found, "__globals__", None) is self.saver.namespace:
                self.saver.background.leave_out(
                    f"its class has a {name} of yours, which no copy calls"
                )
        return super().reducer_override(obj)

    def persistent_id(self, obj: Any) -> Any:
        background = self.saver.background
        assert background is not None
        background.step()
        if type(obj) in memory.SIMPLE:
            background.take(obj, obj.nbytes)
        elif type(obj) in (bytes, bytearray, str):
            background.take(obj, len(obj))
        return super().persistent_id(obj)


_OWN_PICKLING = (
    "__reduce_ex__",
    "__reduce__",
    "__getstate__",
    "__getnewargs_ex__",
    "__getnewargs__",
)


class _Alone:
    """An object whose ``__dict__`` nobody else has."""


_alone = _Alone()
_HOLDERS = sys.getrefcount(object.__getattribute__(_alone, "__dict__"))
_PICKLED = ("__reduce_ex__", "__reduce__", "__getstate__", "__setstate__")


def _has_plain_dict(cls: type) -> bool:
    """Whether pickle saves the ``__dict__`` of its objects as any other's."""
    is_made = cls.__dictoffset__ and cls.__flags__ & HEAP_TYPE
    return bool(is_made) and not has_attribute(cls, *_PICKLED)


def _shares_dict(obj: Any) -> bool:
    return sys.getrefcount(object.__getattribute__(obj, "__dict__")) > _HOLDERS


def _with_its_dict(obj: Any) -> Any:
    """How an object is pickled whose ``__dict__`` others have, too: pickle fills another dict.

    So is one that has itself (``self.__dict__ = self``), or its class's.
    """
    reduced: Any = object.__reduce_ex__(obj, PROTOCOL)
    make, arguments, state, items, pairs = reduced
    slots = state[1] if type(state) is tuple else {}
    attributes = object.__getattribute__(obj, "__dict__")
    return make, arguments, (attributes, slots), items, pairs, _set_dict


def _set_dict(obj: Any, state: tuple[dict[str, Any], dict[str, Any]]) -> None:
    attributes, slots = state
    for name, value in {"__dict__": attributes, **slots}.items():
        object.__setattr__(obj, name, value)


_DICTS: tuple[Any, ...] = ({}, OrderedDict())
_VIEWS = {MappingProxyType} | {
    type(view) for one in _DICTS for view in (one.keys(), one.values(), one.items())
}


def _view(kind: str, of: Any) -> Any:
    return MappingProxyType(of) if kind == "mappingproxy" else getattr(of, kind)()


def _code_of_file(path: str, make: Callable[..., CodeType], arguments: Any) -> CodeType:
    return make(*arguments).replace(co_filename=path)


_OF_LRU_CACHE = {"__wrapped__", "cache_parameters"}


def _make_cached(function: Callable[..., Any], parameters: dict[str, Any]) -> Any:
    """By ``functools.lru_cache``, with nothing cached yet."""
    return functools.lru_cache(**parameters)(function)


_LOCKS: dict[type, Any] = {type(make()): make for make in (threading.Lock, threading.RLock)}
_RUNNING = {
    threading.Thread: "a thread",
    subprocess.Popen: "a subprocess",
    logging.Handler: "a logging handler",
}


def _is_free(lock: Any) -> bool:
    """Whether no thread has a lock."""
    is_own = getattr(lock, "_is_owned", None)  # an RLock's
    if (is_own is not None and is_own()) or not lock.acquire(blocking=False):
        return False
    lock.release()
    return True


class _Gone:
    """What a weak reference has led to."""


def _make_ref(*arguments: Any) -> Any:
    return weakref.ref(*(arguments or (_Gone(),)))


_WEAK = (weakref.WeakKeyDictionary, weakref.WeakValueDictionary)
_NEW: Any = object().__reduce_ex__(2)[0]  # it calls a class's __new__
_dispatching: Any = functools.singledispatch(len)
_DISPATCHES = _dispatching.__code__  # that of all of them


def _reduce_dispatching(function: Any) -> tuple[Any, ...]:
    """A function of ``functools.singledispatch`` with its registry, which it may itself be in."""
    named = {name: getattr(function, name) for name in functools.WRAPPER_ASSIGNMENTS}
    added = {k: v for k, v in vars(function).items() if k not in vars(_dispatching)}
    state = dict(function.registry), {**named, **added, "__wrapped__": function.__wrapped__}
    return _make_dispatching, (function.__name__,), state, None, None, _set_dispatching


def _make_dispatching(name: str) -> Any:
    """By ``functools.singledispatch``, with nothing registered yet."""

    def function(value: Any) -> None: ...

    function.__name__ = name
    return functools.singledispatch(function)


def _set_dispatching(function: Any, state: Any) -> None:
    registry, attributes = state
    for cls, one in registry.items():
        function.register(cls, one)
    for name, value in attributes.items():
        setattr(function, name, value)


def _make_exception(make: Any, arguments: tuple[Any, ...]) -> Any:
    """As pickle does, or without ``__init__``: one of a user's may take other arguments."""
    try:
        return make(*arguments)
    except TypeError:
        return make.__new__(make, *arguments)


def _set_exception(error: BaseException, state: Any) -> None:
    own, set_state, links, lacks = state
    if set_state is not None:
        set_state(error, own)
    elif own is not None:
        error.__setstate__(own)
    for name, value in links.items():
        setattr(error, name, value)
    for text in lacks:
        error.add_note(text)


def _find_imported(module: str, name: str) -> Any:
    return functools.reduce(getattr, name.split("."), importlib.import_module(module))


def _set_jitted(function: Any, state: Any) -> None:
    own, attributes = state
    function.__setstate__(own)
    vars(function).update(attributes)


def _make_bare(cls: type) -> Any:
    made = (vars(kind).get("__new__") for kind in cls.__mro__)
    return next(new for new in made if isinstance(new, BuiltinFunctionType))(cls)


def reason(error: BaseException, value: Any = None) -> str:
    """Why a name could not be saved, briefly.

    Args:
      value: what it is bound to. What can't be saved may be deep inside of it.
    """
    if isinstance(error, RecursionError):
        return "nested too deeply"
    text = told(error)
    if isinstance(error, CannotSave):
        return text
    if found := re.search(r"cannot pickle '?([\w.]+)'? object", text):
        kind = found[1].rpartition(".")[2]
        kinds = {
            "generator": "a generator",
            "TextIOWrapper": "an open file",
            "BufferedReader": "an open file",
            "BufferedWriter": "an open file",
            "async_generator": "a generator",
            "coroutine": "a coroutine",
            "lock": "a lock",
            "RLock": "a lock",
            "socket": "a socket",
            "Ref": "a mutable array reference",
        }
        named = kinds.get(kind, f"a {kind} object")
        if value is None or type(value).__name__ == kind:
            return f"{named} can't be saved"
        return f"it holds {named}, which can't be saved"
    if "file" in text and "pickle" in text:
        return "an open file can't be saved"
    return text


def versions() -> dict[str, str]:
    """What must be equal where a state is saved and where it is restored."""
    import jax

    return {"python": "{}.{}".format(*sys.version_info), "jax": jax.__version__}

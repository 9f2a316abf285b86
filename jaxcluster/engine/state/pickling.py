"""How objects are pickled that neither pickle nor cloudpickle would bring back as they were.

- functions and classes that were defined in cells go by value, and the functions' globals are the
  namespace itself: redefining a global changes what they see, as before;
- what is told by its identity, or views something else, is so again: cells of closures, views of
  dicts, what a library has under a name;
- what would come back without what makes it work is refused: a thread, an open file.
"""

from __future__ import annotations

import asyncio
import functools
import gc
import importlib
import io
import logging
import multiprocessing.process
import re
import subprocess
import sys
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable, Mapping
from concurrent import futures
from pickle import PickleBuffer
from types import BuiltinFunctionType, CellType, CodeType, FunctionType, MappingProxyType
from typing import Any

import cloudpickle
import numpy as np

from jaxcluster.engine.digests import is_imported
from jaxcluster.engine.state import classes, memory, objects
from jaxcluster.engine.state.objects import PROTOCOL
from jaxcluster.engine.state.saved import CannotSave, told


class Known:
    """What is looked up once while variables are saved."""

    def __init__(self) -> None:
        import jax

        self.jitted_type: Any = type(jax.jit(abs))
        self.custom_types = (jax.custom_vjp, jax.custom_jvp)
        self.singletons = classes.Singletons()
        self.kinds: dict[type, objects.Kind] = {}
        self.ordinary: set[type] = set()  # of these, those whose objects nothing else looks at


class Pickler(cloudpickle.Pickler):
    """Pickles what a namespace has.

    Args:
      why_not: why an exception that another one came from can't be saved; "" where it can.
      out_of_band: given a large buffer, which is not in the pickle if it returns False.
    """

    def __init__(
        self,
        file: io.BytesIO,
        namespace: dict[str, Any],
        known: Known,
        why_not: Callable[[BaseException], str],
        out_of_band: Callable[[PickleBuffer], bool],
    ) -> None:
        super().__init__(file, protocol=PROTOCOL, buffer_callback=out_of_band)
        self.namespace = namespace
        self.known = known
        self.why_not = why_not
        self.how = _HOW
        self._cells: dict[int, CellType] = {}
        self._modules: dict[int, str] = {}  # by the id of their variables
        # Functions of the namespace keep it as their globals: cloudpickle would give them a dict of
        # their own (cloudpickle 3.1; where these names move, it does that again).
        if isinstance(getattr(self, "globals_ref", None), dict):
            self.globals_ref[id(namespace)] = namespace

    def _dynamic_function_reduce(self, func: Any) -> Any:
        known = func.__globals__
        is_modules = known is not self.namespace and self._is_of_module(known)
        reduced = super()._dynamic_function_reduce(func)
        if is_modules or known is self.namespace:
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
        known = self.known
        if type(obj) in known.ordinary:  # a million of them may be saved after each cell
            return objects.with_its_dict(obj) if objects.shares_dict(obj) else NotImplemented
        if (how := self.how.get(type(obj))) is not None:
            return how(obj)
        if isinstance(obj, np.ndarray) and (array := memory.reduce(obj)) is not None:
            return array
        if isinstance(obj, np.ndarray) and (array := memory.reduce_subclass(obj)) is not None:
            return array
        if type(obj) in _LOCKS:  # a new one is what a free one was, but a library's is its module's
            if (found := known.singletons.find(obj)) is not None:
                return _find_imported, found
            if not _is_free(obj):
                raise CannotSave("a lock that is held can't be saved")
            return _LOCKS[type(obj)], ()
        for refused, what in _REFUSED.items():
            if isinstance(obj, refused):
                raise CannotSave(f"{what} can't be saved")
        if isinstance(obj, futures.Future) and not obj.done():
            raise CannotSave("a future that is not done can't be saved")
        if isinstance(obj, functools._lru_cache_wrapper) and not is_imported(obj):
            made = _make_cached, (obj.__wrapped__, obj.cache_parameters())
            return *made, {k: v for k, v in vars(obj).items() if k not in _OF_LRU_CACHE}
        if type(obj) is FunctionType and obj.__code__ is _DISPATCHES and not is_imported(obj):
            return _reduce_dispatching(obj)
        if type(obj) is FunctionType and _is_reloaded(obj):
            return _find_imported, (obj.__module__, obj.__qualname__)
        if isinstance(obj, BaseException):
            return self._exception(obj)
        reduced = super().reducer_override(obj)
        if isinstance(obj, type) and isinstance(reduced, tuple) and len(reduced) == 6:
            return classes.complete(obj, reduced)
        if type(obj) is known.jitted_type:
            if is_imported(obj):
                return _find_imported, (obj.__module__, obj.__qualname__)
            # Its own state lacks its attributes, without which it has no lower() and no name.
            own: Any = obj.__reduce_ex__(PROTOCOL)
            make, arguments, state, *_ = own
            return make, arguments, (state, vars(obj)), None, None, _set_jitted
        if isinstance(obj, known.custom_types):
            # jax 0.10.2: their __new__ takes the function, and pickle gives it nothing.
            return (_make_bare, (type(obj),), vars(obj))
        if reduced is not NotImplemented:
            return reduced
        if classes.is_half_made(obj):
            bare = obj.__reduce_ex__(PROTOCOL)
            if bare[:2] == (_NEW, (type(obj),)):
                return _make_bare, *bare[1:]
        if (found := known.singletons.find(obj)) is not None:
            return _find_imported, found
        if (kind := known.kinds.get(type(obj))) is None:
            kind = known.kinds[type(obj)] = objects.kind_of(type(obj))
            if kind.is_ordinary:
                known.ordinary.add(type(obj))
        return objects.reduce(obj, kind) or NotImplemented

    def _exception(self, error: BaseException) -> Any:
        """With what it came from, which pickle leaves out; a traceback can't be kept."""
        if isinstance(reduced := error.__reduce_ex__(PROTOCOL), str):
            return reduced
        make, arguments, *more = reduced
        state, listed, mapped, set_state = (*more, None, None, None, None)[:4]
        links, lacks = {}, []
        for name in ("__cause__", "__context__"):
            if (one := getattr(error, name)) is not None:
                if why := self.why_not(one):
                    lacks.append(f"Its {name} was lost with its process ({why}).")
                else:
                    links[name] = one
        links["__suppress_context__"] = error.__suppress_context__  # the cause sets it
        state = state, set_state, links, lacks
        return _make_exception, (make, arguments), state, listed, mapped, _set_exception


_DICTS: tuple[Any, ...] = ({}, OrderedDict())
_VIEWS = {MappingProxyType} | {
    type(view) for one in _DICTS for view in (one.keys(), one.values(), one.items())
}


def _view(kind: str, of: Any) -> Any:
    return MappingProxyType(of) if kind == "mappingproxy" else getattr(of, kind)()


def _reduce_view(view: Any) -> tuple[Any, ...]:
    """cloudpickle would save a copy of what it shows."""
    of = next(one for one in gc.get_referents(view) if isinstance(one, Mapping))
    return _view, (type(view).__name__.rpartition("_")[2], of)


def _reduce_code(code: CodeType) -> tuple[Any, ...]:
    """cloudpickle 3.1.3 leaves the file out, by which a cell's lines are known and shown."""
    make, arguments, *_ = cloudpickle.Pickler.dispatch_table[CodeType](code)
    return _code_of_file, (code.co_filename, make, arguments)


def _code_of_file(path: str, make: Callable[..., CodeType], arguments: Any) -> CodeType:
    return make(*arguments).replace(co_filename=path)


_OF_LRU_CACHE = {"__wrapped__", "cache_parameters"}


def _make_cached(function: Callable[..., Any], parameters: dict[str, Any]) -> Any:
    """By ``functools.lru_cache``, with nothing cached yet."""
    return functools.lru_cache(**parameters)(function)


_LOCKS: dict[type, Any] = {type(make()): make for make in (threading.Lock, threading.RLock)}
_REFUSED = {
    threading.Thread: "a thread",  # else it would come back without what runs
    subprocess.Popen: "a subprocess",
    logging.Handler: "a logging handler",
    multiprocessing.process.BaseProcess: "a process",
    asyncio.Future: "a task or future of asyncio",
    asyncio.AbstractEventLoop: "an event loop",
    memoryview: "a memoryview",  # cloudpickle would save bytes, which view nothing
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


def _reduce_ref(reference: Any) -> tuple[Any, ...]:
    target = reference()
    return _make_ref, (() if target is None else (target, reference.__callback__))


def _make_ref(*arguments: Any) -> Any:
    return weakref.ref(*(arguments or (_Gone(),)))


def _reduce_weak_dict(weak: Any) -> tuple[Any, ...]:
    return type(weak), (), None, None, iter(list(weak.items()))


def _reduce_cached_property(cached: Any) -> tuple[Any, ...]:
    """It has a lock in Python 3.11."""
    state = {"attrname": cached.attrname, "__doc__": cached.__doc__}
    return functools.cached_property, (cached.func,), state


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
    objects.set_state(error, own, set_state)
    for name, value in links.items():
        setattr(error, name, value)
    for text in lacks:
        error.add_note(text)


def _is_reloaded(function: FunctionType) -> bool:
    """Whether ``%autoreload`` has replaced a function, and keeps it equal to the new one.

    By value a new process would have a copy, which autoreload does not know.
    """
    module = sys.modules.get(function.__module__)
    if getattr(module, "__dict__", None) is not function.__globals__:
        return False
    found: Any = module
    for part in function.__qualname__.split("."):
        found = getattr(found, part, None)
    return (
        type(found) is FunctionType
        and found is not function
        and found.__code__ is function.__code__
        and found.__dict__ is function.__dict__
    )


def _find_imported(module: str, name: str) -> Any:
    return functools.reduce(getattr, name.split("."), importlib.import_module(module))


def _set_jitted(function: Any, state: Any) -> None:
    own, attributes = state
    function.__setstate__(own)
    vars(function).update(attributes)


def _make_bare(cls: type) -> Any:
    made = (vars(kind).get("__new__") for kind in cls.__mro__)
    return next(new for new in made if isinstance(new, BuiltinFunctionType))(cls)


_HOW: dict[type, Callable[[Any], tuple[Any, ...]]] = {  # of these classes themselves
    **dict.fromkeys(_VIEWS, _reduce_view),
    CodeType: _reduce_code,
    weakref.ref: _reduce_ref,
    weakref.WeakKeyDictionary: _reduce_weak_dict,
    weakref.WeakValueDictionary: _reduce_weak_dict,
    functools.cached_property: _reduce_cached_property,
}


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

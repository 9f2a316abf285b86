"""What was saved of a rank's variables, brought back on a new process.

On the main thread of a rank whose backend is up.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import io
import pickle
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import FrameType, ModuleType
from typing import Any

import numpy as np

from jaxcluster.engine.arrays import bounds
from jaxcluster.engine.digests import is_imported
from jaxcluster.engine.private import contexts
from jaxcluster.engine.private.arrays import uncommitted, weakly_typed
from jaxcluster.engine.state import classes, memory, ownmodules
from jaxcluster.engine.state.process_state import ProcessState
from jaxcluster.engine.state.saved import (
    CannotRestore,
    Saved,
    SavedArray,
    SavedPickle,
    told,
    users_code,
)
from jaxcluster.engine.state.settings import Settings

# Settings that what a value is may hang on: its numbers, its class.
EARLY = ("os.environ", "the current folder", "sys.path", "jax.config")
MOST_ROUNDS = 3  # of reading, where a name needs others
SHARED = "what variables share"


@dataclass
class Loaded:
    """What was read, and is not bound yet.

    Attributes:
      values: the names that are back.
      lost: the others: why.
    """

    values: dict[str, Any]
    lost: dict[str, str]
    loader: Loader
    skip: set[str]


def load(
    saved: Saved,
    namespace: dict[str, Any],
    names: Iterable[str] | None = None,
    before: Iterable[str] = (),
    settings: Settings | None = None,
    skip: Iterable[str] = (),
    check: Callable[[], None] = lambda: None,
    loader: Loader | None = None,
) -> Loaded:
    """The values that were saved, whose functions are of ``namespace``. Nothing is bound.

    ``saved`` may be another rank's: then arrays that were on that process alone are put on this
    one's devices, and an array that spans processes comes back if this rank's parts of it are among
    the saved ones (replicated arrays are).

    Args:
      names: those that get what they were bound to when they were saved; all by default.
      before: those that get what they were bound to before the cell.
      settings: those of this process. Some are set meanwhile: what a value is hangs on them.
      skip: settings that are left as they are.
      check: raises where it is given up.
      loader: makes the values, in place of one of ``saved`` alone.
    """
    loader, skip = loader or Loader(saved, namespace, check), set(skip)
    with contextlib.ExitStack() as stack:
        if settings is not None:
            stack.enter_context(settings.others())  # whether garbage is collected is one
        stack.enter_context(_without_gc())
        stack.enter_context(loader.classes.reading())
        if settings is not None:
            stack.enter_context(_set_for_now(settings, loader.settings(EARLY, skip)))
        return _load(saved, loader, names, set(before), skip)


@contextlib.contextmanager
def _without_gc() -> Iterator[None]:
    """A million lists that are made at once are no garbage, and it would look at them ten times."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


@contextlib.contextmanager
def _set_for_now(settings: Settings, values: Mapping[str, Any]) -> Iterator[None]:
    """Within, these settings are set, as far as they can be."""
    around, before = ProcessState.now(), settings.now(values)
    _set(settings, values)
    try:
        yield
    finally:
        _set(settings, before)
        around.put_back()  # what was not there before, and sys.path to the letter


def _set(settings: Settings, values: Mapping[str, Any]) -> None:
    for name, value in values.items():
        with contextlib.suppress(Exception):  # one that can't be set keeps no other back
            settings.restore(name, value)


def bind(
    loaded: Loaded, namespace: dict[str, Any], settings: Settings | None = None
) -> dict[str, str]:
    """Bind what was read, and set settings; returns those that could not be set: why."""
    left = loaded.loader.classes.put_back()
    if settings is not None:
        left |= loaded.loader.set_settings(settings, loaded.skip)
    namespace.update(loaded.values)
    return left


def _load(
    saved: Saved,
    loader: Loader,
    names: Iterable[str] | None,
    before: set[str],
    skip: set[str],
) -> Loaded:
    names = None if names is None else set(names)
    now = {n: p for n, p in saved.now.names.items() if names is None or n in names}
    then = {n: p for n, p in saved.before.names.items() if n in before}
    for name in {*then, *(n for n in before if n in saved.absent)}:
        now.pop(name, None)
    wanted = now | then
    lost = {}
    for name, one in wanted.items():
        try:
            loader.check(one)
        except CannotRestore as error:
            lost[name] = str(error)
    values: dict[str, Any] = {}
    unmade = lost
    for _ in range(MOST_ROUNDS):
        with _bound_for_now(loader.namespace, values):
            lost = dict(unmade)
            found = loader.together(now, then, lost)
            values = _one_by_one(loader, wanted, now, then, lost) if found is None else found
        if not any("NameError" in why for why in lost.values()):
            break  # else code of the user's has run that needs what was read in this round
    loader.check_wanted()
    return Loaded(values, lost, loader, skip)


def _one_by_one(
    loader: Loader,
    wanted: Mapping[str, SavedPickle],
    now: Iterable[str],
    then: Iterable[str],
    lost: dict[str, str],
) -> dict[str, Any]:
    """What can be read name by name; which can't be is put into ``lost``."""
    values: dict[str, Any] = {}
    for name in wanted.keys() - lost.keys():
        try:
            values[name] = loader.unpickle(wanted[name])
        except Exception as error:
            value, broken = loader.unpickle_around(wanted[name])
            if not broken:
                values[name] = value
                continue
            lost[name] = told(error)
    # Those that can be read share what they had shared.
    return loader.together(now, then, lost, is_around=True) or values


@contextlib.contextmanager
def _bound_for_now(namespace: dict[str, Any], values: Mapping[str, Any]) -> Iterator[None]:
    """Within, these have values, as far as they have none: ``__setstate__`` may need ``np``."""
    absent = [name for name in values if name not in namespace]
    namespace.update({name: values[name] for name in absent})
    try:
        yield
    finally:
        for name in absent:
            namespace.pop(name, None)


class Loader:
    def __init__(self, saved: Saved, namespace: dict[str, Any], check: Callable[[], None]) -> None:
        import jax

        self.saved = saved
        self.check_wanted = check
        self.namespace = namespace
        self.devices = {d.id: d for d in jax.devices()}
        self.local = jax.local_devices()
        self.classes = classes.Loading()
        self._arrays: dict[int, Any] = {}
        self._shardings: dict[int, Any] = {}
        self._table: list[memory.View] = pickle.loads(saved.sections[saved.views])
        self._owners = {view.memory: n for n, view in enumerate(self._table) if view.is_owner}
        self._users = Counter(view.memory for view in self._table)
        self._views: dict[int, Any] = {}
        self._missing: dict[int, CannotRestore] = {}  # arrays that can't be made here
        self._settings: dict[str, Any] = {}  # that were read with the names
        self._is_around = False  # something could not be made
        self._is_apart = False  # the names were read one by one

    def unpickle(self, one: SavedPickle) -> Any:
        with users_code():
            return _Unpickler(one, self).load()

    def unpickle_around(self, one: SavedPickle) -> tuple[Any, list[Any]]:
        """The same around what can't be made, and what is in its place."""
        unpickler = _UnpicklerAround(one, self)
        try:
            with users_code():
                return unpickler.load(), unpickler.broken
        except Exception as error:
            return None, [error]

    def view(self, number: int) -> Any:
        """One of numpy's arrays, the same whichever name it is for."""
        if number not in self._views:
            view = self._table[number]
            owner = None
            if (of := self._owners.get(view.memory)) is not None and of != number:
                owner = self.view(of)
            place = self.saved.memories[view.memory]
            section = self.saved.sections[place]
            made = None
            if self._users[view.memory] == 1:
                made = memory.make_alone(view, section)
            if made is not None:
                self.saved.sections[place] = memory.Section()  # it is in memory once
            else:
                made = memory.make(view, section, owner)
            self._views[number] = made
        return self._views[number]

    def settings(self, groups: Iterable[str], skip: set[str]) -> dict[str, Any]:
        """What was saved of these groups of settings, as far as it can be read."""
        found = {}
        for name, one in self.saved.settings.items():
            if name not in skip and (name in groups or name.partition(" ")[0] in groups):
                with contextlib.suppress(Exception):  # one that can't be read keeps no other back
                    found[name] = self.unpickle(one)
        return found

    def set_settings(self, settings: Settings, skip: set[str]) -> dict[str, str]:
        """Set what cells had changed; returns what could not be, and why."""
        left: dict[str, str] = {}
        for name, one in self.saved.settings.items():
            if name in skip and name.startswith(f"{ownmodules.GROUP} "):
                left[name] = ownmodules.OF_THE_DEAD
            if name not in skip:
                try:
                    value = self._setting(name, one)
                    if isinstance(value, ownmodules.Variables):
                        left |= value.take_out(name, skip)
                    settings.restore(name, value)
                except Exception as error:
                    left[name] = told(error)
        if self._is_apart:
            left[SHARED] = "they could not be read at once: each name has its own copy"
        return left

    def _setting(self, name: str, one: SavedPickle) -> Any:
        """What was saved of a setting: the very object that names have, too.

        Raises:
          Exception: it can't be read.
        """
        if name not in self._settings:
            return self.unpickle(one)
        if self._is_around and (broken := self.unpickle_around(one)[1]):
            raise CannotRestore(f"it can't be made: {type(broken[0]).__qualname__}")
        return self._settings[name]

    def together(
        self,
        now: Iterable[str],
        then: Iterable[str],
        lost: Iterable[str],
        is_around: bool = False,
    ) -> dict[str, Any] | None:
        """The values of all names at once, aliased as they were; None where that can't be done.

        What belongs to a name that is ``lost`` is left out. It is in no other: that would be lost
        for the same array, or the same object.

        Args:
          is_around: read around what can't be made; ``lost`` are the names that have it.
        """
        self._is_apart = True
        if self.saved.together is None:
            return None
        try:
            broken: list[Any] = []
            if is_around:
                made, broken = self.unpickle_around(self.saved.together)
            else:
                made = self.unpickle(self.saved.together)
            newest, older, settings = made
            gone = set(lost)
            values = {n: newest[n] for n in now if n not in gone}
            values |= {n: older[n] for n in then if n not in gone}
        except Exception:  # what is alone must do then
            return None
        if broken and self._reaches(values, broken):
            return None
        self._is_apart, self._is_around = False, is_around
        self._settings = settings
        return values

    def _reaches(self, values: Mapping[str, Any], wanted: Iterable[Any]) -> bool:
        """Whether names lead to one of these objects."""
        loaded: list[Any] = list(sys.modules.values())  # None, where somebody forbids one
        modules = [one for one in loaded if isinstance(one, ModuleType)]
        seen = {id(self.namespace), *map(id, map(vars, modules))}
        ends = {id(one) for one in wanted}
        todo = list(values.values())
        while todo:
            one = todo.pop()
            if id(one) in ends:
                return True
            if id(one) in seen or isinstance(one, (ModuleType, FrameType)) or is_imported(one):
                continue
            seen.add(id(one))
            if isinstance(one, np.ndarray):
                todo += one.ravel().tolist() if one.dtype == object else ()
            else:
                todo += gc.get_referents(one)
        return False

    def check(self, one: SavedPickle) -> None:
        """Make the arrays of a name.

        Raises:
          CannotRestore: one of them can't be made here.
        """
        for number in one.arrays:
            self.array(number)
            if number in self._missing:
                raise self._missing[number]

    def array(self, number: int) -> Any:
        """An array; None for one that can't be made: the names that have it were checked."""
        if number not in self._arrays and number not in self._missing:
            try:
                self._arrays[number] = self.make_array(number)
            except CannotRestore as error:
                self._missing[number] = error
        return self._arrays.get(number)

    def sharding(self, saved: SavedArray) -> Any:
        """That of an array, with the devices that are there now."""
        if saved.sharding not in self._shardings:
            one = SavedPickle(saved.sharding, [], [])
            self._shardings[saved.sharding] = self.unpickle(one)
        return self._shardings[saved.sharding]

    def part(self, number: int, index: Sequence[slice]) -> np.ndarray[Any, Any]:
        """The numbers of an array at ``index``.

        Raises:
          CannotRestore: they were not saved.
        """
        import jax

        saved = self.saved.arrays[number]
        where = bounds(index, saved.shape)
        for there, section in saved.shards:
            if there == where:
                flat = np.frombuffer(self.saved.sections[section], np.uint8)
                flat = flat.view(jax.numpy.dtype(saved.dtype))
                return flat.reshape([stop - start for start, stop in where])
        places = ", ".join(f"{start}:{stop}" for start, stop in where)
        raise CannotRestore(
            f"this rank's part [{places}] of an array of shape {tuple(saved.shape)} was not saved "
            f"by rank {self.saved.rank}"
        )

    @contexts.exactly()
    def make_array(self, number: int) -> Any:
        """An array on its devices.

        Raises:
          CannotRestore: it can't be made here.
        """
        import jax

        saved = self.saved.arrays[number]
        dtype = jax.numpy.dtype(saved.dtype)
        shape = tuple(saved.shape)
        sharding = self.sharding(saved)
        ready: dict[str, np.ndarray[Any, Any]] = {}

        def part(index: Sequence[slice]) -> np.ndarray[Any, Any]:
            key = str(bounds(index, shape))
            if key not in ready:
                ready[key] = self.part(number, index)
            return ready[key]

        devices = sharding.addressable_devices_indices_map(shape)
        if not saved.committed and len(sharding.device_set) == 1:
            values = part(next(iter(devices.values())))
            array = uncommitted(values, saved.weak_type)
        else:
            kind = sharding.memory_kind
            pieces = [
                jax.device_put(part(index), jax.sharding.SingleDeviceSharding(d, memory_kind=kind))
                for d, index in devices.items()
            ]
            array = jax.make_array_from_single_device_arrays(shape, sharding, pieces, dtype=dtype)
            array = weakly_typed(array) if saved.weak_type else array
        if saved.key_impl is not None:
            array = jax.random.wrap_key_data(array, impl=saved.key_impl)
        return array

    def device(self, id: int) -> Any:
        if id not in self.devices:
            raise CannotRestore(
                f"it needs device {id}, and this cluster has {len(self.devices)} devices"
            )
        return self.devices[id]

    def local_device(self, position: int) -> Any:
        if position >= len(self.local):
            raise CannotRestore(
                f"it needs {position + 1} devices on this rank, which has {len(self.local)}"
            )
        return self.local[position]

    def mesh_devices(
        self, local: bool, places: Sequence[int], shape: Sequence[int], axes: Sequence[str]
    ) -> np.ndarray[Any, Any]:
        """The devices of a mesh, in its shape.

        Args:
          local: ``places`` count this rank's devices; else they are the devices' ids.
        """
        find: Callable[[int], Any] = self.local_device if local else self.device
        devices = np.empty(len(places), object)
        devices[:] = [find(place) for place in places]
        return devices.reshape(shape)

    def persistent(self, pid: Any, one: SavedPickle) -> Any:
        import jax

        self.check_wanted()
        match pid:
            case ("namespace",):
                return self.namespace
            case ("module", name):
                return vars(importlib.import_module(name))
            case ("stream", name):
                return getattr(sys, name)
            case ("array", place):
                return self.array(one.arrays[place])
            case ("view", place):
                return self.view(one.views[place])
            case ("device", id):
                return self.device(id)
            case ("single", position, memory_kind):
                device = self.local_device(position)
                return jax.sharding.SingleDeviceSharding(device, memory_kind=memory_kind)
            case ("mesh", local, places, shape, axis_names, types):
                devices = self.mesh_devices(local, places, shape, axis_names)
                kwargs = {"axis_types": types} if types is not None else {}
                return jax.sharding.Mesh(devices, axis_names, **kwargs)
        raise pickle.UnpicklingError(f"unknown reference {pid!r}")


class _OfLoader:
    """An unpickler of one pickle of a loader's."""

    def __init__(self, one: SavedPickle, loader: Loader) -> None:
        sections = loader.saved.sections
        file: Any = io.BytesIO(bytes(sections[one.section]))
        super().__init__(file, buffers=[sections[n] for n in one.buffers])  # type: ignore[call-arg]
        self._one, self._loader = one, loader

    def persistent_load(self, pid: Any) -> Any:
        return self._loader.persistent(pid, self._one)


class _Unpickler(_OfLoader, pickle.Unpickler):
    """Python's own, in C."""


class _Broken:
    """In place of an object that can't be made: it takes all that is done to it."""

    def take(self, *_: Any) -> _Broken:
        return self

    __call__ = __setstate__ = __setitem__ = append = extend = add = update = take


def _around(code: int, pops: int) -> Callable[[Any], None]:
    """What an opcode of pickle does, whose result comes in place of so many of the stack's last."""

    def load(unpickler: Any) -> None:
        stack = unpickler.stack
        height = len(stack) - pops
        operands = stack[height:]
        try:
            pickle._Unpickler.dispatch[code](unpickler)
        except Exception:  # the user's class can't be made again
            made = operands[0] if code == pickle.BUILD[0] else _Broken()
            stack[height:] = [made]
            unpickler.broken.append(made)

    return load


def _fill(code: int) -> Callable[[Any], None]:
    """What an opcode does that fills a set or a dict, or, where that fails, does so at the end.

    Of two objects that have each other in a set, the first one has no hash yet.
    """

    def load(unpickler: Any) -> None:
        items = unpickler.stack[-2:] if code == pickle.SETITEM[0] else list(unpickler.stack)
        try:
            pickle._Unpickler.dispatch[code](unpickler)
        except Exception:  # the key's parts are not there yet
            unpickler.later.append((unpickler.stack[-1], items))

    return load


class _UnpicklerAround(_OfLoader, pickle._Unpickler):
    """Goes on where an object can't be made, so that all others are aliased as they were.

    Python's own, some 30 times as slow as that of C.

    Attributes:
      broken: what is in the place of what could not be made.
    """

    def __init__(self, one: SavedPickle, loader: Loader) -> None:
        super().__init__(one, loader)
        self.broken: list[Any] = []
        self.later: list[tuple[Any, list[Any]]] = []

    def load(self) -> Any:
        value = super().load()
        for filled, items in self.later:
            if isinstance(filled, set):
                filled.update(items)
            else:
                for key, one in zip(items[::2], items[1::2], strict=True):
                    filled[key] = one
        return value

    dispatch = (
        pickle._Unpickler.dispatch
        | {
            code[0]: _around(code[0], pops)
            for code, pops in (
                (pickle.STACK_GLOBAL, 2),
                (pickle.BINPERSID, 1),
                (pickle.NEWOBJ, 2),
                (pickle.NEWOBJ_EX, 3),
                (pickle.REDUCE, 2),
                (pickle.BUILD, 2),
            )
        }
        | {one[0]: _fill(one[0]) for one in (pickle.ADDITEMS, pickle.SETITEM, pickle.SETITEMS)}
    )
